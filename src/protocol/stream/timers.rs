//! The timers of a stream: a table of deadlines, one for each kind. Absent: heartbeats and other
//! deadlines of a connection (`delivery`).

use std::time::Instant;

/// A kind of deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The proxy begins the response itself.
    Commit,
    /// The upstream call is resumed.
    Reopen,
    /// Messages behind the last owed response are no longer logged.
    Linger,
    /// A cancelled request may no longer get its response.
    CancelGrace,
    /// The upstream call has taken too long.
    Call,
    /// No reader has taken anything from the full stream for too long.
    Full,
    /// No reader has returned in time.
    Abandon,
    /// The reader has not responded to a ping.
    Ping,
    /// The call becomes a task.
    Promote,
}

impl Timer {
    /// Every timer. Timers that are due at once fire in this order.
    pub(super) const ALL: [Self; 9] = [
        Self::Commit,
        Self::Reopen,
        Self::Linger,
        Self::CancelGrace,
        Self::Call,
        Self::Full,
        Self::Abandon,
        Self::Ping,
        Self::Promote,
    ];
}

/// The deadlines of one stream, indexed by [`Timer`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimerTable([Option<Instant>; Timer::ALL.len()]);

impl TimerTable {
    /// Starts `timer`, or moves its deadline.
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    pub(super) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.0[timer as usize].is_some()
    }

    pub(super) fn is_due(&self, timer: Timer, now: Instant) -> bool {
        self.0[timer as usize].is_some_and(|at| at <= now)
    }

    /// Returns the earliest deadline, or `None` if no timer runs.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}
