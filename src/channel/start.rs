//! The start of a session: the wait for room, a new server, and its answer to `initialize`.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::link::ProgramEnd;
use super::metrics::{EndReason, StartOutcome};
use super::pool::Admission;
use super::respond::{json, refusal_about};
use super::session::Session;
use super::{Channels, OnBegin, Request, Response, request_id};
use crate::event_log::Stream;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::names;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::{clock, sync};

impl Channels {
    /// Opens a session with a server of its own.
    pub(super) async fn initialize(self: &Arc<Self>, messages: &[Message], request: Request<'_>) -> Response {
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
