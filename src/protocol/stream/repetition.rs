//! Repetition of a POST: whether the same bytes are a retry of the stream's call, or a new call.
//!
//! Where request IDs are unique, the same bytes are a retry until the response is known to have
//! arrived. Where they are free, a client may make an equal call at any time. Then only a client
//! that lost its connection is taken to retry. Absent: the evidence for either use
//! (`protocol/request_ids.rs`), and retries with an `Idempotency-Key`, which need no guess.

use std::time::{Duration, Instant};

use super::Machine;
use super::states::Phase;

/// Time in which a client whose connection broke sends the same bytes again. HTTP clients do so at
/// once. A call that comes later is one of its own, for which the response of an earlier run would
/// be stale.
const RETRY_WINDOW: Duration = Duration::from_secs(2);

impl Machine {
    /// Returns whether the same POST is a retry where IDs are free: the last connection ended
    /// before the response was complete, and the call still runs, or it has ended and a connection
    /// first broke, both less than two seconds ago. Later retries do not extend that time.
    pub fn was_cut(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Waiting | Phase::Open => self.reader.cut_at().is_some(),
            Phase::Sealed { .. } | Phase::Passed => self.retry_until().is_some_and(|until| now < until),
        }
    }

    /// Returns the time until which the same POST is a retry of a call that has ended, or `None` if
    /// it is none.
    fn retry_until(&self) -> Option<Instant> {
        let cut_at = self.reader.cut_at()?;
        let from = match self.phase {
            Phase::Sealed { at, .. } => at.max(cut_at),
            Phase::Waiting | Phase::Open | Phase::Passed => cut_at,
        };
        Some(from + RETRY_WINDOW)
    }

    /// Returns whether a connection reads that may still end before its client has the response.
    pub fn may_be_cut(&self) -> bool {
        self.reader.is_attached()
    }

    /// Returns whether the connection that was given the whole response may still break.
    pub fn is_settling(&self) -> bool {
        self.reader.is_settling()
    }

    /// Returns the milliseconds after `left_at` in which the same POST is a retry of a call that
    /// has ended.
    pub(super) fn retry_ms(&self, left_at: Instant) -> u16 {
        let left = self.retry_until().map_or(Duration::ZERO, |until| until.saturating_duration_since(left_at));
        u16::try_from(left.min(RETRY_WINDOW).as_millis()).unwrap_or(u16::MAX)
    }

    /// Returns the time from which the two seconds of [`Self::retry_ms`] count.
    pub(super) fn first_cut_of(left_at: Instant, retry_ms: u16) -> Option<Instant> {
        (left_at + Duration::from_millis(retry_ms.into())).checked_sub(RETRY_WINDOW)
    }
}
