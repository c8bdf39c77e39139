//! The handshake that opens a forgotten session again, in the name of its client.
//!
//! Owned here: the messages, their order and time limits, and the comparison with the previous
//! server. Each message has the headers of the current request, so the server judges its caller.
//! Invariant: client requests get the new name only once the handshake is complete. Absent: the
//! decision to begin, and the limits of attempts ([`super`]).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;

use crate::backoff::Backoff;
use crate::clock;
use crate::event_log::{EventLog, Handshake, Replacement, Saved, Stream};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{ProtocolVersion, SessionId, names};
use crate::protocol::ids::Owner;
use crate::protocol::jsonrpc::{self, Message, RequestId, ServerFacts};
use crate::protocol::stream::SessionChange;
use crate::simulation::{self, Bug};
use crate::upstream::gateway_status;
use crate::upstream::server::body::collect;
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::sse_reader::first_message;
use crate::upstream::server::synthetic;
use crate::upstream::stack::Upstream;

/// Time limit for a handshake.
const LIMIT: Duration = Duration::from_secs(30);
/// Size limit of a response of the handshake.
const RESPONSE_MAX: usize = 1024 * 1024;
/// Pauses between attempts to reach a server that is restarting.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(250));
/// Maximum wait for the standalone stream, which carries server requests.
const LISTENING_WAIT: Duration = Duration::from_secs(2);
/// Maximum wait for the server to request the client's roots.
const SERVER_REQUEST_WAIT: Duration = Duration::from_millis(500);
/// Time limit for restoring the log level and the subscriptions. The session serves without the
/// rest.
const RESTORE_WAIT: Duration = Duration::from_secs(10);
/// Time limit for ending a session that no client will use.
const END_WAIT: Duration = Duration::from_secs(2);
/// Maximum wait for client responses, from the end of the handshake.
const RESPONSE_WAIT: Duration = Duration::from_secs(2);
const RESPONSE_STEP: Duration = Duration::from_millis(25);

/// Outcome of a handshake.
pub(super) enum Opened {
    Revived,
    /// The server refuses the caller, with this response.
    Unauthorized(Box<Response<ResponseBody>>),
    /// The server on stdio could not be started. This response gives the reason.
    Unstarted(Box<Response<ResponseBody>>),
    /// The server was replaced by a different one, or lacks a capability.
    Differs,
    /// The client has ended the session meanwhile.
    Ended,
    /// Another replica has become the home of the session meanwhile.
    Displaced(Owner),
    /// The session was not opened, for this reason.
    Failed(&'static str),
}

/// Outcome of a message in the new session.
enum Posted {
    Accepted,
    Refused,
    Interrupted(Interrupted),
}

/// Interruption of a handshake, which then begins again: the server was restarted, or appears to
/// be.
enum Interrupted {
    /// The server has forgotten the new session.
    Forgotten,
    /// The server has sent no response. It may still have the new session.
    Broken,
}

/// A handshake and what it needs.
#[derive(Clone)]
pub(super) struct Handshaking {
    pub(super) upstream: Arc<Upstream>,
    pub(super) log: Arc<EventLog>,
    pub(super) id: SessionId,
    pub(super) handshake: Arc<Handshake>,
    /// The refused request. The messages have its headers.
    pub(super) request: Arc<Template>,
}

impl Handshaking {
    /// Runs the handshake. On success the session has its new name. Otherwise a session that the
    /// server has opened is ended. `permit` is held until the response to `initialize`.
    pub(super) async fn run(self, permit: OwnedSemaphorePermit) -> Opened {
        // The start of a server has a limit of its own.
        let limit = LIMIT + self.upstream.server().start_limit().unwrap_or_default();
        let opened = match tokio::time::timeout(limit, self.open(permit)).await {
            Ok(opened) => opened,
            Err(_) => Opened::Failed("no complete handshake in time"),
        };
        if let Some(name) = self.handshake.opening_name()
            && !matches!(opened, Opened::Revived)
        {
            for stream in self.standalone() {
                stream.change(|machine, now| machine.handle_session(SessionChange::Lost, now));
            }
            let _ = tokio::time::timeout(END_WAIT, self.end(name.as_ref())).await;
        }
        opened
    }

    /// Runs the handshake, and begins it again after an interruption. Each beginning counts as an
    /// attempt. A new session that the server may still have is ended first.
    async fn open(&self, mut permit: OwnedSemaphorePermit) -> Opened {
        loop {
            let name = match self.initialize(permit).await {
                Ok(name) => name,
                Err(opened) => return opened,
            };
            let interrupted = match self.complete(name.clone()).await {
                Ok(opened) => return opened,
                Err(_) if self.handshake.is_over() => return Opened::Ended,
                Err(interrupted) => interrupted,
            };
            if !self.handshake.begin_attempt(clock::now(), !self.upstream.has_channels()) {
                return Opened::Failed("each handshake was interrupted");
            }
            for stream in self.standalone() {
                stream.change(|machine, now| machine.handle_session(SessionChange::Lost, now));
            }
            if matches!(interrupted, Interrupted::Broken) {
                let _ = tokio::time::timeout(END_WAIT, self.end(name.as_ref())).await;
            }
            permit = match self.upstream.revivals().permits.clone().acquire_owned().await {
                Ok(permit) => permit,
                Err(_) => return Opened::Failed("the proxy ends"),
            };
        }
    }

    /// Opens the session at the server, and returns its name there. `permit` is held until the
    /// response.
    async fn initialize(&self, permit: OwnedSemaphorePermit) -> Result<Option<SessionId>, Opened> {
        let id = synthetic::own_id();
        let response = self.send_initialize(&id).await.map_err(Opened::Failed)?;
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(Opened::Unauthorized(Box::new(response))),
            status if status.is_server_error() && self.upstream.has_channels() => {
                return Err(Opened::Unstarted(Box::new(response)));
            }
            status if !status.is_success() => return Err(Opened::Failed("initialize was refused")),
            _ => {}
        }
        let name = SessionId::from_headers(response.headers());
        let Some(result) = read_response(response, &id, RESPONSE_MAX).await else {
            return Err(Opened::Failed("initialize was not answered"));
        };
        drop(permit);
        let is_taken = self.is_as_before(&result) || self.take_replacement(&result);
        if !is_taken {
            self.log.sessions().handshakes().forget(&self.id);
            self.log.homes().save(&self.id).await;
            for stream in self.standalone() {
                stream.expire(ErrorCode::Abandoned);
            }
            self.end(name.as_ref()).await;
            return Err(Opened::Differs);
        }
        if self.handshake.is_over() {
            self.end(name.as_ref()).await;
            return Err(Opened::Ended);
        }
        Ok(name)
    }

    /// Completes the handshake of the session `name`, and gives this name to the client's session.
    async fn complete(&self, name: Option<SessionId>) -> Result<Opened, Interrupted> {
        self.log.sessions().handshakes().note_opening(&self.handshake, name.clone());
        self.leave_unanswered();
        let standalone = self.reopen_standalone().await;
        if self.handshake.is_initialized() {
            match self.restore(name.as_ref()).await {
                Posted::Accepted => {}
                Posted::Refused => return Ok(Opened::Failed("notifications/initialized was refused")),
                Posted::Interrupted(interrupted) => return Err(interrupted),
            }
        }
        if self.handshake.params.declares_roots() {
            await_client_responses(&standalone).await;
        }
        Ok(self.adopt(name, &standalone).await)
    }

    /// Gives the client's session its new name at the server, unless the session has ended or has
    /// another home.
    async fn adopt(&self, name: Option<SessionId>, standalone: &[Arc<Stream>]) -> Opened {
        let visible = name.as_ref().map(|name| self.upstream.names().visible_name(name));
        let handshakes = self.log.sessions().handshakes();
        // Requests get the name only if this replica is still the home.
        let saved = self.log.homes().save_revival(&self.id, name.clone()).await;
        match saved {
            Saved::Ok | Saved::Failed => {}
            Saved::Ended => return Opened::Ended,
            Saved::Displaced(owner) => return Opened::Displaced(owner),
        }
        if !handshakes.rename(&self.id, &self.handshake, name.clone(), visible.as_ref()) {
            return Opened::Ended;
        }
        if saved == Saved::Failed {
            // Until the record is saved, a restart of the proxy costs a further handshake.
            handshakes.changes().push(self.id.clone());
        }
        self.announce(name, standalone.to_vec());
        Opened::Revived
    }

    /// Sends `initialize` until the server accepts a connection. A broken exchange is repeated: at
    /// worst the server keeps a session that is never used.
    async fn send_initialize(&self, id: &str) -> Result<Response<ResponseBody>, &'static str> {
        let params = self.handshake.params.as_json();
        let body = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"initialize","params":{params}}}"#);
        let mut headers = self.headers();
        headers.remove(names::MCP_PROTOCOL_VERSION);
        let template = self.request.beside(Method::POST, &headers, body.into()).for_revival();
        let (mut pauses, wait) = (PAUSES, self.upstream.server().http().config().wait);
        loop {
            match gateway_status::initialize(self.upstream.unnamed(), &template, wait).await {
                Ok(response) => return Ok(response),
                Err(_) if self.handshake.is_over() => return Err("the session was ended"),
                Err(_) => clock::sleep(pauses.next_pause()).await,
            }
        }
    }

    /// Returns the headers of the current request, for a message of the handshake.
    fn headers(&self) -> HeaderMap {
        let mut headers = self.request.own_headers();
        headers.remove(names::MCP_SESSION_ID);
        headers.remove(names::LAST_EVENT_ID);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, synthetic::BOTH_TYPES);
        headers
    }

    /// Returns true if the result of `initialize` has the known revision and capabilities of the
    /// server.
    fn is_as_before(&self, result: &[u8]) -> bool {
        let version = jsonrpc::initialize_result(result).and_then(|it| ProtocolVersion::parse(&it.protocol_version));
        let is_as_before = version.as_ref() == Some(&self.handshake.version)
            && ServerFacts::of(result).is_some_and(|later| self.handshake.server.are_kept_by(&later));
        if is_as_before {
            self.handshake.set_replacement(None);
        }
        is_as_before
    }

    /// Takes another server in place of the known one, where the client permits that. Returns false
    /// if it does not, or if the server does not say what it is.
    fn take_replacement(&self, result: &[u8]) -> bool {
        if !self.upstream.revivals().front.takes_any_server {
            return false;
        }
        let version = jsonrpc::initialize_result(result).and_then(|it| ProtocolVersion::parse(&it.protocol_version));
        let (Some(version), Some(server)) = (version, ServerFacts::of(result)) else { return false };
        let replacement = Replacement { version, server };
        if self.handshake.replacement().as_deref() != Some(&replacement) {
            let (was, is) = (self.handshake.version.as_str(), replacement.version.as_str());
            let without = self.handshake.server.missing_in(&replacement.server).join(", ");
            warn!(revision = is, before = was, without, "another server is in the session now");
        }
        self.handshake.set_replacement(Some(replacement));
        true
    }

    /// Returns the session's standalone streams that are open downstream.
    fn standalone(&self) -> Vec<Arc<Stream>> {
        self.log.sessions().standalone_of(&self.id, &self.handshake.principals())
    }

    /// Keeps the IDs of server requests without a client response: the server will use them again
    /// in the new session.
    fn leave_unanswered(&self) {
        for stream in self.log.sessions().streams_of(&self.id, &self.handshake.principals()) {
            let ids: Vec<_> = stream.with_machine(|machine| machine.server_requests().outstanding().cloned().collect());
            self.handshake.leave_unanswered(ids);
        }
        self.handshake
            .leave_unanswered(self.log.retention().unanswered_requests(&self.id, &self.handshake.principals()));
    }

    /// Makes the standalone streams of the session reopen under its new name, before the server
    /// needs them for a request. Returns the streams that are open downstream.
    async fn reopen_standalone(&self) -> Vec<Arc<Stream>> {
        let streams = self.standalone();
        if !streams.is_empty() {
            let mut listening = pin!(self.handshake.listening());
            listening.as_mut().enable();
            for stream in &streams {
                stream.change(|machine, now| machine.handle_session(SessionChange::Reopening, now));
            }
            // A server without standalone streams refuses them.
            let _ = tokio::time::timeout(LISTENING_WAIT, listening).await;
        }
        streams
    }

    /// Sends `notifications/initialized`, then restores the log level and the subscriptions.
    /// Returns the outcome of the first.
    async fn restore(&self, name: Option<&SessionId>) -> Posted {
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned();
        let posted = self.post(name, initialized).await;
        if !matches!(posted, Posted::Accepted) {
            return posted;
        }
        let level = self.handshake.log_level().map(|level| request("logging/setLevel", "level", &level));
        let subscriptions = self.handshake.subscriptions();
        let subscriptions = subscriptions.iter().map(|uri| request("resources/subscribe", "uri", uri));
        let restoring = async {
            for message in level.into_iter().chain(subscriptions) {
                // A server that has changed may refuse it. The session serves without it.
                self.post(name, message).await;
            }
        };
        let _ = tokio::time::timeout(RESTORE_WAIT, restoring).await;
        Posted::Accepted
    }

    /// Sends a message in the new session.
    async fn post(&self, name: Option<&SessionId>, message: String) -> Posted {
        let template = self.request.beside(Method::POST, &self.headers_in(name), message.into());
        let Ok(response) = self.upstream.unnamed().exchange(&template, None).await else {
            return Posted::Interrupted(Interrupted::Broken);
        };
        let is_accepted = response.status().is_success();
        let (response, is_forgotten) = self.upstream.revivals().is_session_refused(response).await;
        // Reading the response to its end lets the next request use the connection.
        let _ = tokio::time::timeout(RESPONSE_WAIT, collect(response.into_body(), RESPONSE_MAX)).await;
        match (is_accepted, is_forgotten) {
            (true, _) => Posted::Accepted,
            (false, true) => Posted::Interrupted(Interrupted::Forgotten),
            (false, false) => Posted::Refused,
        }
    }

    pub(super) fn headers_in(&self, name: Option<&SessionId>) -> HeaderMap {
        let mut headers = self.headers();
        if let Some(name) = name.and_then(|name| HeaderValue::from_str(name.as_str()).ok()) {
            headers.insert(names::MCP_SESSION_ID, name);
        }
        if let Ok(version) = HeaderValue::from_str(self.handshake.current_version().as_str()) {
            headers.insert(names::MCP_PROTOCOL_VERSION, version);
        }
        headers
    }

    /// Ends a session that no client will use.
    async fn end(&self, name: Option<&SessionId>) {
        if name.is_none() || simulation::has(Bug::LeavesTheEnded) {
            return;
        }
        let mut headers = self.headers_in(name);
        headers.remove(CONTENT_TYPE);
        let template = self.request.beside(Method::DELETE, &headers, Bytes::new());
        let _ = self.upstream.unnamed().exchange(&template, None).await;
    }
}

/// Waits for the client responses to server requests at the end of the handshake, such as
/// `roots/list`.
async fn await_client_responses(standalone: &[Arc<Stream>]) {
    let began = clock::now();
    let is_pending = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.server_requests().has_outstanding());
    let is_read = |stream: &&Arc<Stream>| stream.with_machine(|machine| machine.reader().is_attached());
    let read: Vec<_> = standalone.iter().filter(is_read).collect();
    let mut was_pending = false;
    while !read.is_empty() {
        let waited = clock::now().saturating_duration_since(began);
        let has_pending = read.iter().any(|stream| is_pending(stream));
        was_pending |= has_pending;
        let limit = if was_pending { RESPONSE_WAIT } else { SERVER_REQUEST_WAIT };
        if (was_pending && !has_pending) || waited >= limit {
            return;
        }
        clock::sleep(RESPONSE_STEP).await;
    }
}

fn request(method: &str, member: &str, value: &str) -> String {
    let params = serde_json::json!({ member: value });
    serde_json::json!({ "jsonrpc": "2.0", "id": synthetic::own_id(), "method": method, "params": params }).to_string()
}

/// Reads the response to the request `id` from a JSON body or an event stream, as strict JSON.
/// Requests and notifications before it are skipped. `limit` is the maximum size of a message, in
/// bytes.
pub(super) async fn read_response(response: Response<ResponseBody>, id: &str, limit: usize) -> Option<Bytes> {
    let is_response = |message: &[u8]| {
        let json = jsonrpc::as_json(message);
        let Ok(body) = jsonrpc::peek(json.as_deref().unwrap_or(message)) else { return false };
        body.messages().iter().any(|message| match message {
            Message::Response { id: Some(RequestId::String(other)), is_error: false } => **other == *id,
            Message::Response { .. } | Message::Request { .. } | Message::Notification { .. } => false,
        })
    };
    let message = first_message(response, limit, is_response).await?;
    Some(jsonrpc::as_json(&message).map_or(message, Bytes::from))
}
