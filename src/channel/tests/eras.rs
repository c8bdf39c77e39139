//! Servers that end during the discovery of their revisions.

use super::super::{Body, Response};
use super::*;
use crate::clock;
use crate::protocol::headers::names;

/// Sends a request of a revision without sessions. Returns the status of its response.
fn modern(setup: &Setup) -> JoinHandle<u16> {
    let sending = responded(setup);
    tokio::spawn(async move { sending.await.expect("no panic").status().as_u16() })
}

/// Sends a request of a revision without sessions.
fn responded(setup: &Setup) -> JoinHandle<Response> {
    let (channels, caller) = (setup.channels.clone(), Arc::new(caller_of(1)));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}).to_string();
    let mut headers = headers::Lines::default();
    headers.push(&names::MCP_PROTOCOL_VERSION, &http::HeaderValue::from_static("2026-07-28"));
    headers.push(&names::MCP_METHOD, &http::HeaderValue::from_static("tools/list"));
    tokio::spawn(async move {
        let request = Request {
            method: &Method::POST,
            session: None,
            headers: &headers,
            body: &Bytes::from(body),
            stream: None,
            caller: Some(&caller),
            start_kind: StartKind::First,
            on_begin: Box::new(|| {}),
        };
        channels.send(request).await
    })
}

/// Returns the text of the error in a response.
async fn error_text(sending: JoinHandle<Response>) -> String {
    let Body::Whole(Some(body)) = within(sending).await.expect("no panic").into_body() else { panic!("no JSON") };
    let error: Value = serde_json::from_slice(&body).expect("JSON");
    error["error"]["message"].as_str().expect("a text").to_owned()
}

async fn status(sending: JoinHandle<u16>) -> u16 {
    within(sending).await.expect("no panic")
}

/// Takes the proxy's `server/discover`, and responds with this member.
async fn respond(setup: &mut Setup, name: &str, value: Value) {
    let mut server = setup.server().await;
    let discover = server.message().await;
    assert_eq!(discover["method"], "server/discover");
    server.say(json!({"jsonrpc": "2.0", "id": discover["id"], name: value})).await;
}

/// Takes the proxy's `server/discover`, and ends.
async fn die(setup: &mut Setup) {
    let mut server = setup.server().await;
    assert_eq!(server.message().await["method"], "server/discover");
    server.ended.send_replace(true);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_at_the_question_is_asked_again_later() {
    let mut setup = Setup::new(|_| {});
    let begun = clock::now();
    for pause in [1, 2, 4] {
        let sending = modern(&setup);
        die(&mut setup).await;
        assert_eq!(status(sending).await, 400, "its client falls back to initialize");
        assert!(error_text(responded(&setup)).await.contains("the server ended when it was asked"));
        assert_eq!(status(modern(&setup)).await, 400);
        setup.starts_none();
        clock::sleep(Duration::from_secs(pause)).await;
    }
    assert!((clock::now() - begun).as_secs() < 15);
    let sending = modern(&setup);
    let error = json!({"code": -32601, "message": "no such method"});
    respond(&mut setup, "error", error).await;
    assert_eq!(status(sending).await, 400);
    // This server has named its era.
    clock::sleep(Duration::from_secs(3600)).await;
    assert!(error_text(responded(&setup)).await.contains("the server has sessions"));
    setup.starts_none();
}

/// Begins a request, and reads `server/discover` and the ping behind it.
async fn pinged(setup: &mut Setup) -> (JoinHandle<u16>, Server, Value, Value) {
    let sending = modern(setup);
    let mut server = setup.server().await;
    let (discover, ping) = (server.message().await, server.message().await);
    assert_eq!((&discover["method"], &ping["method"]), (&json!("server/discover"), &json!("ping")));
    (sending, server, discover, ping)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_up_and_leaves_the_question_counts_as_legacy_soon() {
    type Sign = fn(&Value) -> Value;
    let ping_result = |ping: &Value| json!({"jsonrpc": "2.0", "id": ping["id"], "result": {}});
    let notice = |_: &Value| json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
    let refusal =
        |ping: &Value| json!({"jsonrpc": "2.0", "id": ping["id"], "error": {"code": -32601, "message": "no"}});
    let cases: [(Sign, u64); 3] = [(ping_result, 7), (notice, 7), (refusal, START.as_secs())];
    for (sign, seconds) in cases {
        let mut setup = Setup::new(|_| {});
        let (sending, mut server, _, ping) = pinged(&mut setup).await;
        let begun = clock::now();
        clock::sleep(Duration::from_secs(2)).await;
        server.say(sign(&ping)).await;
        assert_eq!(status(sending).await, 400, "its client falls back to initialize");
        let took = (clock::now() - begun).as_secs();
        assert!((seconds.saturating_sub(1)..=seconds).contains(&took), "{took} s, {seconds} expected");
        // The era is known from now on.
        assert_eq!(status(modern(&setup)).await, 400);
        setup.starts_none();
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_response_to_the_question_counts() {
    let mut setup = Setup::new(|_| {});
    let (sending, mut server, discover, ping) = pinged(&mut setup).await;
    server.say(json!({"jsonrpc": "2.0", "id": ping["id"], "result": {}})).await;
    clock::sleep(Duration::from_secs(4)).await;
    let result = json!({"supportedVersions": ["2026-07-28"], "capabilities": {}});
    server.say(json!({"jsonrpc": "2.0", "id": discover["id"], "result": result})).await;
    assert_eq!(server.message().await["method"], "tools/list");
    drop(server);
    within(sending).await.expect("no panic");
}
