//! The response to a call that is to be a task by the client's request, at 2025-11-25: the handle,
//! at once.
//!
//! The server must have accepted the credentials, lately or with the head of its response: its
//! refusal is the response otherwise. Absent: later requests of clients
//! (`ingress/tasks/legacy.rs`).

use std::future::poll_fn;

use http::{Response, StatusCode};

use super::reply;
use super::request::Reply;
use crate::body::BoxBody;
use crate::delivery::DisconnectGuard;
use crate::event_log::{Attachment, Head};
use crate::ingress::components::Components;
use crate::ingress::refusals;
use crate::protocol::error::ErrorCode;
use crate::protocol::tasks::legacy;
use crate::server::respond;
use crate::upstream::InlineTask;

/// Returns the handle of the task whose call `pump` runs, once the store has the task.
pub(super) async fn reply_with_handle(
    components: &Components,
    reply: Reply,
    attachment: Attachment,
    pump: InlineTask,
) -> Response<BoxBody> {
    // The call continues without this request.
    drop(pump);
    let stream = attachment.stream().clone();
    if reply.may_begin && stream.commit() {
        components.log.publish_once(&stream);
    }
    let guard = DisconnectGuard::new(components.log.clone(), components.metrics.delivery.clone(), attachment, None);
    let head = poll_fn(|cx| match guard.attachment() {
        Some(attachment) => attachment.poll_head_even_displaced(cx),
        None => std::task::Poll::Ready(Head::TakenOver),
    })
    .await;
    let Some((attachment, receipt)) = guard.begin() else {
        return refusals::refuse(components, ErrorCode::StreamLost);
    };
    match (head, reply.call.ids.first(), stream.legacy_view()) {
        (Head::Plain(plain), _, _) => reply::pass(components, &plain, &reply, attachment, receipt),
        (Head::Failed(failure), _, _) => reply::fail(components, failure, &reply, Some((attachment, receipt))),
        (_, Some(id), Some(view)) => respond::json(StatusCode::OK, legacy::created(id, &view).into()),
        (_, _, _) => refusals::refuse(components, ErrorCode::StreamLost),
    }
}
