//! The call of a task of 2025-11-25: the way of each message of its server, and the notifications
//! of its changes.
//!
//! A message goes one way: to the reader of the task (`tasks/result`), else to the standalone
//! stream of the session while a client reads it. With neither, a request waits for the first of
//! them, and the text of the last progress is kept of everything else. The response always stays
//! with the task. Absent: the mark on each message (`ResponseObserver`), and the state
//! (`event_log/stream/legacy_task.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Pump;
use crate::clock;
use crate::event_log::{LegacyTask, Stream};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::progress;
use crate::protocol::sse;
use crate::protocol::tasks::{Status, TaskView, legacy};

/// Least time between two notifications of changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Notifications of a task's changes.
pub(super) struct StatusNotices {
    /// State that the client was told last: that of the handle at first.
    told: (Status, Option<String>),
    /// Time before which no further notification goes out.
    next: Instant,
    /// True if a change waits for that time.
    is_due: bool,
}

impl StatusNotices {
    /// Begins the notifications of a task that has just been created.
    pub(super) fn new() -> Self {
        Self { told: (Status::Working, None), next: clock::now() + INTERVAL, is_due: false }
    }

    /// Returns the time of the first of these: a notification that waits, a request that goes
    /// another way.
    pub(super) fn wakes_at(&self, task: &Stream) -> Option<Instant> {
        let notice = self.is_due.then_some(self.next);
        notice.into_iter().chain(self.requests_move_at(task)).min()
    }

    /// Returns the time at which the requests of the task go to the standalone stream, if that is
    /// yet to come.
    fn requests_move_at(&self, task: &Stream) -> Option<Instant> {
        task.as_legacy_task()?.requests_move_at().filter(|at| *at > clock::now())
    }
}

impl Pump {
    /// Sends the messages of the server that the task's stream is not to have another way, and
    /// leaves the others.
    pub(super) fn route_task_messages(&mut self, events: &mut Vec<sse::Event>) {
        if self.notices.is_some() {
            let standalone = self.attached_standalone();
            let stream = self.writer.stream();
            let Some(task) = stream.as_legacy_task() else { return };
            events.retain(|event| stays(stream, &task, standalone.as_ref(), &event.data));
        }
    }

    /// Tells the client of a change, on the standalone stream while that has a reader. A change
    /// that follows another one within a second waits, unless it is the end. Requests that no
    /// reader of the task has go there too.
    pub(super) fn tell_status(&mut self) {
        let Some(notices) = &mut self.notices else { return };
        // A client that opens the stream later is told then.
        notices.is_due = false;
        let Some(standalone) = self.attached_standalone() else { return };
        let stream = self.writer.stream();
        if let Some(task) = stream.as_legacy_task() {
            task.move_requests(&standalone);
        }
        let Some(view) = stream.legacy_view() else { return };
        let Some(notices) = &mut self.notices else { return };
        if notices.told.0 == view.status && notices.told.1 == view.text {
            return;
        }
        let now = clock::now();
        if now < notices.next && view.status.is_open() {
            notices.is_due = true;
            return;
        }
        notices.next = now + INTERVAL;
        let TaskView { status, text, .. } = &view;
        notices.told = (*status, text.clone());
        standalone.append_message(&legacy::status_changed(&view));
    }

    /// Returns the standalone stream of the session, if a client reads it.
    fn attached_standalone(&self) -> Option<Arc<Stream>> {
        let binding = self.writer.stream().binding();
        let standalone = self.log.sessions().standalone(binding.session.as_ref()?, &binding.principal)?;
        Some(standalone).filter(|stream| stream.with_machine(|machine| machine.reader().is_attached()))
    }
}

/// Decides the way of one message of the server. Returns true if the stream of the task is to have
/// it.
fn stays(stream: &Stream, task: &LegacyTask<'_>, standalone: Option<&Arc<Stream>>, data: &[u8]) -> bool {
    let Ok(body) = jsonrpc::peek(data) else { return true };
    let [message] = body.messages() else { return true };
    let is_read = stream.with_machine(|machine| machine.reader().is_attached());
    match message {
        Message::Response { .. } => true,
        // The proxy responds to a ping that has no other receiver.
        Message::Request { method, .. } if **method == *"ping" => true,
        Message::Request { id, .. } => match standalone.filter(|_| !is_read) {
            // The client may respond at once.
            Some(standalone) if standalone.append_message(data) => {
                task.add_elsewhere(id.clone(), standalone);
                false
            }
            Some(_) | None => true,
        },
        Message::Notification { method } => {
            if **method == *"notifications/cancelled" {
                // It follows its request.
                let elsewhere = jsonrpc::cancelled_request_id(data).and_then(|request| task.stream_of(&request));
                return !elsewhere.is_some_and(|stream| stream.append_message(data));
            }
            if let Some(text) = progress::status_text(data) {
                task.set_text(&text);
            }
            if !is_read && let Some(standalone) = standalone {
                standalone.append_message(data);
            }
            is_read
        }
    }
}
