//! POSTs with requests that concern tasks of 2025-11-25: `tasks/get`, `tasks/result`,
//! `tasks/cancel`.
//!
//! A task is the stream of its call. `tasks/result` reads it under the ID of its own request, and
//! can be resumed as any response can. `tasks/list` is not offered, and goes to the server. Absent:
//! the call itself (`ingress/calls/`).

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::lookup::{NO_STATE, find, forward, unknown};
use crate::body::BoxBody;
use crate::event_log::Stream;
use crate::ingress::calls;
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::refusals;
use crate::protocol::classify;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::tasks::{TaskMethod, TaskRequest, legacy};
use crate::server::respond;

/// Returns true if the request concerns a task of 2025-11-25 that the proxy owns. The server gets
/// every other request.
pub(in crate::ingress) fn concerns_legacy(
    components: &Components,
    context: &RequestContext,
    request: &TaskRequest,
) -> bool {
    let is_on = components.config.tasks.as_ref().is_some_and(|tasks| tasks.legacy.is_some());
    if !is_on || !matches!(request.method, TaskMethod::Get | TaskMethod::Result | TaskMethod::Cancel) {
        return false;
    }
    let is_offered = context.session.as_ref().is_some_and(|session| session.has_tasks() == Some(true));
    is_offered || request.is_own()
}

/// Handles a request that [`concerns_legacy`] accepts.
pub(in crate::ingress) async fn handle_legacy(
    components: &Components,
    mut context: Box<RequestContext>,
    request: TaskRequest,
    call: classify::Call,
    body: Bytes,
) -> Response<BoxBody> {
    let stream = match find(components, &mut context, &request).await {
        Ok(stream) if stream.as_legacy_task().is_some() => stream,
        Ok(_) => return unknown(&request.id, Some("the task belongs to the other revision")),
        Err(response) => return *response,
    };
    match request.method {
        TaskMethod::Result => calls::read_task(components, context, call, stream).await,
        TaskMethod::Cancel if stream.replica().is_remote() => forward(components, &context, &request, &body).await,
        TaskMethod::Cancel => cancel_legacy(components, &request.id, &stream).await,
        TaskMethod::Get | TaskMethod::Update | TaskMethod::List => get_legacy(components, &request.id, &stream).await,
    }
}

async fn get_legacy(components: &Components, id: &RequestId, stream: &Arc<Stream>) -> Response<BoxBody> {
    if components.log.restoration().refresh(stream).await.is_err() {
        return refusals::refuse_request(components, ErrorCode::StoreFailed, id);
    }
    stream.touch();
    respond_with_state(id, stream)
}

/// Cancels a task of this replica. The new status is stored before the response.
pub(super) async fn cancel_legacy(components: &Components, id: &RequestId, stream: &Stream) -> Response<BoxBody> {
    if let Some(view) = stream.legacy_view()
        && !view.status.is_open()
    {
        return respond::json(StatusCode::OK, legacy::cannot_cancel(id, view.status).into());
    }
    if let Some(task) = stream.as_legacy_task() {
        task.withdraw_requests();
    }
    stream.as_task().cancel();
    if stream.as_task().ended().await {
        respond_with_state(id, stream)
    } else {
        refusals::refuse_request(components, ErrorCode::StoreFailed, id)
    }
}

fn respond_with_state(id: &RequestId, stream: &Stream) -> Response<BoxBody> {
    match stream.legacy_view() {
        Some(view) => respond::json(StatusCode::OK, legacy::got(id, &view).into()),
        None => unknown(id, Some(NO_STATE)),
    }
}
