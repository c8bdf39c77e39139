//! `bridge.modern_clients = "auto"`: only clients that declare tasks, and only at a server that
//! assigns no sessions.

use super::*;

async fn stage_auto() -> (Upstream, Proxy) {
    stage_with(|bridge| bridge.modern_clients = ModernClients::Auto).await
}

/// A request that declares tasks, or not.
fn declaring(id: u64, method: &str, has_tasks: bool) -> Request {
    let request = request(id, method, json!({}));
    let mut body: Value = serde_json::from_slice(request.body()).expect("JSON");
    if has_tasks {
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"] =
            json!({"io.modelcontextprotocol/tasks": {}});
    }
    request.with_body(body.to_string())
}

/// A request that the server gets as it is.
async fn passes(upstream: &mut Upstream, proxy: &Proxy, request: &Request) {
    let pending = request.start(proxy.addr).await;
    let call = upstream.next().await;
    assert_eq!(call.body, request.body());
    assert_eq!(
        call.header("mcp-method"),
        request.headers().find(|(name, _)| *name == "Mcp-Method").map(|(_, value)| value)
    );
    let refusal =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Unsupported protocol version"}}"#;
    call.json(400, refusal).await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.body().await), (400, refusal.as_bytes().to_vec()));
}

/// A client of an older revision, whose session the server names or does not.
async fn initializes(upstream: &mut Upstream, proxy: &Proxy, session: &str) {
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let call = upstream.expect("initialize").await;
    let id = call.json_body()["id"].clone();
    call.json_with(200, session, initialized(&id)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn clients_that_declare_tasks_are_bridged_to_a_server_without_sessions() {
    let (mut upstream, proxy) = stage_auto().await;
    passes(&mut upstream, &proxy, &declaring(1, "server/discover", true)).await;
    initializes(&mut upstream, &proxy, "").await;
    passes(&mut upstream, &proxy, &declaring(2, "server/discover", false)).await;
    passes(&mut upstream, &proxy, &declaring(3, "tools/list", false)).await;
    let pending = declaring(4, "server/discover", true).start(proxy.addr).await;
    upstream.expect("server/discover").await.json(400, "{}").await;
    let initialize = upstream.expect("initialize").await;
    let id = initialize.json_body()["id"].clone();
    initialize.json(200, initialized(&id)).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    let found = pending.response().await.json().await;
    assert_eq!((&found["id"], &found["result"]["supportedVersions"]), (&json!(4), &json!([V2026])));
    upstream.expect("GET").await.status(405).await;
    // Later requests of such a client are translated too.
    let pending = declaring(5, "tools/list", true).start(proxy.addr).await;
    let list = upstream.expect("tools/list").await;
    assert_eq!((list.header("mcp-session-id"), list.header("mcp-method")), (None, None));
    let id = list.json_body()["id"].clone();
    list.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}}).to_string()).await;
    assert_eq!(pending.response().await.json().await["id"], 5);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn at_a_server_with_sessions_all_passes() {
    let (mut upstream, proxy) = stage_auto().await;
    initializes(&mut upstream, &proxy, "mcp-session-id: s-1\r\n").await;
    for (id, has_tasks) in [(1, true), (2, false)] {
        passes(&mut upstream, &proxy, &declaring(id, "server/discover", has_tasks)).await;
        passes(&mut upstream, &proxy, &declaring(id, "tools/list", has_tasks)).await;
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_that_begins_to_assign_sessions_is_bridged_no_more() {
    let (mut upstream, proxy) = stage_auto().await;
    initializes(&mut upstream, &proxy, "").await;
    let request = declaring(1, "server/discover", true);
    let pending = request.start(proxy.addr).await;
    upstream.expect("server/discover").await.json(400, "{}").await;
    let opened = upstream.expect("initialize").await;
    let id = opened.json_body()["id"].clone();
    opened.json_with(200, "mcp-session-id: s-1\r\n", initialized(&id)).await;
    let mut calls = [upstream.next().await, upstream.next().await];
    calls.sort_by_key(|call| call.method != "DELETE");
    let [end, passed] = calls;
    assert_eq!((end.method.as_str(), end.header("mcp-session-id")), ("DELETE", Some("s-1")));
    end.status(200).await;
    assert_eq!(passed.body, request.body());
    passed.json(400, "{}").await;
    assert_eq!(pending.response().await.status, 400);
    passes(&mut upstream, &proxy, &declaring(2, "server/discover", true)).await;
}
