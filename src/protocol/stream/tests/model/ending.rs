//! The end of a stream in the model, and its timers.

use bytes::Bytes;

use super::super::steps::MessageKind;
use super::{Call, Head, Model, Place};
use crate::error::{ErrorCode, Failure, Subject};
use crate::headers::Era;
use crate::ids::StreamKind;
use crate::jsonrpc::RequestId;
use crate::stream::{Effect, Outcome};

impl Model {
    pub(super) fn is_request(&self) -> bool {
        self.setup.kind == StreamKind::Request
    }

    pub(super) fn is_owed(&self, which: usize) -> bool {
        self.answered[which].is_none() && !self.cancelled[which]
    }

    pub(super) fn is_settled(&self) -> bool {
        (0..self.ids.len()).all(|which| !self.is_owed(which))
    }

    pub(super) fn owed(&self) -> Vec<RequestId> {
        (0..self.ids.len()).filter(|which| self.is_owed(*which)).map(|which| self.ids[which].clone()).collect()
    }

    /// Ends the stream with errors; a stream that owes no response cannot fail.
    pub(super) fn fail(&mut self, outcome: Outcome, failure: Failure, at: u64) {
        if self.ending.is_some() {
            return;
        }
        if self.is_request() && self.is_settled() {
            let silent = (0..self.ids.len()).any(|which| self.answered[which].is_none());
            return self.end(if silent { Outcome::Cancelled } else { Outcome::Completed }, at);
        }
        self.failed = true;
        for which in 0..self.ids.len() {
            if self.has_log() && self.is_owed(which) {
                let message = failure.to_message(Some(&self.ids[which]), Subject::Request);
                self.answered[which] = Some(self.push(&message, &[MessageKind::Response { which, error: true }]));
                self.errors = true;
            }
        }
        self.end(outcome, at);
    }

    pub(super) fn end(&mut self, outcome: Outcome, at: u64) {
        self.ending = Some(outcome);
        self.full_since = None;
        self.call = Call::Over;
        self.effects.push(Effect::Close);
        self.seal_if_stored(at);
    }

    pub(super) fn seal_if_stored(&mut self, at: u64) {
        let stored = self.events.iter().all(|event| event.place == Place::Stored);
        if self.ending.is_some() && stored {
            self.sealed_at = self.sealed_at.or(Some(at));
        }
    }

    // ── time ─────────────────────────────────────────────────────────────────────────────────────

    pub(super) fn commit_at(&self) -> Option<u64> {
        if self.head.is_none() && self.ending.is_none() { self.setup.commit_after } else { None }
    }

    pub(super) fn reopen_at(&self) -> Option<u64> {
        match self.call {
            Call::PausingUntil(until) => Some(until),
            Call::Sending | Call::Reading | Call::SendingAgain | Call::Over => None,
        }
    }

    pub(super) fn quiet_end_at(&self) -> Option<u64> {
        if self.ending.is_some() {
            return None;
        }
        [self.linger_until, self.cancel_until].into_iter().flatten().min()
    }

    pub(super) fn call_until(&self) -> Option<u64> {
        let counts = self.ending.is_none() && self.head != Some(Head::Passed) && !self.is_settled();
        if counts { self.setup.call_timeout } else { None }
    }

    pub(super) fn full_until(&self) -> Option<u64> {
        if self.setup.can_pause { Some(self.full_since? + self.setup.full_wait) } else { None }
    }

    pub(super) fn abandon_at(&self) -> Option<u64> {
        if self.attached.is_some() || self.ending.is_some() || self.head == Some(Head::Passed) {
            return None;
        }
        let grace = self.setup.modern_grace.unwrap_or(self.sent_retry * 2 + 1000);
        let wait = match self.setup.era {
            Era::Legacy => self.setup.max_wait?,
            Era::Modern if !self.primed && !self.setup.has_idempotency_key => grace.min(self.setup.unprimed_grace),
            Era::Modern => grace,
        };
        Some(self.since + wait)
    }

    pub(in super::super) fn deadline(&self) -> Option<u64> {
        let timers = [
            self.commit_at(),
            self.reopen_at(),
            self.quiet_end_at(),
            self.call_until(),
            self.full_until(),
            self.abandon_at(),
        ];
        timers.into_iter().flatten().min()
    }

    pub(super) fn timeout(&mut self, at: u64) {
        let due = |timer: Option<u64>| timer.is_some_and(|timer| timer <= at);
        if due(self.commit_at()) {
            self.take_head(Head::Ours);
        }
        if due(self.reopen_at()) && self.barren > 0 && !self.has_had_event && self.attached.is_none() {
            self.call = Call::Over;
            self.waits_for_reader = true;
        } else if due(self.reopen_at()) {
            self.call = Call::SendingAgain;
            self.requested_at = at;
            self.has_event = false;
            self.upstream_id_is_new = false;
            self.upstream_id_was_named = self.upstream_id.is_some();
            self.effects.push(Effect::Reopen(self.upstream_id.clone().map(Bytes::from)));
        }
        let abandoned = Failure::after_send(ErrorCode::Abandoned);
        if due(self.quiet_end_at()) {
            self.fail(Outcome::Completed, abandoned, at);
        }
        if due(self.call_until()) {
            self.announce_cancel();
            self.fail(Outcome::Expired, Failure::after_send(ErrorCode::CallTimedOut), at);
        }
        if due(self.full_until()) {
            self.fail(Outcome::Failed, Failure::after_send(ErrorCode::BoundReached), at);
        }
        if due(self.abandon_at()) {
            self.announce_cancel();
            self.fail(Outcome::Expired, abandoned, at);
        }
    }

    pub(super) fn announce_cancel(&mut self) {
        if self.setup.should_announce_cancel && !self.owed().is_empty() {
            self.effects.push(Effect::AnnounceCancel(self.owed()));
        }
    }
}
