//! The answer to `initialize`, also if the far side is away.

use std::time::{Duration, Instant};

use serde_json::json;

use super::host::*;
use super::support::*;

#[tokio::test]
async fn a_host_has_its_answer_before_the_server_is_there() {
    let mut upstream = Upstream::start().await;
    upstream.refuse().await;
    let mut host = Host::before(&upstream.url());
    let began = Instant::now();
    host.say(&initialize(V2025_11)).await;
    let answer = host.hear().await;
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_eq!(answer["result"]["protocolVersion"], V2025_11);
    assert_eq!(answer["result"]["capabilities"]["tools"]["listChanged"], true);
    host.say(&initialized()).await;
    host.say(&request(1, "tools/list")).await;
    host.say(&call(2)).await;
    upstream.listen_again().await;
    upstream.expect("initialize").await.json_with(200, "mcp-session-id: s-1\r\n", handshake(V2025_11)).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    let mut lines = Vec::new();
    for _ in 0..2 {
        let request = upstream.next().await;
        let id = request.json_body()["id"].clone();
        request.json(200, content(id, "now")).await;
    }
    for _ in 0..3 {
        lines.push(host.hear().await);
    }
    assert!(lines.iter().any(|line| line["method"] == "notifications/tools/list_changed"), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| text_of(line) == "now").count(), 2);
}

#[tokio::test]
async fn a_refused_revision_is_replaced_by_the_newest_that_the_server_names() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    let text = "Bad Request: Unsupported protocol version (supported versions: 2025-06-18, 2025-03-26)";
    let error = json!({"jsonrpc": "2.0", "error": {"code": -32000, "message": text}, "id": null});
    upstream.expect("initialize").await.json(400, error.to_string()).await;
    // The core asks what the server speaks.
    let mut again = upstream.next().await;
    while again.rpc_method() == "server/discover" {
        again.json(400, error.to_string()).await;
        again = upstream.next().await;
    }
    assert_eq!(again.json_body()["params"]["protocolVersion"], V2025_06);
    again.json_with(200, "mcp-session-id: s-1\r\n", handshake(V2025_06)).await;
    assert_eq!(host.hear().await["result"]["protocolVersion"], V2025_06);
}

#[tokio::test]
async fn a_refused_credential_is_an_error_that_names_its_header() {
    let mut upstream = Upstream::start().await;
    let headers = vec!["Authorization: Bearer bad-secret".to_owned()];
    let mut host = Host::start(mcp_resume::connect::Options { headers, ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    let call = upstream.expect("initialize").await;
    assert_eq!(call.header("authorization"), Some("Bearer bad-secret"));
    let challenge = "www-authenticate: Bearer resource_metadata=\"http://127.0.0.1/.well-known/x\"\r\n";
    call.json_with(401, challenge, r#"{"error":"invalid_token"}"#).await;
    let answer = host.hear().await;
    let text = error_of(&answer);
    assert!(text.contains("401") && text.contains("Authorization") && !text.contains("bad-secret"), "{text}");
    assert!(upstream.is_quiet(), "no metadata is asked for");
}

#[tokio::test]
async fn a_probe_that_the_server_refuses_is_an_unknown_method() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    let probe = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {
        "_meta": {"io.modelcontextprotocol/protocolVersion": V2026}}});
    host.say(&probe.to_string()).await;
    let call = upstream.expect("server/discover").await;
    assert_eq!(call.header("mcp-protocol-version"), Some(V2026));
    assert_eq!(call.header("mcp-method"), Some("server/discover"));
    let error = json!({"jsonrpc": "2.0", "error": {"code": -32000, "message": "no session"}, "id": null});
    call.json(400, error.to_string()).await;
    assert_eq!(host.hear().await["error"]["code"], -32601);
    host.initialize(&mut upstream).await;
}

#[tokio::test]
async fn a_probe_gets_the_answer_of_its_server() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    let meta = json!({"io.modelcontextprotocol/protocolVersion": V2026});
    let probe = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}});
    host.say(&probe.to_string()).await;
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": [V2026]}});
    upstream.expect("server/discover").await.json(200, answer.to_string()).await;
    assert_eq!(host.hear().await, answer);
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow", "_meta": meta}});
    host.say(&call.to_string()).await;
    let sse = upstream.expect("tools/call").await;
    assert_eq!(sse.header("mcp-name"), Some("slow"));
    assert_eq!(sse.header("mcp-session-id"), None);
    let sse = sse.sse().await;
    // A cancel is the end of its stream.
    host.say(&cancel(2)).await;
    sse.closed().await;
}

#[tokio::test]
async fn a_known_server_that_is_away_is_answered_for_by_memory() {
    let mut upstream = Upstream::start().await;
    let folder = std::env::temp_dir().join(format!("mcp-resume-connect-{}", std::process::id()));
    let memory = || Some(folder.clone());
    let mut host = Host::start(mcp_resume::connect::Options { memory: memory(), ..options(&upstream.url()) });
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    host.say(&request(1, "tools/list")).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "kept"}]}});
    upstream.expect("tools/list").await.json(200, list.to_string()).await;
    assert_eq!(host.hear().await, list);
    host.close_input();
    upstream.expect("DELETE").await.status(200).await;
    host.end().await;
    upstream.refuse().await;
    let mut host = Host::start(mcp_resume::connect::Options { memory: memory(), ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
    host.say(&initialized()).await;
    host.say(&request(2, "tools/list")).await;
    assert_eq!(host.hear().await["result"], list["result"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_probe_whose_connection_broke_is_sent_again() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    let meta = json!({"io.modelcontextprotocol/protocolVersion": V2026});
    let probe = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}});
    host.say(&probe.to_string()).await;
    upstream.expect("server/discover").await.reset().await;
    upstream.expect("server/discover").await.status(502).await;
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": [V2026]}});
    upstream.expect("server/discover").await.json(200, answer.to_string()).await;
    assert_eq!(host.hear().await, answer);
}

#[tokio::test]
async fn a_known_server_without_sessions_that_is_away_is_answered_for_by_memory() {
    let mut upstream = Upstream::start().await;
    let folder = std::env::temp_dir().join(format!("mcp-resume-connect-modern-{}", std::process::id()));
    let memory = || Some(folder.clone());
    let meta = json!({"io.modelcontextprotocol/protocolVersion": V2026});
    let request = |id: u32, method: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": meta}}).to_string()
    };
    let mut host = Host::start(mcp_resume::connect::Options { memory: memory(), ..options(&upstream.url()) });
    host.say(&request(1, "server/discover")).await;
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": [V2026], "capabilities": {}}});
    upstream.expect("server/discover").await.json(200, answer.to_string()).await;
    assert_eq!(host.hear().await, answer);
    host.say(&request(2, "tools/list")).await;
    let list = json!({"jsonrpc": "2.0", "id": 2, "result": {"tools": [{"name": "kept"}]}});
    upstream.expect("tools/list").await.json(200, list.to_string()).await;
    assert_eq!(host.hear().await["result"], list["result"]);
    host.close_input();
    host.end().await;
    upstream.refuse().await;
    let mut host = Host::start(mcp_resume::connect::Options { memory: memory(), ..options(&upstream.url()) });
    let began = Instant::now();
    host.say(&request(3, "server/discover")).await;
    assert_eq!(host.hear().await["result"], answer["result"]);
    assert!(began.elapsed() < Duration::from_secs(4));
    host.say(&request(4, "tools/list")).await;
    assert_eq!(host.hear().await["result"], list["result"]);
    // Once the server is there, it answers itself.
    upstream.listen_again().await;
    upstream.expect("server/discover").await.json(200, answer.to_string()).await;
    host.say(&request(5, "prompts/list")).await;
    upstream.expect("prompts/list").await.json(200, r#"{"jsonrpc":"2.0","id":5,"result":{"prompts":[]}}"#).await;
    assert_eq!(host.hear().await["id"], 5);
    host.close_input();
    host.end().await;
    std::fs::remove_dir_all(&folder).unwrap();
}
