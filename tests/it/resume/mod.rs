//! Responses to a resume: the rest of the stream, or the end of it.

use crate::support::*;
use serde_json::Value;
use std::time::Duration;

mod lost;
mod takeover;
mod time_limits;

/// A call whose client read the first of two events and left; the second came meanwhile.
async fn left(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    sse.event(progress(1)).await;
    let place = EventId::of(response.event().await.id());
    response.reset();
    sse.event(progress(2)).await;
    (sse, place)
}

/// A call that was read to its end.
async fn finished(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> EventId {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    sse.event(progress(1)).await;
    let place = EventId::of(response.event().await.id());
    sse.finish(result(request.rpc_id())).await;
    response.event().await;
    response.ends().await;
    place
}

/// A call whose client read twenty events and left; far fewer are kept.
async fn trimmed(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    let place = EventId::of(response.prime().await.id());
    for n in 1..=20 {
        sse.event(progress(n)).await;
        assert_eq!(response.event().await.id(), place.at(n));
    }
    response.reset();
    (sse, place)
}

/// The answer to a cursor that is gone: one event, whose message is returned with the raw body.
async fn gone(request: Request, proxy: &Proxy) -> (Value, Vec<u8>) {
    let response = request.send(proxy.addr).await.sse();
    assert_eq!(response.header("cache-control"), Some("no-cache, no-transform"));
    let mut response = response;
    let frames = response.frames().await;
    assert_eq!(response.end(), Some(End::Complete));
    assert_eq!(frames.len(), 1, "exactly one event: {frames:?}");
    assert_eq!(EventId::of(frames[0].id()).seq, "end");
    assert_eq!(frames[0].event.as_deref(), Some("message"));
    (frames[0].json(), frames[0].raw.clone())
}

#[tokio::test]
async fn a_resume_gets_the_rest_and_follows() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    assert_eq!(response.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    response.prime().await;
    let event = response.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), progress(2).as_bytes()));
    assert!(!sse.is_closed(), "the upstream has noticed nothing");
    sse.event(progress(3)).await;
    assert_eq!(response.event().await.id(), place.at(3));
    sse.finish(result(1)).await;
    let event = response.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(4).as_str(), result(1).as_bytes()));
    response.ends().await;
    assert!(upstream.is_quiet(), "a resume is not the upstream's matter");
}

#[tokio::test]
async fn a_resumed_connection_starts_with_a_fresh_name_of_the_same_cursor() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut names = vec![place.at(1)];
    for _ in 0..3 {
        let from = names.last().unwrap().clone();
        let mut response = session.resume(&from).send(proxy.addr).await.sse();
        let prime = response.prime().await;
        assert_eq!(prime.data, Some(vec![]), "empty data");
        assert!(prime.retry.is_some());
        let id = EventId::of(prime.id());
        assert_eq!((&id.handle, id.seq.as_str()), (&place.handle, "1"));
        assert!(id.attach.is_some(), "a part that is fresh: {id:?}");
        assert!(!names.contains(&prime.id().to_owned()), "{names:?}");
        names.push(prime.id().to_owned());
        // Every name of the cursor gives the same events.
        assert_eq!(response.event().await.id(), place.at(2));
        response.reset();
    }
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn the_head_of_a_resumed_stream_comes_with_its_first_id() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    response.prime().await;
    assert_eq!(response.reads().len(), 1);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn a_resume_from_the_beginning_gets_everything() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut response = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    let ids: Vec<&str> = events.iter().map(Frame::id).collect();
    assert_eq!(ids, [place.at(1), place.at(2)]);
}

#[tokio::test]
async fn nothing_left_of_a_sealed_stream_is_204() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    for from in [place.at(2), format!("{}.2.abcd", place.handle)] {
        let mut response = session.resume(&from).send(proxy.addr).await;
        assert_eq!(response.status, 204, "{from}");
        assert_eq!(response.body().await, b"");
    }
}

#[tokio::test]
async fn the_tail_of_a_running_stream_follows() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    // The second event has been logged once a reader sees it.
    let mut first = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    first.event().await;
    let mut response = session.resume(&place.at(2)).send(proxy.addr).await.sse();
    assert_eq!(EventId::of(response.prime().await.id()).seq, "2");
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.id(), place.at(3));
    response.ends().await;
}

#[tokio::test]
async fn a_stale_cursor_gives_the_same_events_again() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        let mut response = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        answers.push(response.events().await);
        // The connection carries another request: the first answer has arrived.
        let mut client = response.into_client();
        client.send(&session.resume(&place.at(2)).bytes(proxy.addr)).await;
        assert_eq!(client.response().await.status, 204);
    }
    assert_eq!(answers[0].0.len(), 2);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[1], answers[2]);
}

#[tokio::test]
async fn a_call_that_finished_without_its_client_can_be_fetched() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    let payloads: Vec<&[u8]> = events.iter().map(Frame::bytes).collect();
    assert_eq!(payloads, [progress(2).as_bytes(), result(1).as_bytes()]);
}

/// A client whose network is gone sends no reset and no FIN: its kernel takes nothing, and that of
/// the proxy takes everything. Minutes later it is back with a new connection. It makes the call
/// `other` first, which proves nothing of the old one, and then resumes.
async fn back_from_a_dead_network(request: Request, other: Request, resume: impl Fn(&str) -> Request) {
    const MINUTE: Duration = Duration::from_secs(60);
    let (mut upstream, proxy, _) = setup_with(|config| config.streams.delivered_retention = MINUTE).await;
    let (sse, mut unread) = begin(&proxy, &mut upstream, &request).await;
    let place = EventId::of(unread.prime().await.id());
    sse.event(progress(1)).await;
    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(3)).await;
    settle(&proxy, &mut upstream).await;
    pass(5 * MINUTE).await;
    finished(&proxy, &mut upstream, &other).await;
    settle(&proxy, &mut upstream).await;
    for _ in 0..2 {
        let mut back = resume(&place.at(0)).send(proxy.addr).await.sse();
        assert_eq!(EventId::of(back.prime().await.id()).seq, "0");
        assert_eq!(back.event().await.bytes(), progress(1).as_bytes(), "nothing was cut");
        let last = back.event().await;
        assert_eq!((last.id(), last.bytes()), (place.at(2).as_str(), result(1).as_bytes()));
        back.ends().await;
    }
    assert!(upstream.is_quiet());
    drop(unread);
}

#[tokio::test]
async fn a_result_that_was_written_while_the_network_was_gone_is_there_minutes_later() {
    back_from_a_dead_network(modern(1), modern(2), modern_resume).await;
}

#[tokio::test]
async fn in_a_session_such_a_result_is_there_as_well() {
    let session = Session::opened_elsewhere(V2025_11, "s-dead", Some("Bearer dead"));
    back_from_a_dead_network(session.post(call(1)), session.post(call(2)), |id| session.resume(id)).await;
}
