//! The place of a client's cursor in a stream.

use super::Machine;
use super::states::Phase;
use crate::ids::Seq;

/// The place of a cursor in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorPlace {
    /// Later events exist or may come: read on after this number.
    After(Seq),
    /// The stream is sealed and this is its end.
    AtEnd,
    /// Beyond the tail, or trimmed away.
    Lost,
}

impl Machine {
    /// Returns the place of `cursor`: the last event that a client has, or 0. A sealed stream ends
    /// where a replay would write no further event.
    pub fn locate(&self, cursor: Seq) -> CursorPlace {
        let (tail, trimmed) = (self.numbering().tail(), self.numbering().trimmed());
        if cursor > tail || cursor < trimmed {
            return CursorPlace::Lost;
        }
        match self.lifecycle.phase {
            Phase::Sealed { .. } if self.server_requests.has_spent_all(cursor, tail) => CursorPlace::AtEnd,
            // No stream, so no place in it.
            Phase::Passed => CursorPlace::Lost,
            Phase::Sealed { .. } | Phase::Waiting | Phase::Open => CursorPlace::After(cursor),
        }
    }

    /// Returns the cursor of a client that names no event: the last confirmed event, or the last
    /// event that is gone.
    pub fn default_cursor(&self) -> Seq {
        self.reader.confirmed().max(self.numbering().trimmed())
    }
}
