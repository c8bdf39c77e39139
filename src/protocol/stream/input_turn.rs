//! The client's turn to respond ([SEP-1335]): the upstream waits for client responses and for
//! nothing else, so the client's connection may be closed until it has responded. Absent: the
//! client's consent to that, which the caller knows.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::time::Instant;

use super::timers::Timer;
use super::{Lifecycle, Machine};
use crate::headers::Era;
use crate::ids::Seq;

/// The input turns of one stream.
#[derive(Debug)]
pub struct InputTurn {
    quiet_since: Instant,
    began_at: Option<Seq>,
}

impl InputTurn {
    pub(super) fn new(now: Instant) -> Self {
        Self { quiet_since: now, began_at: None }
    }

    /// The upstream sent a message, or a client's response was passed to it.
    pub(super) fn handle_exchange(&mut self, now: Instant) {
        self.quiet_since = now;
    }

    /// Returns the time of the last message of the upstream or of the last client response to it,
    /// or the time of the request before both.
    pub fn quiet_since(&self) -> Instant {
        self.quiet_since
    }

    /// The client's turn begins; it has every event up to `cursor`.
    pub(super) fn begin(&mut self, cursor: Seq) {
        self.began_at = Some(cursor);
    }

    /// Returns the client's cursor at the beginning of its last turn, or `None` before the first.
    pub fn began_at(&self) -> Option<Seq> {
        self.began_at
    }
}

impl Machine {
    /// Begins the client's turn, if it is due and the client has every event up to `cursor`, and
    /// remembers `cursor`. Returns false if there are more events for the client, or no
    /// server→client request waits.
    pub fn handle_input_turn(&mut self, cursor: Seq, now: Instant) -> bool {
        let is_due = self.input_turn_at().is_some_and(|at| at <= now);
        let numbering = self.numbering();
        let tail = numbering.tail();
        let has_all = cursor <= tail && self.server_requests.has_spent_all(cursor, tail) && numbering.is_stored();
        let begins = is_due && has_all;
        if begins {
            self.input_turn.begin(cursor);
        }
        begins
    }

    /// Returns the time of the client's turn: server→client requests wait, and the upstream will
    /// have been quiet for `input_grace` by then. Returns `None` while no request waits, for a
    /// stream that is about to end, and in the modern era, whose clients cancel by leaving.
    pub fn input_turn_at(&self) -> Option<Instant> {
        let Lifecycle { policy, timers, .. } = &self.lifecycle;
        let is_ending = timers.is_set(Timer::Linger) || timers.is_set(Timer::CancelGrace);
        let may_wait = self.lifecycle.can_append() && !is_ending && policy.era == Era::Legacy;
        if may_wait && self.server_requests.has_outstanding() {
            Some(self.input_turn.quiet_since() + policy.input_grace)
        } else {
            None
        }
    }
}
