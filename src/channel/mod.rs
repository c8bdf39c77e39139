//! Channels: MCP servers on stdio or HTTP+SSE, served as if they were on Streamable HTTP.
//!
//! A server on stdio or HTTP+SSE has a *channel*: ordered JSON-RPC messages in both directions,
//! without event IDs and without replay. This module stands in for a server on Streamable HTTP. It
//! takes a request of the upstream client and returns the response, in the same process and without
//! bytes of HTTP. So all layers above treat it as any other server.
//!
//! Owned here: sessions and their channels, the routing of each message to its response, the bounds
//! of servers and of their starts. A session has a channel and a server of its own, or shares the
//! server of its caller ([`shared`]). Requests of revisions without sessions always share one.
//! Absent: how a channel is opened (`child/` and `upstream/server/sse_server.rs`, behind [`Open`]),
//! resumption (the event log), sessions whose channel has ended (`upstream/revival/` opens them
//! again).
//!
//! # Requests
//!
//! | request | response |
//! |---|---|
//! | POST with `initialize`, without a session | JSON: the server's response, to this request or to an equal earlier one |
//! | POST with other requests of a session | an event stream, once the first byte was written to the server |
//! | POST with a request of a revision without sessions | the same; for `server/discover`, JSON |
//! | POST without requests | 202, once the message waits to be written |
//! | GET | an event stream with the messages that belong to no call |
//! | DELETE | 200; the server ends, if it has no other session |
//!
//! A request refused before its first byte gets a status and an error with `mayHaveRun: false`. A
//! session without a channel gets 404, so that it is opened again.
//!
//! # Starts
//!
//! A start leads from an `initialize` to a running server. Its types:
//!
//! | type | meaning |
//! |---|---|
//! | `StartRequest` | a pending `initialize` that waits for the outcome of a start |
//! | `PendingStart` | a start, or its unclaimed session, with the requests that want it |
//! | [`StartKind`] | the reason for a start: a new session, or a revival |
//! | `StartQueue`, `QueuedStart` | the starts that wait for their turn; the place of one in that queue |
//! | `StartRate` | the rate of starts, and the back-off after failed starts |
//! | `StartGate` | the number of starts at the same time |
//! | `Admission`, `TurnDecision` | the decision of the bounds on a start; the decision on a queued start |
//! | `StartRoute` | the way of a request after the wait: a new server, or an existing start |
//! | `StartPermit`, `StartTask` | the right to start a server; the task that uses it |
//! | `ExistingStart`, `Reassigned` | an earlier start or server that serves another request; the step to it |
//! | `SharedStart` | the start of a channel for requests without sessions, and its outcome |
//! | `StartResponse`, `StartFailure` | the outcome for a request: the response to `initialize`, or an error |
//! | `StartOutcome` | the outcome as the label of a metric |

mod admission;
mod body;
mod caller;
mod connection;
mod era;
mod limits;
mod link;
mod metrics;
mod modern;
mod partial;
mod pending_start;
pub mod pipe;
mod pool;
mod request;
mod respond;
mod server;
mod server_era;
mod settings;
mod shared;
mod start;
mod start_gate;
mod start_queue;
mod table;
#[cfg(test)]
mod tests;
mod variables;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::ALLOW;
use http::{HeaderValue, Method, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::Notify;

pub use body::{Body, Events, Response};
pub use caller::Caller;
use connection::{Begun, Refused, Users};
use limits::Limits;
pub use link::{
    Input, Link, LinkFuture, Memory, Open, OpenError, Output, Program, ProgramEnd, ShownStderr, WriteError,
};
use metrics::EndReason;
pub use metrics::Metrics;
use partial::PartialMemory;
pub use pool::Bounds;
pub use request::{OnBegin, Request, request_id};
pub use respond::{Cause, empty, json, no_server, refusal_about};
use respond::{event_stream, refusal};
use server::Server;
pub(crate) use server_era::ServerEra;
pub use settings::{Settings, Sharing};
pub use start_queue::StartKind;
pub use table::Channels;
use table::{Session, SharedStart};
pub use variables::{UnusableHeader, Variables};

use crate::protocol::channel::ids::ID_MAX;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::Lines;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::{clock, sync};

/// Interval between searches for idle sessions.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Channels {
    /// Creates the channels on the caller's runtime. Opens no channel yet.
    pub fn new(open: Box<dyn Open>, settings: Settings, metrics: Arc<Metrics>) -> Arc<Self> {
        let limits = Limits {
            message_bytes: settings.message_bytes,
            response_bytes: settings.message_bytes + 1024 * 1024,
            outgoing_bytes: settings.outgoing_bytes,
            answers_pings: settings.answers_pings,
            unclaimed: PartialMemory::new(settings.unclaimed_bytes),
            metrics,
        };
        let (runtime, state, room) = (Handle::current(), Mutex::default(), Notify::new());
        let era = ServerEra::of(open.era());
        let discovery = Arc::default();
        let channels = Arc::new(Self { open, settings, limits, runtime, state, era, discovery, room });
        tokio::spawn(Self::sweep(Arc::downgrade(&channels)));
        channels
    }

    /// Returns true if a server can probably be started: its program is found, and the last start
    /// did not fail within the last minute.
    pub fn is_available(&self) -> bool {
        self.open.is_available() && !sync::lock(&self.state).start_rate.is_failing(clock::now())
    }

    /// Returns the number of lines of one server that were no JSON-RPC messages: of the server with
    /// the most.
    pub fn most_text_lines(&self) -> u64 {
        self.limits.metrics.most_text_lines()
    }

    /// Returns the longest time from `initialize` to its response or refusal.
    pub fn start_limit(&self) -> Duration {
        self.settings.start
    }

    /// Checks that the server accepts a channel: opens one with the headers of a request, and ends
    /// it.
    ///
    /// # Errors
    /// If no channel was opened within `limit`.
    pub async fn try_open(&self, head: &Lines, limit: Duration) -> Result<(), OpenError> {
        let opening = self.open.open(Some(head), &Variables::default(), &self.runtime);
        match self.runtime.spawn(async move { tokio::time::timeout(limit, opening).await }).await {
            Ok(Ok(link)) => link.map(drop),
            Ok(Err(_)) | Err(_) => Err(OpenError::of_program("no channel in time")),
        }
    }

    /// Returns the response to a request. Never fails: each error is a response.
    pub async fn send(self: &Arc<Self>, request: Request<'_>) -> Response {
        match *request.method {
            Method::POST => self.post(request).await,
            Method::GET if request.session.is_none() => empty(StatusCode::METHOD_NOT_ALLOWED),
            Method::GET => match self.session(&request).map(|it| it.server.connection.listen(it.member)) {
                Ok(Ok(events)) => event_stream(events),
                Ok(Err(Refused::Listening)) => empty(StatusCode::CONFLICT),
                Ok(Err(_)) => refusal(ErrorCode::SessionUnknown, &[]),
                Err(code) => refusal(code, &[]),
            },
            Method::DELETE => match self.session(&request) {
                Ok(session) => {
                    self.end_session(&session, EndReason::Client);
                    empty(StatusCode::OK)
                }
                Err(code) => refusal(code, &[]),
            },
            _ => {
                let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
                response
            }
        }
    }

    /// Ends all servers. Resolves when no process of theirs is left, after seven seconds at most.
    pub async fn end_all(&self) {
        let servers: Vec<Arc<Server>> = {
            let mut state = sync::lock(&self.state);
            state.is_draining = true;
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
                if state.servers.is_empty() && state.pending_starts.is_empty() {
                    return;
                }
            }
            room.await;
        }
    }

    /// Ends all servers, so that the next request of a session starts another one. Earlier failures
    /// of a start do not delay it, and the era of the server is unknown again. Resolves when no
    /// process of the servers is left.
    pub async fn replace_servers(&self) {
        let servers: Vec<Arc<Server>> = sync::lock(&self.state).servers.values().cloned().collect();
        let numbers: Vec<u64> = servers.iter().map(|server| server.number).collect();
        for server in servers {
            server.end(EndReason::Replaced);
        }
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            {
                let mut state = sync::lock(&self.state);
                if !numbers.iter().any(|number| state.servers.contains_key(number)) {
                    state.start_rate.record_outcome(false, clock::now());
                    break;
                }
            }
            room.await;
        }
        if self.open.era().is_none() {
            self.era.forget();
        }
        self.room.notify_waiters();
    }

    /// Returns the session that a request names.
    ///
    /// # Errors
    /// If its channel does not work, or its process has other variables than the caller.
    fn session(&self, request: &Request<'_>) -> Result<Session, ErrorCode> {
        let name = request.session.and_then(|name| std::str::from_utf8(name).ok());
        let session = name.and_then(|name| sync::lock(&self.state).sessions.get(name).cloned());
        let session = session.filter(|session| session.server.connection.ending().is_none());
        let session = session.ok_or(ErrorCode::SessionUnknown)?;
        if Caller::have_same_variables(session.server.caller.as_ref(), request.caller) {
            Ok(session)
        } else {
            Err(ErrorCode::OtherVariables)
        }
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
        // The IDs of abandoned calls are remembered, so they have a limit.
        if ids.iter().any(|id| id.text().len() > ID_MAX) {
            return refusal(ErrorCode::BadRequest, &[]);
        }
        if request.session.is_none() {
            return match messages {
                [Message::Request { method, .. }] if method == "initialize" => self.initialize(messages, request).await,
                _ if modern::is_modern(&request) => self.modern(messages, request).await,
                _ => refusal(ErrorCode::BadRequest, &ids),
            };
        }
        let Session { server, member } = match self.session(&request) {
            Ok(session) => session,
            Err(code) => return refusal(code, &ids),
        };
        if ids.is_empty() {
            return match server.connection.post(member, messages, body, self.head(&request)) {
                Ok(()) => empty(StatusCode::ACCEPTED),
                Err(refused) => refusal(refused.code(), &ids),
            };
        }
        let head = self.head(&request);
        let stream = request.stream.cloned();
        match server.connection.call(Some(member), messages, body, head, stream, request.on_begin) {
            Ok(mut pending) => match pending.begun().await {
                Begun::Written => event_stream(pending.events),
                Begun::Refused(response) => *response,
                // The server has received no byte of the request.
                Begun::Ended => refusal(ErrorCode::SessionUnknown, &ids),
            },
            Err(refused) => refusal(refused.code(), &ids),
        }
    }

    /// Returns the headers of a request, if the server takes them.
    fn head(&self, request: &Request<'_>) -> Option<Lines> {
        self.open.takes_headers().then(|| request.headers.clone())
    }

    /// Begins a server with an open channel. At the end of the channel it leaves the tables.
    fn begin_server(self: &Arc<Self>, users: Users, link: Link, caller: Option<Arc<Caller>>) -> Arc<Server> {
        let (by_name, by_number) = (self.clone(), self.clone());
        let on_end = move |server: &Server| by_name.forget_name(server);
        Server::begin(users, link, caller, self.limits.clone(), on_end, move |server| by_number.forget(server))
    }

    fn forget_name(&self, server: &Server) {
        let mut state = sync::lock(&self.state);
        state.sessions.retain(|_, session| session.server.number != server.number);
        state.shared.retain(|_, shared| shared.server.number != server.number);
        let is_its =
            |opening: &SharedStart| matches!(&*opening.borrow(), Some(Ok(other)) if other.number == server.number);
        state.without_sessions.retain(|_, opening| !is_its(opening));
    }

    fn forget(&self, server: &Server) {
        sync::lock(&self.state).servers.remove(&server.number);
        self.room.notify_waiters();
    }

    /// Ends idle sessions, in a loop.
    async fn sweep(channels: std::sync::Weak<Self>) {
        loop {
            clock::sleep(SWEEP_INTERVAL).await;
            let Some(channels) = channels.upgrade() else { return };
            if let Some(idle) = channels.settings.idle {
                channels.end_idle(idle);
            }
            channels.room.notify_waiters();
        }
    }

    fn end_idle(&self, idle: Duration) {
        let now = clock::now();
        let servers: Vec<Arc<Server>> = sync::lock(&self.state).servers.values().cloned().collect();
        for server in servers {
            self.end_idle_members(&server, idle);
            if server.idle_since(now).is_some_and(|since| now.saturating_duration_since(since) >= idle) {
                server.end(EndReason::Idle);
            }
        }
    }
}
