//! Statuses of a gateway whose server is being replaced.

use std::time::Duration;

use mcp_resume::config::Config;

use crate::revival::{forget, open_again, ready};
use crate::support::*;

/// A page of a gateway without a server.
const PAGE: &str = "<html>503 Service Temporarily Unavailable</html>";

async fn stage(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy, Session) {
    setup_with(|config| {
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
        change(config);
    })
    .await
}

/// Answers like a gateway, which names a time for the next attempt.
async fn refuse(call: Call, status: u16, extra: &str) {
    let head = format!(
        "HTTP/1.1 {status} X\r\n{extra}Content-Type: text/html\r\nContent-Length: {}\r\n\r\n{PAGE}",
        PAGE.len()
    );
    call.whole(head).await;
}

fn request(method: &str) -> String {
    request_as(1, method)
}

fn request_as(id: u16, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#)
}

#[tokio::test]
async fn requests_without_effects_are_sent_until_the_server_is_there() {
    let (mut upstream, proxy, session) = stage(|_| {}).await;
    for (method, statuses) in [("tools/list", [503, 502]), ("ping", [504, 503]), ("prompts/list", [502, 504])] {
        let pending = session.post(request(method)).start(proxy.addr).await;
        for status in statuses {
            refuse(upstream.expect(method).await, status, "Retry-After: 0\r\n").await;
        }
        upstream.expect(method).await.json(200, result(1)).await;
        let mut response = pending.response().await;
        assert_eq!((response.status, response.json().await["id"].as_u64()), (200, Some(1)), "{method}");
    }
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    refuse(upstream.expect("initialize").await, 503, "Retry-After: 0\r\n").await;
    upstream.expect("initialize").await.json(200, result(0)).await;
    assert_eq!(pending.response().await.status, 200);

    let pending = session.get().start(proxy.addr).await;
    let get = upstream.next().await;
    assert_eq!(get.method, "GET");
    refuse(get, 503, "Retry-After: 0\r\n").await;
    let sse = upstream.next().await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(progress(1)).await;
    response.event().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_request_with_effects_is_sent_once() {
    let (mut upstream, proxy, session) = stage(|_| {}).await;
    for status in [502, 503, 504] {
        for body in [
            call(status),
            request_as(status + 1000, "acme/write"),
            format!("[{},{}]", request_as(status + 2000, "ping"), call(status + 3000)),
        ] {
            let pending = session.post(&body).start(proxy.addr).await;
            refuse(upstream.next().await, status, "Retry-After: 0\r\n").await;
            let mut response = pending.response().await;
            assert_eq!((response.status, response.body().await), (status, PAGE.as_bytes().to_vec()), "{body}");
            assert!(upstream.is_quiet());
        }
    }
}

#[tokio::test]
async fn a_response_of_the_server_itself_passes() {
    let (mut upstream, proxy, session) = stage(|_| {}).await;
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"busy"}}"#;
    let pending = session.post(request("tools/list")).start(proxy.addr).await;
    upstream.expect("tools/list").await.json(503, error).await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.body().await), (503, error.as_bytes().to_vec()));

    // Other statuses of a gateway say nothing of a deploy.
    for status in [500, 501, 429] {
        let pending = session.post(request_as(status, "tools/list")).start(proxy.addr).await;
        refuse(upstream.expect("tools/list").await, status, "").await;
        assert_eq!(pending.response().await.status, status);
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn the_last_response_passes_when_the_time_is_over() {
    let (mut upstream, proxy, session) = stage(|config| config.upstream.wait = Duration::from_millis(1500)).await;
    // The gateway names a time beyond the wait.
    let pending = session.post(request("tools/list")).start(proxy.addr).await;
    refuse(upstream.expect("tools/list").await, 503, "Retry-After: 60\r\n").await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.header("retry-after")), (503, Some("60")));
    assert_eq!(response.body().await, PAGE.as_bytes());

    let (mut upstream, proxy, session) = stage(|config| config.upstream.wait = Duration::ZERO).await;
    let pending = session.post(request("tools/list")).start(proxy.addr).await;
    refuse(upstream.expect("tools/list").await, 503, "Retry-After: 0\r\n").await;
    assert_eq!(pending.response().await.status, 503);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_time_to_try_again_may_be_a_date_or_any_number() {
    let (mut upstream, proxy, session) = stage(|config| config.upstream.wait = Duration::from_secs(20)).await;
    let pending = session.post(request("tools/list")).start(proxy.addr).await;
    let past = "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    refuse(upstream.expect("tools/list").await, 503, past).await;
    upstream.expect("tools/list").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    for far in ["Fri, 31 Dec 9999 23:59:59 GMT", "99999999999999999999999"] {
        let pending = session.post(request("ping")).start(proxy.addr).await;
        refuse(upstream.expect("ping").await, 503, &format!("Retry-After: {far}\r\n")).await;
        let response = pending.response().await;
        assert_eq!((response.status, response.header("retry-after")), (503, Some(far)));
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_gateway_that_is_restarted_too_is_waited_for() {
    let (mut upstream, proxy, session) = stage(|_| {}).await;
    let pending = session.post(request("tools/list")).start(proxy.addr).await;
    let first = upstream.expect("tools/list").await;
    refuse(first, 503, "Retry-After: 0\r\nConnection: close\r\n").await;
    upstream.refuse().await;
    until("it waits", async || metric(&proxy, "mcp_resume_calls_waiting").await == 1.0).await;
    upstream.listen_again().await;
    upstream.expect("tools/list").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    let connected = r#"mcp_resume_upstream_waits_total{outcome="connected"}"#;
    until("it is counted", async || metric(&proxy, connected).await == 1.0).await;
}

/// A session that the new server does not know is opened again behind the gateway.
#[tokio::test]
async fn a_session_is_opened_again_once_the_new_server_is_there() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(request("tools/list")).start(proxy.addr).await;
    refuse(upstream.expect("tools/list").await, 503, "Retry-After: 0\r\n").await;
    forget(&mut upstream, "tools/list", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    let again = upstream.expect("tools/list").await;
    assert_eq!(again.header("mcp-session-id"), Some("s-2"));
    again.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

/// The proxy's own `initialize`, in place of the client's.
#[tokio::test]
async fn a_session_is_opened_again_by_an_initialize_that_waits_for_the_gateway() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    refuse(upstream.expect("initialize").await, 503, "Retry-After: 0\r\n").await;
    open_again(&mut upstream, "s-2").await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    assert!(upstream.is_quiet());
}
