//! `notifications/cancelled`: forwarded, and the stream ends without a response.

use crate::support::*;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) fn cancelled(id: impl Into<Value>) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": id.into(), "reason": "no longer"}})
    .to_string()
}

/// Sends a cancel, which the upstream takes.
pub(crate) async fn cancel(proxy: &Proxy, upstream: &mut Upstream, request: Request) {
    let pending = request.start(proxy.addr).await;
    let call = upstream.expect("notifications/cancelled").await;
    assert_eq!(call.json_body()["params"]["reason"], "no longer");
    call.status(202).await;
    assert_eq!(pending.response().await.status, 202);
}

#[tokio::test]
async fn a_response_that_still_comes_is_delivered() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn an_upstream_that_just_ends_is_no_failure_then() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(progress(1)).await;
    let id = response.event().await.id().to_owned();
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    sse.end().await;
    response.ends().await;
    assert_eq!(session.resume(&id).send(proxy.addr).await.status, 204);
}

/// A caller with the session's name and an expired credential may send anything; the server
/// decides.
#[tokio::test]
async fn one_that_the_upstream_refuses_changes_nothing() {
    for status in [401, 403, 404, 500] {
        let (mut upstream, proxy, session) = setup().await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
        let place = EventId::of(response.prime().await.id());
        // The credentials end in mid-call.
        let pending = session.post(call(2)).start(proxy.addr).await;
        upstream.expect("tools/call").await.status(401).await;
        assert_eq!(pending.response().await.status, 401);
        let pending = session.post(cancelled(1)).start(proxy.addr).await;
        let cancel = upstream.expect("notifications/cancelled").await;
        // However long that takes.
        pass(Duration::from_secs(6)).await;
        settle(&proxy, &mut upstream).await;
        cancel.status(status).await;
        assert_eq!(pending.response().await.status, status);
        assert!(!sse.is_closed());
        sse.event(progress(1)).await;
        assert_eq!(response.event().await.id(), place.at(1));
        // One that it takes counts from then on.
        self::cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
        sse.end().await;
        response.ends().await;
        assert_eq!(session.resume(&place.at(1)).send(proxy.addr).await.status, 204);
    }
}

/// The request has no answer yet, so that nothing is known of the credentials.
#[tokio::test]
async fn one_of_unknown_credentials_is_not_hidden_behind_a_202() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.commit_after = Some(SOON)).await;
    let session = Session::opened_elsewhere(V2025_11, "s-1", Some("Bearer t"));
    let calling = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    let pending = session.post(cancelled(1)).start(proxy.addr).await;
    let cancel = upstream.expect("notifications/cancelled").await;
    let mut answer = std::pin::pin!(pending.response());
    pass(Duration::from_secs(10)).await;
    tokio::select! {
        biased;
        _ = &mut answer => panic!("it was answered before the upstream was heard"),
        () = settle(&proxy, &mut upstream) => {}
    }
    cancel.status(401).await;
    assert_eq!(answer.await.status, 401);
    upstream_call.json(200, result(1)).await;
    assert_eq!(calling.response().await.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn it_works_in_a_session_opened_elsewhere() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::opened_elsewhere(V2025_11, "s-old", None);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let id = response.prime().await.id().to_owned();
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    sse.end().await;
    response.ends().await;
    assert_eq!(session.resume(&id).send(proxy.addr).await.status, 204);
}

#[tokio::test]
async fn an_upstream_that_does_not_react_is_closed_after_the_grace() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.cancel_grace = SOON).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call("c"))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(progress(1)).await;
    response.event().await;
    cancel(&proxy, &mut upstream, session.post(cancelled("c"))).await;
    response.ends().await;
    sse.closed().await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = back.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    assert_eq!(events[0].bytes(), progress(1).as_bytes());
    let tail = session.resume(&place.at(1)).send(proxy.addr).await;
    assert_eq!(tail.status, 204);
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_detached_call_can_be_cancelled() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.cancel_grace = SOON).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(progress(1)).await;
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    sse.closed().await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn a_committed_call_without_a_word_ends_empty() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.delivery.commit_after = Some(SOON);
        c.streams.cancel_grace = SOON;
    })
    .await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    response.ends().await;
    upstream_call.closed().await;
}

#[tokio::test]
async fn a_cancel_of_something_else_leaves_the_call_alone() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.cancel_grace = SOON).await;
    let other = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", None).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (control, mut control_response) = begin(&proxy, &mut upstream, &session.post(call("control"))).await;
    for request in [
        session.post(cancelled(2)),
        session.post(cancelled("1")),
        other.post(cancelled(1)),
        session.post(cancelled(1)).without("Mcp-Session-Id"),
        session.post(cancelled(1)).with("Authorization", "Bearer other"),
    ] {
        cancel(&proxy, &mut upstream, request).await;
    }
    // A grace begun later is over: those begun before would be, too.
    cancel(&proxy, &mut upstream, session.post(cancelled("control"))).await;
    control_response.ends().await;
    control.closed().await;
    assert!(!sse.is_closed());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_cancel_of_a_finished_call_is_only_forwarded() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    let id = response.event().await.id().to_owned();
    response.ends().await;
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    let place = EventId::of(&id);
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_cancel_gets_the_upstreams_status() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, _response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let pending = session.post(cancelled(1)).start(proxy.addr).await;
    upstream.expect("notifications/cancelled").await.status(404).await;
    assert_eq!(pending.response().await.status, 404);
    drop(sse);
}

#[tokio::test]
async fn a_cancelled_call_without_a_head_does_not_hang() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.cancel_grace = SOON).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    cancel(&proxy, &mut upstream, session.post(cancelled(1))).await;
    upstream_call.closed().await;
    // No response is owed, but the request must come to an end.
    if let Ok(mut response) = pending.try_response().await {
        response.try_body().await;
    }
    settle(&proxy, &mut upstream).await;
}
