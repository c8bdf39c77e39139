//! Answers on connections that a load balancer may share among its clients, and for how long the
//! same POST finds them. Time passes on the test's own clock, so these tests are not repeated on
//! several threads.

use std::time::Duration;

use mcp_resume::protocol::client_address::Trust;

use crate::retry::runs_anew;
use crate::support::http_versions::{HttpVersion, TestClient};
use crate::support::pki::Pki;
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
        let (mut upstream, proxy, session) = setup().await;
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
            setup_with(|c| c.listen.trusted_proxies = Trust::new(["127.0.0.1/32".parse().expect("a network")])).await;
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

/// A call that is answered as JSON on this connection, by a caller of HTTP/2.
async fn answered_on_http2(client: &mut TestClient, upstream: &mut Upstream, id: usize) {
    let headers = [("mcp-session-id", "s-1"), ("mcp-protocol-version", V2025_11)];
    let answer = client.send("POST", &headers, call(id));
    upstream.expect("tools/call").await.json(200, result(1)).await;
    let heard = answer.head().await;
    assert_eq!(heard.head.status, 200);
    assert_eq!(heard.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn on_http2_only_silence_confirms_an_answer_and_not_another_request_of_the_caller() {
    let (mut upstream, proxy, session) = setup().await;
    let mut client = TestClient::connect(proxy.addr, HttpVersion::Http2, &Pki::new()).await;
    answered_on_http2(&mut client, &mut upstream, 1).await;
    answered_on_http2(&mut client, &mut upstream, 2).await;
    is_repeated(&proxy, &mut upstream, &session.post(call(1)), "after another request").await;
    answered_on_http2(&mut client, &mut upstream, 3).await;
    pass(Duration::from_secs(3)).await;
    settle(&proxy, &mut upstream).await;
    runs_anew(&proxy, &mut upstream, &session.post(call(3)), "after two quiet seconds").await;
    drop(client);
}

/// On HTTP/1.1, a caller's next request confirms its own response, even on a connection shared with
/// other callers.
#[tokio::test]
async fn a_further_request_on_a_shared_connection_confirms_the_callers_own_answer_for_a_while() {
    let (mut upstream, proxy, session) = setup().await;
    let other = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", Some("Bearer b")).await;
    let client = Client::connect(proxy.addr).await;
    let client = answered(&proxy, &mut upstream, client, &session.post(call(1)), false).await;
    let client = answered(&proxy, &mut upstream, client, &other.post(call(2)), false).await;
    let client = answered(&proxy, &mut upstream, client, &session.post(call(3)), false).await;
    // What is confirmed does not wait for the connection any more: that it breaks keeps only the
    // other answers longer.
    client.reset();
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    runs_anew(&proxy, &mut upstream, &session.post(call(1)), "confirmed").await;
    is_repeated(&proxy, &mut upstream, &other.post(call(2)), "never confirmed").await;
    is_repeated(&proxy, &mut upstream, &session.post(call(3)), "never confirmed").await;
}

/// The query of a URL keeps streams apart, but it may be the same for all clients of a server.
#[tokio::test]
async fn callers_of_one_url_without_a_session_prove_nothing_of_each_other() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let of_url = |request: Request| request.target("/mcp?k=1").with("MCP-Protocol-Version", V2025_11);
    let mut client = Client::connect(proxy.addr).await;
    let mut first = None;
    for id in 1..=2 {
        client.send(&of_url(Request::post(call(id))).bytes(proxy.addr)).await;
        let sse = upstream.expect("tools/call").await.sse().await;
        sse.event(progress(id)).await;
        sse.finish(result(id)).await;
        let mut response = client.response().await.sse();
        first.get_or_insert(EventId::of(response.prime().await.id()));
        response.body().await;
        client = response.into_client();
    }
    pass(Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    let first = first.expect("a first event");
    let mut resumed = of_url(Request::get()).resume_from(&first.at(0)).send(proxy.addr).await.sse();
    resumed.prime().await;
    assert_eq!(resumed.event().await.bytes(), progress(1).as_bytes());
    assert_eq!(resumed.event().await.bytes(), result(1).as_bytes());
    resumed.ends().await;
    drop(client);
}
