//! Answers of something else than the server: portals, edges, other origins.

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;

use super::host::*;
use super::support::*;

const WARNING: &str = "; the tool may have run: check whether it did before you call it again";

fn page(status: u16) -> String {
    let page = "<html>please sign in</html>";
    let head = format!("HTTP/1.1 {status} X\r\ncontent-type: text/html; charset=utf-8\r\n");
    format!("{head}content-length: {}\r\n\r\n{page}", page.len())
}

#[tokio::test]
async fn a_page_for_a_call_is_an_error_with_the_origin() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    for (id, status) in [(1, 200), (2, 403), (3, 404), (4, 511), (5, 502)] {
        host.say(&call(id)).await;
        upstream.expect("tools/call").await.whole(page(status)).await;
        let answer = host.hear().await;
        assert!(error_of(&answer).ends_with(WARNING) && error_of(&answer).contains(&status.to_string()), "{answer}");
        assert_eq!(answer["error"]["data"]["origin"], format!("http://{}", upstream.addr()));
        assert!(!answer.to_string().contains("sign in"));
    }
    // The session was not given up.
    host.say(&call(6)).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-session-id"), Some("s-1"));
    call.json(200, content(6, "ran")).await;
    assert_eq!(text_of(&host.hear().await), "ran");
}

#[tokio::test]
async fn requests_without_effects_are_sent_again_after_a_page() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&request(1, "tools/list")).await;
    for status in [200, 404] {
        upstream.expect("tools/list").await.whole(page(status)).await;
    }
    upstream.expect("tools/list").await.status_with(302, "location: https://portal.example/\r\n").await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    assert_eq!(host.hear().await["result"], json!({"tools": []}));
}

#[tokio::test]
async fn a_notification_is_sent_again_after_a_page() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#).await;
    upstream.expect("notifications/roots/list_changed").await.whole(page(200)).await;
    upstream.expect("notifications/roots/list_changed").await.status(202).await;
}

#[tokio::test]
async fn a_call_is_sent_again_after_plain_http_was_redirected_to_another_host() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    for status in [302, 307] {
        upstream.expect("tools/call").await.status_with(status, "location: http://portal.example/in?a=b\r\n").await;
    }
    upstream.expect("tools/call").await.json(200, content(1, "ran once")).await;
    assert_eq!(text_of(&host.hear().await), "ran once");
}

#[tokio::test]
async fn a_redirect_to_another_port_of_the_host_is_refused_in_the_session_too() {
    let mut upstream = Upstream::start().await;
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("location: http://{}/mcp\r\n", other.local_addr().unwrap());
    let mut host = Host::open(&mut upstream).await;
    for (id, status) in [(1, 307), (2, 301)] {
        host.say(&call(id)).await;
        upstream.expect("tools/call").await.status_with(status, &place).await;
        let answer = host.hear().await;
        let data = &answer["error"]["data"];
        assert_eq!((&data["error"], &data["mayHaveRun"]), (&json!("upstream_redirect"), &json!(false)), "{answer}");
        assert_eq!(data["origin"], format!("http://{}", other.local_addr().unwrap()));
    }
    let refused = tokio::time::timeout(Duration::from_millis(50), other.accept()).await;
    assert!(refused.is_err() && upstream.is_quiet(), "nothing is sent there, or again");
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed_with_the_credentials() {
    let mut upstream = Upstream::start().await;
    let headers = vec!["Authorization: Bearer mine".to_owned()];
    let mut host = Host::start(mcp_resume::connect::Options { headers, ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    upstream.expect("initialize").await.status_with(308, "location: /v2/mcp\r\n").await;
    let call = upstream.expect("initialize").await;
    assert_eq!((&*call.target, call.header("authorization")), ("/v2/mcp", Some("Bearer mine")));
    call.json(200, handshake(V2025_11)).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
}

#[tokio::test]
async fn a_redirect_that_changes_the_method_is_an_error_with_the_origin() {
    for status in [301, 302, 303] {
        let mut upstream = Upstream::start().await;
        let mut host = Host::before(&upstream.url());
        host.say(&initialize(V2025_11)).await;
        upstream.expect("initialize").await.status_with(status, "location: /v2/mcp\r\n").await;
        let answer = host.hear().await;
        assert!(error_of(&answer).contains(&status.to_string()), "{answer}");
        assert_eq!(answer["error"]["data"]["origin"], format!("http://{}", upstream.addr()));
    }
}

#[tokio::test]
async fn a_page_of_a_server_that_was_never_reached_is_the_answer_to_initialize() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    // The core asks for the other transports first.
    loop {
        let call = upstream.next().await;
        let is_last = call.rpc_method() == "GET";
        call.whole(page(404)).await;
        if is_last {
            break;
        }
    }
    let answer = host.hear().await;
    assert!(error_of(&answer).contains("404"), "{answer}");
    assert_eq!(answer["error"]["data"]["origin"], format!("http://{}", upstream.addr()));
}

#[tokio::test]
async fn a_known_server_is_awaited_behind_a_portal() {
    let mut upstream = Upstream::start().await;
    let folder = std::env::temp_dir().join(format!("mcp-resume-strangers-{}", std::process::id()));
    let options = || mcp_resume::connect::Options { memory: Some(folder.clone()), ..options(&upstream.url()) };
    let (first, second) = (options(), options());
    let mut host = Host::start(first);
    host.initialize(&mut upstream).await;
    host.close_input();
    upstream.expect("DELETE").await.status(200).await;
    host.end().await;
    let mut host = Host::start(second);
    host.say(&initialize(V2025_11)).await;
    upstream.expect("initialize").await.whole(page(511)).await;
    upstream.expect("initialize").await.whole(page(200)).await;
    upstream.expect("initialize").await.status_with(302, "location: https://portal.example/\r\n").await;
    upstream.expect("initialize").await.json_with(200, "mcp-session-id: s-2\r\n", handshake(V2025_11)).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_resumed_stream_waits_behind_a_portal() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    sse.bytes("id: e-1\ndata:\n\n").await;
    sse.reset().await;
    upstream.expect("GET").await.whole(page(200)).await;
    upstream.expect("GET").await.status_with(302, "location: http://portal.example/\r\n").await;
    let again = upstream.expect("GET").await;
    assert_eq!(again.header("last-event-id"), Some("e-1"));
    again.sse().await.finish(content(1, "whole")).await;
    assert_eq!(text_of(&host.hear().await), "whole");
}
