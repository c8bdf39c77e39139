//! Wait of calls for a server that accepts no connections, for example during a restart.
//!
//! Owned here: the further attempts of one call until `upstream.wait_secs` after its first. A call
//! waits until its request is sent; its run is not part of the wait. Invariants: a request is sent
//! again only if no byte of it left. The request of a call that ended or was cancelled before is
//! not sent. Absent: the reachability of the server (`server/reach.rs`), and the end of a call
//! whose client is away (the stream machine).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use http::Response;
use tracing::{debug, info};

use super::metrics::{Metrics, WaitOutcome};
use super::server::attempts::Attempts;
use super::server::exchange::{Exchange, ExchangedInBox, Unanswered};
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::sent::Sent;
use super::stack::Upstream;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::error::Failure;

/// Returns the response to the `first` attempt of a call that began at `began`. If no connection
/// could be made, waits for the server. The second value is true if the call has waited.
///
/// Dropping the future withdraws a waiting request. A call whose stream was cancelled is withdrawn
/// at the next poll: the pump polls after each change of its stream.
///
/// # Errors
/// The response is the failure of the last attempt. An attempt in progress is awaited, so the error
/// may come up to `upstream.connect_timeout_ms` later.
pub(super) async fn when_reachable(
    first: ExchangedInBox,
    upstream: &Upstream,
    template: &Template,
    stream: &Arc<Stream>,
    metrics: &Metrics,
    began: Instant,
) -> (Result<Box<Response<ResponseBody>>, Failure>, bool) {
    match first {
        Err(unanswered) if unanswered.is_unconnected && !upstream.server().http().config().wait.is_zero() => {
            let waiting = WaitingCall::begin(upstream, template, stream, metrics, began);
            // Boxed: few calls wait, and each call would carry the size of this future.
            (Box::pin(waiting.run(unanswered.failure)).await, true)
        }
        response => (response.map_err(|unanswered| unanswered.failure), false),
    }
}

/// The wait of a call, for metrics and log. Ends when it is dropped.
pub(super) struct Waiting<'a> {
    stream: &'a Arc<Stream>,
    metrics: &'a Metrics,
    /// Beginning of the first attempt.
    began: Instant,
    outcome: WaitOutcome,
}

impl<'a> Waiting<'a> {
    /// Begins the wait of a call whose first attempt began at `began`.
    pub(super) fn begin(stream: &'a Arc<Stream>, metrics: &'a Metrics, began: Instant) -> Self {
        debug!(stream.id = %stream.id(), "a call waits for the server");
        stream.upstream().set_waiting(true);
        metrics.observe_wait();
        Self { stream, metrics, began, outcome: WaitOutcome::Ended }
    }

    /// Ends the wait: by a response of the server, or by the time limit.
    pub(super) fn end(mut self, has_response: bool) {
        self.outcome = if has_response { WaitOutcome::Connected } else { WaitOutcome::TimedOut };
    }
}

/// A call that waits for a server that accepts no connections.
struct WaitingCall<'a> {
    upstream: &'a Upstream,
    template: &'a Template,
    waiting: Waiting<'a>,
}

impl<'a> WaitingCall<'a> {
    fn begin(
        upstream: &'a Upstream,
        template: &'a Template,
        stream: &'a Arc<Stream>,
        metrics: &'a Metrics,
        began: Instant,
    ) -> Self {
        Self { upstream, template, waiting: Waiting::begin(stream, metrics, began) }
    }

    /// Repeats the call whose last attempt was `failure`.
    async fn run(mut self, mut failure: Failure) -> Result<Box<Response<ResponseBody>>, Failure> {
        let stream = self.waiting.stream;
        let until = self.waiting.began + self.upstream.server().http().config().wait;
        let mut attempts = Attempts::new(self.upstream.server().http().reach());
        let sent = Sent::In(stream.clone());
        loop {
            let left = until.saturating_duration_since(clock::now());
            if tokio::time::timeout(left, attempts.next()).await.is_err() {
                self.waiting.outcome = WaitOutcome::TimedOut;
                return Err(failure);
            }
            let mut response = pin!(self.upstream.exchange_in_box(self.template, Some(&sent)));
            let unsent = tokio::select! {
                biased;
                () = withdrawn(stream) => return Err(failure),
                response = &mut response => Some(response),
                () = stream.upstream().sent() => None,
            };
            match unsent {
                Some(Err(Unanswered { failure: last, is_unconnected: true, .. })) => failure = last,
                Some(response) => return response.map_err(|unanswered| unanswered.failure),
                None => {
                    self.waiting.outcome = WaitOutcome::Connected;
                    // The turn is only for waiting calls: the response may take as long as the call
                    // runs.
                    drop((self, attempts));
                    return response.await.map_err(|unanswered| unanswered.failure);
                }
            }
        }
    }
}

/// Resolves at the first poll after the call of `stream` was cancelled, unless its request was
/// sent.
pub(super) async fn withdrawn(stream: &Stream) {
    poll_fn(|_| {
        match !stream.upstream().is_sent() && stream.with_machine(|machine| machine.lifecycle().is_cancelled()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.stream.upstream().set_waiting(false);
        self.metrics.observe_wait_end(self.outcome);
        info!(
            stream.id = %self.stream.id(),
            outcome = self.outcome.label(),
            waited_ms = clock::now().saturating_duration_since(self.began).as_millis() as u64,
            "a call waited for the server"
        );
    }
}
