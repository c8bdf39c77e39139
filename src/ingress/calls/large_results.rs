//! Large results of servers on stdio and HTTP+SSE, for clients that limit the size of an event.
//!
//! Python's SDKs take an event of 1 MiB at most, but JSON of any size. Such a server has no head of
//! its own, so that the first message can decide the form of the response. The head waits for that
//! message as long as the proxy waits for the head of a server on HTTP. Absent: servers on HTTP,
//! whose late large responses are learnt (`upstream/late_responses.rs`).

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::HeaderMap;

use crate::clock;
use crate::event_log::Attachment;
use crate::ingress::components::Components;
use crate::ingress::hard_cuts;
use crate::protocol::classify;
use crate::protocol::headers::Accept;
use crate::protocol::ids::Seq;
use crate::upstream::InlineTask;

/// Size in bytes above which a response may be too large as an event.
const MAX_EVENT: usize = 768 * 1024;

/// Returns the longest wait of the response head for the first message. Returns `None` if the head
/// does not wait, because the client takes events of any size.
pub(super) fn hold(
    components: &Components,
    headers: &HeaderMap,
    accept: Accept,
    call: &classify::Call,
) -> Option<Duration> {
    let may_be_large = components.upstream.server().has_channels() && accept.json && accept.sse && !call.is_batch;
    if may_be_large && hard_cuts::is_python(headers) { components.config.delivery.commit_after } else { None }
}

/// Waits for the first event, until a time at most. Drives `pump` meanwhile.
pub(super) async fn wait_for_first_event(attachment: &Attachment, until: Instant, pump: &mut InlineTask) {
    let mut end = pin!(clock::sleep_until(until));
    poll_fn(|cx| {
        if !pump.is_finished() {
            attachment.clear_waker();
            pump.poll(cx);
        }
        if attachment.poll_unread(cx, Seq(0)).is_ready() { Poll::Ready(()) } else { end.as_mut().poll(cx) }
    })
    .await;
}

/// Returns true if the whole response is one message that may be too large as an event.
pub(super) fn is_large(attachment: &Attachment) -> bool {
    attachment.slice().is_none() && attachment.stream().delivery().only_response_len() > Some(MAX_EVENT)
}
