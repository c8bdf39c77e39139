//! A session that is opened again at a server with other lists, or at another server.

use std::time::Duration;

use serde_json::{Value, json};

use super::host::*;
use super::support::*;

const REFUSAL: &str = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#;

fn tools(id: &Value, name: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"tools": [{"name": name}]}}).to_string()
}

/// The answer to an `initialize` of the proxy's own.
fn handshake_to(call: &Call, revision: &str, capabilities: Value) -> String {
    let info = json!({"name": "scripted", "version": "2"});
    let result = json!({"protocolVersion": revision, "capabilities": capabilities, "serverInfo": info});
    json!({"jsonrpc": "2.0", "id": call.json_body()["id"], "result": result}).to_string()
}

/// Reads the list of tools.
async fn list(host: &mut Host, upstream: &mut Upstream, name: &str) {
    host.say(&request(9, "tools/list")).await;
    upstream.expect("tools/list").await.json(200, tools(&json!(9), name)).await;
    host.hear().await;
}

/// A second call finds the session forgotten while the first runs. Its list is another one then.
async fn the_change_follows_the_running_call(has_get: bool) {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    let get = upstream.expect("GET").await;
    let mut streams = Vec::new();
    if has_get {
        streams.push(get.sse().await);
    } else {
        get.status(405).await;
    }
    upstream.expect("notifications/initialized").await.status(202).await;
    list(&mut host, &mut upstream, "old").await;
    host.say(&call(1)).await;
    let running = upstream.expect("tools/call").await.sse().await;
    host.say(&call(2)).await;
    let mut has_listed = false;
    let again = loop {
        let call = upstream.next().await;
        let is_old = call.header("mcp-session-id") == Some("s-1");
        match &*call.rpc_method() {
            "initialize" => {
                let answer = handshake_to(&call, V2025_11, json!({"tools": {"listChanged": true}, "logging": {}}));
                call.json_with(200, "mcp-session-id: s-2\r\n", answer).await;
            }
            "notifications/initialized" => call.status(202).await,
            "tools/call" | "ping" if is_old => call.json(404, REFUSAL).await,
            "GET" if has_get => streams.push(call.sse().await),
            "GET" => call.status(405).await,
            "tools/list" => {
                let id = call.json_body()["id"].clone();
                call.json(200, tools(&id, "new")).await;
                has_listed = true;
            }
            "tools/call" => break call,
            other => panic!("{other}"),
        }
    };
    while !has_listed {
        let call = upstream.expect("tools/list").await;
        let id = call.json_body()["id"].clone();
        call.json(200, tools(&id, "new")).await;
        has_listed = true;
    }
    again.json(200, content(2, "second")).await;
    let mut lines = vec![host.hear().await];
    // The core has compared the lists; the first call still runs.
    while let Ok(line) = tokio::time::timeout(Duration::from_millis(300), host.hear()).await {
        lines.push(line);
    }
    let is_change = |line: &&Value| line["method"] == "notifications/tools/list_changed";
    assert!(!lines.iter().any(|line| is_change(&line)), "{lines:?}");
    assert!(lines.iter().any(|line| text_of(line) == "second"), "{lines:?}");
    running.finish(content(1, "first")).await;
    assert_eq!(text_of(&host.hear().await), "first");
    assert_eq!(host.hear().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn other_lists_are_announced_after_the_running_call() {
    the_change_follows_the_running_call(false).await;
}

#[tokio::test]
async fn other_lists_are_announced_after_the_running_call_beside_an_open_get_stream() {
    the_change_follows_the_running_call(true).await;
}

#[tokio::test]
async fn the_session_goes_on_at_a_server_that_has_less() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    let first = upstream.expect("initialize").await;
    let capabilities = json!({"tools": {}, "prompts": {}, "logging": {}});
    let answer = handshake_to(&first, V2025_11, capabilities);
    first.json_with(200, "mcp-session-id: s-1\r\n", answer).await;
    host.hear().await;
    host.say(&initialized()).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    host.say(&call(1)).await;
    loop {
        let call = upstream.next().await;
        let is_old = call.header("mcp-session-id") == Some("s-1");
        match &*call.rpc_method() {
            "initialize" => {
                let answer = handshake_to(&call, V2025_06, json!({"tools": {}}));
                call.json_with(200, "mcp-session-id: s-2\r\n", answer).await;
            }
            "notifications/initialized" => call.status(202).await,
            "tools/call" | "ping" if is_old => call.json(404, REFUSAL).await,
            "tools/call" => {
                assert_eq!(call.header("mcp-protocol-version"), Some(V2025_06));
                break call.json(200, content(1, "ran")).await;
            }
            other => panic!("{other}"),
        }
    }
    let mut answer = host.hear().await;
    while answer["id"] != 1 {
        answer = host.hear().await;
    }
    assert_eq!(text_of(&answer), "ran");
    host.say(&request(2, "prompts/list")).await;
    assert_eq!(host.hear().await["result"], json!({"prompts": []}));
    for (id, method) in [(3, "prompts/get"), (4, "logging/setLevel")] {
        host.say(&request(id, method)).await;
        assert_eq!(host.hear().await["error"]["code"], -32601, "{method}");
    }
    assert!(upstream.is_quiet());
    host.say(&call(5)).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-session-id"), Some("s-2"));
    assert_eq!(call.header("mcp-protocol-version"), Some(V2025_06));
    call.json(200, content(5, "later")).await;
    assert_eq!(text_of(&host.hear().await), "later");
}

#[tokio::test]
async fn what_the_pending_handshake_promised_and_the_server_lacks_is_empty() {
    let mut upstream = Upstream::start().await;
    upstream.refuse().await;
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    assert!(host.hear().await["result"]["capabilities"]["prompts"].is_object());
    host.say(&initialized()).await;
    upstream.listen_again().await;
    let first = upstream.expect("initialize").await;
    let answer = handshake_to(&first, V2025_06, json!({"tools": {}}));
    first.json_with(200, "mcp-session-id: s-1\r\n", answer).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    assert_eq!(host.hear().await["method"], "notifications/tools/list_changed");
    host.say(&request(1, "prompts/list")).await;
    assert_eq!(host.hear().await["result"], json!({"prompts": []}));
    host.say(&request(2, "resources/read")).await;
    assert_eq!(host.hear().await["error"]["code"], -32601);
    assert!(upstream.is_quiet());
    // A method of no capability is the server's.
    host.say(&request(3, "acme/method")).await;
    let call = upstream.expect("acme/method").await;
    assert_eq!(call.header("mcp-protocol-version"), Some(V2025_06));
}
