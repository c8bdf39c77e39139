//! The quotas that hold most, in the order of evictions in a full process.

use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::event_log::quota::account::Quota;

/// Quotas to evict from in a full process. The lock is held for a look, never during an eviction,
/// so that other threads evict from the same quota meanwhile.
#[derive(Default)]
pub(in crate::event_log) struct LargestQuotas {
    /// Quotas, the largest first.
    pub(in crate::event_log) quotas: Vec<Weak<Quota>>,
    /// Index of the current quota; after the first round it wraps.
    pub(in crate::event_log) turn: usize,
    /// Expiry of the last search for the largest, or `None` before the first search.
    pub(in crate::event_log) until: Option<Instant>,
}

impl LargestQuotas {
    pub(in crate::event_log) fn is_old(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Returns whether all quotas have been tried.
    pub(in crate::event_log) fn is_through(&self) -> bool {
        self.turn >= self.quotas.len()
    }

    /// Returns the current quota if it still exceeds its fair share.
    pub(in crate::event_log) fn current(&self) -> Option<Arc<Quota>> {
        let turn = self.turn.checked_rem(self.quotas.len())?;
        self.quotas[turn].upgrade().filter(|quota| quota.exceeds_fair_share())
    }

    /// Moves on from the quota at `turn`, which has nothing left to evict.
    pub(in crate::event_log) fn pass(&mut self, turn: usize) {
        if self.turn == turn {
            let next = turn + 1;
            self.turn = if next >= 2 * self.quotas.len() { self.quotas.len() } else { next };
        }
    }
}
