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
    /// Returns the place of `cursor`: the last event that a client has, or 0 for none. A sealed
    /// stream ends where no event is left that a replay would write.
    pub fn locate(&self, cursor: Seq) -> CursorPlace {
        if cursor > self.tail() || cursor < self.trimmed() {
            return CursorPlace::Lost;
        }
        match self.phase {
            Phase::Sealed { .. } if self.is_spent_after(cursor) => CursorPlace::AtEnd,
            // No stream, so no place in it.
            Phase::Passed => CursorPlace::Lost,
            Phase::Sealed { .. } | Phase::Waiting | Phase::Open => CursorPlace::After(cursor),
        }
    }

    /// Returns true if the events after `cursor` are answered server→client requests alone.
    pub(super) fn is_spent_after(&self, cursor: Seq) -> bool {
        self.server_requests.spent_between(cursor, self.tail()) == self.tail().0.saturating_sub(cursor.0)
    }

    /// Returns the cursor of a client that names no event: the last confirmed event, or the last
    /// one that is gone.
    pub fn default_cursor(&self) -> Seq {
        self.reader.confirmed().max(self.trimmed())
    }
}
