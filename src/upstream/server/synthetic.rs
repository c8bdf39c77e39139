//! Requests that the proxy makes itself, with a caller's credentials.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde_json::Value;

use super::request::Template;
use crate::protocol::era;
use crate::protocol::headers::names;
use crate::protocol::jsonrpc::{RequestId, ServerFacts, code, response};
use crate::random;

/// Media types that a request of the proxy's own accepts.
pub(in crate::upstream) const BOTH_TYPES: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// Returns a JSON POST with the credentials and the session of a call.
pub(in crate::upstream) fn post(call: &Template, body: Vec<u8>) -> Template {
    let mut headers = call.own_headers();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    call.beside(Method::POST, &headers, body.into())
}

/// Returns the notification that cancels a request without a waiting client.
pub(in crate::upstream) fn cancelled(id: &RequestId) -> Vec<u8> {
    let head = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#;
    format!("{head}{},\"reason\":\"the call was given up\"}}}}", id.to_json()).into_bytes()
}

/// Returns an ID for a request of the proxy's own: an ID is used once in a session, and the client
/// chooses its own.
pub(in crate::upstream) fn own_id() -> String {
    format!("mcp-resume-{:016x}", u64::from_be_bytes(random::bytes()))
}

/// Returns a ping.
pub(in crate::upstream) fn ping() -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, own_id()).into_bytes()
}

/// Returns the error for a server request to a client that takes no stream.
pub(in crate::upstream) fn refusal(id: &RequestId) -> Vec<u8> {
    let text = "this client takes JSON answers only and can be asked nothing";
    response::error_with_data(Some(id), code::METHOD_NOT_FOUND, text, serde_json::json!({ "fault": "client" }))
}

/// Returns the messages for a client whose session was revived: these changes of lists, and a
/// warning if the server declared `logging`.
pub(in crate::upstream) fn revival_messages(server: &ServerFacts, changed_lists: &[&str]) -> Vec<Vec<u8>> {
    let changed = |method| serde_json::json!({ "jsonrpc": "2.0", "method": method }).to_string().into_bytes();
    let mut messages: Vec<_> = changed_lists.iter().map(changed).collect();
    if server.has_logging() {
        messages.push(warning("the server was restarted: all that it kept for this session is gone"));
    }
    messages
}

/// Returns the log message that reports lost events to a client.
pub fn gap_warning() -> Vec<u8> {
    warning("messages of this stream were lost")
}

fn warning(text: &str) -> Vec<u8> {
    let params = serde_json::json!({ "level": "warning", "logger": "mcp-resume", "data": text });
    let message = serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params });
    message.to_string().into_bytes()
}

/// Returns a `server/discover` request with the credentials of `call`, at this revision or the
/// first of its era.
pub(in crate::upstream) fn discover_request(call: &Template, version: Option<String>) -> Template {
    discover_request_as(call, version, None, None)
}

pub(in crate::upstream) fn discover_request_as(
    call: &Template,
    version: Option<String>,
    client: Option<Value>,
    capabilities: Option<Value>,
) -> Template {
    let version = version.as_deref().unwrap_or(era::REVISION);
    let discover = era::discover(own_id().into(), version, client, capabilities);
    let version = HeaderValue::from_str(version).unwrap_or(HeaderValue::from_static(era::REVISION));
    post(call, discover.into_bytes())
        .with(names::MCP_PROTOCOL_VERSION, version)
        .with(names::MCP_METHOD, HeaderValue::from_static("server/discover"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/added-messages.md");

    /// Returns the message as the page has it, with `…` in the place of `id`.
    fn shown(message: Vec<u8>, id: &str) -> String {
        let message = String::from_utf8(message).unwrap();
        format!("\n{}\n", message.replace(&format!(":{id},"), ":…,"))
    }

    #[test]
    fn the_page_of_added_messages_has_their_bytes() {
        let id = RequestId::Number("7".into());
        for message in [response::empty(&id), refusal(&id), cancelled(&id), gap_warning()] {
            let shown = shown(message, "7");
            assert!(PAGE.contains(&shown), "docs/added-messages.md has no line {shown}");
        }
        let ping = String::from_utf8(ping()).unwrap();
        let (before, rest) = ping.split_once("mcp-resume-").unwrap();
        let (id, after) = rest.split_at(16);
        assert!(id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
        assert!(PAGE.contains(&format!("\n{before}ID{after}\n")), "{ping}");
    }
}
