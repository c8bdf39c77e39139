//! Queries of a balancer for the home of a session.
//!
//! A balancer cannot send a long body twice. So before it sends a long body to a replica, it sends
//! a query: the head of the request alone. The response is 421 with the home if another replica is
//! to get the request, else 204. All that a request of the session does before its body is read, a
//! query does as well: the wait for the lease of a home that the balancer does not reach, and the
//! takeover of the session. A query never reaches the MCP server. Absent: refusals of requests that
//! came whole ([`super::misdirected`]).

use std::sync::Arc;

use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::refusals::Refusals;
use crate::body::BoxBody;
use crate::event_log::{EventLog, Home};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::names;
use crate::protocol::ids::Owner;
use crate::server::respond;
use crate::upstream::Upstream;

/// True if a request that a balancer sends is a query for the home of its session.
pub(super) fn is_query(parts: &Parts) -> bool {
    parts.method == Method::HEAD && parts.headers.contains_key(names::MCP_RESUME_LOCATE)
}

/// Returns the response of a replica that takes the request.
pub(super) fn here() -> Response<BoxBody> {
    respond::status(StatusCode::NO_CONTENT)
}

/// Responds to queries.
pub(super) struct HomeQueries {
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    refusals: Refusals,
}

impl HomeQueries {
    pub(super) fn new(components: &Components, refusals: Refusals) -> Self {
        Self { log: components.log.clone(), upstream: components.upstream.clone(), refusals }
    }

    /// Responds to the query of an identified caller. `refused` is the error if its session cannot
    /// be served now.
    pub(super) async fn respond(&self, context: &RequestContext, refused: Option<ErrorCode>) -> Response<BoxBody> {
        if let Some(code) = refused.or_else(|| context.remote_session_error()) {
            return self.refusals.refuse(code);
        }
        match self.other_home(context).await {
            Some(home) => self.refusals.fail(Failure::at_home(home)),
            None => here(),
        }
    }

    /// Returns the home of a session whose name does not say that another replica has it, if that
    /// is another replica whose lease runs.
    async fn other_home(&self, context: &RequestContext) -> Option<Owner> {
        let id = context.binding.session.as_ref()?;
        if !self.upstream.revives_sessions() || context.has_issued_session() {
            return None;
        }
        match self.log.session_home(id).await {
            Ok(Home::Elsewhere(owner)) => Some(owner),
            // The server here says whether it has the session. After a failure of the store it does
            // so as well.
            Ok(Home::Here(_) | Home::Gone(_) | Home::Unknown) | Err(_) => None,
        }
    }
}
