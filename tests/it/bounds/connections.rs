//! Connections.

use std::time::Duration;

use super::*;
use crate::support::http_versions::{HttpVersion, TestClient, TestServer, with_versions};
use crate::support::pki::Pki;

#[tokio::test]
async fn a_connection_over_the_limit_is_refused_and_closed() {
    // The flood has four connections; one is the neighbour's, and one is left for a newcomer.
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
    // Two of them have the places of the refused until they hang up, or for a second: a third is
    // closed without a word.
    until("a connection is closed without a word", async || {
        let _two = [Client::connect(proxy.addr).await, Client::connect(proxy.addr).await];
        Client::connect(proxy.addr).await.drain().await.is_empty()
    })
    .await;
    neighbour.moves_out().await;
}

/// A quarter as many as clients may have, and sixteen at the least: collectors that hang take none
/// of the clients' places.
#[tokio::test]
async fn the_admin_listener_has_a_connection_limit_of_its_own() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.connections = 4).await;
    let admin = proxy.admin.expect("an admin listener");
    let mut held = Vec::new();
    for _ in 0..16 {
        let mut response = Request::new("GET", "/livez").send(admin).await;
        assert_eq!((response.status, response.body().await), (200, b"ok\n".to_vec()));
        held.push(response.into_client());
    }
    assert_eq!(Request::new("GET", "/livez").send(admin).await.status, 503);
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    held.pop().expect("a connection").reset();
    until("a place is free", async || Request::new("GET", "/livez").send(admin).await.status == 200).await;
}

/// The limit of open files bounds connections to the server as well: the calls of HTTP/2 clients
/// and of clients that are away take one each.
#[tokio::test]
async fn a_call_without_a_connection_to_the_server_is_refused_and_the_others_go_on() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.upstream.connections = 2;
        c.upstream.connect_timeout = Duration::from_millis(100);
        c.upstream.pool_idle = Duration::ZERO;
    })
    .await;
    let first = session.post(call(1)).start(proxy.addr).await;
    let first_call = upstream.expect("tools/call").await;
    let second = session.post(call(2)).start(proxy.addr).await;
    let second_call = upstream.expect("tools/call").await;
    let refused = session.post(call(3)).send(proxy.addr).await;
    assert_refused(refused, 503, "proxy").await;
    assert_eq!(metric(&proxy, &rejects("too_many_connections")).await, 1.0);
    first_call.json(200, result(1)).await;
    assert_eq!(first.response().await.status, 200);
    let third = session.post(call(4)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(4)).await;
    assert_eq!(third.response().await.status, 200);
    second_call.json(200, result(2)).await;
    assert_eq!(second.response().await.status, 200);
}

/// A refusal would need a TLS handshake, and a connection beyond the bound is not worth one.
#[tokio::test]
async fn a_connection_too_many_for_a_tls_listener_is_closed_without_a_word() {
    let pki = Pki::new();
    let mut server = TestServer::start(HttpVersion::Http1, &pki).await;
    let change = with_versions(HttpVersion::Http1Tls, HttpVersion::Http1, &pki);
    let proxy = Proxy::to_url(&server.url(), |c| {
        change(c);
        c.limits.connections = 2;
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    let client = || TestClient::connect(proxy.addr, HttpVersion::Http1Tls, &pki);
    let mut neighbour = client().await;
    let answer = neighbour.send("POST", &[], call(1));
    let saying = server.next().await.sse();
    let mut heard = answer.head().await;
    heard.prime().await;
    let last = client().await;
    for n in 1..=50 {
        let mut client = Client::connect(proxy.addr).await;
        if n % 2 == 0 {
            // The head of a ClientHello, whether the proxy reads it or not.
            let _ = client.try_send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await;
        }
        assert_eq!(client.drain().await, b"");
        saying.event(progress(n));
        assert_eq!(heard.event().await, progress(n).as_bytes());
    }
    assert_eq!(metric(&proxy, &rejects("too_many_connections")).await, 50.0);
    last.reset().await;
    // The neighbour's, and the one that asks.
    within("a seat is free", async { while metric(&proxy, "mcp_resume_connections").await > 2.0 {} }).await;
    let mut next = client().await;
    let answer = next.send("POST", &[], call(2));
    server.next().await.json(result(2));
    assert_eq!(answer.head().await.body().await, result(2).as_bytes());
    saying.finish(result(1));
    assert_eq!(heard.events().await, [result(1).into_bytes()]);
}
