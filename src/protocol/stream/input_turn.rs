//! The client's turn to answer ([SEP-1335]): the upstream waits for client responses and for
//! nothing else, so the client's connection may be closed until it has answered. Absent: the
//! client's consent to that, which the caller knows.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::time::Instant;

use super::Machine;
use super::timers::Timer;
use crate::headers::Era;
use crate::ids::Seq;

/// The input turns of one stream.
#[derive(Debug)]
pub(super) struct InputTurn {
    quiet_since: Instant,
    began_at: Option<Seq>,
}

impl InputTurn {
    pub(super) fn new(now: Instant) -> Self {
        Self { quiet_since: now, began_at: None }
    }

    /// The upstream sent a message, or a client's response was passed to it.
    pub(super) fn note_activity(&mut self, now: Instant) {
        self.quiet_since = now;
    }

    /// Returns the time of the last activity.
    pub(super) fn quiet_since(&self) -> Instant {
        self.quiet_since
    }

    /// The client's turn begins; it has every event up to `cursor`.
    pub(super) fn begin(&mut self, cursor: Seq) {
        self.began_at = Some(cursor);
    }

    /// Returns the client's cursor at the beginning of its last turn, or `None` before the first.
    pub(super) fn began_at(&self) -> Option<Seq> {
        self.began_at
    }
}

impl Machine {
    /// Begins the client's turn, if it is due and the client has every event up to `cursor`, and
    /// remembers `cursor`. Returns false if there are more events for the client, or no
    /// server→client request waits.
    pub fn handle_input_turn(&mut self, cursor: Seq, now: Instant) -> bool {
        let is_due = self.input_turn_at().is_some_and(|at| at <= now);
        let has_all = cursor <= self.tail() && self.is_spent_after(cursor) && self.numbering.is_stored();
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
        let is_ending = self.timers.is_set(Timer::Linger) || self.timers.is_set(Timer::CancelGrace);
        if self.can_append() && !is_ending && self.policy.era == Era::Legacy && self.server_requests.has_outstanding() {
            Some(self.input_turn.quiet_since() + self.policy.input_grace)
        } else {
            None
        }
    }

    /// Returns the client's cursor at the beginning of its last turn, or `None` before the first.
    pub fn last_input_turn(&self) -> Option<Seq> {
        self.input_turn.began_at()
    }
}
