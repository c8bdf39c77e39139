//! Requests that name another replica, and cannot be served here.
//!
//! An ID that a client sends back names its owner (`protocol/routing.rs`). A balancer sends the
//! request to that owner and marks it. A marked request that names another replica was sent to the
//! wrong one. It is refused with 421 and the name of this replica, before anything goes upstream. A
//! marked new call is refused likewise with 503 during a drain, and with 502 if the server accepts
//! no connection. An unmarked request cannot be routed again, and gets the error itself. A session
//! of another replica's server is never named to the server here (`context.rs`); the refusal names
//! its home, since the session may have moved from the replica in its name. Absent: the list of
//! replicas, and forwarding between replicas with one store (`forward_to_replicas.rs`).

use http::header::{HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use super::components::Components;
use super::context::{RequestContext, Sender};
use crate::body::BoxBody;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{SessionId, names};
use crate::protocol::ids::{EventId, Owner};
use crate::protocol::routing;
use crate::protocol::stream_url::Named;
use crate::server::respond;
use crate::store::StoreHealth;

/// Returns the sender of a request that no replica has forwarded.
pub(super) fn sender_of(headers: &HeaderMap) -> Sender {
    if headers.contains_key(names::MCP_RESUME_OWNER) {
        return Sender::Balancer;
    }
    let home = headers.get(names::MCP_RESUME_HOME).and_then(|home| Owner::parse(home.to_str().ok()?));
    home.map_or(Sender::Client, Sender::StandIn)
}

/// True if the name of the session names the replica whose server opened it, which may be this
/// one.
pub(super) fn names_replica(components: &Components, session: &SessionId, sender: Sender) -> bool {
    reads_names(components, sender) && routing::of_name(session).is_some()
}

/// True if the name of the session names another replica.
pub(super) fn names_other_replica(components: &Components, session: &SessionId, sender: Sender) -> bool {
    reads_names(components, sender)
        && routing::of_name(session).is_some_and(|owner| is_other_replica(components, owner))
}

fn reads_names(components: &Components, sender: Sender) -> bool {
    sender.is_routed() || components.config.replica.wrap_sessions
}

/// True if a balancer must send the request to another replica, because it cannot be served here.
/// With a shared store that is only a call that waits for client responses. `url` is the stream in
/// its target, `body` the body of a POST.
pub(super) fn is_misdirected(
    components: &Components,
    context: &RequestContext,
    url: Option<&Named>,
    body: &[u8],
) -> bool {
    if !context.sender.is_marked() {
        return false;
    }
    let headers = &context.parts.headers;
    let parked_at = || routing::of_parked_call(body).filter(|_| components.config.bridge.is_some());
    if can_serve_others(components) {
        let by_head = routing::of_head(headers, &context.parts.uri);
        return by_head.is_none() && parked_at().is_some_and(|owner| is_other_replica(components, owner));
    }
    let by_url = || match url? {
        Named::Stream(id) => id.unverified_owner(),
        Named::Malformed => None,
    };
    let by_session = || context.binding.session.as_ref().and_then(routing::of_name);
    let named = routing::of_head(headers, &context.parts.uri).or_else(by_url);
    named
        .or_else(|| routing::of_body(body))
        .or_else(parked_at)
        .or_else(by_session)
        .is_some_and(|owner| is_other_replica(components, owner))
}

/// Marks refusals and failures for a balancer, which distinguishes them from the server's own
/// responses. The response to a request that another replica may take has the name of this one. A
/// failure of a call that the server did not cause is marked as such.
pub(super) fn sign(components: &Components, response: &mut Response<BoxBody>) {
    if respond::is_call_failure(response) {
        response.headers_mut().insert(names::MCP_RESUME_FAILURE, HeaderValue::from_static("call"));
    }
    if respond::may_retry_elsewhere(response)
        && let Ok(own) = HeaderValue::from_str(&components.log.owner().to_string())
    {
        response.headers_mut().insert(names::MCP_RESUME_OWNER, own);
    }
}

/// Names the home of the session in a refusal. `known` is the home that the store named before
/// the request was served.
pub(super) fn sign_home(response: &mut Response<BoxBody>, known: Option<Owner>) {
    if response.status() == StatusCode::MISDIRECTED_REQUEST
        && respond::may_retry_elsewhere(response)
        && let Some(home) = respond::home(response).or(known)
        && let Ok(home) = HeaderValue::from_str(&home.to_string())
    {
        response.headers_mut().insert(names::MCP_RESUME_HOME, home);
    }
}

/// True if streams of other replicas can be served here.
fn can_serve_others(components: &Components) -> bool {
    components.log.coordination().is_some() && components.log.store_health() != StoreHealth::Unreachable
}

fn is_other_replica(components: &Components, owner: Owner) -> bool {
    owner != components.log.owner()
}

/// Error for an event ID `id` if neither the store nor the owner can be reached. `own` is this
/// replica.
pub(super) fn owner_unreachable_error(context: &RequestContext, id: &EventId, own: Owner) -> ErrorCode {
    match id.unverified_owner() {
        Some(owner) if context.sender.is_marked() && owner != own => ErrorCode::Misdirected,
        Some(_) | None => ErrorCode::StoreFailed,
    }
}
