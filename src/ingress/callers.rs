//! Identification of callers: the party, the session and the quota of each request.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::request::Parts;

use super::components::Components;
use super::connection::Connection;
use super::context::{Arrival, RequestContext, Sender, SessionKind};
use super::misdirected::OwnerCheck;
use crate::channel::Caller;
use crate::clock;
use crate::event_log::{Binding, EventLog, Home, Opened, PresentedCredentials, Principals, QuotaKey};
use crate::lifecycle::drain::Drain;
use crate::protocol::bridge::legacy_clients::is_session_name;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{SessionId, names};
use crate::protocol::ids::IssuedSession;
use crate::protocol::trace::RequestTrace;
use crate::store;
use crate::upstream::{Bridge, Credentials, Upstream};

/// Error margin for the rest of a lease without renewal. A lease that seems to last longer was
/// renewed: its replica lives.
const LEASE_MARGIN: Duration = Duration::from_secs(2);

/// Identifies the callers of requests.
pub(super) struct Callers {
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    principals: Principals,
    credentials: Principals,
    owner_check: OwnerCheck,
    /// Limit of the wait for the lease of a home that a balancer does not reach.
    home_wait: Duration,
    drain: Arc<Drain>,
}

impl Callers {
    pub(super) fn new(components: &Components, owner_check: OwnerCheck) -> Self {
        let Components { config, log, upstream, principals, credentials, drain, .. } = components;
        Self {
            log: log.clone(),
            upstream: upstream.clone(),
            principals: principals.clone(),
            credentials: credentials.clone(),
            owner_check,
            home_wait: match config.upstream.wait {
                Duration::ZERO => Duration::ZERO,
                wait => wait.min(config.replica.lease) + LEASE_MARGIN,
            },
            drain: drain.clone(),
        }
    }

    /// Returns the context of a request that came by `connection`, with a head of this size.
    pub(super) fn identify(
        &self,
        mut parts: Parts,
        head_bytes: usize,
        connection: Arc<Connection>,
        sender: Sender,
    ) -> Box<RequestContext> {
        let presented = PresentedCredentials {
            headers: &parts.headers,
            query: parts.uri.query(),
            certificate: connection.certificate(),
        };
        let principal = self.principals.of(&presented);
        let subject = self.principals.subject_of(&principal, &presented);
        // A credential is hashed once if it also identifies its caller.
        let presented = if self.principals.is_auto() { principal } else { self.credentials.of(&presented) };
        let credentials = Credentials { presented, principal };
        let is_proven = self.principals.are_named() || self.upstream.observed().has_proven(&credentials);
        let (id, issued) = self.session_of(&mut parts);
        let is_issued = issued.is_some();
        let sessions = self.log.sessions();
        let session = match (&id, issued) {
            (Some(id), Some(IssuedSession { version, declared, has_no_beats, has_tasks })) => {
                let initialize_id = None;
                let opened = Opened { version, logging: false, declared, has_no_beats, has_tasks, initialize_id };
                Some(sessions.find_or_open(id, &principal, opened))
            }
            (Some(id), None) if parts.method == Method::POST => Some(sessions.find_or_record(id, &principal)),
            (Some(id), None) => sessions.find(id, &principal),
            (None, _) => None,
        };
        let has_home_here = || session.as_ref().is_some_and(|session| session.has_home_here());
        let session_kind = match &id {
            _ if is_issued => SessionKind::Issued,
            Some(id) if self.owner_check.names_other_replica(id, sender) && !has_home_here() => SessionKind::Remote,
            Some(_) | None => SessionKind::Upstream,
        };
        let address = connection.client(&parts.headers);
        let is_open = session.as_ref().is_some_and(|session| session.version().is_some());
        let open_session = if is_open { id.as_ref() } else { None };
        let key = QuotaKey::of(&principal, is_proven, open_session, address);
        let quota = self.log.quota(key);
        // All sessions of a caller count together.
        let counted_as = || QuotaKey::of(&principal, is_proven, None, address);
        let is_bridged = id.as_ref().is_some_and(|id| is_session_name(id.as_str().as_bytes()));
        if is_bridged && let Some(bridge) = self.upstream.bridge() {
            bridge.record_bridged_session();
        }
        let has_own_server =
            is_bridged || self.upstream.has_channels() || self.upstream.bridge().is_some_and(Bridge::may_translate);
        let caller = has_own_server.then(|| Arc::new(Caller::new(principal, counted_as()).claiming(subject)));
        let arrival = self
            .log
            .traces()
            .map(|_| Box::new(Arrival { at: clock::wall(), trace: RequestTrace::of(&parts.headers, &[]) }));
        Box::new(RequestContext {
            parts,
            binding: Binding { principal, subject, session: id },
            credentials,
            session,
            session_kind,
            sender,
            address,
            quota,
            caller,
            head_bytes,
            body_bytes: 0,
            reservation: None,
            connection,
            arrival,
        })
    }

    /// Returns whether all is known of the session that a request names: the result of its
    /// `initialize`, and its home.
    pub(super) fn knows_session(&self, context: &RequestContext) -> bool {
        let Some(session) = &context.session else { return false };
        session.is_known() && (!self.upstream.revives_sessions() || self.log.knows_home(session))
    }

    /// Restores the session that a request names, if another process knows more of it.
    ///
    /// # Errors
    /// `StoreFailed` if no request may be served without that knowledge, or `Draining` if another
    /// replica must take the session over.
    pub(super) async fn restore_session(&self, context: &mut RequestContext) -> Result<(), ErrorCode> {
        let Some(id) = context.binding.session.clone() else { return Ok(()) };
        let is_known = context.session.as_ref().is_some_and(|session| session.is_known());
        let loaded = if is_known { Ok(None) } else { self.log.load_session(&id, &context.binding.principal).await };
        if let Some(session) = loaded.map_err(|_| ErrorCode::StoreFailed)? {
            context.session = Some(session);
        }
        if self.upstream.revives_sessions() && !context.has_issued_session() {
            self.find_home(context, &id).await?;
        }
        Ok(())
    }

    /// Finds the home of the session. A session that is named after a replica, and whose home is
    /// gone, is taken over.
    async fn find_home(&self, context: &mut RequestContext, id: &SessionId) -> Result<(), ErrorCode> {
        let term = self.log.home_term();
        let is_named = self.owner_check.names_replica(id, context.sender);
        let home = match self.search_home(context, id, is_named).await {
            Ok(home) => home,
            Err(error) if self.log.should_wait_after(&error) => return Err(ErrorCode::StoreFailed),
            // The session may be here, or may have to be taken over.
            Err(_) if context.has_remote_session() && context.sender.is_routed() => return Err(ErrorCode::StoreFailed),
            // The name of the session decides.
            Err(_) => return Ok(()),
        };
        match home {
            Home::Here(handshake) => {
                context.session_kind = SessionKind::Upstream;
                if let Some(session) = &context.session {
                    session.note_home_here(term, handshake.may_revive(&context.binding.principal));
                }
            }
            Home::Elsewhere(owner) if is_named => {
                context.session_kind = SessionKind::Remote;
                let sessions = self.log.sessions();
                let session =
                    context.session.get_or_insert_with(|| sessions.find_or_record(id, &context.binding.principal));
                session.note_home_elsewhere(owner);
            }
            Home::Gone(_) if is_named && self.drain.is_refusing_calls() => return Err(ErrorCode::Draining),
            // The server here says whether it has the session.
            Home::Elsewhere(_) | Home::Gone(_) | Home::Unknown => {
                if let Some(session) = &context.session {
                    session.note_home_unknown(term);
                }
            }
        }
        Ok(())
    }

    async fn search_home(
        &self,
        context: &RequestContext,
        id: &SessionId,
        is_named: bool,
    ) -> Result<Home, store::Error> {
        let principal = &context.binding.principal;
        let mut home = self.log.session_home(id).await?;
        if let (Home::Elsewhere(owner), Sender::StandIn(lost)) = (&home, context.sender)
            && *owner == lost
        {
            self.log.await_end_of_home(id, lost, principal, self.home_wait).await?;
            home = self.log.session_home(id).await?;
        }
        match home {
            Home::Gone(_) if is_named && !self.drain.is_refusing_calls() => {
                self.log.take_over_session(id, principal).await
            }
            home => Ok(home),
        }
    }

    /// Returns the session that a request names. A session that the proxy issued is never named
    /// upstream. A session that claims to be issued, but with another key, counts as absent.
    fn session_of(&self, parts: &mut Parts) -> (Option<SessionId>, Option<IssuedSession>) {
        let Some(id) = SessionId::from_headers(&parts.headers) else { return (None, None) };
        if !IssuedSession::is_claimed_by(&id) {
            return (Some(id), None);
        }
        parts.headers.remove(names::MCP_SESSION_ID);
        let issued = self.log.open_issued(&id);
        if issued.is_some() { (Some(id), issued) } else { (None, None) }
    }
}
