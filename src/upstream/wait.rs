//! Wait of calls for a server that accepts no connections, as while it restarts.
//!
//! Owned here: the further attempts of one call until `upstream.wait_secs` after its first, and the
//! queue of the calls that wait. Of these one tries to connect, up to four times a second; once a
//! connection is accepted, all others try as well. A call waits until its request is sent; its run
//! is no part of the wait. Invariants: a request is sent again only if no byte of it left; a call
//! that ended or was cancelled before its request was sent is not sent. Absent: the reachability of
//! the server ([`super::reach`]), and the end of a call whose client is away (the stream machine).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::Response;
use tokio::sync::OwnedMutexGuard;
use tracing::{debug, info};

use super::metrics::{Metrics, WaitOutcome};
use super::reach::Reach;
use super::{ResponseBody, Template, Unanswered, Upstream};
use crate::backoff::Backoff;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::error::Failure;

/// Pauses of one call between its attempts. A process restarts within 0.2 to 2 s.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(250));

/// Sends the request of a call that began at `began`. If no connection can be made, waits for the
/// server. Returns the response, and whether the call has waited for it.
///
/// Dropping the future withdraws a request that waits. A call whose stream was cancelled is
/// withdrawn at the next poll: the pump polls after each change of its stream.
///
/// # Errors
/// The response is the failure of the last attempt. An attempt that has begun is awaited, so that
/// the error may come `upstream.connect_timeout_ms` later.
pub(super) async fn send_when_reachable(
    upstream: &Upstream,
    template: &Template,
    stream: &Arc<Stream>,
    metrics: &Metrics,
    began: Instant,
) -> (Result<Response<ResponseBody>, Failure>, bool) {
    match upstream.send_once(template, Some(stream)).await {
        Err(unanswered) if unanswered.is_unconnected && !upstream.config.wait.is_zero() => {
            let waiting = WaitingCall::begin(upstream, template, stream, metrics, began);
            // Boxed: few calls wait, and each would carry the size of this future.
            (Box::pin(waiting.run(unanswered.failure)).await, true)
        }
        response => (response.map_err(|unanswered| unanswered.failure), false),
    }
}

/// A call that waits for the server.
struct WaitingCall<'a> {
    upstream: &'a Upstream,
    template: &'a Template,
    stream: &'a Arc<Stream>,
    metrics: &'a Metrics,
    /// Beginning of the first attempt.
    began: Instant,
    outcome: WaitOutcome,
}

impl<'a> WaitingCall<'a> {
    fn begin(
        upstream: &'a Upstream,
        template: &'a Template,
        stream: &'a Arc<Stream>,
        metrics: &'a Metrics,
        began: Instant,
    ) -> Self {
        debug!(stream.id = %stream.id(), "a call waits for a server that accepts no connections");
        stream.set_waiting(true);
        metrics.observe_wait();
        Self { upstream, template, stream, metrics, began, outcome: WaitOutcome::Ended }
    }

    /// Repeats the call whose last attempt was `failure`.
    async fn run(mut self, mut failure: Failure) -> Result<Response<ResponseBody>, Failure> {
        let until = self.began + self.upstream.config.wait;
        let mut attempts = Attempts::new(&self.upstream.connector.reach);
        loop {
            let left = until.saturating_duration_since(clock::now());
            if tokio::time::timeout(left, attempts.next()).await.is_err() {
                self.outcome = WaitOutcome::TimedOut;
                return Err(failure);
            }
            let mut response = pin!(self.upstream.send_once(self.template, Some(self.stream)));
            let unsent = tokio::select! {
                biased;
                () = withdrawn(self.stream) => return Err(failure),
                response = &mut response => Some(response),
                () = self.stream.sent() => None,
            };
            match unsent {
                Some(Err(Unanswered { failure: last, is_unconnected: true })) => failure = last,
                Some(response) => return response.map_err(|unanswered| unanswered.failure),
                None => {
                    self.outcome = WaitOutcome::Connected;
                    // The turn is for calls that wait: the response may take as long as the call
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
async fn withdrawn(stream: &Stream) {
    poll_fn(|_| match !stream.is_sent() && stream.with_machine(|machine| machine.is_cancelled()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.stream.set_waiting(false);
        self.metrics.observe_wait_end(self.outcome);
        info!(
            stream.id = %self.stream.id(),
            outcome = self.outcome.label(),
            waited_ms = clock::now().saturating_duration_since(self.began).as_millis() as u64,
            "a call waited for the server"
        );
    }
}

/// The times at which one caller tries to connect to a server that accepts no connections.
pub(super) struct Attempts<'a> {
    reach: &'a Reach,
    /// Turn to try, held until this caller stops waiting: its request is sent, or its wait ends.
    turn: Option<OwnedMutexGuard<()>>,
    pauses: Backoff,
}

impl<'a> Attempts<'a> {
    /// Creates the times of a caller whose first attempt has failed.
    pub(super) fn new(reach: &'a Reach) -> Self {
        Self { reach, turn: None, pauses: PAUSES }
    }

    /// Waits for the time of the next attempt: a pause, and the turn to try or an accepted
    /// connection. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) {
        clock::sleep(self.pauses.next_pause()).await;
        if self.turn.is_some() {
            return;
        }
        let mut accepted = pin!(self.reach.accepted());
        // Enabled before the look: no connection is missed in between.
        accepted.as_mut().enable();
        if self.reach.is_failing() {
            tokio::select! {
                // A simulated run must take the same branch each time if both are ready.
                biased;
                () = accepted => {}
                turn = self.reach.turn() => self.turn = Some(turn),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn reach() -> Arc<Reach> {
        Arc::new(Reach::new("server".to_owned(), Duration::from_secs(5)))
    }

    fn fail(reach: &Reach) {
        reach.note_failed(clock::now(), &io::Error::from(io::ErrorKind::ConnectionRefused));
    }

    /// Begins a caller that waits, tries up to `most` times, and counts its attempts.
    fn begin(reach: &Arc<Reach>, most: usize) -> tokio::task::JoinHandle<Vec<Duration>> {
        let (reach, began) = (reach.clone(), clock::now());
        tokio::spawn(async move {
            let mut attempts = Attempts::new(&reach);
            let mut times = Vec::new();
            while times.len() < most {
                attempts.next().await;
                times.push(clock::now() - began);
                if !reach.is_failing() {
                    break;
                }
            }
            times
        })
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_many_callers_tries_until_a_connection_is_accepted() {
        let reach = reach();
        fail(&reach);
        let callers: Vec<_> = (0..1000).map(|_| begin(&reach, 1000)).collect();
        clock::sleep(Duration::from_secs(10)).await;
        assert_eq!(callers.iter().filter(|caller| caller.is_finished()).count(), 0);
        reach.note_accepted();
        let mut attempts = Vec::new();
        for caller in callers {
            attempts.push(caller.await.unwrap().len());
        }
        attempts.sort_unstable();
        let (most, others) = attempts.split_last().unwrap();
        assert!(others.iter().all(|attempts| *attempts == 1), "{others:?}");
        assert!((40..=42).contains(most), "{most}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_turn_passes_to_the_next_caller() {
        let reach = reach();
        fail(&reach);
        let first = begin(&reach, 3);
        tokio::task::yield_now().await;
        let second = begin(&reach, 2);
        assert_eq!(first.await.unwrap().last(), Some(&Duration::from_millis(50 + 100 + 200)));
        assert_eq!(second.await.unwrap(), [Duration::from_millis(350), Duration::from_millis(450)]);
    }

    /// As of a server whose TLS handshakes fail.
    #[tokio::test(start_paused = true)]
    async fn a_caller_pauses_before_each_attempt() {
        let reach = reach();
        let caller = begin(&reach, 1);
        assert_eq!(caller.await.unwrap(), [Duration::from_millis(50)]);
    }
}
