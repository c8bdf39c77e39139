//! When something is due that nobody tells the machine of, and what happens then.

use std::time::{Duration, Instant};

use super::Machine;
use super::states::{Effect, Outcome, Phase};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::Era;

impl Machine {
    /// Time has passed: whatever was due by `now` happens.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.commit_at) {
            self.open(true);
        }
        if due(self.upstream.reopen_at()) {
            self.effects.push_back(Effect::Reopen(self.upstream.reopen()));
        }
        if due(self.linger_until) || due(self.cancel_until) {
            let outcome = self.settled_outcome();
            self.begin_seal(outcome, now);
        }
        if due(self.call_deadline()) {
            self.announce_cancel();
            self.give_up(Outcome::Expired, Failure::after_send(ErrorCode::CallTimedOut), now);
        }
        if due(self.full_deadline()) {
            self.give_up(Outcome::Failed, Failure::after_send(ErrorCode::BoundReached), now);
        }
        if due(self.abandon_at()) {
            self.announce_cancel();
            self.give_up(Outcome::Expired, Failure::after_send(ErrorCode::Abandoned), now);
        }
    }

    /// When [`Self::handle_timeout`] has something to do. `None` for a sealed stream, whose retention is
    /// [`Self::readable_until`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_sealed() {
            return None;
        }
        [
            self.commit_at,
            self.upstream.reopen_at(),
            self.linger_until,
            self.cancel_until,
            self.call_deadline(),
            self.full_deadline(),
            self.abandon_at(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn call_deadline(&self) -> Option<Instant> {
        self.call_until.filter(|_| !self.debts.is_settled() && self.phase != Phase::Passed)
    }

    fn full_deadline(&self) -> Option<Instant> {
        self.full_since.filter(|_| self.policy.pauses).map(|since| since + self.policy.full_wait)
    }

    /// When a stream that nobody reads is given up.
    fn abandon_at(&self) -> Option<Instant> {
        if self.reader.is_attached() || self.sealing.is_some() || self.phase == Phase::Passed {
            return None;
        }
        let wait = match self.policy.era {
            Era::Legacy => self.policy.max_wait,
            Era::Modern if !self.reader.is_primed() && !self.policy.keyed => Some(Duration::ZERO),
            Era::Modern => Some(self.policy.modern_grace.unwrap_or(self.last_retry * 2 + Duration::from_secs(1))),
        };
        wait.map(|wait| self.reader.since() + wait)
    }
}
