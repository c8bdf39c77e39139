//! Classification of requests on the endpoint.
//!
//! Owned here: the one decision between forwarding a request as it is and handling it. Absent: the
//! existence of the stream or session that it names, which only the log knows.

use std::ops::Range;

use http::{HeaderMap, Method};

use super::dialect::{self, Declared};
use super::error::{ErrorCode, Subject};
use super::headers::{self, Era, ProtocolVersion, names};
use super::ids::EventId;
use super::jsonrpc::{self, Body, Message, MethodName, PeekError, RequestBody, RequestId};
use super::tasks::TaskRequest;

/// Default limit for the messages of an array. Clients of the only revision that has arrays send a
/// handful.
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
    /// A POST with a request that concerns a task, which the proxy or the server has; as a call, it
    /// is the other.
    Task(TaskRequest, Call),
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
    /// The protocol revision of the request, else of its session, else the default.
    pub version: ProtocolVersion,
    /// The method of its request, or `batch` for an array.
    pub method: MethodName,
    /// The place of the text of `params.name` in the classified body, or `None` if it was not seen.
    /// See [`jsonrpc::tool_name_at`].
    pub name: Option<Range<usize>>,
    /// The subject of errors about it.
    pub subject: Subject,
    methods: MethodSet,
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

    /// Returns true if it holds `initialize`, alone or in a batch.
    pub fn has_initialize(&self) -> bool {
        self.methods.has_any(MethodSet::INITIALIZE)
    }

    /// Returns true if it opens a session or discovers the server. Its response must reach the
    /// client with its own status: nothing is committed before it.
    pub fn is_opening(&self) -> bool {
        self.methods.has_any(MethodSet::INITIALIZE.union(MethodSet::DISCOVER))
    }

    /// Returns true if it holds `subscriptions/listen`, whose stream never pauses its upstream:
    /// notifications for as long as the client listens.
    pub fn has_listen(&self) -> bool {
        self.methods.has_any(MethodSet::LISTEN)
    }

    /// Returns true if it holds `tools/call`.
    pub fn has_tool_call(&self) -> bool {
        self.methods.has_any(MethodSet::CALL_TOOL)
    }

    /// Returns true if it changes what the server keeps for the session: its log level or its
    /// subscriptions.
    pub fn changes_session(&self) -> bool {
        self.methods.has_any(MethodSet::CHANGE_SESSION)
    }

    /// Returns true if it holds `tools/list`.
    pub fn has_tool_list(&self) -> bool {
        self.methods.has_any(MethodSet::LIST_TOOLS)
    }
}

/// A set of the methods that the proxy handles in a way of their own.
#[derive(Clone, Copy, Debug)]
struct MethodSet(u8);

impl MethodSet {
    const NONE: Self = Self(0);
    const INITIALIZE: Self = Self(1);
    const DISCOVER: Self = Self(1 << 1);
    const LISTEN: Self = Self(1 << 2);
    const CALL_TOOL: Self = Self(1 << 3);
    const LIST_TOOLS: Self = Self(1 << 4);
    const CHANGE_SESSION: Self = Self(1 << 5);

    /// Returns the methods of the requests among `messages`.
    fn of(messages: &[Message]) -> Self {
        let mut methods = Self::NONE;
        for message in messages {
            if let Message::Request { method, .. } = message {
                methods = methods.union(Self::named(method));
            }
        }
        methods
    }

    fn named(method: &str) -> Self {
        match method {
            "initialize" => Self::INITIALIZE,
            "server/discover" => Self::DISCOVER,
            "subscriptions/listen" => Self::LISTEN,
            "tools/call" => Self::CALL_TOOL,
            "tools/list" => Self::LIST_TOOLS,
            "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => Self::CHANGE_SESSION,
            _ => Self::NONE,
        }
    }

    const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if any method is in both sets.
    fn has_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
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

/// Returns the era of a head: legacy without a revision, and modern with an unreadable one.
fn era_of(headers: &HeaderMap) -> Era {
    match ProtocolVersion::from_headers(headers) {
        Some(version) => version.era(),
        None if headers.contains_key(names::MCP_PROTOCOL_VERSION) => Era::Modern,
        None => Era::Legacy,
    }
}

/// Classifies a POST by its JSON body. `header` is the revision in its head, `session_version` that
/// of its session's record, `enabled` are the dialects of the proxy, and `batch_max` limits the
/// messages of an array.
pub fn post(
    header: Option<&ProtocolVersion>,
    body: &[u8],
    session_version: Option<&ProtocolVersion>,
    enabled: Declared,
    batch_max: usize,
) -> Route {
    let RequestBody { messages, version: meta, name } = match jsonrpc::peek_request(body, batch_max) {
        Ok(peeked) => peeked,
        Err(PeekError::TooLong) => return Route::Refuse(ErrorCode::BatchTooLong),
        Err(PeekError::NotJson) => {
            // What only lenient parsers read is the server's to judge, if it has an envelope.
            return match jsonrpc::readable(body).filter(|readable| readable != body) {
                Some(readable) => post(header, &readable, session_version, enabled, batch_max),
                None => Route::Refuse(ErrorCode::NotJson),
            };
        }
        Err(PeekError::BadId) => {
            return match jsonrpc::notification_with_null_id(body) {
                Some(notification) => Route::ClientResponses(vec![notification]),
                None => Route::Refuse(ErrorCode::BadRequest),
            };
        }
        Err(PeekError::NotMessage | PeekError::DuplicateKey(_)) => return Route::Refuse(ErrorCode::BadRequest),
    };
    if let Some(route) = dialect(messages.messages(), enabled) {
        return route;
    }
    if !messages.messages().iter().any(|message| matches!(message, Message::Request { .. })) {
        return Route::ClientResponses(match messages {
            Body::Single(message) => vec![message],
            Body::Batch(messages) => messages,
        });
    }
    match version(header, meta.as_deref(), session_version) {
        Some(version) => {
            let (methods, is_batch) = (MethodSet::of(messages.messages()), matches!(messages, Body::Batch(_)));
            let (task, subject) = (task_request(&messages, body), Subject::of(messages.messages()));
            let (method, ids) = method_and_ids(messages);
            let call = Call { ids, is_batch, version, method, name, subject, methods };
            match task {
                Some(task) => Route::Task(task, call),
                None => Route::Call(call),
            }
        }
        // Header and `_meta` disagree: the server refuses that in its own words.
        None => Route::Forward,
    }
}

/// Returns the route of a POST that holds a message of a dialect. Such a message must be alone and
/// have an id.
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

/// Returns the request of a body that concerns a task, or `None` for any other. The kind alone
/// decides for the usual methods.
fn task_request(messages: &Body, body: &[u8]) -> Option<TaskRequest> {
    match messages {
        Body::Single(Message::Request { id, method: MethodName::Owned(method) }) => {
            TaskRequest::parse(id, method, body)
        }
        Body::Single(_) | Body::Batch(_) => None,
    }
}

/// Returns the method and the ids of a body's requests, as [`Call`] has them.
fn method_and_ids(messages: Body) -> (MethodName, Vec<RequestId>) {
    const BATCH: MethodName = MethodName::Borrowed("batch");
    let id_of = |message| match message {
        Message::Request { id, .. } => Some(id),
        Message::Notification { .. } | Message::Response { .. } => None,
    };
    match messages {
        Body::Single(Message::Request { id, method }) => (method, vec![id]),
        Body::Single(Message::Notification { .. } | Message::Response { .. }) => (BATCH, Vec::new()),
        Body::Batch(messages) => (BATCH, messages.into_iter().filter_map(id_of).collect()),
    }
}

/// Returns the protocol revision of a request, or `None` if header and `_meta` name different ones.
fn version(
    header: Option<&ProtocolVersion>,
    meta: Option<&str>,
    session: Option<&ProtocolVersion>,
) -> Option<ProtocolVersion> {
    let Some(meta) = meta else {
        return Some(header.or(session).cloned().unwrap_or(ProtocolVersion::DEFAULT));
    };
    match (header, ProtocolVersion::parse(meta)) {
        (Some(header), Some(meta)) if *header == meta => Some(meta),
        (Some(_) | None, Some(_) | None) => None,
    }
}
