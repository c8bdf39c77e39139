//! The task that a request names: the search for its stream, and the way of a change to the replica
//! that runs its call.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use tracing::debug;

use crate::body::BoxBody;
use crate::event_log::Stream;
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::forward_to_replicas;
use crate::ingress::refusals;
use crate::ingress::stream_finder;
use crate::ingress::token_refresh::Unproven;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::tasks::{self, TaskRequest};
use crate::server::respond;

/// Reason for an unknown task: its stream was found, but has no state.
pub(super) const NO_STATE: &str = "the stream has no state of a task";

/// Returns the stream of the task that a request names, at the resume rate of its caller.
///
/// # Errors
/// The response to the request if the task is unknown, or cannot be searched now.
pub(super) async fn find(
    components: &Components,
    context: &mut RequestContext,
    TaskRequest { id, handle, .. }: &TaskRequest,
) -> Result<Arc<Stream>, Box<Response<BoxBody>>> {
    stream_finder::wait_for_resume_rate(components, context).await;
    let Some(handle) = handle else { return Err(Box::new(unknown(id, Some("the ID is malformed")))) };
    Err(Box::new(match stream_finder::find_task(components, context, handle).await {
        Ok(Some(stream)) => return Ok(stream),
        Ok(None) => unknown(id, None),
        Err(Unproven::Unavailable(code)) => refusals::refuse_request(components, code, id),
        Err(unproven) => unproven.into_response(components),
    }))
}

/// Forwards a change of a task to the replica that runs its call.
pub(super) async fn forward(
    components: &Components,
    context: &RequestContext,
    TaskRequest { id, handle, .. }: &TaskRequest,
    body: &Bytes,
) -> Response<BoxBody> {
    let Some(handle) = handle else { return unknown(id, None) };
    match forward_to_replicas::forward_task(components, context, handle, body).await {
        Ok(Some(response)) => response,
        // The call still belongs to another replica, and ends with its lease.
        Ok(None) => refusals::refuse_request(components, ErrorCode::StoreFailed, id),
        Err(code) => refusals::refuse_request(components, code, id),
    }
}

/// Returns the response for an unknown task. It is the same for each reason, so that a caller
/// cannot distinguish them. The log has the reason, by the search if `reason` is `None`.
pub(super) fn unknown(id: &RequestId, reason: Option<&'static str>) -> Response<BoxBody> {
    if let Some(reason) = reason {
        debug!(reason, "a task was not found");
    }
    respond::json(StatusCode::OK, tasks::unknown_task(id).into())
}
