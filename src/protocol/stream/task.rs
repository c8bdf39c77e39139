//! Streams of tasks: a call whose client got a handle in place of the result.
//!
//! A call becomes a task in one step of its pump. The stream of the POST gets the handle as the
//! response that it owes, and ends; from then on it is a finished call like any other. The upstream
//! call goes on in a stream of its own, whose events are records of the task's state, each of which
//! makes the one before it obsolete, and in the end the response of the server. So any process that
//! has the stream's events can tell the state. Absent: the records themselves
//! ([`tasks`](crate::tasks)), and the conditions under which a call may become a task (the pump).

use std::time::{Duration, Instant};

use super::Machine;
use super::states::{Effect, HeadOrigin, Outcome, Phase};
use super::timers::Timer;
use super::upstream_resume::UpstreamCursor;
use crate::error::Failure;
use crate::ids::Seq;
use crate::jsonrpc::{self, Message, RequestId};
use crate::progress;
use crate::tasks::{self, InputProgress, TaskState};

/// Name of the events that hold a record of the state.
const RECORD: &[u8] = b"mcp-resume-task";
/// Least time between two records of progress alone.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a promotion that was not possible is tried again.
const PROMOTION_RETRY: Duration = Duration::from_millis(500);

/// The upstream call of a task.
#[derive(Debug)]
pub(super) struct TaskCall {
    state: TaskState,
    /// ID of the request at the server: that of the client, or that of a call that goes on with its
    /// answers.
    request: RequestId,
    /// Event of the last record.
    record_at: Seq,
    recorded: Instant,
    /// True once the client is known to have the task's ID.
    is_known: bool,
}

/// Outcome of `tasks/update` or `tasks/cancel` for the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskChange {
    /// The state has changed.
    Changed,
    /// Nothing has changed: the task has ended, or nothing that was answered is outstanding.
    Unchanged,
}

impl Machine {
    // ── the stream of the POST ───────────────────────────────────────────────────────────────────

    /// Makes the call a task at `at`, if it still runs then.
    pub fn handle_promotion_at(&mut self, at: Instant) {
        self.timers.set(Timer::Promote, at);
    }

    /// The promotion is not possible now; it is tried again after a moment.
    pub fn handle_promotion_refused(&mut self, now: Instant) {
        if self.runs() {
            self.timers.set(Timer::Promote, now + PROMOTION_RETRY);
        }
    }

    /// The call becomes a task, and `handle` is the response that the stream owes. Returns the
    /// place in the upstream's stream, from which the task's stream goes on; or `None` if the call
    /// cannot become a task now: it has a response, none that reads it, or has ended.
    pub fn handle_promoted(&mut self, handle: &[u8], now: Instant) -> Option<UpstreamCursor> {
        if !self.runs() || !self.can_hand_over() {
            return None;
        }
        let id = self.owed_responses.due().next().cloned()?;
        self.open(HeadOrigin::Proxy);
        let seq = self.numbering.push(b"message", handle);
        self.owed_responses.answer(&id, seq, false);
        self.begin_seal(Outcome::Completed, now);
        Some(std::mem::replace(&mut self.upstream, UpstreamCursor::new(now)))
    }

    /// Returns true if the call runs, and has no response yet.
    fn runs(&self) -> bool {
        let is_open = matches!(self.phase, Phase::Waiting | Phase::Open) && self.sealing.is_none();
        is_open && self.owed_responses.answered_len() == 0 && !self.owed_responses.is_settled()
    }

    /// Returns true if a client is there to get the handle, and the upstream call is not between
    /// two connections.
    fn can_hand_over(&self) -> bool {
        self.reader.is_attached() && !self.timers.is_set(Timer::Reopen)
    }

    pub(super) fn promote(&mut self, now: Instant) {
        if !self.runs() {
            return;
        }
        if self.can_hand_over() {
            self.effects.push_back(Effect::Promote);
        } else {
            self.timers.set(Timer::Promote, now + PROMOTION_RETRY);
        }
    }

    // ── the stream of the task ───────────────────────────────────────────────────────────────────

    /// Begins the stream of a task in this state, whose request has the ID that the stream owes a
    /// response for.
    pub fn handle_task(&mut self, state: TaskState, now: Instant) {
        let Some(request) = self.owed_responses.due().next().cloned() else { return };
        self.open(HeadOrigin::Proxy);
        self.task = Some(Box::new(TaskCall { state, request, record_at: Seq(0), recorded: now, is_known: false }));
        self.record(now);
        self.restart_abandon();
    }

    /// The call goes on where another stream has left it.
    pub fn handle_handed_over(&mut self, upstream: UpstreamCursor) {
        self.upstream = upstream;
    }

    /// Returns the state of the task, or `None` in a process that does not have its call.
    pub fn task(&self) -> Option<&TaskState> {
        self.task.as_ref().map(|task| &task.state)
    }

    /// The client is known to have the task's ID: it has the handle, or has asked for the task.
    pub(super) fn note_task_known(&mut self) {
        if let Some(task) = &mut self.task {
            task.is_known = true;
        }
    }

    /// The client asks for the state.
    pub fn handle_task_poll(&mut self, now: Instant) {
        self.handle_touch(now);
        if self.sealing.is_none()
            && let Some(continuation) = self.task.as_mut().and_then(|task| task.state.take_polled())
        {
            self.effects.push_back(Effect::CallAgain(continuation));
            self.record(now);
        }
    }

    /// The client answers requests of the server: `input_responses` is the JSON object of its
    /// update.
    pub fn handle_task_update(&mut self, input_responses: &str, now: Instant) -> TaskChange {
        self.handle_touch(now);
        let Some(task) = self.task.as_mut().filter(|_| self.sealing.is_none()) else { return TaskChange::Unchanged };
        match task.state.take_responses(input_responses, now) {
            InputProgress::None => return TaskChange::Unchanged,
            InputProgress::Partial => {}
            InputProgress::Complete(continuation) => self.effects.push_back(Effect::CallAgain(continuation)),
        }
        self.record(now);
        TaskChange::Changed
    }

    /// The client cancels the task: that is its outcome, and a later response of the server counts
    /// for nothing.
    pub fn handle_task_cancel(&mut self, now: Instant) -> TaskChange {
        self.handle_touch(now);
        if self.sealing.is_some() || self.is_sealed() || !self.policy.is_task {
            return TaskChange::Unchanged;
        }
        self.announce_cancel();
        self.end_task(tasks::Outcome::Cancelled, now);
        if self.policy.has_records() {
            let due: Vec<RequestId> = self.owed_responses.due().cloned().collect();
            for id in &due {
                self.owed_responses.cancel(id);
            }
        } else {
            // Requests that read the task end with it.
            let Self { owed_responses, numbering, .. } = self;
            owed_responses.fail_due(|id| numbering.push(b"message", &tasks::legacy::cancelled(id)));
            self.timers.stop(Timer::Call);
        }
        self.is_cancelled = true;
        self.begin_seal(Outcome::Cancelled, now);
        TaskChange::Changed
    }

    /// The call goes on at the server under this ID, in a response of its own.
    pub fn handle_called_again(&mut self, request: RequestId, now: Instant) {
        self.upstream = UpstreamCursor::new(now);
        if let Some(task) = &mut self.task {
            task.request = request;
        }
    }

    /// Returns true if a response with this ID is the one that the stream owes.
    pub fn is_of_task(&self, id: &RequestId) -> bool {
        self.task.as_ref().is_some_and(|task| task.request == *id)
    }

    /// Returns true if the server has nothing to do until the client has answered, or asked again.
    pub(super) fn awaits_client(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.state.awaits_client())
    }

    /// Returns the time without a request after which the task is abandoned, or `None` for never.
    /// Until the client is known to have the task's ID that is the grace of the call, and the time
    /// in which a client polls that was told to.
    pub(super) fn task_wait(&self) -> Option<Duration> {
        match &self.task {
            Some(task) if !task.is_known => {
                let grace = self.policy.modern_grace.unwrap_or(self.last_retry * 2 + Duration::from_secs(1));
                let record = task.state.record();
                Some(grace + record.poll_interval(record.updated_ms()) * 2 + Duration::from_secs(1))
            }
            Some(_) | None => self.policy.max_wait,
        }
    }

    /// Returns the last event that a later record has made obsolete.
    pub(super) fn obsolete_records(&self) -> Seq {
        self.task.as_ref().map_or(Seq(0), |task| Seq(task.record_at.0.saturating_sub(1)))
    }

    /// Handles one message of the upstream.
    pub(super) fn handle_message_of_task(&mut self, data: &[u8], now: Instant) {
        let Ok(body) = jsonrpc::peek(data) else { return };
        for (message, text) in body.messages().iter().zip(jsonrpc::messages(data)) {
            match message {
                Message::Response { id: Some(id), is_error } => {
                    self.handle_response_of_task(id, *is_error, text.as_bytes(), now);
                }
                Message::Notification { method } if method == "notifications/progress" => {
                    self.handle_progress_of_task(text.as_bytes(), now);
                }
                // A task has no other messages: neither log messages, nor requests of the server,
                // which this revision does not have.
                Message::Response { id: None, .. } | Message::Notification { .. } | Message::Request { .. } => {}
            }
        }
    }

    fn handle_response_of_task(&mut self, id: &RequestId, is_error: bool, text: &[u8], now: Instant) {
        let Some(task) = self.task.as_mut().filter(|task| task.request == *id) else { return };
        if self.owed_responses.is_settled() {
            return;
        }
        if !is_error && jsonrpc::is_input_required(text) {
            return match task.state.begin_round(text, now) {
                Ok(()) => self.record(now),
                Err(code) => self.fail(Outcome::Failed, Failure::after_send(code), now),
            };
        }
        self.end_task(if is_error { tasks::Outcome::Failed } else { tasks::Outcome::Completed }, now);
        let Some(owed) = self.owed_responses.due().next().cloned() else { return };
        // The call may have gone on under an ID of the proxy's.
        let renamed = jsonrpc::rename_ids(text, |_, other| (*other != owed).then(|| owed.clone()));
        let seq = self.numbering.push(b"message", renamed.as_deref().unwrap_or(text));
        self.owed_responses.answer(&owed, seq, is_error);
        self.timers.stop(Timer::Call);
        self.begin_seal(Outcome::Completed, now);
    }

    fn handle_progress_of_task(&mut self, text: &[u8], now: Instant) {
        let Some(text) = progress::status_text(text) else { return };
        let Some(task) = &mut self.task else { return };
        let is_due = now.saturating_duration_since(task.recorded) >= PROGRESS_INTERVAL;
        if task.state.set_text(&text, now) && is_due {
            self.record(now);
        }
    }

    pub(super) fn end_task(&mut self, outcome: tasks::Outcome, now: Instant) {
        if let Some(task) = &mut self.task {
            task.state.end(outcome, now);
            self.record(now);
        }
    }

    /// Stages a record of the state.
    fn record(&mut self, now: Instant) {
        if self.phase != Phase::Open || self.sealing.is_some() {
            return;
        }
        let Some(task) = &mut self.task else { return };
        task.record_at = self.numbering.push(RECORD, &task.state.record().to_bytes());
        task.recorded = now;
    }
}
