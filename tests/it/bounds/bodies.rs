//! Bodies that are too large, too slow, or too many.

use super::*;
use std::time::Duration;

#[tokio::test]
async fn bodies_over_the_bound_are_413_and_their_senders_get_to_read_it() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.body_bytes = 10_000).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let large = session.post("x".repeat(2_000_000)).bytes(proxy.addr);
    for _ in 0..10 {
        let client = Client::connect(proxy.addr).await;
        let ((sent, response), ()) = tokio::join!(client.send_and_read(&large), neighbour.hears());
        let response = response.unwrap_or_else(|end| panic!("{end:?} after {sent:?}"));
        assert_eq!((response.status, response.header("connection")), (413, Some("close")));
    }
    assert_eq!(metric(&proxy, &rejects("body_too_large")).await, 10.0);
    assert!(upstream.is_quiet());
    neighbour.moves_out().await;
}

#[tokio::test]
async fn bodies_that_stop_half_way_are_408_after_a_minute() {
    let (mut upstream, proxy, session) = bounded(|_| ()).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut stuck = Vec::new();
    for id in 0..40 {
        let bytes = session.post(call(id)).bytes(proxy.addr);
        let mut client = Client::connect(proxy.addr).await;
        client.send(&bytes[..bytes.len() - 10]).await;
        stuck.push(client);
        neighbour.hears().await;
    }
    settle(&proxy, &mut upstream).await;
    // The bodies have taken some seconds to begin on a busy machine.
    pass(Duration::from_secs(40)).await;
    neighbour.hears().await;
    assert_eq!(metric(&proxy, &rejects("body_too_slow")).await, 0.0);
    pass(Duration::from_secs(21)).await;
    for client in stuck {
        let mut response = client.response().await;
        assert_eq!((response.status, response.header("connection")), (408, Some("close")));
        let message = response.json().await;
        assert_eq!(message["error"]["code"], BOUND);
        neighbour.hears().await;
    }
    assert_eq!(metric(&proxy, &rejects("body_too_slow")).await, 40.0);
    assert!(upstream.is_quiet());
    neighbour.moves_out().await;
}

#[tokio::test]
async fn half_bodies_of_one_caller_are_bounded_together() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.streams.max_event_bytes = 64 * 1024;
        c.streams.max_bytes = 1 << 20;
        c.streams.max_bytes_per_principal = 4 << 20;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let bytes = session.post("x".repeat(1_000_000)).bytes(proxy.addr);
    let half = &bytes[..bytes.len() - 1];
    let mut open = Vec::new();
    let refused = loop {
        let mut client = Client::connect(proxy.addr).await;
        // What is refused half way is read on, so that its sender can finish.
        client.send(half).await;
        neighbour.hears().await;
        let full = metric(&proxy, "mcp_resume_held_bytes").await > (4 << 20) as f64;
        open.push(client);
        assert!(open.len() < 20, "20 MB went somewhere");
        if full {
            break open.pop().expect("the last");
        }
    };
    let mut refused = refused;
    refused.send(b"x").await;
    assert_refused(refused.response().await, 429, "client").await;
    assert_eq!(metric(&proxy, &rejects("share_full")).await, 1.0);
    open.into_iter().for_each(Client::reset);
    neighbour.moves_out().await;
}
