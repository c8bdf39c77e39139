//! Requests to the server: requests of clients in their sessions, with the headers of 2026-07-28.

use http::HeaderValue;

use crate::protocol::bridge::legacy_clients as bridge;
use crate::protocol::channel::envelope;
use crate::protocol::headers::names;
use crate::protocol::jsonrpc::RequestId;
use crate::upstream::server::request::Template;

/// Request of a client in a session.
#[derive(Clone)]
pub(super) struct ClientRequest {
    pub(super) template: Template,
    pub(super) id: RequestId,
    pub(super) method: String,
}

/// Returns a client's request with the headers of 2026-07-28 and the caller's own headers.
pub(super) fn modern(template: &Template, method: &str) -> Template {
    let mut headers = template.own_headers();
    headers.remove(names::MCP_SESSION_ID);
    headers.remove(names::LAST_EVENT_ID);
    headers.insert(names::MCP_PROTOCOL_VERSION, HeaderValue::from_static(bridge::MODERN));
    if let Ok(method) = HeaderValue::from_str(method) {
        headers.insert(names::MCP_METHOD, method);
    }
    let name = bridge::name_header(template.body(), method);
    if let Some(name) = name.as_deref().and_then(envelope::encoded) {
        headers.insert(names::MCP_NAME, name);
    }
    let body = template.body().clone();
    template.beside(template.method().clone(), &headers, body).for_caller(template.caller().cloned())
}
