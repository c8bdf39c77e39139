//! Resumable streams, #899.

use serde_json::json;

use super::{ask, open, refused};
use crate::support::*;

#[tokio::test]
async fn a_stream_says_when_it_begins_and_ends_and_a_resume_answers_itself_last() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let (session, seen) =
        open(&proxy, &mut upstream, json!({ "streams": {}, "resumableRequests": {} }), Some("s")).await;
    assert_eq!(seen["params"]["capabilities"], json!({}));
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    assert_eq!(response.event().await.json()["method"], "notifications/requests/resumePolicy");
    let create = response.event().await.json();
    assert_eq!(create["method"], "notifications/stream/create");
    let params = &create["params"];
    assert_eq!((&params["requestId"], &params["resumeInterval"]), (&json!(7), &json!({ "min": 1, "max": 600 })));
    let named = json!({ "streamId": params["streamId"], "resumeToken": params["resumeToken"] });
    response.reset();
    sse.event(progress(1)).await;
    let poll = session.post(ask(json!(8), "stream/poll", named.clone()));
    let status = async || poll.send(proxy.addr).await.json().await["result"].clone();
    until("the event waits", async || status().await["pendingMessages"] == true).await;
    assert_eq!(
        status().await,
        json!({ "streamId": params["streamId"], "status": "live", "pendingMessages": true, "hasRequest": false,
                "hasError": false })
    );
    let resume = session.post(ask(json!("r"), "stream/resume", named));
    sse.finish(result(7)).await;
    let mut again = resume.send(proxy.addr).await.sse();
    let (frames, end) = again.events().await;
    let last = &frames[frames.len() - 2..];
    assert_eq!(last[0].json()["method"], "notifications/stream/end");
    assert_eq!(last[0].json()["params"]["streamId"], params["streamId"]);
    assert_eq!(last[1].json(), json!({ "jsonrpc": "2.0", "id": "r", "result": {} }));
    assert_eq!(last[1].id, None, "it belongs to this connection");
    assert_eq!(frames[frames.len() - 3].bytes(), result(7).as_bytes());
    assert_eq!(end, End::Complete);
    let elsewhere = json!({ "streamId": "AAAAAAAAAAAAAAAA", "resumeToken": params["resumeToken"] });
    let mut refusal = session.post(ask(json!(9), "stream/poll", elsewhere)).send(proxy.addr).await;
    assert_eq!(refusal.json().await, refused(json!(9)));
}

#[tokio::test]
async fn a_sessions_own_stream_begins_with_its_name_and_is_resumed_and_polled_like_any() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let declared = json!({ "streams": {}, "resumableRequests": {} });
    let (session, _) = open(&proxy, &mut upstream, declared, Some("s")).await;
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    let create = response.event().await.json();
    assert_eq!(create["method"], "notifications/stream/create");
    let params = &create["params"];
    assert_eq!(params.get("requestId"), None);
    let place = response.last_id().expect("an id").to_owned();
    response.reset();
    sse.event(progress(1)).await;
    let named = json!({ "streamId": params["streamId"], "resumeToken": params["resumeToken"] });
    let poll = session.post(ask(json!(8), "stream/poll", named.clone()));
    let status = async || poll.send(proxy.addr).await.json().await["result"].clone();
    until("the event waits", async || status().await["pendingMessages"] == true).await;
    assert_eq!(status().await["status"], "live");
    let resume = session.post(ask(json!("r"), "stream/resume", named)).resume_from(&place);
    let mut again = resume.send(proxy.addr).await.sse();
    again.prime().await;
    assert_eq!(again.event().await.bytes(), progress(1).as_bytes());
    let pending = session.delete().start(proxy.addr).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(again.event().await.json()["method"], "notifications/stream/end");
    assert_eq!(again.event().await.json(), json!({ "jsonrpc": "2.0", "id": "r", "result": {} }));
    again.ends().await;
}

#[tokio::test]
async fn events_after_the_response_precede_the_end_of_the_stream() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let (session, _) = open(&proxy, &mut upstream, json!({ "streams": {} }), Some("s")).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    response.event().await;
    sse.event(result(7)).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), result(7).as_bytes());
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    pass(std::time::Duration::from_secs(2)).await;
    assert_eq!(response.event().await.json()["method"], "notifications/stream/end");
    response.ends().await;
}

#[tokio::test]
async fn a_request_of_a_dialect_stands_alone_and_has_an_id() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let (session, _) = open(&proxy, &mut upstream, json!({ "streams": {} }), Some("s")).await;
    let poll = ask(json!(1), "stream/poll", json!({}));
    let mut batch = session.post(format!("[{poll},{}]", call(2))).send(proxy.addr).await;
    assert_eq!((batch.status, batch.json().await["error"]["code"].clone()), (400, json!(-32600)));
    let note = json!({ "jsonrpc": "2.0", "method": "stream/resume", "params": {} }).to_string();
    assert_eq!(session.post(note).send(proxy.addr).await.status, 400);
    let takes_json = session.post(ask(json!(1), "stream/resume", json!({}))).with("accept", "application/json");
    assert_eq!(takes_json.send(proxy.addr).await.status, 406);
    assert!(upstream.is_quiet());
    let pending = session.post(ask(json!(1), "stream/poll/all", json!({}))).start(proxy.addr).await;
    upstream.expect("stream/poll/all").await.json(200, "{}").await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn what_is_switched_off_is_the_servers() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| config.dialects.declared = Default::default()).await;
    let declared = json!({ "streams": {}, "resumableRequests": {} });
    let (session, seen) = open(&proxy, &mut upstream, declared.clone(), Some("s")).await;
    assert_eq!(seen["params"]["capabilities"], declared);
    let pending = session.post(ask(json!(1), "stream/poll", json!({}))).start(proxy.addr).await;
    upstream.expect("stream/poll").await.json(200, "{}").await;
    assert_eq!(pending.response().await.status, 200);
}
