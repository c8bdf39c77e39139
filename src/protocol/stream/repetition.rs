//! Repetition of a POST: the same bytes are a retry of the stream's call, or a new call.
//!
//! Where request IDs are unique, the same bytes are a retry until the response is known to have
//! arrived. Where they are free, a client may make an equal call at any time. Then only a client
//! that lost its connection is taken to retry. Absent: the evidence for either use
//! (`protocol/request_ids.rs`), and retries with an `Idempotency-Key`, which need no guess.

use std::time::{Duration, Instant};

use super::states::Phase;
use super::{Machine, ReaderState};

/// Time in which a client whose connection broke sends the same bytes again. HTTP clients do so at
/// once. A later call is a new one, for which the response of an earlier run would be stale.
const RETRY_WINDOW: Duration = Duration::from_secs(2);

impl Machine {
    /// Returns true if the same POST is a retry where IDs are free: the last connection ended
    /// before the response was complete, and the call still runs, or it has ended and a connection
    /// first broke, both less than two seconds ago. Later retries do not extend that time.
    pub fn was_cut(&self, now: Instant) -> bool {
        match self.lifecycle.phase {
            Phase::Waiting | Phase::Open => self.reader.cut_at().is_some(),
            phase @ (Phase::Sealed { .. } | Phase::Passed) => {
                self.reader.retry_until(phase).is_some_and(|until| now < until)
            }
        }
    }
}

impl ReaderState {
    /// Returns the time until which the same POST is a retry of a call that has ended, or `None` if
    /// it is a new call.
    fn retry_until(&self, phase: Phase) -> Option<Instant> {
        let cut_at = self.cut_at()?;
        let from = match phase {
            Phase::Sealed { at, .. } => at.max(cut_at),
            Phase::Waiting | Phase::Open | Phase::Passed => cut_at,
        };
        Some(from + RETRY_WINDOW)
    }

    /// Returns the milliseconds after the reader left in which the same POST is a retry of a call
    /// that has ended.
    pub(super) fn retry_ms(&self, phase: Phase) -> u16 {
        let left =
            self.retry_until(phase).map_or(Duration::ZERO, |until| until.saturating_duration_since(self.since()));
        u16::try_from(left.min(RETRY_WINDOW).as_millis()).unwrap_or(u16::MAX)
    }
}

/// Returns the time from which the two seconds of [`ReaderState::retry_ms`] count.
pub(super) fn first_cut(left_at: Instant, retry_ms: u16) -> Option<Instant> {
    (left_at + Duration::from_millis(retry_ms.into())).checked_sub(RETRY_WINDOW)
}
