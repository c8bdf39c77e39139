//! Requests without sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::json;

use super::super::modern::ATTEMPTS;
use super::super::{Body, Channels, Response};
use super::{Setup, request, within};
use crate::protocol::headers::{Era, Lines, names};
use crate::sync;

/// Servers of the modern era. The first `broken` of them end before they have read a byte.
fn setup(broken: usize) -> Setup {
    let setup = Setup::new(|_| {});
    setup.broken.store(broken, Ordering::Relaxed);
    setup.channels.era.set(Era::Modern, None);
    setup
}

/// Sends a request, and counts its beginnings.
async fn send(channels: Arc<Channels>, begun: Arc<AtomicUsize>) -> Response {
    let body = r#"{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    let body = Bytes::from_static(body.as_bytes());
    let mut headers = Lines::default();
    headers.push(&names::MCP_PROTOCOL_VERSION, &http::HeaderValue::from_static("2026-07-28"));
    headers.push(&names::MCP_METHOD, &http::HeaderValue::from_static("tools/list"));
    let mut request = request(&Method::POST, None, &body, None);
    request.headers = &headers;
    request.on_begin = Box::new(move || {
        begun.fetch_add(1, Ordering::Relaxed);
    });
    within(channels.send(request)).await
}

#[tokio::test]
async fn a_request_that_no_server_has_taken_goes_to_the_next_one() {
    let mut setup = setup(1);
    let begun = Arc::<AtomicUsize>::default();
    let sending = tokio::spawn(send(setup.channels.clone(), begun.clone()));
    let mut second = setup.server().await;
    let id = second.message().await["id"].clone();
    let response = within(sending).await.expect("no panic");
    assert_eq!((response.status(), begun.load(Ordering::Relaxed)), (StatusCode::OK, 1));
    second.say(json!({"jsonrpc": "2.0", "id": id, "result": {}})).await;
    let Body::Events(events) = response.into_body() else { panic!("no events") };
    let seen = within(events.first_message()).await.expect("a message");
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&seen).expect("JSON"),
        json!({"jsonrpc": "2.0", "id": "a", "result": {}})
    );
}

#[tokio::test]
async fn a_request_that_no_server_takes_has_not_run() {
    let setup = setup(2 * ATTEMPTS);
    let begun = Arc::<AtomicUsize>::default();
    let response = send(setup.channels.clone(), begun.clone()).await;
    assert_eq!((response.status(), begun.load(Ordering::Relaxed)), (StatusCode::BAD_GATEWAY, 0));
    let Body::Whole(Some(body)) = response.into_body() else { panic!("no JSON") };
    assert!(String::from_utf8_lossy(&body).contains(r#""mayHaveRun":false"#), "{body:?}");
}

#[tokio::test]
async fn a_channel_that_is_not_opened_is_tried_again_by_the_next_request() {
    let setup = setup(0);
    setup.is_missing.store(true, Ordering::Relaxed);
    let response = send(setup.channels.clone(), Arc::default()).await;
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert!(sync::lock(&setup.channels.state).without_sessions.is_empty());
}
