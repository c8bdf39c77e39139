//! Opening and end of the sessions at the server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use tokio::task::JoinSet;
use tracing::debug;

use super::listen::subscribe_all;
use super::listeners::Listeners;
use super::request::ClientRequest;
use super::session::{Key, LegacySession, REQUEST_WAIT, plain};
use super::{ModernClients, NoSession, standalone, unavailable};
use crate::clock;
use crate::protocol::bridge::modern_clients as bridge;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, names};
use crate::protocol::jsonrpc::{self, RequestId};
use crate::upstream::bridge::responses::{json_response, refusal, refuses_request, response_in};
use crate::upstream::bridge::sessions::until_idle;
use crate::upstream::gateway_status;
use crate::upstream::server::body::begun;
use crate::upstream::server::exchange::Exchanged;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::synthetic;
use crate::upstream::token_probe::confirms_token;

/// Time limit of `initialize`: a server on stdio may have to be installed first.
const OPENING_WAIT: Duration = Duration::from_secs(60);
/// Size limit of an error that refuses `initialize`.
const REFUSAL_MAX: usize = 64 * 1024;
/// Time limit for the end of all sessions.
const END_WAIT: Duration = Duration::from_secs(3);

impl ModernClients {
    /// Returns the session of the caller. Opens a session if the caller has no session, or if its
    /// session is `lost`.
    pub(super) async fn session(
        self: &Arc<Self>,
        key: &Key,
        request: &ClientRequest,
        lost: Option<Arc<LegacySession>>,
    ) -> Result<Arc<LegacySession>, NoSession> {
        if self.passes(request) {
            return Err(NoSession::Unbridged);
        }
        self.find_by_subject(key, request).await;
        let Some((slot, evicted)) = self.sessions.slot(key, self.link.settings.config.sessions_per_principal) else {
            return Err(refused(Ok(refusal(ErrorCode::NoServer, "there are too many sessions", &request.id))));
        };
        if let Some(evicted) = evicted {
            end_apart(evicted);
        }
        let mut slot = slot.lock().await;
        let is_lost = |session: &Arc<LegacySession>| {
            session.is_lost() || lost.as_ref().is_some_and(|lost| Arc::ptr_eq(session, lost))
        };
        let previous = match &*slot {
            Some(session) if !is_lost(session) => {
                session.usage.record_request(&request.template);
                return Ok(session.clone());
            }
            Some(lost) => Some(lost.clone()),
            None => None,
        };
        let listeners = previous.map(|previous| previous.listeners.clone()).unwrap_or_default();
        let opened = self.open(request, listeners).await?;
        *slot = Some(opened.clone());
        drop(slot);
        self.end_when_idle(&opened);
        Ok(opened)
    }

    /// Lets a caller with a refreshed token continue in its session, if the server confirms the
    /// token.
    async fn find_by_subject(&self, key: &Key, request: &ClientRequest) {
        let Some((caller, (slot, session))) = request.template.caller().zip(self.sessions.of_subject(key)) else {
            return;
        };
        let ping = synthetic::post(&plain(&request.template).with_body(Bytes::new()), synthetic::ping());
        if confirms_token(&*self.link.server, self.observed.tokens(), caller, None, session.addressed(&ping)).await {
            self.sessions.add_key(key, slot);
        }
    }

    /// Returns true if requests of this caller are forwarded unchanged: no session may be opened
    /// for it.
    fn passes(&self, request: &ClientRequest) -> bool {
        self.names_sessions() && !self.may_have_session(request)
    }

    /// Opens a session with the headers of the request.
    async fn open(
        self: &Arc<Self>,
        request: &ClientRequest,
        listeners: Arc<Listeners>,
    ) -> Result<Arc<LegacySession>, NoSession> {
        let id = synthetic::own_id();
        let version = HeaderValue::from_static(bridge::LEGACY);
        let initialize = synthetic::post(&plain(&request.template), bridge::initialize(&id, &request.envelope));
        let initialize = initialize.with(names::MCP_PROTOCOL_VERSION, version);
        let opening = async {
            let wait = self.link.server.http().config().wait;
            let response = match gateway_status::initialize(&*self.link.server, &initialize, wait).await {
                Ok(response) if response.status().is_success() => response,
                Ok(refusal) if refuses_request(refusal.status()) => {
                    return Err(NoSession::Refused(Box::new(Ok(self.translated(refusal, &request.id).await))));
                }
                refusal => return Err(refused(refusal)),
            };
            let name = response.headers().get(names::MCP_SESSION_ID).cloned();
            Ok((name, response_in(response).await))
        };
        let Ok(opened) = tokio::time::timeout(OPENING_WAIT, opening).await else {
            return Err(refused(Err(Failure::before_run(ErrorCode::UpstreamTimeout).into())));
        };
        let unavailable = || refused(Ok(unavailable(&request.id)));
        let (name, Some(message)) = opened? else { return Err(unavailable()) };
        let is_resumed = !listeners.is_empty();
        let Some(session) =
            LegacySession::of(&self.link, name, message.clone(), &request.envelope, &request.template, listeners)
        else {
            return Err(match jsonrpc::parsed_member(&message, &["error"]) {
                Some(error) => {
                    let error = json_response(StatusCode::BAD_REQUEST, bridge::modern_error(&request.id, &error));
                    NoSession::Refused(Box::new(Ok(error)))
                }
                None => unavailable(),
            });
        };
        let session = Arc::new(session);
        self.record_begun_session(session.is_named());
        if self.passes(request) {
            end_apart(session);
            return Err(NoSession::Unbridged);
        }
        if !session.post(&request.template, bridge::initialized()).await {
            end_apart(session);
            return Err(unavailable());
        }
        debug!("a session was opened for clients of 2026-07-28");
        tokio::spawn(standalone::read(Arc::downgrade(&session)));
        if is_resumed {
            subscribe_all(&session, &request.template, session.listeners.resources()).await;
            session.listeners.notify_all_changed();
        }
        Ok(session)
    }

    /// Ends the session after its idle time.
    fn end_when_idle(self: &Arc<Self>, session: &Arc<LegacySession>) {
        let (clients, session, idle) = (Arc::downgrade(self), Arc::downgrade(session), self.link.settings.config.idle);
        tokio::spawn(async move {
            if let Some(session) = until_idle(session, idle).await
                && let Some(clients) = clients.upgrade()
            {
                clients.sessions.forget(&session);
                session.end().await;
            }
        });
    }

    /// Ends all parked calls, and all sessions, at the end of the process. Returns after at most
    /// three seconds.
    pub(in super::super) async fn end_all(self: &Arc<Self>) {
        let mut ending = JoinSet::new();
        for call in self.parked.take_all() {
            ending.spawn(async move { call.give_up().await });
        }
        let until = clock::now() + END_WAIT;
        let all = |ending: JoinSet<()>| {
            tokio::time::timeout(until.saturating_duration_since(clock::now()), ending.join_all())
        };
        drop(all(ending).await);
        let mut ending = JoinSet::new();
        for session in self.sessions.take_all() {
            ending.spawn(async move { session.end().await });
        }
        drop(all(ending).await);
    }

    /// Translates a refusal of `initialize` into a response to the client's request, if it is a
    /// JSON-RPC error.
    async fn translated(&self, refusal: Response<ResponseBody>, id: &RequestId) -> Response<ResponseBody> {
        let (refusal, whole) = begun(refusal, REFUSAL_MAX, REQUEST_WAIT).await;
        let Some(error) = whole.and_then(|whole| bridge::result_as(&whole, id, None, bridge::ListHints::Absent)) else {
            return refusal;
        };
        let (mut parts, _) = refusal.into_parts();
        headers::remove_body_facts(&mut parts.headers);
        Response::from_parts(parts, ResponseBody::whole(error))
    }
}

/// Ends a session in a separate task.
fn end_apart(session: Arc<LegacySession>) {
    tokio::spawn(async move { session.end().await });
}

fn refused(exchanged: Exchanged) -> NoSession {
    NoSession::Response(Box::new(exchanged))
}
