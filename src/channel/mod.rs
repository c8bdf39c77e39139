//! MCP servers that are not on Streamable HTTP, as if they were.
//!
//! A server on stdio has one *channel*: JSON-RPC messages in order, both ways, without IDs and without replay. This module is the server that such a
//! one would be on HTTP: it takes a request of the upstream client and returns the response, in the same process and without bytes of HTTP. So
//! everything above it works as for any server. Owned here: sessions and their channels, the response that each message belongs to, the bounds of
//! servers and of their starts. Each session has a channel, and with it a server, of its own. Absent: processes (`child/`), resumption (the event
//! log), sessions whose server has ended (`upstream/revival/` opens them again).
//!
//! | request | response |
//! |---|---|
//! | POST with `initialize`, without a session | JSON, once the server has answered |
//! | POST with other requests | an event stream, once the first byte was written to the server |
//! | POST without requests | 202, once the message waits to be written |
//! | GET | an event stream: the messages that belong to no call |
//! | DELETE | 200; the server is ended |
//!
//! A request that is refused before its first byte gets a status and an error with `mayHaveRun: false`. A session that has no channel gets 404, so that
//! it is opened again.

mod body;
mod connection;
mod limits;
mod link;
mod metrics;
mod pool;
mod session;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tracing::{info, warn};

pub use body::Body;
use connection::Refused;
use limits::Limits;
pub use link::{Link, Open, OpenError, Program, ProgramEnd};
pub use metrics::Metrics;
use metrics::{EndReason, StartOutcome};
pub use pool::Bounds;
use pool::{Admission, Occupant, Starts};
use session::Session;

use crate::event_log::Stream;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::names;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::{clock, random, sync};

/// Interval at which idle sessions are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Called once the first byte of a request was written to its server.
pub type OnBegin = Box<dyn FnOnce() + Send>;

/// A response of the inner server.
pub type Response = http::Response<Body>;

/// Configuration of all channels.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Largest message of a server, in bytes.
    pub message_bytes: usize,
    /// Most bytes that wait to be written to one server.
    pub outgoing_bytes: usize,
    /// Most messages in an array.
    pub batch: usize,
    /// Time without a call after which a server is ended, or `None` for never.
    pub idle: Option<Duration>,
    /// Longest time from a session's `initialize` to its answer.
    pub start: Duration,
    /// Bounds of servers.
    pub bounds: Bounds,
}

/// A request of the upstream client.
pub struct Request<'a> {
    /// The method.
    pub method: &'a Method,
    /// The server's name of the session, or `None` if the request names none.
    pub session: Option<&'a [u8]>,
    /// The body.
    pub body: &'a Bytes,
    /// Stream of the request, or `None` for one without.
    pub stream: Option<&'a Arc<Stream>>,
    /// Told of the beginning of a request.
    pub on_begin: OnBegin,
}

/// All channels of one server. Clones of the `Arc` share them.
pub struct Channels {
    open: Box<dyn Open>,
    settings: Settings,
    limits: Limits,
    /// Runtime of all channels: it outlives those of the workers.
    runtime: Handle,
    state: Mutex<State>,
    /// Notified when a server has ended or became idle.
    room: Notify,
}

#[derive(Default)]
struct State {
    /// Sessions by the names that they were given.
    sessions: HashMap<String, Arc<Session>>,
    /// All sessions whose servers are there, those without a name included.
    servers: HashMap<u64, Arc<Session>>,
    /// Servers that are being started, by a number of their own and with their callers.
    starting: HashMap<u64, usize>,
    starts: Starts,
    next_start: u64,
    is_over: bool,
}

impl Channels {
    /// Creates the channels on the caller's runtime. Opens none.
    pub fn new(open: Box<dyn Open>, settings: Settings, metrics: Arc<Metrics>) -> Arc<Self> {
        let limits = Limits {
            message_bytes: settings.message_bytes,
            response_bytes: settings.message_bytes + 1024 * 1024,
            outgoing_bytes: settings.outgoing_bytes,
            metrics,
        };
        let (runtime, state, room) = (Handle::current(), Mutex::default(), Notify::new());
        let channels = Arc::new(Self { open, settings, limits, runtime, state, room });
        tokio::spawn(Self::sweep(Arc::downgrade(&channels)));
        channels
    }

    /// Returns true if a server can probably be started: its program is found, and the last start did not fail.
    pub fn is_available(&self) -> bool {
        self.open.is_available() && !sync::lock(&self.state).starts.is_failing()
    }

    /// Answers a request. Never fails: each error is a response.
    pub async fn send(self: &Arc<Self>, request: Request<'_>) -> Response {
        match *request.method {
            Method::POST => self.post(request).await,
            Method::GET => match self.session(request.session).map(|session| session.connection.listen()) {
                Some(Ok(events)) => event_stream(events),
                Some(Err(Refused::Listening)) => empty(StatusCode::CONFLICT),
                Some(Err(_)) => refusal(ErrorCode::SessionUnknown, &[]),
                None if request.session.is_none() => empty(StatusCode::METHOD_NOT_ALLOWED),
                None => refusal(ErrorCode::SessionUnknown, &[]),
            },
            Method::DELETE => match self.session(request.session) {
                Some(session) => {
                    session.end(EndReason::Client);
                    empty(StatusCode::OK)
                }
                None => refusal(ErrorCode::SessionUnknown, &[]),
            },
            _ => {
                let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
                response
            }
        }
    }

    /// Ends all servers, and resolves when nothing of them is left: after seven seconds at the latest.
    pub async fn end_all(&self) {
        let servers: Vec<Arc<Session>> = {
            let mut state = sync::lock(&self.state);
            state.is_over = true;
            state.servers.values().cloned().collect()
        };
        for server in servers {
            server.end(EndReason::Shutdown);
        }
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            {
                let state = sync::lock(&self.state);
                if state.servers.is_empty() && state.starting.is_empty() {
                    return;
                }
            }
            room.await;
        }
    }

    /// Returns the session of a name, if it has a channel that works.
    fn session(&self, name: Option<&[u8]>) -> Option<Arc<Session>> {
        let name = std::str::from_utf8(name?).ok()?;
        let session = sync::lock(&self.state).sessions.get(name).cloned()?;
        if session.connection.ending().is_none() { Some(session) } else { None }
    }

    async fn post(self: &Arc<Self>, request: Request<'_>) -> Response {
        let body = request.body;
        if std::str::from_utf8(body).is_err() {
            return refusal(ErrorCode::NotJson, &[]);
        }
        let messages = match jsonrpc::peek_up_to(body, self.settings.batch) {
            Ok(messages) => messages,
            Err(jsonrpc::PeekError::NotJson) => return refusal(ErrorCode::NotJson, &[]),
            Err(jsonrpc::PeekError::TooLong) => return refusal(ErrorCode::BatchTooLong, &[]),
            Err(_) => return refusal(ErrorCode::BadRequest, &[]),
        };
        let messages = messages.messages();
        let ids: Vec<RequestId> = messages.iter().filter_map(request_id).cloned().collect();
        if request.session.is_none() {
            return match messages {
                [Message::Request { method, .. }] if method == "initialize" => self.initialize(messages, request).await,
                _ => refusal(ErrorCode::BadRequest, &ids),
            };
        }
        let Some(session) = self.session(request.session) else { return refusal(ErrorCode::SessionUnknown, &ids) };
        if ids.is_empty() {
            return match session.connection.post(messages, body) {
                Ok(()) => empty(StatusCode::ACCEPTED),
                Err(refused) => refusal(code_of(refused), &ids),
            };
        }
        match session.connection.call(messages, body, request.stream.cloned(), request.on_begin) {
            Ok(mut waiting) => {
                if waiting.begun().await {
                    event_stream(waiting.events)
                } else {
                    // Nothing of the request has reached the server.
                    refusal(ErrorCode::SessionUnknown, &ids)
                }
            }
            Err(refused) => refusal(code_of(refused), &ids),
        }
    }

    // ── the start of a session ──────────────────────────────────────────────────────────────────────────────────────

    async fn initialize(self: &Arc<Self>, messages: &[Message], request: Request<'_>) -> Response {
        let ids: Vec<RequestId> = messages.iter().filter_map(request_id).cloned().collect();
        let caller = request.stream.map_or(0, |stream| Arc::as_ptr(stream.quota()).addr());
        let (answer, answered) = oneshot::channel();
        let start = Start {
            channels: self.clone(),
            caller,
            messages: messages.to_vec(),
            body: request.body.clone(),
            stream: request.stream.cloned(),
            on_begin: request.on_begin,
        };
        // On the runtime of all channels, whatever becomes of the request.
        self.runtime.spawn(start.run(answer));
        let outcome = answered.await.unwrap_or_else(|_| Err(Failed::of(ErrorCode::ServerFailed, String::new())));
        match outcome {
            Ok(Started { body, name }) => {
                let mut response = json(StatusCode::OK, body);
                if let Some(name) = name.and_then(|name| HeaderValue::from_str(&name).ok()) {
                    response.headers_mut().insert(names::MCP_SESSION_ID, name);
                }
                response
            }
            Err(Failed { code, detail }) => refusal_about(code, &detail, &ids),
        }
    }

    /// Waits until a server may be started for the caller.
    async fn admit(&self, caller: usize) -> Admitted<'_> {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            let admission = {
                let mut state = sync::lock(&self.state);
                let servers = state.occupants();
                let admission = state.starts.admit(&self.settings.bounds, &servers, caller, clock::now());
                if let Admission::Start | Admission::InPlaceOf(_) = admission {
                    state.next_start += 1;
                    let number = state.next_start;
                    state.starting.insert(number, caller);
                    if let Admission::InPlaceOf(victim) = admission
                        && let Some(victim) = state.servers.get(&victim)
                    {
                        victim.end(EndReason::Room);
                    }
                    return Admitted { channels: self, number };
                }
                admission
            };
            match admission {
                Admission::WaitUntil(until) => clock::sleep(until.saturating_duration_since(clock::now())).await,
                _ => room.await,
            }
        }
    }

    /// Gives a session its name.
    fn name(&self, session: &Arc<Session>) -> Option<String> {
        let name: String = random::bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut state = sync::lock(&self.state);
        if state.is_over || session.connection.ending().is_some() {
            return None;
        }
        state.sessions.insert(name.clone(), session.clone());
        Some(name)
    }

    fn forget_name(&self, session: &Session) {
        sync::lock(&self.state).sessions.retain(|_, other| other.number != session.number);
    }

    fn forget(&self, session: &Session) {
        sync::lock(&self.state).servers.remove(&session.number);
        self.room.notify_waiters();
    }

    /// Ends the sessions that are idle for too long.
    async fn sweep(channels: std::sync::Weak<Self>) {
        loop {
            clock::sleep(SWEEP_INTERVAL).await;
            let Some(channels) = channels.upgrade() else { return };
            let Some(idle) = channels.settings.idle else { continue };
            let now = clock::now();
            let servers: Vec<Arc<Session>> = sync::lock(&channels.state).servers.values().cloned().collect();
            for server in servers {
                if server.idle_since(now).is_some_and(|since| now.saturating_duration_since(since) >= idle) {
                    server.end(EndReason::Idle);
                }
            }
            channels.room.notify_waiters();
        }
    }
}

impl State {
    fn occupants(&self) -> Vec<Occupant> {
        let now = clock::now();
        let servers = self.servers.values().filter(|server| server.connection.ending().is_none());
        let servers = servers.map(|server| Occupant {
            number: server.number,
            caller: server.caller,
            idle_since: server.idle_since(now),
        });
        // A server that is being started is never idle, and its number is none of a session.
        let starting = self.starting.values().map(|&caller| Occupant { number: u64::MAX, caller, idle_since: None });
        servers.chain(starting).collect()
    }
}

/// The right to start a server, until this is dropped.
struct Admitted<'a> {
    channels: &'a Channels,
    number: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        sync::lock(&self.channels.state).starting.remove(&self.number);
        self.channels.room.notify_waiters();
    }
}

/// A session that is being opened.
struct Start {
    channels: Arc<Channels>,
    caller: usize,
    messages: Vec<Message>,
    body: Bytes,
    stream: Option<Arc<Stream>>,
    on_begin: OnBegin,
}

/// An answered `initialize`.
struct Started {
    body: Bytes,
    /// Name of the session, or `None` if the server has refused it.
    name: Option<String>,
}

/// An `initialize` that the server has not answered.
struct Failed {
    code: ErrorCode,
    detail: String,
}

impl Failed {
    fn of(code: ErrorCode, detail: String) -> Self {
        Self { code, detail }
    }
}

impl Start {
    async fn run(self, answer: oneshot::Sender<Result<Started, Failed>>) {
        let (channels, caller) = (self.channels.clone(), self.caller);
        let deadline = clock::now() + channels.settings.start;
        let Ok(admitted) = until(deadline, channels.admit(caller)).await else {
            channels.limits.metrics.observe_start(StartOutcome::NoRoom);
            let _ = answer.send(Err(Failed::of(ErrorCode::NoServer, String::new())));
            return;
        };
        let mut session = None;
        let opened = until(deadline, self.open(&mut session)).await;
        let (outcome, result) = match opened {
            Ok(Ok(started)) if started.name.is_none() => (StartOutcome::Refused, Ok(started)),
            Ok(Ok(started)) => (StartOutcome::Opened, Ok(started)),
            Ok(Err(failed)) => (StartOutcome::Failed, Err(failed)),
            Err(_) => (StartOutcome::TimedOut, Err(Failed::of(ErrorCode::ServerSlow, String::new()))),
        };
        if let Err(Failed { code, detail }) = &result {
            warn!(error = code.label(), detail, "no server was started for a session");
        }
        let has_failed = matches!(outcome, StartOutcome::Failed | StartOutcome::TimedOut);
        channels.limits.metrics.observe_start(outcome);
        sync::lock(&channels.state).starts.note(has_failed, clock::now());
        drop(admitted);
        let is_open = matches!(&result, Ok(Started { name: Some(_), .. }));
        // Without its client no request would ever name the session.
        let has_client = answer.send(result).is_ok();
        if let Some(session) = session
            && !(is_open && has_client)
        {
            session.end(EndReason::Client);
        }
    }

    async fn open(self, opened: &mut Option<Arc<Session>>) -> Result<Started, Failed> {
        let Self { channels, caller, messages, body, stream, on_begin } = self;
        let failed = |detail: String| Failed::of(ErrorCode::ServerFailed, detail);
        let link = channels.open.open().await.map_err(|error| failed(error.0))?;
        let (by_name, by_number) = (channels.clone(), channels.clone());
        let session = Session::begin(
            link,
            caller,
            channels.limits.clone(),
            move |session| by_name.forget_name(session),
            move |session| by_number.forget(session),
        );
        *opened = Some(session.clone());
        let is_over = {
            let mut state = sync::lock(&channels.state);
            state.servers.insert(session.number, session.clone());
            state.is_over
        };
        if is_over {
            return Err(Failed::of(ErrorCode::Draining, String::new()));
        }
        let call = session.connection.call(&messages, &body, stream, on_begin);
        let mut waiting = call.map_err(|refused| failed(refused.to_string()))?;
        let message = if waiting.begun().await { waiting.events.first_message().await } else { None };
        let Some(message) = message.filter(|_| session.connection.ending().is_none()) else {
            let end = session.program_end().map_or_else(|| "its output was closed".to_owned(), ProgramEnd::describe);
            return Err(failed(end));
        };
        let is_error = matches!(
            jsonrpc::peek(&message).as_ref().map(jsonrpc::Body::messages),
            Ok([Message::Response { is_error: true, .. }])
        );
        if is_error {
            return Ok(Started { body: message, name: None });
        }
        let name = channels.name(&session).ok_or_else(|| Failed::of(ErrorCode::Draining, String::new()))?;
        info!(servers = sync::lock(&channels.state).servers.len(), "a server was started for a session");
        Ok(Started { body: message, name: Some(name) })
    }
}

async fn until<F: Future>(deadline: Instant, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    tokio::time::timeout(deadline.saturating_duration_since(clock::now()), future).await
}

// ── responses ───────────────────────────────────────────────────────────────────────────────────────────────────────

fn request_id(message: &Message) -> Option<&RequestId> {
    match message {
        Message::Request { id, .. } => Some(id),
        Message::Notification { .. } | Message::Response { .. } => None,
    }
}

fn code_of(refused: Refused) -> ErrorCode {
    match refused {
        Refused::Ended => ErrorCode::SessionUnknown,
        Refused::Full => ErrorCode::ChannelFull,
        Refused::IdInUse(_) => ErrorCode::IdInUse,
        Refused::Listening => ErrorCode::BadRequest,
    }
}

/// Returns a response without a body.
pub fn empty(status: StatusCode) -> Response {
    let mut response = http::Response::new(Body::whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn json(code: StatusCode, body: impl Into<Bytes>) -> Response {
    let mut response = http::Response::new(Body::whole(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn event_stream(events: body::Events) -> Response {
    let mut response = http::Response::new(Body::Events(events));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// Returns the refusal of a request of which nothing has reached a server.
fn refusal(code: ErrorCode, ids: &[RequestId]) -> Response {
    refusal_about(code, "", ids)
}

fn refusal_about(code: ErrorCode, detail: &str, ids: &[RequestId]) -> Response {
    let failure = Failure::before_run(code);
    let body = match (detail, ids) {
        ("", ids) => failure.to_body(ids, ids.len() > 1),
        (detail, ids) => failure.to_message_about(ids.first(), detail),
    };
    let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = json(status, body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
