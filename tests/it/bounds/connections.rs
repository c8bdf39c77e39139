//! Connections.

use super::*;

#[tokio::test]
async fn a_connection_too_many_is_told_so_and_closed() {
    // The flood has four: the others are the neighbour's, and one for whoever wants in.
    let (mut upstream, proxy, session) = bounded(|c| c.limits.connections = 6).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    settle(&proxy, &mut upstream).await;
    let mut idle = Vec::new();
    for _ in 0..5 {
        idle.push(Client::connect(proxy.addr).await);
        neighbour.hears().await;
    }
    for id in 1..=50 {
        let mut client = Client::connect(proxy.addr).await;
        // Whether the proxy reads it or not.
        let _ = client.try_send(&session.post(call(id)).bytes(proxy.addr)).await;
        let response = client.response().await;
        assert_eq!(response.header("connection"), Some("close"));
        assert_refused(response, 503, "proxy").await;
        neighbour.hears().await;
    }
    assert_eq!(metric(&proxy, &rejects("too_many_connections")).await, 50.0);
    drop(idle.pop());
    neighbour.hears().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    neighbour.moves_out().await;
}

#[tokio::test]
async fn refused_connections_that_never_end_are_bounded_as_well() {
    let (mut upstream, proxy, _session) = bounded(|c| c.limits.connections = 32).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    settle(&proxy, &mut upstream).await;
    let mut held = Vec::new();
    while metric(&proxy, &rejects("too_many_connections")).await < 20.0 {
        held.push(Client::connect(proxy.addr).await);
        neighbour.hears().await;
    }
    // The last is closed without a word: those who do not hang up take the places of the refused.
    let last = held.pop().expect("a connection");
    assert_eq!(last.drain().await, b"");
    neighbour.moves_out().await;
}
