//! Search for the stream of a returning client: in this process, in the store, and under an older
//! token.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::components::Components;
use super::context::RequestContext;
use super::misdirected::owner_unreachable_error;
use super::token_refresh::{self, Unproven};
use crate::event_log::{Stream, StreamName, Unreachable};
use crate::protocol::ids::{EventId, ResumeToken, Seq, StreamKind, Verified};

/// Time for the owner of a stream to say whether it has more than the store.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits until the resume rate allows one more resume. Stock clients try to resume about twice,
/// so a resume above the rate waits instead of being refused. The wait comes before any
/// look-up, so that a hostile cursor waits as long as a good one. A client that leaves gives up
/// its place.
pub(super) async fn wait_for_resume_rate(components: &Components, context: &mut RequestContext) {
    if !context.quota.try_resume() {
        context.reserve();
        components.metrics.observe_delayed_resume();
        context.quota.wait_for_resume().await;
    }
}

/// Returns the stream of an event ID and the cursor in it, for the caller with this credential
/// or an older one.
pub(super) async fn find_stream(
    components: &Components,
    context: &RequestContext,
    id: &EventId,
) -> Result<Option<(Arc<Stream>, Seq)>, Unproven> {
    find_by(components, context, id, StreamName::Event(components.log.verify(id).as_ref())).await
}

/// Returns the stream of a task, for the caller with this credential or an older one. `id` is
/// the handle in the ID of the task. Logs the reason if there is no such task.
pub(super) async fn find_task(
    components: &Components,
    context: &RequestContext,
    id: &EventId,
) -> Result<Option<Arc<Stream>>, Unproven> {
    let verified = match id.unverified_kind() {
        // The call of a task of 2025-11-25.
        Some(StreamKind::Request) => components.log.verify(id),
        Some(StreamKind::Task | StreamKind::Standalone) | None => components.log.verify_task(id),
    };
    let found = find_by(components, context, id, StreamName::Task(verified.as_ref())).await?;
    if found.is_none() {
        debug!(reason = components.log.missing_task(verified.as_ref(), &context.binding), "a task was not found");
    }
    Ok(found.map(|(stream, _)| stream))
}

/// Returns the stream with this name and the handle `id`, and the cursor in it. The caller has this
/// credential or an older one.
async fn find_by(
    components: &Components,
    context: &RequestContext,
    id: &EventId,
    name: StreamName<'_>,
) -> Result<Option<(Arc<Stream>, Seq)>, Unproven> {
    for _ in 0..attempts(components) {
        restore(components, context, id, name.verified()).await?;
        if let StreamName::Token(..) = name {
            restore_cursor(components, context, id).await?;
        }
        let found = components.log.find_by(name, &context.binding);
        if let Some(found) = found.filter(|(stream, _)| !stream.replica().has_moved()) {
            return Ok(Some(found));
        }
    }
    token_refresh::find_by_previous_token(components, context, name).await
}

/// Returns the number of searches for a stream. Another replica may take the stream before it
/// is found here.
fn attempts(components: &Components) -> usize {
    if components.log.has_store() { 2 } else { 1 }
}

/// Restores a stream that only the store has. An unreachable store is not an empty one: the
/// client must retry.
async fn restore(
    components: &Components,
    context: &RequestContext,
    id: &EventId,
    verified: Option<&Verified>,
) -> Result<(), Unproven> {
    // A forged ID is not worth a read of the store.
    let Some(verified) = verified else { return Ok(()) };
    let unreachable = Unproven::Unavailable(owner_unreachable_error(context, id, components.log.owner()));
    match components.log.restoration().restore(verified).await {
        Ok(()) if is_ahead_at_owner(components, verified).await => Err(unreachable),
        Ok(()) => Ok(()),
        Err(Unreachable) => Err(unreachable),
    }
}

/// True if a live replica has the event that an ID names, and the store does not have it yet. A
/// replica that does not respond counts as one.
async fn is_ahead_at_owner(components: &Components, verified: &Verified) -> bool {
    let Some(replicas) = &components.replicas else { return false };
    let Some((owner, stream, seq)) = components.log.restoration().may_be_ahead(verified) else { return false };
    let position = replicas.requests().position_at(owner, stream);
    match tokio::time::timeout(OWNER_TIMEOUT, position).await {
        Ok(Ok(upto)) => upto.is_some_and(|upto| seq <= upto),
        Ok(Err(_)) | Err(_) => true,
    }
}

/// Returns the stream that the request's token opens, for the caller with this credential or an
/// older one.
pub(super) async fn find_by_token(
    components: &Components,
    context: &RequestContext,
    token: Option<&str>,
) -> Result<Option<Arc<Stream>>, Unproven> {
    let Some(token) = token.and_then(ResumeToken::parse) else { return Ok(None) };
    let (id, handle) = (token.handle(), components.log.verify(token.handle()));
    let found = find_by(components, context, id, StreamName::Token(&token, handle.as_ref())).await?;
    Ok(found.map(|(stream, _)| stream))
}

/// Waits until the stream of `id` is here, up to the event that the request's `Last-Event-ID`
/// names in it. Does nothing if that names no event of this stream.
pub(super) async fn restore_cursor(
    components: &Components,
    context: &RequestContext,
    id: &EventId,
) -> Result<(), Unproven> {
    match context.last_event_id().filter(|named| named.names_stream_of(id)) {
        Some(named) => restore(components, context, &named, components.log.verify(&named).as_ref()).await,
        None => Ok(()),
    }
}

/// Returns the cursor in `stream` that the request's `Last-Event-ID` names, or `None` if it
/// names no event of this stream.
pub(super) fn cursor_in(components: &Components, context: &RequestContext, stream: &Arc<Stream>) -> Option<Seq> {
    let named = context.last_event_id()?;
    let (found, cursor) = components.log.find(components.log.verify(&named).as_ref(), stream.binding())?;
    if Arc::ptr_eq(&found, stream) { Some(cursor) } else { None }
}
