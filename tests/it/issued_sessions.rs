//! Sessions whose names say whose they are: clients see one name, the server another.

use mcp_resume::config::Config;
use serde_json::{Value, json};

use crate::cancel::cancelled;
use crate::client_responses::{answer, question};
use crate::dialects::open;
use crate::misdirected::{ONE, TWO, misdirected};
use crate::support::*;

pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn one(config: &mut Config) {
    config.replica.name = Some("one".to_owned());
    config.replica.wrap_sessions = true;
}

async fn wrapping() -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, one).await;
    let (session, _) = open(&proxy, &mut upstream, json!({}), Some("s-1")).await;
    assert_eq!(session.id, format!("{ONE}~s-1"));
    (upstream, proxy, session)
}

/// The next request upstream, which is `rpc` and in the session that the server knows.
async fn in_its_own(upstream: &mut Upstream, rpc: &str) -> Call {
    let call = upstream.expect(rpc).await;
    assert_eq!(call.header("mcp-session-id"), Some("s-1"), "{rpc}");
    call
}

/// The session is gone, for a client that is to open another one.
pub(crate) async fn gone(proxy: &Proxy, request: Request, id: Value) {
    let mut response = request.clone().send(proxy.addr).await;
    assert_eq!((response.status, response.header("mcp-resume-owner")), (404, None), "{request:?}");
    let message = response.json().await;
    assert_fault(&message, id, GONE, "client");
    assert_eq!(message["error"]["data"]["mayHaveRun"], false);
}

#[tokio::test]
async fn the_server_sees_its_own_name_in_all_that_a_client_sends() {
    let (mut upstream, proxy, session) = wrapping().await;
    let told = session.post(INITIALIZED).start(proxy.addr).await;
    in_its_own(&mut upstream, "notifications/initialized").await.status(202).await;
    assert_eq!(told.response().await.status, 202);

    // A server that names the session in every answer names it as its client does.
    let pending = session.post(call(1)).start(proxy.addr).await;
    let sse = in_its_own(&mut upstream, "tools/call").await.sse_with("mcp-session-id: s-1\r\n").await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.header("mcp-session-id"), Some(session.id.as_str()));
    let place = EventId::of(response.prime().await.id());
    sse.event(question("q")).await;
    response.event().await;
    let given = session.post(answer("q")).start(proxy.addr).await;
    in_its_own(&mut upstream, "response").await.status_with(202, "mcp-session-id: s-1\r\n").await;
    let given = given.response().await;
    assert_eq!((given.status, given.header("mcp-session-id")), (202, Some(session.id.as_str())));

    response.reset();
    let mut back = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    back.prime().await;
    let ended = session.post(cancelled(1)).start(proxy.addr).await;
    in_its_own(&mut upstream, "notifications/cancelled").await.status(202).await;
    assert_eq!(ended.response().await.status, 202);
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());

    let pending = session.get().start(proxy.addr).await;
    let standalone = in_its_own(&mut upstream, "GET").await.sse().await;
    let mut listening = pending.response().await.sse();
    standalone.event(progress(1)).await;
    assert_eq!(listening.event().await.bytes(), progress(1).as_bytes());

    for (request, rpc) in [
        (session.post("x").with("Content-Type", "text/plain"), "not JSON"),
        (session.get().method("PUT").with_body("x"), "PUT"),
        (session.delete(), "DELETE"),
    ] {
        let pending = request.start(proxy.addr).await;
        in_its_own(&mut upstream, rpc).await.status_with(200, "mcp-session-id: s-1\r\n").await;
        assert_eq!(pending.response().await.header("mcp-session-id"), Some(session.id.as_str()), "{rpc}");
    }
    standalone.closed().await;
}

#[tokio::test]
async fn the_server_sees_its_own_name_in_what_the_proxy_sends_itself() {
    let change = |config: &mut Config| {
        one(config);
        config.streams.max_wait = Some(LATER);
    };
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, change).await;
    let (session, _) = open(&proxy, &mut upstream, json!({}), Some("s-1")).await;
    // The stream goes on after the server has closed it on purpose, and an abandoned call is
    // cancelled.
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.bytes("id: up-1\nretry: 10\ndata:\n\n").await;
    sse.end().await;
    let again = in_its_own(&mut upstream, "GET").await;
    assert_eq!(again.header("last-event-id"), Some("up-1"));
    let sse = again.sse().await;
    response.prime().await;
    response.reset();
    in_its_own(&mut upstream, "notifications/cancelled").await.status(202).await;
    sse.closed().await;
    // It refuses what a client that takes JSON alone cannot be asked.
    let pending = session.post(call(2)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = in_its_own(&mut upstream, "tools/call").await.sse().await;
    sse.event(question("q")).await;
    in_its_own(&mut upstream, "response").await.status(202).await;
    sse.finish(result(2)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_name_is_good_after_a_restart_and_one_without_an_owner_passes() {
    let (mut upstream, proxy, session) = wrapping().await;
    proxy.stop().await;
    let proxy = Proxy::start(&upstream, one).await;
    let unwrapped = Session::opened_elsewhere(V2025_11, "s-1", None);
    for session in [session, unwrapped] {
        let pending = session.post(call(1)).start(proxy.addr).await;
        in_its_own(&mut upstream, "tools/call").await.json(200, result(1)).await;
        assert_eq!(pending.response().await.status, 200);
    }
}

#[tokio::test]
async fn every_thread_of_a_process_knows_both_names() {
    let mut upstream = Upstream::start().await;
    let mut command = command(&upstream);
    command.env("MCP_RESUME_REPLICA__NAME", "one").env("MCP_RESUME_REPLICA__WRAP_SESSIONS", "true");
    let proxy = Proxy::process(command).await;
    let (session, _) = open(&proxy, &mut upstream, json!({}), Some("s-1")).await;
    assert_eq!(session.id, format!("{ONE}~s-1"));
    // Each connection is another thread's.
    for id in 1..=4 {
        let pending = session.post(call(id)).start(proxy.addr).await;
        let call = in_its_own(&mut upstream, "tools/call").await;
        call.json_with(200, "mcp-session-id: s-1\r\n", result(id)).await;
        assert_eq!(pending.response().await.header("mcp-session-id"), Some(session.id.as_str()));
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_name_that_is_too_long_and_other_paths_are_left_alone() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, one).await;
    let long = "s".repeat(1020);
    let (session, _) = open(&proxy, &mut upstream, json!({}), Some(&long)).await;
    assert_eq!(session.id, long);
    let pending = session.post(call(1)).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-session-id"), Some(long.as_str()));
    call.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);

    let wrapped = format!("{ONE}~s-1");
    let pending = Request::new("GET", "/other").with("Mcp-Session-Id", &wrapped).start(proxy.addr).await;
    let call = upstream.expect("GET").await;
    assert_eq!(call.header("mcp-session-id"), Some(wrapped.as_str()));
    call.status_with(200, "mcp-session-id: s-2\r\n").await;
    assert_eq!(pending.response().await.header("mcp-session-id"), Some("s-2"));
}

#[tokio::test]
async fn a_session_of_the_proxys_own_is_not_wrapped() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, one).await;
    let (session, _) = open(&proxy, &mut upstream, json!({ "streams": {} }), None).await;
    assert!(session.id.starts_with("mr1."), "{}", session.id);
    let pending = session.post(call(1)).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-session-id"), None);
    call.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn anothers_session_is_gone_before_its_name_goes_upstream() {
    let (upstream, proxy, session) = wrapping().await;
    let before = upstream.connections();
    let foreign = Session::opened_elsewhere(V2025_11, &format!("{TWO}~s-1"), None);
    for (request, id) in [
        (foreign.post(call(7)), json!(7)),
        (foreign.post(answer("q")), Value::Null),
        (foreign.post(INITIALIZED), Value::Null),
        (foreign.get(), Value::Null),
        (foreign.delete(), Value::Null),
        (foreign.get().method("PUT").with_body("x"), Value::Null),
        (foreign.post("x").with("Content-Type", "text/plain"), Value::Null),
    ] {
        gone(&proxy, request.clone(), id).await;
        misdirected(&proxy, request, ONE).await;
    }
    assert_eq!(upstream.connections(), before);
    assert!(upstream.is_quiet());
    drop(session);
}

#[tokio::test]
async fn a_resume_in_anothers_session_is_a_resume_first() {
    let (mut upstream, proxy, session) = wrapping().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let place = EventId::of(response.prime().await.id());
    sse.finish(result(7)).await;
    let foreign = Session::opened_elsewhere(V2025_11, &format!("{TWO}~s-1"), None);
    let mut lost = foreign.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_fault(&lost.event().await.json(), 7, GONE, "client");
    assert!(upstream.is_quiet());
}
