//! Reader's side of a stream: the attachment of one connection.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::clock;
use crate::event_log::stream::partial_results::{Edits, Slice};
use crate::event_log::stream::rendering::{Large, Written, write_id_line};
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::trace::DeliverySpan;
use crate::event_log::stream::{Stream, in_flight};
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::{AttachId, Handle, Seq};
use crate::protocol::stream::{CursorPlace, Phase};
use crate::protocol::tail::ID_LINE;
use crate::protocol::trace::TraceContext;
use crate::simulation::{self, Bug};

/// Outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Events were written.
    Events {
        /// Number of the last event handled; it may have been skipped.
        last: Seq,
        /// Number of events written.
        written: u64,
        /// True if the next event does not fit into `out`.
        is_full: bool,
        /// Time since the first of them was stored, if this reader was waiting for it: the latency
        /// that the proxy adds.
        waited: Option<Duration>,
    },
    /// Part of a large event was written; the rest must be read next, before anything else is
    /// written.
    Part {
        /// As in `Events`.
        waited: Option<Duration>,
    },
    /// The rest of a large event is gone: the response cannot continue.
    Cut,
    /// The end of a sealed stream: no more events follow.
    Ended,
    /// A newer connection took over; the client shall reconnect after this pause.
    TakenOver(Duration),
    /// Another replica has the stream; the client shall reconnect after this pause, to find it
    /// there.
    Moved(Duration),
    /// The events up to this number were trimmed; the reader continues after them and reports the
    /// gap to its client.
    Trimmed(Seq),
}

/// Attachment of the reader to a stream. To drop it is a disconnect: it starts the detached timer
/// and changes nothing else.
pub struct Attachment {
    stream: Arc<Stream>,
    attach: AttachId,
    /// Slice that is read, or `None` if the stream is not sliced.
    slice: Option<Arc<Slice>>,
    /// Large event in progress. Boxed, because few events are large.
    begun: Option<Box<Begun>>,
    /// Span of the delivery, or `None` if the call is not traced.
    span: Option<Box<DeliverySpan>>,
}

/// A large event that goes out in pieces.
struct Begun {
    seq: Seq,
    /// Bytes written so far.
    at: usize,
    /// Replacements of parts of the event for this reader, the last first.
    edits: Edits,
}

impl Begun {
    /// Writes the next part of the stored `event`, until `out` holds about `budget` bytes. Returns
    /// true with the last part, or `None` if `event` is not the one in progress.
    fn write(&mut self, event: &[u8], out: &mut BytesMut, budget: usize) -> Option<bool> {
        let until = out.len() + budget.saturating_sub(out.len()).max(ID_LINE);
        loop {
            let next = self.edits.last().map_or(event.len(), |(place, _)| place.start);
            let end = next.min(self.at.saturating_add(until.saturating_sub(out.len())));
            out.extend_from_slice(event.get(self.at..end)?);
            self.at = end;
            if end < next {
                return Some(false);
            }
            let Some((place, text)) = self.edits.pop() else { return Some(true) };
            out.extend_from_slice(text.as_bytes());
            self.at = place.end;
        }
    }
}

impl Stream {
    /// Makes `attach` the reader after `cursor`. The previous connection is woken to learn of the
    /// takeover.
    pub fn attach(self: &Arc<Self>, attach: AttachId, cursor: Seq) -> Attachment {
        let attachment = self.attach_before_pump(attach, cursor);
        // The detached timer has stopped.
        self.shared.pump.notify_one();
        attachment
    }

    /// Attaches before there is a pump, which needs no wake-up at its start.
    pub fn attach_before_pump(self: &Arc<Self>, attach: AttachId, cursor: Seq) -> Attachment {
        let mut inner = self.shared.lock();
        self.shared.handle_request(&mut inner);
        inner.machine.handle_attach(attach, cursor, clock::now());
        inner.count_presence();
        inner.enforce_limits_if_paused(self.shared.bounds);
        let before = inner.reader.take();
        inner.stored_at = None;
        let displaces_remote = std::mem::take(&mut inner.has_remote_reader);
        // The woken task takes the lock.
        drop(inner);
        if let Some(before) = before {
            before.wake();
        }
        if displaces_remote && let Some(backing) = &self.backing {
            backing.displacing.notify_one();
        }
        Attachment::new(self.clone(), attach, cursor)
    }
}

impl Attachment {
    pub(in crate::event_log) fn new(stream: Arc<Stream>, attach: AttachId, after: Seq) -> Self {
        let span = DeliverySpan::begin(&stream, after);
        Self { stream, attach, slice: None, begun: None, span }
    }

    /// Links the span of the delivery to the span of its request.
    pub fn answering(mut self, request: Option<TraceContext>) -> Self {
        if let (Some(delivery), Some(request)) = (&mut self.span, request) {
            delivery.link_to(request);
        }
        self
    }

    /// Takes the span of the delivery, for a response that does not need the attachment.
    pub fn take_span(&mut self) -> Option<Box<DeliverySpan>> {
        self.span.take()
    }

    /// Reads the stream as `slice`.
    pub fn with_slice(mut self, slice: Option<Arc<Slice>>) -> Self {
        self.slice = slice;
        self
    }

    /// Returns the slice that is read, or `None` if the stream is not sliced.
    pub fn slice(&self) -> Option<&Slice> {
        self.slice.as_deref()
    }

    /// Returns the beginning of the event IDs on this connection.
    pub fn handle(&self) -> &Handle {
        self.slice.as_ref().map_or_else(|| self.stream.handle(), |slice| slice.handle())
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Returns the id of this attachment.
    pub fn id(&self) -> AttachId {
        self.attach
    }

    /// Waits for the response head.
    pub fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Head> {
        let mut inner = self.stream.shared.lock();
        match &inner.head {
            Head::Waiting if inner.machine.reader().is(self.attach) => {
                inner.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            Head::Waiting => Poll::Ready(Head::TakenOver),
            head => Poll::Ready(head.clone()),
        }
    }

    /// Waits for an event behind `cursor`, or for another reason to write to this reader: the end
    /// of the stream, a takeover, or a gap.
    pub fn poll_unread(&self, cx: &mut Context<'_>, cursor: Seq) -> Poll<()> {
        let mut inner = self.stream.shared.lock();
        let is_at_tail =
            matches!(inner.machine.locate(cursor), CursorPlace::After(_)) && cursor >= inner.machine.numbering().tail();
        if !is_at_tail || inner.has_moved || !inner.machine.reader().is(self.attach) {
            return Poll::Ready(());
        }
        inner.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Stops wake-ups of this reader until it waits again: its task is about to look.
    pub fn clear_waker(&self) {
        let mut inner = self.stream.shared.lock();
        if inner.machine.reader().is(self.attach) {
            inner.reader = None;
        }
    }

    /// Waits for the head even after a takeover, for a client that takes no stream.
    pub fn poll_head_even_displaced(&self, cx: &mut Context<'_>) -> Poll<Head> {
        let mut inner = self.stream.shared.lock();
        match &inner.head {
            Head::Waiting => {
                inner.watch(cx);
                Poll::Pending
            }
            head => Poll::Ready(head.clone()),
        }
    }

    /// Waits until the stream is sealed or owes no more responses, even after a takeover.
    pub fn poll_all_responses(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.stream.shared.lock();
        if inner.machine.lifecycle().is_sealed() || inner.machine.lifecycle().is_answered() {
            return Poll::Ready(());
        }
        inner.watch(cx);
        Poll::Pending
    }

    /// Returns whether a large event is written in part.
    pub fn is_within_event(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns `bytes` as a chunk of a body, counted in the quota of the stream's principal until
    /// the chunk is dropped.
    pub fn counted(&self, bytes: BytesMut) -> Bytes {
        in_flight::counted(self.stream.quota(), bytes)
    }

    /// Writes the events after `cursor` to `out`, each with its id, up to about `budget` bytes;
    /// pending at the tail. A larger event is written in parts. A displaced reader finishes the
    /// event in progress.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        cursor: Seq,
        out: &mut BytesMut,
        budget: usize,
    ) -> Poll<ReadOutcome> {
        if self.begun.is_some() {
            return Poll::Ready(self.write_part(out, budget, None));
        }
        let handle = self.handle();
        let mut guard = self.stream.shared.lock();
        let inner = &mut *guard;
        if !inner.machine.reader().is(self.attach) && !simulation::has(Bug::LetsTwoRead) {
            return Poll::Ready(ReadOutcome::TakenOver(inner.machine.reader().takeover_retry()));
        }
        if inner.has_moved {
            return Poll::Ready(ReadOutcome::Moved(inner.machine.reader().last_retry()));
        }
        if inner.machine.lifecycle().phase() == Phase::Passed {
            return Poll::Ready(ReadOutcome::Ended);
        }
        match inner.machine.locate(cursor) {
            CursorPlace::Lost => return Poll::Ready(ReadOutcome::Trimmed(inner.machine.numbering().trimmed())),
            CursorPlace::AtEnd => return Poll::Ready(ReadOutcome::Ended),
            CursorPlace::After(_) => {}
        }
        if cursor >= inner.machine.numbering().tail() {
            inner.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        out.reserve(inner.tail.byte_len_after(cursor, budget));
        let adopted_after = self.stream.replica().adopted_after();
        let slice = self.slice.as_deref();
        let written = inner.write_events(handle, adopted_after, slice, cursor, out, budget);
        let waited = inner.stored_at.take().map(|at| clock::now().saturating_duration_since(at));
        self.stream.shared.handle_written(inner, written.last);
        let Written { last, events: written, is_full, large } = written;
        let Some(Large { seq, mut edits }) = large else {
            return Poll::Ready(ReadOutcome::Events { last, written, is_full, waited });
        };
        // The first part is written under a lock of its own.
        drop(guard);
        edits.reverse();
        self.begun = Some(Box::new(Begun { seq, at: 0, edits }));
        Poll::Ready(self.write_part(out, budget, waited))
    }

    /// Writes the next part of the event in progress.
    fn write_part(&mut self, out: &mut BytesMut, budget: usize, waited: Option<Duration>) -> ReadOutcome {
        let Some(begun) = &mut self.begun else { return ReadOutcome::Cut };
        let mut inner = self.stream.shared.lock();
        let inner = &mut *inner;
        let Some(event) = inner.tail.event(begun.seq) else { return ReadOutcome::Cut };
        let Some(is_complete) = begun.write(event, out, budget) else { return ReadOutcome::Cut };
        let seq = begun.seq;
        // A new reader has a position of its own.
        if inner.machine.reader().is(self.attach) {
            if is_complete {
                self.stream.shared.handle_written(inner, seq);
            } else {
                inner.machine.lifecycle_mut().handle_partial_write(clock::now());
            }
        }
        if !is_complete {
            return ReadOutcome::Part { waited };
        }
        self.begun = None;
        ReadOutcome::Events { last: seq, written: 1, is_full: true, waited }
    }

    /// Writes the line of the event ID of the position after `cursor`; with `attach` if that
    /// differs from the event's own.
    pub fn write_id_of_place(&self, out: &mut BytesMut, cursor: Seq, attach: Option<AttachId>) {
        write_id_line(out, self.handle(), cursor, attach, self.stream.replica().adopted_after());
    }

    /// Returns the client's pause before it reconnects, if this connection is to end after the
    /// stored events.
    pub fn closing(&self) -> Option<Duration> {
        self.stream.shared.lock().closing.filter(|(attach, _)| *attach == self.attach).map(|(_, retry)| retry)
    }

    /// Returns whether it is now the turn of this reader, which has all events up to `cursor`; see
    /// [`Machine::handle_input_turn`].
    ///
    /// [`Machine::handle_input_turn`]: crate::protocol::stream::Machine::handle_input_turn
    pub fn begin_input_turn(&self, cursor: Seq) -> bool {
        let mut inner = self.stream.shared.lock();
        inner.machine.reader().is(self.attach) && inner.machine.handle_input_turn(cursor, clock::now())
    }

    /// An id and a `retry` were written on this connection.
    pub fn set_primed(&self, retry: Duration) {
        self.stream.shared.lock().machine.handle_primed(retry);
    }

    /// The proxy ends the response of this connection before its stream.
    pub fn end_early(&self) {
        self.stream.shared.lock().machine.reader_mut().handle_early_end(self.attach);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut inner = self.stream.shared.lock();
        // Ends without the lock.
        let _span = self.span.take().map(|delivery| delivery.ended(&inner.machine, self.attach));
        inner.machine.handle_detach(self.attach, clock::now());
        if simulation::has(Bug::EndsWithTheClient) && !inner.machine.reader().is_attached() {
            inner.machine.handle_expire(ErrorCode::Abandoned, clock::now());
        }
        inner.count_presence();
        inner.enforce_limits_if_paused(self.stream.shared.bounds);
        inner.wake();
        self.stream.shared.notify_pump(inner);
    }
}
