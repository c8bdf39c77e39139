//! Reader of a stream in this process: its messages one at a time, without event IDs and framing.
//!
//! Owned here: the next message behind a cursor. Events of other types than `message`, and settled
//! server requests, are skipped. Absent: the reader's position (`delivery/messages.rs`), and the
//! rendering for connections (`rendering.rs`).

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use crate::event_log::stream::attachment::Attachment;
use crate::protocol::ids::Seq;
use crate::protocol::sse;
use crate::protocol::stream::{CursorPlace, Phase};

/// Outcome of a read of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// A message.
    Message {
        /// Number of its event.
        at: Seq,
        /// The message, counted in the quota of the stream's principal until it is dropped.
        message: Bytes,
    },
    /// The end of a sealed stream: no more messages follow.
    Ended,
    /// Another reader took over, or another replica has the stream.
    Displaced,
    /// The events up to this number were trimmed.
    Trimmed(Seq),
}

impl Attachment {
    /// Returns the first message after `cursor`; pending at the tail. The message counts as written
    /// to the reader.
    pub fn poll_message(&self, cx: &mut Context<'_>, cursor: Seq) -> Poll<NextMessage> {
        let stream = self.stream();
        let mut guard = stream.shared.lock();
        let inner = &mut *guard;
        if !inner.machine.reader().is(self.id()) || inner.has_moved {
            return Poll::Ready(NextMessage::Displaced);
        }
        if inner.machine.lifecycle().phase() == Phase::Passed {
            return Poll::Ready(NextMessage::Ended);
        }
        match inner.machine.locate(cursor) {
            CursorPlace::Lost => return Poll::Ready(NextMessage::Trimmed(inner.machine.numbering().trimmed())),
            CursorPlace::AtEnd => return Poll::Ready(NextMessage::Ended),
            CursorPlace::After(_) => {}
        }
        inner.stored_at = None;
        let tail = inner.machine.numbering().tail();
        let mut last = cursor;
        let mut found = None;
        for (seq, event) in inner.tail.events_after(cursor).take_while(|(seq, _)| *seq <= tail) {
            last = seq;
            if sse::is_encoded_message(event) && !inner.machine.server_requests().is_spent(seq) {
                found = Some(BytesMut::from(&*sse::encoded_data(event)));
                break;
            }
        }
        if last > cursor {
            stream.shared.handle_written(inner, last);
        }
        if found.is_none() {
            // Nothing but skipped events: they are passed again at the next wake-up.
            inner.reader = Some(cx.waker().clone());
        }
        let is_at_end = found.is_none() && matches!(inner.machine.locate(last), CursorPlace::AtEnd);
        drop(guard);
        match found {
            Some(message) => Poll::Ready(NextMessage::Message { at: last, message: self.counted(message) }),
            None if is_at_end => Poll::Ready(NextMessage::Ended),
            None => Poll::Pending,
        }
    }
}
