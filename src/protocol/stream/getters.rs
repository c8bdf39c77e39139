//! What can be seen of a stream. Nothing here changes it.

use std::time::{Duration, Instant};

use super::states::{Outcome, Phase, Place};
use super::{Asks, Debts, Machine, Policy, Reader};
use crate::protocol::error::{ErrorCode, Failure};
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
        self.commit_at.is_some_and(|at| at <= now)
    }

    /// Whether no response is owed any more, and those that came may be read.
    pub fn is_answered(&self) -> bool {
        self.debts.is_settled() && self.debts.last_response().is_none_or(|seq| seq <= self.tail)
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
        self.policy.pauses && self.full_since.is_some()
    }

    /// The last number that may be read.
    pub fn tail(&self) -> Seq {
        self.tail
    }

    /// The last number that was given: behind it may be what the store has not accepted yet.
    pub fn numbered_upto(&self) -> Seq {
        Seq(self.tail.0 + (self.storing + self.staged.len()) as u64)
    }

    /// The last number that is gone.
    pub fn trimmed(&self) -> Seq {
        self.trimmed
    }

    /// The last event that may go when room is needed: what was confirmed, then what was written to a connection. A stream
    /// that never pauses gives up its oldest.
    pub fn releasable(&self) -> Seq {
        if self.policy.pauses { self.reader.releasable() } else { self.tail }
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
        if cursor > self.tail || cursor < self.trimmed {
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
        self.asks.spent_between(cursor, self.tail) == self.tail.0.saturating_sub(cursor.0)
    }
}
