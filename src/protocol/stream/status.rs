//! The status of a stream for its client, as the dialects report it.

use super::Machine;
use super::states::Phase;
use crate::dialect::Status;
use crate::ids::{Seq, StreamKind};

impl Machine {
    /// Returns the status for a client that has every event up to `after`, or up to the last
    /// confirmed one if that is later.
    pub fn status(&self, after: Option<Seq>) -> Status {
        let mut confirmed = self.reader.confirmed();
        if let Some(after) = after
            && after <= self.tail()
        {
            confirmed = confirmed.max(after);
        }
        Status {
            is_completed: match self.policy.kind {
                StreamKind::Request | StreamKind::Task => self.is_answered() && self.phase != Phase::Waiting,
                StreamKind::Standalone => self.is_sealed(),
            },
            has_failed: self.owed_responses.has_error(),
            pending: self.pending(confirmed),
            awaits_input: self.server_requests.has_outstanding() && !self.is_sealed(),
            has_request: self.server_requests.has_outstanding_after(confirmed) && !self.is_sealed(),
            has_error: self.owed_responses.last_error().is_some_and(|seq| confirmed < seq && seq <= self.tail()),
        }
    }

    /// Returns the number of messages after `confirmed` that a client has to get.
    fn pending(&self, confirmed: Seq) -> u64 {
        let (opened, closed) = match &self.announcements {
            Some(announcements) => (announcements.opened(), announcements.closed()),
            None => (Seq(0), None),
        };
        let after = confirmed.max(opened).max(self.trimmed());
        let includes_closing = closed.is_some_and(|seq| after < seq && seq <= self.tail());
        let answered = self.server_requests.spent_between(after, self.tail());
        self.tail().0.saturating_sub(after.0) - u64::from(includes_closing) - answered
    }
}
