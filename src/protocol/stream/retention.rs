//! Retention: the events that may be evicted, and the time until which a stream stays readable.

use std::time::{Duration, Instant};

use super::Machine;
use super::states::{Outcome, Phase};
use crate::ids::{Seq, StreamKind};

/// Time in which a client asks once more for a task that has ended: the longest interval between
/// two polls, and a moment.
const POLL_PATIENCE: Duration = Duration::from_secs(11);

impl Machine {
    /// Returns the last event that may be evicted: confirmed events first, then those written to a
    /// connection. A stream that never pauses gives up its oldest events, and that of a task the
    /// records before the present one.
    pub fn releasable(&self) -> Seq {
        match (self.policy.has_records(), self.policy.can_pause) {
            (true, _) => self.obsolete_records(),
            (false, true) => self.reader.releasable(),
            (false, false) => self.tail(),
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
        match self.phase {
            Phase::Sealed { at, .. } => Some(at.max(left) + self.policy.retention),
            Phase::Passed => Some(left + self.policy.retention),
            Phase::Waiting | Phase::Open => None,
        }
    }

    /// Returns the time until which a client may come back for a sealed stream, if clients
    /// reconnect within `patience`: `now` while one reads it. Returns `None` if no client is
    /// expected: the stream was delivered or cancelled, its client closed gracefully, or no client
    /// has an id of it.
    pub fn reader_expected_until(&self, patience: Duration, now: Instant) -> Option<Instant> {
        let Phase::Sealed { outcome, at } = self.phase else { return None };
        let is_wanted =
            self.policy.kind == StreamKind::Request && outcome != Outcome::Cancelled && !self.is_delivered();
        if self.policy.is_task {
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
