//! Calls that wait for a server that accepts no connections.

use crate::cancel::cancelled;
use crate::client_responses::held;
use crate::support::*;
use mcp_resume::config::Config;
use std::time::Duration;

/// A server that accepts no connections, after a session was opened.
async fn gone(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy, Session) {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
        change(c);
    })
    .await;
    upstream.refuse().await;
    (upstream, proxy, session)
}

/// Waits until as many calls wait for the server.
async fn waiting(proxy: &Proxy, calls: usize) {
    until("they wait", async || metric(proxy, "mcp_resume_calls_waiting").await == calls as f64).await;
}

#[tokio::test]
async fn a_call_is_sent_once_the_server_is_back() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn all_that_waits_is_sent_once() {
    const CALLS: usize = 100;
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let mut pending = Vec::new();
    for id in 0..CALLS {
        pending.push(session.post(call(id)).start(proxy.addr).await);
    }
    waiting(&proxy, CALLS).await;
    upstream.listen_again().await;
    let mut ids = Vec::new();
    for _ in 0..CALLS {
        let call = upstream.expect("tools/call").await;
        let id = call.json_body()["id"].as_u64().expect("a number");
        ids.push(id as usize);
        call.json(200, result(id)).await;
    }
    for (id, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.response().await.body().await, result(id).as_bytes());
    }
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..CALLS) && upstream.is_quiet());
}

#[tokio::test]
async fn the_opening_of_a_session_and_a_get_wait_as_well() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let opening = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    let listening = session.get().start(proxy.addr).await;
    waiting(&proxy, 2).await;
    upstream.listen_again().await;
    for _ in 0..2 {
        let call = upstream.next().await;
        match call.method.as_str() {
            "GET" => call.status(405).await,
            _ => call.json(200, result(0)).await,
        }
    }
    assert_eq!(opening.response().await.status, 200);
    assert_eq!(listening.response().await.status, 405);
}

/// The proxy begins the response itself, and the client can resume.
#[tokio::test]
async fn a_call_is_resumable_while_it_waits() {
    let (mut upstream, proxy, session) = gone(|c| c.delivery.commit_after = Some(SOON)).await;
    let mut response = session.post(call(1)).send(proxy.addr).await.sse();
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.sse().await.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_call_that_is_sent_again_while_it_waits_runs_once() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    session.post(call(1)).start(proxy.addr).await.reset();
    waiting(&proxy, 1).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    until("it has come back", async || metric(&proxy, "mcp_resume_retries_total").await == 1.0).await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_legacy_call_whose_client_has_left_is_sent() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    session.post(call(1)).start(proxy.addr).await.reset();
    waiting(&proxy, 1).await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
}

/// Asserts that nothing but `expected` comes before a call of the test's own.
async fn is_all(upstream: &mut Upstream, proxy: &Proxy, session: &Session, expected: &[&str]) {
    upstream.listen_again().await;
    let pending = session.post(call("control")).start(proxy.addr).await;
    loop {
        let call = upstream.next().await;
        if call.rpc_method() == "tools/call" {
            assert_eq!(call.json_body()["id"], "control");
            call.json(200, result("control")).await;
            break;
        }
        assert!(expected.contains(&call.rpc_method().as_str()), "{}", call.rpc_method());
        call.status(202).await;
    }
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_is_never_sent() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let _pending = session.post(call(1)).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    held(&proxy, &session, cancelled(1)).await;
    is_all(&mut upstream, &proxy, &session, &["notifications/cancelled"]).await;
    waiting(&proxy, 0).await;
}

#[tokio::test]
async fn a_modern_call_whose_client_has_left_is_never_sent() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let pending = modern(1).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    pending.reset();
    waiting(&proxy, 0).await;
    is_all(&mut upstream, &proxy, &session, &[]).await;
}

#[tokio::test]
async fn a_call_that_has_waited_for_its_time_fails_as_one_that_does_not_wait() {
    let (mut upstream, proxy, session) = gone(|c| c.upstream.wait = Duration::from_secs(20)).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    pass(Duration::from_secs(19)).await;
    settle_without_server(&proxy).await;
    waiting(&proxy, 1).await;
    pass(Duration::from_secs(2)).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 502);
    let message = response.json().await;
    assert_fault(&message, 1, UPSTREAM_FAILED, "upstream");
    assert_eq!(message["error"]["data"]["mayHaveRun"], false);
    // It has left nothing behind that a retry could match.
    upstream.listen_again().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

/// Lets every task of the proxy run.
async fn settle_without_server(proxy: &Proxy) {
    for _ in 0..3 {
        Request::new("GET", "/healthz").send(proxy.admin.expect("an admin listener")).await;
    }
}

#[tokio::test]
async fn a_notification_waits_for_the_server_without_a_call() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    held(&proxy, &session, changed.to_owned()).await;
    upstream.listen_again().await;
    upstream.expect("notifications/roots/list_changed").await.status(202).await;
}

/// A balancer sends the refused call to another replica.
#[tokio::test]
async fn a_call_of_a_balancer_waits_only_in_a_session() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let free = Request::post(call(1)).with("Mcp-Resume-Owner", "new").send(proxy.addr).await;
    assert_eq!(free.status, 502);
    assert!(free.header("mcp-resume-owner").is_some());
    let pending = session.post(call(2)).with("Mcp-Resume-Owner", "new").start(proxy.addr).await;
    waiting(&proxy, 1).await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(pending.response().await.status, 200);
}

/// A server in orderly shutdown closes its port and finishes its calls.
#[tokio::test]
async fn a_call_that_waited_and_runs_keeps_no_other_from_connecting() {
    let (mut upstream, proxy, session) = gone(|_| {}).await;
    let first = session.post(call(1)).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    upstream.listen_again().await;
    let running = upstream.expect("tools/call").await;
    waiting(&proxy, 0).await;
    upstream.refuse().await;
    let second = session.post(call(2)).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(second.response().await.body().await, result(2).as_bytes());
    running.json(200, result(1)).await;
    assert_eq!(first.response().await.body().await, result(1).as_bytes());
}

/// A status is the server's word, and a broken connection may have carried the call.
#[tokio::test]
async fn nothing_else_is_waited_for() {
    let (mut upstream, proxy, session) = setup().await;
    for status in [502, 503, 504] {
        let pending = session.post(call(status)).start(proxy.addr).await;
        upstream.expect("tools/call").await.status(status).await;
        assert_eq!(pending.response().await.status, status);
    }
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.reset().await;
    assert_eq!(pending.response().await.status, 502);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_drain_ends_the_calls_that_wait() {
    let (mut upstream, proxy, session) = gone(|c| c.replica.drain_timeout = SOON).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    waiting(&proxy, 1).await;
    let stopped = proxy.ask_to_stop();
    let mut response = pending.response().await;
    assert_fault(&response.json().await, 1, ABANDONED, "proxy");
    stopped.await;
    upstream.listen_again().await;
    assert!(upstream.is_quiet());
}
