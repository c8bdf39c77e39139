//! Servers on stdio that speak a revision without sessions: one process for all requests of a
//! caller.

use std::time::Duration;

use mcp_resume::config::{Bridge, ModernClients};
use serde_json::{Value, json};

use crate::support::stdio::{StdioServer, StdioServers};
use crate::support::*;

/// A request under this id, with a progress token of the same name.
fn request(id: impl Into<Value>, method: &str) -> Request {
    let id = id.into();
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"name": "slow", "_meta": {
        "io.modelcontextprotocol/protocolVersion": V2026,
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": id}}});
    Request::post(body.to_string())
        .with("MCP-Protocol-Version", V2026)
        .with("Mcp-Method", method)
        .with("Mcp-Name", "slow")
}

fn call(id: impl Into<Value>) -> Request {
    request(id, "tools/call")
}

fn answer(id: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [], "resultType": "complete"}})
}

fn progress(token: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
}

fn cancelled(id: &Value) -> Value {
    json!({"requestId": id, "reason": "the client has gone"})
}

/// The JSON of the next event with data.
async fn event(response: &mut Response) -> Value {
    response.event().await.json()
}

/// The next process, which the proxy asks for its revisions.
async fn asked(servers: &StdioServers, answer: Value) -> StdioServer {
    let mut server = servers.next().await;
    let mut question = server.expect("server/discover").await;
    let meta = question["params"]["_meta"].take();
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], V2026, "{question}");
    let mut said = json!({"jsonrpc": "2.0", "id": question["id"]});
    said.as_object_mut().expect("an object").extend(answer.as_object().expect("an object").clone());
    server.say(said).await;
    server
}

/// The next process, which says that it speaks the modern revision.
async fn modern_server(servers: &StdioServers) -> StdioServer {
    asked(servers, json!({"result": {"supportedVersions": [V2026], "capabilities": {}}})).await
}

/// The next process, which says that it does not know the question.
async fn legacy_server(servers: &StdioServers) -> StdioServer {
    asked(servers, json!({"error": {"code": -32601, "message": "Method not found"}})).await
}

#[tokio::test]
async fn a_server_is_asked_once_and_its_process_serves_the_caller() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let pending = call("a").start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    let sent = server.expect("tools/call").await;
    assert!(sent["id"].is_u64(), "{sent}");
    assert_eq!(sent["params"]["_meta"]["progressToken"], sent["id"]);
    server.say(progress(&sent["id"])).await;
    server.say(answer(&sent["id"])).await;
    let mut response = pending.response().await.sse();
    assert_eq!((event(&mut response).await, event(&mut response).await), (progress(&json!("a")), answer(&json!("a"))));

    let pending = call("a").start(proxy.addr).await;
    let second = server.expect("tools/call").await;
    assert_ne!(second["id"], sent["id"]);
    server.say(answer(&second["id"])).await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(&json!("a")));
}

/// A server that starts slowly is pinged before it has responded. A ping of an older revision would
/// make TypeScript's SDK refuse all later requests of this one.
#[tokio::test]
async fn the_ping_of_a_slow_server_has_the_revision_of_the_discovery() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let pending = call("a").start(proxy.addr).await;
    let mut server = servers.next().await;
    let discovery = server.expect("server/discover").await;
    let ping = server.message().await;
    assert_eq!(ping["method"], "ping");
    assert_eq!(ping["params"]["_meta"], discovery["params"]["_meta"]);
    server
        .say(json!({"jsonrpc": "2.0", "id": ping["id"], "error": {"code": -32601, "message": "Method not found"}}))
        .await;
    let result = json!({"supportedVersions": [V2026], "capabilities": {}});
    server.say(json!({"jsonrpc": "2.0", "id": discovery["id"], "result": result})).await;
    let sent = server.expect("tools/call").await;
    server.say(answer(&sent["id"])).await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(&json!("a")));
}

#[tokio::test]
async fn calls_with_the_same_id_get_their_own_messages() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let one = call(1).start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    let first = server.expect("tools/call").await["id"].clone();
    let two = call(1).start(proxy.addr).await;
    let second = server.expect("tools/call").await["id"].clone();
    for number in [&second, &first] {
        server.say(progress(number)).await;
    }
    let mut tagged = answer(&second);
    tagged["result"]["content"] = json!([{"type": "text", "text": "second"}]);
    server.say(&tagged).await;
    server.say(answer(&first)).await;
    let (mut one, mut two) = (one.response().await.sse(), two.response().await.sse());
    tagged["id"] = json!(1);
    assert_eq!((event(&mut two).await, event(&mut two).await), (progress(&json!(1)), tagged));
    assert_eq!((event(&mut one).await, event(&mut one).await), (progress(&json!(1)), answer(&json!(1))));
}

#[tokio::test]
async fn first_requests_at_once_have_one_process() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let mut pending = Vec::new();
    for _ in 0..3 {
        pending.push(call(1).start(proxy.addr).await);
    }
    let mut server = modern_server(&servers).await;
    for _ in 0..3 {
        let number = server.expect("tools/call").await["id"].clone();
        server.say(answer(&number)).await;
    }
    for client in pending {
        assert_eq!(event(&mut client.response().await.sse()).await, answer(&json!(1)));
    }
}

#[tokio::test]
async fn each_principal_has_a_process() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let of = |token: &str| call(1).with("Authorization", token);
    let _one = of("Bearer one").start(proxy.addr).await;
    let mut first = modern_server(&servers).await;
    first.expect("tools/call").await;
    let _two = of("Bearer two").start(proxy.addr).await;
    let mut second = servers.next().await;
    second.expect("tools/call").await;
    let _anonymous = call(1).start(proxy.addr).await;
    let mut third = servers.next().await;
    third.expect("tools/call").await;
    let _again = of("Bearer one").start(proxy.addr).await;
    first.expect("tools/call").await;
}

#[tokio::test]
async fn a_server_with_sessions_alone_has_its_clients_fall_back() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let pending = request(7, "server/discover").start(proxy.addr).await;
    let mut server = legacy_server(&servers).await;
    let mut refused = pending.response().await;
    let data = json!({"supported": ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"], "requested": V2026});
    let error = refused.json().await;
    assert_eq!((refused.status, &error["id"]), (400, &json!(7)));
    // From -32022 some clients would not fall back.
    assert_eq!((&error["error"]["code"], &error["error"]["data"]), (&json!(-32600), &data));
    server.end_of_input().await;
    server.exit().await;
    // It is not asked again.
    assert_eq!(call(8).send(proxy.addr).await.status, 400);
    let (_server, _session) = servers.open(&proxy).await;
}

#[tokio::test]
async fn a_server_that_ends_at_the_question_has_sessions_alone() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let pending = call(1).start(proxy.addr).await;
    let mut server = servers.next().await;
    server.expect("server/discover").await;
    server.exit().await;
    let mut refused = pending.response().await;
    assert_eq!((refused.status, refused.json().await["error"]["code"].clone()), (400, json!(-32600)));

    // Its refusal of a handshake shows that it speaks no other revision.
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let mut server = servers.next().await;
    let asked = server.expect("initialize").await;
    let error = json!({"code": -32022, "message": "", "data": {"supported": [V2026]}});
    server.say(json!({"jsonrpc": "2.0", "id": asked["id"], "error": error})).await;
    assert_eq!(pending.response().await.json().await["error"]["code"], -32022);
    server.end_of_input().await;
    let _running = call(2).start(proxy.addr).await;
    modern_server(&servers).await.expect("tools/call").await;
}

#[tokio::test]
async fn the_response_to_discover_has_a_status() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let pending = request("d", "server/discover").start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    let sent = server.expect("server/discover").await;
    server.say(answer(&sent["id"])).await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    assert_eq!(response.json().await, answer(&json!("d")));
    let pending = request("d", "server/discover").start(proxy.addr).await;
    let sent = server.expect("server/discover").await;
    server.say(json!({"jsonrpc": "2.0", "id": sent["id"], "error": {"code": -32022, "message": ""}})).await;
    assert_eq!(pending.response().await.status, 400);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_own_call() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy_with(|config| config.streams.modern_grace = Some(std::time::Duration::ZERO)).await;
    let leaving = call(1).start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    let left = server.expect("tools/call").await["id"].clone();
    let mut staying = call(1).send(proxy.addr).await.sse();
    let kept = server.expect("tools/call").await["id"].clone();
    drop(leaving.response().await);
    assert_eq!(server.expect("notifications/cancelled").await["params"], cancelled(&left));
    // A response that comes too late is no other call's.
    server.say(answer(&left)).await;
    server.say(progress(&left)).await;
    server.say(answer(&kept)).await;
    assert_eq!(event(&mut staying).await, answer(&json!(1)));
}

#[tokio::test]
async fn a_subscription_has_its_own_messages() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy_with(|config| config.streams.modern_grace = Some(std::time::Duration::ZERO)).await;
    let one = request("s", "subscriptions/listen").start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    let first = server.expect("subscriptions/listen").await["id"].clone();
    let two = request("s", "subscriptions/listen").start(proxy.addr).await;
    let second = server.expect("subscriptions/listen").await["id"].clone();
    let changed = |method: &str, id: &Value| {
        json!({"jsonrpc": "2.0", "method": method,
        "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}})
    };
    server.say(changed("notifications/prompts/list_changed", &second)).await;
    server.say(changed("notifications/tools/list_changed", &first)).await;
    let (mut one, mut two) = (one.response().await.sse(), two.response().await.sse());
    assert_eq!(event(&mut one).await, changed("notifications/tools/list_changed", &json!("s")));
    assert_eq!(event(&mut two).await, changed("notifications/prompts/list_changed", &json!("s")));
    drop(one);
    assert_eq!(server.expect("notifications/cancelled").await["params"], cancelled(&first));
}

#[tokio::test]
async fn a_message_of_no_call_is_for_the_only_call_of_a_principal() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
    let pending = call(1).with("Authorization", "Bearer one").start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    let number = server.expect("tools/call").await["id"].clone();
    server.say(&log).await;
    server.say(answer(&number)).await;
    let mut response = pending.response().await.sse();
    assert_eq!((event(&mut response).await, event(&mut response).await), (log.clone(), answer(&json!(1))));

    // Callers without credentials cannot be told apart.
    let pending = call(1).start(proxy.addr).await;
    let mut server = servers.next().await;
    let number = server.expect("tools/call").await["id"].clone();
    server.say(&log).await;
    server.say(answer(&number)).await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(&json!(1)));
}

#[tokio::test]
async fn a_request_of_the_server_is_refused() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let _running = call(1).start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    server.expect("tools/call").await;
    server.say(json!({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})).await;
    let refusal = server.message().await;
    assert_eq!((&refusal["id"], &refusal["error"]["code"]), (&json!("q"), &json!(-32601)));
}

#[tokio::test]
async fn a_process_that_ends_fails_its_calls_and_the_next_call_has_another() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let pending = call("x").start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    server.expect("tools/call").await;
    server.exit().await;
    let error = event(&mut pending.response().await.sse()).await;
    let data = json!({"error": "server_ended", "fault": "upstream", "mayHaveRun": true, "exitCode": 3});
    assert_eq!((&error["id"], &error["error"]["code"], &error["error"]["data"]), (&json!("x"), &json!(-32010), &data));
    let pending = call("x").start(proxy.addr).await;
    let mut server = servers.next().await;
    let number = server.expect("tools/call").await["id"].clone();
    server.say(answer(&number)).await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(&json!("x")));
}

#[tokio::test]
async fn a_request_whose_headers_disagree_reaches_no_process() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|command| command.line = vec!["no-such-program".to_owned()]).await;
    for (name, value) in [("Mcp-Method", "tools/list"), ("Mcp-Name", "other"), ("MCP-Protocol-Version", "2027-01-01")] {
        let mut refused = call(1).without(name).with(name, value).send(proxy.addr).await;
        assert_eq!((refused.status, refused.json().await["error"]["code"].clone()), (400, json!(-32020)), "{name}");
    }
    let array = Request::post(format!("[{}]", String::from_utf8_lossy(call(1).body())))
        .with("MCP-Protocol-Version", V2026)
        .with("Mcp-Method", "tools/call");
    assert_eq!(array.send(proxy.addr).await.status, 400);
    let notification =
        Request::post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#)
            .with("MCP-Protocol-Version", V2026);
    assert_eq!(notification.send(proxy.addr).await.status, 202);
    let mut failed = call(1).send(proxy.addr).await;
    assert_eq!((failed.status, failed.json().await["error"]["code"].clone()), (502, json!(-32010)));
}

/// The error has the form of the client's revision, and its call has failed all the same.
#[tokio::test]
async fn a_translated_call_whose_process_ends_counts_as_failed() {
    let servers = StdioServers::start().await;
    let bridge = Bridge {
        modern_clients: ModernClients::Always,
        legacy_clients: true,
        idle: Duration::from_secs(600),
        sessions_per_principal: 8,
    };
    let proxy = servers
        .proxy_with(|config| {
            config.admin.address = Some(([127, 0, 0, 1], 0).into());
            config.bridge = Some(bridge);
        })
        .await;
    let pending = call("a").start(proxy.addr).await;
    let asked = legacy_server(&servers).await;
    let mut server = servers.next().await;
    server.answer_initialize(Value::Null).await;
    loop {
        let message = server.message().await;
        match message["method"].as_str() {
            Some("tools/call") => break,
            Some(_) if message.get("id").is_some() => {
                server.say(json!({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": []}})).await;
            }
            _ => {}
        }
    }
    server.exit().await;
    let mut response = pending.response().await.sse();
    let error = event(&mut response).await;
    assert_eq!((&error["id"], &error["error"]["data"]["error"]), (&json!("a"), &json!("server_ended")));
    let failed = async || metric(&proxy, r#"mcp_resume_streams_sealed_total{outcome="failed"}"#).await;
    until("the call has ended", async || failed().await == 1.0).await;
    assert_eq!(metric(&proxy, r#"mcp_resume_upstream_failures_total{reason="server_ended"}"#).await, 1.0);
    drop(asked);
}
