//! The probe's own requests, as a client of either era makes them.

use http::header::{ACCEPT, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

use super::exchange::Request;
pub(super) use crate::protocol::era::REVISION as MODERN;
use crate::protocol::headers::{SessionId, names};
use crate::random;

/// The revisions that begin with `initialize` and have Streamable HTTP, latest first.
pub(super) const LEGACY: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

const BOTH_TYPES: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const FOREIGN_ORIGIN: HeaderValue = HeaderValue::from_static("http://mcp-resume-check.invalid");

/// Sender of a request.
#[derive(Clone, Debug)]
pub(super) enum Requester {
    /// A client without a session yet.
    Opening,
    /// A client that was initialized.
    Legacy { revision: String, session: Option<SessionId> },
    /// A client of 2026-07-28.
    Modern,
}

impl Requester {
    /// Returns a request, or a notification without an id.
    pub(super) fn post(&self, id: Option<u64>, method: &str, mut params: Value) -> Request {
        let mut headers = self.headers(BOTH_TYPES);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self, Requester::Modern) {
            insert(&mut headers, names::MCP_METHOD, method);
            if let Some(name) = params["name"].as_str() {
                insert(&mut headers, names::MCP_NAME, name);
            }
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
            meta["io.modelcontextprotocol/clientInfo"] = client_info();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let mut message = json!({ "jsonrpc": "2.0", "method": method });
        if let Some(id) = id {
            message["id"] = id.into();
        }
        if !params.is_null() {
            message["params"] = params;
        }
        Request { id, ..Request::new(Method::POST, headers, Some(message.to_string().into())) }
    }

    /// Returns the response to a request of the server.
    pub(super) fn response(&self, id: &Value, result: Value) -> Request {
        let mut headers = self.headers(BOTH_TYPES);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let message = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        Request::new(Method::POST, headers, Some(message.to_string().into()))
    }

    /// Returns a GET on the endpoint: for the standalone stream, or for the events after
    /// `last_event_id`.
    pub(super) fn get(&self, last_event_id: Option<&[u8]>) -> Request {
        let mut headers = self.headers(EVENTS);
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            headers.insert(names::LAST_EVENT_ID, id);
        }
        Request::new(Method::GET, headers, None)
    }

    /// Returns the client with the name of a session that no server has opened, or `None` without a
    /// session.
    pub(super) fn in_unknown_session(&self) -> Option<Self> {
        match self {
            Requester::Legacy { revision, session: Some(_) } => {
                let name = format!("mcp-resume-check-{:016x}", u64::from_be_bytes(random::bytes()));
                Some(Requester::Legacy { revision: revision.clone(), session: SessionId::parse(&name) })
            }
            Requester::Legacy { session: None, .. } | Requester::Opening | Requester::Modern => None,
        }
    }

    /// Returns the request that ends the session, or `None` without a session.
    pub(super) fn delete(&self) -> Option<Request> {
        match self {
            Requester::Legacy { session: Some(_), .. } => {
                Some(Request::new(Method::DELETE, self.headers(BOTH_TYPES), None))
            }
            _ => None,
        }
    }

    fn headers(&self, accept: HeaderValue) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept);
        match self {
            Requester::Opening => {}
            Requester::Modern => insert(&mut headers, names::MCP_PROTOCOL_VERSION, MODERN),
            Requester::Legacy { revision, session } => {
                // The first revision has no such header.
                if revision != LEGACY[2] {
                    insert(&mut headers, names::MCP_PROTOCOL_VERSION, revision);
                }
                if let Some(session) = session {
                    insert(&mut headers, names::MCP_SESSION_ID, session.as_str());
                }
            }
        }
        headers
    }
}

/// Returns `initialize` at this revision.
pub(super) fn initialize(revision: &str) -> Request {
    let params = json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": client_info() });
    Requester::Opening.post(Some(1), "initialize", params)
}

/// Returns a request for another path of the origin.
pub(super) fn page(path: &str, accept_events: bool) -> Request {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, if accept_events { EVENTS } else { HeaderValue::from_static("application/json") });
    Request { path: Some(path.to_owned()), ..Request::new(Method::GET, headers, None) }
}

/// Returns the request as a page of another origin would make it.
pub(super) fn from_foreign_origin(mut request: Request) -> Request {
    request.headers.insert(ORIGIN, FOREIGN_ORIGIN);
    request
}

fn client_info() -> Value {
    json!({ "name": "mcp-resume check", "version": env!("CARGO_PKG_VERSION") })
}

/// Inserts a header; an invalid value is left out, so that the server judges the request without
/// it.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
