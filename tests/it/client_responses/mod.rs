//! Client responses to the server's requests.

use crate::support::*;
use serde_json::json;
use std::time::Duration;

mod json_clients;
mod repeated;
mod waiting;

pub(crate) fn question(id: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "sampling/createMessage", "params": {"messages": []}}).to_string()
}

pub(crate) fn answer(id: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"role": "assistant"}}).to_string()
}

/// The client answers and the upstream takes it.
async fn answers(proxy: &Proxy, upstream: &mut Upstream, session: &Session, id: &str) {
    let pending = session.post(answer(id)).start(proxy.addr).await;
    let call = upstream.expect("response").await;
    assert_eq!(call.body, answer(id).into_bytes());
    call.status(202).await;
    assert_eq!(pending.response().await.status, 202);
}

/// A POST of the client's that the proxy takes without the upstream.
pub(crate) async fn held(proxy: &Proxy, session: &Session, body: String) {
    let response = session.post(body).send(proxy.addr).await;
    assert_eq!(response.status, 202);
}

#[tokio::test]
async fn an_answer_gets_the_upstreams_status() {
    let (mut upstream, proxy, session) = setup().await;
    for status in [202, 400, 401, 404] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(status))).await;
        let id = format!("q{status}");
        sse.event(question(&id)).await;
        assert_eq!(response.event().await.bytes(), question(&id).as_bytes());
        let pending = session.post(answer(&id)).start(proxy.addr).await;
        let upstream_call = upstream.expect("response").await;
        assert_eq!(upstream_call.header("mcp-session-id"), Some("s-1"));
        upstream_call.status_with(status, "x-custom: 1\r\n").await;
        let answered = pending.response().await;
        assert_eq!(answered.status, status);
        assert_eq!(answered.header("x-custom"), Some("1"));
        sse.finish(result(status)).await;
        response.events().await;
    }
}

/// Credentials that the upstream refused since wait for its word, and what it refuses has answered
/// nothing.
#[tokio::test]
async fn an_answer_that_may_be_refused_changes_nothing_before_it_is_taken() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.commit_after = Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(question("q")).await;
    response.event().await;
    let pending = session.get().start(proxy.addr).await;
    upstream.expect("GET").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
    for status in [401, 404] {
        let pending = session.post(answer("q")).start(proxy.addr).await;
        let upstream_call = upstream.expect("response").await;
        let mut answered = std::pin::pin!(pending.response());
        pass(Duration::from_secs(10)).await;
        tokio::select! {
            biased;
            _ = &mut answered => panic!("it was answered before the upstream was heard"),
            () = settle(&proxy, &mut upstream) => {}
        }
        // It waits for its answer meanwhile: another reader is asked.
        let mut other = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        assert_eq!(other.event().await.bytes(), question("q").as_bytes());
        upstream_call.status(status).await;
        assert_eq!(answered.await.status, status);
    }
    answers(&proxy, &mut upstream, &session, "q").await;
    // The request is answered now, and is not asked again.
    held(&proxy, &session, answer("q")).await;
    sse.finish(result(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    assert!(upstream.is_quiet());
}

/// The refusal arrives in a made-up session too.
#[tokio::test]
async fn a_late_refusal_of_a_notification_reaches_a_client_of_unknown_credentials() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.commit_after = Some(SOON)).await;
    let session = Session::opened_elsewhere(V2025_11, "made-up", Some("Bearer t"));
    let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).start(proxy.addr).await;
    let upstream_call = upstream.expect("notifications/initialized").await;
    pass(Duration::from_secs(60)).await;
    settle(&proxy, &mut upstream).await;
    upstream_call.status(401).await;
    assert_eq!(pending.response().await.status, 401);
}

#[tokio::test]
async fn an_answer_to_nothing_we_know_is_forwarded() {
    let (mut upstream, proxy, session) = setup().await;
    answers(&proxy, &mut upstream, &session, "unknown").await;
    let pending = Request::post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(400).await;
    assert_eq!(pending.response().await.status, 400);
}

#[tokio::test]
async fn an_answer_without_a_session_is_always_forwarded() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let request = Request::post(call(1)).with("MCP-Protocol-Version", V2025_11);
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event(question("q")).await;
    response.event().await;
    for _ in 0..2 {
        let pending = Request::post(answer("q")).start(proxy.addr).await;
        upstream.expect("response").await.status(202).await;
        assert_eq!(pending.response().await.status, 202);
    }
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn an_answer_has_the_type_of_its_question() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(r#"{"jsonrpc":"2.0","id":9,"method":"roots/list"}"#).await;
    response.event().await;
    // Not the question's id: the upstream's to judge.
    answers(&proxy, &mut upstream, &session, "9").await;
    let nine = r#"{"jsonrpc":"2.0","id":9,"result":{"roots":[]}}"#;
    let pending = session.post(nine).start(proxy.addr).await;
    assert_eq!(upstream.expect("response").await.body, nine.as_bytes());
    drop(pending);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn synthetic_requests_carry_the_callers_credentials() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-9", Some("Bearer mine")).await;
    let endpoint = "/mcp?key=k";
    let request = session.post(call(1)).target(endpoint);
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event(question("q")).await;
    response.event().await;
    upstream.refuse().await;
    let answered = session.post(answer("q")).target(endpoint).send(proxy.addr).await;
    assert_eq!(answered.status, 202);
    upstream.listen_again().await;
    let late = upstream.expect("response").await;
    assert_eq!(late.target, endpoint);
    assert_eq!(late.header("authorization"), Some("Bearer mine"));
    assert_eq!(late.header("mcp-session-id"), Some("s-9"));
    late.status(202).await;
    sse.finish(result(1)).await;
}

/// The upstream refuses the caller's credentials in another call.
async fn refused(proxy: &Proxy, upstream: &mut Upstream, session: &Session, id: &str) {
    let pending = session.post(call(id)).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
}

/// A notification that the upstream took is as good as a call: the next call needs no word of the
/// upstream's to begin.
#[tokio::test]
async fn credentials_are_accepted_with_a_notification() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.commit_after = Some(SOON)).await;
    let session = Session::opened_elsewhere(V2025_11, "s-t", Some("Bearer t"));
    let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).start(proxy.addr).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    let pending = session.post(call(1)).start(proxy.addr).await;
    let silent = upstream.expect("tools/call").await;
    pending.response().await.sse().prime().await;
    drop(silent);
}
