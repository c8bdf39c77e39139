//! Whose turn it is: when the upstream waits for answers and for nothing else, the client's connection serves nobody, and a client
//! that wants it so may be closed on until it has answered ([SEP-1335]). Whether a client wants it so is the caller's to know.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::time::Instant;

use super::Machine;
use crate::protocol::headers::Era;
use crate::protocol::ids::Seq;

/// What is known of the turns of a stream.
#[derive(Debug)]
pub(super) struct Turns {
    /// The upstream has said nothing, and was given no answer, since then.
    pub(super) quiet_since: Instant,
    /// Where the client stood when its last turn began.
    pub(super) began_at: Option<Seq>,
}

impl Machine {
    /// When it is the client's turn: server→client requests wait for answers, and the upstream will have been quiet for
    /// `input_grace` by then. `None` while nothing waits, for a stream that is about to end, and in the modern era, whose clients
    /// cancel by leaving.
    pub fn turn_at(&self) -> Option<Instant> {
        let ends = self.linger_until.is_some() || self.cancel_until.is_some();
        let waits = self.is_logging() && !ends && self.policy.era == Era::Legacy && self.asks.has_outstanding();
        waits.then(|| self.turns.quiet_since + self.policy.input_grace)
    }

    /// Begins the client's turn if it is due for one that has everything up to `cursor`, which is remembered. False when there is
    /// more for it, or nothing to wait for.
    pub fn handle_turn(&mut self, cursor: Seq, now: Instant) -> bool {
        let is_due = self.turn_at().is_some_and(|at| at <= now);
        let has_all = cursor <= self.tail && self.is_spent_after(cursor) && self.storing == 0 && self.staged.is_empty();
        let begins = is_due && has_all;
        if begins {
            self.turns.began_at = Some(cursor);
        }
        begins
    }

    /// Where the client stood when its last turn began; `None` before the first.
    pub fn last_turn(&self) -> Option<Seq> {
        self.turns.began_at
    }
}
