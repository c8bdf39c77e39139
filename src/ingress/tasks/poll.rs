//! `tasks/get`: the state of a task at once, or as soon as there is news.
//!
//! A poll of a task that runs is held for a client that takes a stream: its end is then told at
//! once, and a poll that is cut is not lost. A held poll is no stream: nothing of it is logged, and
//! its event IDs name the task and the request. Absent: the body (`delivery/held_poll.rs`).

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
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::tasks::{self, Record, Status, View};
use crate::server::respond;

/// Largest outcome, or questions, that a held poll tells. Larger ones are told by the next poll, as
/// JSON: some clients refuse events of a megabyte.
const HELD_ANSWER: usize = 512 * 1024;
/// Most polls of one task that are held at once. A further one is answered at once.
const HELD_POLLS: u32 = 8;

/// Answers polls.
#[derive(Clone)]
pub(super) struct Polls {
    pub(super) config: Arc<config::Tasks>,
    pub(super) drain: Arc<Drain>,
    /// Time after which a client that is cut comes back.
    pub(super) retry: Duration,
}

impl Polls {
    /// Returns the response to a poll, or `None` if nothing of the task is left. `takes_stream` is
    /// true for a client that may be answered later.
    pub(super) fn respond(
        &self,
        id: &RequestId,
        stream: &Arc<Stream>,
        takes_stream: bool,
    ) -> Option<Response<BoxBody>> {
        let reading = stream.poll_task()?;
        if takes_stream
            && reading.record.status() == Status::Working
            && let Some(hold) = self.config.hold
            && let Some(handle) = stream.poll_handle(id)
            && let Some(holding) = stream.hold_poll(HELD_POLLS)
        {
            let (polls, id, stream) = (self.clone(), id.clone(), stream.clone());
            let answer = async move {
                let reading = polls.news(&stream, reading.record, hold).await;
                drop(holding);
                polls.held_message(&id, &stream, reading)
            };
            return Some(respond::stream(HeldPoll::new(handle, self.retry, answer)));
        }
        let mut response = respond::json(StatusCode::OK, Bytes::new());
        *response.body_mut() = Pieces::from_iter(self.message(id, stream, reading)).boxed_unsync();
        Some(response)
    }

    /// Returns the response to a client that comes back for the answer to its poll, or `None` if
    /// nothing of the task is left.
    pub(super) fn respond_again(&self, id: &RequestId, stream: &Arc<Stream>) -> Option<Response<BoxBody>> {
        let reading = stream.poll_task()?;
        let handle = stream.poll_handle(id)?;
        let holding = stream.hold_poll(HELD_POLLS);
        let hold = self.config.hold.filter(|_| holding.is_some() && reading.record.status() == Status::Working);
        let (polls, id, stream) = (self.clone(), id.clone(), stream.clone());
        let answer = async move {
            let reading = match hold {
                Some(hold) => polls.news(&stream, reading.record, hold).await,
                None => reading,
            };
            drop(holding);
            polls.held_message(&id, &stream, reading)
        };
        Some(respond::stream(HeldPoll::new(handle, self.retry, answer)))
    }

    /// Waits for another status, for questions, or, when the next poll would be due, for another
    /// text; for `hold` at most.
    async fn news(&self, stream: &Stream, known: Record, hold: Duration) -> TaskReading {
        let now = clock::now();
        let interval = known.poll_interval(clock::wall_ms());
        let until = |time: Duration| clock::sleep_until(now + time);
        tokio::select! {
            biased;
            () = stream.task_changed(|record| record.is_same_status(&known)) => {}
            () = until(interval.min(hold)) => {}
            () = self.drain.leaving() => {}
        }
        let rest = (now + hold).saturating_duration_since(clock::now());
        tokio::select! {
            biased;
            () = stream.task_changed(|record| record.is_same_status(&known) && record.text() == known.text()) => {}
            () = clock::sleep(rest) => {}
            () = self.drain.leaving() => {}
        }
        let ended = TaskReading { record: known, outcome: None };
        stream.read_task().unwrap_or(ended)
    }

    /// Returns the answer as the event of a held poll: a large one says that the task runs, since
    /// some clients refuse large events.
    fn held_message(&self, id: &RequestId, stream: &Stream, reading: TaskReading) -> [Bytes; 3] {
        let TaskReading { mut record, outcome } = reading;
        if outcome.as_ref().map_or(record.byte_len(), Bytes::len) > HELD_ANSWER {
            record.hide_changes();
            return self.message(id, stream, TaskReading { record, outcome: None });
        }
        self.message(id, stream, TaskReading { record, outcome })
    }

    fn message(&self, id: &RequestId, stream: &Stream, TaskReading { record, outcome }: TaskReading) -> [Bytes; 3] {
        if !matches!(record.status(), Status::Working | Status::InputRequired) {
            stream.note_outcome_told();
        }
        let config::Tasks { max_wait, retention, .. } = *self.config;
        let view = View { handle: stream.handle(), record: &record, now_ms: clock::wall_ms(), max_wait, retention };
        tasks::get_response(id, &view, outcome.as_ref())
    }
}
