//! Closing early, and only on clients that come back.

use crate::support::*;
use mcp_resume::config::{Mode, ToolOverrides};

/// Reads a response that the proxy closes in mid-call; the last `retry` it told.
async fn closed_early(response: &mut Response) -> Option<u64> {
    let frames = response.frames().await;
    assert_eq!(response.end(), Some(End::Complete), "a graceful end");
    assert!(frames.iter().all(|f| !f.is_event()), "{frames:?}");
    assert!(response.last_id().is_some(), "after an id");
    frames.iter().filter_map(|f| f.retry).next_back()
}

#[tokio::test]
async fn a_long_response_is_closed_before_others_do_it() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.max_connection = Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(closed_early(&mut response).await, Some(1000));
    let place = EventId::of(response.last_id().unwrap());
    // The connection itself is fine.
    let mut client = response.into_client();
    client.send(&session.resume(&place.at(0)).bytes(proxy.addr)).await;
    let mut back = client.response().await.sse();
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_resumed_response_is_closed_as_well() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.max_connection = Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    for _ in 0..3 {
        closed_early(&mut response).await;
        let last = response.last_id().unwrap().to_owned();
        response = session.resume(&last).send(proxy.addr).await.sse();
    }
    sse.finish(result(1)).await;
    let (events, _) = response.events().await;
    assert_eq!(events.len(), 1);
}

#[tokio::test]
async fn a_client_that_cannot_resume_keeps_its_connection() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.max_connection = Some(SOON)).await;
    let old = Session::open(&proxy, &mut upstream, V2025_06).await;
    let new = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", None).await;
    let (held, mut held_response) = begin(&proxy, &mut upstream, &old.post(call(1))).await;
    let (closed, mut closed_response) = begin(&proxy, &mut upstream, &new.post(call(1))).await;
    // The one that began later has been closed: the time is up for both.
    closed_early(&mut closed_response).await;
    held.finish(result(1)).await;
    assert_eq!(held_response.event().await.bytes(), result(1).as_bytes());
    held_response.ends().await;
    drop(closed);
}

#[tokio::test]
async fn a_client_that_came_back_once_is_trusted_to_do_it_again() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.max_connection = Some(SOON)).await;
    let old = Session::open(&proxy, &mut upstream, V2025_06).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &old.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let mut back = old.resume(&place.at(0)).send(proxy.addr).await.sse();
    closed_early(&mut back).await;
    let (next, mut next_response) = begin(&proxy, &mut upstream, &old.post(call(2))).await;
    closed_early(&mut next_response).await;
    sse.finish(result(1)).await;
    next.finish(result(2)).await;
}

#[tokio::test]
async fn a_standalone_stream_is_closed_as_well() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.max_connection = Some(SOON)).await;
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    closed_early(&mut response).await;
    sse.event(progress(1)).await;
    let last = response.last_id().unwrap().to_owned();
    let mut back = session.resume(&last).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
}

#[tokio::test]
async fn in_poll_mode_responses_close_with_what_is_stored() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.mode = Mode::Poll).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(closed_early(&mut response).await, Some(5000));
    let place = EventId::of(response.last_id().unwrap());

    let mut nothing = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(closed_early(&mut nothing).await, Some(5000));

    sse.event(progress(1)).await;
    sse.event(progress(2)).await;
    settle(&proxy, &mut upstream).await;
    let mut some = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = some.events().await;
    let ids: Vec<&str> = events.iter().map(Frame::id).collect();
    assert_eq!(ids, [place.at(1), place.at(2)]);
    assert_eq!(end, End::Complete);

    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    let mut rest = session.resume(&place.at(2)).send(proxy.addr).await.sse();
    assert_eq!(rest.event().await.bytes(), result(1).as_bytes());
    rest.ends().await;
    assert_eq!(session.resume(&place.at(3)).send(proxy.addr).await.status, 204);
}

#[tokio::test]
async fn poll_mode_can_be_one_tools() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        let tool = ToolOverrides { mode: Some(Mode::Poll), ..ToolOverrides::default() };
        c.tools.insert("polled".to_owned(), tool);
    })
    .await;
    let (held, mut held_response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let request = session.post(call_tool(2, "polled"));
    let (polled, mut polled_response) = begin(&proxy, &mut upstream, &request).await;
    assert_eq!(closed_early(&mut polled_response).await, Some(5000));
    held.finish(result(1)).await;
    assert_eq!(held_response.event().await.bytes(), result(1).as_bytes());
    polled.finish(result(2)).await;
}

#[tokio::test]
async fn in_poll_mode_older_clients_keep_their_connections() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.mode = Mode::Poll).await;
    let old = Session::open(&proxy, &mut upstream, V2025_06).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &old.post(call(1))).await;
    response.prime().await;
    settle(&proxy, &mut upstream).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn in_poll_mode_a_finished_answer_is_given_whole() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.mode = Mode::Poll).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.next().await.json(200, result(1)).await;
    let mut response = pending.response().await;
    assert_eq!(response.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn in_poll_mode_a_commit_is_closed_at_once() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.delivery.mode = Mode::Poll;
        c.delivery.commit_after = Some(SOON);
    })
    .await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    let mut response = pending.response().await.sse();
    assert_eq!(closed_early(&mut response).await, Some(5000));
    let last = response.last_id().unwrap().to_owned();
    upstream_call.json(200, result(1)).await;
    settle(&proxy, &mut upstream).await;
    let mut back = session.resume(&last).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn a_client_that_only_repeats_its_post_keeps_its_connection() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.max_connection = Some(SOON)).await;
    let old = Session::open(&proxy, &mut upstream, V2025_06).await;
    let new = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", None).await;
    let request = old.post(call(1));
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    let mut again = request.send(proxy.addr).await.sse();
    let (closed, mut closed_response) = begin(&proxy, &mut upstream, &new.post(call(1))).await;
    // The one that began later has been closed: the time is up for both.
    closed_early(&mut closed_response).await;
    sse.finish(result(1)).await;
    assert_eq!(again.event().await.bytes(), result(1).as_bytes());
    again.ends().await;
    drop(closed);
}

#[tokio::test]
async fn a_client_whose_response_is_closed_knows_when_to_resume() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.delivery.prime = mcp_resume::config::Prime::Since20251125;
        c.delivery.mode = Mode::Poll;
        c.delivery.poll_retry = SOON * 7;
    })
    .await;
    let old = Session::open(&proxy, &mut upstream, V2025_06).await;
    let (first, mut response) = begin(&proxy, &mut upstream, &old.post(call(1))).await;
    first.event(progress(1)).await;
    let place = EventId::of(response.event().await.id());
    // It has come back once, on its own.
    let mut back = old.resume(&place.at(1)).send(proxy.addr).await.sse();
    assert_eq!(closed_early(&mut back).await, Some(700));
    // Now it is closed on like those whose revision says so.
    let (second, mut response) = begin(&proxy, &mut upstream, &old.post(call(2))).await;
    assert_eq!(closed_early(&mut response).await, Some(700));
    drop((first, second));
}

#[tokio::test]
async fn a_client_that_was_not_primed_gets_a_retry_time_at_a_takeover_too() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.delivery.prime = mcp_resume::config::Prime::Since20251125;
    })
    .await;
    let old = Session::open(&proxy, &mut upstream, V2025_06).await;
    let (sse, mut older) = begin(&proxy, &mut upstream, &old.post(call(1))).await;
    sse.event(progress(1)).await;
    let place = EventId::of(older.event().await.id());
    let mut newer = old.resume(&place.at(1)).send(proxy.addr).await.sse();
    newer.prime().await;
    let last_words = older.frames().await;
    let [word] = last_words.as_slice() else { panic!("{last_words:?}") };
    assert_eq!((word.retry, &word.data, &word.id), (Some(2000), &None, &None));
    drop(sse);
}
