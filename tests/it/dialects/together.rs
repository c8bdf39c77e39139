//! All dialects on one stream: a call is cut in every state and resumed in every way, and what the
//! client has seen in the end is the whole of it, once.

use serde_json::{Value, json};

use super::{ask, open};
use crate::support::*;

/// Dialect in which a client resumes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    LastEventId,
    Request,
    Stream,
    Url,
}

const WAYS: [Way; 4] = [Way::LastEventId, Way::Request, Way::Stream, Way::Url];

/// Events that the client has seen, and its means of resuming.
struct Client {
    session: Session,
    policy: Value,
    create: Value,
    last_id: String,
    seen: Vec<String>,
}

impl Client {
    /// Returns its resume request. All dialects name the last event, so that none is repeated.
    fn back(&self, way: Way) -> Request {
        let request = match way {
            Way::LastEventId => return self.session.resume(&self.last_id),
            Way::Url => {
                let handle = EventId::of(&self.last_id).handle;
                self.session.get().target(&format!("/mcp?mcp-stream={handle}"))
            }
            Way::Request => {
                let params = json!({ "resumeToken": self.policy["params"]["resumeToken"] });
                self.session.post(ask(json!(7), "requests/resume", params))
            }
            Way::Stream => {
                let create = &self.create["params"];
                let params = json!({ "streamId": create["streamId"], "resumeToken": create["resumeToken"] });
                self.session.post(ask(json!("resume"), "stream/resume", params))
            }
        };
        request.resume_from(&self.last_id)
    }

    fn take(&mut self, frame: &Frame) {
        if let Some(id) = &frame.id {
            self.last_id.clone_from(id);
        }
        if !frame.bytes().is_empty() {
            self.seen.push(String::from_utf8(frame.bytes().to_vec()).unwrap());
        }
    }

    async fn read(&mut self, response: &mut Response, events: usize) {
        let before = self.seen.len();
        while self.seen.len() < before + events {
            let frame = response.frame().await.expect("a frame");
            self.take(&frame);
        }
    }

    async fn read_to_end(&mut self, response: &mut Response) {
        while let Some(frame) = response.frame().await {
            self.take(&frame);
        }
        assert_eq!(response.end(), Some(End::Complete));
    }
}

const QUESTION: &str = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}"#;

/// The messages of the upstream, and which of them are behind the client when it is cut.
const STATES: [(usize, usize); 5] = [(0, 0), (1, 0), (1, 1), (2, 1), (3, 2)];

async fn run(upstream: &mut Upstream, proxy: &Proxy, said: usize, read: usize, ways: [Way; 2]) {
    let what = format!("{said} said, {read} read, {ways:?}");
    let declared = json!({ "resumableRequests": {}, "streams": {}, "roots": {} });
    // The same call in the same session would be a retry.
    let name = what.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let (session, _) = open(proxy, upstream, declared, Some(&name)).await;
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(7))).await;
    let mut client = Client { session, policy: json!(null), create: json!(null), last_id: String::new(), seen: vec![] };
    client.read(&mut response, 2).await;
    client.policy = serde_json::from_str(&client.seen[0]).unwrap();
    client.create = serde_json::from_str(&client.seen[1]).unwrap();
    let messages = [progress(1), QUESTION.to_owned(), progress(2)];
    let mut rest = messages.iter();
    for message in rest.by_ref().take(said) {
        sse.event(message).await;
    }
    client.read(&mut response, read).await;
    response.reset();

    // Back in one way, cut again, back in the other.
    let mut response = client.back(ways[0]).send(proxy.addr).await.sse();
    client.read(&mut response, said - read).await;
    response.reset();
    for message in rest {
        sse.event(message).await;
    }
    let mut response = client.back(ways[1]).send(proxy.addr).await.sse();
    client.read(&mut response, 3 - said).await;
    let pending = client.session.post(ANSWER).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202, "{what}");
    sse.finish(result(7)).await;
    client.read_to_end(&mut response).await;

    let mut messages = messages.to_vec();
    messages.push(result(7));
    let ours: Vec<_> = client.seen.iter().filter(|seen| messages.contains(seen)).cloned().collect();
    assert_eq!(ours, messages, "{what}");
    let end = json!({ "jsonrpc": "2.0", "method": "notifications/stream/end",
                      "params": { "streamId": client.create["params"]["streamId"] } });
    let others: Vec<Value> = client.seen[2..]
        .iter()
        .filter(|seen| !messages.contains(seen))
        .map(|seen| serde_json::from_str(seen).unwrap())
        .collect();
    let resumed = json!({ "jsonrpc": "2.0", "id": "resume", "result": {} });
    let expected = if ways[1] == Way::Stream { vec![end, resumed] } else { vec![end] };
    assert_eq!(others, expected, "{what}");
}

#[tokio::test]
async fn a_call_cut_in_any_state_is_whole_by_any_two_ways() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    for (said, read) in STATES {
        for first in WAYS {
            for second in WAYS {
                run(&mut upstream, &proxy, said, read, [first, second]).await;
            }
        }
    }
}

/// Without an acknowledgement, all unacknowledged events are repeated, in any dialect.
#[tokio::test]
async fn a_confirmation_in_one_way_counts_in_all() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let declared = json!({ "resumableRequests": {}, "streams": {} });
    let (session, _) = open(&proxy, &mut upstream, declared, Some("s")).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let token = response.event().await.json()["params"]["resumeToken"].clone();
    let stream = response.event().await.json()["params"]["streamId"].clone();
    sse.event(progress(1)).await;
    sse.event(progress(2)).await;
    let first = response.event().await.id().to_owned();
    response.event().await;
    response.reset();

    let poll = session.post(ask(json!(1), "stream/poll", json!({ "streamId": stream, "resumeToken": token })));
    let pending = async || poll.send(proxy.addr).await.json().await["result"]["pendingMessages"].clone();
    assert_eq!(pending().await, json!(true));
    // A client that names an event has those before it, by GET as well; but only a POST releases
    // them.
    let mut again = session.resume(&first).send(proxy.addr).await.sse();
    again.prime().await;
    assert_eq!(again.event().await.bytes(), progress(2).as_bytes());
    again.reset();
    let resume = session.post(ask(json!(7), "requests/resume", json!({ "resumeToken": token })));
    let mut rest = resume.send(proxy.addr).await.sse();
    rest.prime().await;
    let second = rest.event().await;
    assert_eq!(second.bytes(), progress(2).as_bytes());
    let second = second.id().to_owned();
    rest.reset();
    let mut old = session.resume(&first).send(proxy.addr).await.sse();
    old.prime().await;
    assert_eq!(old.event().await.bytes(), progress(2).as_bytes());
    old.reset();
    let mut confirming = resume.clone().resume_from(&second).send(proxy.addr).await.sse();
    confirming.prime().await;
    confirming.reset();
    assert_eq!(pending().await, json!(false));
    let lost = session.resume(&first).send(proxy.addr).await.sse().event().await.json();
    assert_eq!(lost["error"]["code"], -32012, "it was let go");
    sse.finish(result(7)).await;
    let mut last = resume.send(proxy.addr).await.sse();
    last.prime().await;
    assert_eq!(last.event().await.bytes(), result(7).as_bytes());
}

#[tokio::test]
async fn a_status_starts_the_wait_anew_and_an_abandoned_calls_token_opens_nothing() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let (session, _) = open(&proxy, &mut upstream, json!({ "resumableRequests": {} }), Some("s")).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let token = response.event().await.json()["params"]["resumeToken"].clone();
    response.reset();
    let params = json!({ "requestId": 7, "resumeToken": token });
    let get = session.post(ask(json!(1), "requests/getStatus", params));
    settle(&proxy, &mut upstream).await;
    for _ in 0..3 {
        pass(std::time::Duration::from_secs(599)).await;
        assert_eq!(get.send(proxy.addr).await.json().await["result"]["status"], "processing");
    }
    pass(std::time::Duration::from_secs(601)).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    sse.closed().await;
    assert_eq!(get.send(proxy.addr).await.json().await, super::refused(json!(1)));
}
