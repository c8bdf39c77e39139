//! Calls outside sessions that come again after their connection broke.
//!
//! An HTTP client may send the same bytes again by itself: Bun's `fetch` does within 20 ms. Owned
//! here: the requests for which that is believed. Both connections must be a client's own, and the
//! second must be new. The caller has credentials, or the proxy listens for this machine alone.
//! Absent: calls that come again under another ID (`adoption.rs`), the calls that are expected
//! (`event_log/broken_calls.rs`), and retries in a session or by a key (`request.rs`).

use std::sync::Arc;
use std::time::Duration;

use super::adoption;
use super::request::CallRequest;
use crate::delivery::REPETITION_WINDOW;
use crate::event_log::{Repeatable, Slice, Stream, Way};
use crate::ingress::components::Components;
use crate::ingress::context::{RequestContext, Sender};
use crate::protocol::headers::{Era, Present};
use crate::upstream::Template;

/// A call that a request repeats.
pub(super) struct RepeatedCall {
    pub(super) stream: Arc<Stream>,
    /// Reader of the stream under the names of the request, or `None` if it has no slices.
    pub(super) slice: Option<Arc<Slice>>,
    /// The request, whose connection may break too.
    pub(super) repeatable: Repeatable,
}

/// Returns the request as one that may come again, or `None` if an equal one would be another call.
/// `template` is the request at the server.
pub(super) fn repeatable(
    components: &Components,
    request: &CallRequest,
    template: &Arc<Template>,
) -> Option<Repeatable> {
    Repeatable::new(template.clone(), request.context.head_bytes, ways(components, request))
}

/// Returns the time for which a call of 2026-07-28 is not cancelled after its connection broke
/// before the client had an event ID, at most: as long as it may come again.
pub(super) fn grace_of(components: &Components, request: &CallRequest) -> Duration {
    if request.call.era() == Era::Legacy {
        return Duration::ZERO;
    }
    match ways(components, request) {
        [] => Duration::ZERO,
        [Way::SameRequest] => REPETITION_WINDOW,
        [..] => Duration::MAX,
    }
}

/// Returns the call that the request repeats, if its connection broke a moment ago.
pub(super) fn earlier_call(components: &Components, request: &CallRequest) -> Option<RepeatedCall> {
    let broken = components.log.broken_calls();
    if broken.is_empty() || ways(components, request).is_empty() {
        return None;
    }
    let RequestContext { parts, connection, binding, .. } = &*request.context;
    let template = Arc::new(components.upstream.call(parts, connection.forwarded(), request.body.clone()));
    let repeatable = repeatable(components, request, &template)?;
    if repeatable.ways().contains(&Way::SameRequest)
        && connection.receipts().is_at_first_request()
        && let Some(stream) = broken.take(&repeatable, Way::SameRequest, &binding.principal)
    {
        return Some(RepeatedCall { slice: stream.begin_first_slice(), stream, repeatable });
    }
    let (stream, slice) = adoption::earlier_call(components, request, &repeatable)?;
    Some(RepeatedCall { stream, slice: Some(slice), repeatable })
}

fn ways(components: &Components, request: &CallRequest) -> &'static [Way] {
    if request.is_identified() || request.call.is_opening() {
        // A repeated opening is harmless.
        return &[];
    }
    match (is_of_own_client(components, request), adoption::may_come_again(components, request)) {
        (false, false) => &[],
        (true, false) => &[Way::SameRequest],
        (false, true) => &[Way::OtherId],
        (true, true) => &[Way::SameRequest, Way::OtherId],
    }
}

/// Returns true if an HTTP client of its own sends the request, on a connection of its own.
/// Replicas that share a store are behind a load balancer.
fn is_of_own_client(components: &Components, request: &CallRequest) -> bool {
    let RequestContext { binding, facts, sender, connection, .. } = &*request.context;
    let is_proxied = !matches!(sender, Sender::Client) || connection.is_behind_trusted() || facts.has(Present::Proxy);
    let is_alone = !binding.principal.is_anonymous() || components.config.listen.address.ip().is_loopback();
    !is_proxied && is_alone && components.replicas.is_none() && connection.receipts().has_one_caller()
}
