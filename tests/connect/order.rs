//! The order of the host's messages.

use std::time::{Duration, Instant};

use super::host::*;
use super::support::*;

#[tokio::test]
async fn a_request_waits_until_initialized_was_answered() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    host.say(&request(1, "tools/list")).await;
    upstream.expect("GET").await.status(405).await;
    let initialized = upstream.expect("notifications/initialized").await;
    assert!(host.hears_nothing_for(Duration::from_millis(300)).await);
    assert!(upstream.is_quiet());
    initialized.status(202).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    assert_eq!(host.hear().await["id"], 1);
}

#[tokio::test]
async fn a_response_of_the_host_waits_for_nothing() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    let get = upstream.expect("GET").await.sse().await;
    // The server asks in its handler of `initialized`.
    let initialized = upstream.expect("notifications/initialized").await;
    let began = Instant::now();
    get.event(r#"{"jsonrpc":"2.0","id":"r","method":"roots/list"}"#).await;
    assert_eq!(host.hear().await["id"], "r");
    host.say(r#"{"jsonrpc":"2.0","id":"r","result":{"roots":[]}}"#).await;
    upstream.expect("response").await.status(202).await;
    initialized.status(202).await;
    host.say(&request(1, "tools/list")).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    assert_eq!(host.hear().await["id"], 1);
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_request_that_waits_and_is_cancelled_is_never_sent() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.initialize(&mut upstream).await;
    host.say(&call(1)).await;
    host.say(&cancel(1)).await;
    host.say(&initialized()).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    host.say(&request(2, "tools/list")).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}"#).await;
    assert_eq!(host.hear().await["id"], 2);
}

#[tokio::test]
async fn notifications_of_the_server_wait_for_initialized() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    let sse = upstream.expect("initialize").await.sse_with("mcp-session-id: s-1\r\n").await;
    sse.event(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#).await;
    sse.finish(handshake(V2025_11)).await;
    assert_eq!(host.hear().await["id"], 0);
    assert!(host.hears_nothing_for(Duration::from_millis(200)).await);
    host.say(&initialized()).await;
    assert_eq!(host.hear().await["method"], "notifications/message");
}

#[tokio::test]
async fn the_get_stream_is_asked_for_again_after_409() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    upstream.expect("GET").await.status(409).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    let get = upstream.expect("GET").await;
    host.say(&request(1, "tools/list")).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    assert_eq!(host.hear().await["id"], 1);
    let sse = get.sse().await;
    sse.event(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
    assert_eq!(host.hear().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn a_change_of_lists_as_the_proxy_writes_it_follows_the_running_call() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    let get = upstream.expect("GET").await.sse().await;
    upstream.expect("notifications/initialized").await.status(202).await;
    host.say(&call(1)).await;
    let running = upstream.expect("tools/call").await.sse().await;
    get.event(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
    assert!(host.hears_nothing_for(Duration::from_millis(300)).await);
    running.finish(content(1, "first")).await;
    assert_eq!(text_of(&host.hear().await), "first");
    assert_eq!(host.hear().await["method"], "notifications/tools/list_changed");
}
