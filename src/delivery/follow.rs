//! A response body that follows a stream: prime, replay to the tail, then whatever comes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tracing::info;

use super::metrics::{Left, Metrics};
use super::receipts::{Receipt, Receipts};
use super::stream_lost::stream_lost_event;
use crate::body::BoxError;
use crate::clock::{self, Alarm};
use crate::event_log::{Attachment, ReadOutcome};
use crate::protocol::ids::{Handle, Seq};
use crate::protocol::sse;
use crate::protocol::stream::Machine;
use crate::simulation::{self, Bug};

/// How one connection is served. Fixed when its response begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whether the response begins with an empty event that has an id; else with a comment.
    pub primes: bool,
    /// The `retry` to tell.
    pub retry: Duration,
    /// A comment after so much silence.
    pub heartbeat: Duration,
    /// The response ends after this long, for a client that comes back.
    pub max_connection: Option<Duration>,
    /// The response ends as soon as what is stored is written.
    pub polls: bool,
    /// The response ends when the log asks for it, for a client that comes back.
    pub closes_when_asked: bool,
    /// The response ends when it is the client's turn.
    pub turns: bool,
    /// The client is told that it lost events: by a comment, and by this message without a number unless it is empty.
    pub preface: Option<Vec<u8>>,
    /// A message without a number behind the stream's last one: it belongs to this connection.
    pub closing: Option<Vec<u8>>,
    /// The response ends with this where there is no result by then. Boxed, for nearly all have none.
    pub interim: Option<Box<Interim>>,
}

/// What stands for a result that takes too long: a message without a number, which belongs to this connection.
#[derive(Clone, Debug)]
pub struct Interim {
    /// When it is due.
    pub at: Instant,
    /// The message.
    pub message: Vec<u8>,
}

/// Where a connection begins.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// A stream's first connection.
    First,
    /// A later one: the client has everything up to here.
    After(Seq),
}

/// The body.
pub struct Follow {
    attachment: Attachment,
    receipt: Option<Receipt>,
    receipts: Arc<Receipts>,
    metrics: Arc<Metrics>,
    plan: Plan,
    start: Option<Start>,
    cursor: Seq,
    /// One piece of body takes up to about this much of what is ready.
    piece: usize,
    /// Events of the piece that is being made.
    written: u64,
    ended: bool,
    /// The rest of an event that was begun is gone.
    is_cut: bool,
    /// An id was written on this connection: the client can be closed on.
    has_id: bool,
    closes_at: Option<Instant>,
    /// When it will be the client's turn, as far as is known.
    turn_at: Option<Instant>,
    last_write: Instant,
    alarm: Alarm,
}

impl Follow {
    /// Follows the stream of `attachment` from `start`.
    pub fn new(
        attachment: Attachment,
        receipt: Receipt,
        receipts: Arc<Receipts>,
        metrics: Arc<Metrics>,
        plan: Plan,
        start: Start,
    ) -> Self {
        let now = clock::now();
        let cursor = match start {
            Start::First => Seq(0),
            Start::After(cursor) => cursor,
        };
        metrics.observe_attach();
        receipts.begin_reading(&attachment);
        let piece = receipts.piece();
        let mut follow = Self {
            attachment,
            receipt: Some(receipt),
            receipts,
            metrics,
            start: Some(start),
            cursor,
            piece,
            written: 0,
            ended: false,
            is_cut: false,
            has_id: plan.primes,
            closes_at: plan.max_connection.map(|after| now + after),
            turn_at: None,
            last_write: now,
            alarm: Alarm::new(),
            plan,
        };
        follow.set_alarm();
        follow
    }

    /// The same for a client that is closed on when it is its turn.
    pub fn taking_turns(mut self, takes_turns: bool) -> Self {
        self.plan.turns = takes_turns;
        self
    }

    /// The stream, as this connection's event IDs name it.
    pub fn handle(&self) -> &Handle {
        self.attachment.handle()
    }

    /// What every response begins with, in the same write as its head: without an id no client can come back.
    fn write_start(&mut self, out: &mut BytesMut) {
        let Some(start) = self.start.take() else { return };
        if self.plan.primes && !simulation::has(Bug::LeavesThePrimeOut) {
            let attach = match start {
                Start::First => None,
                Start::After(_) => Some(self.attachment.id()),
            };
            let id = self.attachment.id_of_place(self.cursor, attach);
            sse::encode_empty(out, Some(&id), Some(self.plan.retry));
            self.attachment.note_primed(self.plan.retry);
        } else {
            sse::encode_comment(out, "");
        }
        if simulation::has(Bug::RepeatsTheCursor) {
            self.cursor = Seq(self.cursor.0.saturating_sub(1));
        }
        if let Some(message) = self.plan.preface.take() {
            sse::encode_comment(out, "events before this were lost");
            if !message.is_empty() {
                sse::encode_event(out, b"message", &message);
            }
        }
    }

    /// Writes what is ready; pending when that is nothing and the connection goes on.
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        loop {
            match self.attachment.poll_read(cx, self.cursor, out, self.piece) {
                Poll::Ready(ReadOutcome::Events { last, written, is_full, waited }) => {
                    waited.into_iter().for_each(|waited| self.metrics.observe_live_event(waited));
                    self.cursor = last;
                    self.written += written;
                    if !self.has_id && written > 0 {
                        self.has_id = true;
                        self.set_alarm();
                    }
                    if is_full {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(ReadOutcome::Part { waited }) => {
                    waited.into_iter().for_each(|waited| self.metrics.observe_live_event(waited));
                    return Poll::Ready(());
                }
                Poll::Ready(ReadOutcome::Cut) => {
                    self.is_cut = true;
                    return Poll::Ready(());
                }
                Poll::Ready(ReadOutcome::Ended) => {
                    self.end(out);
                    return Poll::Ready(());
                }
                Poll::Ready(ReadOutcome::TakenOver(retry)) => {
                    self.metrics.observe_takeover();
                    self.write_graceful_close(out, retry);
                    return Poll::Ready(());
                }
                Poll::Ready(ReadOutcome::Moved(retry)) => {
                    self.write_graceful_close(out, retry);
                    return Poll::Ready(());
                }
                Poll::Ready(ReadOutcome::Trimmed(upto)) => {
                    self.metrics.event_log.observe_gap();
                    if self.write_gap(upto, out) {
                        return Poll::Ready(());
                    }
                }
                Poll::Pending if let Some(retry) = self.closing() => {
                    self.write_graceful_close(out, retry);
                    return Poll::Ready(());
                }
                Poll::Pending if self.plan.polls && self.has_id && !self.is_interim_due() => {
                    self.ended = true;
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The events after the cursor are gone. A stream that never pauses goes on behind the gap; a request's call has lost
    /// what it cannot do without. True when the response is over.
    fn write_gap(&mut self, upto: Seq, out: &mut BytesMut) -> bool {
        let stream = self.attachment.stream();
        if stream.look(|machine| machine.policy().can_pause) {
            out.extend_from_slice(&stream_lost_event(self.attachment.handle()));
            self.ended = true;
            return true;
        }
        self.cursor = upto;
        sse::encode_comment(out, "events were lost here: the stream's bounds were reached");
        false
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.ended = true;
        if let Some(message) = self.plan.closing.take() {
            sse::encode_event(out, b"message", &message);
        }
        if let Some(receipt) = self.receipt.take() {
            receipt.ended(&self.receipts);
        }
    }

    fn closing(&self) -> Option<Duration> {
        if self.plan.closes_when_asked && self.has_id { self.attachment.closing() } else { None }
    }

    fn is_interim_due(&self) -> bool {
        self.plan.interim.as_ref().is_some_and(|interim| interim.at <= clock::now())
    }

    /// The time for a result is over: true when the response ends without one.
    fn end_with_interim(&mut self, out: &mut BytesMut) -> bool {
        if self.ended || self.attachment.is_within_event() || !self.is_interim_due() {
            return false;
        }
        let Some(interim) = self.plan.interim.take() else { return false };
        if self.attachment.stream().look(|machine| machine.owed_responses().is_settled()) {
            // What it was waited for is on its way.
            self.set_alarm();
            return false;
        }
        sse::encode_event(out, b"message", &interim.message);
        self.receipts.wait_for_interim(&self.attachment, self.cursor);
        self.ended = true;
        true
    }

    /// This response ends gracefully, without an answer.
    fn write_graceful_close(&mut self, out: &mut BytesMut, retry: Duration) {
        self.ended = true;
        if self.plan.primes {
            sse::encode_empty(out, None, Some(retry));
        } else {
            sse::encode_retry(out, retry);
        }
    }

    /// At the tail: looks when it will be the client's turn.
    fn note_turn(&mut self) {
        if self.plan.turns {
            let turn_at = self.attachment.stream().look(Machine::input_turn_at);
            if turn_at != self.turn_at {
                self.turn_at = turn_at;
                self.set_alarm();
            }
        }
    }

    /// Heartbeat, early close, and the client's turn.
    fn poll_alarm(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        while self.alarm.poll(cx).is_ready() {
            let now = clock::now();
            if self.end_with_interim(out) {
                return Poll::Ready(());
            }
            if self.has_id && self.closes_at.is_some_and(|at| at <= now) {
                self.ended = true;
                return Poll::Ready(());
            }
            if self.plan.turns && self.attachment.begin_turn(self.cursor) {
                self.write_graceful_close(out, self.plan.retry);
                return Poll::Ready(());
            }
            if self.last_write + self.plan.heartbeat <= now {
                sse::encode_comment(out, "");
                self.last_write = now;
            }
            self.turn_at = self.attachment.stream().look(Machine::input_turn_at).filter(|_| self.plan.turns);
            self.set_alarm();
            if !out.is_empty() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    fn set_alarm(&mut self) {
        let heartbeat = self.last_write + self.plan.heartbeat;
        // Without an id the end waits for one; what brings it is written without the alarm.
        let closes_at = self.closes_at.filter(|_| self.has_id);
        let interim = self.plan.interim.as_ref().map(|interim| interim.at);
        self.alarm.set([Some(heartbeat), closes_at, self.turn_at, interim].into_iter().flatten().min());
    }

    /// A connection that breaks off before its stream is over shows in log and metrics.
    fn observe_disconnect(&self) {
        let stream = self.attachment.stream();
        let (current, primed) =
            stream.look(|machine| (machine.reader().is(self.attachment.id()), machine.reader().is_primed()));
        if current {
            self.metrics.observe_disconnect(if primed { Left::Resumable } else { Left::Unresumable });
            let name = stream.call_name();
            info!(
                stream.id = %stream.id(),
                session = stream.binding().session_hash(),
                method = name.map(|name| &*name.method),
                tool = name.and_then(|name| name.tool.as_deref()),
                cursor = self.cursor.0,
                can_resume = primed,
                "client disconnected"
            );
        }
    }
}

impl Body for Follow {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        // A stream that is never silent is closed on as well, once there is an id to come back with.
        let is_due = this.has_id && this.closes_at.is_some_and(|at| at <= this.last_write);
        this.ended |= is_due && !this.attachment.is_within_event();
        if this.ended {
            return Poll::Ready(None);
        }
        let mut out = BytesMut::new();
        this.write_start(&mut out);
        let ready = this.poll_events(cx, &mut out).is_ready() || !out.is_empty();
        if this.is_cut {
            // What was begun must not look like an event: the response breaks off.
            this.ended = true;
            return Poll::Ready(Some(Err("an event was dropped while it was sent".into())));
        }
        let ready = this.end_with_interim(&mut out) || ready;
        if !ready {
            this.note_turn();
            if this.poll_alarm(cx, &mut out).is_pending() {
                return Poll::Pending;
            }
        }
        if out.is_empty() {
            return if this.ended { Poll::Ready(None) } else { Poll::Pending };
        }
        this.last_write = clock::now();
        this.metrics.observe_delivery(std::mem::take(&mut this.written), out.len());
        Poll::Ready(Some(Ok(Frame::data(this.attachment.counted(out)))))
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.metrics.observe_detach();
        self.receipts.end_reading(self.attachment.id());
        if !self.ended {
            self.observe_disconnect();
        }
    }
}
