//! The main path: requests, streams, server requests, cancels and notifications.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::host::*;
use super::support::*;

#[tokio::test]
async fn requests_have_the_session_and_its_revision() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&request(1, "tools/list")).await;
    let call = upstream.expect("tools/list").await;
    assert_eq!(call.header("mcp-session-id"), Some("s-1"));
    assert_eq!(call.header("mcp-protocol-version"), Some(V2025_11));
    assert_eq!(call.header("accept"), Some("application/json, text/event-stream"));
    assert!(call.header("user-agent").is_some_and(|agent| agent.starts_with("mcp-resume/")));
    for name in ["forwarded", "x-forwarded-for", "x-forwarded-host", "authorization"] {
        assert_eq!(call.header(name), None, "{name}");
    }
    call.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    assert_eq!(host.hear().await, json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}));
}

#[tokio::test]
async fn messages_of_a_call_are_lines_in_their_order() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}"#;
    sse.event(progress).await;
    assert_eq!(host.hear().await, serde_json::from_str::<Value>(progress).unwrap());
    // A line end between tokens, and an event of another type.
    sse.bytes("event: other\ndata: {}\n\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\n\n").await;
    assert_eq!(host.hear().await, json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    sse.end().await;
}

#[tokio::test]
async fn a_server_request_is_answered_by_the_host() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    sse.event(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).await;
    assert_eq!(host.hear().await["method"], "roots/list");
    host.say(r#"{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}"#).await;
    let answer = upstream.expect("response").await;
    assert_eq!(answer.json_body()["id"], "q");
    answer.status(202).await;
    sse.finish(content(1, "done")).await;
    assert_eq!(text_of(&host.hear().await), "done");
}

#[tokio::test]
async fn a_cancel_reaches_the_server_and_nothing_else_is_written() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    host.say(&cancel(1)).await;
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 1);
    cancelled.status(202).await;
    sse.end().await;
    host.say(&request(2, "ping")).await;
    assert_eq!(host.hear().await["id"], 2);
}

#[tokio::test]
async fn notifications_of_the_get_stream_are_lines() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    let sse = upstream.expect("GET").await.sse().await;
    upstream.expect("notifications/initialized").await.status(202).await;
    sse.event(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
    assert_eq!(host.hear().await["method"], "notifications/tools/list_changed");
    // Of several streams the first response counts.
    host.say(&call(1)).await;
    let other = upstream.expect("tools/call").await.sse().await;
    sse.event(content(1, "by GET")).await;
    assert_eq!(text_of(&host.hear().await), "by GET");
    other.finish(content(1, "by POST")).await;
    host.say(&request(2, "ping")).await;
    assert_eq!(host.hear().await["id"], 2);
}

#[tokio::test]
async fn pings_of_the_host_are_answered_while_the_server_is_silent() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    let _silent = upstream.expect("initialize").await;
    let began = Instant::now();
    host.say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).await;
    assert_eq!(host.hear().await, json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn a_large_result_of_a_slow_host_delays_no_cancel() {
    use tokio::io::AsyncReadExt;
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let large = upstream.expect("tools/call").await.sse().await;
    host.say(&call(2)).await;
    let other = upstream.expect("tools/call").await.sse().await;
    let text = "x".repeat(10 * 1024 * 1024);
    large.finish(content(1, &text)).await;
    // The host reads nothing now.
    let began = Instant::now();
    host.say(&cancel(2)).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    let mut read = 0;
    let mut buffer = vec![0; 256 * 1024];
    while read < 1024 * 1024 {
        read += host.output().read(&mut buffer[..1024]).await.expect("a pipe");
    }
    drop(other);
    // The rest is whole.
    let mut rest = Vec::new();
    while rest.last() != Some(&b'\n') {
        let count = within("the rest", host.output().read(&mut buffer)).await.expect("a pipe");
        rest.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(read + rest.len(), content(1, &text).len() + 1);
}

#[tokio::test]
async fn a_batch_is_answered_by_a_batch() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&format!("[{},{}]", request(1, "ping"), call(2))).await;
    let sse = upstream.expect("batch").await.sse().await;
    sse.event(content(2, "two")).await;
    sse.finish(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let answer = host.hear().await;
    assert_eq!(answer.as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn lines_may_end_and_begin_in_several_ways() {
    let upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r").await;
    assert_eq!(host.hear().await["id"], 1);
    host.say("\n\r\n  ").await;
    host.say("{not json").await;
    assert_eq!(host.hear().await["error"]["code"], -32700);
    host.say(r#"{"id":5}"#).await;
    let error = host.hear().await;
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(5), &json!(-32600)));
}

#[tokio::test]
async fn hidden_tools_are_neither_listed_nor_called() {
    let mut upstream = Upstream::start().await;
    let ignored_tools = vec!["WRITE*".to_owned()];
    let mut host = Host::start(mcp_resume::connect::Options { ignored_tools, ..options(&upstream.url()) });
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    host.say(&request(1, "tools/list")).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "write_all"}, {"name": "read"}]}});
    upstream.expect("tools/list").await.json(200, list.to_string()).await;
    assert_eq!(host.hear().await["result"]["tools"], json!([{"name": "read"}]));
    host.say(&call_tool(2, "write_all")).await;
    assert_eq!(host.hear().await["error"]["code"], -32602);
    assert!(upstream.is_quiet());
}
