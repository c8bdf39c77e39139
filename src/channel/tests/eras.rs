//! Servers that end during the discovery of their revisions.

use super::*;
use crate::clock;
use crate::protocol::headers::names;

/// Sends a request of a revision without sessions. Returns the status of its response.
fn modern(setup: &Setup) -> JoinHandle<u16> {
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
        channels.send(request).await.status().as_u16()
    })
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
    assert_eq!(status(modern(&setup)).await, 400);
    setup.starts_none();
}
