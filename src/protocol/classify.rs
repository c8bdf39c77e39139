//! Classification of requests on the endpoint.
//!
//! Owned here: the one decision between forwarding a request as it is and handling it. Absent: the existence of the stream or session
//! that it names, which only the log knows.

use http::{HeaderMap, Method};

use super::dialect::{self, Declared};
use super::error::ErrorCode;
use super::headers::{self, Era, ProtocolVersion, names};
use super::ids::EventId;
use super::jsonrpc::{self, Body, Message, PeekError, RequestId};

/// Methods whose response must reach the client with its own status: nothing is committed before it.
const OPENING: [&str; 2] = ["initialize", "server/discover"];
/// The modern request whose stream never pauses its upstream: notifications for as long as the client listens.
const LISTEN: &str = "subscriptions/listen";

/// Default limit for the messages of an array. Clients of the only revision that has arrays send a handful.
pub const BATCH_MAX: usize = 100;

/// The handling of a request.
#[derive(Debug)]
pub enum Route {
    /// Proxied as it is.
    Forward,
    /// A POST that carries requests: a request stream.
    Call(Call),
    /// A POST of responses and notifications alone: the client's responses.
    ClientResponses(Vec<Message>),
    /// A POST with a request of a dialect, which the proxy handles itself.
    Dialect(Dialect),
    /// A GET that resumes a stream.
    Resume(EventId),
    /// A GET for the session's standalone stream.
    Standalone,
    /// The end of a session.
    Delete,
    /// Refused with this error.
    Refuse(ErrorCode),
}

/// The facts about a POST that carries requests.
#[derive(Debug)]
pub struct Call {
    /// The ids of its requests, in order.
    pub ids: Vec<RequestId>,
    /// True if it is an array.
    pub is_batch: bool,
    /// The protocol revision: that of the request, else that of its session, else the default.
    pub version: ProtocolVersion,
    /// True if it holds `initialize`, alone or in a batch.
    pub has_initialize: bool,
    /// True if it opens a session or discovers the server.
    pub is_opening: bool,
    /// True if it holds `subscriptions/listen`.
    pub has_listen: bool,
    /// True if it holds `tools/call`.
    pub has_tool_call: bool,
    /// True if it holds `tools/list`.
    pub has_tool_list: bool,
}

/// A request that the proxy handles itself.
#[derive(Debug)]
pub struct Dialect {
    /// The request's id.
    pub id: RequestId,
    /// The dialect's method.
    pub method: dialect::Method,
}

impl Call {
    /// Returns the era of the protocol revision.
    pub fn era(&self) -> Era {
        self.version.era()
    }
}

/// Classifies a GET, DELETE or other request without a body, by its head.
pub fn head(method: &Method, headers: &HeaderMap) -> Route {
    match *method {
        Method::GET => get(headers),
        Method::DELETE => Route::Delete,
        _ => Route::Forward,
    }
}

fn get(headers: &HeaderMap) -> Route {
    if let Some(id) = headers.get(&names::LAST_EVENT_ID) {
        return match EventId::parse(id.as_bytes()) {
            Some(id) => Route::Resume(id),
            None => Route::Refuse(ErrorCode::BadRequest),
        };
    }
    match era_of(headers) {
        // Only a GET that names SSE opens a standalone stream; a browser's does not.
        Era::Legacy if headers::names_sse(headers) => Route::Standalone,
        Era::Legacy | Era::Modern => Route::Forward,
    }
}

/// Returns the era of a head: legacy if it names no revision, and modern if it names one that cannot be read.
fn era_of(headers: &HeaderMap) -> Era {
    match ProtocolVersion::from_headers(headers) {
        Some(version) => version.era(),
        None if headers.contains_key(names::MCP_PROTOCOL_VERSION) => Era::Modern,
        None => Era::Legacy,
    }
}

/// Classifies a POST by its head and JSON body. `session_version` is the revision of its session's record, `enabled` are the dialects of
/// the proxy, and `batch_max` limits the messages of an array.
pub fn post(
    headers: &HeaderMap,
    body: &[u8],
    session_version: Option<&ProtocolVersion>,
    enabled: Declared,
    batch_max: usize,
) -> Route {
    let messages = match jsonrpc::peek_up_to(body, batch_max) {
        Ok(messages) => messages,
        Err(PeekError::TooLong) => return Route::Refuse(ErrorCode::BatchTooLong),
        Err(PeekError::NotJson) => return Route::Refuse(ErrorCode::NotJson),
        Err(PeekError::NotMessage | PeekError::DuplicateKey(_) | PeekError::BadId) => {
            return Route::Refuse(ErrorCode::BadRequest);
        }
    };
    if let Some(route) = dialect(messages.messages(), enabled) {
        return route;
    }
    let ids = request_ids(messages.messages());
    if ids.is_empty() {
        return Route::ClientResponses(match messages {
            Body::Single(message) => vec![message],
            Body::Batch(messages) => messages,
        });
    }
    match version(headers, body, session_version) {
        Some(version) => Route::Call(call(&messages, ids, version)),
        // Header and `_meta` disagree: the server refuses that in its own words.
        None => Route::Forward,
    }
}

/// Returns the route of a POST that holds a message of a dialect. Such a message must be alone and have an id.
fn dialect(messages: &[Message], enabled: Declared) -> Option<Route> {
    let method = messages.iter().find_map(|message| match message {
        Message::Request { method, .. } | Message::Notification { method } => dialect::Method::parse(method, enabled),
        Message::Response { .. } => None,
    })?;
    Some(match messages {
        [Message::Request { id, .. }] => Route::Dialect(Dialect { id: id.clone(), method }),
        [_] => Route::Refuse(ErrorCode::BadRequest),
        _ => Route::Refuse(ErrorCode::NotInBatch),
    })
}

fn call(messages: &Body, ids: Vec<RequestId>, version: ProtocolVersion) -> Call {
    let has = |wanted: &str| {
        messages
            .messages()
            .iter()
            .any(|message| matches!(message, Message::Request { method, .. } if **method == *wanted))
    };
    Call {
        ids,
        is_batch: matches!(messages, Body::Batch(_)),
        version,
        has_initialize: has("initialize"),
        is_opening: OPENING.iter().any(|method| has(method)),
        has_listen: has(LISTEN),
        has_tool_call: has("tools/call"),
        has_tool_list: has("tools/list"),
    }
}

fn request_ids(messages: &[Message]) -> Vec<RequestId> {
    let ids = messages.iter().filter_map(|message| match message {
        Message::Request { id, .. } => Some(id.clone()),
        Message::Notification { .. } | Message::Response { .. } => None,
    });
    ids.collect()
}

/// Returns the protocol revision of a request, or `None` if header and `_meta` name different ones.
fn version(headers: &HeaderMap, body: &[u8], session: Option<&ProtocolVersion>) -> Option<ProtocolVersion> {
    let header = ProtocolVersion::from_headers(headers);
    let Some(meta) = jsonrpc::meta_protocol_version(body) else {
        return Some(header.or_else(|| session.cloned()).unwrap_or(ProtocolVersion::DEFAULT));
    };
    match (header, ProtocolVersion::parse(&meta)) {
        (Some(header), Some(meta)) if header == meta => Some(header),
        (Some(_) | None, Some(_) | None) => None,
    }
}
