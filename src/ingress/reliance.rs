//! Requests of a client that relies on the promise of the proxy (`promise.rs`).
//!
//! Owned here: the refusal of a repetition from another epoch, the time that a call of 2026-07-28
//! is held, and its cancel by its key. Absent: the search for the earlier call
//! (`calls/remote_retry.rs`, `calls/mod.rs`).

use std::time::Duration;

use http::{Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::refusals;
use crate::body::BoxBody;
use crate::event_log::Fingerprint;
use crate::protocol::classify;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{Era, Present, names};
use crate::protocol::jsonrpc::{Message, MethodName};

/// Admits a call, unless it is sent again and this proxy cannot know whether the first one ran.
///
/// # Errors
/// The response 412. Nothing of the call was run here.
pub(super) fn admit(
    components: &Components,
    context: &RequestContext,
    call: &classify::Call,
) -> Result<(), Box<Response<BoxBody>>> {
    let Some(epoch) = context.reliance.as_ref().and_then(|reliance| reliance.epoch.as_ref()) else { return Ok(()) };
    let is_keyed = context.binding.is_distinct() && context.facts.has(Present::IdempotencyKey);
    if is_keyed && epoch.as_bytes() == components.log.epoch().to_string().as_bytes() {
        return Ok(());
    }
    let mut response = refusals::fail_call(components, Failure::after_send(ErrorCode::OwnerDied), call);
    *response.status_mut() = StatusCode::PRECONDITION_FAILED;
    Err(Box::new(response))
}

/// Returns the time that the client wants its call to be kept without a reader, at most `max_wait`.
/// `None` for a request without a key, which could not be ended by it.
pub(super) fn hold(context: &RequestContext, key: Option<Fingerprint>, max_wait: Option<Duration>) -> Option<Duration> {
    let hold = context.reliance.as_ref()?.hold.filter(|_| key.is_some())?;
    Some(hold.min(max_wait.unwrap_or(Duration::MAX)))
}

/// Ends the call of 2026-07-28 that a POST cancels by its key. Returns false for every other POST.
/// A call that is unknown here has ended, or never began.
pub(super) fn cancel(components: &Components, context: &RequestContext, messages: &[Message]) -> bool {
    let is_cancel = |method: &MethodName| &**method == "notifications/cancelled";
    let [Message::Notification { method }] = messages else { return false };
    let is_modern = context.facts.version.as_ref().is_some_and(|version| version.era() == Era::Modern);
    let is_local = context.connection.receipts().are_local();
    if !is_cancel(method) || !is_modern || is_local || !context.binding.is_distinct() {
        return false;
    }
    let Some(key) = context.parts.headers.get(names::IDEMPOTENCY_KEY) else { return false };
    let call = Fingerprint::of_key(&context.binding, key.as_bytes());
    for stream in components.log.find_calls(&call) {
        stream.expire(ErrorCode::Abandoned);
    }
    true
}
