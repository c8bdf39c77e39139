//! Whether a response has arrived.
//!
//! "Written" is not "received": the kernel and hyper take a quarter of a megabyte for a client that reads nothing. A response
//! counts as delivered when it ended and its connection then carried a request begun after that, or stayed open without an
//! error for two seconds.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::clock;
use crate::event_log::{Attachment, BoxError, EventLog, Holding, Stream};
use crate::protocol::ids::{AttachId, Seq};
use crate::protocol::stream::Phase;

/// A connection that is open so long after a response ended has delivered it.
const SETTLED: Duration = Duration::from_secs(2);

/// An answer is handed over in pieces of this size, each when there is room for it, so that its end means more than its beginning.
const PIECE: usize = 64 * 1024;

/// The responses of one connection that ended and are not known to have arrived.
#[derive(Default)]
pub struct Receipts {
    waiting: Mutex<Vec<(Instant, Waiting)>>,
    /// Whose body goes out now: of HTTP/1.1, which writes one at a time.
    reading: Mutex<Option<(AttachId, Arc<Stream>)>>,
}

impl Receipts {
    /// A request began: what ended before it has arrived.
    pub fn confirm_all(&self) {
        let arrived = std::mem::take(&mut *self.lock());
        arrived.into_iter().for_each(|(_, waiting)| waiting.confirm());
    }

    /// The connection is still open at `now`.
    pub fn confirm_settled(&self, now: Instant) {
        let mut waiting = self.lock();
        let settled = waiting.partition_point(|(at, _)| now.saturating_duration_since(*at) >= SETTLED);
        let arrived: Vec<_> = waiting.drain(..settled).collect();
        drop(waiting);
        arrived.into_iter().for_each(|(_, waiting)| waiting.confirm());
    }

    /// The connection ended in peace: its client has taken what it was written, as far as anybody can tell. That decides what is
    /// sent again before the next result, and not whether a result is kept.
    pub fn confirm_interims(&self) {
        let waiting = std::mem::take(&mut *self.lock());
        for (at, waiting) in waiting {
            match waiting {
                Waiting::Answer(_) => self.lock().push((at, waiting)),
                Waiting::Interim(_) => waiting.confirm(),
            }
        }
    }

    /// When the oldest will have settled.
    pub fn next_settled(&self) -> Option<Instant> {
        self.lock().first().map(|(at, _)| *at + SETTLED)
    }

    /// The response of `attachment` ended with an interim result behind the event at `upto`.
    pub(super) fn wait_for_interim(&self, attachment: &Attachment, upto: Seq) {
        let (stream, attach) = (attachment.stream().clone(), attachment.id());
        stream.note_interim(attach, upto);
        self.wait_for(Waiting::Interim(InterimReceipt { stream, attach, has_arrived: false }));
    }

    /// The response of `attachment` begins.
    pub(super) fn begin_reading(&self, attachment: &Attachment) {
        *self.lock_reading() = Some((attachment.id(), attachment.stream().clone()));
    }

    /// The response of `attach` is over.
    pub(super) fn end_reading(&self, attach: AttachId) {
        self.lock_reading().take_if(|(reading, _)| *reading == attach);
    }

    /// Whether another connection reads the stream that is written to this one.
    pub fn is_taken_over(&self) -> bool {
        self.lock_reading().as_ref().is_some_and(|(attach, stream)| {
            stream.look(|machine| machine.reader().attached().is_some_and(|reader| reader != *attach))
        })
    }

    fn lock_reading(&self) -> std::sync::MutexGuard<'_, Option<(AttachId, Arc<Stream>)>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, waiting: Waiting) {
        self.lock().push((clock::now(), waiting));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, Waiting)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a response ended with.
enum Waiting {
    Answer(Receipt),
    Interim(InterimReceipt),
}

impl Waiting {
    fn confirm(self) {
        match self {
            Self::Answer(receipt) => receipt.confirm(),
            Self::Interim(mut receipt) => receipt.has_arrived = true,
        }
    }
}

/// Tells the stream what became of an interim result. Dropped with its connection, unconfirmed, it may never have arrived.
struct InterimReceipt {
    stream: Arc<Stream>,
    attach: AttachId,
    has_arrived: bool,
}

impl Drop for InterimReceipt {
    fn drop(&mut self) {
        self.stream.note_interim_settled(self.attach, self.has_arrived);
    }
}

/// The promise that a stream's answer is not forgotten before it arrived. Dropped unconfirmed, it leaves the answer for a
/// retry until retention ends.
pub struct Receipt {
    log: Arc<EventLog>,
    stream: Arc<Stream>,
    confirmed: bool,
}

impl Receipt {
    /// For the answer of `stream`.
    pub fn new(log: Arc<EventLog>, stream: Arc<Stream>) -> Self {
        Self { log, stream, confirmed: false }
    }

    fn confirm(mut self) {
        self.confirmed = true;
        self.stream.note_delivered();
        let passed = self.stream.look(|machine| machine.phase() == Phase::Passed && !machine.policy().keyed);
        if passed {
            self.log.forget(&self.stream);
        }
    }

    /// The response ended on this connection: from here on it decides.
    pub(super) fn ended(self, receipts: &Receipts) {
        receipts.wait_for(Waiting::Answer(self));
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.confirmed && self.stream.is_answer_unclaimed() {
            self.log.retain(&self.stream);
        }
    }
}

/// The body of an answer that is kept for a retry until it has arrived.
pub struct Kept {
    bytes: Option<Bytes>,
    /// A large body goes out in copies of its pieces: a slice of it that hyper still has would keep the whole.
    is_large: bool,
    /// What the body counts for, where only this connection has it.
    held: Option<Holding>,
    // Dropped in this order: a stream is detached before its receipt looks whether anybody took the answer.
    attachment: Option<Attachment>,
    receipt: Option<Receipt>,
    receipts: Arc<Receipts>,
}

impl Kept {
    /// `bytes`, the answer of the stream that `attachment` holds.
    pub fn new(bytes: Bytes, attachment: Attachment, receipt: Receipt, receipts: Arc<Receipts>) -> Self {
        receipts.begin_reading(&attachment);
        let is_large = bytes.len() > PIECE;
        let (attachment, receipt) = (Some(attachment), Some(receipt));
        Self { bytes: Some(bytes), is_large, held: None, attachment, receipt, receipts }
    }

    /// The same with bytes that nobody else has: they count in the name of the stream's principal as long as this lives.
    pub fn alone(bytes: Bytes, attachment: Attachment, receipt: Receipt, receipts: Arc<Receipts>) -> Self {
        let held = attachment.hold(bytes.len());
        let mut kept = Self::new(bytes, attachment, receipt, receipts);
        kept.held = Some(held);
        kept
    }
}

impl Body for Kept {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(bytes) = &mut self.bytes else { return Poll::Ready(None) };
        let piece = bytes.split_to(bytes.len().min(PIECE));
        if bytes.is_empty() {
            self.bytes = None;
        }
        let piece = match &self.attachment {
            Some(attachment) if self.is_large => attachment.counted(BytesMut::from(&piece[..])),
            Some(_) | None => piece,
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, Bytes::len) as u64)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(attachment) = self.attachment.take() {
            self.receipts.end_reading(attachment.id());
        }
        self.held = None;
        if let Some(receipt) = self.receipt.take()
            && self.bytes.is_none()
        {
            receipt.ended(&self.receipts);
        }
    }
}
