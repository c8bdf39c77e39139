//! Servers that are restarted once more while a session is opened again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cancel::cancelled;
use crate::client_responses::held;
use crate::revival::*;
use crate::support::*;

/// The server refuses the session of a call, opens it as `s-2`, and has got the end of the
/// handshake.
async fn interrupted(upstream: &mut Upstream, proxy: &Proxy, session: &Session) -> (Client, Call) {
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(upstream, "tools/call", "s-1").await;
    answer_initialize(upstream.expect("initialize").await, "s-2").await;
    let initialized = upstream.expect("notifications/initialized").await;
    assert_eq!(initialized.header("mcp-session-id"), Some("s-2"));
    (pending, initialized)
}

/// Waits until as many calls wait for the server.
async fn waiting(proxy: &Proxy, calls: usize) {
    until("they wait", async || metric(proxy, "mcp_resume_calls_waiting").await == calls as f64).await;
}

/// The call is answered in the session `name`, and nothing else is sent.
async fn is_answered(mut upstream: Upstream, pending: Client, name: &str) {
    answer(&mut upstream, 1, name).await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.header("mcp-session-id")), (200, Some("s-1")));
    assert_eq!(response.body().await, result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_handshake_whose_session_is_forgotten_begins_again() {
    let (mut upstream, proxy, session) = ready().await;
    let (pending, initialized) = interrupted(&mut upstream, &proxy, &session).await;
    initialized.json(404, FORGOTTEN).await;
    open_again(&mut upstream, "s-3").await;
    is_answered(upstream, pending, "s-3").await;
    assert_eq!(metric(&proxy, r#"mcp_resume_session_revivals_total{outcome="revived"}"#).await, 1.0);
}

#[tokio::test]
async fn a_handshake_that_breaks_off_begins_again_once_the_server_is_back() {
    let (mut upstream, proxy, session) = ready().await;
    let (pending, initialized) = interrupted(&mut upstream, &proxy, &session).await;
    upstream.refuse().await;
    initialized.reset().await;
    pass(Duration::from_secs(1)).await;
    upstream.listen_again().await;
    open_again(&mut upstream, "s-3").await;
    is_answered(upstream, pending, "s-3").await;
}

/// The connection alone broke: the server still has the session that no client will use.
#[tokio::test]
async fn a_handshake_that_breaks_off_ends_its_session_before_it_begins_again() {
    let (mut upstream, proxy, session) = ready().await;
    let (pending, initialized) = interrupted(&mut upstream, &proxy, &session).await;
    initialized.reset().await;
    let end = upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("s-2"));
    end.status(200).await;
    open_again(&mut upstream, "s-3").await;
    is_answered(upstream, pending, "s-3").await;
}

/// The server has asked in the session that it forgot before its handshake was complete.
#[tokio::test]
async fn the_standalone_stream_follows_a_handshake_that_begins_again() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = listen(&mut upstream, &proxy, &session).await;
    let (pending, sse) = begin_while_listening(&mut upstream, &proxy, &session, sse).await;
    let question = |id: Value| json!({ "jsonrpc": "2.0", "id": id, "method": "roots/list" }).to_string();
    sse.event(question(json!(0))).await;
    assert_eq!(response.event().await.bytes(), question(json!(0)).as_bytes());
    upstream.expect("notifications/initialized").await.json(404, FORGOTTEN).await;
    sse.closed().await;
    answer_initialize(upstream.expect("initialize").await, "s-3").await;
    let get = upstream.expect("GET").await;
    assert_eq!((get.header("mcp-session-id"), get.header("last-event-id")), (Some("s-3"), None));
    let sse = get.sse().await;
    // Its ID may name the request of the session that never was complete.
    sse.event(question(json!(0))).await;
    assert_eq!(response.event().await.bytes(), question(json!("mr-2-0")).as_bytes());
    complete(&mut upstream, "s-3").await;
    answer(&mut upstream, 1, "s-3").await;
    assert_eq!(pending.response().await.status, 200);
    // The client is told once.
    assert_eq!(response.event().await.json()["method"], "notifications/message");
    let late = json!({ "jsonrpc": "2.0", "id": 0, "result": { "roots": [] } }).to_string();
    held(&proxy, &session, late).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_handshake_begins_three_times_a_minute() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    for name in ["s-2", "s-3", "s-4"] {
        answer_initialize(upstream.expect("initialize").await, name).await;
        refuse(&mut upstream, "notifications/initialized", name).await;
    }
    refuse(&mut upstream, "DELETE", "s-4").await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.body().await.as_slice()), (404, FORGOTTEN.as_bytes()));
    let pending = session.post(call(2)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_client_that_ends_its_session_ends_a_handshake_that_would_begin_again() {
    let (mut upstream, proxy, session) = ready().await;
    let (pending, initialized) = interrupted(&mut upstream, &proxy, &session).await;
    let ending = session.delete().start(proxy.addr).await;
    refuse(&mut upstream, "DELETE", "s-1").await;
    assert_eq!(ending.response().await.status, 200);
    refuse(&mut upstream, "notifications/cancelled", "s-1").await;
    assert_eq!(pending.response().await.status, 504);
    initialized.json(404, FORGOTTEN).await;
    refuse(&mut upstream, "DELETE", "s-2").await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
}

/// The server accepts no connections from the end of the handshake until the returned call waits.
async fn waits_in_new_session(upstream: &mut Upstream, proxy: &Proxy, session: &Session) -> Client {
    let (pending, initialized) = interrupted(upstream, proxy, session).await;
    upstream.refuse().await;
    initialized.status_with(202, "Connection: close\r\n").await;
    waiting(proxy, 1).await;
    pending
}

#[tokio::test]
async fn a_call_that_is_sent_again_waits_for_the_server() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = waits_in_new_session(&mut upstream, &proxy, &session).await;
    pass(Duration::from_secs(1)).await;
    upstream.listen_again().await;
    is_answered(upstream, pending, "s-2").await;
}

/// The server that came back has forgotten the session that was just opened.
#[tokio::test]
async fn a_call_that_has_waited_in_its_new_session_is_opened_another() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = waits_in_new_session(&mut upstream, &proxy, &session).await;
    upstream.listen_again().await;
    forget(&mut upstream, "tools/call", "s-2").await;
    open_again(&mut upstream, "s-3").await;
    is_answered(upstream, pending, "s-3").await;
}

/// Without a wait the server was not restarted: a server that refuses its newest session would do
/// so for ever.
#[tokio::test]
async fn a_call_that_is_refused_in_its_new_session_at_once_gets_the_refusal() {
    let (mut upstream, proxy, session) = ready().await;
    let (pending, initialized) = interrupted(&mut upstream, &proxy, &session).await;
    initialized.status(202).await;
    refuse(&mut upstream, "tools/call", "s-2").await;
    assert_eq!(pending.response().await.body().await, FORGOTTEN.as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn the_wait_of_a_call_counts_from_its_first_attempt() {
    let (mut upstream, proxy, session) = ready().await;
    let (pending, initialized) = interrupted(&mut upstream, &proxy, &session).await;
    pass(Duration::from_secs(19)).await;
    upstream.refuse().await;
    initialized.status_with(202, "Connection: close\r\n").await;
    waiting(&proxy, 1).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(pending.response().await.status, 502);
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_in_its_new_session_is_not_sent() {
    let (mut upstream, proxy, session) = ready().await;
    let _pending = waits_in_new_session(&mut upstream, &proxy, &session).await;
    held(&proxy, &session, cancelled(1)).await;
    waiting(&proxy, 0).await;
    upstream.listen_again().await;
    let pending = session.post(call("control")).start(proxy.addr).await;
    loop {
        let call = upstream.next().await;
        if call.rpc_method() == "tools/call" {
            assert_eq!(call.json_body()["id"], "control");
            call.json(200, result("control")).await;
            break;
        }
        assert_eq!(call.rpc_method(), "notifications/cancelled");
        call.status(202).await;
    }
    assert_eq!(pending.response().await.status, 200);
}
