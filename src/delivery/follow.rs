//! Response body that follows a stream: prime, replay to the tail, then live events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use super::beats::{BeatTimes, Beats};
use super::disconnect;
use super::metrics::{Left, Metrics};
use super::receipts::{Receipt, Receipts};
use super::stream_lost::stream_lost_event;
use crate::body::BoxError;
use crate::clock::{self, Alarm};
use crate::event_log::{Attachment, ReadOutcome};
use crate::protocol::ids::{Handle, Seq, StreamKind};
use crate::protocol::sse;
use crate::protocol::stream::Machine;
use crate::simulation::{self, Bug};

/// Capacity for the beginning of a response: enough for all of most short calls.
const START_ROOM: usize = 1024;

/// `retry` at the end of a response for [`Plan::should_recount`].
const RECOUNT_RETRY: Duration = Duration::from_millis(100);

/// Delivery plan of one connection. Fixed when its response begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// First bytes of the response.
    pub opening: Opening,
    /// Form of the events with empty data.
    pub empty_events: EmptyEvents,
    /// `retry` for the client at the beginning.
    pub retry: Duration,
    /// Later `retry`, or `None` if the first one stays.
    pub later_retry: Option<LaterRetry>,
    /// True if the response ends behind the stored events, so that its client counts its attempts
    /// from zero again. A response that is complete by then is written whole.
    pub should_recount: bool,
    /// Silence before a comment is written.
    pub heartbeat: Duration,
    /// Reasons to end the response before its stream.
    pub early_close: EarlyClose,
    /// True if the response ends when it is the client's turn.
    pub should_end_at_turn: bool,
    /// Report of lost events: a comment, and this message without a number unless it is empty.
    /// `None` if none were lost.
    pub preface: Option<Vec<u8>>,
    /// Message without a number behind the stream's last one. It belongs to this connection.
    pub closing: Option<Vec<u8>>,
    /// Interim result, the end of the response if there is no result by its time. Boxed, because
    /// nearly all connections have none.
    pub interim: Option<Box<Interim>>,
    /// Times of the progress of the proxy's own, or `None` if it is off.
    pub beats: Option<BeatTimes>,
}

/// First bytes of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// An empty event that has an id: the client can resume from the beginning.
    PrimingEvent,
    /// A comment.
    Comment,
}

/// Reconnection time of a call that has run for long.
#[derive(Clone, Copy, Debug)]
pub struct LaterRetry {
    /// Earliest time to write it.
    pub from: Instant,
    /// `retry` for the client.
    pub retry: Duration,
}

/// Form of the events with empty data: the priming event, and the last event of a response that
/// ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyEvents {
    /// Without a type, as revision 2025-11-25 specifies them.
    Untyped,
    /// With the type `prime`, for clients that parse the data of untyped events. They take the ID,
    /// and skip events of other types.
    Typed,
    /// None, and no `retry` without data: the client fails at either.
    Absent,
}

impl EmptyEvents {
    fn event_type(self) -> Option<&'static str> {
        match self {
            Self::Untyped | Self::Absent => None,
            Self::Typed => Some("prime"),
        }
    }
}

/// Reasons to end a response before its stream.
#[derive(Clone, Copy, Debug)]
pub enum EarlyClose {
    /// None: the client is not known to resume.
    Never,
    /// The log requires it, or the response has reached its time limit.
    WhenAsked {
        /// Time limit of the response.
        max_connection: Option<Duration>,
    },
    /// The client polls: the response ends once the stored events are written, and for each reason
    /// of [`Self::WhenAsked`].
    Polling {
        /// Time limit of the response.
        max_connection: Option<Duration>,
    },
}

impl EarlyClose {
    /// Returns the time limit of the response, if it has one.
    fn max_connection(self) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::WhenAsked { max_connection } | Self::Polling { max_connection } => max_connection,
        }
    }
}

/// Interim result in place of a late result: a message without a number, which belongs to this
/// connection.
#[derive(Clone, Debug)]
pub struct Interim {
    /// Deadline of the result.
    pub at: Instant,
    /// The message.
    pub message: Vec<u8>,
}

/// First position of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// First connection of a stream.
    First,
    /// A later connection: the client has everything up to this event.
    After(Seq),
}

impl Start {
    /// Returns the last event that the client has.
    pub fn cursor(self) -> Seq {
        match self {
            Self::First => Seq(0),
            Self::After(cursor) => cursor,
        }
    }
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
    /// Approximate size limit of a piece of the body.
    piece: usize,
    /// Events of the piece in preparation.
    written: u64,
    state: State,
    /// True if an id was written on this connection: the client can resume after a close.
    has_id: bool,
    closes_at: Option<Instant>,
    /// Progress of the proxy's own, or `None` if there will be none.
    beats: Option<Beats>,
    /// Time of the client's turn, as far as is known.
    turn_at: Option<Instant>,
    last_write: Instant,
    alarm: Alarm,
}

/// State of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// A part of an event is written, and its rest is lost.
    Cut,
    Ended,
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
        metrics.observe_attach();
        receipts.begin_reading(&attachment);
        let piece = receipts.piece();
        let mut follow = Self {
            attachment,
            receipt: Some(receipt),
            receipts,
            metrics,
            start: Some(start),
            cursor: start.cursor(),
            piece,
            written: 0,
            state: State::Open,
            has_id: plan.opening == Opening::PrimingEvent,
            closes_at: plan.early_close.max_connection().map(|after| now + after),
            beats: plan.beats.map(|times| Beats::new(times, start.cursor(), now)),
            turn_at: None,
            last_write: now,
            alarm: Alarm::new(),
            plan,
        };
        follow.set_alarm();
        follow
    }

    /// Ends the response at the client's turn.
    pub fn until_turn(mut self) -> Self {
        self.plan.should_end_at_turn = true;
        self
    }

    /// Returns the stream's handle in this connection's event IDs.
    pub fn handle(&self) -> &Handle {
        self.attachment.handle()
    }

    /// Writes the beginning of a response, in the same write as its head: without an id no client
    /// can resume.
    fn write_start(&mut self, out: &mut BytesMut) {
        let Some(start) = self.start.take() else { return };
        out.reserve(START_ROOM);
        if self.plan.opening == Opening::PrimingEvent && !simulation::has(Bug::LeavesThePrimeOut) {
            let attach = match start {
                Start::First => None,
                Start::After(_) => Some(self.attachment.id()),
            };
            self.attachment.write_id_of_place(out, self.cursor, attach);
            sse::encode_empty(out, self.plan.empty_events.event_type(), None, Some(self.plan.retry));
            self.attachment.set_primed(self.plan.retry);
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

    /// Writes the ready events. Pending without such bytes if the connection continues.
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        loop {
            match self.poll_read(cx, out) {
                Poll::Ready(ReadOutcome::Events { last, written, is_full, waited }) => {
                    if let Some(waited) = waited {
                        self.metrics.observe_live_event(waited);
                    }
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
                    if let Some(waited) = waited {
                        self.metrics.observe_live_event(waited);
                    }
                    return Poll::Ready(());
                }
                Poll::Ready(ReadOutcome::Cut) => {
                    self.state = State::Cut;
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
                Poll::Pending if let Some(retry) = self.close_retry() => {
                    self.write_graceful_close(out, retry);
                    return Poll::Ready(());
                }
                Poll::Pending if self.should_recount() => {
                    self.write_graceful_close(out, RECOUNT_RETRY);
                    return Poll::Ready(());
                }
                Poll::Pending if self.should_close_after_replay() => {
                    self.end_early();
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads the next events into `out`, behind the later `retry` if that is due.
    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<ReadOutcome> {
        let due = self.plan.later_retry.filter(|later| later.from <= self.last_write);
        let Some(later) = due.filter(|_| !self.attachment.is_within_event()) else {
            return self.attachment.poll_read(cx, self.cursor, out, self.piece);
        };
        let begin = out.len();
        let outcome = self.attachment.poll_read(cx, self.cursor, out, self.piece);
        if out.len() > begin {
            // The `retry` line precedes the first event. It does not count in the piece.
            let events = out.split_off(begin);
            sse::encode_retry_line(out, later.retry);
            out.extend_from_slice(&events);
            self.handle_later_retry(later.retry);
        }
        outcome
    }

    fn handle_later_retry(&mut self, retry: Duration) {
        self.plan.later_retry = None;
        self.plan.retry = retry;
        self.attachment.set_primed(retry);
    }

    /// Writes a comment, and the later `retry` if that is due and the client can resume.
    fn write_heartbeat(&mut self, out: &mut BytesMut, now: Instant) {
        sse::encode_comment(out, "");
        let Some(later) = self.plan.later_retry.filter(|later| later.from <= now && self.has_id) else { return };
        match self.plan.empty_events {
            EmptyEvents::Untyped => sse::encode_retry(out, later.retry),
            form @ EmptyEvents::Typed => sse::encode_empty(out, form.event_type(), None, Some(later.retry)),
            // The next event carries it.
            EmptyEvents::Absent => return,
        }
        self.handle_later_retry(later.retry);
    }

    /// Handles lost events after the cursor. A stream that never pauses continues behind the gap; a
    /// request's call has lost events that it cannot do without. Returns true if the response has
    /// ended.
    fn write_gap(&mut self, upto: Seq, out: &mut BytesMut) -> bool {
        let stream = self.attachment.stream();
        if stream.with_machine(|machine| machine.policy().can_pause) {
            out.extend_from_slice(&stream_lost_event(self.attachment.handle()));
            self.state = State::Ended;
            return true;
        }
        self.cursor = upto;
        sse::encode_comment(out, "events were lost here: the stream's bounds were reached");
        false
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.state = State::Ended;
        if let Some(message) = self.plan.closing.take() {
            sse::encode_event(out, b"message", &message);
        }
        if let Some(receipt) = self.receipt.take() {
            receipt.ended(&self.attachment, &self.receipts);
        }
    }

    /// Returns the `retry` before the end that the log requires of the response, if it may end
    /// early.
    fn close_retry(&self) -> Option<Duration> {
        match self.plan.early_close {
            EarlyClose::Never => None,
            EarlyClose::WhenAsked { .. } | EarlyClose::Polling { .. } if self.has_id => self.attachment.closing(),
            EarlyClose::WhenAsked { .. } | EarlyClose::Polling { .. } => None,
        }
    }

    /// Returns true if the response has to end at `now`, before its stream.
    fn should_close(&self, now: Instant) -> bool {
        self.has_id && self.closes_at.is_some_and(|at| at <= now)
    }

    fn should_close_after_replay(&self) -> bool {
        matches!(self.plan.early_close, EarlyClose::Polling { .. }) && self.has_id && !self.is_interim_due()
    }

    /// Returns true once, if the plan requires an early end and the response is not complete.
    fn should_recount(&mut self) -> bool {
        let is_complete =
            |machine: &Machine| machine.policy().kind == StreamKind::Request && machine.owed_responses().is_settled();
        std::mem::take(&mut self.plan.should_recount)
            && self.has_id
            && !self.attachment.stream().with_machine(is_complete)
    }

    fn is_interim_due(&self) -> bool {
        self.plan.interim.as_ref().is_some_and(|interim| interim.at <= clock::now())
    }

    /// Ends the response with the interim result if it is due. Returns true if it ended.
    fn end_with_interim(&mut self, out: &mut BytesMut) -> bool {
        if self.state == State::Ended || self.attachment.is_within_event() || !self.is_interim_due() {
            return false;
        }
        let Some(interim) = self.plan.interim.take() else { return false };
        if self.attachment.stream().with_machine(|machine| machine.owed_responses().is_settled()) {
            // The awaited result is on its way.
            self.set_alarm();
            return false;
        }
        sse::encode_event(out, b"message", &interim.message);
        self.receipts.wait_for_interim(&self.attachment, self.cursor);
        self.state = State::Ended;
        true
    }

    /// Writes progress of the proxy's own if the time of a look has come by `now`. Returns true if
    /// any was written.
    fn write_beats(&mut self, out: &mut BytesMut, now: Instant) -> bool {
        let Some(beats) = &mut self.beats else { return false };
        if beats.look_at() > now {
            return false;
        }
        let Some(due) = beats.look(&self.attachment, self.cursor, now) else {
            self.beats = None;
            return false;
        };
        for beat in &due {
            sse::encode_event(out, b"message", beat);
        }
        self.metrics.observe_beats(due.len());
        !due.is_empty()
    }

    /// Ends the response before its stream: its client resumes.
    fn end_early(&mut self) {
        self.state = State::Ended;
        self.attachment.end_early();
    }

    /// Ends the response gracefully, without a result.
    fn write_graceful_close(&mut self, out: &mut BytesMut, retry: Duration) {
        self.end_early();
        match (self.plan.opening, self.plan.empty_events) {
            (Opening::PrimingEvent, form) => sse::encode_empty(out, form.event_type(), None, Some(retry)),
            (Opening::Comment, EmptyEvents::Untyped | EmptyEvents::Typed) => sse::encode_retry(out, retry),
            (Opening::Comment, EmptyEvents::Absent) => {}
        }
    }

    /// Updates the time of the client's turn. Called at the tail.
    fn update_turn(&mut self) {
        if self.plan.should_end_at_turn {
            let turn_at = self.attachment.stream().with_machine(Machine::input_turn_at);
            if turn_at != self.turn_at {
                self.turn_at = turn_at;
                self.set_alarm();
            }
        }
    }

    /// Handles the heartbeat, progress of the proxy's own, an early close, and the client's turn.
    fn poll_alarm(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        while self.alarm.poll(cx).is_ready() {
            let now = clock::now();
            if self.end_with_interim(out) {
                return Poll::Ready(());
            }
            if self.should_close(now) {
                self.end_early();
                return Poll::Ready(());
            }
            if self.plan.should_end_at_turn && self.attachment.begin_input_turn(self.cursor) {
                self.write_graceful_close(out, self.plan.retry);
                return Poll::Ready(());
            }
            if self.write_beats(out, now) {
                self.last_write = now;
            }
            if self.last_write + self.plan.heartbeat <= now {
                self.write_heartbeat(out, now);
                self.last_write = now;
            }
            self.turn_at = if self.plan.should_end_at_turn {
                self.attachment.stream().with_machine(Machine::input_turn_at)
            } else {
                None
            };
            self.set_alarm();
            if !out.is_empty() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    fn set_alarm(&mut self) {
        let heartbeat = self.last_write + self.plan.heartbeat;
        // Without an id the end waits for one; the event that brings it is written without the
        // alarm.
        let closes_at = if self.has_id { self.closes_at } else { None };
        let interim = self.plan.interim.as_ref().map(|interim| interim.at);
        let look_at = self.beats.as_ref().map(|beats| beats.look_at());
        self.alarm.set([Some(heartbeat), closes_at, self.turn_at, interim, look_at].into_iter().flatten().min());
    }

    /// Reports a connection that ends before its stream, unless a newer connection reads the
    /// stream.
    fn report_disconnect(&self) {
        let stream = self.attachment.stream();
        let (is_current, is_primed) =
            stream.with_machine(|machine| (machine.reader().is(self.attachment.id()), machine.reader().is_primed()));
        if is_current {
            let left = if is_primed { Left::Resumable } else { Left::Unresumable };
            disconnect::report(&self.metrics, stream, left, Some(self.cursor), "client disconnected");
        }
    }
}

impl Body for Follow {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        // A stream that is never silent is closed as well, once the client has an id to resume
        // with.
        if this.should_close(this.last_write) && !this.attachment.is_within_event() {
            this.end_early();
        }
        if this.state == State::Ended {
            return Poll::Ready(None);
        }
        let mut out = BytesMut::new();
        this.write_start(&mut out);
        let ready = this.poll_events(cx, &mut out).is_ready() || !out.is_empty();
        if this.state == State::Cut {
            // A partly written event must not look like a complete one: the response breaks off.
            this.state = State::Ended;
            return Poll::Ready(Some(Err("an event was dropped while it was sent".into())));
        }
        let ready = this.end_with_interim(&mut out) || ready;
        // The alarm does not ring on a stream that is never silent.
        if this.state == State::Open && !this.attachment.is_within_event() {
            this.write_beats(&mut out, this.last_write);
        }
        if !ready {
            this.update_turn();
            if this.poll_alarm(cx, &mut out).is_pending() {
                return Poll::Pending;
            }
        }
        if out.is_empty() {
            return if this.state == State::Ended { Poll::Ready(None) } else { Poll::Pending };
        }
        this.last_write = clock::now();
        this.metrics.observe_delivery(std::mem::take(&mut this.written), out.len());
        Poll::Ready(Some(Ok(Frame::data(this.attachment.counted(out)))))
    }

    /// True once the last piece was returned: hyper writes the end of the response with it.
    fn is_end_stream(&self) -> bool {
        self.state == State::Ended
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.metrics.observe_detach();
        self.receipts.end_reading(self.attachment.id());
        if self.state != State::Ended {
            self.report_disconnect();
        }
    }
}
