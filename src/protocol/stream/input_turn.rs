//! The client's turn to respond ([SEP-1335]): the upstream waits for client responses and for
//! nothing else. So the client's connection may be closed until it has responded. Absent: the
//! client's consent to the close, which the caller knows.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::time::Instant;

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

    /// Returns the time of the last message of the upstream, or of the last client response. Before
    /// both it is the time of the request.
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
