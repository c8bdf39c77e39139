//! Requests of clients of 2026-07-28 at a server that speaks the revisions with sessions alone.
//!
//! Above this module the server appears to speak the client's revision. Each caller gets a session
//! at the server, opened on first use with the capabilities of its client. A server request during
//! a call ends the response with `input_required`. The call then stays open at the server until a
//! request brings the client responses, so that no tool runs again.
//!
//! Owned here: the sessions, and the parked calls. Absent: the bytes of the messages
//! (`protocol/bridge/modern_clients/`).

mod awaited;
mod call;
mod late_response;
mod listen;
mod listeners;
mod opening;
mod parked;
mod request;
mod running;
mod session;
mod standalone;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::{Value, json};

use self::awaited::Awaited;
use self::call::{BridgedCall, Source};
use self::late_response::{Exchanging, late_response};
use self::parked::{Begun, Parked, ParkedCalls, UrlOutcome};
use self::request::{ClientRequest, refusal};
use self::session::{Busy, Key, LegacySession, Sessions};
use super::responses::{self, empty, event_stream, is_translated, json_response, message_of, untranslatable};
use super::settings::Link;
use crate::protocol::bridge::modern_clients::{self as bridge, Kind};
use crate::protocol::effects;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, names};
use crate::protocol::jsonrpc::{self, Message, RequestId, ServerFacts, code, response};
use crate::protocol::session_refusal::{Refusal, Verdict};
use crate::upstream::observed::Observed;
use crate::upstream::server::Server;
use crate::upstream::server::body::collect;
use crate::upstream::server::exchange::{Exchange, Exchanged, Unanswered};
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::sent::Sent;
use crate::upstream::server::sse_reader::EventReader;
use crate::upstream::session_refusals::{Inquiry, Revivals};
use crate::{clock, config, sync};

/// Maximum attempts of a request: in the session, and in its replacement if the server has
/// forgotten the session.
const ATTEMPTS: usize = 2;
/// Time that a server counts as naming its sessions. For some callers no session may be opened
/// meanwhile.
const NAMED_TTL: Duration = Duration::from_secs(300);
/// Maximum wait for the completion of elicitation URLs, after consent and before the call is sent
/// again.
const COMPLETION_WAIT: Duration = Duration::from_secs(2);

/// Translates requests. All workers share it.
pub(super) struct ModernClients {
    link: Arc<Link>,
    revivals: Arc<Revivals>,
    /// Tokens whose caller the server has confirmed or denied.
    observed: Arc<Observed>,
    sessions: Sessions,
    parked: Arc<ParkedCalls>,
    /// True if the server assigned no name to the session opened last.
    is_sessionless: AtomicBool,
    /// Time until the server no longer counts as naming its sessions. `None` if it named no
    /// session.
    named: Mutex<Option<Instant>>,
}

/// Outcome of a request in a session.
enum Called {
    Response(Box<Response<ResponseBody>>),
    /// The server has forgotten the session.
    Lost,
    /// The server refuses the revision of the session, by this response.
    RevisionRefused(Box<Response<ResponseBody>>),
}

impl From<Response<ResponseBody>> for Called {
    fn from(response: Response<ResponseBody>) -> Self {
        Self::Response(Box::new(response))
    }
}

/// Outcome of a translated request.
pub(super) struct Translated {
    /// Response in a session, or a response of the bridge itself.
    pub(super) exchanged: Exchanged,
    /// True if the server did not open a session, or refuses its revision. Nothing of the request
    /// has run.
    pub(super) is_unopened: bool,
}

impl From<Response<ResponseBody>> for Translated {
    fn from(response: Response<ResponseBody>) -> Self {
        Self { exchanged: Ok(response), is_unopened: false }
    }
}

/// Reason why a request has no session.
enum NoSession {
    /// The server refused `initialize`, or the revision, by this response.
    Refused(Box<Exchanged>),
    /// The request has this response already.
    Response(Box<Exchanged>),
    /// Requests of this caller are not translated.
    Unbridged,
}

impl ModernClients {
    /// Creates a bridge without sessions.
    pub(super) fn new(link: Arc<Link>, revivals: Arc<Revivals>, observed: Arc<Observed>) -> Arc<Self> {
        Arc::new(Self {
            parked: ParkedCalls::new(link.clone()),
            link,
            revivals,
            observed,
            sessions: Sessions::default(),
            is_sessionless: AtomicBool::default(),
            named: Mutex::default(),
        })
    }

    /// Records that a session was opened, and whether the server has assigned it a name.
    pub(super) fn record_begun_session(&self, is_named: bool) {
        self.is_sessionless.store(!is_named, Ordering::Relaxed);
        *sync::lock(&self.named) = is_named.then(|| clock::now() + NAMED_TTL);
    }

    /// Returns true if the server assigned no name to the session opened last.
    pub(super) fn is_sessionless(&self) -> bool {
        self.is_sessionless.load(Ordering::Relaxed)
    }

    /// Returns true if the request continues a call that is parked in this process.
    pub(super) fn has_parked(&self, template: &Template) -> bool {
        self.parked.has_any()
            && jsonrpc::string_member(template.body(), &["params", "requestState"])
                .is_some_and(|state| self.parked.has(&state))
    }

    /// Returns true if any call is parked in this process.
    pub(super) fn has_any_parked(&self) -> bool {
        self.parked.has_any()
    }

    /// Returns true if the server has named a session in the last [`NAMED_TTL`].
    fn names_sessions(&self) -> bool {
        sync::lock(&self.named).is_some_and(|until| clock::now() < until)
    }

    /// Returns true if a session may be opened for the caller of this request: no other caller can
    /// share it.
    fn may_have_session(&self, request: &ClientRequest) -> bool {
        let is_known = request.template.caller().is_some_and(|caller| !caller.is_anonymous());
        let settings = &self.link.settings;
        settings.config.modern_clients == config::ModernClients::Always && (is_known || settings.is_loopback)
    }

    /// Handles a request of a client of 2026-07-28. Returns `None` if the request must be forwarded
    /// unchanged.
    pub(super) async fn send(
        self: &Arc<Self>,
        server: &Server,
        template: &Template,
        sent: Option<&Sent>,
    ) -> Option<Translated> {
        if *template.method() != Method::POST {
            // The revision has only POST.
            let mut refusal = empty(StatusCode::METHOD_NOT_ALLOWED);
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return Some(refusal.into());
        }
        let Ok(jsonrpc::Body::Single(message)) = jsonrpc::peek(template.body()) else {
            let text = "Invalid request: one message is expected";
            return Some(refusal(None, code::INVALID_REQUEST, text, Value::Null).into());
        };
        let Message::Request { id, method } = message else {
            // No client notification has a meaning on HTTP at this revision.
            return Some(empty(StatusCode::ACCEPTED).into());
        };
        let request = match ClientRequest::checked(template, &id, &method) {
            Ok(request) => request,
            Err(refusal) => return Some((*refusal).into()),
        };
        if request.kind == Kind::Unknown {
            let refused = json_response(StatusCode::NOT_FOUND, response::method_not_found(&request.id));
            return Some(refused.into());
        }
        match self.respond(server, request, sent).await {
            Ok(response) => Some(response.into()),
            Err(NoSession::Response(exchanged)) => Some(Translated { exchanged: *exchanged, is_unopened: false }),
            Err(NoSession::Refused(exchanged)) => Some(Translated { exchanged: *exchanged, is_unopened: true }),
            Err(NoSession::Unbridged) => None,
        }
    }

    async fn respond(
        self: &Arc<Self>,
        server: &Server,
        request: ClientRequest,
        sent: Option<&Sent>,
    ) -> Result<Response<ResponseBody>, NoSession> {
        let key = Key::of(request.template.caller(), &request.envelope);
        let request = Arc::new(request);
        let mut lost = None;
        for _ in 0..ATTEMPTS {
            let session = self.session(&key, &request, lost.take()).await?;
            let busy = session.begin();
            if let Some(sent) = sent
                && matches!(request.kind, Kind::Discover | Kind::Listen)
            {
                sent.set_sent();
            }
            if request.kind == Kind::Discover {
                let found = bridge::discovered(&session.initialized, &request.id);
                return Ok(match found {
                    Some(found) => json_response(StatusCode::OK, found),
                    None => unavailable(&request.id),
                });
            }
            let sending = match jsonrpc::member(request.template.body(), &["params", "requestState"]) {
                _ if request.kind == Kind::Listen => self.listen(&key, &session, &request).await,
                Some(state) => self.resume_parked(server, (session.clone(), busy), &request, state, sent).await,
                None => self.call(server, (session.clone(), busy), &request, sent).await,
            };
            match sending.map_err(|failure| NoSession::Response(Box::new(Err(failure))))? {
                Called::Response(response) => return Ok(*response),
                // The request has not run.
                Called::Lost => lost = Some(session),
                Called::RevisionRefused(response) => return Err(NoSession::Refused(Box::new(Ok(*response)))),
            }
        }
        Err(NoSession::Response(Box::new(Err(Failure::before_run(ErrorCode::Unreachable).into()))))
    }

    /// Sends a request in the session.
    async fn call(
        self: &Arc<Self>,
        server: &Server,
        (session, busy): (Arc<LegacySession>, Busy),
        request: &Arc<ClientRequest>,
        sent: Option<&Sent>,
    ) -> Result<Called, Unanswered> {
        let (own, limit) = (session.usage.next_id(), self.link.settings.max_event_bytes);
        let Some(body) = bridge::translated(request.template.body(), &own, &own) else {
            return Ok(refusal(Some(&request.id), code::INVALID_REQUEST, "Invalid request", Value::Null).into());
        };
        if let Some(level) = request.envelope.log_level {
            session.lower_log_level(&request.template, level).await;
        }
        let template = session.addressed(&request.template).with_body(body.into());
        let mut awaited = Awaited::new(&session, request, own.clone());
        let (link, sent) = (self.link.clone(), sent.cloned());
        let mut exchange: Exchanging = Box::pin(async move { link.server.exchange(&template, sent.as_ref()).await });
        let response = tokio::select! {
            biased;
            response = &mut exchange => response,
            () = awaited.early_message() => {
                let late = late_response(exchange, own, limit);
                let call = BridgedCall::new(session, busy, request, awaited, Source::Late(Box::pin(late)));
                return Ok(event_stream(self.parked.messages(call)).into());
            }
        };
        let mut response = match response {
            Ok(response) => response,
            Err(unanswered) => {
                awaited.disarm();
                return Err(unanswered);
            }
        };
        response.headers_mut().remove(names::MCP_SESSION_ID);
        if session.is_named() {
            let ids = [RequestId::String(own.as_str().into())];
            let (examined, refused) = self.revivals.examine(response, &ids).await;
            if self.is_lost(server, &session, request, (examined.status(), &refused)).await {
                session.mark_lost();
                if refused.is_known() || effects::are_absent(request.template.body()) {
                    awaited.disarm();
                    return Ok(Called::Lost);
                }
            }
            response = examined;
        }
        let (mut parts, body) = response.into_parts();
        if parts.status.is_success() && headers::is_sse(&parts.headers) {
            headers::remove_body_facts(&mut parts.headers);
            let reader = EventReader::new(body, limit);
            let call = BridgedCall::new(session, busy, request, awaited, Source::Begun(reader));
            return Ok(self.streamed(parts, call).await.into());
        }
        if !is_translated(&parts) {
            awaited.disarm();
            return Ok(Response::from_parts(parts, body).into());
        }
        let collected = collect(body, limit).await;
        awaited.disarm();
        let Ok(body) = collected else { return Err(Failure::after_send(ErrorCode::UpstreamBroke).into()) };
        self.whole(request, &session, parts, body)
    }

    /// Returns true if this response shows that the server has forgotten the session. A response
    /// that a tool may have written does not suffice: an inquiry at the server decides.
    async fn is_lost(
        &self,
        server: &Server,
        session: &LegacySession,
        request: &ClientRequest,
        (status, refused): (StatusCode, &Refusal),
    ) -> bool {
        if status.is_success() {
            session.record_response();
        }
        match refused {
            Refusal::None => return false,
            // The statuses of a server on a channel are written by the proxy, not by a tool.
            Refusal::Known | Refusal::Possible(_) if server.has_channels() => return true,
            Refusal::Known | Refusal::Possible(_) => {}
        }
        let server = ServerFacts::of(&session.initialized);
        let inquiry = Inquiry {
            refusals: self.revivals.refusals(),
            request: &session.addressed(&request.template),
            version: None,
            server: server.as_ref(),
            refused: (status.as_u16(), refused),
        };
        let verdict = inquiry.run(async |probe| self.link.server.exchange(&probe, None).await.ok());
        match verdict.await {
            Verdict::Dead => true,
            Verdict::RefusedAlike => session.has_responded(),
            Verdict::Undecided => refused.is_known(),
            Verdict::Lives => false,
        }
    }

    /// Returns the stream of a call, or the immediate refusal of the server.
    async fn streamed(&self, mut parts: Parts, call: Box<BridgedCall>) -> Response<ResponseBody> {
        let body = match self.parked.begun(call).await {
            Begun::Stream(messages) => ResponseBody::Messages(messages),
            Begun::Refused(message) => {
                parts.status = bridge::status_of(&message);
                parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                ResponseBody::whole(message)
            }
        };
        Response::from_parts(parts, body)
    }

    /// Translates a response that is one message.
    ///
    /// # Errors
    /// If a successful response cannot be translated.
    fn whole(
        self: &Arc<Self>,
        request: &ClientRequest,
        session: &Arc<LegacySession>,
        mut parts: Parts,
        body: Bytes,
    ) -> Result<Called, Unanswered> {
        let message = message_of(body.clone());
        let is_refused =
            parts.status == StatusCode::BAD_REQUEST && jsonrpc::error_code(&message) == Some(code::UNSUPPORTED_VERSION);
        let translated = match request.urls_in(&message) {
            Some(elicitations) => Some(self.parked.require_urls(request, session, elicitations, message)),
            None => request.result_as(session, &message),
        };
        let body = match translated {
            Some(message) => {
                headers::remove_body_facts(&mut parts.headers);
                if parts.status.is_success() {
                    parts.status = bridge::status_of(&message);
                }
                message.into()
            }
            None if parts.status == StatusCode::OK => return Err(untranslatable()),
            None => body,
        };
        let response = Response::from_parts(parts, ResponseBody::whole(body));
        Ok(if is_refused { Called::RevisionRefused(Box::new(response)) } else { response.into() })
    }

    /// Continues a parked call with the client responses.
    async fn resume_parked(
        self: &Arc<Self>,
        server: &Server,
        (session, busy): (Arc<LegacySession>, Busy),
        request: &Arc<ClientRequest>,
        state: &str,
        sent: Option<&Sent>,
    ) -> Result<Called, Unanswered> {
        let state: Option<String> = serde_json::from_str(state).ok();
        let Some(parked) = state.and_then(|state| self.parked.take(&state, &session, request.digest.as_ref())) else {
            let text = "Invalid params: requestState is unknown, was used, or is that of another request";
            return Ok(refusal(Some(&request.id), code::INVALID_PARAMS, text, Value::Null).into());
        };
        let responses = jsonrpc::parsed_member(request.template.body(), &["params", "inputResponses"]);
        let responses: Value = responses.unwrap_or_else(|| json!({}));
        match parked {
            Parked::Call(call) => {
                if let Some(sent) = sent {
                    sent.set_sent();
                }
                let call = call.resume(request, &responses);
                Ok(event_stream(self.parked.messages(call)).into())
            }
            Parked::Urls(call) => match call.outcome(request, &responses) {
                UrlOutcome::Retry(request) => {
                    session.wait_for_completion(call.ids(), clock::now() + COMPLETION_WAIT).await;
                    Box::pin(self.call(server, (session, busy), &request, sent)).await
                }
                UrlOutcome::Incomplete => {
                    let (request, error) = (call.in_same_round(request), call.error().clone());
                    let required = self.parked.require_urls(&request, &session, call.elicitations(), error);
                    Ok(json_response(StatusCode::OK, required).into())
                }
                UrlOutcome::Declined => {
                    let refused = request.result_as(&session, call.error());
                    Ok(json_response(StatusCode::OK, refused.unwrap_or_default()).into())
                }
            },
        }
    }
}

fn unavailable(id: &RequestId) -> Response<ResponseBody> {
    responses::refusal(ErrorCode::UpstreamGarbage, "no session could be opened", id)
}
