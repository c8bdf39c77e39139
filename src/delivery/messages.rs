//! Response body for a client in this process: each frame is one message of the stream.
//!
//! Owned here: the position of such a reader, and progress of the proxy's own between the messages.
//! A message is neither framed as an event nor numbered for its reader, because nothing between the
//! two can break. Absent: heartbeats, priming and early ends, which are for connections
//! (`follow.rs`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};

use super::beats::{BeatTimes, Beats};
use super::disconnect;
use super::metrics::{Left, Metrics};
use super::receipts::{Receipt, Receipts};
use crate::body::BoxError;
use crate::clock::{self, Alarm};
use crate::event_log::{Attachment, NextMessage};
use crate::protocol::headers::names;
use crate::protocol::ids::Seq;
use crate::protocol::stream::{Outcome, Phase};

/// Marks a response whose body is [`Messages`].
#[derive(Clone, Copy, Debug)]
pub struct MessageFrames;

/// Body that follows a stream, one message for each frame. It ends with the stream. If the error at
/// the end is this process's own, trailers with `Mcp-Resume-Failure` follow it at once. A reader
/// that drops the body has left.
pub struct Messages {
    attachment: Attachment,
    receipt: Option<Receipt>,
    receipts: Arc<Receipts>,
    metrics: Arc<Metrics>,
    cursor: Seq,
    /// Progress of the proxy's own, or `None` if there will be none.
    beats: Option<Beats>,
    /// Progress that is due.
    due: VecDeque<Vec<u8>>,
    alarm: Alarm,
    has_ended: bool,
    /// Trailers behind the end.
    trailers: Option<HeaderMap>,
}

impl Messages {
    /// Follows the stream of `attachment` behind `cursor`.
    pub fn new(
        attachment: Attachment,
        receipt: Receipt,
        receipts: Arc<Receipts>,
        metrics: Arc<Metrics>,
        beats: Option<BeatTimes>,
        cursor: Seq,
    ) -> Self {
        metrics.observe_attach();
        receipts.begin_reading(&attachment);
        let beats = beats.map(|times| Beats::new(times, cursor, clock::now()));
        let mut alarm = Alarm::new();
        alarm.set(beats.as_ref().map(Beats::look_at));
        let (receipt, due) = (Some(receipt), VecDeque::new());
        Self { attachment, receipt, receipts, metrics, cursor, beats, due, alarm, has_ended: false, trailers: None }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        loop {
            if let Some(progress) = self.due.pop_front() {
                return Poll::Ready(Some(Ok(progress.into())));
            }
            match self.attachment.poll_message(cx, self.cursor) {
                Poll::Ready(NextMessage::Message { at, message }) => {
                    self.cursor = at;
                    self.metrics.observe_delivery(1, message.len());
                    return Poll::Ready(Some(Ok(message)));
                }
                Poll::Ready(NextMessage::Ended) => {
                    self.has_ended = true;
                    self.trailers = self.failed_here();
                    if let Some(receipt) = self.receipt.take() {
                        receipt.ended(&self.attachment, &self.receipts);
                    }
                    return Poll::Ready(None);
                }
                Poll::Ready(NextMessage::Displaced) => {
                    self.has_ended = true;
                    return Poll::Ready(None);
                }
                Poll::Ready(NextMessage::Trimmed(upto)) => {
                    self.metrics.event_log.observe_gap();
                    if self.attachment.stream().with_machine(|machine| machine.policy().can_pause) {
                        // A call cannot do without its lost messages.
                        self.has_ended = true;
                        return Poll::Ready(Some(Err("messages of the call were lost".into())));
                    }
                    self.cursor = upto;
                }
                Poll::Pending => match self.alarm.poll(cx) {
                    Poll::Ready(()) => self.look(),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    /// Returns the trailers of a stream that this process ended with an error.
    fn failed_here(&self) -> Option<HeaderMap> {
        let phase = self.attachment.stream().with_machine(|machine| machine.lifecycle().phase());
        let is_own = matches!(phase, Phase::Sealed { outcome: Outcome::Failed | Outcome::Expired, .. });
        is_own.then(|| HeaderMap::from_iter([(names::MCP_RESUME_FAILURE, HeaderValue::from_static("own"))]))
    }

    /// Looks for progress that is due.
    fn look(&mut self) {
        let due = self.beats.as_mut().and_then(|beats| beats.look(&self.attachment, self.cursor, clock::now()));
        match due {
            Some(due) => {
                self.metrics.observe_beats(due.len());
                self.due.extend(due);
            }
            None => self.beats = None,
        }
        self.alarm.set(self.beats.as_ref().map(Beats::look_at));
    }
}

impl Body for Messages {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.has_ended
            && let Some(next) = ready!(self.poll_next(cx))
        {
            return Poll::Ready(Some(next.map(Frame::data)));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended && self.trailers.is_none()
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.metrics.observe_detach();
        self.receipts.end_reading(self.attachment.id());
        if !self.has_ended {
            let stream = self.attachment.stream();
            disconnect::report(&self.metrics, stream, Left::Unresumable, Some(self.cursor), "client left");
        }
    }
}
