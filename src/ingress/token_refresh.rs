//! Callers with a refreshed token: calls that they began with an older token are still their own.
//!
//! A caller is known by its credential. A JWT also claims a subject (`iss` and `sub`), which any
//! client can invent. The claim therefore only says where to search. Only if something is found
//! there, the upstream must confirm the token
//! ([`Upstream::probe`](crate::upstream::Upstream::probe)). A new call always belongs to the
//! caller's own credential and claim, and never to an older credential, whose holder may have
//! invented its claim. The other credentials of a request must stay the same: they are a part of
//! the claim, and the probe covers the token alone.

use std::sync::Arc;

use http::Response;

use super::components::Components;
use super::context::RequestContext;
use super::forward;
use super::refusals;
use crate::body::BoxBody;
use crate::clock;
use crate::event_log::{Binding, Session, Stream, StreamName, stream_owing};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Era, ProtocolVersion, SessionId};
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::{Message, RequestId};
use crate::protocol::stream::Machine;
use crate::upstream::ProbeOutcome;

/// Error for a caller that claims a subject and cannot prove it now, instead of "not found".
pub(super) enum Unproven {
    /// The upstream's own refusal of the token.
    Refused(Box<Response<BoxBody>>),
    /// The upstream or the store could not be reached, as the code says.
    Unavailable(ErrorCode),
}

impl Unproven {
    /// Returns the response to a request that has no JSON-RPC ID.
    pub(super) fn into_response(self, components: &Components) -> Response<BoxBody> {
        match self {
            Self::Refused(response) => *response,
            Self::Unavailable(code) => refusals::refuse(components, code),
        }
    }
}

/// Returns the stream with this name, which an older token of the caller opened, and the cursor in
/// it.
pub(super) async fn find_by_previous_token(
    components: &Components,
    context: &RequestContext,
    name: StreamName<'_>,
) -> Result<Option<(Arc<Stream>, Seq)>, Unproven> {
    let Some((stream, cursor)) = components.log.find_claimed(name, &context.binding) else { return Ok(None) };
    let era = stream.with_machine(|machine| machine.policy().era);
    Ok(proves_subject(components, context, era).await?.then_some((stream, cursor)))
}

/// Returns the session's standalone stream that an older token opened.
pub(super) async fn previous_standalone(
    components: &Components,
    context: &RequestContext,
    id: &SessionId,
) -> Result<Option<Arc<Stream>>, Unproven> {
    let sessions = components.log.sessions();
    let mut previous = previous_bindings(components, &context.binding).into_iter();
    match previous.find_map(|binding| sessions.standalone(id, &binding.principal)) {
        Some(stream) if proves_subject(components, context, Era::Legacy).await? => Ok(Some(stream)),
        Some(_) | None => Ok(None),
    }
}

/// Returns the records of the session under older tokens, if any of them `concerns` the
/// request.
pub(super) async fn previous_sessions(
    components: &Components,
    context: &RequestContext,
    concerns: impl Fn(&SessionId, &Session) -> bool,
) -> Result<Vec<Arc<Session>>, Unproven> {
    let Some(id) = &context.binding.session else { return Ok(Vec::new()) };
    let found = |binding: Binding| components.log.sessions().find(id, &binding.principal);
    let previous: Vec<_> = previous_bindings(components, &context.binding).into_iter().filter_map(found).collect();
    if !previous.iter().any(|session| concerns(id, session))
        || !proves_subject(components, context, era(context)).await?
    {
        return Ok(Vec::new());
    }
    Ok(previous)
}

/// Returns the call of an older token that this POST may retry: the first result of `find`.
pub(super) async fn find_previous_call(
    components: &Components,
    context: &RequestContext,
    era: Era,
    find: impl Fn(&Binding) -> Option<Arc<Stream>>,
) -> Result<Option<Arc<Stream>>, Unproven> {
    match previous_bindings(components, &context.binding).iter().find_map(find) {
        Some(stream) if proves_subject(components, context, era).await? => Ok(Some(stream)),
        Some(_) | None => Ok(None),
    }
}

/// Returns the caller in the same session with the other tokens that claim its subject. Empty
/// for nearly all callers.
fn previous_bindings(components: &Components, caller: &Binding) -> Vec<Binding> {
    let Some(subject) = &caller.subject else { return Vec::new() };
    let others = components.upstream.observed().tokens().other_principals(subject, &caller.principal);
    others.into_iter().map(|principal| Binding { principal, ..caller.clone() }).collect()
}

/// True if the upstream confirms the caller's token. Probes the upstream, unless that was done
/// a moment ago. Of several requests at once, the first probes for all. If the probe proves
/// nothing, each request probes for itself, since the upstream may respond differently.
pub(super) async fn proves_subject(
    components: &Components,
    context: &RequestContext,
    era: Era,
) -> Result<bool, Unproven> {
    if context.has_remote_session() {
        // Only the session's own server could confirm it, and no other may see the session.
        return Ok(false);
    }
    // The request waits for the upstream. Without a body it has no reservation yet.
    let head = match context.reservation {
        Some(_) => None,
        None => Some(context.quota.reserve(context.head_bytes)),
    };
    if let Some(reservation) = head.as_ref().or(context.reservation.as_ref()) {
        components.log.evict_for(reservation).map_err(Unproven::Unavailable)?;
    }
    let tokens = components.upstream.observed().tokens();
    let used = (context.binding.principal, context.binding.session.clone());
    let guard = match tokens.begin_probe(used.clone()) {
        Ok(guard) => Some(guard),
        Err(other) => {
            if !other.has_result().await {
                return Err(Unproven::Unavailable(ErrorCode::TokenUnproven));
            }
            None
        }
    };
    if let Some(is_genuine) = tokens.probed(&used, clock::now()) {
        return Ok(is_genuine);
    }
    let (client, caller) = (context.connection.forwarded(), context.caller.clone());
    let probed = components.upstream.probe(&context.parts, client, caller, era).await;
    components.metrics.upstream.observe_probe(&probed);
    let is_genuine = match probed {
        ProbeOutcome::Genuine => true,
        ProbeOutcome::Foreign => false,
        ProbeOutcome::Inconclusive => return Ok(false),
        // The probe went without the other credentials, which may be the reason for the
        // refusal.
        ProbeOutcome::Refused(_) if context.presented_credentials().has_other_credentials() => return Ok(false),
        ProbeOutcome::Refused(refusal) => {
            let (request, response) = *refusal;
            return Err(Unproven::Refused(Box::new(forward::pass_response(components, &request, response))));
        }
        ProbeOutcome::Unknown => {
            if let Some(guard) = guard {
                guard.end_inconclusive();
            }
            return Err(Unproven::Unavailable(ErrorCode::TokenUnproven));
        }
    };
    tokens.record_probe(used, is_genuine, clock::now());
    Ok(is_genuine)
}

/// Returns the era of a request, by its own version or its session's.
fn era(context: &RequestContext) -> Era {
    context.version().as_ref().map_or(Era::Legacy, ProtocolVersion::era)
}

/// True if `messages` has a response to an open request of these streams, or `cancelled` names a
/// call of theirs.
pub(super) fn is_concerned(streams: &[Arc<Stream>], messages: &[Message], cancelled: &[RequestId]) -> bool {
    let response_ids = messages.iter().filter_map(|message| match message {
        Message::Response { id, .. } => id.as_ref(),
        Message::Request { .. } | Message::Notification { .. } => None,
    });
    let select = |is_selected: fn(&Machine) -> bool| -> Vec<Arc<Stream>> {
        streams.iter().filter(|stream| stream.with_machine(is_selected)).cloned().collect()
    };
    let with_requests = select(|machine| !machine.server_requests().is_empty());
    let running = select(|machine| !machine.lifecycle().is_sealed());
    let is_known = |id: &RequestId| {
        with_requests.iter().any(|stream| stream.with_machine(|machine| machine.server_requests().knows(id)))
    };
    response_ids.into_iter().any(is_known) || cancelled.iter().any(|id| stream_owing(&running, id).is_some())
}
