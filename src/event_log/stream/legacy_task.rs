//! A task of 2025-11-25: its state for the client, and the requests of its server that the client
//! gets on the standalone stream of the session.
//!
//! The stream is the call's own. A message of the server goes one way: to the reader of the task,
//! else to the standalone stream if it has a reader. Absent: that decision, and the notifications
//! of changes (the pump).

use std::sync::{Arc, MutexGuard, Weak};
use std::time::Instant;

use crate::clock;
use crate::event_log::stream::Stream;
use crate::event_log::stream::delivery::Delivery;
use crate::event_log::stream::legacy_task_state::{LegacyTaskState, Notes};
use crate::event_log::stream::relayed_messages::PendingRequest;
use crate::event_log::stream::state::Shared;
use crate::protocol::ids::{Handle, Seq};
use crate::protocol::jsonrpc::{self, RequestId};
use crate::protocol::stream::{Outcome, Phase};
use crate::protocol::tasks::{Status, TaskView, legacy, poll_interval, shortened};

/// The task of 2025-11-25 of one stream.
pub struct LegacyTask<'a> {
    state: &'a LegacyTaskState<Stream>,
    shared: &'a Shared,
}

impl Stream {
    /// Returns the task of 2025-11-25, or `None` for a stream of any other kind.
    pub fn as_legacy_task(&self) -> Option<LegacyTask<'_>> {
        self.legacy_task.as_deref().map(|state| LegacyTask { state, shared: &self.shared })
    }

    /// Returns the task of 2025-11-25 as its client sees it, or `None` for a stream of any other
    /// kind.
    pub fn legacy_view(&self) -> Option<TaskView> {
        self.as_legacy_task()?.view(self.handle())
    }
}

impl LegacyTask<'_> {
    /// Returns the task as its client sees it. `handle` is the stream's.
    pub fn view(&self, handle: &Handle) -> Option<TaskView> {
        let (terms, max_wait, sealed_at) = self.shared.with_machine(|machine| {
            let policy = machine.policy();
            let phase = machine.lifecycle().phase();
            let sealed_at = if let Phase::Sealed { at, .. } = phase { Some(at) } else { None };
            Some((policy.legacy_task?, policy.max_wait, sealed_at))
        })?;
        let now_ms = clock::wall_ms();
        let (status, failure) = match sealed_at {
            Some(_) => self.outcome(),
            None if self.waits_for_client() => (Status::InputRequired, None),
            None => (Status::Working, None),
        };
        let notes = self.notes();
        let updated_ms = match sealed_at {
            Some(at) => {
                let since = clock::now().saturating_duration_since(at).as_millis();
                now_ms.saturating_sub(u64::try_from(since).unwrap_or(u64::MAX))
            }
            None => notes.changed_ms.unwrap_or(terms.created_ms),
        };
        let interval = poll_interval(terms.created_ms, now_ms);
        Some(TaskView {
            task_id: TaskView::id_of(handle),
            status,
            text: failure.or_else(|| notes.text.clone()),
            created_ms: terms.created_ms,
            updated_ms: updated_ms.max(terms.created_ms),
            ttl_ms: terms.ttl_ms,
            // A client that polls at this interval must not be taken for gone.
            poll_interval: max_wait.map_or(interval, |max_wait| interval.min(max_wait / 2)),
        })
    }

    /// Sets the text of the server's last progress.
    pub fn set_text(&self, text: &str) {
        let mut notes = self.notes();
        let text = shortened(text);
        if notes.text.as_ref() != Some(&text) {
            (notes.text, notes.changed_ms) = (Some(text), Some(clock::wall_ms()));
        }
    }

    /// The client gets this request of the server on another stream.
    pub fn add_elsewhere(&self, request: RequestId, stream: &Arc<Stream>) {
        let mut notes = self.notes();
        notes.elsewhere.retain(|(id, stream)| is_open(id, stream));
        notes.elsewhere.push((request, Arc::downgrade(stream)));
        notes.changed_ms = Some(clock::wall_ms());
    }

    /// Returns the other stream on which the client got this request, if it has not responded yet.
    pub fn stream_of(&self, request: &RequestId) -> Option<Arc<Stream>> {
        let notes = self.notes();
        let (_, stream) = notes.elsewhere.iter().find(|(id, stream)| id == request && is_open(id, stream))?;
        stream.upgrade()
    }

    /// Sends the requests that no reader of the task is about to get to `other`, which has a
    /// reader. From then on their responses belong there.
    pub fn move_requests(&self, other: &Arc<Stream>) {
        let (is_attached, written, is_expected) = self.shared.with_machine(|machine| {
            let reader = machine.reader();
            (reader.is_attached(), reader.written(), clock::now() < reader.since() + reader.patience())
        });
        if is_attached {
            return;
        }
        for PendingRequest { id, seq, data } in self.shared.pending_requests() {
            // A reader that had it returns for its response, and gets it again.
            if (seq <= written && is_expected) || !other.append_message(&data) {
                continue;
            }
            self.shared.settle_request(&id);
            self.add_elsewhere(id, other);
        }
    }

    /// Lets the pump look at a change around the task.
    pub fn wake_pump(&self) {
        self.shared.pump.notify_one();
    }

    /// Takes the requests back from a stream that no client reads any more: the reader of the task
    /// is to get them.
    pub fn take_back_requests(&self) {
        let elsewhere = self.notes().elsewhere.clone();
        for (id, stream) in elsewhere {
            let Some(stream) = stream.upgrade() else { continue };
            if stream.with_machine(|machine| machine.reader().is_attached()) {
                continue;
            }
            if let Some(request) = stream.shared.pending_requests().into_iter().find(|request| request.id == id)
                && self.shared.append_message(&request.data)
            {
                stream.shared.settle_request(&id);
            }
        }
    }

    /// Withdraws the requests of a task that has ended from their other stream.
    pub fn withdraw_requests(&self) {
        let elsewhere = std::mem::take(&mut self.notes().elsewhere);
        for (id, stream) in elsewhere {
            if let Some(stream) = stream.upgrade().filter(|_| is_open(&id, &stream)) {
                stream.append_message(&legacy::withdrawn(&id));
                stream.shared.settle_request(&id);
            }
        }
    }

    /// Returns the time at which the requests of the server may go to another stream, or `None` if
    /// no request is pending, or a reader has them.
    pub fn requests_move_at(&self) -> Option<Instant> {
        self.shared.with_machine(|machine| {
            let is_pending = machine.server_requests().oldest_unanswered().is_some();
            let is_free = is_pending && !machine.reader().is_attached() && !machine.lifecycle().is_sealed();
            is_free.then(|| machine.reader().since() + machine.reader().patience())
        })
    }

    /// Returns the place from which a reader of the task begins: behind all that an earlier reader
    /// had, but for pending requests. Of a task that has ended it is the response alone.
    pub fn reading_place(&self) -> Seq {
        self.shared.with_machine(|machine| {
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

    /// Returns true while the server waits for a response of the client.
    fn waits_for_client(&self) -> bool {
        let waits_here = self.shared.with_machine(|machine| {
            let requests = machine.server_requests();
            requests.outstanding().any(|id| !requests.is_ping(id))
        });
        waits_here || self.notes().elsewhere.iter().any(|(id, stream)| is_open(id, stream))
    }

    /// Returns the status of a task that has ended, and the text of its failure.
    fn outcome(&self) -> (Status, Option<String>) {
        if let Some(outcome) = self.notes().outcome.clone() {
            return outcome;
        }
        let outcome = self.read_outcome();
        self.notes().outcome = Some(outcome.clone());
        outcome
    }

    fn read_outcome(&self) -> (Status, Option<String>) {
        let (is_cancelled, has_error) = self.shared.with_machine(|machine| {
            let is_cancelled = matches!(machine.lifecycle().phase(), Phase::Sealed { outcome: Outcome::Cancelled, .. });
            (is_cancelled, machine.owed_responses().has_error())
        });
        if is_cancelled {
            return (Status::Cancelled, None);
        }
        let Some(response) = Delivery(self.shared).collect().map(|collected| collected.body) else {
            return (Status::Failed, None);
        };
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

    fn notes(&self) -> MutexGuard<'_, Notes<Stream>> {
        self.state.lock()
    }
}

impl Shared {
    /// Settles a request of the server here: no reader of this stream gets it any more.
    fn settle_request(&self, id: &RequestId) {
        self.change(|machine, now| machine.handle_client_response(id, now));
    }
}

/// Returns true if a request is pending on this stream.
fn is_open(request: &RequestId, stream: &Weak<Stream>) -> bool {
    stream.upgrade().is_some_and(|stream| {
        stream.with_machine(|machine| {
            !machine.lifecycle().is_sealed() && machine.server_requests().outstanding_since(request).is_some()
        })
    })
}
