//! A task of 2025-11-25: what its client sees, and the questions that its server asks on the
//! standalone stream of the session.
//!
//! The stream is that of the call. A message of the server goes one way: to the reader of the task,
//! else to the standalone stream if that has a reader. Absent: that decision, and the notifications
//! of changes (the pump).

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::stream::Stream;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::sse;
use crate::protocol::stream::{Machine, Outcome, Phase};
use crate::protocol::tasks::{Status, TaskView, legacy, poll_interval, shortened};
use crate::sync;

/// Most bytes of messages that a stream takes beside those of its pump, while the store is behind.
const MOST_STAGED: usize = 1024 * 1024;

/// State of a task beside its stream.
#[derive(Debug, Default)]
pub(super) struct LegacyTaskState(Mutex<Notes>);

/// A question of the server.
struct Question {
    id: RequestId,
    seq: Seq,
    data: Vec<u8>,
}

#[derive(Debug, Default)]
struct Notes {
    /// Text of the last progress.
    text: Option<String>,
    /// Time of the last change of text or status, in milliseconds since 1970.
    changed_ms: Option<u64>,
    /// Status and text of a task that has ended, once they were read: the response may be large.
    outcome: Option<(Status, Option<String>)>,
    /// Questions that the client gets on another stream, with that stream.
    asked: Vec<(RequestId, Weak<Stream>)>,
}

impl Stream {
    /// Returns the task as its client sees it, or `None` for a stream of any other kind.
    pub fn legacy_view(&self) -> Option<TaskView> {
        let (terms, max_wait, sealed_at) = self.with_machine(|machine| {
            let policy = machine.policy();
            let sealed_at = if let Phase::Sealed { at, .. } = machine.lifecycle().phase() { Some(at) } else { None };
            Some((policy.legacy_task?, policy.max_wait, sealed_at))
        })?;
        let now_ms = clock::wall_ms();
        let (status, ended_as) = match sealed_at {
            Some(_) => self.legacy_outcome(),
            None if self.asks_client() => (Status::InputRequired, None),
            None => (Status::Working, None),
        };
        let state = self.legacy_state();
        let updated_ms = match sealed_at {
            Some(at) => {
                let since = clock::now().saturating_duration_since(at).as_millis();
                now_ms.saturating_sub(u64::try_from(since).unwrap_or(u64::MAX))
            }
            None => state.as_ref().and_then(|state| state.changed_ms).unwrap_or(terms.created_ms),
        };
        let interval = poll_interval(terms.created_ms, now_ms);
        Some(TaskView {
            task_id: TaskView::id_of(self.handle()),
            status,
            text: ended_as.or_else(|| state.and_then(|state| state.text.clone())),
            created_ms: terms.created_ms,
            updated_ms: updated_ms.max(terms.created_ms),
            ttl_ms: terms.ttl_ms,
            // A client that keeps the interval must not count as gone.
            poll_interval: max_wait.map_or(interval, |max_wait| interval.min(max_wait / 2)),
        })
    }

    /// Lets the pump look at what has changed around the task.
    pub fn wake_pump(&self) {
        self.pump.notify_one();
    }

    /// Returns true for the call of a task of 2025-11-25.
    pub fn is_legacy_task(&self) -> bool {
        self.legacy_task.is_some()
    }

    /// Notes the text of the server's last progress.
    pub fn note_task_text(&self, text: &str) {
        if let Some(mut state) = self.legacy_state() {
            let text = shortened(text);
            if state.text.as_ref() != Some(&text) {
                (state.text, state.changed_ms) = (Some(text), Some(clock::wall_ms()));
            }
        }
    }

    /// Notes that the client gets this question of the server on another stream.
    pub fn note_asked_on(&self, question: RequestId, stream: &Arc<Stream>) {
        if let Some(mut state) = self.legacy_state() {
            state.asked.retain(|(id, stream)| is_open(id, stream));
            state.asked.push((question, Arc::downgrade(stream)));
            state.changed_ms = Some(clock::wall_ms());
        }
    }

    /// Returns the stream on which the client got this question, if it has not answered yet.
    pub fn asked_on(&self, question: &RequestId) -> Option<Arc<Stream>> {
        let state = self.legacy_state()?;
        let (_, stream) = state.asked.iter().find(|(id, stream)| id == question && is_open(id, stream))?;
        stream.upgrade()
    }

    /// Appends a message to a stream whose pump has not read it from the server. Returns false if
    /// the stream takes none now: it has ended, or its store is behind by [`MOST_STAGED`].
    pub fn append_message(&self, data: &[u8]) -> bool {
        let mut inner = self.lock();
        let has_room = inner.machine.lifecycle().can_append() && inner.machine.numbering().staged_len() < MOST_STAGED;
        if has_room {
            inner.machine.handle_message(b"message", data, clock::now());
        }
        self.notify_pump(inner);
        has_room
    }

    /// Sends the questions that no reader of the task is about to get to `other`, which has one.
    /// From then on their answers belong there.
    pub fn move_questions(&self, other: &Arc<Stream>) {
        let (is_attached, written, is_expected) = self.with_machine(|machine| {
            let reader = machine.reader();
            (reader.is_attached(), reader.written(), self.expects_reader(machine))
        });
        if is_attached {
            return;
        }
        for Question { id, seq, data } in self.questions() {
            // A reader that had it comes back for its response, and gets it again.
            if (seq <= written && is_expected) || !other.append_message(&data) {
                continue;
            }
            self.settle_question(&id);
            self.note_asked_on(id, other);
        }
    }

    /// Takes the questions back that were sent to a stream which no client reads any more: the
    /// reader of the task is to get them.
    pub fn take_back_questions(&self) {
        let asked = self.legacy_state().map(|state| state.asked.clone()).unwrap_or_default();
        for (id, stream) in asked {
            let Some(stream) = stream.upgrade() else { continue };
            if stream.with_machine(|machine| machine.reader().is_attached()) {
                continue;
            }
            if let Some(question) = stream.questions().into_iter().find(|question| question.id == id)
                && self.append_message(&question.data)
            {
                stream.settle_question(&id);
            }
        }
    }

    /// Withdraws the questions of a task that is over from the stream on which they were asked.
    pub fn withdraw_questions(&self) {
        let asked = self.legacy_state().map(|mut state| std::mem::take(&mut state.asked)).unwrap_or_default();
        for (id, stream) in asked {
            if let Some(stream) = stream.upgrade().filter(|_| is_open(&id, &stream)) {
                stream.append_message(&legacy::withdrawn(&id));
                stream.settle_question(&id);
            }
        }
    }

    /// Returns the time at which the questions of the task may go to another stream, or `None` if
    /// there are none, or a reader has them.
    pub fn questions_move_at(&self) -> Option<Instant> {
        self.with_machine(|machine| {
            let asks = machine.server_requests().oldest_unanswered().is_some();
            let is_free = asks && !machine.reader().is_attached() && !machine.lifecycle().is_sealed();
            is_free.then(|| machine.reader().since() + patience(machine))
        })
    }

    /// Returns the place from which a reader of the task begins: behind all that an earlier one
    /// had, but for open questions. Of a task that has ended it is the response alone.
    pub fn reading_place(&self) -> Seq {
        self.with_machine(|machine| {
            let before = |seq: Seq| Seq(seq.0.saturating_sub(1));
            let place = match machine.owed_responses().last_response() {
                Some(response) if machine.lifecycle().is_sealed() => before(response),
                _ => {
                    let written = machine.reader().written();
                    machine.server_requests().oldest_unanswered().map_or(written, |seq| written.min(before(seq)))
                }
            };
            place.max(machine.numbering().trimmed())
        })
    }

    /// Counts a question as answered here: no reader of this stream gets it any more.
    fn settle_question(&self, id: &RequestId) {
        let mut inner = self.lock();
        inner.machine.handle_client_response(id, clock::now());
        self.notify_pump(inner);
    }

    /// Returns true if a client that has read the stream may come back for it.
    fn expects_reader(&self, machine: &Machine) -> bool {
        clock::now() < machine.reader().since() + patience(machine)
    }

    /// Returns the questions of the server that no client has answered.
    fn questions(&self) -> Vec<Question> {
        let inner = self.lock();
        let requests = inner.machine.server_requests();
        if !requests.has_outstanding() {
            return Vec::new();
        }
        let question = |(seq, event)| {
            let data = sse::encoded_data(event);
            let body = jsonrpc::peek(&data).ok()?;
            match body.messages() {
                [Message::Request { id, method }] if **method != *"ping" && !requests.is_spent(seq) => {
                    requests.outstanding_since(id).map(|_| Question { id: id.clone(), seq, data: data.to_vec() })
                }
                _ => None,
            }
        };
        inner.tail.events_after(inner.tail.trimmed()).filter_map(question).collect()
    }

    /// Returns true while the server waits for an answer of the client.
    fn asks_client(&self) -> bool {
        let asks_here = self.with_machine(|machine| {
            let requests = machine.server_requests();
            requests.outstanding().any(|id| !requests.is_ping(id))
        });
        asks_here || self.legacy_state().is_some_and(|state| state.asked.iter().any(|(id, stream)| is_open(id, stream)))
    }

    /// Returns the status of a task that has ended, and the text of its failure.
    fn legacy_outcome(&self) -> (Status, Option<String>) {
        if let Some(outcome) = self.legacy_state().and_then(|state| state.outcome.clone()) {
            return outcome;
        }
        let outcome = self.read_outcome();
        if let Some(mut state) = self.legacy_state() {
            state.outcome = Some(outcome.clone());
        }
        outcome
    }

    fn read_outcome(&self) -> (Status, Option<String>) {
        let (is_cancelled, has_error) = self.with_machine(|machine| {
            let is_cancelled = matches!(machine.lifecycle().phase(), Phase::Sealed { outcome: Outcome::Cancelled, .. });
            (is_cancelled, machine.owed_responses().has_error())
        });
        if is_cancelled {
            return (Status::Cancelled, None);
        }
        let Some(response) = self.collect().map(|collected| collected.body) else { return (Status::Failed, None) };
        let text = |path| jsonrpc::string_member(&response, path);
        if has_error {
            return (Status::Failed, text(&["error", "message"]).as_deref().map(shortened));
        }
        if jsonrpc::member(&response, &["result", "isError"]) != Some("true") {
            return (Status::Completed, None);
        }
        let mut said = None;
        if let Some(content) = jsonrpc::member(&response, &["result", "content"]) {
            jsonrpc::for_each_element(content, |part| {
                said = said.take().or_else(|| jsonrpc::string_member(part.as_bytes(), &["text"]));
            });
        }
        (Status::Failed, said.as_deref().map(shortened))
    }

    fn legacy_state(&self) -> Option<std::sync::MutexGuard<'_, Notes>> {
        self.legacy_task.as_ref().map(|state| sync::lock(&state.0))
    }
}

/// Returns the time in which a client that was cut comes back.
fn patience(machine: &Machine) -> Duration {
    machine.reader().last_retry() * 2 + Duration::from_secs(1)
}

/// Returns true if a question waits for its answer on this stream.
fn is_open(question: &RequestId, stream: &Weak<Stream>) -> bool {
    stream.upgrade().is_some_and(|stream| {
        stream.with_machine(|machine| {
            !machine.lifecycle().is_sealed() && machine.server_requests().outstanding_since(question).is_some()
        })
    })
}
