//! The drain: how a process ends without losing a call that can still end.
//!
//! From its beginning the process is not ready, and for a delay it takes new calls all the same: load balancers notice first. After
//! the delay new calls are refused and everything else goes on: running calls, resumes, answers, cancels, and what a session asks
//! one of whose calls runs or has just ended. The drain is over when no call runs any more and whoever may come back for an answer
//! has had the time to; where other replicas share the store, clients are sent there at once. At its timeout, which counts from the
//! beginning, the calls that still run end with an error. Absent: signals (the binary has them), listeners (the composition root has
//! them), and how a drain is asked for from outside (the admin listener).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::HeaderName;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::clock;
use crate::event_log::EventLog;
use crate::protocol::error::ErrorCode;

/// What a request for a drain must carry, whatever its value: no page of another origin can send it without asking first.
pub const X_DRAIN: HeaderName = HeaderName::from_static("x-drain");
/// Calls that were ended get so long to tell their clients.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The end of one process, asked for or not.
pub struct Drain {
    log: Arc<EventLog>,
    /// Time from which new calls are refused; unset until the drain begins.
    refuse_from: OnceLock<Instant>,
    /// The log has told that new calls are refused.
    has_told: AtomicBool,
    /// Every running call; the standalone streams, which do not end by themselves, are none.
    calls: TaskTracker,
    ending: CancellationToken,
    /// Clients are sent to another replica.
    leaving: CancellationToken,
    times: Times,
    /// Another replica serves what is here: clients that can be are sent there, and come back after this long.
    elsewhere: Option<Duration>,
}

/// Durations of a drain.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Time from the beginning during which new calls are still taken.
    pub delay: Duration,
    /// Time from the beginning after which running calls are ended.
    pub timeout: Duration,
    /// So long a client may take to come back for an answer.
    pub patience: Duration,
}

impl Drain {
    /// One that has not begun. `elsewhere`: other replicas serve what is here, to clients that come back after this long.
    pub fn new(log: Arc<EventLog>, times: Times, elsewhere: Option<Duration>) -> Self {
        let (ending, leaving) = (CancellationToken::new(), CancellationToken::new());
        let (refuse_from, has_told, calls) = (OnceLock::new(), AtomicBool::new(false), TaskTracker::new());
        Self { log, refuse_from, has_told, calls, ending, leaving, times, elsewhere }
    }

    /// Whether it has begun: the process is not ready.
    pub fn has_begun(&self) -> bool {
        self.refuse_from.get().is_some()
    }

    /// Whether new calls are to be refused.
    pub fn refuses_calls(&self) -> bool {
        self.refuse_from.get().is_some_and(|from| *from <= clock::now())
    }

    /// Whether clients are sent to another replica.
    pub fn sends_away(&self) -> bool {
        self.leaving.is_cancelled()
    }

    /// Resolves when clients are sent to another replica: their connections end once nothing is answered on them.
    pub async fn leaving(&self) {
        self.leaving.cancelled().await;
    }

    /// Where running calls are counted.
    pub fn calls(&self) -> &TaskTracker {
        &self.calls
    }

    /// Resolves when calls that still run are ended.
    pub async fn ended(&self) {
        self.ending.cancelled().await;
    }

    /// Drains, and returns when that is over: at the timeout at the latest. Asked for again, it waits again, for no longer than
    /// the timeout from then. Dropping the future does not call the drain off.
    pub async fn run(&self) {
        let refuse_from = *self.refuse_from.get_or_init(|| {
            info!(calls = self.calls.len(), delay = ?self.times.delay, "draining: not ready");
            self.send_away();
            clock::now() + self.times.delay
        });
        self.calls.close();
        let over = async {
            if refuse_from > clock::now() {
                clock::sleep_until(refuse_from).await;
            }
            if !self.has_told.swap(true, Ordering::Relaxed) {
                info!(calls = self.calls.len(), "draining: new calls are refused");
                // Those that came meanwhile.
                self.send_away();
            }
            self.wait_until_over().await;
        };
        if tokio::time::timeout(self.times.timeout, over).await.is_err() {
            warn!(calls = self.calls.len(), "calls that still ran at the drain's timeout are ended");
            self.end().await;
        }
        info!("drained");
    }

    /// Sends clients to another replica, where one serves what is here.
    fn send_away(&self) {
        if let Some(retry) = self.elsewhere {
            self.log.close_readers(retry);
            self.leaving.cancel();
        }
    }

    async fn wait_until_over(&self) {
        loop {
            if !self.calls.is_empty() {
                info!(calls = self.calls.len(), "draining: waits for calls to end");
            }
            self.calls.wait().await;
            // What is in a store that others read can be fetched there.
            if self.elsewhere.is_none() {
                let answers = self.log.unfetched(self.times.patience);
                if answers > 0 {
                    info!(answers, "draining: waits for clients to fetch answers");
                    self.log.fetched(self.times.patience).await;
                }
            }
            // A session may have asked for something meanwhile.
            if self.calls.is_empty() {
                return;
            }
        }
    }

    /// Ends what still runs, with an error where an answer is owed.
    pub async fn end(&self) {
        self.log.end_all(ErrorCode::Draining);
        self.ending.cancel();
        let _ = tokio::time::timeout(LAST_WORDS, self.calls.wait()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::{Allowance, Bounds, Identity, Metrics};
    use crate::metrics::Registrar;
    use crate::protocol::ids::{Keyring, Owner, StoreEpoch};

    const TIMES: Times =
        Times { delay: Duration::from_secs(5), timeout: Duration::from_secs(30), patience: Duration::from_secs(3) };

    fn drain() -> Arc<Drain> {
        let identity = Identity { owner: Owner(1), epoch: StoreEpoch(1), keys: Keyring::new([7; 32], Vec::new()) };
        let allowance = Allowance {
            max_bytes: 1 << 20,
            max_bytes_total: 1 << 20,
            max_streams: 10,
            max_detached: 10,
            resumes_per_sec: 10,
            delivered_retention: Duration::from_secs(60),
            max_sessions: 10,
        };
        let bounds = Bounds { max_bytes: 1 << 20, max_events: 10 };
        let log =
            EventLog::new(identity, bounds, allowance, Arc::new(Metrics::new(&Registrar::default()).unwrap()), None);
        Arc::new(Drain::new(Arc::new(log), TIMES, None))
    }

    #[tokio::test(start_paused = true)]
    async fn new_calls_are_taken_until_load_balancers_have_noticed() {
        let drain = drain();
        assert!(!drain.has_begun() && !drain.refuses_calls());
        let began = clock::now();
        let running = tokio::spawn({
            let drain = drain.clone();
            async move { drain.run().await }
        });
        clock::sleep_until(began + TIMES.delay - Duration::from_millis(1)).await;
        assert!(drain.has_begun() && !drain.refuses_calls());
        clock::sleep_until(began + TIMES.delay).await;
        assert!(drain.refuses_calls());
        running.await.unwrap();
        assert_eq!(clock::now() - began, TIMES.delay, "there is nothing else to wait for");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asked_first_may_leave() {
        let drain = drain();
        let began = clock::now();
        assert!(tokio::time::timeout(Duration::from_secs(1), drain.run()).await.is_err());
        clock::sleep_until(began + TIMES.delay).await;
        assert!(drain.refuses_calls());
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
        let call = drain.calls().track_future(clock::sleep_until(began + Duration::from_secs(20)));
        tokio::join!(call, async { running.await.unwrap() });
        assert_eq!(clock::now() - began, Duration::from_secs(20));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_begin_during_the_delay_prolong_no_drain_beyond_its_timeout() {
        let drain = drain();
        let began = clock::now();
        let running = tokio::spawn({
            let drain = drain.clone();
            async move { drain.run().await }
        });
        let mut calls = Vec::new();
        while !drain.refuses_calls() {
            calls.push(tokio::spawn(drain.calls().track_future(std::future::pending::<()>())));
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
        assert_eq!(clock::now() - began, TIMES.timeout + LAST_WORDS);
        calls.iter().for_each(|call| call.abort());
    }
}
