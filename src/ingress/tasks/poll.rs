//! `tasks/get`: the state of a task at once, or at its next change.
//!
//! A poll of a running task is held for a client that accepts a stream. Such a client gets the end
//! of the task at once, and can resume a cut poll. A held poll is no stream of the event log: its
//! event IDs name the task and the request. Absent: the body (`delivery/held_poll.rs`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;

use crate::body::{BoxBody, Pieces};
use crate::clock;
use crate::config;
use crate::delivery::HeldPoll;
use crate::event_log::{Stream, TaskReading};
use crate::lifecycle::drain::Drain;
use crate::protocol::ids::Handle;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::tasks::{self, Record, Status};
use crate::server::respond;

/// Size limit of the outcome or the input requests in a held poll, in bytes. The next poll returns
/// larger ones as JSON: some clients refuse events of a megabyte.
const HELD_MESSAGE_MAX: usize = 512 * 1024;
/// Maximum number of held polls of one task. Any further poll gets its response at once.
const HELD_POLLS_MAX: u32 = 8;

/// Responds to polls.
#[derive(Clone)]
pub(super) struct Polls {
    pub(super) config: Arc<config::Tasks>,
    pub(super) drain: Arc<Drain>,
    /// Time to the next attempt of a cut client.
    pub(super) retry: Duration,
}

impl Polls {
    /// Returns the response to a poll, or `None` if the task has no state. `accepts_stream` is true
    /// for a client that accepts a held poll.
    pub(super) fn respond(
        &self,
        id: &RequestId,
        stream: &Arc<Stream>,
        accepts_stream: bool,
    ) -> Option<Response<BoxBody>> {
        let reading = stream.as_task().poll()?;
        if accepts_stream
            && reading.record.status() == Status::Working
            && let Some(hold) = self.config.hold
            && let Some(handle) = stream.handles().of_poll(id)
            && let Some(holding) = stream.hold_poll(HELD_POLLS_MAX)
        {
            return Some(self.held(handle, id, stream, reading, Some((hold, holding))));
        }
        let mut response = respond::json(StatusCode::OK, Bytes::new());
        *response.body_mut() = Pieces::from_iter(self.message(id, stream, reading)).boxed_unsync();
        Some(response)
    }

    /// Returns the response to a client that resumes its poll, or `None` if the task has no state.
    pub(super) fn resume(&self, id: &RequestId, stream: &Arc<Stream>) -> Option<Response<BoxBody>> {
        let reading = stream.as_task().poll()?;
        let handle = stream.handles().of_poll(id)?;
        let is_working = reading.record.status() == Status::Working;
        let hold = self.config.hold.filter(|_| is_working).zip(stream.hold_poll(HELD_POLLS_MAX));
        Some(self.held(handle, id, stream, reading, hold))
    }

    /// Returns a stream with the task at its next change, or at once without `hold`: the longest
    /// wait, with the place among the held polls.
    fn held(
        &self,
        handle: Handle,
        id: &RequestId,
        stream: &Arc<Stream>,
        reading: TaskReading,
        hold: Option<(Duration, impl Send + 'static)>,
    ) -> Response<BoxBody> {
        let (polls, id, stream) = (self.clone(), id.clone(), stream.clone());
        let message = async move {
            let reading = match hold {
                Some((hold, _holding)) => polls.next_change(&stream, reading.record, hold).await,
                None => reading,
            };
            polls.held_message(&id, &stream, reading)
        };
        respond::stream(HeldPoll::new(handle, self.retry, message))
    }

    /// Waits for another status, for input requests, or, when the next poll would be due, for
    /// another text, up to `hold`.
    async fn next_change(&self, stream: &Stream, known: Record, hold: Duration) -> TaskReading {
        let now = clock::now();
        let task = stream.as_task();
        let interval = known.poll_interval(clock::wall_ms());
        let until = |time: Duration| clock::sleep_until(now + time);
        tokio::select! {
            biased;
            () = task.changed(|record| record.is_same_status(&known)) => {}
            () = until(interval.min(hold)) => {}
            () = self.drain.leaving() => {}
        }
        let rest = (now + hold).saturating_duration_since(clock::now());
        tokio::select! {
            biased;
            () = task.changed(|record| record.is_same_status(&known) && record.text() == known.text()) => {}
            () = clock::sleep(rest) => {}
            () = self.drain.leaving() => {}
        }
        let ended = TaskReading { record: known, outcome: None };
        task.read().unwrap_or(ended)
    }

    /// Returns the message of a held poll. A large one is replaced by a working task, since some
    /// clients refuse large events.
    fn held_message(&self, id: &RequestId, stream: &Stream, reading: TaskReading) -> [Bytes; 3] {
        let TaskReading { mut record, outcome } = reading;
        if outcome.as_ref().map_or(record.byte_len(), Bytes::len) > HELD_MESSAGE_MAX {
            record.hide_changes();
            return self.message(id, stream, TaskReading { record, outcome: None });
        }
        self.message(id, stream, TaskReading { record, outcome })
    }

    fn message(&self, id: &RequestId, stream: &Stream, TaskReading { record, outcome }: TaskReading) -> [Bytes; 3] {
        if !record.status().is_open() {
            stream.as_task().set_outcome_delivered();
        }
        let config::Tasks { max_wait, retention, .. } = *self.config;
        let view = record.view(stream.handle(), clock::wall_ms(), max_wait, retention);
        tasks::get_response(id, &view, &record, outcome.as_ref())
    }
}
