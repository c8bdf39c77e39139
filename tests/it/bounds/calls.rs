//! Streams of a caller, and calls that it has left.
//!
//! A place is left here for resets of HTTP/2 streams, which are calls that are left as well.

use super::*;

#[tokio::test]
async fn more_streams_than_a_caller_may_have_are_429() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.streams_per_principal = 5).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut running = Vec::new();
    for id in 1..=5 {
        running.push(begin(&proxy, &mut upstream, &session.post(call(id))).await);
    }
    for id in 6..60 {
        assert_refused(session.post(call(id)).send(proxy.addr).await, 429, "client").await;
        neighbour.hears().await;
    }
    assert_eq!(metric(&proxy, &rejects("too_many_streams")).await, 54.0);
    assert!(upstream.is_quiet());
    // Those that are there lack nothing.
    for (id, (sse, mut response)) in (1..).zip(running) {
        sse.finish(result(id)).await;
        response.prime().await;
        assert_eq!(response.event().await.bytes(), result(id).as_bytes());
        response.ends().await;
    }
    neighbour.moves_out().await;
}

#[tokio::test]
async fn of_ten_thousand_calls_that_are_left_as_many_run_as_may() {
    const MAY: usize = 200;
    let (mut upstream, proxy, session) = bounded(|c| c.limits.detached_calls_per_principal = MAY).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut left = Vec::new();
    let mut refused = 0;
    for id in 0..10_000 {
        let client = session.post(call(id)).start(proxy.addr).await;
        if left.len() < MAY {
            left.push(upstream.expect("tools/call").await);
            client.reset();
            settle(&proxy, &mut upstream).await;
        } else {
            let response = client.response().await;
            assert_eq!((response.status, response.header("retry-after")), (429, Some("1")));
            refused += 1;
            response.reset();
        }
        if id % 50 == 0 {
            neighbour.hears().await;
        }
    }
    assert_eq!(refused, 10_000 - MAY);
    assert_eq!(metric(&proxy, "mcp_resume_calls_detached").await, MAY as f64);
    assert_eq!(metric(&proxy, &rejects("too_many_detached")).await, refused as f64);
    // Whoever comes back for one is let in, and there is room for another.
    let back = session.post(call(7)).start(proxy.addr).await;
    let place = left.remove(7);
    place.json(200, result(7)).await;
    assert_eq!(back.response().await.body().await, result(7).as_bytes());
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(10_000))).await;
    sse.finish(result(10_000)).await;
    response.prime().await;
    assert_eq!(response.event().await.bytes(), result(10_000).as_bytes());
    neighbour.moves_out().await;
}

#[tokio::test]
async fn posts_that_are_reset_at_once_cost_as_many_calls_as_may_be_left() {
    const MAY: usize = 30;
    let (mut upstream, proxy, session) = bounded(|c| c.limits.detached_calls_per_principal = MAY).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut id = 0;
    while metric(&proxy, &rejects("too_many_detached")).await < 50.0 {
        // Some are reset before they are read, some after.
        for _ in 0..10 {
            id += 1;
            session.post(call(id)).start(proxy.addr).await.reset();
        }
        neighbour.hears().await;
    }
    let mut calls = 0;
    while !upstream.is_quiet() {
        assert_eq!(upstream.next().await.rpc_method(), "tools/call");
        calls += 1;
    }
    // Ten at a time are read before the first of them is known to have left.
    assert!((MAY..=MAY + 10).contains(&calls), "{calls} calls");
    neighbour.moves_out().await;
}
