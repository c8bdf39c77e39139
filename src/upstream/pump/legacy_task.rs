//! The call of a task of 2025-11-25: the destination of each message of its server.
//!
//! A message has one destination: the reader of the task (`tasks/result`), or else the session's
//! standalone stream while a client reads it. Without either, a server request waits for the first
//! of them. Of other messages only the text of the last progress is kept. The response always stays
//! with the task. Absent: the mark on each message (`ResponseObserver`), and the state
//! (`event_log/stream/legacy_task.rs`).

use std::sync::Arc;

use super::Pump;
use crate::event_log::{LegacyTask, Stream};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::progress;
use crate::protocol::sse;
use crate::protocol::tasks::legacy;

impl Pump {
    /// Sends server messages with another destination than the task's stream, and removes them from
    /// `events`.
    pub(super) fn route_task_messages(&mut self, events: &mut Vec<sse::Event>) {
        if self.notices.is_some() {
            let standalone = self.attached_standalone();
            let stream = self.writer.stream();
            let Some(task) = stream.as_legacy_task() else { return };
            events.retain(|event| stays(stream, &task, standalone.as_ref(), &event.data));
        }
    }

    /// Notifies the client of a change, on the standalone stream while it has a reader. Server
    /// requests without a reader of the task move to the standalone stream as well.
    pub(super) fn notify_status(&mut self) {
        let Some(notices) = &mut self.notices else { return };
        // A client that opens the stream later is notified then.
        notices.is_due = false;
        let Some(standalone) = self.attached_standalone() else { return };
        let stream = self.writer.stream();
        if let Some(task) = stream.as_legacy_task() {
            task.move_requests(&standalone);
        }
        let Some(view) = stream.legacy_view() else { return };
        let Some(notices) = &mut self.notices else { return };
        if notices.record_notice(&view) {
            standalone.append_message(&legacy::status_changed(&view));
        }
    }

    /// Returns the standalone stream of the session, if a client reads it.
    fn attached_standalone(&self) -> Option<Arc<Stream>> {
        let binding = self.writer.stream().binding();
        let standalone = self.log.sessions().standalone(binding.session.as_ref()?, &binding.principal)?;
        Some(standalone).filter(|stream| stream.with_machine(|machine| machine.reader().is_attached()))
    }
}

/// Sends one message of the server to its destination. Returns true if it belongs to the stream of
/// the task.
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
                // A cancellation has the destination of its server request.
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
