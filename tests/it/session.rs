//! The upstream's sessions: its ids, its judgement, their end.

use crate::support::*;

#[tokio::test]
async fn a_deleted_session_takes_its_streams_along() {
    for status in [200, 204, 404] {
        let (mut upstream, proxy, session) = setup_with(|c| c.sessions.revive = false).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(4))).await;
        let place = EventId::of(response.prime().await.id());
        let pending = session.delete().start(proxy.addr).await;
        let upstream_call = upstream.expect("DELETE").await;
        assert_eq!(upstream_call.target, "/mcp");
        assert_eq!(upstream_call.header("mcp-session-id"), Some("s-1"));
        upstream_call.status_with(status, "x-custom: 1\r\n").await;
        let deleted = pending.response().await;
        assert_eq!(deleted.status, status);
        assert_eq!(deleted.header("x-custom"), Some("1"));

        let told = upstream.expect("notifications/cancelled").await;
        assert_eq!(told.json_body()["params"]["requestId"], 4);
        assert_eq!(told.header("mcp-session-id"), Some("s-1"));
        told.status(404).await;
        sse.closed().await;
        let (events, end) = response.events().await;
        assert_eq!((events.len(), end), (1, End::Complete));
        let message = events[0].json();
        assert_eq!(message["id"], 4);
        assert_eq!(message["error"]["code"], ABANDONED, "{message}");

        let mut late = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        let (events, _) = late.events().await;
        assert_eq!(events.len(), 1);
        let code = events[0].json()["error"]["code"].as_i64();
        assert!(matches!(code, Some(ABANDONED | GONE)), "{code:?}");
    }
}

#[tokio::test]
async fn a_session_opened_elsewhere_ends_the_same_way() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::opened_elsewhere(V2025_11, "s-old", None);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(4))).await;
    response.prime().await;
    let pending = session.delete().start(proxy.addr).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    sse.closed().await;
    assert_eq!(response.event().await.json()["error"]["code"], ABANDONED);
    response.ends().await;
}

#[tokio::test]
async fn a_refused_delete_changes_nothing() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    for status in [405, 401, 500] {
        let pending = session.delete().start(proxy.addr).await;
        upstream.expect("DELETE").await.json(status, "{\"no\": 1}").await;
        let mut refused = pending.response().await;
        assert_eq!(refused.status, status);
        assert_eq!(refused.body().await, b"{\"no\": 1}");
    }
    assert!(!sse.is_closed());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn another_sessions_delete_leaves_ours_alone() {
    let (mut upstream, proxy, session) = setup().await;
    let other = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", None).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let pending = other.delete().start(proxy.addr).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_stranger_cannot_end_our_streams_with_a_delete_of_its_own() {
    let (mut upstream, proxy, _) = setup().await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", Some("Bearer a")).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    // The upstream judges a session by its id: 404 here says nothing of the owner's session.
    let pending = session.delete().with("Authorization", "Bearer b").start(proxy.addr).await;
    upstream.expect("DELETE").await.status(404).await;
    assert_eq!(pending.response().await.status, 404);
    assert!(!sse.is_closed());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_dead_session_is_the_upstreams_404() {
    let (mut upstream, proxy, session) = setup_with(|c| c.sessions.revive = false).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"Session not found"}}"#;
    upstream.expect("tools/call").await.json(404, body).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 404);
    assert_eq!(response.body().await, body.as_bytes());
}

#[tokio::test]
async fn a_server_without_sessions_is_resumable_too() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let request = Request::post(call(1)).with("MCP-Protocol-Version", V2025_06);
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.finish(result(1)).await;
    let mut back =
        Request::get().with("MCP-Protocol-Version", V2025_06).resume_from(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn a_cut_initialize_can_be_resumed_with_or_without_the_new_session() {
    for with_session in [true, false] {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, |_| {}).await;
        let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
        let sse = upstream.expect("initialize").await.sse_with("mcp-session-id: abc\r\n").await;
        let mut response = pending.response().await.sse();
        // The response begins without an ID: the first event has the first.
        sse.event(progress(1)).await;
        let place = EventId::of(response.event().await.id());
        response.reset();
        let answer = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#;
        sse.finish(answer).await;
        let mut back = Request::get().resume_from(&place.at(1));
        if with_session {
            back = back.with("Mcp-Session-Id", "abc");
        }
        let mut back = back.send(proxy.addr).await.sse();
        assert_eq!(back.event().await.bytes(), answer.as_bytes(), "with session: {with_session}");
        back.ends().await;
    }
}

/// A length without its bytes would make the server take the beginning of the next request on that
/// connection for a body.
#[tokio::test]
async fn no_request_goes_upstream_with_a_length_that_is_not_its_own() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, method) in ["DELETE", "GET", "OPTIONS"].into_iter().enumerate() {
        let pending = session.delete().method(method).with_body("hello").start(proxy.addr).await;
        let upstream_call = upstream.expect(method).await;
        let length = upstream_call.header("content-length").unwrap_or("0").to_owned();
        assert_eq!(length, upstream_call.body.len().to_string(), "{method}");
        upstream_call.json(405, "{}").await;
        assert_eq!(pending.response().await.status, 405, "{method}");
        // The next request on the pooled connection is read as what it is.
        let pending = session.post(call(id)).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, &result(id)).await;
        assert_eq!(pending.response().await.json().await["id"], id, "{method}");
    }
}
