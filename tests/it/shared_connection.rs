//! Answers on connections that a load balancer may share among its clients, and for how long the same POST finds them. Time passes on the
//! test's own clock, so these tests are not repeated on several threads.

use std::time::Duration;

use mcp_resume::protocol::client::Trust;

use crate::retry::runs_anew;
use crate::support::*;

/// A call that is answered by a stream or as JSON on `client`'s connection, and read.
async fn answered(proxy: &Proxy, upstream: &mut Upstream, mut client: Client, request: &Request, sse: bool) -> Client {
    client.send(&request.bytes(proxy.addr)).await;
    let upstream_call = upstream.expect("tools/call").await;
    match sse {
        true => upstream_call.sse().await.finish(result(1)).await,
        false => upstream_call.json(200, result(1)).await,
    }
    let mut response = client.response().await;
    assert_eq!(response.status, 200);
    response.body().await;
    response.into_client()
}

/// Asserts that the same request finds the answer that was given before.
async fn is_repeated(proxy: &Proxy, upstream: &mut Upstream, request: &Request, what: &str) {
    let mut again = request.send(proxy.addr).await;
    assert_eq!(again.status, 200, "{what}");
    match again.is_sse() {
        true => assert_eq!(again.event().await.bytes(), result(1).as_bytes(), "{what}"),
        false => assert_eq!(again.body().await, result(1).as_bytes(), "{what}"),
    }
    // On a connection that broke, so that this is no proof.
    again.reset();
    settle(proxy, upstream).await;
    assert!(upstream.is_quiet(), "{what}: the tool ran once");
}

#[tokio::test]
async fn another_callers_request_on_a_shared_connection_confirms_no_answer() {
    for sse in [true, false] {
        let (mut upstream, proxy, session) = stage().await;
        let other = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", Some("Bearer b")).await;
        let request = session.post(call(1));
        let client = Client::connect(proxy.addr).await;
        let client = answered(&proxy, &mut upstream, client, &request, sse).await;
        // The load balancer has taken the answer, and has lost its client. Another one comes.
        let client = answered(&proxy, &mut upstream, client, &other.post(call(2)), sse).await;
        is_repeated(&proxy, &mut upstream, &request, "after another caller's request").await;
        // Nor does the silence that follows, for a while.
        pass(Duration::from_secs(3)).await;
        settle(&proxy, &mut upstream).await;
        is_repeated(&proxy, &mut upstream, &request, "after two quiet seconds").await;
        is_repeated(&proxy, &mut upstream, &other.post(call(2)), "the other caller's").await;
        drop(client);
    }
}

#[tokio::test]
async fn behind_a_trusted_proxy_an_answer_is_found_again_for_delivered_retention() {
    for sse in [true, false] {
        let (mut upstream, proxy, session) =
            stage_with(|c| c.listen.trusted_proxies = Trust::new(["127.0.0.1/32".parse().expect("a network")])).await;
        let request = session.post(call(1));
        let client = Client::connect(proxy.addr).await;
        let client = answered(&proxy, &mut upstream, client, &request, sse).await;
        // Another call of the same caller says nothing of this one: both came by the proxy.
        let client = answered(&proxy, &mut upstream, client, &session.post(call(2)), sse).await;
        pass(Duration::from_secs(3)).await;
        settle(&proxy, &mut upstream).await;
        is_repeated(&proxy, &mut upstream, &request, "behind a proxy").await;
        pass(Duration::from_secs(61)).await;
        settle(&proxy, &mut upstream).await;
        runs_anew(&proxy, &mut upstream, &request, "after its time").await;
        drop(client);
    }
}
