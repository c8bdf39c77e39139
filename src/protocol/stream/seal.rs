//! The one way a stream ends.

use std::time::Instant;

use super::Machine;
use super::states::{Effect, Outcome, Phase};
use crate::protocol::error::Failure;
use crate::protocol::ids::StreamKind;
use crate::protocol::jsonrpc::RequestId;

impl Machine {
    /// How a stream ends whose debts are settled.
    pub(super) fn settled_outcome(&self) -> Outcome {
        if self.debts.is_cancelled() { Outcome::Cancelled } else { Outcome::Completed }
    }

    /// A request stream whose every response came or was cancelled: whatever happens now, it has not failed.
    pub(super) fn owes_nothing(&self) -> bool {
        self.policy.kind == StreamKind::Request && self.debts.is_settled()
    }

    /// The proxy ends the stream, with an error for whatever it still owes.
    pub(super) fn give_up(&mut self, outcome: Outcome, failure: Failure, now: Instant) {
        if self.is_sealed() || self.sealing.is_some() {
            return;
        }
        if self.owes_nothing() {
            return self.begin_seal(self.settled_outcome(), now);
        }
        self.failure = Some(failure);
        self.stage_errors(failure);
        self.begin_seal(outcome, now);
    }

    /// Invariant 7: an error for every response that is still owed.
    fn stage_errors(&mut self, failure: Failure) {
        if self.phase != Phase::Open || self.sealing.is_some() {
            return;
        }
        let Self { debts, numbering, .. } = self;
        debts.fail_due(|id| numbering.push(b"message", &failure.to_message(Some(id))));
    }

    pub(super) fn announce_cancel(&mut self) {
        let due: Vec<RequestId> = self.debts.due().cloned().collect();
        if self.policy.announces_cancel && !due.is_empty() && self.sealing.is_none() {
            self.effects.push_back(Effect::AnnounceCancel(due));
        }
    }

    pub(super) fn begin_seal(&mut self, outcome: Outcome, now: Instant) {
        if self.is_sealed() || self.sealing.is_some() {
            return;
        }
        if self.phase == Phase::Open
            && let Some(announcements) = &mut self.announcements
        {
            announcements.log_closing(&mut self.numbering);
        }
        self.sealing = Some(outcome);
        self.timers.stop_all();
        self.effects.push_back(Effect::Close);
        self.finish_seal(now);
    }

    /// Invariant 2 holds for the end too: a stream is sealed when its last event is with the store.
    pub(super) fn finish_seal(&mut self, now: Instant) {
        if let Some(outcome) = self.sealing
            && self.numbering.is_stored()
            && !self.is_sealed()
        {
            self.phase = Phase::Sealed { outcome, at: now };
        }
    }
}
