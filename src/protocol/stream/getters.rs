//! What can be seen of a stream. Nothing here changes it.

use std::time::{Duration, Instant};

use super::states::{Outcome, Phase, Place};
use super::timers::Timer;
use super::{Asks, Debts, Machine, Policy, Reader};
use crate::protocol::dialect::Status;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::Era;
use crate::protocol::ids::{Seq, StreamKind};

impl Machine {
    /// Where the stream stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Why the proxy ended the stream before its upstream did.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether the response head is the proxy's own.
    pub fn is_committed(&self) -> bool {
        self.committed
    }

    /// Whether the proxy begins the response by itself at `now`.
    pub fn commits_by(&self, now: Instant) -> bool {
        self.timers.is_due(Timer::Commit, now)
    }

    /// Whether no response is owed any more, and those that came may be read.
    pub fn is_answered(&self) -> bool {
        self.debts.is_settled() && self.debts.last_response().is_none_or(|seq| seq <= self.tail())
    }

    /// Whether the stream has ended.
    pub fn is_sealed(&self) -> bool {
        matches!(self.phase, Phase::Sealed { .. })
    }

    /// Whether the client has cancelled it, so that no token opens it any more.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Whether its tokens open it no more: it was cancelled, nobody came back in time, or its session was deleted.
    pub fn is_revoked(&self) -> bool {
        self.cancelled || self.revoked || self.failure.is_some_and(|failure| failure.code == ErrorCode::Abandoned)
    }

    /// Whether its last message is known to have arrived.
    pub fn is_delivered(&self) -> bool {
        self.delivered
    }

    /// Whether the upstream must not be read now: the bounds are full of unwritten events.
    pub fn is_paused(&self) -> bool {
        self.timers.is_set(Timer::Full)
    }

    /// The last number that may be read.
    pub fn tail(&self) -> Seq {
        self.numbering.tail()
    }

    /// The last number that was given: behind it may be what the store has not accepted yet.
    pub fn numbered_upto(&self) -> Seq {
        self.numbering.last()
    }

    /// The last number that is gone.
    pub fn trimmed(&self) -> Seq {
        self.numbering.trimmed()
    }

    /// The last event that may go when room is needed: what was confirmed, then what was written to a connection. A stream
    /// that never pauses gives up its oldest.
    pub fn releasable(&self) -> Seq {
        if self.policy.pauses { self.reader.releasable() } else { self.tail() }
    }

    /// Who reads it.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The `retry` that was last told.
    pub fn last_retry(&self) -> Duration {
        self.last_retry
    }

    /// What the connection that was just taken over is told: to wait a multiple of the `retry` that was last told.
    pub fn takeover_retry(&self) -> Duration {
        self.reader.takeover_retry(self.last_retry)
    }

    /// What it owes.
    pub fn debts(&self) -> &Debts {
        &self.debts
    }

    /// What the server asked.
    pub fn asks(&self) -> &Asks {
        &self.asks
    }

    /// What it lives by.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Until when a stream that is over stays: `retention` after its seal and its last reader, whichever is later. `None`
    /// while it is unsealed or being read. An answer that passed has no seal.
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

    /// Until when somebody may be expected to come for what a stream that is over holds, if a client takes at most `patience` to
    /// come back. `None` where nobody is: it was delivered, cancelled, its client left in peace, or nobody has an id of it. While it is read: now.
    pub fn expects_reader(&self, patience: Duration, now: Instant) -> Option<Instant> {
        let Phase::Sealed { outcome, at } = self.phase else { return None };
        let wanted = self.policy.kind == StreamKind::Request && outcome != Outcome::Cancelled && !self.delivered;
        match self.reader.is_attached() {
            _ if !wanted || !self.reader.is_primed() || self.reader.has_parted() => None,
            true => Some(now),
            false => Some(at.max(self.reader.since()) + patience).filter(|until| *until > now),
        }
    }

    /// Where `cursor` lies. A cursor is the last event a client has, 0 for none. A sealed stream ends where no event is left
    /// that a replay would write.
    pub fn place(&self, cursor: Seq) -> Place {
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

    /// Whether the events after `cursor` are nothing but questions that were answered.
    pub(super) fn is_spent_after(&self, cursor: Seq) -> bool {
        self.asks.spent_between(cursor, self.tail()) == self.tail().0.saturating_sub(cursor.0)
    }

    /// Where one goes on who names no event: after the last that was confirmed, or at the first that is kept.
    pub fn undelivered_after(&self) -> Seq {
        self.reader.confirmed().max(self.trimmed())
    }

    /// Where the stream stands, for a client that has everything up to `after` (`None`: up to what it has confirmed).
    pub fn status(&self, after: Option<Seq>) -> Status {
        let confirmed = self.reader.confirmed().max(after.filter(|after| *after <= self.tail()).unwrap_or_default());
        Status {
            is_completed: match self.policy.kind {
                StreamKind::Request => self.is_answered() && self.phase != Phase::Waiting,
                StreamKind::Standalone => self.is_sealed(),
            },
            has_failed: self.debts.has_error(),
            pending: self.pending(confirmed),
            awaits_input: self.asks.has_outstanding() && !self.is_sealed(),
            has_request: self.asks.has_outstanding_after(confirmed) && !self.is_sealed(),
            has_error: self.debts.last_error().is_some_and(|seq| confirmed < seq && seq <= self.tail()),
        }
    }

    /// The messages after `confirmed` that a client has to get.
    fn pending(&self, confirmed: Seq) -> u64 {
        let (opened, closed) = match &self.announcements {
            Some(announcements) => (announcements.opened(), announcements.closed()),
            None => (Seq(0), None),
        };
        let after = confirmed.max(opened).max(self.trimmed());
        let is_closing_later = closed.is_some_and(|seq| after < seq && seq <= self.tail());
        let answered = self.asks.spent_between(after, self.tail());
        self.tail().0.saturating_sub(after.0) - u64::from(is_closing_later) - answered
    }

    /// When it is the client's turn: server→client requests wait for answers, and the upstream will have been quiet for
    /// `input_grace` by then. `None` while nothing waits, for a stream that is about to end, and in the modern era, whose clients
    /// cancel by leaving.
    pub fn turn_at(&self) -> Option<Instant> {
        let ends = self.timers.is_set(Timer::Linger) || self.timers.is_set(Timer::CancelGrace);
        let waits = self.is_logging() && !ends && self.policy.era == Era::Legacy && self.asks.has_outstanding();
        if waits { Some(self.input_turn.quiet_since() + self.policy.input_grace) } else { None }
    }

    /// Where the client stood when its last turn began; `None` before the first.
    pub fn last_turn(&self) -> Option<Seq> {
        self.input_turn.began_at()
    }
}
