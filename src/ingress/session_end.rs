//! DELETE on the endpoint: the end of a session.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::forward;
use super::forward_to_replicas;
use super::refusals;
use super::token_refresh;
use crate::body::BoxBody;
use crate::event_log::{Binding, Principal, Session};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::server::respond;
use crate::upstream::Template;

/// Handles a DELETE. The upstream decides; once it has ended the session, its streams end here.
/// A stream that had ended before stays readable for its retention.
pub(super) async fn delete(components: &Components, context: Box<RequestContext>, body: Bytes) -> Response<BoxBody> {
    let binding = context.binding.clone();
    let sessions = components.log.sessions();
    if context.has_issued_session() {
        return match Box::pin(forward_to_replicas::forward_to_all(components, &context)).await {
            Ok(Some(response)) if response.status() == StatusCode::SERVICE_UNAVAILABLE => response,
            Ok(_) | Err(_) => end_issued(components, &context).await,
        };
    }
    let mut owner_unknown = None;
    if !context.has_home_session() {
        match Box::pin(forward_to_replicas::forward_session_end(components, &context)).await {
            Ok(Some(response)) => {
                if response.status() != StatusCode::SERVICE_UNAVAILABLE {
                    components.log.stored_sessions().forget_of(&binding).await;
                }
                return response;
            }
            Ok(None) => {}
            Err(unknown) => owner_unknown = Some(unknown),
        }
    }
    if let Some(code) = context.remote_session_error() {
        return refusals::refuse(components, code);
    }
    let has_streams =
        |id: &SessionId, session: &Session| !sessions.streams(id, session).is_empty() || session.has_finished();
    let previous = match token_refresh::previous_sessions(components, &context, has_streams).await {
        Ok(previous) => previous,
        Err(unproven) => return unproven.into_response(components),
    };
    let template = components.upstream.pass(&context.parts, context.connection.forwarded(), body);
    let template = template.for_caller(context.caller.clone());
    let mut response = delete_upstream(components, &binding, &template).await;
    if let Some(owner_unknown) = owner_unknown {
        response = owner_unknown.check(components, response);
    }
    let has_ended = response.status().is_success() || response.status() == StatusCode::NOT_FOUND;
    if has_ended && let Some(id) = &binding.session {
        end_session(components, &binding).await;
        for record in previous {
            let principal = *record.principal();
            end_record(components, id, &principal, Some(record)).await;
        }
        forward_to_replicas::announce_session_end(components, &context).await;
    }
    response
}

/// Sends the DELETE. A session that its server has forgotten is ended all the same, if it could
/// have been opened again.
async fn delete_upstream(components: &Components, binding: &Binding, template: &Template) -> Response<BoxBody> {
    let handshakes = components.log.sessions().handshakes();
    let handshake = binding.session.as_ref().and_then(|id| handshakes.find(id));
    let (Some(handshake), Some(id)) = (handshake, &binding.session) else {
        return forward::send(components, template).await;
    };
    let may_revive = handshake.may_revive(&binding.principal);
    let (mut response, mut is_refused) = forward::send_examined(components, template).await;
    if is_refused
        && may_revive
        && let Some(again) = template.renamed_since(&handshake)
    {
        // The session was opened again meanwhile.
        (response, is_refused) = forward::send_examined(components, &again).await;
    }
    if response.status().is_success() || (may_revive && is_refused) {
        handshakes.forget(id);
        // Before the client knows: no replica takes the session over.
        components.log.homes().save(id).await;
    }
    if may_revive && is_refused { respond::status(StatusCode::OK) } else { response }
}

/// Ends the streams of a session that its server has ended, and forgets the session.
pub(super) async fn end_session(components: &Components, binding: &Binding) {
    let Some(id) = &binding.session else { return };
    let session = components.log.sessions().find(id, &binding.principal);
    end_record(components, id, &binding.principal, session).await;
}

/// Ends the streams of a session that its server has ended under one principal. Forgets its record,
/// if it still exists.
async fn end_record(components: &Components, id: &SessionId, principal: &Principal, session: Option<Arc<Session>>) {
    // Held while the store is read. A call that ends meanwhile stays a stream, and its record finds
    // it.
    let mut streams: Vec<_> = session.iter().flat_map(|session| session.streams()).collect();
    let removed = components.log.stored_sessions().forget(id, principal).await;
    let is_removed = |session: &Arc<Session>| removed.as_ref().is_some_and(|removed| Arc::ptr_eq(removed, session));
    let replaced = session.filter(|session| !is_removed(session));
    let records: Vec<_> = replaced.into_iter().chain(removed).collect();
    streams.extend(records.iter().flat_map(|session| session.streams()));
    streams.extend(components.log.sessions().standalone(id, principal));
    for stream in streams {
        stream.expire(ErrorCode::Abandoned);
        components.log.retention().release(stream);
    }
    for session in &records {
        components.log.retention().expire_finished(session).await;
    }
}

/// Ends an issued session, which the upstream does not know.
async fn end_issued(components: &Components, context: &RequestContext) -> Response<BoxBody> {
    let sessions = components.log.sessions();
    if let (Some(id), Some(session)) = (&context.binding.session, &context.session) {
        for stream in sessions.streams(id, session) {
            stream.expire(ErrorCode::Abandoned);
        }
        components.log.retention().expire_finished(session).await;
        let _ = sessions.remove(id, &context.binding.principal);
        components.log.stored_sessions().unregister(id, session).await;
    }
    respond::status(StatusCode::OK)
}
