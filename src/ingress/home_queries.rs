//! Queries of a balancer for the home of a session.
//!
//! A balancer cannot send a long body twice. So before it sends a long body to a replica, it sends
//! a query: the head of the request alone. The response is 421 with the home if another replica is
//! to get the request, else 204. Before its body is read, a request may wait for the lease of a
//! home that the balancer does not reach, and take the session over. A query does the same. A query
//! never reaches the MCP server. Absent: refusals of requests that came whole
//! ([`super::misdirected`]).

use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::refusals;
use crate::body::BoxBody;
use crate::event_log::Home;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::names;
use crate::protocol::ids::Owner;
use crate::server::respond;

/// True if a request that a balancer sends is a query for the home of its session.
pub(super) fn is_query(parts: &Parts) -> bool {
    parts.method == Method::HEAD && parts.headers.contains_key(names::MCP_RESUME_LOCATE)
}

/// Returns the response of a replica that takes the request.
pub(super) fn here() -> Response<BoxBody> {
    respond::status(StatusCode::NO_CONTENT)
}

/// Responds to the query of an identified caller. `refused` is the error if its session cannot
/// be served now.
pub(super) async fn respond(
    components: &Components,
    context: &RequestContext,
    refused: Option<ErrorCode>,
) -> Response<BoxBody> {
    if let Some(code) = refused.or_else(|| context.remote_session_error()) {
        return refusals::refuse(components, code);
    }
    match other_home(components, context).await {
        Some(home) => refusals::fail(components, Failure::at_home(home)),
        None => here(),
    }
}

/// Returns the home of a session if it is another replica with a running lease. The name of the
/// session names no other replica.
async fn other_home(components: &Components, context: &RequestContext) -> Option<Owner> {
    let id = context.binding.session.as_ref()?;
    if !components.upstream.revives_sessions() || context.has_issued_session() {
        return None;
    }
    match components.log.homes().find(id).await {
        Ok(Home::Elsewhere(owner)) => Some(owner),
        // The server here says whether it has the session. After a failure of the store it does
        // so as well.
        Ok(Home::Here(_) | Home::Gone(_) | Home::Unknown) | Err(_) => None,
    }
}
