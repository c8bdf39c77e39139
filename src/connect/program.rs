//! State of the program behind `--`: whether requests are sent to it, or wait, or get the error of
//! its start.
//!
//! Absent: the steps of a replacement (`reload.rs`).

use bytes::Bytes;
use tokio::sync::watch;

use crate::protocol::jsonrpc::{RequestId, response};

/// State of the program.
pub(super) struct Program {
    phase: watch::Sender<Phase>,
    /// Number of replacements.
    replacements: watch::Sender<u64>,
    /// True if a change of its files replaces it.
    is_watched: bool,
}

/// Handling of requests at the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// They are sent.
    Steady,
    /// They wait: the program is being replaced.
    Replacing,
    /// The last start has failed with this error. Without `--watch` requests are sent all the same,
    /// and start it again.
    Failed(Bytes),
}

impl Program {
    pub(super) fn new(is_watched: bool) -> Self {
        Self { phase: watch::Sender::new(Phase::Steady), replacements: watch::Sender::new(0), is_watched }
    }

    /// Returns true if a change of its files replaces the program.
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// The program could not be started.
    pub(super) fn fail(&self, error: Bytes) {
        self.phase.send_if_modified(|phase| {
            let is_settled = *phase != Phase::Replacing;
            if is_settled {
                *phase = Phase::Failed(error);
            }
            is_settled
        });
    }

    /// The program serves.
    pub(super) fn settle(&self) {
        self.phase.send_if_modified(|phase| {
            let has_failed = matches!(phase, Phase::Failed(_));
            if has_failed {
                *phase = Phase::Steady;
            }
            has_failed
        });
    }

    /// Returns the error of the last start under this ID, or `None` if the program serves.
    pub(super) fn failure(&self, id: &RequestId) -> Option<Bytes> {
        match &*self.phase.borrow() {
            Phase::Failed(error) => response::readdressed(error, id).map(Bytes::from),
            Phase::Steady | Phase::Replacing => None,
        }
    }

    /// Resolves once a watched program has failed to start. Never without `--watch`.
    pub(super) async fn failed(&self, id: &RequestId) -> Bytes {
        if self.is_watched {
            let _ = self.phase.subscribe().wait_for(|phase| matches!(phase, Phase::Failed(_))).await;
            if let Some(error) = self.failure(id) {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Lets requests wait until [`Self::end_replacement`].
    pub(super) fn begin_replacement(&self) {
        self.phase.send_replace(Phase::Replacing);
    }

    /// Resolves when no replacement is in progress.
    pub(super) async fn settled(&self) {
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Replacing).await;
    }

    /// Returns the number of replacements so far.
    pub(super) fn replacements(&self) -> u64 {
        *self.replacements.borrow()
    }

    /// Resolves when the program was replaced once more than so many times.
    pub(super) async fn replaced_after(&self, count: u64) {
        let _ = self.replacements.subscribe().wait_for(|replacements| *replacements > count).await;
    }

    /// The program was replaced, and requests are sent again, or get the error of its start.
    pub(super) fn end_replacement(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.replacements.send_modify(|replacements| *replacements += 1);
    }
}
