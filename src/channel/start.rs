//! Start of a server for one session, or for several that share it, with the server's response to
//! `initialize`.
//!
//! A start runs in a task of its own. It continues without its request; see
//! [`pending_start`](super::pending_start).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use tokio::runtime::Handle;
use tracing::{info, warn};

use super::admission::{StartPermit, StartRoute};
use super::body::{Events, Response};
use super::caller::Sharers;
use super::connection::{Begun, Connection, End, Refused, Users};
use super::link::{ProgramEnd, ShownStderr};
use super::metrics::{EndReason, StartOutcome};
use super::pending_start::{ExistingStart, PendingStart, Reassigned, StartFailure, StartRequest, StartResponse};
use super::request::{OnBegin, Request, request_id};
use super::respond::{json, refusal};
use super::server::Server;
use super::table::{Channels, Session, State};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Lines, names};
use crate::protocol::jsonrpc::{self, InitializeParams, Message, RequestId, code, response};
use crate::{clock, sync};

/// Shortest start that the log reports while it runs.
const LONG_START: Duration = Duration::from_secs(5);

impl Channels {
    /// Opens a session, at a new server or at an existing one. Returns the response to
    /// `initialize`.
    pub(super) async fn initialize(self: &Arc<Self>, messages: &[Message], request: Request<'_>) -> Response {
        let Some(id) = messages.iter().find_map(request_id) else { return refusal(ErrorCode::BadRequest, &[]) };
        match self.open_session(id, messages, request).await {
            Ok(StartResponse { body, name }) => {
                let mut response = json(StatusCode::OK, body);
                if let Some(name) = name.and_then(|name| HeaderValue::from_str(&name).ok()) {
                    response.headers_mut().insert(names::MCP_SESSION_ID, name);
                }
                response
            }
            Err(failure) => failure.into_response(std::slice::from_ref(id)),
        }
    }

    async fn open_session(
        self: &Arc<Self>,
        id: &RequestId,
        messages: &[Message],
        request: Request<'_>,
    ) -> Result<StartResponse, StartFailure> {
        let deadline = clock::now() + self.settings.start;
        let (pending_request, mut response) = StartRequest::new(id.clone(), request.stream.cloned());
        let params = InitializeParams::of(request.body);
        let sharers = self.settings.sharing.sharers(request.caller, params.as_ref());
        let wanted = PendingStart::new(request.caller.cloned(), params, sharers.clone(), pending_request);
        let Ok(route) = until(deadline, self.admit(wanted, request.start_kind)).await else {
            self.limits.metrics.observe_start(StartOutcome::NoRoom);
            return Err(ErrorCode::NoServer.into());
        };
        let no_room = |_: &StartFailure| self.limits.metrics.observe_start(StartOutcome::NoRoom);
        let number = match route.inspect_err(no_room)? {
            StartRoute::Existing(existing) => {
                (request.on_begin)();
                match existing {
                    ExistingStart::Complete(response) => return Ok(response),
                    ExistingStart::Pending(number) => number,
                }
            }
            StartRoute::New(permit) => {
                let (number, messages, body) = (permit.number, messages.to_vec(), request.body.clone());
                let (head, on_begin) = (self.head(&request), request.on_begin);
                let worker = Handle::current();
                let task = StartTask { permit, sharers, messages, head, body, worker, on_begin };
                // The runtime of all starts outlives the request and its worker.
                self.runtime.spawn(task.run());
                number
            }
        };
        let outcome = match until(deadline, &mut response).await {
            Ok(outcome) => outcome.ok(),
            Err(_) => {
                response.close();
                response.try_recv().ok()
            }
        };
        match outcome {
            Some(outcome) => outcome,
            None if clock::now() < deadline => {
                let detail = "another initialize of the same client goes on with the start".to_owned();
                Err(StartFailure::of(ErrorCode::ServerFailed, detail))
            }
            None => {
                self.limits.metrics.observe_start(StartOutcome::TimedOut);
                let slow = self.too_slow(number);
                let (error, stderr) = (slow.code.label(), slow.stderr.log_text());
                warn!(error, detail = slow.detail, stderr, "a server is too slow to start");
                Err(slow)
            }
        }
    }

    /// Serves `wanted` without a new start, if that is possible.
    ///
    /// A running server of its sharers gives it a session. Otherwise a start takes it over, if its
    /// own client has left or if its server will be shared. In all other cases `wanted` is
    /// returned.
    pub(super) fn take_over(
        &self,
        state: &mut State,
        wanted: PendingStart,
    ) -> Result<ExistingStart, Box<PendingStart>> {
        if let (Some(sharers), Some(pending_request)) = (wanted.sharers(), wanted.first_request())
            && let Some(response) = self.join(state, sharers, pending_request)
        {
            return Ok(ExistingStart::Complete(response));
        }
        let Some((&number, start)) = state.pending_starts.iter_mut().find(|(_, start)| start.can_serve(&wanted)) else {
            return Err(Box::new(wanted));
        };
        let Reassigned::Complete { server, body, old_name } = start.reassign_to(wanted) else {
            return Ok(ExistingStart::Pending(number));
        };
        if let Some(name) = old_name {
            state.sessions.remove(&name);
        }
        // A new name, because the earlier client may know the old one.
        let name = Session::new_name();
        state.sessions.insert(name.clone(), Session { server, member: Connection::ONLY });
        state.pending_starts.remove(&number);
        Ok(ExistingStart::Complete(StartResponse { body, name: Some(name) }))
    }

    /// Returns the failure of a request that has reached its time limit.
    fn too_slow(&self, number: u64) -> StartFailure {
        let state = sync::lock(&self.state);
        let server = state.pending_starts.get(&number).and_then(|start| start.server.as_ref());
        let stderr = server.map(|server| server.stderr()).unwrap_or_default();
        let garbage = server.and_then(|server| describe_garbage(&server.connection));
        let seconds = self.settings.start.as_secs();
        let mut detail =
            format!("no answer to initialize within {seconds} s; the next initialize goes on with the start");
        if let Some(garbage) = garbage {
            detail = format!("{detail}; {garbage}");
        }
        StartFailure { stderr, ..StartFailure::of(ErrorCode::ServerSlow, detail) }
    }

    /// Resolves when no request has wanted the start for the configured time (`keep`).
    async fn unwanted(&self, number: u64) {
        let keep = self.settings.keep.max(self.settings.start + Duration::from_secs(1));
        loop {
            let wanted_at = sync::lock(&self.state).pending_starts.get(&number).map(|start| start.wanted_at);
            let Some(wanted_at) = wanted_at else { return };
            let rest = (wanted_at + keep).saturating_duration_since(clock::now());
            if rest.is_zero() {
                return;
            }
            clock::sleep(rest).await;
        }
    }

    /// Completes the request of a start with the server's response, and registers the session.
    /// Returns false if the client has left.
    fn respond(&self, number: u64, server: &Arc<Server>, body: Bytes) -> bool {
        let mut state = sync::lock(&self.state);
        let state = &mut *state;
        let Some(start) = state.pending_starts.get_mut(&number) else { return true };
        let name = Session::new_name();
        let (is_sent, has_client) = start.respond(body, name.clone());
        if is_sent {
            let (server, member) = (server.clone(), Connection::ONLY);
            state.sessions.insert(name, Session { server, member });
        }
        if has_client {
            // No other request can take the session over after this.
            state.pending_starts.remove(&number);
        }
        has_client
    }
}

/// The task of one start, from its permit to the server's response.
struct StartTask {
    permit: StartPermit,
    /// Sessions that will share the server.
    sharers: Option<Sharers>,
    messages: Vec<Message>,
    head: Option<Lines>,
    body: Bytes,
    /// Runtime of the request.
    worker: Handle,
    on_begin: OnBegin,
}

/// Response of a server to `initialize`.
enum InitializeResponse {
    Opened(Bytes),
    Refused(Bytes),
}

impl StartTask {
    async fn run(self) {
        let Self { permit, sharers, messages, head, body, worker, on_begin } = self;
        let users = if sharers.is_some() { Users::Sessions } else { Users::Session };
        let (channels, number) = (permit.channels.clone(), permit.number);
        let request = (&*messages, head, &body);
        let mut server = None;
        let opened = tokio::select! {
            opened = channels.open_server(number, (users, &worker), request, on_begin, &mut server) => opened,
            never = report_silence("initialize", || channels.too_slow(number).stderr) => match never {},
            () = channels.unwanted(number) => Err(channels.too_slow(number)),
        };
        let outcome = match &opened {
            Ok(InitializeResponse::Opened(_)) => StartOutcome::Opened,
            Ok(InitializeResponse::Refused(_)) => StartOutcome::Refused,
            Err(_) => StartOutcome::Failed,
        };
        channels.limits.metrics.observe_start(outcome);
        sync::lock(&channels.state).start_gate.end(number, opened.is_ok());
        if channels.settings.bounds.is_some() {
            sync::lock(&channels.state).start_rate.record_outcome(opened.is_err(), clock::now());
        }
        channels.room.notify_waiters();
        match (opened, server) {
            (Ok(InitializeResponse::Opened(body)), Some(server)) => {
                if let Some(sharers) = sharers {
                    channels.open_to(number, sharers, &server, &body);
                    // The start is complete. The server is treated like any other.
                    drop(permit);
                    return channels.keep_deserted(&server).await;
                }
                if !channels.respond(number, &server, body) {
                    keep(&permit, &server).await;
                }
            }
            (Ok(InitializeResponse::Refused(body) | InitializeResponse::Opened(body)), server) => {
                channels.era.handle_refused_handshake(&body);
                if let Some(mut start) = channels.take_start(number) {
                    start.refuse(&body);
                }
                end(server.as_ref());
            }
            (Err(failed), server) => {
                let (error, stderr) = (failed.code.label(), failed.stderr.log_text());
                warn!(error, detail = failed.detail, stderr, "no server was started for a session");
                if let Some(mut start) = channels.take_start(number) {
                    start.fail(failed);
                }
                end(server.as_ref());
            }
        }
        drop(permit);
    }
}

fn end(server: Option<&Arc<Server>>) {
    if let Some(server) = server {
        server.end(EndReason::Client);
    }
}

/// Keeps the session of a client that has left. Another request may take it over until the time
/// limit of such sessions.
async fn keep(permit: &StartPermit, server: &Arc<Server>) {
    let StartPermit { channels, number } = permit;
    tokio::select! {
        () = channels.unwanted(*number) => {}
        _ = server.connection.ended() => {}
    }
    let is_kept = sync::lock(&channels.state).pending_starts.get(number).is_some_and(PendingStart::is_untouched);
    if is_kept {
        server.end(EndReason::Idle);
    }
}

impl Channels {
    /// Starts a server, and waits for its response to `initialize`.
    async fn open_server(
        self: &Arc<Self>,
        number: u64,
        (users, worker): (Users, &Handle),
        (messages, head, body): (&[Message], Option<Lines>, &Bytes),
        on_begin: OnBegin,
        opened: &mut Option<Arc<Server>>,
    ) -> Result<InitializeResponse, StartFailure> {
        let failed = |detail: String| StartFailure::of(ErrorCode::ServerFailed, detail);
        let caller = sync::lock(&self.state).pending_starts.get(&number).and_then(|start| start.caller.clone());
        let variables = caller.as_ref().map(|caller| caller.variables().clone()).unwrap_or_default();
        let asked = if users == Users::Session { self.take_asked(caller.as_ref()) } else { None };
        let server = match asked {
            Some(server) => server,
            None => {
                let link = self.open.open(head.as_ref(), &variables, worker).await?;
                self.begin_server(users, link, caller)
            }
        };
        *opened = Some(server.clone());
        if !self.register_server(number, &server) {
            return Err(ErrorCode::Draining.into());
        }
        // No stream: server requests before the end of `initialize` do not reach the client.
        let call = server.connection.call(None, messages, body, head.clone(), None, on_begin);
        let response = match call {
            Ok(mut pending) => match pending.begun().await {
                Begun::Written => initialize_response(&pending.events, &server.connection, head.as_ref()).await,
                Begun::Refused(response) => return Err(StartFailure::by(response)),
                Begun::Ended => None,
            },
            Err(Refused::Ended) => None,
            Err(refused) => return Err(failed(refused.to_string())),
        };
        match response.filter(|_| server.connection.ending().is_none()) {
            Some((message, true)) => Ok(InitializeResponse::Refused(message)),
            Some((message, false)) => {
                info!(servers = sync::lock(&self.state).servers.len(), "a server was started for a session");
                Ok(InitializeResponse::Opened(message))
            }
            None => {
                let end = match server.connection.ending() {
                    // The channel may end before the exit code of the program is known.
                    Some(End::Lost) => server.program_end().await,
                    Some(End::Closed) | None => None,
                };
                let how = end.map_or_else(|| "its output was closed".to_owned(), ProgramEnd::describe);
                let garbage = describe_garbage(&server.connection);
                let failure = failed(garbage.map_or(how.clone(), |garbage| format!("{how}; {garbage}")));
                Err(StartFailure { stderr: server.stderr(), ..failure })
            }
        }
    }

    /// Removes a failed start, so that no other request takes it over.
    fn take_start(&self, number: u64) -> Option<PendingStart> {
        sync::lock(&self.state).pending_starts.remove(&number)
    }

    /// Registers the server of a start. Returns false if all servers are being ended.
    pub(super) fn register_server(&self, number: u64, server: &Arc<Server>) -> bool {
        let mut state = sync::lock(&self.state);
        state.servers.insert(server.number, server.clone());
        if let Some(start) = state.pending_starts.get_mut(&number) {
            start.server = Some(server.clone());
        }
        !state.is_draining
    }
}

/// Waits for the response to `initialize`. Returns it, with true if it is an error.
///
/// A server may ping before that. Any other server request gets an error, because no session exists
/// yet.
async fn initialize_response(events: &Events, connection: &Connection, head: Option<&Lines>) -> Option<(Bytes, bool)> {
    loop {
        let message = events.first_message().await?;
        let Ok(peeked) = jsonrpc::peek(&message) else { continue };
        let response = match peeked.messages() {
            [Message::Response { is_error, .. }] => return Some((message, *is_error)),
            [Message::Request { id, method }] if method == "ping" => response::empty(id),
            [Message::Request { id, .. }] => {
                response::error(id, code::INVALID_REQUEST, "the session is not initialized")
            }
            _ => continue,
        };
        connection.post_own(response.into(), head.cloned());
    }
}

/// Returns a note for the operator if the server has written lines that are no JSON-RPC.
fn describe_garbage(connection: &Connection) -> Option<String> {
    match connection.garbage() {
        0 => None,
        lines => Some(format!(
            "lines of its output that were no JSON-RPC: {lines} (stdout must have JSON-RPC messages only, and stderr the log)"
        )),
    }
}

/// Reports a server that has not responded to its first request for some seconds, once.
pub(super) async fn report_silence(method: &str, stderr: impl FnOnce() -> ShownStderr) -> Infallible {
    clock::sleep(LONG_START).await;
    let (seconds, stderr) = (LONG_START.as_secs(), stderr().log_text());
    info!(method, seconds, stderr, "a server has not responded to its first request yet");
    std::future::pending().await
}

pub(super) async fn until<F: Future>(deadline: Instant, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    tokio::time::timeout(deadline.saturating_duration_since(clock::now()), future).await
}
