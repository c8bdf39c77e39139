//! Open requests of a connection, with their blocked responses: the client has made no room for the
//! next piece.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::body::{BoxBody, BoxError};
use crate::{HEAD_TIMEOUT, SEND_TIMEOUT};
use mcp_resume_base::clock;
use mcp_resume_base::sync;

/// Longest time that a response may be blocked, however slowly the others of its connection
/// continue.
pub(super) const SLOW_TIMEOUT: Duration = Duration::from_secs(600);
/// A piece that was blocked this long shows that its client makes room. A piece that goes out at
/// once shows that there was room.
const WAITED: Duration = Duration::from_millis(10);

tokio::task_local! {
    /// Blocked response that the task writes.
    pub(super) static BLOCKED: Cell<Option<BlockedResponse>>;
}

/// A blocked response.
#[derive(Clone, Copy)]
pub(super) struct BlockedResponse {
    pub(super) since: Instant,
    /// True if a reset may end the response. To clients on hyper the reset, `CANCEL`, is an end
    /// like any other. But no client takes an incomplete event or JSON text for whole.
    pub(super) can_be_cut: bool,
}

/// Open requests of one connection.
pub(super) struct OpenRequests(Mutex<State>);

struct State {
    open: usize,
    /// End of the last request.
    ended_at: Instant,
    /// Number of blocked responses.
    blocked: usize,
    /// Number of blocked responses that cannot be cut.
    blocked_whole: usize,
    /// Time of the last blocked response.
    blocked_at: Instant,
    /// Time of the last progress of a blocked response.
    progressed_at: Instant,
    /// True if the client must send no more requests on this connection.
    is_leaving: bool,
    /// True if the connection ends for the sake of one response.
    is_given_up: bool,
    /// Waker of the connection's task.
    waker: Option<Waker>,
}

impl Default for OpenRequests {
    fn default() -> Self {
        let now = clock::now();
        Self(Mutex::new(State {
            open: 0,
            ended_at: now,
            blocked: 0,
            blocked_whole: 0,
            blocked_at: now,
            progressed_at: now,
            is_leaving: false,
            is_given_up: false,
            waker: None,
        }))
    }
}

impl OpenRequests {
    /// Time since which no request is open, or `None` if one is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        if state.open == 0 { Some(state.ended_at) } else { None }
    }

    /// True if the connection should take no more requests.
    pub(super) fn is_leaving(&self) -> bool {
        self.lock().is_leaving
    }

    /// Returns the time of the end of the connection, with all its open requests. It ends if it has
    /// given up a response. It ends if all responses are blocked, and one of them cannot be cut. If
    /// it `is_stopping`, it ends once all requests have ended and the client does not take their
    /// last bytes for some time.
    pub(super) fn deadline(&self, is_stopping: bool) -> Option<Instant> {
        let state = self.lock();
        if state.is_given_up {
            return Some(state.blocked_at);
        }
        if state.open == 0 {
            return if is_stopping { Some(state.ended_at + HEAD_TIMEOUT + SEND_TIMEOUT) } else { None };
        }
        let is_stalled = state.blocked_whole > 0 && state.blocked == state.open;
        if is_stalled { Some(state.blocked_at.max(state.ended_at) + SEND_TIMEOUT) } else { None }
    }

    /// Returns the latest end of the wait of a response that is blocked `since` then. Over a slow
    /// network all that a client reads is blocked most of the time.
    pub(super) fn blocked_until(&self, since: Instant) -> Instant {
        (self.lock().progressed_at.max(since) + SEND_TIMEOUT).min(since + SLOW_TIMEOUT)
    }

    /// Notes that a response that cannot be cut is blocked for too long, `since` then. The others
    /// continue for a while.
    pub(super) fn leave(&self, since: Instant, now: Instant) {
        let mut state = self.lock();
        state.is_leaving = true;
        state.is_given_up |= since + SLOW_TIMEOUT <= now;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes the connection's task when a request ends.
    pub(super) fn register(&self, cx: &Context<'_>) {
        let mut state = self.lock();
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.0)
    }
}

/// An open request. Its end wakes the connection's task. Without it the task would not notice the
/// new deadline.
pub(super) struct OpenRequest {
    requests: Arc<OpenRequests>,
    pub(super) can_be_cut: bool,
    blocked_since: Option<Instant>,
}

impl OpenRequest {
    pub(super) fn begin(requests: &Arc<OpenRequests>) -> Self {
        requests.lock().open += 1;
        Self { requests: requests.clone(), can_be_cut: false, blocked_since: None }
    }

    /// Begins a block: hyper has a piece and waits for room for it.
    fn begin_block(&mut self) {
        let since = clock::now();
        self.blocked_since = Some(since);
        let blocked = BlockedResponse { since, can_be_cut: self.can_be_cut };
        let _ = BLOCKED.try_with(|cell| cell.set(Some(blocked)));
        let mut state = self.requests.lock();
        state.blocked += 1;
        state.blocked_whole += usize::from(!self.can_be_cut);
        state.blocked_at = since;
    }

    /// Records the progress of the response: there is room for the piece before.
    fn observe_progress(&mut self) {
        let now = clock::now();
        if self.end_block().is_some_and(|since| since + WAITED <= now) {
            self.requests.lock().progressed_at = now;
        }
    }

    /// Ends the block, and returns its start.
    fn end_block(&mut self) -> Option<Instant> {
        let since = self.blocked_since.take()?;
        let _ = BLOCKED.try_with(|cell| cell.set(None));
        let mut state = self.requests.lock();
        state.blocked -= 1;
        state.blocked_whole -= usize::from(!self.can_be_cut);
        Some(since)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        // The response made no progress.
        self.end_block();
        let mut state = self.requests.lock();
        state.open -= 1;
        state.ended_at = clock::now();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Body of a response, with its request.
pub(super) struct ResponseBody {
    // Dropped in this order: the effects of the body's drop are complete when the connection wakes.
    pub(super) body: BoxBody,
    pub(super) request: OpenRequest,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    /// hyper polls for a piece as soon as the client has room for the one before, and keeps it
    /// until there is room for it.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.request.observe_progress();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(Some(Ok(_)))) {
            self.request.begin_block();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
