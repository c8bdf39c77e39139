//! Proofs that a response has arrived.
//!
//! "Written" is not "received": the kernel and hyper buffer a quarter of a megabyte for a client
//! that reads nothing. A response counts as delivered when it has ended and its connection then
//! carried a later request of the same caller, was closed in order by its client, or stayed open
//! without an error for two seconds.
//!
//! A response that may go by GET waits longer on the HTTP/1.1 connection of a client, because a
//! silent network shows its break late. Any later request on the connection ends that: one response
//! of a connection waits so long. A client that has it all the same ignores the second one.
//!
//! The certainty depends on the connection. One whose peer is a trusted proxy, or that has carried
//! several callers, may belong to a load balancer, which takes a response even if its client has
//! disconnected: a delivery on it is doubtful. On a connection of one caller alone, a later POST
//! that resumes no stream proves that the client has read all earlier responses.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::task;

use super::{SETTLED, by_get, repetition};
use crate::body::BoxError;
use crate::clock;
use crate::event_log::{Attachment, Binding, DeliveryCertainty, EventLog, GetTurn, Principal, Repeatable, Stream};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::{AttachId, Seq, StreamId};
use crate::sync;

/// Time that a connection must stay open after a response that may go by GET. It is shorter than
/// the wait after which `server` closes an idle connection, because that close shows nothing.
const SETTLED_BY_GET: Duration = Duration::from_secs(50);

/// Limit of a connection's streams that wait for a proof of delivery.
const SETTLED_MAX: usize = 16;

/// Approximate size of a piece of a body. Each is handed over when there is room for it, so that
/// the body's end shows more than its beginning.
const PIECE: usize = 64 * 1024;
/// Size of a piece on HTTP/2, where hyper takes a piece of each response before the client has room
/// for it.
const PIECE_OF_MANY: usize = 16 * 1024;

/// Ended responses of one connection that are not known to have arrived.
#[derive(Default)]
pub struct Receipts {
    state: Mutex<State>,
    /// Readers whose bodies are being written, with their tasks: one at a time on HTTP/1.1, one
    /// task for each on HTTP/2.
    reading: Mutex<Vec<Reading>>,
}

struct Reading {
    task: Option<task::Id>,
    attach: AttachId,
    stream: Arc<Stream>,
}

#[derive(Default)]
struct State {
    /// Responses with the times at which they count as delivered, the earliest first.
    waiting: Vec<(Instant, Waiting)>,
    /// Streams whose responses probably arrived, which a later request may prove. Only the latest
    /// are kept.
    settled: Vec<StreamId>,
    callers: Callers,
    /// True if the peer may be a proxy of many clients.
    is_of_proxy: bool,
    /// True if the connection has had one request.
    is_at_first_request: bool,
    /// True on HTTP/2: a request shows nothing about another's response.
    is_multiplexed: bool,
    /// True for a client in this process, which has what was handed to it.
    is_local: bool,
}

impl State {
    /// Gives each response that waits two seconds at most: the connection works.
    fn end_long_waits(&mut self) {
        let latest = clock::now() + SETTLED;
        for (at, _) in &mut self.waiting {
            *at = latest.min(*at);
        }
    }

    fn keep_settled(&mut self, arrived: &[(Instant, Waiting)]) {
        if self.is_multiplexed || !self.callers.can_prove() {
            return;
        }
        self.settled.extend(arrived.iter().filter_map(|(_, waiting)| waiting.response_of()));
        let old = self.settled.len().saturating_sub(SETTLED_MAX);
        self.settled.drain(..old);
    }
}

/// Callers of the requests on a connection.
#[derive(Default)]
enum Callers {
    #[default]
    Unused,
    One(Principal, Option<SessionId>),
    /// Several callers, or a proxy.
    Several,
}

impl Callers {
    fn see(&mut self, caller: &Binding) {
        match self {
            Self::Unused => *self = Self::One(caller.principal, caller.session.clone()),
            Self::One(principal, session) if *principal == caller.principal && *session == caller.session => {}
            Self::One(..) => *self = Self::Several,
            Self::Several => {}
        }
    }

    /// Returns the certainty of a delivery that two quiet seconds, or a later request of the same
    /// caller, show.
    fn by_silence(&self) -> DeliveryCertainty {
        match self {
            Self::Unused | Self::One(..) => DeliveryCertainty::Likely,
            Self::Several => DeliveryCertainty::Doubtful,
        }
    }

    /// Returns true if the caller's next request can prove a delivery. All callers without a
    /// credential and a session look like one, and so do all callers of one URL.
    fn can_prove(&self) -> bool {
        match self {
            Self::Unused | Self::Several => false,
            Self::One(principal, session) => session.is_some() || !principal.is_anonymous(),
        }
    }
}

impl Receipts {
    /// Creates the receipts of a connection whose peer may be a proxy of many clients.
    pub fn of_proxy() -> Self {
        let state = State { callers: Callers::Several, is_of_proxy: true, ..State::default() };
        Self { state: Mutex::new(state), reading: Mutex::default() }
    }

    /// Creates the receipts of a client in this process: a response has arrived when it has ended.
    pub fn of_local_client() -> Self {
        let state = State { is_local: true, ..State::default() };
        Self { state: Mutex::new(state), reading: Mutex::default() }
    }

    /// Returns true for a client in this process. It takes messages in place of event streams.
    pub fn are_local(&self) -> bool {
        self.lock().is_local
    }

    /// Notes that a request of `caller` began: earlier responses to the same caller have arrived.
    /// On HTTP/2 (`is_multiplexed`) it shows nothing about other responses.
    pub fn note_request(&self, caller: &Binding, is_multiplexed: bool) {
        let mut state = self.lock();
        state.is_at_first_request = matches!(state.callers, Callers::Unused);
        state.callers.see(caller);
        state.is_multiplexed = is_multiplexed;
        if !state.callers.can_prove() {
            state.settled.clear();
        }
        if is_multiplexed || state.waiting.is_empty() {
            return;
        }
        let delivery = state.callers.by_silence();
        let is_mixed = delivery == DeliveryCertainty::Doubtful;
        let all = std::mem::take(&mut state.waiting);
        let mut arrived = if is_mixed {
            let (arrived, left) = all.into_iter().partition(|(_, waiting)| waiting.is_of(caller));
            state.waiting = left;
            state.end_long_waits();
            arrived
        } else {
            all
        };
        state.keep_settled(&arrived);
        drop(state);
        for (_, waiting) in arrived.drain(..) {
            waiting.confirm(delivery);
        }
        let mut state = self.lock();
        if state.waiting.capacity() == 0 {
            // Its memory serves the next response.
            state.waiting = arrived;
        }
    }

    /// Notes that the request resumes no stream: a client that continues with another request has
    /// read all earlier responses. A client that resumes may not have.
    pub fn prove(&self, log: &EventLog) {
        let settled = std::mem::take(&mut self.lock().settled);
        for stream in settled {
            log.retention().note_proven(stream);
        }
    }

    /// Notes the session that the response to the connection's first request opened, if any: later
    /// requests in it are the same caller's.
    pub fn note_opened(&self, opened: impl FnOnce() -> Option<SessionId>) {
        if let Callers::One(_, session @ None) = &mut self.lock().callers {
            *session = opened();
        }
    }

    /// Notes that the connection is still open at `now`.
    pub fn confirm_settled(&self, now: Instant) {
        let mut state = self.lock();
        let settled = state.waiting.partition_point(|(at, _)| *at <= now);
        let arrived: Vec<_> = state.waiting.drain(..settled).collect();
        let delivery = state.callers.by_silence();
        state.keep_settled(&arrived);
        drop(state);
        for (_, waiting) in arrived {
            waiting.confirm(delivery);
        }
    }

    /// Notes that the client has closed the connection in order, after it was given all that was
    /// written. On HTTP/1.1 it has read the responses then. Where replicas share a store the
    /// responses are kept all the same: the connection is a load balancer's, whose client may have
    /// lost them.
    pub fn confirm_closed(&self) {
        let mut state = self.lock();
        let delivery = state.callers.by_silence();
        let (kept, arrived): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|(_, it)| it.is_shared());
        state.waiting = kept;
        drop(state);
        for (_, waiting) in arrived {
            waiting.confirm(delivery);
        }
        self.confirm_interims();
    }

    /// Notes that the connection ended without an error, and not by its client: as far as is known,
    /// its client has taken all that was written. That decides which messages are sent again before
    /// the next result, and if a drain waits for the client. A result is kept as long as there is
    /// room.
    pub fn confirm_interims(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        for (at, waiting) in waiting {
            match waiting {
                Waiting::Response(receipt) => {
                    receipt.close_gracefully();
                    self.lock().waiting.push((at, Waiting::Response(receipt)));
                }
                Waiting::Interim(_) | Waiting::Passed(_) => waiting.confirm(DeliveryCertainty::Likely),
            }
        }
    }

    /// Returns the time when the oldest response counts as delivered.
    pub fn next_settled(&self) -> Option<Instant> {
        self.lock().waiting.first().map(|(at, _)| *at)
    }

    /// Notes that the response of `attachment` ended with an interim result behind the event at
    /// `upto`.
    pub(super) fn wait_for_interim(&self, attachment: &Attachment, upto: Seq) {
        let (stream, attach) = (attachment.stream().clone(), attachment.id());
        stream.delivery().handle_interim(attach, upto);
        self.wait_for(Waiting::Interim(InterimReceipt { stream, attach, has_arrived: false }), SETTLED);
    }

    /// Keeps a response that passes without a stream until it has arrived. Only for HTTP/1.1.
    pub fn wait_for_passed(&self, passed: Box<dyn PassedResponse>) {
        self.wait_for(Waiting::Passed(PassedReceipt(Some(passed))), SETTLED);
    }

    /// Returns true if the connection carries several requests at once, on HTTP/2.
    pub fn is_multiplexed(&self) -> bool {
        self.lock().is_multiplexed
    }

    /// Notes that the response of `attachment` begins, in the task that writes it.
    pub(super) fn begin_reading(&self, attachment: &Attachment) {
        let (task, attach, stream) = (task::try_id(), attachment.id(), attachment.stream().clone());
        let mut all = self.lock_reading();
        all.retain(|reading| reading.task != task);
        // Nearly all connections have one reader.
        all.reserve_exact(1);
        all.push(Reading { task, attach, stream });
    }

    /// Records the end of the response of `attach`.
    pub(super) fn end_reading(&self, attach: AttachId) {
        self.lock_reading().retain(|reading| reading.attach != attach);
    }

    /// Returns true if all requests on the connection so far came from one caller, so that it is
    /// probably the client's own.
    pub fn has_one_caller(&self) -> bool {
        matches!(self.lock().callers, Callers::One(..))
    }

    /// Returns true if the connection has had one request.
    pub fn is_at_first_request(&self) -> bool {
        self.lock().is_at_first_request
    }

    /// Returns whether another connection reads the stream that the current task writes to this
    /// one.
    pub fn is_taken_over(&self) -> bool {
        let task = task::try_id();
        self.lock_reading().iter().find(|reading| reading.task == task).is_some_and(
            |Reading { attach, stream, .. }| {
                stream.with_machine(|machine| machine.reader().attached().is_some_and(|reader| reader != *attach))
            },
        )
    }

    /// Returns about how long a piece of a body may be.
    pub fn piece(&self) -> usize {
        if self.lock().is_multiplexed { PIECE_OF_MANY } else { PIECE }
    }

    fn lock_reading(&self) -> std::sync::MutexGuard<'_, Vec<Reading>> {
        sync::lock(&self.reading)
    }

    fn wait_for(&self, waiting: Waiting, settled: Duration) {
        let at = clock::now() + settled;
        let mut state = self.lock();
        if state.is_local {
            drop(state);
            return waiting.confirm(DeliveryCertainty::Proven);
        }
        let place = state.waiting.partition_point(|(other, _)| *other <= at);
        state.waiting.insert(place, (at, waiting));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

/// A response that passed without a stream, of a call that may come again.
pub trait PassedResponse: Send {
    /// The connection broke, and the client may not have the response.
    fn handle_break(self: Box<Self>);
}

/// Tells a response without a stream of the break of its connection, unless it is confirmed.
struct PassedReceipt(Option<Box<dyn PassedResponse>>);

impl Drop for PassedReceipt {
    fn drop(&mut self) {
        if let Some(passed) = self.0.take() {
            passed.handle_break();
        }
    }
}

/// End of a response.
enum Waiting {
    Response(Receipt),
    Interim(InterimReceipt),
    Passed(PassedReceipt),
}

impl Waiting {
    fn confirm(self, delivery: DeliveryCertainty) {
        match self {
            Self::Response(receipt) => receipt.confirm(delivery),
            Self::Interim(mut receipt) => receipt.has_arrived = true,
            Self::Passed(mut receipt) => receipt.0 = None,
        }
    }

    /// Returns true if replicas share the store, behind a load balancer, or if a token opens the
    /// response until its delivery is proven.
    fn is_shared(&self) -> bool {
        match self {
            Self::Response(receipt) => {
                let is_sliced = receipt.stream.as_ref().is_some_and(|stream| stream.slices().is_some());
                is_sliced || receipt.log.coordination().is_some()
            }
            Self::Interim(_) | Self::Passed(_) => false,
        }
    }

    /// Returns true if the response was for `caller`, in the same session.
    fn is_of(&self, caller: &Binding) -> bool {
        let stream = match self {
            Self::Response(receipt) => receipt.stream.as_ref(),
            Self::Interim(receipt) => Some(&receipt.stream),
            // It waits on connections of one caller alone.
            Self::Passed(_) => None,
        };
        stream.is_some_and(|stream| {
            let binding = stream.binding();
            binding.principal == caller.principal && binding.session == caller.session
        })
    }

    /// Returns the stream whose last message the response carried.
    fn response_of(&self) -> Option<StreamId> {
        match self {
            Self::Response(receipt) => receipt.stream.as_ref().map(|stream| stream.id()),
            Self::Interim(_) | Self::Passed(_) => None,
        }
    }
}

/// Notes the delivery of an interim result in its stream. If it is dropped with its connection,
/// unconfirmed, the result may never have arrived.
struct InterimReceipt {
    stream: Arc<Stream>,
    attach: AttachId,
    has_arrived: bool,
}

impl Drop for InterimReceipt {
    fn drop(&mut self) {
        self.stream.delivery().handle_interim_settled(self.attach, self.has_arrived);
    }
}

/// Promise that a stream's response is not released before it arrived. Dropped unconfirmed, it
/// leaves the response for a retry until retention ends.
pub struct Receipt {
    log: Arc<EventLog>,
    /// Present until the receipt is confirmed or dropped.
    stream: Option<Arc<Stream>>,
    /// The connection's attachment, once it was given the whole response.
    settling: Option<AttachId>,
    /// Request of the call, if its client may send it again on a new connection.
    repeatable: Option<Repeatable>,
}

impl Receipt {
    /// Creates the receipt of the response of `stream`.
    pub fn new(log: Arc<EventLog>, stream: Arc<Stream>) -> Self {
        Self { log, stream: Some(stream), settling: None, repeatable: None }
    }

    /// Adds the request of the call, if its client may send it again on a new connection.
    pub(super) fn of_request(mut self, repeatable: Option<Repeatable>) -> Self {
        self.repeatable = repeatable;
        self
    }

    fn confirm(mut self, delivery: DeliveryCertainty) {
        if let Some(stream) = self.stream.take() {
            self.log.retention().note_delivered(stream, delivery);
        }
    }

    /// Returns true if the response goes by GET once its connection breaks.
    fn may_go_by_get(&self) -> bool {
        let by_get = self.stream.as_ref().and_then(|stream| stream.by_get());
        by_get.is_some_and(|by_get| by_get.turn() != GetTurn::Over)
    }

    fn close_gracefully(&self) {
        if let Some(stream) = &self.stream {
            stream.delivery().handle_graceful_close();
            self.log.retention().note_handle_delivered(stream);
        }
    }

    /// Notes that the connection of `attachment` was given the whole response: from here on the
    /// connection decides.
    pub(super) fn ended(mut self, attachment: &Attachment, receipts: &Receipts) {
        // On HTTP/2 the end of a connection shows nothing of one response.
        let may_break = !receipts.lock().is_multiplexed;
        self.settling = may_break.then(|| attachment.id());
        // The call may have ended, and its request no longer counts for its caller.
        self.repeatable = self.repeatable.take().filter(Repeatable::is_small);
        attachment.stream().delivery().handle_whole(attachment.id(), may_break);
        let may_go_by_get = may_break && self.may_go_by_get() && !receipts.lock().is_of_proxy;
        let settled = if may_go_by_get { SETTLED_BY_GET } else { SETTLED };
        receipts.wait_for(Waiting::Response(self), settled);
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        if let Some(attach) = self.settling {
            stream.delivery().handle_broken(attach);
        }
        if stream.retries().has_unclaimed_response() {
            self.log.retention().retain(&stream);
        }
        if let Some(repeatable) = self.repeatable.take() {
            repetition::expect(&self.log, &stream, &repeatable);
        }
        by_get::watch(&self.log, &stream);
        // The connection may be the last user of an ended call.
        self.log.retention().release(stream);
    }
}

/// Body of a response that is kept for a retry until it has arrived.
pub struct KeptResponseBody {
    bytes: Option<Bytes>,
    /// Further bodies, the last first.
    behind: Vec<Bytes>,
    piece: usize,
    /// True for a body that is written in copies of its pieces: a slice of it that hyper still has
    /// would keep the whole.
    is_large: bool,
    // Dropped in this order: a stream is detached before its receipt checks if the response was
    // claimed.
    attachment: Option<Attachment>,
    receipt: Option<Receipt>,
    receipts: Arc<Receipts>,
}

impl KeptResponseBody {
    /// Creates the body `bytes` of the stream that `attachment` reads.
    pub fn new(bytes: Bytes, attachment: Attachment, receipt: Receipt, receipts: Arc<Receipts>) -> Self {
        receipts.begin_reading(&attachment);
        let piece = receipts.piece();
        let is_large = bytes.len() > piece;
        let (attachment, receipt) = (Some(attachment), Some(receipt));
        Self { bytes: Some(bytes), behind: Vec::new(), piece, is_large, attachment, receipt, receipts }
    }

    /// Appends `pieces` to the body.
    pub fn followed_by(mut self, mut pieces: Vec<Bytes>) -> Self {
        self.is_large |= pieces.iter().any(|behind| behind.len() > self.piece);
        pieces.reverse();
        self.behind = pieces;
        self
    }
}

impl Body for KeptResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let most = self.piece;
        let Some(bytes) = &mut self.bytes else { return Poll::Ready(None) };
        let piece = bytes.split_to(bytes.len().min(most));
        if bytes.is_empty() {
            self.bytes = self.behind.pop();
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
        SizeHint::with_exact(self.bytes.iter().chain(&self.behind).map(Bytes::len).sum::<usize>() as u64)
    }
}

impl Drop for KeptResponseBody {
    fn drop(&mut self) {
        let Some(attachment) = self.attachment.take() else { return };
        self.receipts.end_reading(attachment.id());
        if self.bytes.is_none()
            && let Some(receipt) = self.receipt.take()
        {
            receipt.ended(&attachment, &self.receipts);
        }
    }
}
