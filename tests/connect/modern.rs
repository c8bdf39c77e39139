//! Hosts of 2026-07-28: the headers that HTTP wants, and subscriptions.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::host::*;
use super::support::*;

fn request_with(id: impl Into<Value>, method: &str, mut params: Value) -> String {
    params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": V2026});
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string()
}

fn tool(name: &str, properties: &Value) -> Value {
    json!({"name": name, "inputSchema": {"type": "object", "properties": properties}})
}

/// A list with a tool whose argument is also a header, and one with a wrong annotation.
fn list(id: &Value) -> String {
    let tools = [
        tool("deploy", &json!({"region": {"type": "string", "x-mcp-header": "Region"}})),
        tool("broken", &json!({"rate": {"type": "number", "x-mcp-header": "Rate"}})),
    ];
    json!({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", "tools": tools}}).to_string()
}

fn deploy(id: u64) -> String {
    request_with(id, "tools/call", json!({"name": "deploy", "arguments": {"region": "eu"}}))
}

#[tokio::test]
async fn arguments_with_an_annotation_are_headers_and_wrong_annotations_are_left_out() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&request_with(1, "tools/list", json!({}))).await;
    upstream.expect("tools/list").await.json(200, list(&json!(1))).await;
    let heard = host.hear().await;
    let tools = heard["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect::<Vec<_>>(), ["deploy"]);
    host.say(&deploy(2)).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!((call.header("mcp-param-region"), call.header("mcp-name")), (Some("eu"), Some("deploy")));
    call.json(200, content(2, "done")).await;
    assert_eq!(text_of(&host.hear().await), "done");
}

#[tokio::test]
async fn a_call_without_its_headers_is_sent_once_more_behind_the_list() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    let refusal = |id: u64| json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32020, "message": "no header"}});
    host.say(&deploy(1)).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-param-region"), None);
    call.json(400, refusal(1).to_string()).await;
    let asked = upstream.expect("tools/list").await;
    let body = asked.json_body();
    assert_eq!(body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], V2026);
    asked.json(200, list(&body["id"])).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("mcp-param-region"), Some("eu"));
    again.json(200, content(1, "done")).await;
    assert_eq!(text_of(&host.hear().await), "done");
    // A second refusal is the answer.
    host.say(&deploy(2)).await;
    upstream.expect("tools/call").await.json(400, refusal(2).to_string()).await;
    let asked = upstream.expect("tools/list").await;
    let id = asked.json_body()["id"].clone();
    asked.json(200, list(&id)).await;
    upstream.expect("tools/call").await.json(400, refusal(2).to_string()).await;
    assert_eq!(host.hear().await, refusal(2));
}

fn acknowledged(id: u64) -> String {
    let params = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": id}, "notifications": {}});
    json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}).to_string()
}

fn changed(id: u64) -> String {
    let params = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": id}});
    json!({"jsonrpc": "2.0", "method": "notifications/prompts/list_changed", "params": params}).to_string()
}

/// Subscribes, and lets `upstream` acknowledge that.
async fn listen(host: &mut Host, upstream: &mut Upstream) -> Sse {
    host.say(&request_with(7, "subscriptions/listen", json!({"notifications": {"promptsListChanged": true}}))).await;
    let sse = upstream.expect("subscriptions/listen").await.sse().await;
    sse.event(&acknowledged(7)).await;
    assert_eq!(host.hear().await["method"], "notifications/subscriptions/acknowledged");
    sse
}

#[tokio::test]
async fn the_end_of_a_subscription_at_its_server_is_a_cancel_for_the_host() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    let sse = listen(&mut host, &mut upstream).await;
    sse.event(&changed(7)).await;
    assert_eq!(host.hear().await["method"], "notifications/prompts/list_changed");
    sse.end().await;
    let heard = host.hear().await;
    assert_eq!((&heard["method"], &heard["params"]["requestId"]), (&json!("notifications/cancelled"), &json!(7)));
    assert!(upstream.is_quiet());
    // The ID is free again.
    listen(&mut host, &mut upstream).await;
}

#[tokio::test]
async fn a_subscription_whose_connection_breaks_is_begun_again_unseen() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    for _ in 0..2 {
        let sse = listen(&mut host, &mut upstream).await;
        sse.reset().await;
        let again = upstream.expect("subscriptions/listen").await;
        assert_eq!(again.json_body()["id"], 7);
        let sse = again.sse().await;
        sse.event(&acknowledged(7)).await;
        sse.event(&changed(7)).await;
        assert_eq!(host.hear().await["method"], "notifications/prompts/list_changed");
        host.say(&cancel(7)).await;
        sse.closed().await;
    }
}

#[tokio::test]
async fn a_subscription_does_not_delay_the_end() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    let sse = listen(&mut host, &mut upstream).await;
    let began = Instant::now();
    host.close_input();
    sse.closed().await;
    host.end().await;
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_host_that_falls_back_gets_requests_of_its_server_outside_a_call() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&request_with(0, "server/discover", json!({}))).await;
    let refusal = json!({"jsonrpc": "2.0", "error": {"code": -32000, "message": "Bad Request"}, "id": null});
    upstream.expect("server/discover").await.json(400, refusal.to_string()).await;
    assert_eq!(host.hear().await["error"]["code"], -32601);
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    let get = upstream.expect("GET").await.sse().await;
    upstream.expect("notifications/initialized").await.status(202).await;
    get.event(r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}"#).await;
    assert_eq!(host.hear().await["method"], "sampling/createMessage");
    host.say(r#"{"jsonrpc":"2.0","id":"q","result":{"role":"assistant"}}"#).await;
    upstream.expect("response").await.status(202).await;
}
