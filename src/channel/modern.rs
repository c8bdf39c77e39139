//! Requests of revisions without sessions, on channels that they share.
//!
//! Such a request leaves no state at the server, so it needs no server of its own. All requests of
//! one caller share a channel. A caller is a principal, or all callers without credentials behind
//! one address, as for the bounds. Two callers share no channel, since a server may keep a state
//! all the same. Owned here: these channels, and the checks that only a server on HTTP can make.
//! Absent: the era of the server (`era.rs`), the names of requests on a channel
//! (`protocol/channel/`).

use std::sync::{Arc, Mutex};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use super::admission::StartRoute;
use super::body::Response;
use super::caller::Caller;
use super::connection::{Begun, PendingCall, Refused, Users};
use super::metrics::{EndReason, StartOutcome};
use super::pending_start::{PendingStart, StartFailure, StartRequest};
use super::request::{OnBegin, Request, request_id};
use super::respond::{empty, event_stream, json, refusal};
use super::server::Server;
use super::start::until;
use super::start_queue::StartKind;
use super::table::{Channels, SharedStart};
use crate::protocol::channel::envelope;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Era, ProtocolVersion, names};
use crate::protocol::jsonrpc::{self, Message, RequestId, code, error_code, response};
use crate::{clock, sync};

/// Most channels tried for one request. The next one is tried only if the last one ended before it
/// took a byte.
pub(super) const ATTEMPTS: usize = 3;

/// Texts of a refusal: the server has an older revision, or has ended before it named one.
const HAS_SESSIONS: &str = "Unsupported protocol version: the server has sessions";
const ENDED: &str = "Unsupported protocol version: the server ended when it was asked for its revisions, and the log of the proxy says how";

/// Returns true if a request without a session belongs to a revision without sessions, by its
/// header or its `_meta`.
pub(super) fn is_modern(request: &Request<'_>) -> bool {
    let is_modern = |text: &str| ProtocolVersion::parse(text).is_none_or(|version| version.era() == Era::Modern);
    let header = request.headers.get(&names::MCP_PROTOCOL_VERSION);
    header.is_some_and(|header| std::str::from_utf8(header).map_or(true, is_modern))
        || jsonrpc::meta_protocol_version(request.body).as_deref().is_some_and(is_modern)
}

impl Channels {
    /// Returns the response to a POST of a revision without sessions.
    pub(super) async fn modern(self: &Arc<Self>, messages: &[Message], request: Request<'_>) -> Response {
        let ids: Vec<RequestId> = messages.iter().filter_map(request_id).cloned().collect();
        if ids.is_empty() {
            // Such messages have no meaning over HTTP, where the end of the response cancels a
            // request.
            return empty(StatusCode::ACCEPTED);
        }
        let is_array = request.body.trim_ascii_start().first() == Some(&b'[');
        let [Message::Request { id, method }] = messages else { return refusal(ErrorCode::BadRequest, &ids) };
        if is_array {
            return refusal(ErrorCode::BadRequest, &ids);
        }
        if let Some(header) = envelope::mismatch(&request.headers.to_map(), method, request.body) {
            let text = format!("the header {header} does not match the body");
            return error(id, code::HEADER_MISMATCH, &text, Value::Null);
        }
        let caller = request.caller;
        match self.era(caller).await {
            Ok(Era::Modern) => self.call_on_shared(caller, messages, request).await,
            Ok(Era::Legacy) => {
                let requested = jsonrpc::meta_protocol_version(request.body).unwrap_or_default();
                let data = json!({"supported": ProtocolVersion::LEGACY, "requested": requested});
                let reason = if self.era.is_by_end() { ENDED } else { HAS_SESSIONS };
                // Every client that probes falls back to `initialize` from the code of the older
                // SDKs, but not from `UNSUPPORTED_VERSION`.
                error(id, code::INVALID_REQUEST, reason, data)
            }
            Err(failure) => failure.into_response(&ids),
        }
    }

    /// Hands a request to the channel of its caller. A channel that ended before it took a byte is
    /// replaced.
    async fn call_on_shared(
        self: &Arc<Self>,
        caller: Option<&Arc<Caller>>,
        messages: &[Message],
        request: Request<'_>,
    ) -> Response {
        let ids: Vec<RequestId> = messages.iter().filter_map(request_id).cloned().collect();
        let on_begin = Arc::new(Mutex::new(Some(request.on_begin)));
        for _ in 0..ATTEMPTS {
            let server = match self.shared(caller).await {
                Ok(server) => server,
                Err(failure) => return failure.into_response(&ids),
            };
            let stream = request.stream.cloned();
            let call = server.connection.call(None, messages, request.body, None, stream, once(&on_begin));
            match call {
                Ok(mut pending) => match pending.begun().await {
                    Begun::Written => return respond(messages, pending, &ids).await,
                    Begun::Refused(response) => return *response,
                    Begun::Ended => {}
                },
                Err(Refused::Ended) => {}
                Err(refused) => return refusal(refused.code(), &ids),
            }
        }
        refusal(ErrorCode::ServerEnded, &ids)
    }

    /// Returns the channel of a caller, and opens it if necessary.
    pub(super) async fn shared(self: &Arc<Self>, caller: Option<&Arc<Caller>>) -> Result<Arc<Server>, StartFailure> {
        let caller = caller.cloned();
        let mut opening = {
            let mut state = sync::lock(&self.state);
            if state.is_draining {
                return Err(ErrorCode::Draining.into());
            }
            match state.without_sessions.get(&caller) {
                Some(opening) if !has_ended(opening) => opening.clone(),
                Some(_) | None => {
                    let (opened, opening) = watch::channel(None);
                    // A channel that ended while it was opened may still be in the table.
                    state.without_sessions.retain(|_, opening| !has_ended(opening));
                    state.without_sessions.insert(caller.clone(), opening.clone());
                    // On the runtime of all starts: an abandoned request does not end the start.
                    self.runtime.spawn(self.clone().open_shared(caller, Handle::current(), opened));
                    opening
                }
            }
        };
        let outcome = opening.wait_for(Option::is_some).await.ok();
        let outcome = outcome.and_then(|outcome| {
            let outcome = outcome.as_ref()?.as_ref();
            Some(outcome.map(Arc::clone).map_err(StartFailure::without_response))
        });
        outcome.unwrap_or_else(|| Err(ErrorCode::ServerFailed.into()))
    }

    async fn open_shared(
        self: Arc<Self>,
        caller: Option<Arc<Caller>>,
        worker: Handle,
        opened: watch::Sender<Option<Result<Arc<Server>, StartFailure>>>,
    ) {
        let (outcome, result) = self.start_shared(caller.as_ref(), &worker).await;
        self.limits.metrics.observe_start(outcome);
        match &result {
            Ok(_) => info!("a server was started for requests without sessions"),
            Err(StartFailure { code, detail, stderr, .. }) => {
                let (error, stderr) = (code.label(), stderr.log_text());
                warn!(error, detail, stderr, "no server was started for requests without sessions");
                sync::lock(&self.state).without_sessions.remove(&caller);
            }
        }
        let _ = opened.send(Some(result));
    }

    async fn start_shared(
        self: &Arc<Self>,
        caller: Option<&Arc<Caller>>,
        worker: &Handle,
    ) -> (StartOutcome, Result<Arc<Server>, StartFailure>) {
        let deadline = clock::now() + self.settings.start;
        // The receiver stays here, so that the start is wanted until its end.
        let (start_request, _response) = StartRequest::without_request();
        let pending = PendingStart::new(caller.cloned(), None, None, start_request);
        let permit = match until(deadline, self.admit(pending, StartKind::First)).await {
            Ok(Ok(StartRoute::New(permit))) => permit,
            Ok(Err(refused)) => return (StartOutcome::NoRoom, Err(refused)),
            // A start without parameters takes over no other.
            Ok(Ok(StartRoute::Existing(_))) | Err(_) => return (StartOutcome::NoRoom, Err(ErrorCode::NoServer.into())),
        };
        let variables = caller.map(|caller| caller.variables().clone()).unwrap_or_default();
        let link = until(deadline, self.open.open(None, &variables, worker)).await;
        sync::lock(&self.state).start_rate.record_outcome(!matches!(link, Ok(Ok(_))), clock::now());
        let link = match link {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return (StartOutcome::Failed, Err(error.into())),
            Err(_) => return (StartOutcome::TimedOut, Err(ErrorCode::ServerSlow.into())),
        };
        let server = self.begin_server(users_of(caller), link, caller.cloned());
        let is_wanted = self.register_server(permit.number, &server);
        drop(permit);
        if !is_wanted {
            server.end(EndReason::Shutdown);
            return (StartOutcome::Failed, Err(ErrorCode::Draining.into()));
        }
        (StartOutcome::Opened, Ok(server))
    }
}

/// Returns true if the channel was open, and has ended.
fn has_ended(opening: &SharedStart) -> bool {
    matches!(&*opening.borrow(), Some(Ok(server)) if server.connection.ending().is_some())
}

/// Returns a function that calls `on_begin` the first time.
fn once(on_begin: &Arc<Mutex<Option<OnBegin>>>) -> OnBegin {
    let on_begin = on_begin.clone();
    Box::new(move || {
        if let Some(on_begin) = sync::lock(&on_begin).take() {
            on_begin();
        }
    })
}

/// Returns the response to a request whose first byte was written. For `server/discover` it is JSON
/// with the status of a server on HTTP, else an event stream.
async fn respond(messages: &[Message], pending: PendingCall, ids: &[RequestId]) -> Response {
    let is_discover = matches!(messages, [Message::Request { method, .. }] if method == "server/discover");
    if !is_discover {
        return event_stream(pending.events);
    }
    match pending.events.response().await {
        Some(message) => json(status_of(&message), message),
        None => refusal(ErrorCode::ServerEnded, ids),
    }
}

fn status_of(response: &[u8]) -> StatusCode {
    match error_code(response) {
        Some(
            code::PARSE_ERROR
            | code::INVALID_REQUEST
            | code::INVALID_PARAMS
            | code::HEADER_MISMATCH
            | code::MISSING_CAPABILITY
            | code::UNSUPPORTED_VERSION,
        ) => StatusCode::BAD_REQUEST,
        Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        // Error of the proxy for a server that has ended.
        Some(code::UPSTREAM_FAILED) => StatusCode::BAD_GATEWAY,
        Some(_) | None => StatusCode::OK,
    }
}

/// Returns an error like a server on HTTP.
fn error(id: &RequestId, code: i64, message: &str, data: Value) -> Response {
    json(StatusCode::BAD_REQUEST, response::error_with_data(Some(id), code, message, data))
}

/// Returns the users of a channel for requests without sessions: a caller, or the proxy itself.
fn users_of(caller: Option<&Arc<Caller>>) -> Users {
    if caller.is_some_and(|caller| caller.is_anonymous()) { Users::Anonymous } else { Users::Principal }
}
