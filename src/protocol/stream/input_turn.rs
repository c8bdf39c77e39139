//! The client's turn: when the upstream waits for answers and for nothing else, the client's connection serves nobody, and a client
//! that wants it so may be closed on until it has answered ([SEP-1335]). Whether a client wants it so is the caller's to know.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::time::Instant;

use crate::protocol::ids::Seq;

/// What is known of the turns of a stream.
#[derive(Debug)]
pub(super) struct InputTurn {
    quiet_since: Instant,
    began_at: Option<Seq>,
}

impl InputTurn {
    pub(super) fn new(now: Instant) -> Self {
        Self { quiet_since: now, began_at: None }
    }

    /// The upstream said something, or was given an answer.
    pub(super) fn note_activity(&mut self, now: Instant) {
        self.quiet_since = now;
    }

    /// The time since which the upstream has said nothing and was given no answer.
    pub(super) fn quiet_since(&self) -> Instant {
        self.quiet_since
    }

    /// The client's turn begins; it has everything up to `cursor`.
    pub(super) fn begin(&mut self, cursor: Seq) {
        self.began_at = Some(cursor);
    }

    /// The client's cursor when its last turn began, or `None` before its first turn.
    pub(super) fn began_at(&self) -> Option<Seq> {
        self.began_at
    }
}
