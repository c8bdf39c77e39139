//! Requests that name another replica, for what cannot be answered here.
//!
//! What a client sends back names the replica that it is about (`protocol/routing.rs`). A balancer sends it there and marks it: a marked
//! request that names another replica is on the wrong way, and is told so by 421 and the name of this one, before anything goes
//! upstream; so is a new call by 503 in a drain, and by 502 where the server accepts no connection. Without a mark nobody could send it elsewhere, and it gets the honest answer. Invariant: a session that another replica's
//! server opened is never named to the server here. Absent: which replicas there are, and the hand-over between those that share a
//! store (`forward_to_owner.rs`).

use http::Response;
use http::header::{HeaderMap, HeaderValue};

use super::{Ingress, RequestContext, respond};
use crate::body::BoxBody;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{SessionId, names};
use crate::protocol::ids::{EventId, Owner};
use crate::protocol::routing;
use crate::protocol::stream_url::Named;
use crate::store::StoreHealth;

/// Whether a balancer has sent the request here for what it names.
pub(super) fn is_marked(headers: &HeaderMap) -> bool {
    headers.contains_key(names::MCP_RESUME_OWNER)
}

impl Ingress {
    /// Whether the session is one of another replica's server.
    pub(super) fn is_remote_session(&self, session: &SessionId, is_marked: bool) -> bool {
        let is_routed = is_marked || self.config.replica.wrap_sessions;
        is_routed && routing::of_name(session).is_some_and(|owner| self.is_other_replica(owner))
    }

    /// Whether a balancer is to be told that the request is another replica's, because nothing of others can be had here. `url` is the
    /// stream that its target named, `body` that of a POST.
    pub(super) fn is_misdirected(&self, context: &RequestContext, url: Option<&Named>, body: &[u8]) -> bool {
        if !context.sender.is_marked() || self.can_serve_others() {
            return false;
        }
        let headers = &context.parts.headers;
        let by_url = || match url? {
            Named::Stream(id) => id.unverified_owner(),
            Named::Malformed => None,
        };
        let by_session = || context.binding.session.as_ref().and_then(routing::of_name);
        let named = routing::of_head(headers, &context.parts.uri).or_else(by_url);
        named.or_else(|| routing::of_body(body)).or_else(by_session).is_some_and(|owner| self.is_other_replica(owner))
    }

    /// Why what only the session's own server can answer is not answered here; `None` where it is.
    pub(super) fn remote_session_error(&self, context: &RequestContext) -> Option<ErrorCode> {
        let code = if context.sender.is_marked() { ErrorCode::Misdirected } else { ErrorCode::SessionElsewhere };
        context.has_remote_session().then_some(code)
    }

    /// What is said of `id` where neither the store nor its owner can be asked.
    pub(super) fn owner_unreachable_error(&self, context: &RequestContext, id: &EventId) -> ErrorCode {
        match id.unverified_owner() {
            Some(owner) if context.sender.is_marked() && self.is_other_replica(owner) => ErrorCode::Misdirected,
            Some(_) | None => ErrorCode::StoreFailed,
        }
    }

    /// Says who is here on a refusal of what another replica may take, and marks a failure of a call that is not the server's: that is how
    /// a balancer tells them from the server's own answers.
    pub(super) fn sign(&self, response: &mut Response<BoxBody>) {
        if respond::is_of_the_call(response) {
            response.headers_mut().insert(names::MCP_RESUME_FAILURE, HeaderValue::from_static("call"));
        }
        if respond::is_for_another(response)
            && let Ok(own) = HeaderValue::from_str(&self.log.owner().to_string())
        {
            response.headers_mut().insert(names::MCP_RESUME_OWNER, own);
        }
    }

    /// Whether anything of other replicas can be had here.
    fn can_serve_others(&self) -> bool {
        self.log.shared().is_some() && self.log.store_health() != StoreHealth::Unreachable
    }

    fn is_other_replica(&self, owner: Owner) -> bool {
        owner != self.log.owner()
    }
}
