//! Requests of the proxy's own, in the name of a call.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};

use super::Template;
use crate::protocol::jsonrpc::{self, RequestId};

/// A JSON POST in the name of a call: with its credentials and its session.
pub(super) fn post(call: &Template, body: Vec<u8>) -> Template {
    let mut headers = call.own_headers();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    call.beside(Method::POST, &headers, body.into())
}

/// The notification that cancels a request whose result no client waits for any more.
pub(super) fn cancelled(id: &RequestId) -> Vec<u8> {
    let head = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#;
    format!("{head}{},\"reason\":\"the call was given up\"}}}}", id.to_json()).into_bytes()
}

/// The error a server gets that asks something of a client which takes no stream.
pub(super) fn refusal(id: &RequestId) -> Vec<u8> {
    const METHOD_NOT_FOUND: i64 = -32601;
    let why = "this client takes JSON answers only and can be asked nothing";
    jsonrpc::error_message(Some(id), METHOD_NOT_FOUND, why, serde_json::json!({ "fault": "client" }))
}

/// What a client that can read log messages is told of a gap.
pub fn gap_warning() -> Vec<u8> {
    let text = "messages of this stream were lost";
    let params = serde_json::json!({ "level": "warning", "logger": "mcp-resume", "data": text });
    let message = serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params });
    message.to_string().into_bytes()
}
