//! Progress that the proxy writes while the server is silent, so that clients extend their
//! deadline.

use std::sync::Arc;
use std::time::Duration;

use mcp_resume::config::{Config, ProgressBeats, ResumeTokens};
use mcp_resume::protocol::client_names::ClientNames;
use serde_json::{Value, json};

use crate::cancel::{cancel, cancelled};
use crate::dialects::tokens;
use crate::support::*;

/// A look, and a second.
const INTERVAL: Duration = Duration::from_secs(21);

pub(crate) fn with_beats(config: &mut Config) {
    let except = ClientNames::of(&["inspector-*"]);
    let (after, max) = (Duration::from_secs(20), Duration::from_secs(3600));
    config.delivery.progress = Some(ProgressBeats { after, max, except });
}

async fn beating() -> (Upstream, Proxy, Session) {
    setup_with(with_beats).await
}

/// The next message, which is progress of the proxy's own: its values as they were written, and its
/// message.
pub(crate) async fn beat(response: &mut Response) -> (String, String) {
    let event = response.event().await;
    let text = String::from_utf8(event.bytes().to_vec()).unwrap();
    assert_eq!(event.id, None, "it belongs to the connection: {text}");
    let (start, end) = (r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"#, "}}");
    let params = text.strip_prefix(start).and_then(|text| text.strip_suffix(end)).unwrap_or_else(|| panic!("{text}"));
    let (values, message) = params.split_once(r#","message":"#).unwrap();
    (values.to_owned(), serde_json::from_str(message).unwrap())
}

/// Like [`beat`], without the message.
async fn values(response: &mut Response) -> String {
    beat(response).await.0
}

/// The response to call 1 comes, as event `seq` and without progress of the proxy's own before it.
async fn finish(sse: Sse, response: &mut Response, seq: u64) {
    sse.finish(result(1)).await;
    let event = response.event().await;
    assert_eq!(event.bytes(), result(1).as_bytes());
    assert_eq!(EventId::of(event.id()).seq, seq.to_string());
    response.ends().await;
}

/// Time passes in which there is no progress of the proxy's own, and then the response to call 1,
/// as event `seq`.
async fn is_silent(proxy: &Proxy, upstream: &mut Upstream, sse: Sse, response: &mut Response, seq: u64) {
    for _ in 0..2 {
        pass(INTERVAL).await;
        settle(proxy, upstream).await;
    }
    finish(sse, response, seq).await;
}

fn progress_with(rest: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":7,{rest}}}}}"#)
}

fn call_with(token: &Value) -> String {
    call(1).replace(r#""progressToken":7"#, &format!(r#""progressToken":{token}"#))
}

#[tokio::test]
async fn a_silent_call_gets_progress_until_its_response() {
    let (mut upstream, proxy, session) = beating().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    for progress in ["0", "0.000001", "0.000002"] {
        pass(INTERVAL).await;
        let (values, message) = beat(&mut response).await;
        assert_eq!(values, format!(r#""progressToken":7,"progress":{progress}"#));
        assert!(message.starts_with("still running, ") && message.ends_with(" s"), "{message}");
    }
    sse.event(result(1)).await;
    assert_eq!(EventId::of(response.event().await.id()).seq, "1");
    pass(INTERVAL).await;
    response.ends().await;
}

#[tokio::test]
async fn progress_of_the_server_takes_its_place_and_is_continued() {
    let (mut upstream, proxy, session) = beating().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let server = progress_with(r#""progress":5,"total":10,"message":"half""#);
    sse.event(&server).await;
    assert_eq!(response.event().await.bytes(), server.as_bytes());
    pass(INTERVAL).await;
    settle(&proxy, &mut upstream).await;
    for progress in ["5.000001", "5.000002"] {
        pass(INTERVAL).await;
        let values = format!(r#""progressToken":7,"progress":{progress},"total":10"#);
        assert_eq!(beat(&mut response).await, (values, "half".to_owned()));
    }
    // A server may fall behind; its value passes, and is not the larger one.
    let behind = progress_with(r#""progress":3,"total":4"#);
    sse.event(&behind).await;
    assert_eq!(response.event().await.bytes(), behind.as_bytes());
    pass(INTERVAL).await;
    settle(&proxy, &mut upstream).await;
    pass(INTERVAL).await;
    let (values, message) = beat(&mut response).await;
    assert_eq!(values, r#""progressToken":7,"progress":5.000003"#, "beyond its total");
    assert!(message.starts_with("still running, "), "{message}");
    finish(sse, &mut response, 3).await;
}

#[tokio::test]
async fn other_messages_do_not_take_its_place() {
    let (mut upstream, proxy, session) = beating().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call_with(&json!("ü\"1")))).await;
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"notifications/progress"}}"#;
    for progress in ["0", "0.000001"] {
        for other in [log.to_owned(), crate::support::progress(1)] {
            sse.event(&other).await;
            assert_eq!(response.event().await.bytes(), other.as_bytes());
        }
        pass(INTERVAL).await;
        assert_eq!(values(&mut response).await, format!(r#""progressToken":"ü\"1","progress":{progress}"#));
    }
    finish(sse, &mut response, 5).await;
}

#[tokio::test]
async fn each_request_of_a_batch_gets_its_own_until_it_is_answered_or_cancelled() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, with_beats).await;
    let session = Session::open(&proxy, &mut upstream, V2025_03).await;
    let of = |id: u64| call(id).replace(r#""progressToken":7"#, &format!(r#""progressToken":{id}"#));
    let batch = format!("[{},{},{}]", of(1), of(2), of(3));
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(batch)).await;
    sse.event(progress(4).replace(r#""progressToken":7"#, r#""progressToken":2"#)).await;
    response.event().await;
    pass(INTERVAL).await;
    for token in [1, 3] {
        assert_eq!(values(&mut response).await, format!(r#""progressToken":{token},"progress":0"#));
    }
    sse.event(result(1)).await;
    response.event().await;
    pass(INTERVAL).await;
    assert_eq!(values(&mut response).await, r#""progressToken":2,"progress":4.000001"#);
    assert_eq!(values(&mut response).await, r#""progressToken":3,"progress":0.000001"#);
    cancel(&proxy, &mut upstream, session.post(cancelled(2))).await;
    pass(INTERVAL).await;
    assert_eq!(values(&mut response).await, r#""progressToken":3,"progress":0.000002"#);
    sse.event(result(3)).await;
    assert_eq!(response.event().await.bytes(), result(3).as_bytes());
}

#[tokio::test]
async fn a_cancelled_call_and_one_without_a_token_get_none() {
    let (mut upstream, proxy, session) = setup_with(|config| {
        with_beats(config);
        config.streams.cancel_grace = Duration::from_secs(600);
    })
    .await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    is_silent(&proxy, &mut upstream, sse, &mut response, 1).await;
    let bare = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}).to_string();
    for body in [bare, call_with(&json!("t".repeat(65))), call_with(&json!(null))] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(body)).await;
        is_silent(&proxy, &mut upstream, sse, &mut response, 1).await;
    }
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call_with(&json!("t".repeat(64))))).await;
    pass(INTERVAL).await;
    beat(&mut response).await;
    finish(sse, &mut response, 1).await;
}

#[tokio::test]
async fn there_is_none_where_it_is_off_or_once_the_call_has_run_for_too_long() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    is_silent(&proxy, &mut upstream, sse, &mut response, 1).await;

    let (mut upstream, proxy, session) = setup_with(|config| {
        with_beats(config);
        config.delivery.progress.as_mut().unwrap().max = Duration::from_secs(60);
    })
    .await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    pass(INTERVAL).await;
    beat(&mut response).await;
    pass(INTERVAL).await;
    beat(&mut response).await;
    response.reset();
    // Counted from the start of the call.
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    is_silent(&proxy, &mut upstream, sse, &mut back, 1).await;
}

#[tokio::test]
async fn clients_that_are_excepted_get_none() {
    for (name, gets_some) in [("inspector-client", false), ("inspector-client-2", false), ("an-inspector", true)] {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, with_beats).await;
        let opening = initialize(V2025_11).replace(r#""name":"raw""#, &format!(r#""name":"{name}""#));
        let pending = Request::post(opening).start(proxy.addr).await;
        let answer = json!({"jsonrpc": "2.0", "id": 0, "result": {
            "protocolVersion": V2025_11, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}});
        let head = "mcp-session-id: s-1\r\n";
        upstream.expect("initialize").await.json_with(200, head, answer.to_string()).await;
        assert_eq!(pending.response().await.status, 200);
        let session = Session::opened_elsewhere(V2025_11, "s-1", None);
        let legacy = session.post(call(1));

        let modern = String::from_utf8(modern(1).body().to_vec()).unwrap();
        let body = modern.replace(r#""name":"raw""#, &format!(r#""name":"{name}""#));
        let body = body.replace(r#""_meta":{"#, r#""_meta":{"progressToken":7,"#);
        assert!(body.contains(name) && body.contains("progressToken"), "{body}");
        for request in [legacy, crate::support::modern(1).with_body(body)] {
            let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
            if gets_some {
                pass(INTERVAL).await;
                assert_eq!(values(&mut response).await, r#""progressToken":7,"progress":0"#);
                finish(sse, &mut response, 1).await;
            } else {
                is_silent(&proxy, &mut upstream, sse, &mut response, 1).await;
            }
        }
    }
}

#[tokio::test]
async fn a_resumed_connection_goes_on_and_replays_none() {
    let (mut upstream, proxy, session) = beating().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    pass(INTERVAL).await;
    assert_eq!(values(&mut response).await, r#""progressToken":7,"progress":0"#);
    let server = progress_with(r#""progress":0,"message":"m""#);
    sse.event(&server).await;
    response.event().await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    for from in [0, 1] {
        let mut back = session.resume(&place.at(from)).send(proxy.addr).await.sse();
        back.prime().await;
        if from == 0 {
            let event = back.event().await;
            assert_eq!((event.id(), event.bytes()), (place.at(1).as_str(), server.as_bytes()));
            // The replay counts as written.
            pass(INTERVAL).await;
            settle(&proxy, &mut upstream).await;
        }
        pass(INTERVAL).await;
        let values = format!(r#""progressToken":7,"progress":0.{:06}"#, from + 1);
        assert_eq!(beat(&mut back).await, (values, "m".to_owned()), "the server's last is known though not replayed");
        back.reset();
        settle(&proxy, &mut upstream).await;
    }
    sse.finish(result(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, _) = back.events().await;
    assert_eq!(events.iter().map(Frame::bytes).collect::<Vec<_>>(), [server.as_bytes(), result(1).as_bytes()]);
}

#[tokio::test]
async fn a_server_that_has_sent_no_head_is_silent_as_well() {
    let (mut upstream, proxy, session) = setup_with(|config| {
        with_beats(config);
        config.delivery.commit_after = Some(SOON);
    })
    .await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    pass(INTERVAL).await;
    assert_eq!(values(&mut response).await, r#""progressToken":7,"progress":0"#);
    upstream_call.json(200, result(1)).await;
    let event = response.event().await;
    assert_eq!((EventId::of(event.id()).seq.as_str(), event.bytes()), ("1", result(1).as_bytes()));
    response.ends().await;
}

#[tokio::test]
async fn there_is_none_while_no_upstream_connection_has_the_call() {
    let (mut upstream, proxy, session) = beating().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event_id("u-1", progress(1)).await;
    response.event().await;
    sse.end().await;
    pass(Duration::from_secs(5)).await;
    let reopening = upstream.next().await;
    assert_eq!(reopening.header("last-event-id"), Some("u-1"));
    for _ in 0..3 {
        pass(INTERVAL).await;
        settle(&proxy, &mut upstream).await;
    }
    let sse = reopening.sse().await;
    settle(&proxy, &mut upstream).await;
    pass(INTERVAL).await;
    assert_eq!(values(&mut response).await, r#""progressToken":7,"progress":1.000001"#);
    finish(sse, &mut response, 2).await;
}

#[tokio::test]
async fn a_call_that_waits_for_its_server_gets_it() {
    let (mut upstream, proxy, session) = setup_with(|config| {
        with_beats(config);
        config.delivery.commit_after = Some(SOON);
        config.upstream.wait = Duration::from_secs(60);
    })
    .await;
    upstream.refuse().await;
    let mut response = session.post(call(1)).start(proxy.addr).await.response().await.sse();
    response.prime().await;
    for value in ["0", "0.000001"] {
        pass(INTERVAL).await;
        let (values, message) = beat(&mut response).await;
        assert_eq!(values, format!(r#""progressToken":7,"progress":{value}"#));
        assert!(message.starts_with("waiting for the server, "), "{message}");
    }
    upstream.listen_again().await;
    let sse = upstream.expect("tools/call").await.sse().await;
    finish(sse, &mut response, 1).await;
}

#[tokio::test]
async fn a_client_that_takes_json_alone_gets_none() {
    let (mut upstream, proxy, session) = beating().await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    pass(INTERVAL).await;
    settle(&proxy, &mut upstream).await;
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn a_later_slice_gets_it_under_its_own_token() {
    let (mut upstream, proxy, session) = setup_with(|config| {
        with_beats(config);
        let tools = ["slow".to_owned()].into_iter().collect();
        let slice = Duration::from_secs(30);
        let sliced = ResumeTokens { slice, tools, methods: Default::default() };
        config.dialects.resume_tokens = Some(Arc::new(sliced));
    })
    .await;
    tokens::list(&proxy, &mut upstream, &session).await;
    let (sse, mut first) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    pass(INTERVAL).await;
    assert_eq!(values(&mut first).await, r#""progressToken":7,"progress":0"#);
    pass(Duration::from_secs(10)).await;
    let token = tokens::interim_token(&first.event().await.json(), json!(1), "content");
    first.ends().await;
    let again = tokens::again(json!(8), json!("own"), &token);
    let mut second = session.post(again).send(proxy.addr).await.sse();
    second.prime().await;
    pass(INTERVAL).await;
    assert_eq!(values(&mut second).await, r#""progressToken":"own","progress":0.000001"#);
    sse.finish(result(1)).await;
    assert_eq!(second.event().await.bytes(), result(8).as_bytes());
}

/// The alarm of a connection does not ring while there is always an event to write.
#[tokio::test]
async fn a_connection_that_is_never_at_the_tail_gets_it_as_well() {
    const MIB: usize = 1024 * 1024;
    let (mut upstream, proxy, session) = setup_with(|config| {
        with_beats(config);
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
        let streams = &mut config.streams;
        (streams.max_bytes, streams.max_bytes_per_principal, streams.max_bytes_total) =
            (64 * MIB, 128 * MIB, 1024 * MIB);
    })
    .await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    // More than the sockets hold.
    let log = format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(100_000));
    let many: u32 = 300;
    for _ in 0..many {
        sse.event(&log).await;
    }
    until("all is in the log", async || metric(&proxy, "mcp_resume_upstream_events_total").await >= f64::from(many))
        .await;
    pass(INTERVAL).await;
    let mut before = 0;
    while response.event().await.id.is_some() {
        before += 1;
    }
    assert!(before < many, "it came behind the last event");
    while before < many {
        let event = response.event().await;
        // On a busy machine there is progress again before the end.
        if event.id.is_some() {
            assert_eq!(event.bytes().len(), log.len());
            before += 1;
        }
    }
    finish(sse, &mut response, u64::from(many) + 1).await;
}
