//! Sessions of a server that gives names again, as one that numbers its sessions does after a
//! restart.

use serde_json::{Value, json};

use crate::revival::*;
use crate::support::*;

/// Opens a session, to which the server gives the name `given`, and returns it under the name that
/// its client gets.
async fn open(upstream: &mut Upstream, proxy: &Proxy, client: Value, given: &str) -> Session {
    let params = json!({ "protocolVersion": V2025_11, "capabilities": {}, "clientInfo": client });
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }).to_string();
    let pending = Request::post(initialize).start(proxy.addr).await;
    answer_initialize(upstream.expect("initialize").await, given).await;
    let response = pending.response().await;
    assert_eq!(response.status, 200);
    Session::opened_elsewhere(V2025_11, response.header("mcp-session-id").expect("a session"), None)
}

/// Makes a call that the server gets in the session `name`. Its response has the name that the
/// client knows.
async fn calls(upstream: &mut Upstream, proxy: &Proxy, session: &Session, id: u64, name: &str) {
    let pending = session.post(call(id)).start(proxy.addr).await;
    answer(upstream, id, name).await;
    assert_eq!(pending.response().await.header("mcp-session-id"), Some(&*session.id));
}

async fn end(upstream: &mut Upstream, proxy: &Proxy, session: &Session, name: &str) {
    let pending = session.delete().start(proxy.addr).await;
    let call = upstream.expect("DELETE").await;
    assert_eq!(call.header("mcp-session-id"), Some(name));
    call.status(200).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_new_session_with_the_name_of_another_clients_gets_one_of_the_proxys_own() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let first = open(&mut upstream, &proxy, json!({ "name": "first", "version": "1" }), "1").await;
    assert_eq!(first.id, "1");
    calls(&mut upstream, &proxy, &first, 1, "1").await;
    // The server restarts, and counts from 1 again.
    let second = open(&mut upstream, &proxy, json!({ "name": "second", "version": "1" }), "1").await;
    assert!(second.id.starts_with("mcp-resume-"), "{}", second.id);
    calls(&mut upstream, &proxy, &second, 1, "1").await;
    // The first client is not let into the session of the second.
    let pending = first.post(call(2)).start(proxy.addr).await;
    let refused = upstream.expect("tools/call").await;
    assert!(refused.header("mcp-session-id").is_some_and(|name| name.starts_with("mcp-resume-")));
    refused.json(404, FORGOTTEN).await;
    let opening = upstream.expect("initialize").await;
    assert_eq!(opening.json_body()["params"]["clientInfo"]["name"], "first");
    answer_initialize(opening, "2").await;
    answer(&mut upstream, 2, "2").await;
    assert_eq!(pending.response().await.header("mcp-session-id"), Some("1"));
    calls(&mut upstream, &proxy, &second, 2, "1").await;
    calls(&mut upstream, &proxy, &first, 3, "2").await;
    // A session with a name of the proxy's own is opened again like any other.
    let pending = second.post(call(3)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "1").await;
    let opening = upstream.expect("initialize").await;
    assert_eq!(opening.json_body()["params"]["clientInfo"]["name"], "second");
    answer_initialize(opening, "3").await;
    answer(&mut upstream, 3, "3").await;
    assert_eq!(pending.response().await.header("mcp-session-id"), Some(&*second.id));
    end(&mut upstream, &proxy, &second, "3").await;
    end(&mut upstream, &proxy, &first, "2").await;
    assert!(upstream.is_quiet());
}

/// The parameters are too large to be kept.
#[tokio::test]
async fn a_new_session_that_cannot_be_opened_again_has_two_names_as_well() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    open(&mut upstream, &proxy, json!({ "name": "first", "version": "1" }), "1").await;
    let large = json!({ "name": "x".repeat(20_000), "version": "1" });
    let second = open(&mut upstream, &proxy, large, "1").await;
    assert!(second.id.starts_with("mcp-resume-"), "{}", second.id);
    calls(&mut upstream, &proxy, &second, 1, "1").await;
    let pending = second.post(call(2)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "1").await;
    assert_eq!(pending.response().await.status, 404);
    end(&mut upstream, &proxy, &second, "1").await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn an_ended_session_leaves_its_name_to_others() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let first = open(&mut upstream, &proxy, json!({ "name": "first", "version": "1" }), "1").await;
    end(&mut upstream, &proxy, &first, "1").await;
    let second = open(&mut upstream, &proxy, json!({ "name": "second", "version": "1" }), "1").await;
    assert_eq!(second.id, "1");
    calls(&mut upstream, &proxy, &second, 1, "1").await;
}

#[tokio::test]
async fn names_pass_where_sessions_are_left_to_their_clients() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.sessions.revive = false).await;
    for name in ["first", "second"] {
        let session = open(&mut upstream, &proxy, json!({ "name": name, "version": "1" }), "1").await;
        assert_eq!(session.id, "1");
    }
}
