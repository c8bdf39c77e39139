//! Lists after a session was opened again: a change is announced only if there is one.

use serde_json::{Value, json};

use crate::revival::{begin_while_listening, complete, listen, ready};
use crate::support::*;

const WARNING: &str = "notifications/message";
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

fn request(id: &str, method: &str, cursor: Option<&str>) -> String {
    let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// Answers a request for a page.
async fn give(call: Call, page: Page) {
    let id = call.json_body()["id"].to_string();
    match page {
        Page::Json(result) => call.json(200, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await,
        Page::Marked(result) => {
            call.json(200, format!("\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")).await
        }
        Page::Array(result) => call.json(200, format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":{result}}}]"#)).await,
        Page::Bytes(result) => {
            let message = [format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#).as_bytes(), result, b"}"].concat();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                message.len()
            );
            call.whole([head.as_bytes(), &message].concat()).await;
        }
        Page::Refused(body) => call.json(400, body).await,
        Page::Sse(result) => {
            let sse = call.sse().await;
            sse.event(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#).await;
            sse.finish(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
        }
        Page::Error => {
            let error = r#"{"code":-32602,"message":"no"}"#;
            call.json(200, format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)).await;
        }
        Page::Status(status) => call.status(status).await,
        Page::Broken => call.reset().await,
    }
}

#[derive(Clone, Copy)]
enum Page {
    Json(&'static str),
    /// Behind a byte order mark.
    Marked(&'static str),
    Array(&'static str),
    Bytes(&'static [u8]),
    /// A body of status 400.
    Refused(&'static str),
    Sse(&'static str),
    Error,
    Status(u16),
    Broken,
}

const ONE: &str = r#"{"tools":[{"name":"a","inputSchema":{"type":"object","x":[1,2]}}]}"#;
const ONE_AGAIN: &str = r#"{ "_meta":{"at":2}, "tools" : [{"inputSchema":{"x":[1,2],"type":"object"},"name":"a"}]}"#;
/// A list that only lenient parsers read.
const INFINITE: &str = r#"{"tools":[{"name":"a","inputSchema":{"type":"object","x":[-Infinity,NaN]}}]}"#;
const INVALID: &[u8] = b"{\"tools\":[{\"name\":\"a\",\"description\":\"\xff\"}]}";
const FIRST: &str = r#"{"tools":[{"name":"a"}],"nextCursor":"2"}"#;
const SECOND: &str = r#"{"tools":[{"name":"b"}]}"#;
const OTHER: &str = r#"{"tools":[{"name":"c"}]}"#;

/// A client reads `before`, the session is opened again, and the proxy reads `after`. Returns the
/// methods of the messages that the client gets on its standalone stream.
async fn announced(before: &[(Option<&str>, Page)], after: &[(Option<&str>, Page)]) -> Vec<Value> {
    let (mut upstream, proxy, session) = ready().await;
    for (number, (cursor, page)) in before.iter().enumerate() {
        let id = format!("list {number}");
        let pending = session.post(request(&id, "tools/list", *cursor)).start(proxy.addr).await;
        let call = upstream.expect("tools/list").await;
        assert_eq!(call.header("mcp-session-id"), Some("s-1"));
        give(call, *page).await;
        let mut response = pending.response().await;
        if response.is_sse() {
            response.events().await;
        } else {
            response.try_body().await;
        }
    }
    let (sse, mut own) = listen(&mut upstream, &proxy, &session).await;
    let (pending, sse) = begin_while_listening(&mut upstream, &proxy, &session, sse).await;
    complete(&mut upstream, "s-2").await;
    // The call does not wait for the lists, which are read beside it.
    let mut has_answered = false;
    let mut pages = after.iter();
    let mut next = pages.next();
    while next.is_some() || !has_answered {
        let call = upstream.next().await;
        let body = call.json_body();
        assert_eq!(call.header("mcp-session-id"), Some("s-2"));
        if body["method"] == "tools/call" {
            call.json(200, result(1)).await;
            has_answered = true;
            continue;
        }
        let (cursor, page) = next.expect("a page that the client has read");
        assert_eq!((&body["method"], body["params"]["cursor"].as_str()), (&json!("tools/list"), *cursor));
        give(call, *page).await;
        next = pages.next();
    }
    assert_eq!(pending.response().await.status, 200);
    let mut methods = Vec::new();
    while methods.last() != Some(&json!(WARNING)) {
        methods.push(own.event().await.json()["method"].clone());
    }
    // Nothing comes behind the warning.
    sse.event(progress(1)).await;
    assert_eq!(own.event().await.bytes(), progress(1).as_bytes());
    assert!(upstream.is_quiet());
    methods
}

#[tokio::test]
async fn lists_that_are_the_same_are_not_announced() {
    let both = [(None, Page::Json(FIRST)), (Some("2"), Page::Json(SECOND))];
    for (before, after) in [
        (&[(None, Page::Json(ONE))][..], &[(None, Page::Json(ONE_AGAIN))][..]),
        (&[(None, Page::Sse(ONE))], &[(None, Page::Json(ONE))]),
        (&[(None, Page::Json(ONE))], &[(None, Page::Sse(ONE_AGAIN))]),
        (&both, &both),
        // The client has read the list anew.
        (&[(None, Page::Json(ONE)), (None, Page::Json(OTHER))], &[(None, Page::Json(OTHER))]),
        (&[(None, Page::Error)], &[]),
        (&[(None, Page::Marked(ONE))], &[(None, Page::Json(ONE_AGAIN))]),
        (&[(None, Page::Json(ONE))], &[(None, Page::Marked(ONE_AGAIN))]),
        (&[(None, Page::Json(INFINITE))], &[(None, Page::Marked(INFINITE))]),
        (&[(None, Page::Sse(INFINITE))], &[(None, Page::Json(INFINITE))]),
        (&[(None, Page::Bytes(INVALID))], &[(None, Page::Bytes(INVALID))]),
        // The client has read no list.
        (&[(None, Page::Refused("<html>"))], &[]),
        (&[(None, Page::Refused(""))], &[]),
        (&[(None, Page::Refused("[{}]"))], &[]),
        (&[], &[]),
    ] {
        assert_eq!(announced(before, after).await, [WARNING]);
    }
}

#[tokio::test]
async fn a_list_that_differs_or_cannot_be_read_is_announced() {
    let both = [(None, Page::Json(FIRST)), (Some("2"), Page::Json(SECOND))];
    for (before, after) in [
        (&[(None, Page::Json(ONE))][..], &[(None, Page::Json(OTHER))][..]),
        (&[(None, Page::Sse(ONE))], &[(None, Page::Sse(OTHER))]),
        (&[(None, Page::Marked(ONE))], &[(None, Page::Marked(OTHER))]),
        (&[(None, Page::Json(INFINITE))], &[(None, Page::Json(ONE))]),
        (&[(None, Page::Sse(INFINITE))], &[(None, Page::Sse(ONE))]),
        (&[(None, Page::Bytes(INVALID))], &[(None, Page::Json(ONE))]),
        // An array cannot be compared, so it is not read again.
        (&[(None, Page::Array(ONE))], &[]),
        (&[(None, Page::Json(ONE))], &[(None, Page::Error)]),
        (&[(None, Page::Json(ONE))], &[(None, Page::Status(404))]),
        (&[(None, Page::Json(ONE))], &[(None, Page::Broken)]),
        (&both, &[(None, Page::Json(FIRST)), (Some("2"), Page::Json(OTHER))]),
        // One page that differs is enough.
        (&both, &[(None, Page::Json(OTHER))]),
        (&both, &[(None, Page::Json(FIRST)), (Some("2"), Page::Error)]),
    ] {
        assert_eq!(announced(before, after).await, [TOOLS_CHANGED, WARNING]);
    }
}

#[tokio::test]
async fn a_list_whose_changes_the_server_does_not_announce_is_not_read() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(request("list", "resources/list", None)).start(proxy.addr).await;
    let body = r#"{"jsonrpc":"2.0","id":"list","result":{"resources":[]}}"#;
    upstream.expect("resources/list").await.json(200, body).await;
    assert_eq!(pending.response().await.body().await, body.as_bytes());
    let (sse, mut own) = listen(&mut upstream, &proxy, &session).await;
    let (pending, _sse) = begin_while_listening(&mut upstream, &proxy, &session, sse).await;
    complete(&mut upstream, "s-2").await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(own.event().await.json()["method"], WARNING);
    assert!(upstream.is_quiet());
}
