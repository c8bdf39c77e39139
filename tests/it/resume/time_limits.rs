//! Time limits of a call, and of the wait for its client.

use super::*;

#[tokio::test]
async fn a_client_that_stays_away_too_long_has_its_call_cancelled() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_wait = Some(LATER)).await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(5))).await;
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 5);
    assert_eq!(cancelled.header("mcp-session-id"), Some("s-1"));
    cancelled.status(202).await;
    sse.closed().await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    assert_eq!(events[0].bytes(), progress(2).as_bytes());
    assert_fault(&events[1].json(), 5, ABANDONED, "client");
    assert_eq!(events.len(), 2);
    let last = session.resume(events[1].id()).send(proxy.addr).await;
    assert_eq!(last.status, 204);
}

#[tokio::test]
async fn a_client_that_comes_back_has_its_whole_time_again() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_wait = Some(LATER)).await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let (_control, _) = left(&proxy, &mut upstream, &session.post(call(2))).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    response.prime().await;
    // It left before the second and would have been the first to be given up.
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 2);
    cancelled.status(202).await;
    assert!(!sse.is_closed());
    let leaves = std::time::Instant::now();
    response.reset();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 1);
    assert!(leaves.elapsed() >= LATER, "a shorter time than the first");
    cancelled.status(202).await;
    sse.closed().await;
}

#[tokio::test]
async fn an_abandoned_initialize_is_not_cancelled() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.max_wait = Some(SOON)).await;
    let (sse, response) = begin(&proxy, &mut upstream, &Request::post(initialize(V2025_11))).await;
    response.reset();
    sse.closed().await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_call_over_its_time_fails() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.call_timeout = Some(LATER)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (events, end) = response.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    let message = events[0].json();
    assert_eq!(message["id"], 1);
    assert_eq!(message["error"]["code"], ABANDONED);
    assert_eq!(message["error"]["data"]["mayHaveRun"], true);
    sse.closed().await;
}

#[tokio::test]
async fn one_tool_can_have_a_time_of_its_own() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        let tool = mcp_resume::config::ToolOverrides { call_timeout: Some(Some(LATER)), ..Default::default() };
        c.tools.insert("hasty".to_owned(), tool);
    })
    .await;
    let (slow, mut slow_response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (hasty, mut hasty_response) = begin(&proxy, &mut upstream, &session.post(call_tool(2, "hasty"))).await;
    let (events, _) = hasty_response.events().await;
    assert_eq!(events[0].json()["error"]["code"], ABANDONED);
    hasty.closed().await;
    slow.finish(result(1)).await;
    assert_eq!(slow_response.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_full_unread_stream_fails_after_a_while() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_events = 4;
        c.streams.full_wait = SOON;
    })
    .await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    for n in 1..=10 {
        sse.event(progress(n)).await;
    }
    sse.closed().await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = back.events().await;
    assert_eq!(end, End::Complete);
    let last = events.last().expect("an error").json();
    assert_eq!(last["id"], 1, "{last}");
    assert_eq!(last["error"]["code"], BOUND, "{last}");
    for (n, event) in events[..events.len() - 1].iter().enumerate() {
        assert_eq!(event.bytes(), progress(n as u64 + 1).as_bytes());
    }
}

#[tokio::test]
async fn the_cancel_of_an_abandoned_call_carries_its_callers_credentials() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.max_wait = Some(SOON)).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-9", Some("Bearer mine")).await;
    let request = session.post(call(1)).target("/mcp?key=k");
    let (sse, response) = begin(&proxy, &mut upstream, &request).await;
    response.reset();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.target, "/mcp?key=k");
    assert_eq!(cancelled.header("authorization"), Some("Bearer mine"));
    assert_eq!(cancelled.header("mcp-session-id"), Some("s-9"));
    assert_eq!(cancelled.header("mcp-protocol-version"), Some(V2025_11));
    cancelled.status(202).await;
    sse.closed().await;
}

#[tokio::test]
async fn one_tool_can_be_waited_for_longer() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_wait = Some(SOON);
        let tool = mcp_resume::config::ToolOverrides { max_wait: Some(None), ..Default::default() };
        c.tools.insert("patient".to_owned(), tool);
    })
    .await;
    let (patient, mut response) = begin(&proxy, &mut upstream, &session.post(call_tool(1, "patient"))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let (slow, response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    response.reset();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 2);
    cancelled.status(202).await;
    slow.closed().await;
    assert!(!patient.is_closed());
    patient.finish(result(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
}
