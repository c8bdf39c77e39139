//! 2026-07-28 in front of a server that speaks the revisions with sessions alone.

mod auto;
mod bodies;
mod callers;
mod legacy_clients;
mod legacy_sessions;
mod odd_servers;
mod outside_calls;
mod pages;
mod replicas;
mod rows;
mod sessions;
mod tasks;

use std::time::Duration;

use mcp_resume::config::{Bridge, ModernClients};
use serde_json::{Value, json};

use crate::revival::FORGOTTEN;
use crate::support::*;

async fn stage() -> (Upstream, Proxy) {
    stage_with(|_| {}).await
}

async fn stage_with_grace(grace: Duration) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.dialects.input_grace = grace;
        config.bridge = Some(always());
    })
    .await;
    (upstream, proxy)
}

async fn stage_with(change: impl FnOnce(&mut Bridge)) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.dialects.input_grace = Duration::from_millis(50);
        let mut bridge = always();
        change(&mut bridge);
        config.bridge = Some(bridge);
    })
    .await;
    (upstream, proxy)
}

/// Settings with which every request is translated.
fn always() -> Bridge {
    Bridge {
        modern_clients: ModernClients::Always,
        legacy_clients: true,
        idle: Duration::from_secs(600),
        sessions_per_principal: 8,
    }
}

/// Capabilities of the client.
fn capabilities() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}, "roots": {}})
}

fn request(id: impl Into<Value>, method: &str, params: Value) -> Request {
    let mut body = json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": V2026,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities(),
        "progressToken": 7}}});
    for (name, value) in params.as_object().into_iter().flatten() {
        body["params"][name] = value.clone();
    }
    let request = Request::post(body.to_string()).with("MCP-Protocol-Version", V2026).with("Mcp-Method", method);
    match params["name"].as_str() {
        Some(name) => request.with("Mcp-Name", name),
        None => request,
    }
}

fn call(id: impl Into<Value>, more: Value) -> Request {
    let mut params = json!({"name": "slow", "arguments": {"a": 1}});
    for (name, value) in more.as_object().into_iter().flatten() {
        params[name] = value.clone();
    }
    request(id, "tools/call", params)
}

/// Plays the handshake of a server with sessions, which has never heard of the later revision.
async fn opens(upstream: &mut Upstream, is_asked: bool) {
    if is_asked {
        let refusal = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}"#;
        upstream.expect("server/discover").await.json(400, refusal).await;
    }
    let initialize = upstream.expect("initialize").await;
    let body = initialize.json_body();
    assert_eq!(initialize.header("mcp-protocol-version"), Some(V2025_11));
    assert_eq!(body["params"]["protocolVersion"], V2025_11);
    let declared = json!({"elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": true}});
    assert_eq!(body["params"]["capabilities"], declared);
    assert_eq!(body["params"]["clientInfo"], json!({"name": "raw", "version": "1"}));
    initialize.json_with(200, "mcp-session-id: s-1\r\n", initialized(&body["id"])).await;
    upstream.expect("notifications/initialized").await.status(202).await;
}

/// The server's result of the handshake.
fn initialized(id: &Value) -> String {
    let capabilities =
        json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}, "tasks": {}});
    let result =
        json!({"protocolVersion": V2025_11, "capabilities": capabilities, "serverInfo": {"name": "s", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

/// Answers the GET of a new session, and returns the call that comes beside it.
async fn first_call(upstream: &mut Upstream) -> Call {
    let (get, call) = first_two(upstream).await;
    get.status(405).await;
    call
}

/// Returns the GET of a new session, and the request that comes beside it.
async fn first_two(upstream: &mut Upstream) -> (Call, Call) {
    let mut calls = [upstream.next().await, upstream.next().await];
    calls.sort_by_key(|call| call.rpc_method() != "GET");
    let [get, call] = calls;
    assert_eq!(get.rpc_method(), "GET");
    (get, call)
}

/// Has a call reach the server, as the first of its caller.
async fn begun(upstream: &mut Upstream, proxy: &Proxy, request: &Request) -> (Sse, Response, Value) {
    let pending = request.start(proxy.addr).await;
    opens(upstream, true).await;
    let call = first_call(upstream).await;
    assert_eq!(call.header("mcp-session-id"), Some("s-1"));
    assert_eq!(call.header("mcp-method"), None);
    let body = call.json_body();
    let sse = call.sse().await;
    (sse, pending.response().await.sse(), body)
}

fn progress_under(token: &Value) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        .to_string()
}

fn result_under(id: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "done"}]}}).to_string()
}

fn question(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {"message": "ok?", "requestedSchema": {}}}).to_string()
}

#[tokio::test]
async fn the_handshake_is_the_answer_to_discovery() {
    let (mut upstream, proxy) = stage().await;
    let pending = request(1, "server/discover", json!({})).start(proxy.addr).await;
    opens(&mut upstream, true).await;
    upstream.expect("GET").await.status(405).await;
    let mut response = pending.response().await;
    assert_eq!(response.header("mcp-session-id"), None);
    let found = response.json().await;
    assert_eq!(found["id"], 1);
    assert_eq!(found["result"]["supportedVersions"], json!([V2026]));
    assert_eq!(found["result"]["capabilities"]["tools"], json!({"listChanged": true}));
    assert_eq!(found["result"]["capabilities"].get("tasks"), None);
}

#[tokio::test]
async fn a_call_is_one_of_the_session_and_its_messages_are_the_clients() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    assert_eq!(sent["params"], json!({"name": "slow", "arguments": {"a": 1}, "_meta": {"progressToken": sent["id"]}}));
    response.prime().await;
    sse.event(progress_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["params"], json!({"progressToken": 7, "progress": 1}));
    sse.finish(result_under(&sent["id"])).await;
    let result = response.event().await.json();
    assert_eq!((&result["id"], &result["result"]["resultType"]), (&json!(5), &json!("complete")));
    assert_eq!(result["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "s");
    response.ends().await;
    // The session is there for the next one.
    let pending = request(6, "tools/list", json!({})).start(proxy.addr).await;
    let listed = upstream.expect("tools/list").await;
    let id = listed.json_body()["id"].clone();
    listed.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}}).to_string()).await;
    let list = pending.response().await.json().await;
    assert_eq!(
        (&list["id"], &list["result"]["ttlMs"], &list["result"]["cacheScope"]),
        (&json!(6), &json!(0), &json!("private"))
    );
}

#[tokio::test]
async fn a_question_ends_the_response_and_its_answer_goes_on_with_the_same_call() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.event(question(0)).await;
    let asked = response.event().await.json()["result"].clone();
    response.ends().await;
    assert_eq!(asked["resultType"], "input_required");
    assert_eq!(asked["inputRequests"]["q1"]["method"], "elicitation/create");
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(6, answers.clone()).start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body(), json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}}));
    assert_eq!(answered.header("mcp-session-id"), Some("s-1"));
    answered.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 6);
    // A state is used once.
    let again = call(7, answers).send(proxy.addr).await.json().await;
    assert_eq!(again["error"]["code"], -32602);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn another_call_has_no_use_of_a_state() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, _) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.event(question(0)).await;
    let asked = response.event().await.json()["result"].clone();
    let other = json!({"requestState": asked["requestState"], "arguments": {"a": 2}, "inputResponses": {}});
    assert_eq!(call(6, other).send(proxy.addr).await.json().await["error"]["code"], -32602);
    assert!(!sse.is_closed() && upstream.is_quiet());
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_call_at_the_server() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    response.reset();
    pass(Duration::from_secs(60)).await;
    let told = upstream.expect("notifications/cancelled").await;
    assert_eq!(told.json_body()["params"]["requestId"], sent["id"]);
    told.status(202).await;
    sse.closed().await;
}

#[tokio::test]
async fn a_session_that_the_server_has_forgotten_is_opened_anew() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    sse.finish(result_under(&sent["id"])).await;
    response.events().await;
    let pending = call(6, json!({})).start(proxy.addr).await;
    forgets(&mut upstream).await;
    opens(&mut upstream, false).await;
    let second = first_call(&mut upstream).await;
    let id = second.json_body()["id"].clone();
    second.json(200, result_under(&id)).await;
    assert_eq!(pending.response().await.json().await["id"], 6);
}

/// Refuses the next call with its session, and the ping after it.
async fn forgets(upstream: &mut Upstream) {
    upstream.expect("tools/call").await.json(404, FORGOTTEN).await;
    let ping = upstream.expect("ping").await;
    assert_eq!((ping.header("mcp-session-id"), ping.header("mcp-protocol-version")), (Some("s-1"), Some(V2025_11)));
    ping.json(404, FORGOTTEN).await;
}

/// As of a tool that has not found what it looked for, in words of any kind.
#[tokio::test]
async fn a_refusal_in_a_session_that_lives_passes_and_the_call_runs_once() {
    for (status, body) in
        [(404, r#"{"detail":"no order 12"}"#), (404, ""), (404, FORGOTTEN), (400, "No valid session ID")]
    {
        let (mut upstream, proxy) = stage().await;
        let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
        sse.finish(result_under(&sent["id"])).await;
        response.events().await;
        let pending = call(6, json!({})).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(status, body).await;
        let ping = upstream.expect("ping").await;
        let id = ping.json_body()["id"].clone();
        ping.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string()).await;
        assert_eq!(pending.response().await.status, status);
        // The session stays.
        let pending = call(7, json!({})).start(proxy.addr).await;
        let next = upstream.expect("tools/call").await;
        assert_eq!(next.header("mcp-session-id"), Some("s-1"));
        let id = next.json_body()["id"].clone();
        next.json(200, result_under(&id)).await;
        assert_eq!(pending.response().await.json().await["id"], 7);
    }
}

/// The call may have run, so the next one opens the session.
#[tokio::test]
async fn a_call_that_is_refused_in_unknown_words_is_not_sent_again() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    sse.finish(result_under(&sent["id"])).await;
    response.events().await;
    let pending = call(6, json!({})).start(proxy.addr).await;
    for method in ["tools/call", "ping", "tools/list"] {
        upstream.expect(method).await.json(404, r#"{"detail":"no visitor"}"#).await;
    }
    assert_eq!(pending.response().await.status, 404);
    let pending = call(7, json!({})).start(proxy.addr).await;
    opens(&mut upstream, false).await;
    let next = first_call(&mut upstream).await;
    let id = next.json_body()["id"].clone();
    next.json(200, result_under(&id)).await;
    assert_eq!(pending.response().await.json().await["id"], 7);
}

#[tokio::test]
async fn a_refusal_of_the_handshake_is_the_response() {
    let (mut upstream, proxy) = stage().await;
    let pending = call(5, json!({})).start(proxy.addr).await;
    upstream.expect("server/discover").await.json(404, "{}").await;
    upstream.expect("initialize").await.status_with(401, "www-authenticate: Bearer\r\n").await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, Some("Bearer")));
}

#[tokio::test]
async fn methods_that_are_gone_and_headers_that_differ_are_refused() {
    let (mut upstream, proxy) = stage().await;
    let pending = request(1, "ping", json!({})).start(proxy.addr).await;
    upstream.expect("server/discover").await.json(404, "{}").await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.json().await["error"]["code"].clone()), (404, json!(-32601)));
    let mut response = call(2, json!({})).with("Mcp-Name", "other").send(proxy.addr).await;
    assert_eq!((response.status, response.json().await["error"]["code"].clone()), (400, json!(-32020)));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_of_the_clients_revision_is_left_alone() {
    let (mut upstream, proxy) = stage().await;
    let request = call(5, json!({}));
    let pending = request.start(proxy.addr).await;
    let discover = upstream.expect("server/discover").await;
    let id = discover.json_body()["id"].clone();
    let found = json!({"supportedVersions": [V2026], "capabilities": {}});
    discover.json(200, json!({"jsonrpc": "2.0", "id": id, "result": found}).to_string()).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.body, request.body());
    call.json(200, result(5)).await;
    assert_eq!(pending.response().await.body().await, result(5).as_bytes());
}
