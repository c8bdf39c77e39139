//! An upstream that closes on purpose and wants to be polled.

use crate::support::*;

/// A call whose upstream named a place to go on from and closed.
async fn closed_on_purpose(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Response, EventId) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    sse.bytes("id: up-0\nretry: 10\ndata:\n\n").await;
    sse.event_id("up-1", progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    sse.bytes("id: up-2\ndata:\n\n").await;
    sse.end().await;
    (response, place)
}

/// The proxy's own resume of the upstream.
async fn resumed(upstream: &mut Upstream, from: &str) -> Call {
    let call = upstream.expect("GET").await;
    assert_eq!(call.target, "/mcp");
    assert_eq!(call.header("last-event-id"), Some(from));
    assert_eq!(call.header("mcp-session-id"), Some("s-1"));
    assert_eq!(call.header("mcp-protocol-version"), Some(V2025_11));
    assert!(call.head.lists("accept", "text/event-stream"));
    call
}

async fn fails(response: &mut Response) {
    let (events, end) = response.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    let message = events[0].json();
    assert_fault(&message, 1, UPSTREAM_FAILED, "upstream");
    assert_eq!(message["error"]["data"]["mayHaveRun"], true);
}

#[tokio::test]
async fn it_is_resumed_with_its_own_last_id_and_the_client_sees_one_stream() {
    let (mut upstream, proxy, session) = setup().await;
    let (mut response, place) = closed_on_purpose(&proxy, &mut upstream, &session).await;
    let sse = resumed(&mut upstream, "up-2").await.sse().await;
    sse.event_id("up-3", progress(2)).await;
    assert_eq!(response.event().await.id(), place.at(2));
    sse.end().await;
    let sse = resumed(&mut upstream, "up-3").await.sse().await;
    sse.event_id("up-4", result(1)).await;
    sse.end().await;
    let event = response.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(3).as_str(), result(1).as_bytes()));
    response.ends().await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn it_is_resumed_while_the_client_is_away() {
    let (mut upstream, proxy, session) = setup().await;
    let (response, place) = closed_on_purpose(&proxy, &mut upstream, &session).await;
    response.reset();
    let sse = resumed(&mut upstream, "up-2").await.sse().await;
    sse.finish(result(1)).await;
    let mut back = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn a_priming_event_alone_is_enough_to_go_on_from() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.bytes("id: up-0\nretry: 10\ndata:\n\n").await;
    sse.end().await;
    let sse = resumed(&mut upstream, "up-0").await.sse().await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_refused_resume_is_the_failure() {
    for status in [400, 404, 405, 409, 500] {
        let (mut upstream, proxy, session) = setup().await;
        let (mut response, _) = closed_on_purpose(&proxy, &mut upstream, &session).await;
        resumed(&mut upstream, "up-2").await.status(status).await;
        fails(&mut response).await;
        settle(&proxy, &mut upstream).await;
    }
}

#[tokio::test]
async fn an_end_without_a_new_id_is_the_failure() {
    let (mut upstream, proxy, session) = setup().await;
    let (mut response, _) = closed_on_purpose(&proxy, &mut upstream, &session).await;
    resumed(&mut upstream, "up-2").await.sse().await.end().await;
    fails(&mut response).await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_hard_cut_is_the_failure() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    sse.event_id("up-1", progress(1)).await;
    response.event().await;
    sse.reset().await;
    fails(&mut response).await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_hard_cut_is_resumed_where_that_is_configured() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.resume = true).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    sse.bytes(format!("id: up-1\nretry: 10\ndata: {}\n\n", progress(1))).await;
    response.event().await;
    sse.reset().await;
    let sse = resumed(&mut upstream, "up-1").await.sse().await;
    sse.event_id("up-2", result(1)).await;
    sse.end().await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_resume_answered_with_something_else_is_the_failure() {
    let (mut upstream, proxy, session) = setup().await;
    let (mut response, _) = closed_on_purpose(&proxy, &mut upstream, &session).await;
    resumed(&mut upstream, "up-2").await.json(200, "{\"no\": \"stream\"}").await;
    fails(&mut response).await;
}

#[tokio::test]
async fn an_upstream_that_named_no_place_has_failed() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(progress(1)).await;
    response.event().await;
    sse.bytes("retry: 10\n\n").await;
    sse.end().await;
    fails(&mut response).await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn its_resume_goes_where_the_call_went() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-9", Some("Bearer mine")).await;
    let request = session.post(call(1)).target("/mcp?key=k").with("X-Tenant", "t");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.bytes("id: up-0\nretry: 10\ndata:\n\n").await;
    sse.end().await;
    let resumed = upstream.expect("GET").await;
    assert_eq!(resumed.target, "/mcp?key=k");
    assert_eq!(resumed.header("last-event-id"), Some("up-0"));
    assert_eq!(resumed.header("authorization"), Some("Bearer mine"));
    assert_eq!(resumed.header("x-tenant"), Some("t"));
    assert_eq!(resumed.header("content-type"), None);
    assert_eq!(resumed.body, b"");
    resumed.sse().await.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
}
