//! The drain: how a process ends without losing a call that can still end.
//!
//! Once it has begun, new calls are refused and everything else goes on: running calls, resumes, answers, cancels. It is over
//! when no call runs any more and whoever may come back for an answer has had the time to; where other replicas share the store,
//! clients are sent there at once. At its timeout the calls that still
//! run end with an error. Absent: signals (the binary has them), listeners (the composition root has them), and how a drain is asked for
//! from outside (the admin listener).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderName;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::event_log::EventLog;
use crate::protocol::error::ErrorCode;

/// What a request for a drain must carry, whatever its value: no page of another origin can send it without asking first.
pub const X_DRAIN: HeaderName = HeaderName::from_static("x-drain");
/// Calls that were ended get so long to tell their clients.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The end of one process, asked for or not.
pub struct Drain {
    log: Arc<EventLog>,
    begun: AtomicBool,
    /// Every running call; the standalone streams, which do not end by themselves, are none.
    calls: TaskTracker,
    ending: CancellationToken,
    /// Clients are sent to another replica.
    leaving: CancellationToken,
    /// So long may calls run on.
    timeout: Duration,
    /// So long a client may take to come back for an answer.
    patience: Duration,
    /// Another replica serves what is here: clients that can be are sent there, and come back after this long.
    elsewhere: Option<Duration>,
}

impl Drain {
    /// One that has not begun. `elsewhere`: other replicas serve what is here, to clients that come back after this long.
    pub fn new(log: Arc<EventLog>, timeout: Duration, patience: Duration, elsewhere: Option<Duration>) -> Self {
        let (begun, calls) = (AtomicBool::new(false), TaskTracker::new());
        let (ending, leaving) = (CancellationToken::new(), CancellationToken::new());
        Self { log, begun, calls, ending, leaving, timeout, patience, elsewhere }
    }

    /// Whether new calls are to be refused.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
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
        if !self.begun.swap(true, Ordering::Relaxed) {
            info!(calls = self.calls.len(), "draining");
            if let Some(retry) = self.elsewhere {
                self.log.close_readers(retry);
                self.leaving.cancel();
            }
        }
        self.calls.close();
        let over = async {
            self.calls.wait().await;
            // What is in a store that others read can be fetched there.
            if self.elsewhere.is_none() {
                self.log.fetched(self.patience).await;
            }
        };
        if tokio::time::timeout(self.timeout, over).await.is_err() {
            warn!(calls = self.calls.len(), "calls that still ran at the drain's timeout are ended");
            self.end().await;
        }
        info!("drained");
    }

    /// Ends what still runs, with an error where an answer is owed.
    pub async fn end(&self) {
        self.log.end_all(ErrorCode::Draining);
        self.ending.cancel();
        let _ = tokio::time::timeout(LAST_WORDS, self.calls.wait()).await;
    }
}
