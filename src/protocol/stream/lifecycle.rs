//! The lifecycle of a stream: its phase, its numbering, its owed responses, its deadlines and
//! effects, and its only way to end.
//!
//! The other parts of the machine get it as their context. Absent: readers, server requests, and
//! the upstream call.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Policy;
use super::announcements::{AnnouncementState, Announcements};
use super::event_batch::Batch;
use super::numbering::Numbering;
use super::owed_responses::OwedResponses;
use super::states::{Effect, HeadOrigin, Outcome, Phase};
use super::timers::{Timer, TimerTable};
use crate::error::{ErrorCode, Failure};
use crate::headers::Era;
use crate::ids::{Seq, StreamKind};
use crate::jsonrpc::{self, Body, Message, RequestId};
use crate::refusal::RefusalHeaders;

/// Delay before another attempt after a promotion that was not possible.
const PROMOTION_RETRY: Duration = Duration::from_millis(500);

/// The phase of one stream, and the state that its end depends on.
#[derive(Debug)]
pub struct Lifecycle {
    pub(super) policy: Policy,
    pub(super) phase: Phase,
    pub(super) head_origin: HeadOrigin,
    /// The outcome of a stream that ends once its last event is stored, or `None` if more events
    /// may come.
    pub(super) sealing: Option<Outcome>,
    /// The failure by the proxy that ended the stream, or `None` if there was no failure.
    pub(super) failure: Option<Failure>,
    /// True if the client has cancelled the stream.
    pub(super) is_cancelled: bool,
    /// True if tokens no longer open the stream for any other reason.
    pub(super) is_revoked: bool,
    pub(super) numbering: Numbering,
    pub(super) owed_responses: OwedResponses,
    /// The proxy's own messages around the upstream's, or `None` for most streams.
    pub(super) announcements: Option<Box<AnnouncementState>>,
    pub(super) timers: TimerTable,
    pub(super) effects: VecDeque<Effect>,
}

impl Lifecycle {
    pub(super) fn new(policy: Policy, ids: Vec<RequestId>, now: Instant) -> Self {
        let mut lifecycle = Self {
            phase: Phase::Waiting,
            head_origin: HeadOrigin::Upstream,
            sealing: None,
            failure: None,
            is_cancelled: false,
            is_revoked: false,
            numbering: Numbering::new(),
            owed_responses: OwedResponses::new(ids),
            announcements: None,
            timers: TimerTable::default(),
            effects: VecDeque::new(),
            policy,
        };
        if let Some(after) = lifecycle.policy.commit_after {
            lifecycle.timers.set(Timer::Commit, now + after);
        }
        if let Some(timeout) = lifecycle.policy.call_timeout
            && !lifecycle.owed_responses.is_settled()
        {
            lifecycle.timers.set(Timer::Call, now + timeout);
        }
        lifecycle
    }

    // ── the state ────────────────────────────────────────────────────────────────────────────────

    /// Returns the phase of the stream.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns true if the stream has ended.
    pub fn is_sealed(&self) -> bool {
        matches!(self.phase, Phase::Sealed { .. })
    }

    /// Returns the outcome of a stream whose last event is numbered, or `None` if more may come.
    pub fn ending(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Sealed { outcome, .. } => Some(outcome),
            Phase::Waiting | Phase::Passed | Phase::Open => self.sealing,
        }
    }

    /// Returns true if the stream takes further events: its head has come, and its end is not
    /// decided.
    pub fn can_append(&self) -> bool {
        self.phase == Phase::Open && self.sealing.is_none()
    }

    /// Returns the failure by the proxy that ended the stream, or `None` if there was no failure.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Returns true if the response head is the proxy's own.
    pub fn is_committed(&self) -> bool {
        self.head_origin == HeadOrigin::Proxy
    }

    /// Returns true if the proxy begins the response by itself at `now`.
    pub fn is_commit_due(&self, now: Instant) -> bool {
        self.timers.is_due(Timer::Commit, now)
    }

    /// Returns `data` with the ids of the requests, if its responses have ids that only equal them
    /// as numbers or as text. `body` is what `data` holds.
    pub fn respelled(&self, body: &Body, data: &[u8]) -> Option<Vec<u8>> {
        let is_known = |message: &Message| match message {
            Message::Response { id: Some(id), .. } => self.owed_responses.has(id),
            Message::Response { id: None, .. } | Message::Request { .. } | Message::Notification { .. } => true,
        };
        if self.policy.kind != StreamKind::Request || body.messages().iter().all(is_known) {
            return None;
        }
        jsonrpc::rename_ids(data, |message, id| match message {
            Message::Response { .. } => self.owed_responses.alike(id),
            Message::Request { .. } | Message::Notification { .. } => None,
        })
    }

    /// Returns true if no response is owed any more, and every response so far may be read.
    pub fn is_answered(&self) -> bool {
        let last_response = self.owed_responses.last_response();
        self.owed_responses.is_settled() && last_response.is_none_or(|seq| seq <= self.numbering.tail())
    }

    /// Returns true if the client has cancelled the stream, so that no token opens it any more.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Returns true if no token opens the stream any more: it was cancelled or abandoned, or its
    /// session was deleted.
    pub fn is_revoked(&self) -> bool {
        let was_abandoned = self.failure.is_some_and(|failure| failure.code == ErrorCode::Abandoned);
        self.is_withdrawn() || was_abandoned
    }

    /// Returns true if no client wants the response any more: the client has cancelled the stream,
    /// or its session was deleted.
    pub fn is_withdrawn(&self) -> bool {
        self.is_cancelled || self.is_revoked
    }

    /// Returns true if the upstream must not be read now, because the log is full of unwritten
    /// events.
    pub fn is_paused(&self) -> bool {
        self.timers.is_set(Timer::Full)
    }

    /// Returns true if each response of a request stream came or was cancelled. Such a stream can
    /// no longer fail.
    pub(super) fn owes_nothing(&self) -> bool {
        self.policy.kind == StreamKind::Request && self.owed_responses.is_settled()
    }

    /// Returns true if the call runs, and has no response yet.
    pub(super) fn has_no_response(&self) -> bool {
        let is_running = matches!(self.phase, Phase::Waiting | Phase::Open) && self.sealing.is_none();
        is_running && self.owed_responses.answered_len() == 0 && !self.owed_responses.is_settled()
    }

    /// Returns the outcome of a stream that owes no response.
    pub(super) fn settled_outcome(&self) -> Outcome {
        match self.failure {
            _ if self.owed_responses.is_cancelled() => Outcome::Cancelled,
            Some(_) => Outcome::Failed,
            None => Outcome::Completed,
        }
    }

    // ── the head ─────────────────────────────────────────────────────────────────────────────────

    /// Adds announcements to the stream. Must precede its head.
    pub fn set_announcements(&mut self, announcements: Announcements) {
        self.announcements = Some(Box::new(AnnouncementState::new(announcements)));
    }

    /// The response must begin now, with or without a head of the upstream: an id is about to be
    /// written. Returns false if it cannot, because the upstream's response passes as it is.
    pub fn handle_commit(&mut self) -> bool {
        self.open(HeadOrigin::Proxy);
        self.phase != Phase::Passed
    }

    /// The proxy may not begin the response by itself: the client waits for the upstream's head.
    pub fn handle_commit_forbidden(&mut self) {
        self.timers.stop(Timer::Commit);
    }

    /// Opens a stream that waits for a head. Returns false if it does not wait.
    pub(super) fn open(&mut self, head_origin: HeadOrigin) -> bool {
        self.timers.stop(Timer::Commit);
        let is_first_head = self.phase == Phase::Waiting;
        if is_first_head {
            self.phase = Phase::Open;
            self.head_origin = head_origin;
            if let Some(announcements) = &mut self.announcements {
                announcements.log_opening(&mut self.numbering);
            }
        }
        is_first_head
    }

    // ── the upstream ─────────────────────────────────────────────────────────────────────────────

    /// Reserves memory for `events` events that are about to come, with `bytes` bytes of data
    /// together.
    pub fn reserve(&mut self, events: usize, bytes: usize) {
        if self.can_append() {
            self.numbering.reserve(events, bytes);
        }
    }

    /// The server is gone: each response that it still owed is an error, with this failure.
    pub fn handle_server_lost(&mut self, failure: Failure) {
        if !self.owes_nothing() && self.ending().is_none() {
            self.failure = Some(failure);
        }
    }

    /// No message has passed in the session of a call for a while: its server may be about to end
    /// the session. Returns true if the upstream is sent a ping, and false if the stream is no
    /// running call of the legacy era.
    pub fn handle_quiet(&mut self) -> bool {
        let is_call = self.policy.kind == StreamKind::Request && self.policy.era == Era::Legacy;
        let runs = self.sealing.is_none() && matches!(self.phase, Phase::Waiting | Phase::Open);
        let is_quiet = is_call && runs && !self.owed_responses.is_settled();
        if is_quiet {
            self.effects.push_back(Effect::KeepAlive);
        }
        is_quiet
    }

    /// Makes the call a task at `at`, if it still runs then.
    pub fn handle_promotion_at(&mut self, at: Instant) {
        self.timers.set(Timer::Promote, at);
    }

    /// The promotion is not possible now; it is tried again after a moment.
    pub fn handle_promotion_refused(&mut self, now: Instant) {
        if self.has_no_response() {
            self.timers.set(Timer::Promote, now + PROMOTION_RETRY);
        }
    }

    // ── the client ───────────────────────────────────────────────────────────────────────────────

    /// Ends the call's time limit, and begins to linger, once no response is owed. `had_owed`: true
    /// if one was owed before the event.
    pub(super) fn handle_answered(&mut self, had_owed: bool, now: Instant) {
        let Self { policy, owed_responses, timers, .. } = self;
        // While a cancelled request may still get its response, only the response that settles the
        // last owed one ends the stream this early.
        let is_last_owed = had_owed && owed_responses.is_settled();
        if is_last_owed {
            timers.stop(Timer::Call);
        }
        let is_complete = policy.kind == StreamKind::Request && owed_responses.is_answered();
        if (is_last_owed || is_complete) && !timers.is_set(Timer::Linger) {
            timers.set(Timer::Linger, now + policy.linger);
        }
    }

    /// The client cancels one of its requests. Returns false if there is nothing to cancel. From
    /// here on the stream's tokens are refused. The first of the upstream's response, its end, and
    /// the end of `cancel_grace` seals the stream.
    pub fn handle_cancel(&mut self, id: &RequestId, now: Instant) -> bool {
        if self.ending().is_some() || !self.owed_responses.cancel(id) {
            return false;
        }
        if self.owed_responses.is_settled() {
            self.is_cancelled = true;
            self.timers.stop(Timer::Call);
            self.timers.set(Timer::CancelGrace, now + self.policy.cancel_grace);
        }
        true
    }

    /// The reader took a part of the next event: the stream is being read, however slowly.
    pub fn handle_partial_write(&mut self, now: Instant) {
        if self.timers.is_set(Timer::Full) {
            self.timers.set(Timer::Full, now + self.policy.full_wait);
        }
    }

    // ── the log ──────────────────────────────────────────────────────────────────────────────────

    /// Returns the next batch to store, in order, or `None` while one is being stored or nothing is
    /// staged.
    pub fn poll_batch(&mut self) -> Option<Batch> {
        self.numbering.take_batch()
    }

    /// The store accepted the batch of [`Self::poll_batch`]: its events may be read now.
    pub fn handle_stored(&mut self, now: Instant) {
        self.numbering.handle_stored();
        self.finish_seal(now);
    }

    /// The store refused the batch of [`Self::poll_batch`]: another writer has the stream, or it
    /// has ended there. No staged event will ever be stored, owed errors included. So no staged
    /// event may be read: the stream ends with the last stored event.
    pub fn handle_refused(&mut self, now: Instant) {
        self.numbering.handle_refused();
        self.announcements = None;
        self.failure = Some(Failure::after_send(ErrorCode::StoreFailed));
        self.begin_seal(Outcome::Failed, now);
        self.finish_seal(now);
    }

    /// The log exceeds its limits although every releasable event was dropped, or no longer exceeds
    /// them. A stream that has ended needs no more memory.
    pub fn handle_full(&mut self, full: bool, now: Instant) {
        if self.sealing.is_some() || !self.policy.can_pause {
            return;
        }
        if !full {
            self.timers.stop(Timer::Full);
        } else if !self.timers.is_set(Timer::Full) {
            self.timers.set(Timer::Full, now + self.policy.full_wait);
        }
    }

    /// An event was logged after the snapshot was taken: it may be an owed response.
    pub fn handle_logged(&mut self, seq: Seq, data: &[u8]) {
        if !jsonrpc::may_have_id(data) {
            return;
        }
        let Ok(body) = jsonrpc::peek_any(data) else { return };
        for message in body.messages() {
            if let Message::Response { id: Some(id), is_error } = message {
                self.owed_responses.answer(id, seq, *is_error);
            }
        }
    }

    /// The writer of the stream, in another process, has sealed it. Without a snapshot the outcome
    /// is unknown and counts as a failure.
    pub fn handle_remote_seal(&mut self, now: Instant) {
        if !self.is_sealed() {
            let outcome = self.sealing.take().unwrap_or(Outcome::Failed);
            self.phase = Phase::Sealed { outcome, at: now };
            self.timers.stop_all();
        }
    }

    /// Returns the next effect for the caller to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time of the next [`Machine::handle_timeout`], or `None` without a deadline.
    /// Retention of a sealed stream is no timer; see [`Machine::readable_until`].
    ///
    /// [`Machine::handle_timeout`]: super::Machine::handle_timeout
    /// [`Machine::readable_until`]: super::Machine::readable_until
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    // ── the end ──────────────────────────────────────────────────────────────────────────────────

    /// Ends the stream with `failure` as the error for each owed response (invariant 7). A stream
    /// without owed responses ends with its usual outcome. `headers` are members of each error.
    pub(super) fn fail(&mut self, outcome: Outcome, failure: Failure, headers: Option<&RefusalHeaders>, now: Instant) {
        if self.ending().is_some() {
            return;
        }
        if self.owes_nothing() {
            return self.begin_seal(self.settled_outcome(), now);
        }
        self.failure = Some(failure);
        if self.phase == Phase::Open {
            let Self { owed_responses, numbering, policy, .. } = self;
            let subject = policy.subject();
            owed_responses.fail_due(|id| numbering.push(b"message", &failure.to_message_after(id, subject, headers)));
        }
        self.begin_seal(outcome, now);
    }

    /// Informs the server of the cancel of the due requests, if the policy permits it.
    pub(super) fn announce_cancel(&mut self) {
        let due: Vec<RequestId> = self.owed_responses.due().cloned().collect();
        if self.policy.should_announce_cancel && !due.is_empty() && self.sealing.is_none() {
            self.effects.push_back(Effect::AnnounceCancel(due));
        }
    }

    /// Decides the outcome. The stream is sealed once the store has its last event.
    pub(super) fn begin_seal(&mut self, outcome: Outcome, now: Instant) {
        if self.ending().is_some() {
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
    fn finish_seal(&mut self, now: Instant) {
        if let Some(outcome) = self.sealing
            && self.numbering.is_stored()
            && !self.is_sealed()
        {
            self.phase = Phase::Sealed { outcome, at: now };
        }
    }
}
