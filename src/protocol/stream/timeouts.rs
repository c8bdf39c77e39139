//! Timeouts: the effect of each timer, and the start of those that run from the beginning.

use std::time::{Duration, Instant};

use super::Machine;
use super::states::{Effect, HeadOrigin, Outcome, Phase};
use super::timers::Timer;
use crate::error::{ErrorCode, Failure};
use crate::headers::Era;

impl Machine {
    /// Fires every timer that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for timer in Timer::ALL {
            if self.timers.is_due(timer, now) {
                self.timers.stop(timer);
                self.fire(timer, now);
            }
        }
    }

    /// Returns the time of the next [`Self::handle_timeout`], or `None` if there is none. Retention
    /// of a sealed stream is no timer; see [`Self::readable_until`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    fn fire(&mut self, timer: Timer, now: Instant) {
        match timer {
            Timer::Commit => {
                self.open(HeadOrigin::Proxy);
            }
            Timer::Reopen => self.effects.push_back(Effect::Reopen(self.upstream.reopen(now))),
            Timer::Linger | Timer::CancelGrace => self.begin_seal(self.settled_outcome(), now),
            Timer::Call | Timer::Abandon if self.is_accepted() => self.end_accepted(now),
            Timer::Call => {
                self.announce_cancel();
                self.fail(Outcome::Expired, Failure::after_send(ErrorCode::CallTimedOut), now);
            }
            Timer::Full => self.fail(Outcome::Failed, Failure::after_send(ErrorCode::BoundReached), now),
            Timer::Abandon => {
                self.announce_cancel();
                self.fail(Outcome::Expired, Failure::after_send(ErrorCode::Abandoned), now);
            }
            Timer::Ping => self.answer_pings(now),
            Timer::Promote => self.promote(now),
        }
    }

    pub(super) fn start_timers(&mut self, now: Instant) {
        if let Some(after) = self.policy.commit_after {
            self.timers.set(Timer::Commit, now + after);
        }
        if let Some(timeout) = self.policy.call_timeout
            && !self.owed_responses.is_settled()
        {
            self.timers.set(Timer::Call, now + timeout);
        }
        self.restart_abandon();
    }

    /// Sets or stops [`Timer::Abandon`] after a change of the reader, of the last `retry` or of the
    /// phase.
    pub(super) fn restart_abandon(&mut self) {
        match self.abandon_at() {
            Some(at) => self.timers.set(Timer::Abandon, at),
            None => self.timers.stop(Timer::Abandon),
        }
    }

    /// Returns the time at which a stream without a reader is abandoned.
    fn abandon_at(&self) -> Option<Instant> {
        let is_over = self.sealing.is_some() || self.is_sealed() || self.phase == Phase::Passed;
        if is_over || self.reader.is_attached() {
            return None;
        }
        let wait = match self.policy.era {
            _ if self.policy.is_task => self.task_wait()?,
            Era::Legacy => self.policy.max_wait?,
            Era::Modern if !self.reader.is_primed() && !self.policy.has_idempotency_key => Duration::ZERO,
            Era::Modern => self.policy.modern_grace.unwrap_or(self.last_retry * 2 + Duration::from_secs(1)),
        };
        Some(self.reader.since() + wait)
    }
}
