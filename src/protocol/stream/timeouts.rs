//! Timeouts: the effect of each timer, and the time when a stream without a reader is abandoned.

use std::time::Instant;

use super::states::{Effect, HeadOrigin, Outcome, Phase};
use super::timers::Timer;
use super::{Lifecycle, Machine, ReaderState, TaskCall};
use crate::error::{ErrorCode, Failure};
use crate::headers::Era;

impl Machine {
    /// Fires every timer that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for timer in Timer::ALL {
            if self.lifecycle.timers.is_due(timer, now) {
                self.lifecycle.timers.stop(timer);
                self.fire(timer, now);
            }
        }
    }

    fn fire(&mut self, timer: Timer, now: Instant) {
        let lifecycle = &mut self.lifecycle;
        match timer {
            Timer::Commit => {
                lifecycle.open(HeadOrigin::Proxy);
            }
            Timer::Reopen if self.upstream.wait_for_reader(self.reader.is_attached()) => {}
            Timer::Reopen => lifecycle.effects.push_back(Effect::Reopen(self.upstream.reopen(now))),
            Timer::Linger | Timer::CancelGrace => lifecycle.begin_seal(lifecycle.settled_outcome(), now),
            Timer::Call | Timer::Abandon if self.late_facts.as_ref().is_some_and(|facts| facts.is_accepted()) => {
                self.late_head().end(now);
            }
            Timer::Call => {
                lifecycle.announce_cancel();
                self.fail(Outcome::Expired, Failure::after_send(ErrorCode::CallTimedOut), now);
            }
            Timer::Full => self.fail(Outcome::Failed, Failure::after_send(ErrorCode::BoundReached), now),
            Timer::Abandon => {
                lifecycle.announce_cancel();
                self.fail(Outcome::Expired, Failure::after_send(ErrorCode::Abandoned), now);
            }
            Timer::Ping => self.answer_pings(now),
            Timer::Promote => {
                if self.lifecycle.has_no_response() && self.can_hand_over() {
                    self.lifecycle.effects.push_back(Effect::Promote);
                } else {
                    self.lifecycle.handle_promotion_refused(now);
                }
            }
        }
    }

    /// Sets or stops [`Timer::Abandon`] after a change of the reader, of the last `retry` or of the
    /// phase.
    pub(super) fn restart_abandon(&mut self) {
        match self.lifecycle.abandon_at(&self.reader, self.task()) {
            Some(at) => self.lifecycle.timers.set(Timer::Abandon, at),
            None => self.lifecycle.timers.stop(Timer::Abandon),
        }
    }
}

impl Lifecycle {
    /// Returns the time when a stream without a reader is abandoned.
    fn abandon_at(&self, reader: &ReaderState, task: Option<&TaskCall>) -> Option<Instant> {
        let policy = &self.policy;
        if self.ending().is_some() || self.phase == Phase::Passed || reader.is_attached() {
            return None;
        }
        let grace = policy.grace(reader.last_retry());
        let wait = match (task, policy.era) {
            (Some(task), _) => task.wait(policy.max_wait, grace)?,
            (None, _) if policy.is_task => policy.max_wait?,
            (None, Era::Legacy) => policy.max_wait?,
            (None, Era::Modern) if !reader.is_primed() && !policy.has_idempotency_key => {
                grace.min(policy.unprimed_grace)
            }
            (None, Era::Modern) => grace,
        };
        Some(reader.since() + wait)
    }
}
