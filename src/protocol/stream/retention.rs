//! Retention: the events that may be evicted, and the time that a stream stays readable.

use std::time::{Duration, Instant};

use super::Machine;
use super::states::{Outcome, Phase};
use crate::ids::{Seq, StreamKind};

/// Time that a client needs to poll an ended task once more: the longest interval between two
/// polls, and a moment.
const POLL_PATIENCE: Duration = Duration::from_secs(11);

impl Machine {
    /// Returns the last event that may be evicted: confirmed events first, then those written to a
    /// connection. A stream that never pauses gives up its oldest events. The stream of a task
    /// gives up the records before the present one.
    pub fn releasable(&self) -> Seq {
        match (self.policy().has_records(), self.policy().can_pause) {
            (true, _) => self.task.as_ref().map_or(Seq(0), |task| task.obsolete_records()),
            (false, true) => self.reader.releasable(),
            (false, false) => self.numbering().tail(),
        }
    }

    /// Returns the end of retention: `retention` after the seal and the last reader, the later of
    /// both. Returns `None` while the stream is unsealed or being read. A response that passed has
    /// no seal, and counts from its last reader.
    pub fn readable_until(&self) -> Option<Instant> {
        if self.reader.is_attached() {
            return None;
        }
        let left = self.reader.since();
        match self.lifecycle.phase {
            Phase::Sealed { at, .. } => Some(at.max(left) + self.policy().retention),
            Phase::Passed => Some(left + self.policy().retention),
            Phase::Waiting | Phase::Open => None,
        }
    }

    /// Returns the latest time of a client's return to a sealed stream, if clients reconnect within
    /// `patience`: `now` while a client reads it. Returns `None` if no client is expected: the
    /// stream was delivered or cancelled, its client closed gracefully, or no client has an id of
    /// it.
    pub fn reader_expected_until(&self, patience: Duration, now: Instant) -> Option<Instant> {
        let Phase::Sealed { outcome, at } = self.lifecycle.phase else { return None };
        let is_wanted =
            self.policy().kind == StreamKind::Request && outcome != Outcome::Cancelled && !self.reader.is_delivered();
        if self.policy().is_task {
            let until = at + patience.max(POLL_PATIENCE);
            return if is_wanted && until > now { Some(until) } else { None };
        }
        if !is_wanted || !self.reader.is_primed() || self.reader.has_closed_gracefully() {
            return None;
        }
        if self.reader.is_attached() {
            return Some(now);
        }
        let until = at.max(self.reader.since()) + patience;
        if until > now { Some(until) } else { None }
    }
}
