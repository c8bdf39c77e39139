//! What a request on the endpoint asks of the proxy.
//!
//! Owned here: the one decision between forwarding a request as it is and taking part in it. Absent: whether the stream or
//! session it names exists, which only the log knows.

use http::{HeaderMap, Method};

use super::dialect::{self, Declared};
use super::error::ErrorCode;
use super::headers::{self, Era, ProtocolVersion, names};
use super::ids::EventId;
use super::jsonrpc::{self, Body, Message, PeekError, RequestId};

/// Methods whose answer the client must see with its own status: nothing is committed before it.
const OPENING: [&str; 2] = ["initialize", "server/discover"];
/// The modern request whose stream never pauses its upstream: notifications for as long as the client listens.
const LISTEN: &str = "subscriptions/listen";

/// How many messages an array may have where nothing else is configured. Clients of the only revision that has arrays send a handful.
pub const BATCH_MAX: usize = 100;

/// What becomes of a request.
#[derive(Debug)]
pub enum Route {
    /// It is none of ours: proxied as it is.
    Forward,
    /// A POST that carries requests: a request stream.
    Call(Call),
    /// A POST of responses and notifications only: the client's answers.
    Answers(Vec<Message>),
    /// A POST with a request of a dialect, which the proxy answers.
    Dialect(Dialect),
    /// A GET that comes back to a stream.
    Resume(EventId),
    /// A GET that wants the session's standalone stream.
    Standalone,
    /// The end of a session.
    Delete,
    /// Refused with this error.
    Refuse(ErrorCode),
}

/// The facts about a POST that carries requests.
#[derive(Debug)]
pub struct Call {
    /// The ids it owes responses for, in order.
    pub ids: Vec<RequestId>,
    /// Whether it came as an array.
    pub batch: bool,
    /// The revision it says it speaks: its own word, else its session's, else the default.
    pub version: ProtocolVersion,
    /// `initialize`, alone or in a batch.
    pub initializes: bool,
    /// It begins a session or discovers the server.
    pub opens: bool,
    /// It is `subscriptions/listen`.
    pub listens: bool,
    /// It is `tools/call`.
    pub calls_tool: bool,
    /// It is `tools/list`.
    pub lists_tools: bool,
}

/// A request that the proxy answers itself.
#[derive(Debug)]
pub struct Dialect {
    /// Its id.
    pub id: RequestId,
    /// What it asks for.
    pub method: dialect::Method,
}

impl Call {
    /// Its era.
    pub fn era(&self) -> Era {
        self.version.era()
    }
}

/// Routes a GET, DELETE or other body-less request by its head alone.
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
    match said_era(headers) {
        // Only a GET that names SSE opens a standalone stream; a browser's does not.
        Era::Legacy if headers::names_sse(headers) => Route::Standalone,
        Era::Legacy | Era::Modern => Route::Forward,
    }
}

/// The era a head speaks: the first where it names no revision, the newest where it names one that cannot be read.
fn said_era(headers: &HeaderMap) -> Era {
    match ProtocolVersion::from_headers(headers) {
        Some(version) => version.era(),
        None if headers.contains_key(names::MCP_PROTOCOL_VERSION) => Era::Modern,
        None => Era::Legacy,
    }
}

/// Routes a POST by its head and JSON body. `session_version` is the revision of its session's record, `spoken` the dialects that
/// the proxy speaks, `longest` how many messages an array may have.
pub fn post(
    headers: &HeaderMap,
    body: &[u8],
    session_version: Option<&ProtocolVersion>,
    spoken: Declared,
    longest: usize,
) -> Route {
    let messages = match jsonrpc::peek_up_to(body, longest) {
        Ok(messages) => messages,
        Err(PeekError::TooLong) => return Route::Refuse(ErrorCode::BatchTooLong),
        Err(PeekError::NotJson) => return Route::Refuse(ErrorCode::NotJson),
        Err(PeekError::NotMessage | PeekError::DuplicateKey(_) | PeekError::BadId) => {
            return Route::Refuse(ErrorCode::BadRequest);
        }
    };
    if let Some(route) = dialect(messages.messages(), spoken) {
        return route;
    }
    let ids = request_ids(messages.messages());
    if ids.is_empty() {
        return Route::Answers(match messages {
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

/// A message of a dialect: alone and with an id, or not at all.
fn dialect(messages: &[Message], spoken: Declared) -> Option<Route> {
    let method = messages.iter().find_map(|message| match message {
        Message::Request { method, .. } | Message::Notification { method } => dialect::Method::parse(method, spoken),
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
        batch: matches!(messages, Body::Batch(_)),
        version,
        initializes: has("initialize"),
        opens: OPENING.iter().any(|method| has(method)),
        listens: has(LISTEN),
        calls_tool: has("tools/call"),
        lists_tools: has("tools/list"),
    }
}

fn request_ids(messages: &[Message]) -> Vec<RequestId> {
    let ids = messages.iter().filter_map(|message| match message {
        Message::Request { id, .. } => Some(id.clone()),
        Message::Notification { .. } | Message::Response { .. } => None,
    });
    ids.collect()
}

/// The revision of a request; `None` where it says two different ones.
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
