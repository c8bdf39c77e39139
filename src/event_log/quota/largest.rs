//! The quotas that hold most, in the order in which they give up memory where the process is full.

use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::event_log::quota::Quota;

/// From whom room is made where the process is full. The lock on it is held for a look, never while room is made: who comes meanwhile makes
/// its own from the same share.
#[derive(Default)]
pub(in crate::event_log) struct LargestQuotas {
    /// The largest first.
    pub(in crate::event_log) quotas: Vec<Weak<Quota>>,
    /// Whose turn it is: once for each of them, then round and round.
    pub(in crate::event_log) turn: usize,
    /// Until when these are taken to be the largest.
    pub(in crate::event_log) until: Option<Instant>,
}

impl LargestQuotas {
    pub(in crate::event_log) fn is_old(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Whether all have given what they had.
    pub(in crate::event_log) fn is_through(&self) -> bool {
        self.turn >= self.quotas.len()
    }

    /// Whose turn it is, if that still holds much.
    pub(in crate::event_log) fn current(&self) -> Option<Arc<Quota>> {
        let turn = self.turn.checked_rem(self.quotas.len())?;
        self.quotas[turn].upgrade().filter(|quota| quota.exceeds_fair_share())
    }

    /// Whoever had that turn has nothing more to give.
    pub(in crate::event_log) fn pass(&mut self, turn: usize) {
        if self.turn == turn {
            let next = turn + 1;
            self.turn = if next >= 2 * self.quotas.len() { self.quotas.len() } else { next };
        }
    }
}
