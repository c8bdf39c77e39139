//! Start of a session, or of several that will share a server: a new server, and its response to
//! `initialize`.
//!
//! A start goes on in a task of its own, also without the request that wants it; see
//! [`pending`](super::pending).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use tokio::runtime::Handle;
use tracing::{info, warn};

use super::admission::{Admitted, Entrance};
use super::body::{Events, Response};
use super::caller::Sharers;
use super::connection::{Begun, Connection, End, Refused, Users};
use super::link::{OpenError, ProgramEnd};
use super::metrics::{EndReason, StartOutcome};
use super::pending::{Failed, Pending, Started, Taken, TakenOver, Waiter};
use super::request::{OnBegin, Request, request_id};
use super::respond::{json, refusal, refusal_about};
use super::server::Server;
use super::table::{Channels, Session, State};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Lines, names};
use crate::protocol::jsonrpc::{self, InitializeParams, Message, RequestId, code, response};
use crate::{clock, sync};

impl Channels {
    /// Opens a session with a server of its own.
    pub(super) async fn initialize(self: &Arc<Self>, messages: &[Message], request: Request<'_>) -> Response {
        let Some(id) = messages.iter().find_map(request_id) else { return refusal(ErrorCode::BadRequest, &[]) };
        match self.open_session(id, messages, request).await {
            Ok(Started { body, name }) => {
                let mut response = json(StatusCode::OK, body);
                if let Some(name) = name.and_then(|name| HeaderValue::from_str(&name).ok()) {
                    response.headers_mut().insert(names::MCP_SESSION_ID, name);
                }
                response
            }
            Err(Failed { response: Some(response), .. }) => *response,
            Err(Failed { code, detail, .. }) => refusal_about(code, &detail, std::slice::from_ref(id)),
        }
    }

    async fn open_session(
        self: &Arc<Self>,
        id: &RequestId,
        messages: &[Message],
        request: Request<'_>,
    ) -> Result<Started, Failed> {
        let deadline = clock::now() + self.settings.start;
        let (waiter, mut answered) = Waiter::new(id.clone(), request.stream.cloned());
        let params = InitializeParams::of(request.body);
        let sharers = self.settings.sharing.sharers(request.caller, params.as_ref());
        let wanted = Pending::new(request.caller.cloned(), params, sharers.clone(), waiter);
        let Ok(entrance) = until(deadline, self.admit(wanted, request.start_kind)).await else {
            self.limits.metrics.observe_start(StartOutcome::NoRoom);
            return Err(Failed::of(ErrorCode::NoServer, String::new()));
        };
        let no_room = |_: &Failed| self.limits.metrics.observe_start(StartOutcome::NoRoom);
        let number = match entrance.inspect_err(no_room)? {
            Entrance::TakenOver(taken_over) => {
                (request.on_begin)();
                match taken_over {
                    TakenOver::Started(started) => return Ok(started),
                    TakenOver::Starting(number) => number,
                }
            }
            Entrance::Start(admitted) => {
                let (number, messages, body) = (admitted.number, messages.to_vec(), request.body.clone());
                let (head, on_begin) = (self.head(&request), request.on_begin);
                let worker = Handle::current();
                let start = Start { admitted, sharers, messages, head, body, worker, on_begin };
                // On the runtime of all starts.
                self.runtime.spawn(start.run());
                number
            }
        };
        let outcome = match until(deadline, &mut answered).await {
            Ok(outcome) => outcome.ok(),
            Err(_) => {
                answered.close();
                answered.try_recv().ok()
            }
        };
        match outcome {
            Some(outcome) => outcome,
            None if clock::now() < deadline => {
                let detail = "another initialize of the same client goes on with the start".to_owned();
                Err(Failed::of(ErrorCode::ServerFailed, detail))
            }
            None => {
                self.limits.metrics.observe_start(StartOutcome::TimedOut);
                let slow = self.slow(number);
                warn!(error = slow.code.label(), detail = slow.detail, "a server is too slow to start");
                Err(slow)
            }
        }
    }

    /// Gives `wanted` a session at the server of its sharers, or lets a start whose client has
    /// given up, or that will be shared, go on for it. Without either `wanted` is returned.
    pub(super) fn take_over(&self, state: &mut State, wanted: Pending) -> Result<TakenOver, Box<Pending>> {
        if let (Some(sharers), Some(waiter)) = (wanted.sharers(), wanted.waiter())
            && let Some(started) = self.join(state, sharers, waiter)
        {
            return Ok(TakenOver::Started(started));
        }
        let Some((&number, start)) = state.starting.iter_mut().find(|(_, start)| start.can_serve(&wanted)) else {
            return Err(Box::new(wanted));
        };
        let Taken::Answered { server, body, old_name } = start.go_on_for(wanted) else {
            return Ok(TakenOver::Starting(number));
        };
        if let Some(name) = old_name {
            state.sessions.remove(&name);
        }
        // A name of its own: the other request may have told its client the old one.
        let name = Session::new_name();
        state.sessions.insert(name.clone(), Session { server, member: Connection::ONLY });
        state.starting.remove(&number);
        Ok(TakenOver::Started(Started { body, name: Some(name) }))
    }

    /// Returns the failure of a request that has waited for too long.
    fn slow(&self, number: u64) -> Failed {
        let state = sync::lock(&self.state);
        let server = state.starting.get(&number).and_then(|start| start.server.as_ref());
        let garbage = server.and_then(|server| describe_garbage(&server.connection));
        let seconds = self.settings.start.as_secs();
        let mut detail =
            format!("no answer to initialize within {seconds} s; the next initialize goes on with the start");
        if let Some(garbage) = garbage {
            detail = format!("{detail}; {garbage}");
        }
        Failed::of(ErrorCode::ServerSlow, detail)
    }

    /// Resolves when nothing has wanted the start for as long as it is kept.
    async fn unwanted(&self, number: u64) {
        let keep = self.settings.keep.max(self.settings.start + Duration::from_secs(1));
        loop {
            let wanted_at = sync::lock(&self.state).starting.get(&number).map(|start| start.wanted_at);
            let Some(wanted_at) = wanted_at else { return };
            let rest = (wanted_at + keep).saturating_duration_since(clock::now());
            if rest.is_zero() {
                return;
            }
            clock::sleep(rest).await;
        }
    }

    /// Gives the answer of a server to the request that wants it, and the session a name. Returns
    /// false if the client has given up.
    fn answer(&self, number: u64, server: &Arc<Server>, body: Bytes) -> bool {
        let mut state = sync::lock(&self.state);
        let state = &mut *state;
        let Some(start) = state.starting.get_mut(&number) else { return true };
        let name = Session::new_name();
        let (is_sent, has_client) = start.answer(body, name.clone());
        if is_sent {
            let (server, member) = (server.clone(), Connection::ONLY);
            state.sessions.insert(name, Session { server, member });
        }
        if has_client {
            // From now on no other request can take the session over.
            state.starting.remove(&number);
        }
        has_client
    }
}

/// A session that is being opened.
struct Start {
    admitted: Admitted,
    /// Callers and parameters whose sessions will share the server.
    sharers: Option<Sharers>,
    messages: Vec<Message>,
    head: Option<Lines>,
    body: Bytes,
    /// Runtime of the request.
    worker: Handle,
    on_begin: OnBegin,
}

/// Answer of a server.
enum Answer {
    Opened(Bytes),
    Refused(Bytes),
}

impl Start {
    async fn run(self) {
        let Self { admitted, sharers, messages, head, body, worker, on_begin } = self;
        let users = if sharers.is_some() { Users::Sessions } else { Users::Session };
        let (channels, number) = (admitted.channels.clone(), admitted.number);
        let request = (&*messages, head, &body);
        let mut server = None;
        let opened = tokio::select! {
            opened = channels.open_server(number, (users, &worker), request, on_begin, &mut server) => opened,
            () = channels.unwanted(number) => Err(channels.slow(number)),
        };
        let outcome = match &opened {
            Ok(Answer::Opened(_)) => StartOutcome::Opened,
            Ok(Answer::Refused(_)) => StartOutcome::Refused,
            Err(_) => StartOutcome::Failed,
        };
        channels.limits.metrics.observe_start(outcome);
        if channels.settings.bounds.is_some() {
            sync::lock(&channels.state).starts.note(opened.is_err(), clock::now());
        }
        channels.room.notify_waiters();
        match (opened, server) {
            (Ok(Answer::Opened(body)), Some(server)) => {
                if let Some(sharers) = sharers {
                    channels.open_to(number, sharers, &server, &body);
                    // From now on the start is no other than any server.
                    drop(admitted);
                    return channels.keep_deserted(&server).await;
                }
                if !channels.answer(number, &server, body) {
                    keep(&admitted, &server).await;
                }
            }
            (Ok(Answer::Refused(body) | Answer::Opened(body)), server) => {
                channels.era.note_refused_handshake(&body);
                if let Some(mut start) = channels.take_start(number) {
                    start.refuse(&body);
                }
                end(server.as_ref());
            }
            (Err(failed), server) => {
                warn!(error = failed.code.label(), detail = failed.detail, "no server was started for a session");
                if let Some(mut start) = channels.take_start(number) {
                    start.fail(failed);
                }
                end(server.as_ref());
            }
        }
        drop(admitted);
    }
}

fn end(server: Option<&Arc<Server>>) {
    if let Some(server) = server {
        server.end(EndReason::Client);
    }
}

/// Keeps the session of a client that has given up, until another request takes it over, or for as
/// long as such sessions are kept.
async fn keep(admitted: &Admitted, server: &Arc<Server>) {
    let Admitted { channels, number } = admitted;
    tokio::select! {
        () = channels.unwanted(*number) => {}
        _ = server.connection.ended() => {}
    }
    let is_kept = sync::lock(&channels.state).starting.get(number).is_some_and(Pending::is_untouched);
    if is_kept {
        server.end(EndReason::Idle);
    }
}

impl Channels {
    /// Starts a server and waits for its answer to `initialize`.
    async fn open_server(
        self: &Arc<Self>,
        number: u64,
        (users, worker): (Users, &Handle),
        (messages, head, body): (&[Message], Option<Lines>, &Bytes),
        on_begin: OnBegin,
        opened: &mut Option<Arc<Server>>,
    ) -> Result<Answer, Failed> {
        let failed = |detail: String| Failed::of(ErrorCode::ServerFailed, detail);
        let link = match self.open.open(head.as_ref(), worker).await {
            Ok(link) => link,
            Err(OpenError::Failed { code, detail }) => return Err(Failed::of(code, detail)),
            Err(OpenError::Refused(response)) => return Err(Failed::by(response)),
        };
        let (by_name, by_number) = (self.clone(), self.clone());
        let caller = sync::lock(&self.state).starting.get(&number).and_then(|start| start.caller.clone());
        let server = Server::begin(
            users,
            link,
            caller,
            self.limits.clone(),
            move |server| by_name.forget_name(server),
            move |server| by_number.forget(server),
        );
        *opened = Some(server.clone());
        if !self.note_server(number, &server) {
            return Err(Failed::of(ErrorCode::Draining, String::new()));
        }
        // Without a stream: a question of the server is none of the client's before there is a
        // session.
        let call = server.connection.call(None, messages, body, head.clone(), None, on_begin);
        let answer = match call {
            Ok(mut waiting) => match waiting.begun().await {
                Begun::Written => first_answer(&waiting.events, &server.connection, head.as_ref()).await,
                Begun::Refused(response) => return Err(Failed::by(response)),
                Begun::Ended => None,
            },
            Err(Refused::Ended) => None,
            Err(refused) => return Err(failed(refused.to_string())),
        };
        match answer.filter(|_| server.connection.ending().is_none()) {
            Some((message, true)) => Ok(Answer::Refused(message)),
            Some((message, false)) => {
                info!(servers = sync::lock(&self.state).servers.len(), "a server was started for a session");
                Ok(Answer::Opened(message))
            }
            None => {
                let end = match server.connection.ending() {
                    // The channel can end before the program's exit code is known.
                    Some(End::Lost) => server.program_end().await,
                    Some(End::Closed) | None => None,
                };
                let end = end.map_or_else(|| "its output was closed".to_owned(), ProgramEnd::describe);
                let garbage = describe_garbage(&server.connection);
                Err(failed(garbage.map_or(end.clone(), |garbage| format!("{end}; {garbage}"))))
            }
        }
    }

    /// Takes a start that has failed, so that none goes on with it.
    fn take_start(&self, number: u64) -> Option<Pending> {
        sync::lock(&self.state).starting.remove(&number)
    }

    /// Notes the server of a start. Returns false if all servers are being ended.
    pub(super) fn note_server(&self, number: u64, server: &Arc<Server>) -> bool {
        let mut state = sync::lock(&self.state);
        state.servers.insert(server.number, server.clone());
        if let Some(start) = state.starting.get_mut(&number) {
            start.server = Some(server.clone());
        }
        !state.is_over
    }
}

/// Waits for the response to `initialize`. Returns it, and true if it is an error. A server may
/// ping before that; any other question has no session yet, and gets an error.
async fn first_answer(events: &Events, connection: &Connection, head: Option<&Lines>) -> Option<(Bytes, bool)> {
    loop {
        let message = events.first_message().await?;
        let Ok(peeked) = jsonrpc::peek(&message) else { continue };
        let answer = match peeked.messages() {
            [Message::Response { is_error, .. }] => return Some((message, *is_error)),
            [Message::Request { id, method }] if method == "ping" => response::empty(id),
            [Message::Request { id, .. }] => {
                response::error(id, code::INVALID_REQUEST, "the session is not initialized")
            }
            _ => continue,
        };
        connection.post_own(answer.into(), head.cloned());
    }
}

/// Says that a server writes something else than messages to its stdout, if it does.
fn describe_garbage(connection: &Connection) -> Option<String> {
    match connection.garbage() {
        0 => None,
        lines => Some(format!(
            "lines of its output that were no JSON-RPC: {lines} (stdout must have JSON-RPC messages only, and stderr the log)"
        )),
    }
}

pub(super) async fn until<F: Future>(deadline: Instant, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    tokio::time::timeout(deadline.saturating_duration_since(clock::now()), future).await
}
