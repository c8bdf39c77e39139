//! The status of a stream for its client, as the dialects report it.

use super::states::Phase;
use super::{Lifecycle, Machine, ServerRequests};
use crate::dialect::Status;
use crate::ids::{Seq, StreamKind};

impl Machine {
    /// Returns the status for a client that has every event up to `after`, or up to the last
    /// confirmed one if that is later.
    pub fn status(&self, after: Option<Seq>) -> Status {
        let Self { lifecycle, server_requests, .. } = self;
        let (tail, is_open) = (lifecycle.numbering.tail(), !lifecycle.is_sealed());
        let confirmed = self.reader.confirmed().max(after.filter(|after| *after <= tail).unwrap_or_default());
        Status {
            is_completed: match lifecycle.policy.kind {
                StreamKind::Request | StreamKind::Task => lifecycle.is_answered() && lifecycle.phase != Phase::Waiting,
                StreamKind::Standalone => lifecycle.is_sealed(),
            },
            has_failed: lifecycle.owed_responses.has_error(),
            pending: lifecycle.pending_after(confirmed, server_requests),
            awaits_input: server_requests.has_outstanding() && is_open,
            has_request: server_requests.has_outstanding_after(confirmed) && is_open,
            has_error: lifecycle.owed_responses.last_error().is_some_and(|seq| confirmed < seq && seq <= tail),
        }
    }
}

impl Lifecycle {
    /// Returns the number of messages after `confirmed` that a client has to get.
    fn pending_after(&self, confirmed: Seq, server_requests: &ServerRequests) -> u64 {
        let Self { numbering, announcements, .. } = self;
        let tail = numbering.tail();
        let (opened, closed) = match announcements {
            Some(announcements) => (announcements.opened(), announcements.closed()),
            None => (Seq(0), None),
        };
        let after = confirmed.max(opened).max(numbering.trimmed());
        let includes_closing = closed.is_some_and(|seq| after < seq && seq <= tail);
        let spent = server_requests.spent_between(after, tail);
        tail.0.saturating_sub(after.0) - u64::from(includes_closing) - spent
    }
}
