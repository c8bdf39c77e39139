//! Overrun of a full quota: the right of one call at a time to read on with a large event.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::sync;

/// Time that a call without progress keeps the [`Overrun`]. Neither a server that stops within an
/// event nor a client that reads nothing blocks the other calls of a full quota.
const OVERRUN_IDLE: Duration = Duration::from_secs(5);

/// Right to read on with a large event although the quota is full. One call has it at a time, until
/// its client has read the event. So a full quota makes progress, and is exceeded by one event. A
/// client that reads nothing adds one event for each [`OVERRUN_IDLE`].
#[derive(Default)]
pub(super) struct Overrun {
    state: Mutex<OverrunState>,
    freed: Notify,
}

#[derive(Default)]
struct OverrunState {
    /// Number of the latest holder, so that an earlier one cannot free the right of a later one.
    number: u64,
    /// Last progress of the holder, or `None` if the right is free.
    progress_at: Option<Instant>,
}

impl Overrun {
    /// Takes the right if it is free or its holder makes no progress. Returns the number of the new
    /// holder.
    pub(super) fn take(&self, now: Instant) -> Option<u64> {
        let mut state = self.lock();
        if state.progress_at.is_some_and(|at| now.saturating_duration_since(at) < OVERRUN_IDLE) {
            return None;
        }
        state.number += 1;
        state.progress_at = Some(now);
        Some(state.number)
    }

    /// Notes progress of the holder with this number. Returns false if it has lost the right.
    pub(super) fn touch(&self, number: u64, now: Instant) -> bool {
        let mut state = self.lock();
        let is_held = state.number == number && state.progress_at.is_some();
        if is_held {
            state.progress_at = Some(now);
        }
        is_held
    }

    /// Frees the right if the holder still has this number.
    pub(super) fn free(&self, number: u64) {
        let mut state = self.lock();
        if state.number == number {
            state.progress_at = None;
            // A task that is woken takes the lock.
            drop(state);
            self.freed.notify_waiters();
        }
    }

    /// Resolves when the right is freed after this call.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, OverrunState> {
        sync::lock(&self.state)
    }
}
