//! Messages that a stream gets from another stream of its session, and the server requests that
//! another stream may get from it.
//!
//! Absent: the choice of messages, which the task of 2025-11-25 (`legacy_task.rs`) and the
//! hand-over to a GET stream (`by_get.rs`) make.

use crate::clock;
use crate::event_log::stream::state::{Inner, Shared};
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::sse;

/// Most bytes of messages that a stream takes beside its pump, while the store is behind.
const MOST_STAGED: usize = 1024 * 1024;

/// A pending request of the server.
pub(super) struct PendingRequest {
    pub(super) id: RequestId,
    pub(super) seq: Seq,
    pub(super) data: Vec<u8>,
}

impl Inner {
    /// Returns the pending requests of the server, without pings.
    pub(super) fn pending_requests(&self) -> Vec<PendingRequest> {
        let requests = self.machine.server_requests();
        if !requests.has_outstanding() {
            return Vec::new();
        }
        let pending = |(seq, event)| {
            let data = sse::encoded_data(event);
            let body = jsonrpc::peek_any(&data).ok()?;
            match body.messages() {
                [Message::Request { id, method }] if **method != *"ping" && !requests.is_spent(seq) => {
                    requests.outstanding_since(id).map(|_| PendingRequest { id: id.clone(), seq, data: data.to_vec() })
                }
                _ => None,
            }
        };
        self.tail.events_after(self.tail.trimmed()).filter_map(pending).collect()
    }

    /// Returns true if the stream takes messages now: its end is not decided, and its store is not
    /// behind by [`MOST_STAGED`].
    fn takes_messages(&self) -> bool {
        self.machine.lifecycle().can_append() && self.machine.numbering().staged_len() < MOST_STAGED
    }
}

impl Shared {
    /// Returns the pending requests of the server, without pings.
    pub(super) fn pending_requests(&self) -> Vec<PendingRequest> {
        self.lock().pending_requests()
    }

    /// Appends a message to a stream whose pump has not read it from the server. Returns false if
    /// the stream takes no message now.
    pub(super) fn append_message(&self, data: &[u8]) -> bool {
        let mut inner = self.lock();
        let has_room = inner.takes_messages();
        if has_room {
            inner.machine.handle_message(b"message", data, clock::now());
        }
        self.notify_pump(inner);
        has_room
    }

    /// Appends messages to a stream that a client reads. Returns the number of the last event, or
    /// `None` if none was appended: the stream has no reader, or takes no messages now.
    pub(super) fn append_to_reader(&self, messages: &[Vec<u8>]) -> Option<Seq> {
        let mut inner = self.lock();
        if messages.is_empty() || !inner.machine.reader().is_attached() || !inner.takes_messages() {
            return None;
        }
        for message in messages {
            inner.machine.handle_message(b"message", message, clock::now());
        }
        let last = inner.machine.numbering().last();
        self.notify_pump(inner);
        Some(last)
    }
}
