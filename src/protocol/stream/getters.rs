//! Getters of the machine. None of them changes it.

use std::time::{Duration, Instant};

use super::states::{Outcome, Phase, Place};
use super::timers::Timer;
use super::{Machine, OwedResponses, Policy, ReaderState, ServerRequests};
use crate::protocol::dialect::Status;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::Era;
use crate::protocol::ids::{Seq, StreamKind};
use crate::protocol::jsonrpc::RequestId;

impl Machine {
    /// Returns the phase of the stream.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the failure with which the proxy ended the stream, or `None` if it did not.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Returns true if the response head is the proxy's own.
    pub fn is_committed(&self) -> bool {
        self.is_committed
    }

    /// Returns true if the proxy begins the response by itself at `now`.
    pub fn is_commit_due(&self, now: Instant) -> bool {
        self.timers.is_due(Timer::Commit, now)
    }

    /// Returns true if no response is owed any more, and those that came may be read.
    pub fn is_answered(&self) -> bool {
        let last_response = self.owed_responses.last_response();
        self.owed_responses.is_settled() && last_response.is_none_or(|seq| seq <= self.tail())
    }

    /// Returns true if the stream has ended.
    pub fn is_sealed(&self) -> bool {
        matches!(self.phase, Phase::Sealed { .. })
    }

    /// Returns true if the client has cancelled the stream, so that no token opens it any more.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Returns true if no token opens the stream any more: it was cancelled or abandoned, or its session was deleted.
    pub fn is_revoked(&self) -> bool {
        let was_abandoned = self.failure.is_some_and(|failure| failure.code == ErrorCode::Abandoned);
        self.is_cancelled || self.is_revoked || was_abandoned
    }

    /// Returns true if the last message is known to have arrived.
    pub fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Returns true if the upstream must not be read now, because the log is full of unwritten events.
    pub fn is_paused(&self) -> bool {
        self.timers.is_set(Timer::Full)
    }

    /// Returns the last event that may be read.
    pub fn tail(&self) -> Seq {
        self.numbering.tail()
    }

    /// Returns the last event that has a number. The store may not have accepted the events behind the tail yet.
    pub fn last_numbered(&self) -> Seq {
        self.numbering.last()
    }

    /// Returns the last event that is gone.
    pub fn trimmed(&self) -> Seq {
        self.numbering.trimmed()
    }

    /// Returns the last event that may be evicted: confirmed events first, then those written to a connection. A stream that never pauses
    /// gives up its oldest events.
    pub fn releasable(&self) -> Seq {
        if self.policy.can_pause { self.reader.releasable() } else { self.tail() }
    }

    /// Returns the current reader and its progress.
    pub fn reader(&self) -> &ReaderState {
        &self.reader
    }

    /// Returns the `retry` that was last sent.
    pub fn last_retry(&self) -> Duration {
        self.last_retry
    }

    /// Returns the `retry` for the connection that was just displaced: a multiple of the one that was last sent.
    pub fn takeover_retry(&self) -> Duration {
        self.reader.takeover_retry(self.last_retry)
    }

    /// Returns the responses that the stream owes or owed.
    pub fn owed_responses(&self) -> &OwedResponses {
        &self.owed_responses
    }

    /// Returns the server's requests to the client.
    pub fn server_requests(&self) -> &ServerRequests {
        &self.server_requests
    }

    /// Returns the rules of the stream.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the time since which the upstream has waited for a response to `id`, or `None` if it does not wait.
    pub fn awaits_response_since(&self, id: &RequestId) -> Option<Instant> {
        if self.is_sealed() { None } else { self.server_requests.outstanding_since(id) }
    }

    /// Returns the end of retention: `retention` after the seal and the last reader, the later of both. Returns `None` while the stream is
    /// unsealed or being read. A response that passed has no seal, and counts from its last reader.
    pub fn readable_until(&self) -> Option<Instant> {
        if self.reader.is_attached() {
            return None;
        }
        let left = self.reader.since();
        match self.phase {
            Phase::Sealed { at, .. } => Some(at.max(left) + self.policy.retention),
            Phase::Passed => Some(left + self.policy.retention),
            Phase::Waiting | Phase::Open => None,
        }
    }

    /// Returns the time until which a client may come back for a sealed stream, if clients reconnect within `patience`: `now` while one
    /// reads it. Returns `None` if no client is expected: the stream was delivered or cancelled, its client closed gracefully, or no
    /// client has an id of it.
    pub fn reader_expected_until(&self, patience: Duration, now: Instant) -> Option<Instant> {
        let Phase::Sealed { outcome, at } = self.phase else { return None };
        let is_wanted = self.policy.kind == StreamKind::Request && outcome != Outcome::Cancelled && !self.is_delivered;
        if !is_wanted || !self.reader.is_primed() || self.reader.has_closed_gracefully() {
            return None;
        }
        if self.reader.is_attached() {
            return Some(now);
        }
        let until = at.max(self.reader.since()) + patience;
        if until > now { Some(until) } else { None }
    }

    /// Returns the place of `cursor`: the last event that a client has, or 0 for none. A sealed stream ends where no event is left that a
    /// replay would write.
    pub fn locate(&self, cursor: Seq) -> Place {
        if cursor > self.tail() || cursor < self.trimmed() {
            return Place::Lost;
        }
        match self.phase {
            Phase::Sealed { .. } if self.is_spent_after(cursor) => Place::AtEnd,
            // No stream, so no place in it.
            Phase::Passed => Place::Lost,
            Phase::Sealed { .. } | Phase::Waiting | Phase::Open => Place::After(cursor),
        }
    }

    /// Returns true if the events after `cursor` are answered server→client requests alone.
    pub(super) fn is_spent_after(&self, cursor: Seq) -> bool {
        self.server_requests.spent_between(cursor, self.tail()) == self.tail().0.saturating_sub(cursor.0)
    }

    /// Returns the cursor of a client that names no event: the last confirmed event, or the last one that is gone.
    pub fn default_cursor(&self) -> Seq {
        self.reader.confirmed().max(self.trimmed())
    }

    /// Returns the status for a client that has every event up to `after`, or up to the last confirmed one if that is later.
    pub fn status(&self, after: Option<Seq>) -> Status {
        let mut confirmed = self.reader.confirmed();
        if let Some(after) = after
            && after <= self.tail()
        {
            confirmed = confirmed.max(after);
        }
        Status {
            is_completed: match self.policy.kind {
                StreamKind::Request => self.is_answered() && self.phase != Phase::Waiting,
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

    /// Returns the time of the client's turn: server→client requests wait, and the upstream will have been quiet for `input_grace` by
    /// then. Returns `None` while no request waits, for a stream that is about to end, and in the modern era, whose clients cancel by
    /// leaving.
    pub fn input_turn_at(&self) -> Option<Instant> {
        let is_ending = self.timers.is_set(Timer::Linger) || self.timers.is_set(Timer::CancelGrace);
        if self.is_logging() && !is_ending && self.policy.era == Era::Legacy && self.server_requests.has_outstanding() {
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
