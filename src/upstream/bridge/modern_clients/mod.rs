//! Requests of clients of 2026-07-28 at a server that speaks the revisions with sessions alone.
//!
//! To all above it the server speaks the client's revision. Each caller gets a session at the server, opened with the capabilities of its client when it is
//! first needed. A question of the server in mid-call ends the response with `input_required`, and the call waits, at the server as it was, for the request
//! that brings the answers: no tool runs again. Owned here: the sessions, and the calls that wait. Absent: the bytes of the messages
//! (`protocol/bridge/modern_clients/`).

mod call;
mod parked;
mod session;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use self::call::{BridgedBody, BridgedCall};
use self::parked::ParkedCalls;
use self::session::{Key, LegacySession, Sessions};
use super::{Answer, Settings, response_in};
use crate::channel;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::bridge::modern_clients::{self as bridge, Envelope, Kind, ListHints};
use crate::protocol::channel::envelope;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, names};
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::upstream::body::collect;
use crate::upstream::{ResponseBody, Template, Upstream, synthetic};

const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const HEADER_MISMATCH: i64 = -32020;
const UNSUPPORTED_VERSION: i64 = -32022;
/// Pause before the server's own stream is opened again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Translates requests. All workers share it.
pub(super) struct ModernClients {
    settings: Settings,
    /// Connections of requests of the bridge's own.
    upstream: Arc<Upstream>,
    sessions: Sessions,
    parked: ParkedCalls,
}

/// A request that is translated.
struct Request<'a> {
    template: &'a Template,
    id: RequestId,
    method: String,
    kind: Kind,
    envelope: Envelope,
    /// Token under which the client wants progress, as JSON.
    progress_token: Option<String>,
}

impl ModernClients {
    /// Creates a bridge with connections of its own.
    pub(super) fn new(settings: Settings, upstream: Arc<Upstream>) -> Arc<Self> {
        Arc::new(Self { settings, upstream, sessions: Sessions::default(), parked: ParkedCalls::default() })
    }

    /// Answers a request of a client of 2026-07-28.
    pub(super) async fn send(
        self: &Arc<Self>,
        upstream: &Upstream,
        template: &Template,
        sent: Option<&Arc<Stream>>,
    ) -> Answer {
        let Ok(jsonrpc::Body::Single(message)) = jsonrpc::peek(template.body()) else {
            return Ok(refusal(None, INVALID_REQUEST, "Invalid request: one message is expected", Value::Null));
        };
        let Message::Request { id, method } = message else {
            // No notification of a client means anything on HTTP at this revision.
            return Ok(channel::empty(StatusCode::ACCEPTED).map(ResponseBody::Channel));
        };
        let request = match checked(template, &id, &method) {
            Ok(request) => request,
            Err(refusal) => return Ok(*refusal),
        };
        self.answer(upstream, request, sent).await
    }

    async fn answer(self: &Arc<Self>, upstream: &Upstream, request: Request<'_>, sent: Option<&Arc<Stream>>) -> Answer {
        if request.kind == Kind::Unknown {
            return Ok(answered(StatusCode::NOT_FOUND, bridge::method_not_found(&request.id)));
        }
        let key = Key::of(request.template.caller(), &request.envelope);
        for is_second in [false, true] {
            let session = match self.session(&key, &request).await {
                Ok(session) => session,
                Err(refused) => return refused,
            };
            match request.kind {
                Kind::Discover => {
                    if let Some(stream) = sent {
                        stream.note_sent();
                    }
                    let found = bridge::discovered(&session.initialized, &request.id);
                    return Ok(match found {
                        Some(found) => answered(StatusCode::OK, found),
                        None => unavailable(&request.id),
                    });
                }
                Kind::Listen => return Ok(answered(StatusCode::NOT_FOUND, bridge::method_not_found(&request.id))),
                Kind::List | Kind::Call | Kind::Read | Kind::Plain | Kind::Unknown => {}
            }
            if let Some(state) = jsonrpc::member(request.template.body(), &["params", "requestState"]) {
                return Ok(self.go_on(&session, &request, state, sent).await);
            }
            let response = self.call(upstream, &session, &request, sent).await?;
            if response.status() == StatusCode::NOT_FOUND && session.is_named() && !is_second {
                // The server has forgotten the session, and has run nothing.
                self.sessions.forget(&key, &session);
                continue;
            }
            return Ok(response);
        }
        Err(Failure::before_run(ErrorCode::Unreachable).into())
    }

    /// Returns the session of the caller; opens it if there is none.
    async fn session(self: &Arc<Self>, key: &Key, request: &Request<'_>) -> Result<Arc<LegacySession>, Answer> {
        let Some(slot) = self.sessions.slot(key, self.settings.config.sessions_per_principal) else {
            let refusal = channel::refusal_about(
                ErrorCode::NoServer,
                "there are too many sessions",
                std::slice::from_ref(&request.id),
            );
            return Err(Ok(refusal.map(ResponseBody::Channel)));
        };
        let mut slot = slot.lock().await;
        if let Some(session) = &*slot {
            session.touch();
            return Ok(session.clone());
        }
        let opened = self.open(request).await?;
        *slot = Some(opened.clone());
        self.end_when_idle(key.clone(), &opened, plain(request.template));
        Ok(opened)
    }

    /// Opens a session with the headers of the request.
    async fn open(self: &Arc<Self>, request: &Request<'_>) -> Result<Arc<LegacySession>, Answer> {
        let id = synthetic::own_id();
        let version = HeaderValue::from_static(bridge::LEGACY);
        let initialize = synthetic::post(&plain(request.template), bridge::initialize(&id, &request.envelope));
        let response = match self.upstream.exchange(&initialize.with(names::MCP_PROTOCOL_VERSION, version), None).await
        {
            Ok(response) if response.status().is_success() => response,
            refused => return Err(refused),
        };
        let name = response.headers().get(names::MCP_SESSION_ID).cloned();
        let Some(message) = response_in(response).await else { return Err(Ok(unavailable(&request.id))) };
        let Some(session) = LegacySession::of(name, message.clone()) else {
            let error =
                jsonrpc::member(&message, &["error"]).and_then(|error| serde_json::from_str::<Value>(error).ok());
            return Err(Ok(match error {
                Some(error) => answered(StatusCode::BAD_REQUEST, bridge::modern_error(&request.id, &error)),
                None => unavailable(&request.id),
            }));
        };
        let session = Arc::new(session);
        let told = self.post(&session, request.template, bridge::initialized()).await;
        if !told.is_some_and(|status| status.is_success()) {
            return Err(Ok(unavailable(&request.id)));
        }
        tokio::spawn(listen(Arc::downgrade(self), Arc::downgrade(&session), request.template.clone()));
        Ok(session)
    }

    /// Sends a request in the session.
    async fn call(
        self: &Arc<Self>,
        upstream: &Upstream,
        session: &Arc<LegacySession>,
        request: &Request<'_>,
        sent: Option<&Arc<Stream>>,
    ) -> Answer {
        let own = session.next_id();
        let Some(body) = bridge::translated(request.template.body(), &own, &own) else {
            return Ok(refusal(Some(&request.id), INVALID_REQUEST, "Invalid request", Value::Null));
        };
        let digest = CallDigest::of(&body, &request.method);
        if let Some(level) = request.envelope.log_level {
            self.lower_log_level(session, request.template, level).await;
        }
        let template = in_session(session, request.template).with_body(body.into());
        let mut response = upstream.exchange(&template, sent).await?;
        response.headers_mut().remove(names::MCP_SESSION_ID);
        let is_json = headers::is_json(response.headers());
        if response.status().is_success() && headers::is_sse(response.headers()) {
            let call = BridgedCall::new(self, session, request, own, digest, response.into_body());
            return Ok(stream_of(call));
        }
        // An unknown session is one for the caller of this function.
        let has_message = is_json && response.status() != StatusCode::NOT_FOUND;
        if !response.status().is_success() && !has_message {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let Ok(body) = collect(body, self.settings.max_event_bytes).await else {
            return Err(Failure::after_send(ErrorCode::UpstreamBroke).into());
        };
        match bridge::result_as(&body, &request.id, session.server_info.as_ref(), request.hints()) {
            Some(message) if parts.status.is_success() => Ok(answered(bridge::status_of(&message), message)),
            Some(message) => Ok(answered(parts.status, message)),
            None => Ok(Response::from_parts(parts, ResponseBody::Channel(channel::Body::whole(body)))),
        }
    }

    /// Goes on with a call that waits for the answers of its client.
    async fn go_on(
        self: &Arc<Self>,
        session: &Arc<LegacySession>,
        request: &Request<'_>,
        state: &str,
        sent: Option<&Arc<Stream>>,
    ) -> Response<ResponseBody> {
        let body = request.template.body();
        let digest = bridge::translated(body, "", "").and_then(|body| CallDigest::of(&body, &request.method));
        let state: Option<String> = serde_json::from_str(state).ok();
        let parked = state.and_then(|state| self.parked.take(&state, session, digest.as_ref()));
        let Some(call) = parked else {
            let text = "Invalid params: requestState is unknown, was used, or is that of another request";
            return refusal(Some(&request.id), INVALID_PARAMS, text, Value::Null);
        };
        if let Some(stream) = sent {
            stream.note_sent();
        }
        let answers = jsonrpc::member(body, &["params", "inputResponses"]).unwrap_or("{}");
        stream_of(call.go_on(request, serde_json::from_str(answers).unwrap_or_else(|_| json!({}))).await)
    }

    /// Lowers the level of log messages in the session, if the server has any.
    async fn lower_log_level(&self, session: &LegacySession, template: &Template, level: bridge::LogLevel) {
        if session.lowers_log_level(level) {
            let id = synthetic::own_id();
            let body =
                json!({"jsonrpc": "2.0", "id": id, "method": "logging/setLevel", "params": {"level": level.name()}});
            self.post(session, template, body.to_string().into_bytes()).await;
        }
    }

    /// Posts a message in the session. Returns the status, or `None` if the server was not reached.
    async fn post(&self, session: &LegacySession, template: &Template, body: Vec<u8>) -> Option<StatusCode> {
        let response =
            self.upstream.exchange(&in_session(session, &synthetic::post(template, body)), None).await.ok()?;
        Some(response.status())
    }

    /// Ends the session once nothing has happened in it for long.
    fn end_when_idle(self: &Arc<Self>, key: Key, session: &Arc<LegacySession>, template: Template) {
        let (bridge, session, idle) = (Arc::downgrade(self), Arc::downgrade(session), self.settings.config.idle);
        tokio::spawn(async move {
            loop {
                let Some(until) = session.upgrade().map(|session| session.used() + idle) else { return };
                clock::sleep_until(until).await;
                let (Some(bridge), Some(session)) = (bridge.upgrade(), session.upgrade()) else { return };
                if session.used() + idle <= clock::now() && !session.is_busy() {
                    bridge.sessions.forget(&key, &session);
                    let delete =
                        in_session(&session, &template.beside(Method::DELETE, &template.own_headers(), Bytes::new()));
                    // A server that is away forgets the session by itself.
                    let _ = bridge.upstream.exchange(&delete, None).await;
                    return;
                }
                session.touch_if_busy();
            }
        });
    }
}

impl Request<'_> {
    fn hints(&self) -> ListHints {
        if matches!(self.kind, Kind::List | Kind::Read) { ListHints::Uncached } else { ListHints::Absent }
    }
}

/// Reads messages of the server that belong to no call, for as long as the session lives: it is pinged there, and may ask.
async fn listen(bridge: std::sync::Weak<ModernClients>, session: std::sync::Weak<LegacySession>, template: Template) {
    let template = plain(&template);
    loop {
        let response = {
            let (Some(bridge), Some(session)) = (bridge.upgrade(), session.upgrade()) else { return };
            let get = in_session(&session, &template.to_get(None));
            bridge.upstream.exchange(&get, None).await
        };
        match response {
            Ok(response) if response.status().is_success() && headers::is_sse(response.headers()) => {
                session::read_standalone(&bridge, &session, &template, response.into_body()).await;
            }
            // The server has no such stream, or has forgotten the session.
            Ok(response) if response.status().is_client_error() => return,
            Ok(_) | Err(_) => {}
        }
        clock::sleep(LISTEN_PAUSE).await;
    }
}

/// Checks the headers and the envelope of a request.
fn checked<'a>(
    template: &'a Template,
    id: &RequestId,
    method: &str,
) -> Result<Request<'a>, Box<Response<ResponseBody>>> {
    let body = template.body();
    if let Some(header) = envelope::mismatch(&template.lines().to_map(), method, body) {
        let text = format!("Header mismatch: {header} does not match the body");
        return Err(refusal(Some(id), HEADER_MISMATCH, &text, Value::Null).into());
    }
    let version = jsonrpc::meta_protocol_version(body).unwrap_or_default();
    if version != bridge::MODERN {
        let data = json!({"supported": [bridge::MODERN], "requested": version});
        return Err(refusal(Some(id), UNSUPPORTED_VERSION, "Unsupported protocol version", data).into());
    }
    let envelope = Envelope::of(body).map_err(|member| {
        Box::new(refusal(
            Some(id),
            INVALID_PARAMS,
            &format!("Invalid params: {member} is missing in _meta"),
            Value::Null,
        ))
    })?;
    let progress_token = jsonrpc::progress_token(body).map(str::to_owned);
    Ok(Request {
        template,
        id: id.clone(),
        method: method.to_owned(),
        kind: Kind::of(method),
        envelope,
        progress_token,
    })
}

/// Returns the request without the headers that only the later revision has.
fn plain(template: &Template) -> Template {
    let mut headers = template.own_headers();
    let later: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("mcp-param-")).cloned().collect();
    for name in later.iter().chain([&names::MCP_PROTOCOL_VERSION]) {
        headers.remove(name);
    }
    template.beside(template.method().clone(), &headers, template.body().clone()).for_caller(template.caller().cloned())
}

/// Returns the request in the session.
fn in_session(session: &LegacySession, template: &Template) -> Template {
    let template = plain(template).with(names::MCP_PROTOCOL_VERSION, session.version.clone());
    match &session.name {
        Some(name) => template.with(names::MCP_SESSION_ID, name.clone()),
        None => template,
    }
}

fn stream_of(call: Box<BridgedCall>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Translated(BridgedBody::new(call).boxed_unsync()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

fn answered(status: StatusCode, message: Vec<u8>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Channel(channel::Body::whole(message)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn refusal(id: Option<&RequestId>, code: i64, text: &str, data: Value) -> Response<ResponseBody> {
    answered(StatusCode::BAD_REQUEST, jsonrpc::error_message(id, code, text, data))
}

fn unavailable(id: &RequestId) -> Response<ResponseBody> {
    channel::refusal_about(ErrorCode::UpstreamGarbage, "no session could be opened", std::slice::from_ref(id))
        .map(ResponseBody::Channel)
}
