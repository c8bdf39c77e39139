//! The one way in which a stream ends.

use std::time::Instant;

use super::Machine;
use super::states::{Effect, Outcome, Phase};
use crate::error::Failure;
use crate::ids::StreamKind;
use crate::jsonrpc::RequestId;
use crate::tasks;

impl Machine {
    /// Returns the outcome of a stream that owes no response.
    pub(super) fn settled_outcome(&self) -> Outcome {
        match self.failure {
            _ if self.owed_responses.is_cancelled() => Outcome::Cancelled,
            Some(_) => Outcome::Failed,
            None => Outcome::Completed,
        }
    }

    /// Returns true if each response of a request stream came or was cancelled. Such a stream can
    /// no longer fail.
    pub(super) fn owes_nothing(&self) -> bool {
        self.policy.kind == StreamKind::Request && self.owed_responses.is_settled()
    }

    /// Ends the stream with `failure` as the error for each owed response. A stream that owes none
    /// ends with its usual outcome.
    pub(super) fn fail(&mut self, outcome: Outcome, failure: Failure, now: Instant) {
        if self.is_sealed() || self.sealing.is_some() {
            return;
        }
        if self.owes_nothing() {
            return self.begin_seal(self.settled_outcome(), now);
        }
        self.failure = Some(failure);
        if self.policy.is_task {
            self.end_task(tasks::Outcome::Failed, now);
        }
        self.stage_errors(failure);
        self.begin_seal(outcome, now);
    }

    /// Stages an error for each owed response (invariant 7).
    fn stage_errors(&mut self, failure: Failure) {
        if self.phase != Phase::Open || self.sealing.is_some() {
            return;
        }
        let Self { owed_responses, numbering, late_head, .. } = self;
        let headers = late_head.as_ref().and_then(|late_head| late_head.refusal());
        owed_responses.fail_due(|id| numbering.push(b"message", &failure.to_message_with(Some(id), headers)));
    }

    pub(super) fn announce_cancel(&mut self) {
        let due: Vec<RequestId> = self.owed_responses.due().cloned().collect();
        if self.policy.should_announce_cancel && !due.is_empty() && self.sealing.is_none() {
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

    /// Seals the stream once the store has its last event: invariant 2 holds for the end too.
    pub(super) fn finish_seal(&mut self, now: Instant) {
        if let Some(outcome) = self.sealing
            && self.numbering.is_stored()
            && !self.is_sealed()
        {
            self.phase = Phase::Sealed { outcome, at: now };
        }
    }
}
