//! Streams of tasks: a call whose client got a handle in place of the result.
//!
//! A call becomes a task in one step of its pump. The stream of the POST gets the handle as the
//! response that it owes, and ends. From then on it is a finished call like any other. The upstream
//! call continues in a stream of its own. Its events are records of the task's state, and in the
//! end the response of the server. Each record makes the record before it obsolete. So any process
//! that has the stream's events knows the state. Absent: the records themselves
//! ([`tasks`](crate::tasks)), and the conditions for a task (the pump).

use std::time::{Duration, Instant};

use super::Lifecycle;
use super::states::{Effect, HeadOrigin, Outcome};
use super::timers::Timer;
use super::upstream_resume::UpstreamCursor;
use crate::error::Failure;
use crate::ids::Seq;
use crate::jsonrpc::{self, Message, RequestId, only_alike};
use crate::progress;
use crate::tasks::{self, InputProgress, TaskState};

/// Name of the events that hold a record of the state.
const RECORD: &[u8] = b"mcp-resume-task";
/// Least time between two records of progress alone.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The upstream call of a task.
#[derive(Debug)]
pub struct TaskCall {
    state: TaskState,
    /// ID of the request at the server: the client's, or the ID of a later call with the client's
    /// responses.
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
    /// Nothing has changed: the task has ended, or no request is pending for these responses.
    Unchanged,
}

impl TaskCall {
    /// Returns the state of the task.
    pub fn state(&self) -> &TaskState {
        &self.state
    }

    /// Returns true if a response under this ID is one to the call. Its ID may be spelled
    /// differently.
    pub fn is_for(&self, id: &RequestId) -> bool {
        self.request == *id || only_alike(id, 1, std::iter::once(&self.request), |_| false).is_some()
    }

    /// The client is known to have the task's ID: it has the handle, or has requested the state.
    pub(super) fn set_known(&mut self) {
        self.is_known = true;
    }

    /// Returns the time without a request before the task is abandoned, or `None` for never. Until
    /// the client is known to have the task's ID, it is the `grace` of the call, two intervals of
    /// the handle, and a second.
    pub(super) fn wait(&self, max_wait: Option<Duration>, grace: Duration) -> Option<Duration> {
        if self.is_known {
            return max_wait;
        }
        let record = self.state.record();
        Some(grace + record.poll_interval(record.updated_ms()) * 2 + Duration::from_secs(1))
    }

    /// Returns the last event that a later record has made obsolete.
    pub(super) fn obsolete_records(&self) -> Seq {
        Seq(self.record_at.0.saturating_sub(1))
    }

    /// Stages a record of the state.
    fn record(&mut self, lifecycle: &mut Lifecycle, now: Instant) {
        if lifecycle.can_append() {
            self.record_at = lifecycle.numbering.push(RECORD, &self.state.record().to_bytes());
            self.recorded = now;
        }
    }
}

/// The task of one stream, with the parts of the machine that its inputs change. Without a call of
/// a task most inputs have no effect.
pub struct TaskStream<'a> {
    call: &'a mut Option<Box<TaskCall>>,
    lifecycle: &'a mut Lifecycle,
    upstream: &'a mut UpstreamCursor,
}

impl<'a> TaskStream<'a> {
    pub(super) fn new(
        call: &'a mut Option<Box<TaskCall>>,
        lifecycle: &'a mut Lifecycle,
        upstream: &'a mut UpstreamCursor,
    ) -> Self {
        Self { call, lifecycle, upstream }
    }

    pub(super) fn begin(&mut self, state: TaskState, now: Instant) {
        let Some(request) = self.lifecycle.owed_responses.due().next().cloned() else { return };
        self.lifecycle.open(HeadOrigin::Proxy);
        let call = TaskCall { state, request, record_at: Seq(0), recorded: now, is_known: false };
        self.call.insert(Box::new(call)).record(self.lifecycle, now);
    }

    /// The call continues at this place of the response, where another stream has left it.
    pub fn handle_handed_over(&mut self, upstream: UpstreamCursor) {
        *self.upstream = upstream;
    }

    /// The call continues at the server under this ID, in a response of its own.
    pub fn handle_called_again(&mut self, request: RequestId, now: Instant) {
        *self.upstream = UpstreamCursor::new(now);
        if let Some(call) = self.call {
            call.request = request;
        }
    }

    /// The client requests the state.
    pub fn handle_poll(&mut self, now: Instant) {
        if self.lifecycle.sealing.is_none()
            && let Some(call) = self.call
            && let Some(continuation) = call.state.take_polled()
        {
            self.lifecycle.effects.push_back(Effect::CallAgain(continuation));
            call.record(self.lifecycle, now);
        }
    }

    /// The client responds to requests of the server: `input_responses` is the JSON object of its
    /// update.
    pub fn handle_update(&mut self, input_responses: &str, now: Instant) -> TaskChange {
        let Some(call) = self.call.as_mut().filter(|_| self.lifecycle.sealing.is_none()) else {
            return TaskChange::Unchanged;
        };
        match call.state.take_responses(input_responses, now) {
            InputProgress::None => return TaskChange::Unchanged,
            InputProgress::Partial => {}
            InputProgress::Complete(continuation) => self.lifecycle.effects.push_back(Effect::CallAgain(continuation)),
        }
        call.record(self.lifecycle, now);
        TaskChange::Changed
    }

    /// The client cancels the task: that is its outcome, and a later response of the server has no
    /// effect.
    pub fn handle_cancel(&mut self, now: Instant) -> TaskChange {
        let policy = &self.lifecycle.policy;
        if self.lifecycle.ending().is_some() || !policy.is_task {
            return TaskChange::Unchanged;
        }
        let has_records = policy.has_records();
        self.lifecycle.announce_cancel();
        self.end(tasks::Outcome::Cancelled, now);
        let Lifecycle { owed_responses, numbering, timers, .. } = &mut *self.lifecycle;
        if has_records {
            owed_responses.cancel_due();
        } else {
            // Requests that read the task end with it.
            owed_responses.fail_due(|id| numbering.push(b"message", &tasks::legacy::cancelled(id)));
            timers.stop(Timer::Call);
        }
        self.lifecycle.is_cancelled = true;
        self.lifecycle.begin_seal(Outcome::Cancelled, now);
        TaskChange::Changed
    }

    /// Handles one message of the upstream.
    pub(super) fn handle_message(&mut self, data: &[u8], now: Instant) {
        let Ok(body) = jsonrpc::peek(data) else {
            // A response that only lenient parsers read.
            if let Ok(Message::Response { id: Some(id), is_error }) = jsonrpc::peek_leniently(data) {
                self.handle_response(&id, is_error, data, now);
            }
            return;
        };
        for (message, text) in body.messages().iter().zip(jsonrpc::messages(data)) {
            match message {
                Message::Response { id: Some(id), is_error } => {
                    self.handle_response(id, *is_error, text.as_bytes(), now);
                }
                Message::Notification { method } if method == "notifications/progress" => {
                    self.handle_progress(text.as_bytes(), now);
                }
                // A task has no other messages: neither log messages, nor requests of the server,
                // which this revision does not have.
                Message::Response { id: None, .. } | Message::Notification { .. } | Message::Request { .. } => {}
            }
        }
    }

    fn handle_response(&mut self, id: &RequestId, is_error: bool, text: &[u8], now: Instant) {
        let Some(call) = self.call.as_mut().filter(|call| call.is_for(id)) else { return };
        if self.lifecycle.owed_responses.is_settled() {
            return;
        }
        if *id != call.request {
            self.lifecycle.effects.push_back(Effect::RecordRespelled);
        }
        if !is_error && jsonrpc::is_input_required(text) {
            if let Err(code) = call.state.begin_round(text, now) {
                self.end(tasks::Outcome::Failed, now);
                return self.lifecycle.fail(Outcome::Failed, Failure::after_send(code), None, now);
            }
            return call.record(self.lifecycle, now);
        }
        self.end(if is_error { tasks::Outcome::Failed } else { tasks::Outcome::Completed }, now);
        let lifecycle = &mut *self.lifecycle;
        let Some(owed) = lifecycle.owed_responses.due().next().cloned() else { return };
        // The call may have continued under an ID of the proxy's.
        let renamed = jsonrpc::rename_ids(text, |_, other| (*other != owed).then(|| owed.clone()));
        let seq = lifecycle.numbering.push(b"message", renamed.as_deref().unwrap_or(text));
        lifecycle.owed_responses.answer(&owed, seq, is_error);
        lifecycle.timers.stop(Timer::Call);
        lifecycle.begin_seal(Outcome::Completed, now);
    }

    fn handle_progress(&mut self, text: &[u8], now: Instant) {
        let Some(text) = progress::status_text(text) else { return };
        let Some(call) = self.call else { return };
        let is_due = now.saturating_duration_since(call.recorded) >= PROGRESS_INTERVAL;
        if call.state.set_text(&text, now) && is_due {
            call.record(self.lifecycle, now);
        }
    }

    /// Records the outcome of the task.
    pub(super) fn end(&mut self, outcome: tasks::Outcome, now: Instant) {
        if let Some(call) = self.call {
            call.state.end(outcome, now);
            call.record(self.lifecycle, now);
        }
    }
}
