//! Headers of the request that reaches the server.

use crate::support::*;
use mcp_resume::protocol::client_address::{Network, Trust};
use std::str::FromStr;

#[tokio::test]
async fn the_upstream_sees_the_headers_it_needs_and_no_others_of_ours() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session
        .post(call(1))
        .with("Accept", "application/json")
        .with("Accept-Encoding", "gzip, br")
        .with("Authorization", "Bearer t")
        .with("Cookie", "c=1")
        .with("X-Custom", "kept")
        .with("Origin", &format!("http://{}", proxy.addr))
        .with("Last-Event-ID", "theirs");
    let pending = request.start(proxy.addr).await;
    let call = upstream.next().await;
    assert!(call.head.lists("accept", "application/json"));
    assert!(call.head.lists("accept", "text/event-stream"));
    assert_eq!(call.header("accept-encoding"), Some("identity"));
    assert_eq!(call.header("last-event-id"), None);
    assert_eq!(call.header("authorization"), Some("Bearer t"));
    assert_eq!(call.header("cookie"), Some("c=1"));
    assert_eq!(call.header("x-custom"), Some("kept"));
    assert_eq!(call.header("mcp-session-id"), Some("s-1"));
    assert_eq!(call.header("mcp-protocol-version"), Some(V2025_11));
    assert_eq!(call.header("content-type"), Some("application/json"));
    assert_eq!(call.header("host"), Some(upstream.addr().to_string().as_str()));
    call.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn forwarding_headers_are_those_of_trusted_proxies_and_the_proxys_own() {
    const OTHERS: [&str; 8] = [
        "X-Forwarded",
        "X-Forwarded-Port",
        "X-Forwarded-Prefix",
        "X-Forwarded-User",
        "X-FORWARDED-SSL",
        "X_Forwarded_For",
        "X-Real-IP",
        "x_real_ip",
    ];
    for is_trusted in [false, true] {
        let mut upstream = Upstream::start().await;
        let trusted = is_trusted.then(|| Network::from_str("127.0.0.1").expect("an address").into());
        let proxy = Proxy::start(&upstream, |c| c.listen.trusted_proxies = Trust::new(trusted)).await;
        let claims = Request::post(call(1))
            .with("X-Forwarded-For", "192.0.2.9")
            .and("x-forwarded-for", "")
            .and("x-forwarded-for", "192.0.2.8");
        let claims = claims
            .with("Forwarded", "for=192.0.2.9")
            .with("X-Forwarded-Proto", "https")
            .with("X-Forwarded-Host", "theirs");
        // A client could not take out of a request what a proxy before this one has put there.
        let claims = claims.with("Connection", "x-forwarded-for, X-Real-IP, x-custom").with("X-Custom", "1");
        let claims = OTHERS.iter().fold(claims, |claims, name| claims.with(name, "a").and(name, "b"));
        // On any path.
        for request in [claims.clone(), claims.target("/elsewhere")] {
            let pending = request.start(proxy.addr).await;
            let upstream_call = upstream.next().await;
            let all = |name: &str| upstream_call.head.all(name).join("; ");
            let (own_host, own_for) =
                (proxy.addr.to_string(), format!("for=127.0.0.1;proto=http;host=\"{}\"", proxy.addr));
            if is_trusted {
                assert_eq!(all("x-forwarded-for"), "192.0.2.9, , 192.0.2.8, 127.0.0.1");
                assert_eq!(all("forwarded"), format!("for=192.0.2.9, {own_for}"));
                assert_eq!((all("x-forwarded-host").as_str(), all("x-forwarded-proto").as_str()), ("theirs", "https"));
            } else {
                assert_eq!(all("x-forwarded-for"), "127.0.0.1");
                assert_eq!(all("forwarded"), own_for);
                assert_eq!((all("x-forwarded-host"), all("x-forwarded-proto").as_str()), (own_host, "http"));
            }
            for name in OTHERS {
                assert_eq!(all(name), if is_trusted { "a; b" } else { "" }, "{name}");
            }
            assert_eq!(upstream_call.header("x-custom"), None);
            upstream_call.json(200, result(1)).await;
            pending.response().await;
        }
    }
}

/// W3C trace context, on the call and on what the proxy sends in its name.
#[tokio::test]
async fn the_trace_goes_on_upstream() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.max_wait = Some(SOON)).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = session.post(call(1)).with("traceparent", trace).with("tracestate", "vendor=1");
    let pending = request.start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(
        (upstream_call.header("traceparent"), upstream_call.header("tracestate")),
        (Some(trace), Some("vendor=1"))
    );
    let _running = upstream_call.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    response.reset();
    let abandoned = upstream.expect("notifications/cancelled").await;
    assert_eq!(abandoned.header("traceparent"), Some(trace));
    abandoned.status(202).await;
}

#[tokio::test]
async fn hop_by_hop_headers_stop_here() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session
        .post(call(1))
        .with("Connection", "keep-alive, X-Hop")
        .with("X-Hop", "1")
        .with("Keep-Alive", "timeout=77")
        .with("Proxy-Connection", "keep-alive")
        .start(proxy.addr)
        .await;
    let upstream_call = upstream.next().await;
    for name in ["x-hop", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(upstream_call.header(name), None, "{name}");
    }
    upstream_call.json_with(200, "connection: X-Back\r\nx-back: 1\r\nkeep-alive: timeout=9\r\n", result(1)).await;
    let response = pending.response().await;
    for name in ["x-back", "keep-alive"] {
        assert_eq!(response.header(name), None, "{name}");
    }
}
