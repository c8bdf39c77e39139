//! The quotas that hold most, in the order in which they give up memory where the process is full.

use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::event_log::quota::Share;

/// From whom room is made where the process is full. The lock on it is held for a look, never while room is made: who comes meanwhile makes
/// its own from the same share.
#[derive(Default)]
pub(in crate::event_log) struct Search {
    /// The largest first.
    pub(in crate::event_log) shares: Vec<Weak<Share>>,
    /// Whose turn it is: once for each of them, then round and round.
    pub(in crate::event_log) turn: usize,
    /// Until when these are taken to be the largest.
    pub(in crate::event_log) until: Option<Instant>,
}

impl Search {
    pub(in crate::event_log) fn is_old(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Whether all have given what they had.
    pub(in crate::event_log) fn is_through(&self) -> bool {
        self.turn >= self.shares.len()
    }

    /// Whose turn it is, if that still holds much.
    pub(in crate::event_log) fn giver(&self) -> Option<Arc<Share>> {
        let turn = self.turn.checked_rem(self.shares.len())?;
        self.shares[turn].upgrade().filter(|share| share.holds_much())
    }

    /// Whoever had that turn has nothing more to give.
    pub(in crate::event_log) fn pass(&mut self, turn: usize) {
        if self.turn == turn {
            let next = turn + 1;
            self.turn = if next >= 2 * self.shares.len() { self.shares.len() } else { next };
        }
    }
}
