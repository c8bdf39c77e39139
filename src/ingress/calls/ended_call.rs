//! Requests in a session that come again after the process that ran their call has died.
//!
//! Such a call has ended with `owner_died`. Its client gets that once, behind the stored events,
//! and the tool does not run again. Where a client uses request IDs freely, an equal request is a
//! call of its own. Absent: the calls that have ended so (`event_log/ended_calls.rs`), and requests
//! with an `Idempotency-Key` (`remote_retry.rs`).

use super::remote_retry::{EarlierCall, lost, restore_for_client};
use super::request::{CallRequest, Retry};
use crate::event_log::RetryMatch;
use crate::ingress::components::Components;
use crate::protocol::error::ErrorCode;
use crate::protocol::request_ids::IdUse;

/// Returns the call of an earlier process that `request` repeats.
pub(super) async fn find(components: &Components, request: &CallRequest) -> EarlierCall {
    let Retry { fingerprint: Some(call), body: None, id_use, .. } = request.retry else {
        return EarlierCall::None(None);
    };
    let calls = components.log.adoption().ended_calls();
    let Some(id) = calls.find(&call).filter(|_| id_use == IdUse::Unique) else { return EarlierCall::None(None) };
    let stream = match Box::pin(components.log.restoration().restore_by_id(id)).await {
        Ok(stream) => stream.filter(|stream| stream.binding().admits(&request.context.binding)),
        Err(_) => return lost(ErrorCode::StoreFailed),
    };
    match stream.filter(|stream| stream.retries().compare(None, id_use) == RetryMatch::Retry) {
        Some(stream) => restore_for_client(components, &request.context, stream).await,
        None => {
            calls.forget(&call);
            EarlierCall::None(None)
        }
    }
}
