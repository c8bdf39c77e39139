//! Cuts between `connect` and the far side.

use std::time::Duration;

use serde_json::json;

use super::host::*;
use super::support::*;

const WARNING: &str = "; the tool may have run: check whether it did before you call it again";

#[tokio::test]
async fn a_cut_stream_is_resumed_by_its_last_event_id() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    sse.bytes("id: e-1\ndata:\n\n").await;
    sse.reset().await;
    for n in 2..5 {
        let again = upstream.expect("GET").await;
        assert_eq!(again.header("last-event-id"), Some(&*format!("e-{}", n - 1)));
        assert_eq!(again.header("mcp-session-id"), Some("s-1"));
        let sse = again.sse().await;
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": 7, "progress": n}});
        sse.event_id(&format!("e-{n}"), progress.to_string()).await;
        assert_eq!(host.hear().await["params"]["progress"], n);
        sse.reset().await;
    }
    let sse = upstream.expect("GET").await.sse().await;
    sse.finish(content(1, "whole")).await;
    assert_eq!(text_of(&host.hear().await), "whole");
}

#[tokio::test]
async fn a_cut_is_repaired_over_a_darkness() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    sse.bytes("id: e-1\ndata:\n\n").await;
    upstream.refuse().await;
    sse.reset().await;
    assert!(host.hears_nothing_for(Duration::from_millis(1500)).await);
    upstream.listen_again().await;
    // The server is busy at first.
    upstream.expect("GET").await.status(503).await;
    let sse = upstream.expect("GET").await;
    assert_eq!(sse.header("last-event-id"), Some("e-1"));
    sse.sse().await.finish(content(1, "after the darkness")).await;
    assert_eq!(text_of(&host.hear().await), "after the darkness");
}

#[tokio::test]
async fn a_call_that_broke_without_an_id_is_an_error_in_words() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    upstream.expect("tools/call").await.reset().await;
    let answer = host.hear().await;
    assert!(error_of(&answer).ends_with(WARNING), "{answer}");
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn requests_without_effects_are_sent_again() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&request(1, "tools/list")).await;
    upstream.expect("tools/list").await.reset().await;
    let sse = upstream.expect("tools/list").await.sse().await;
    sse.reset().await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    assert_eq!(host.hear().await["result"], json!({"tools": []}));
}

#[tokio::test]
async fn a_tool_that_only_reads_is_called_once_more() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&request(1, "tools/list")).await;
    let tools = json!([
        {"name": "reads", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}},
        {"name": "writes", "inputSchema": {"type": "object"}},
    ]);
    let list = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}});
    upstream.expect("tools/list").await.json(200, list.to_string()).await;
    host.hear().await;
    host.say(&call_tool(2, "reads")).await;
    upstream.expect("tools/call").await.reset().await;
    upstream.expect("tools/call").await.json(200, content(2, "read")).await;
    assert_eq!(text_of(&host.hear().await), "read");
    host.say(&call_tool(3, "reads")).await;
    upstream.expect("tools/call").await.reset().await;
    upstream.expect("tools/call").await.reset().await;
    assert!(error_of(&host.hear().await).ends_with(WARNING));
    host.say(&call_tool(4, "writes")).await;
    upstream.expect("tools/call").await.reset().await;
    assert!(error_of(&host.hear().await).ends_with(WARNING));
}

#[tokio::test]
async fn a_forgotten_session_is_opened_once_for_all_calls() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&request(9, "tools/list")).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":9,"result":{"tools":[]}}"#).await;
    host.hear().await;
    for id in 1..4 {
        host.say(&call(id)).await;
    }
    let refusal = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#;
    let (mut opened, mut answered, mut initialized) = (0, 0, 0);
    while answered < 3 {
        let call = upstream.next().await;
        let is_old = call.header("mcp-session-id") == Some("s-1");
        match &*call.rpc_method() {
            "initialize" => {
                opened += 1;
                let id = call.json_body()["id"].clone();
                let mut answer: serde_json::Value = serde_json::from_str(&handshake(V2025_11)).unwrap();
                answer["id"] = id;
                call.json_with(200, "mcp-session-id: s-2\r\n", answer.to_string()).await;
            }
            "notifications/initialized" => {
                initialized += 1;
                call.status(202).await;
            }
            "tools/call" | "ping" if is_old => call.json(404, refusal).await,
            "tools/list" => {
                let list = json!({"jsonrpc": "2.0", "id": call.json_body()["id"], "result": {"tools": []}});
                call.json(200, list.to_string()).await;
            }
            "tools/call" => {
                assert_eq!(call.header("mcp-session-id"), Some("s-2"));
                let id = call.json_body()["id"].clone();
                call.json(200, content(id, "ran")).await;
                answered += 1;
            }
            "GET" => call.status(405).await,
            other => panic!("{other}"),
        }
    }
    assert_eq!((opened, initialized), (1, 1));
    for _ in 0..3 {
        assert_eq!(text_of(&host.hear().await), "ran");
    }
}

#[tokio::test]
async fn an_edges_page_is_an_error_with_the_origin() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let page = "<html>a timeout occurred</html>";
    let head = format!("HTTP/1.1 524 X\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", page.len());
    upstream.expect("tools/call").await.whole(format!("{head}{page}")).await;
    let answer = host.hear().await;
    assert!(error_of(&answer).ends_with(WARNING), "{answer}");
    assert_eq!(answer["error"]["data"]["origin"], format!("http://{}", upstream.addr()));
    assert!(!answer.to_string().contains("timeout occurred"));
}
