//! The drain: the end of a process without the loss of a call that can still end.
//!
//! From the beginning of the drain the process is not ready. New calls are still taken for a delay,
//! so that load balancers notice first. After the delay new calls are refused. Running calls
//! continue: their streams can be resumed, and client responses and cancels are accepted. So are
//! requests of a session with a call that runs or has just ended. A standalone stream of another
//! session is not opened anew. The drain ends when no call runs and clients have had the time to
//! resume for their responses. If other replicas share the store, clients are sent there at once.
//! At the timeout, which counts from the beginning, the remaining calls end with an error. Absent:
//! signals (in the binary), listeners (in the composition root), and requests for a drain (on the
//! admin listener).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::HeaderName;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{info, warn};

use crate::clock;
use crate::event_log::EventLog;
use crate::protocol::error::ErrorCode;
use crate::sync::PerThread;

/// Header that a request for a drain must have, with any value: a page of another origin cannot
/// send it without a preflight request.
pub const X_DRAIN: HeaderName = HeaderName::from_static("x-drain");
/// Time that ended calls get to deliver their errors.
const ERROR_GRACE: Duration = Duration::from_secs(1);

/// The drain of one process, begun or not.
pub struct Drain {
    log: Arc<EventLog>,
    /// Start of the refusal of new calls; unset until the drain begins.
    refuse_from: OnceLock<Instant>,
    /// The refusal of new calls was logged.
    is_refusal_logged: AtomicBool,
    /// Running calls, and the tasks that wait for the end of the drain.
    running: RunningCalls,
    /// Signal that clients are sent to another replica, and true once it was given.
    leaving: CancellationToken,
    is_leaving: AtomicBool,
    times: Times,
    /// Reconnection delay of clients that are sent to another replica, or `None` if no other
    /// replica has the streams.
    reconnect_elsewhere: Option<Duration>,
}

/// Durations of a drain.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Time from the beginning while new calls are still taken.
    pub delay: Duration,
    /// Time from the beginning until running calls are ended.
    pub timeout: Duration,
    /// Time that a client gets to resume for a response.
    pub resume_wait: Duration,
}

impl Drain {
    /// Creates a drain that has not begun. `reconnect_elsewhere` is the reconnection delay of
    /// clients that other replicas can serve, or `None` without such replicas.
    pub fn new(log: Arc<EventLog>, times: Times, reconnect_elsewhere: Option<Duration>) -> Self {
        Self {
            log,
            refuse_from: OnceLock::new(),
            is_refusal_logged: AtomicBool::new(false),
            running: RunningCalls::default(),
            leaving: CancellationToken::new(),
            is_leaving: AtomicBool::new(false),
            times,
            reconnect_elsewhere,
        }
    }

    /// Returns true if the drain has begun: the process is not ready.
    pub fn has_begun(&self) -> bool {
        self.refuse_from.get().is_some()
    }

    /// Returns true if new calls are refused.
    pub fn is_refusing_calls(&self) -> bool {
        self.refuse_from.get().is_some_and(|from| *from <= clock::now())
    }

    /// Returns true if clients are sent to another replica.
    pub fn is_sending_away(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Resolves when clients are sent to another replica. Their connections end after the responses
    /// in progress.
    pub async fn leaving(&self) {
        self.leaving.cancelled().await;
    }

    /// Counts a running call until the returned token is dropped.
    pub fn begin_call(&self) -> TaskTrackerToken {
        self.running.0.own().calls.token()
    }

    /// Resolves when the remaining calls are ended.
    pub async fn ended(&self) {
        self.running.0.own().ending.cancelled().await;
    }

    /// Drains, and returns at its end, at the latest at the timeout. A later call waits as well,
    /// for no longer than the timeout from its own beginning. Dropping the future does not cancel
    /// the drain.
    pub async fn run(&self) {
        let refuse_from = *self.refuse_from.get_or_init(|| {
            info!(calls = self.running.len(), delay = ?self.times.delay, "draining: not ready");
            self.send_away();
            clock::now() + self.times.delay
        });
        self.running.close();
        let ended = async {
            if refuse_from > clock::now() {
                clock::sleep_until(refuse_from).await;
            }
            if !self.is_refusal_logged.swap(true, Ordering::Relaxed) {
                info!(calls = self.running.len(), "draining: new calls are refused");
                // Clients that connected during the delay.
                self.send_away();
            }
            self.wait_for_responses().await;
        };
        if tokio::time::timeout(self.times.timeout, ended).await.is_err() {
            warn!(calls = self.running.len(), "calls that still ran at the drain's timeout are ended");
            self.end().await;
        }
        info!("drained");
    }

    /// Sends clients to another replica, if there is one.
    fn send_away(&self) {
        if let Some(retry) = self.reconnect_elsewhere {
            self.log.close_readers(retry);
            self.is_leaving.store(true, Ordering::Relaxed);
            self.leaving.cancel();
        }
    }

    async fn wait_for_responses(&self) {
        loop {
            if !self.running.is_empty() {
                info!(calls = self.running.len(), "draining: waits for calls to end");
            }
            self.running.wait().await;
            // Responses in a shared store can be fetched from another replica.
            if self.reconnect_elsewhere.is_none() {
                let responses = self.log.unfetched(self.times.resume_wait);
                if responses > 0 {
                    info!(responses, "draining: waits for clients to fetch responses");
                    self.log.fetched(self.times.resume_wait).await;
                }
            }
            // A session may have begun a call meanwhile.
            if self.running.is_empty() {
                return;
            }
        }
    }

    /// Ends the remaining calls, with an error for each owed response.
    pub async fn end(&self) {
        self.log.end_all(ErrorCode::Draining);
        self.running.end();
        let _ = tokio::time::timeout(ERROR_GRACE, self.running.wait()).await;
    }
}

/// Running calls, by the thread that runs them: each call enters and leaves, and threads would
/// contend for one list. Standalone streams do not count, because they do not end by themselves.
#[derive(Default)]
struct RunningCalls(PerThread<CallsOfThread>);

#[derive(Default)]
struct CallsOfThread {
    calls: TaskTracker,
    /// Signal that the calls are ended.
    ending: CancellationToken,
}

impl RunningCalls {
    fn len(&self) -> usize {
        self.0.iter().map(|own| own.calls.len()).sum()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|own| own.calls.is_empty())
    }

    /// Lets [`Self::wait`] resolve once there are no calls.
    fn close(&self) {
        for own in self.0.iter() {
            own.calls.close();
        }
    }

    /// Waits until each thread has had no call. Calls may begin meanwhile.
    async fn wait(&self) {
        for own in self.0.iter() {
            own.calls.wait().await;
        }
    }

    /// Gives the signal that the calls are ended.
    fn end(&self) {
        for own in self.0.iter() {
            own.ending.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::{Identity, Metrics, QuotaLimits, TailLimits};
    use crate::metrics::Registrar;
    use crate::protocol::ids::{Keyring, Owner, StoreEpoch};

    const TIMES: Times =
        Times { delay: Duration::from_secs(5), timeout: Duration::from_secs(30), resume_wait: Duration::from_secs(3) };

    fn drain() -> Arc<Drain> {
        let identity = Identity { owner: Owner(1), epoch: StoreEpoch(1), keys: Keyring::new([7; 32], Vec::new()) };
        let allowance = QuotaLimits {
            max_bytes: 1 << 20,
            max_bytes_total: 1 << 20,
            max_streams: 10,
            max_detached: 10,
            max_tasks: 64,
            resumes_per_sec: 10,
            delivered_retention: Duration::from_secs(60),
            max_sessions: 10,
        };
        let bounds = TailLimits { max_bytes: 1 << 20, max_events: 10 };
        let log = EventLog::new(
            identity,
            bounds,
            allowance,
            Arc::new(Metrics::new(&Registrar::default()).unwrap()),
            None,
            None,
        );
        Arc::new(Drain::new(Arc::new(log), TIMES, None))
    }

    #[tokio::test(start_paused = true)]
    async fn new_calls_are_taken_during_the_delay() {
        let drain = drain();
        assert!(!drain.has_begun() && !drain.is_refusing_calls());
        let began = clock::now();
        let running = tokio::spawn({
            let drain = drain.clone();
            async move { drain.run().await }
        });
        clock::sleep_until(began + TIMES.delay - Duration::from_millis(1)).await;
        assert!(drain.has_begun() && !drain.is_refusing_calls());
        clock::sleep_until(began + TIMES.delay).await;
        assert!(drain.is_refusing_calls());
        running.await.unwrap();
        assert_eq!(clock::now() - began, TIMES.delay, "there is nothing else to wait for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_future_does_not_cancel_the_drain() {
        let drain = drain();
        let began = clock::now();
        assert!(tokio::time::timeout(Duration::from_secs(1), drain.run()).await.is_err());
        clock::sleep_until(began + TIMES.delay).await;
        assert!(drain.is_refusing_calls());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_began_during_the_delay_is_waited_for() {
        let drain = drain();
        let began = clock::now();
        let running = tokio::spawn({
            let drain = drain.clone();
            async move { drain.run().await }
        });
        clock::sleep_until(began + Duration::from_secs(4)).await;
        let call = async {
            let _running = drain.begin_call();
            clock::sleep_until(began + Duration::from_secs(20)).await;
        };
        tokio::join!(call, async { running.await.unwrap() });
        assert_eq!(clock::now() - began, Duration::from_secs(20));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_begin_during_the_delay_do_not_prolong_the_drain_beyond_its_timeout() {
        let drain = drain();
        let began = clock::now();
        let running = tokio::spawn({
            let drain = drain.clone();
            async move { drain.run().await }
        });
        let mut calls = Vec::new();
        while !drain.is_refusing_calls() {
            let running = drain.begin_call();
            calls.push(tokio::spawn(async move {
                let _running = running;
                std::future::pending::<()>().await;
            }));
            clock::sleep(Duration::from_secs(1)).await;
        }
        let ended = tokio::spawn({
            let drain = drain.clone();
            async move {
                drain.ended().await;
                clock::now()
            }
        });
        running.await.unwrap();
        assert_eq!(ended.await.unwrap() - began, TIMES.timeout, "the delay counts");
        assert_eq!(clock::now() - began, TIMES.timeout + ERROR_GRACE);
        for call in &calls {
            call.abort();
        }
    }
}
