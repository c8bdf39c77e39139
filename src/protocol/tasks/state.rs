//! State of a task between its handle and its outcome.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::rounds::{Continuation, InputProgress, Rounds};
use super::view::{Status, TaskView};
use crate::error::ErrorCode;
use crate::ids::Handle;

/// Maximum number of input rounds in one task. Clients abandon a call after as many.
const MAX_ROUNDS: u32 = 10;
/// Limit for the text of a status, in characters.
const MAX_TEXT: usize = 500;
/// Shortest and longest interval between two polls.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Divisor of a task's age that gives its poll interval.
const POLLS_IN_AGE: u32 = 10;

/// End of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The call has a result, which may be one with `isError`.
    Completed,
    /// The call has a JSON-RPC error.
    Failed,
    /// The client has cancelled the call.
    Cancelled,
}

impl From<Outcome> for Status {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Completed => Self::Completed,
            Outcome::Failed => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
        }
    }
}

/// A task without the stream that carries it. Times are wall-clock times, in milliseconds since
/// 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    #[serde(rename = "created")]
    created_ms: u64,
    #[serde(rename = "updated")]
    updated_ms: u64,
    text: Option<String>,
    rounds: Rounds,
    /// True if the server waits for its own state, which the next poll brings.
    awaits_poll: bool,
    outcome: Option<Outcome>,
}

/// State of a task in the process that has its call.
#[derive(Debug)]
pub struct TaskState {
    record: Record,
    /// Time of the handle, by the clock of timers.
    created: Instant,
    /// False if the request is too large to be sent again with responses.
    may_continue: bool,
}

impl Record {
    /// Parses the record of an event. Returns `None` for any other event.
    pub fn parse(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// Returns the record as the data of an event.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the status.
    pub fn status(&self) -> Status {
        self.outcome.map_or_else(|| self.open_status(), Status::from)
    }

    /// Returns the status of the task without its outcome.
    pub fn open_status(&self) -> Status {
        if self.rounds.has_outstanding() { Status::InputRequired } else { Status::Working }
    }

    /// Returns true if both have the same status and the same outstanding requests.
    pub fn is_same_status(&self, other: &Self) -> bool {
        self.status() == other.status()
            && self.outstanding().map(|(key, _)| key).eq(other.outstanding().map(|(key, _)| key))
    }

    /// Sets the outcome of a task whose end has no record: another process has ended it.
    pub fn close(&mut self, outcome: Outcome) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.rounds.end();
        }
    }

    /// Hides outcome and requests, so that the client sees a working task.
    pub fn hide_changes(&mut self) {
        self.outcome = None;
        self.rounds.end();
    }

    /// Returns the memory of requests and responses, in bytes.
    pub fn byte_len(&self) -> usize {
        self.rounds.byte_len()
    }

    /// Removes the outcome, which is not stored yet.
    pub fn reopen(&mut self) {
        self.outcome = None;
    }

    /// Returns the text of the status, or `None` if there was no progress.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Returns the requests that are outstanding, by their keys.
    pub fn outstanding(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rounds.outstanding()
    }

    /// Returns true if the next poll continues the call.
    pub fn awaits_poll(&self) -> bool {
        self.awaits_poll && self.outcome.is_none()
    }

    /// Returns the time of the last change.
    pub fn updated_ms(&self) -> u64 {
        self.updated_ms
    }

    /// Returns the poll interval for clients at `now_ms`: a tenth of the age.
    pub fn poll_interval(&self, now_ms: u64) -> Duration {
        poll_interval(self.created_ms, now_ms)
    }

    /// Returns the task at `now_ms` as its client sees it. `handle` is the handle of its stream,
    /// `max_wait` the retention of a running task without a poll, and `retention` the retention of
    /// an outcome.
    pub fn view(&self, handle: &Handle, now_ms: u64, max_wait: Duration, retention: Duration) -> TaskView {
        TaskView {
            task_id: TaskView::id_of(handle),
            status: self.status(),
            text: self.text.clone(),
            created_ms: self.created_ms,
            updated_ms: self.updated_ms,
            ttl_ms: Some(self.lifetime_ms(now_ms, max_wait, retention)),
            // A client that keeps the interval must not count as gone.
            poll_interval: self.poll_interval(now_ms).min(max_wait / 2),
        }
    }

    /// Returns the lifetime in milliseconds since the handle, as known at `now_ms`. It ends
    /// `max_wait` from now while the call runs, and `retention` after the end of the call.
    fn lifetime_ms(&self, now_ms: u64, max_wait: Duration, retention: Duration) -> u64 {
        let (until, more) = if self.outcome.is_some() { (self.updated_ms, retention) } else { (now_ms, max_wait) };
        let more = u64::try_from(more.as_millis()).unwrap_or(u64::MAX);
        until.saturating_sub(self.created_ms).saturating_add(more)
    }
}

impl TaskState {
    /// Creates the state of a task whose handle is made at `now`, `wall_ms` by the wall clock.
    pub fn new(wall_ms: u64, now: Instant, text: Option<&str>) -> Self {
        let record = Record {
            created_ms: wall_ms,
            updated_ms: wall_ms,
            text: text.map(shortened),
            rounds: Rounds::default(),
            awaits_poll: false,
            outcome: None,
        };
        Self { record, created: now, may_continue: true }
    }

    /// Sets whether the call can continue with the responses of its client.
    pub fn with_rounds(self, may_continue: bool) -> Self {
        Self { may_continue, ..self }
    }

    /// Returns the state as other processes see it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the time of the wall clock at `now`.
    pub fn wall_ms(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.created).as_millis();
        self.record.created_ms.saturating_add(u64::try_from(age).unwrap_or(u64::MAX))
    }

    /// Sets the text of the server's last progress. Returns true if it has changed.
    pub fn set_text(&mut self, text: &str, now: Instant) -> bool {
        let text = shortened(text);
        let has_changed = self.record.text.as_ref() != Some(&text);
        if has_changed {
            self.record.text = Some(text);
            self.touch(now);
        }
        has_changed
    }

    /// Begins a round of input.
    ///
    /// # Errors
    /// If there were too many rounds, the round exceeds its limits or is empty, or the request
    /// cannot be sent again with the responses.
    pub fn begin_round(&mut self, message: &[u8], now: Instant) -> Result<(), ErrorCode> {
        if !self.may_continue {
            return Err(ErrorCode::BodyTooLarge);
        }
        if self.record.rounds.count() >= MAX_ROUNDS {
            return Err(ErrorCode::TooMuchInput);
        }
        self.record.rounds.begin(message)?;
        self.record.awaits_poll = !self.record.rounds.has_outstanding();
        self.touch(now);
        Ok(())
    }

    /// Takes the `inputResponses` of an update.
    pub fn take_responses(&mut self, input_responses: &str, now: Instant) -> InputProgress {
        let progress = self.record.rounds.take_responses(input_responses);
        if progress != InputProgress::None {
            self.touch(now);
        }
        progress
    }

    /// Returns the members of the continued call, if the server waits only for a poll.
    pub fn take_polled(&mut self) -> Option<Continuation> {
        std::mem::take(&mut self.record.awaits_poll).then(|| self.record.rounds.continuation())
    }

    /// Returns true if the server waits for responses or a poll of the client.
    pub fn awaits_client(&self) -> bool {
        self.record.awaits_poll || self.record.rounds.has_outstanding()
    }

    /// Ends the task, unless it has ended.
    pub fn end(&mut self, outcome: Outcome, now: Instant) {
        if self.record.outcome.is_none() {
            self.record.outcome = Some(outcome);
            self.record.rounds.end();
            self.record.awaits_poll = false;
            self.touch(now);
        }
    }

    fn touch(&mut self, now: Instant) {
        self.record.updated_ms = self.wall_ms(now);
    }
}

/// Returns the poll interval of a task at `now_ms`: a tenth of its age.
pub fn poll_interval(created_ms: u64, now_ms: u64) -> Duration {
    let (shortest, longest) = POLL_INTERVAL;
    let age = Duration::from_millis(now_ms.saturating_sub(created_ms));
    (age / POLLS_IN_AGE).clamp(shortest, longest)
}

/// Returns the beginning of a text, up to the limit for the text of a status.
pub fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
