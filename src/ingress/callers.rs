//! Identification of callers: the party, the session and the quota of each request.

use std::sync::Arc;

use http::Method;
use http::request::Parts;

use super::components::Components;
use super::connection::Connection;
use super::context::{RequestContext, Sender, SessionKind};
use super::misdirected::{self, OwnerCheck};
use crate::event_log::{Binding, EventLog, Opened, PresentedCredentials, Principals, QuotaKey};
use crate::protocol::headers::{SessionId, names};
use crate::protocol::ids::IssuedSession;
use crate::store;
use crate::upstream::{Credentials, Upstream};

/// Identifies the callers of requests.
pub(super) struct Callers {
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    principals: Principals,
    credentials: Principals,
    owner_check: OwnerCheck,
}

impl Callers {
    pub(super) fn new(components: &Components, owner_check: OwnerCheck) -> Self {
        let Components { log, upstream, principals, credentials, .. } = components;
        Self {
            log: log.clone(),
            upstream: upstream.clone(),
            principals: principals.clone(),
            credentials: credentials.clone(),
            owner_check,
        }
    }

    /// Returns the context of a request that came by `connection`, with a head of this size.
    pub(super) fn identify(
        &self,
        mut parts: Parts,
        head_bytes: usize,
        connection: Arc<Connection>,
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
        let is_marked = misdirected::is_marked(&parts.headers);
        let session_kind = match &id {
            _ if issued.is_some() => SessionKind::Issued,
            Some(id) if self.owner_check.is_remote_session(id, is_marked) => SessionKind::Remote,
            Some(_) | None => SessionKind::Upstream,
        };
        let sessions = self.log.sessions();
        let session = match (&id, issued) {
            (Some(id), Some(IssuedSession { version, declared })) => {
                Some(sessions.find_or_open(id, &principal, Opened { version, logging: false, declared }))
            }
            (Some(id), None) if parts.method == Method::POST => Some(sessions.find_or_record(id, &principal)),
            (Some(id), None) => sessions.find(id, &principal),
            (None, _) => None,
        };
        let address = connection.client(&parts.headers);
        let is_open = session.as_ref().is_some_and(|session| session.version().is_some());
        let open_session = if is_open { id.as_ref() } else { None };
        let key = QuotaKey::of(&principal, is_proven, open_session, address);
        let quota = self.log.quota(key);
        Box::new(RequestContext {
            parts,
            binding: Binding { principal, subject, session: id },
            credentials,
            session,
            session_kind,
            sender: if is_marked { Sender::Balancer } else { Sender::Client },
            quota,
            head_bytes,
            body_bytes: 0,
            reservation: None,
            connection,
        })
    }

    /// Restores the session that a request names, if another process knows more of it. Fails if no request may be served without that
    /// knowledge.
    pub(super) async fn restore_session(&self, context: &mut RequestContext) -> Result<(), store::Error> {
        if let Some(id) = &context.binding.session
            && let Some(session) = self.log.load_session(id, &context.binding.principal).await?
        {
            context.session = Some(session);
        }
        Ok(())
    }

    /// Returns the session that a request names. A session that the proxy issued is never named upstream. One that claims to be issued,
    /// but with another key, counts as none.
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
