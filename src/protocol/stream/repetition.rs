//! Repetition of a POST: whether the same bytes are a retry of the stream's call, or a new call.
//!
//! Where request IDs are unique, the same bytes are a retry until the response is known to have arrived. Where they are free, a client
//! may make an equal call at any time. Then only a client that lost its connection is taken to retry. Absent: the evidence for either use
//! (`protocol/request_ids.rs`), and retries with an `Idempotency-Key`, which need no guess.

use std::time::{Duration, Instant};

use super::Machine;
use super::states::Phase;

/// Time in which a client whose connection broke sends the same bytes again. HTTP clients do so at once. A call that comes later is one of its
/// own, for which the response of an earlier run would be stale.
const RETRY_WINDOW: Duration = Duration::from_secs(2);

impl Machine {
    /// Returns whether the same POST is a retry where IDs are free: the last connection ended before the response was complete, and the call
    /// still runs, or connection and response ended less than two seconds ago.
    pub fn was_cut(&self, now: Instant) -> bool {
        let is_recent = |ended: Instant| now.saturating_duration_since(ended) < RETRY_WINDOW;
        self.reader.was_cut()
            && match self.phase {
                Phase::Waiting | Phase::Open => true,
                Phase::Sealed { at, .. } => is_recent(at.max(self.reader.since())),
                Phase::Passed => is_recent(self.reader.since()),
            }
    }

    /// Returns whether a connection may still end before its client has the response.
    pub fn may_be_cut(&self) -> bool {
        self.reader.may_be_cut()
    }
}
