//! DELETE on the endpoint: the end of a session.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::forward::Forwarder;
use super::forward_to_replicas::OwnerForwarder;
use super::refusals::Refusals;
use super::token_refresh::TokenRefresh;
use crate::body::BoxBody;
use crate::event_log::{Binding, EventLog, Principal, Session};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::server::respond;
use crate::upstream::{Template, Upstream};

/// Ends sessions for their clients.
pub(super) struct SessionEnds {
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    refusals: Refusals,
    forwarder: Arc<Forwarder>,
    owners: Arc<OwnerForwarder>,
    tokens: Arc<TokenRefresh>,
}

impl SessionEnds {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        forwarder: Arc<Forwarder>,
        owners: Arc<OwnerForwarder>,
        tokens: Arc<TokenRefresh>,
    ) -> Self {
        let Components { log, upstream, .. } = components;
        Self { log: log.clone(), upstream: upstream.clone(), refusals, forwarder, owners, tokens }
    }

    /// Handles a DELETE. The upstream decides; once it has ended the session, its streams end here.
    /// A stream that had ended before stays readable for its retention.
    pub(super) async fn delete(&self, context: Box<RequestContext>, body: Bytes) -> Response<BoxBody> {
        let binding = context.binding.clone();
        let sessions = self.log.sessions();
        if context.has_issued_session() {
            return match Box::pin(self.owners.forward_to_all(&context)).await {
                Ok(Some(response)) if response.status() == StatusCode::SERVICE_UNAVAILABLE => response,
                Ok(_) | Err(_) => self.end_issued(&context).await,
            };
        }
        let mut owner_unknown = None;
        if !context.has_home_session() {
            match Box::pin(self.owners.forward_session_end(&context)).await {
                Ok(Some(response)) => {
                    if response.status() != StatusCode::SERVICE_UNAVAILABLE {
                        self.log.forget_session_of(&binding).await;
                    }
                    return response;
                }
                Ok(None) => {}
                Err(unknown) => owner_unknown = Some(unknown),
            }
        }
        if let Some(code) = context.remote_session_error() {
            return self.refusals.refuse(code);
        }
        let has_streams =
            |id: &SessionId, session: &Session| !sessions.streams(id, session).is_empty() || session.has_finished();
        let previous = match self.tokens.previous_sessions(&context, has_streams).await {
            Ok(previous) => previous,
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        let template = self.upstream.pass(&context.parts, context.connection.forwarded(), body);
        let template = template.for_caller(context.caller.clone());
        let mut response = self.delete_upstream(&binding, &template).await;
        if let Some(owner_unknown) = owner_unknown {
            response = owner_unknown.check(&self.refusals, response);
        }
        let has_ended = response.status().is_success() || response.status() == StatusCode::NOT_FOUND;
        if has_ended && let Some(id) = &binding.session {
            self.end_session(&binding).await;
            for record in previous {
                let principal = *record.principal();
                self.end_record(id, &principal, Some(record)).await;
            }
            self.owners.announce_session_end(&context).await;
        }
        response
    }

    /// Sends the DELETE. A session that its server has forgotten is ended all the same, if it could
    /// have been opened again.
    async fn delete_upstream(&self, binding: &Binding, template: &Template) -> Response<BoxBody> {
        let handshakes = self.log.sessions().handshakes();
        let handshake = binding.session.as_ref().and_then(|id| handshakes.find(id));
        let (Some(handshake), Some(id)) = (handshake, &binding.session) else {
            return self.forwarder.send(template).await;
        };
        let may_revive = handshake.may_revive(&binding.principal);
        let (mut response, mut is_refused) = self.forwarder.send_examined(template).await;
        if is_refused
            && may_revive
            && let Some(again) = template.renamed_since(&handshake)
        {
            // The session was opened again meanwhile.
            (response, is_refused) = self.forwarder.send_examined(&again).await;
        }
        if response.status().is_success() || (may_revive && is_refused) {
            handshakes.forget(id);
            // Before the client knows: no replica takes the session over.
            self.log.save_handshake(id).await;
        }
        if may_revive && is_refused { respond::status(StatusCode::OK) } else { response }
    }

    /// Ends the streams of a session that its server has ended, and forgets the session.
    pub(super) async fn end_session(&self, binding: &Binding) {
        let Some(id) = &binding.session else { return };
        let session = self.log.sessions().find(id, &binding.principal);
        self.end_record(id, &binding.principal, session).await;
    }

    /// Ends the streams of a session that its server has ended under one principal, and forgets its
    /// record, which may be gone already.
    async fn end_record(&self, id: &SessionId, principal: &Principal, session: Option<Arc<Session>>) {
        // Held while the store is read: a call that ends meanwhile stays a stream, which its record
        // finds.
        let mut streams: Vec<_> = session.iter().flat_map(|session| session.streams()).collect();
        let removed = self.log.forget_session(id, principal).await;
        let is_removed = |session: &Arc<Session>| removed.as_ref().is_some_and(|removed| Arc::ptr_eq(removed, session));
        let replaced = session.filter(|session| !is_removed(session));
        let records: Vec<_> = replaced.into_iter().chain(removed).collect();
        streams.extend(records.iter().flat_map(|session| session.streams()));
        streams.extend(self.log.sessions().standalone(id, principal));
        for stream in streams {
            stream.expire(ErrorCode::Abandoned);
            self.log.release(stream);
        }
        for session in &records {
            self.log.expire_finished(session).await;
        }
    }

    /// Ends an issued session, which the upstream does not know.
    async fn end_issued(&self, context: &RequestContext) -> Response<BoxBody> {
        let sessions = self.log.sessions();
        if let (Some(id), Some(session)) = (&context.binding.session, &context.session) {
            for stream in sessions.streams(id, session) {
                stream.expire(ErrorCode::Abandoned);
            }
            self.log.expire_finished(session).await;
            let _ = sessions.remove(id, &context.binding.principal);
            self.log.unregister_session(id, session).await;
        }
        respond::status(StatusCode::OK)
    }
}
