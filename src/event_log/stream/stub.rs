//! Stub: the short form of a call that has ended and that no task uses.
//!
//! Owned here: the stub, which replaces the stream in the table, and the way back. A stub has the
//! owner of the stream and its end. Until the delivery is proven it keeps all else that a client
//! may request: the events, the name of the call, its entries of the retry index. With the proof it
//! shrinks to the last response and all that follows, and `delivered_retention` later to the end
//! alone. A client that returns gets the stream again. Invariants: only the last user of a stream
//! makes its stub, and owns the stream while it does, so that no reader or writer of the stream
//! exists beside the stub; a stub counts by its bytes alone, so that it refuses no call. Absent:
//! the proof of a delivery (`delivery_certainty`), and the replacement (`writer/stream_table.rs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Instant;

use bytes::Bytes;
use http::StatusCode;

use crate::event_log::backing::StoreProgress;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::quota::{EvictionQueue, Quota, Reservation};
use crate::event_log::retry_index::Registration;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::stream::delivery_certainty::{Delivered, DeliveryCertainty};
use crate::event_log::stream::finished_call::FinishedCall;
use crate::event_log::stream::partial_results::Slices;
use crate::event_log::stream::response_head::{Head, Plain};
use crate::event_log::stream::state::Inner;
use crate::event_log::stream::summary::Summary;
use crate::event_log::stream::{Spec, Stream};
use crate::identity::Binding;
use crate::otel::CallSpan;
use crate::protocol::call_name::CallName;
use crate::protocol::error::Failure;
use crate::protocol::headers::Lines;
use crate::protocol::ids::{Owner, Secret, Seq, SessionGeneration, StoreEpoch, StreamId, StreamKind};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{End, Machine, Outcome, Phase, Policy, Rest};
use crate::protocol::tail::{COPIED_MAX, PackedTail, Tail};
use crate::store::WriterEpoch;

/// Upper bound of the cost of a stub that has nothing but the end: itself, the session's id, and
/// its entries in the table, in the quota and at the sweeper.
const STUB_COST: usize = 512;

/// Short form of a call that has ended.
#[derive(Debug)]
pub(in crate::event_log) struct Stub {
    id: StreamId,
    reservation: Reservation,
    /// Place in an eviction queue, or `None`.
    queued: Option<(EvictionQueue, Instant)>,
    pub(in crate::event_log) binding: Binding,
    origin: (Owner, StoreEpoch),
    created: Instant,
    pub(in crate::event_log) end: End,
    is_batch: bool,
    is_sent: bool,
    should_poll: bool,
    /// Everything else that a client may request, or `None` for the end alone. Boxed, because it is
    /// dropped long before the stub.
    kept: Option<Box<Kept>>,
}

/// Part of a stub that goes once its delivery is proven and `delivered_retention` is over.
#[derive(Debug)]
struct Kept {
    rest: Rest,
    events: PackedTail,
    delivered: Delivered,
    name: Option<Arc<CallName>>,
    /// Parts of few streams, or `None` if this one has no such part.
    rare: Option<Box<RareParts>>,
}

/// Parts that few ended streams have.
#[derive(Debug, Default)]
struct RareParts {
    /// Boxed, as all that few of these have.
    secret: Option<Box<Secret>>,
    registrations: Box<[Registration<Stream>]>,
    body_fingerprint: Option<Box<Fingerprint>>,
    /// Head for a retry, or `None` if it is the proxy's own.
    head: Option<ShortHead>,
    store_progress: Option<Box<StoreProgress>>,
    epoch: WriterEpoch,
    slices: Option<Box<Slices>>,
    finished_call: Option<Arc<FinishedCall>>,
    session_generation: SessionGeneration,
    span: Option<Arc<CallSpan>>,
}

/// Head of a response, in short.
#[derive(Debug)]
enum ShortHead {
    Failed(Failure),
    Stream(StatusCode, Lines),
    /// A complete response that passed through.
    Plain(Box<ShortPlain>),
}

/// Complete response that passed through, in short.
#[derive(Debug)]
struct ShortPlain {
    status: StatusCode,
    lines: Lines,
    body: Bytes,
}

impl Kept {
    fn byte_len(&self) -> usize {
        let name = self.name.as_ref().map_or(0, |name| size_of::<CallName>() + name.byte_len());
        let rare = self.rare.as_ref().map_or(0, |rare| rare.byte_len());
        size_of::<Self>() + name + rare + self.rest.byte_len() + self.events.byte_len()
    }
}

impl RareParts {
    fn is_empty(&self) -> bool {
        let Self {
            secret,
            registrations,
            body_fingerprint,
            head,
            store_progress,
            epoch: _,
            slices,
            finished_call,
            session_generation,
            span,
        } = self;
        secret.is_none()
            && registrations.is_empty()
            && body_fingerprint.is_none()
            && head.is_none()
            && store_progress.is_none()
            && slices.is_none()
            && finished_call.is_none()
            && *session_generation == SessionGeneration::default()
            && span.is_none()
    }

    fn byte_len(&self) -> usize {
        let head = match &self.head {
            Some(ShortHead::Stream(_, lines)) => lines.as_bytes().len(),
            Some(ShortHead::Plain(plain)) => size_of::<ShortPlain>() + plain.lines.as_bytes().len() + plain.body.len(),
            Some(ShortHead::Failed(_)) | None => 0,
        };
        let registrations: usize = self.registrations.iter().map(Registration::byte_len).sum();
        let body = self.body_fingerprint.as_ref().map_or(0, |_| size_of::<Fingerprint>());
        let store = self.store_progress.as_ref().map_or(0, |_| size_of::<StoreProgress>());
        let secret = self.secret.as_ref().map_or(0, |_| size_of::<Secret>());
        let slices = self.slices.as_ref().map_or(0, |slices| slices.byte_len());
        let finished_call = self.finished_call.as_ref().map_or(0, |_| FinishedCall::COST);
        let span = self.span.as_ref().map_or(0, |_| size_of::<CallSpan>());
        size_of::<Self>() + secret + head + registrations + body + store + slices + finished_call + span
    }
}

impl Stub {
    /// Returns the stub of a stream with this `end`, without what a client may still request.
    pub(in crate::event_log) fn of(stream: &Stream, end: End) -> Box<Self> {
        stream.shared.quota.global().metrics.observe_stream();
        Box::new(Self {
            id: stream.id(),
            reservation: stream.shared.quota.reserve(STUB_COST),
            queued: None,
            binding: stream.binding.clone(),
            origin: stream.origin.made_by,
            created: stream.created,
            end,
            is_batch: stream.shared.is_batch,
            is_sent: stream.upstream.is_sent(),
            should_poll: stream.should_poll,
            kept: None,
        })
    }

    fn quota(&self) -> &Arc<Quota> {
        self.reservation.quota()
    }

    fn count(&mut self) {
        self.reservation.set(STUB_COST + self.kept.as_ref().map_or(0, |kept| kept.byte_len()));
    }

    /// Moves the state of the stream here. The stream is of no use afterwards, and is dropped
    /// without the entry of the table. Returns the calls under which the retry index has it.
    pub(in crate::event_log) fn fill(&mut self, stream: &mut Stream, now: Instant) -> Vec<Fingerprint> {
        let registrations = std::mem::take(stream.registrations.get_mut().unwrap_or_else(PoisonError::into_inner));
        let inner = stream.shared.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Another user may have changed it until now.
        if let Some(end) = End::of(&inner.machine) {
            self.end = end;
        }
        self.queued = inner.queued.take();
        let is_retryable = !registrations.is_empty();
        let calls = registrations.iter().map(Registration::call).collect();
        let rare = RareParts {
            secret: stream.origin.secret.take().map(Box::new),
            registrations: registrations.into(),
            body_fingerprint: stream.body_fingerprint.take(),
            head: if is_retryable { ShortHead::of(&inner.head) } else { None },
            store_progress: inner.store_progress.take(),
            epoch: inner.epoch,
            slices: stream.slices.take().map(|mut slices| {
                slices.shrink_to_fit();
                slices
            }),
            finished_call: stream.finished_call.take(),
            session_generation: stream.upstream.session_generation(),
            span: stream.trace.span.take(),
        };
        self.kept = Some(Box::new(Kept {
            rest: Rest::take(&mut inner.machine),
            events: PackedTail::of(std::mem::take(&mut inner.tail)),
            delivered: inner.delivered,
            name: stream.trace.name.take(),
            rare: if rare.is_empty() { None } else { Some(Box::new(rare)) },
        }));
        if inner.delivered.is_proven() {
            // Dropped with the stream.
            *stream.registrations.get_mut().unwrap_or_else(PoisonError::into_inner) = self.shrink(now);
        }
        self.count();
        calls
    }

    /// Accepts the proof of the delivery. Returns the entries of the retry index, which are dropped
    /// without the entry of the table: no retry matches any more.
    pub(in crate::event_log) fn prove(&mut self, now: Instant) -> Vec<Registration<Stream>> {
        let until = now + self.quota().global().allowance.delivered_retention;
        let Some(kept) = &mut self.kept else { return Vec::new() };
        let was_proven = kept.delivered.is_proven();
        kept.delivered.record(DeliveryCertainty::Proven, until);
        self.end.is_delivered = true;
        if was_proven {
            return Vec::new();
        }
        let registrations = self.shrink(now);
        self.count();
        registrations
    }

    /// Drops what precedes the last response, if no client may request it. Returns the entries of
    /// the retry index.
    fn shrink(&mut self, now: Instant) -> Vec<Registration<Stream>> {
        let Some(kept) = &mut self.kept else { return Vec::new() };
        if self.end.has_idempotency_key || kept.rest.has_server_requests() {
            if self.queued.is_none_or(|(queue, _)| queue == EvictionQueue::Unconfirmed) {
                self.enqueue(EvictionQueue::Delivered, now);
            }
            return Vec::new();
        }
        let from = kept.rest.last_response().map_or(self.end.tail, |last| Seq(last.0.saturating_sub(1)));
        kept.trim(from);
        let registrations = kept.rare.as_mut().map(|rare| std::mem::take(&mut rare.registrations));
        if kept.events.is_empty() {
            self.kept = None;
        }
        self.enqueue(EvictionQueue::Proven, now);
        registrations.unwrap_or_default().into()
    }

    /// Trims the front down to about `keep` bytes.
    pub(in crate::event_log) fn trim_to(&mut self, keep: usize) {
        let Some(kept) = &mut self.kept else { return };
        let before = kept.rest.trimmed();
        let after = kept.events.trimmed_to(keep, kept.rest.written());
        kept.trim(after);
        let trimmed = kept.rest.trimmed().0 - before.0;
        self.count();
        self.quota().observe_trim(trimmed, false);
    }

    fn enqueue(&mut self, queue: EvictionQueue, at: Instant) {
        let before = self.queued.replace((queue, at));
        let queues = self.quota().evictable();
        if let Some(before) = before {
            queues.dequeue(before, self.id);
        }
        queues.enqueue((queue, at), self.id);
    }

    /// Returns true if the stub has this place in the eviction queues.
    pub(in crate::event_log) fn is_queued_at(&self, place: (EvictionQueue, Instant)) -> bool {
        self.queued == Some(place)
    }

    /// Returns true if the stub has every event after `cursor`.
    pub(in crate::event_log) fn has_after(&self, cursor: Seq) -> bool {
        let from = self.kept.as_ref().map_or(self.end.tail, |kept| kept.rest.trimmed());
        from <= cursor && cursor <= self.end.tail
    }

    /// Returns true if the delivery is proven, so that the last response goes before the end.
    pub(in crate::event_log) fn is_proven(&self) -> bool {
        self.queued.is_some_and(|(queue, _)| queue == EvictionQueue::Proven)
    }

    /// Returns true if a proof of the delivery leaves nothing to keep: the response passed through,
    /// and no key names the call.
    pub(in crate::event_log) fn ends_with_its_delivery(&self) -> bool {
        self.end.has_passed && !self.end.has_idempotency_key
    }

    /// Returns the end of retention; see [`Delivery::kept_until`].
    pub(in crate::event_log) fn kept_until(&self) -> Instant {
        let until = self.end.readable_until();
        let doubted_until = self.kept.as_ref().and_then(|kept| kept.delivered.doubted_until());
        match doubted_until {
            Some(doubted_until) if self.ends_with_its_delivery() => doubted_until.min(until),
            Some(_) | None => until,
        }
    }

    /// Returns true if a request of the server with one of these ids is remembered.
    pub(in crate::event_log) fn knows_request(&self, ids: &HashSet<&RequestId>) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.rest.knows_request(ids))
    }

    /// Returns the ids of the server's pending requests.
    pub(in crate::event_log) fn unanswered_requests(&self) -> Vec<RequestId> {
        self.kept.iter().flat_map(|kept| kept.rest.unanswered_requests()).cloned().collect()
    }

    /// Returns true if the stub has nothing but the end.
    pub(in crate::event_log) fn is_bare(&self) -> bool {
        self.kept.is_none()
    }

    /// Drops the last response if its time has passed. Returns true if it did.
    pub(in crate::event_log) fn drop_response(&mut self, now: Instant) -> bool {
        let Some((EvictionQueue::Proven, at)) = self.queued else { return false };
        let is_due = now >= at + self.quota().global().allowance.delivered_retention;
        let drops = is_due && self.kept.take().is_some();
        self.count();
        drops
    }

    /// Leaves the claims in the store when the stub is dropped: a key still finds the stream there.
    pub(in crate::event_log) fn leave_claims(&self) {
        let rare = self.kept.as_ref().and_then(|kept| kept.rare.as_ref());
        for claim in rare.iter().flat_map(|rare| &*rare.registrations).filter_map(Registration::claim) {
            claim.leave();
        }
    }

    /// Returns a summary for the operator.
    pub(in crate::event_log) fn summary(&self, now: Instant) -> Summary {
        let End { outcome, sealed_at, left_at, tail, connections, era, has_passed, .. } = self.end;
        let kept = self.kept.as_ref();
        Summary {
            id: self.id,
            kind: StreamKind::Request,
            era,
            name: kept.and_then(|kept| kept.name.clone()),
            connections,
            task: None,
            failure: kept.and_then(|kept| kept.rest.failure()).map(|failure| failure.code),
            phase: if has_passed { Phase::Passed } else { Phase::Sealed { outcome, at: sealed_at } },
            is_answered: outcome != Outcome::Cancelled && !has_passed,
            awaits_input: false,
            is_attached: false,
            age: now.saturating_duration_since(self.created),
            reader_for: now.saturating_duration_since(left_at),
            events: tail.0,
            kept_events: kept.map_or(0, |kept| kept.events.len()),
            kept_bytes: kept.map_or(0, |kept| kept.events.byte_len()),
        }
    }
}

impl Kept {
    fn trim(&mut self, upto: Seq) {
        let dropped = upto.0.saturating_sub(self.rest.trimmed().0);
        self.events.drop_first(usize::try_from(dropped).unwrap_or(usize::MAX));
        self.rest.handle_trimmed(upto);
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        if let Some(place) = self.queued {
            self.quota().evictable().dequeue(place, self.id);
        }
        self.quota().global().metrics.observe_stream_end();
    }
}

impl ShortHead {
    fn of(head: &Head) -> Option<Self> {
        match head {
            Head::Stream(status, headers) => Some(Self::Stream(*status, Lines::from(&**headers))),
            Head::Failed(failure) => Some(Self::Failed(*failure)),
            Head::Plain(plain) => {
                let body = plain.kept_body()?;
                // The buffer that was read into may be twice as large.
                let body = if body.len() < COPIED_MAX { Bytes::from(Box::<[u8]>::from(&**body)) } else { body.clone() };
                let (status, lines) = (plain.status, Lines::from(&plain.headers));
                Some(Self::Plain(Box::new(ShortPlain { status, lines, body })))
            }
            Head::Waiting | Head::Committed | Head::TakenOver => None,
        }
    }

    fn into_head(self) -> Head {
        match self {
            Self::Failed(failure) => Head::Failed(failure),
            Self::Stream(status, lines) => Head::Stream(status, Arc::new(lines.to_map())),
            Self::Plain(plain) => Head::Plain(Arc::new(Plain::kept(plain.status, plain.lines.to_map(), plain.body))),
        }
    }
}

impl Stub {
    /// Returns the end of a stream that its stub may replace, if no task uses it: the stream has
    /// ended, and is found by its id or as a retry alone. Removes it from the retry index if no
    /// retry can match any more.
    ///
    /// A search by session finds the stub by its [`FinishedCall`], and one by claim through the
    /// retry index.
    pub(in crate::event_log) fn end_of(stream: &Stream, now: Instant) -> Option<End> {
        // A call that has become a task leads to it.
        if stream.replica().adopted_after().is_some() || stream.task().is_some() {
            return None;
        }
        let inner = stream.shared.lock();
        let end = End::of(&inner.machine).filter(|_| inner.can_be_stub())?;
        let has_key = end.has_idempotency_key;
        let has_arrived = inner.machine.reader().is_delivered() && !inner.delivered.is_doubted(now);
        let is_beyond_retries = inner.machine.lifecycle().is_cancelled() || (has_arrived && !has_key);
        // The entries of the retry index are dropped without it.
        drop(inner);
        if is_beyond_retries {
            stream.retries().forget();
        }
        // Nothing will be read of a response that has passed and that no retry finds.
        if end.has_passed && !stream.retries().may_come() { None } else { Some(end) }
    }

    /// Rebuilds the stream, and moves the state there.
    pub(in crate::event_log) fn restore(&mut self, context: &StreamContext) -> Stream {
        let End { era, retention, tail, .. } = self.end;
        let is_shared = context.backing.as_ref().is_some_and(|backing| backing.coordination.is_some());
        let lacks_events = self.is_proven();
        let spec = Spec {
            // The machine of the stub has its own.
            policy: Policy::of_ended(era, retention, true),
            binding: self.binding.clone(),
            ids: Vec::new(),
            is_batch: self.is_batch,
            should_poll: self.should_poll,
            body_fingerprint: None,
            slicing: None,
            get_calls: None,
            span: None,
        };
        let reservation = self.quota().reserve_stream(0);
        let mut stream = Stream::new(self.id, context, spec, reservation, self.created);
        stream.origin.made_by = self.origin;
        if self.is_sent {
            stream.upstream.set_sent();
        }
        let inner = stream.shared.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.head = Head::Committed;
        // A shared store has more of such a stream, and gets nothing from here.
        inner.is_restored = is_shared && lacks_events;
        inner.tail = Tail::starting_at(tail);
        inner.delivered = Delivered::proven();
        let rest = self.kept.take().map(|kept| {
            let Kept { rest, events, delivered, name, rare } = *kept;
            stream.trace.name = name.map(Into::into).unwrap_or_default();
            inner.delivered = delivered;
            let rare = rare.map(|rare| *rare).unwrap_or_default();
            stream.origin.secret = rare.secret.map(|secret| (*secret).into()).unwrap_or_default();
            *stream.registrations.get_mut().unwrap_or_else(PoisonError::into_inner) = rare.registrations.into();
            stream.body_fingerprint = rare.body_fingerprint;
            stream.slices = rare.slices;
            stream.trace.span = rare.span;
            stream.finished_call = rare.finished_call.map(Into::into).unwrap_or_default();
            stream.upstream.set_session_generation(rare.session_generation);
            inner.head = rare.head.map_or(Head::Committed, ShortHead::into_head);
            inner.store_progress = rare.store_progress.or(inner.store_progress.take());
            inner.epoch = rare.epoch;
            inner.tail = events.unpack(tail, rare.epoch);
            rest
        });
        *inner.machine = Machine::ended(&self.end, rest);
        inner.reservation.forget_request(inner.tail.byte_len());
        inner.reservation.set_server_requests(inner.machine.server_requests().byte_len());
        let body = if let Head::Plain(plain) = &inner.head { plain.kept_body().map_or(0, Bytes::len) } else { 0 };
        inner.reservation.keep_beside(body + stream.slices.as_ref().map_or(0, |slices| slices.byte_len()));
        if !self.is_proven() {
            inner.queued = self.queued.take();
        }
        stream
    }
}

impl Stream {
    /// Returns the entry if the record of the stream's session is to have it before the stream,
    /// which has this `end`, becomes a stub; `None` if it has it already, or if no search by
    /// session needs the stub.
    pub(in crate::event_log) fn unlisted_call(&self, end: &End) -> Option<&Arc<FinishedCall>> {
        let is_searched =
            self.binding().session.is_some() && (end.has_server_requests || self.handles().secret().is_some());
        if !is_searched {
            return None;
        }
        let call = self.finished_call();
        if call.is_listed() { None } else { Some(call) }
    }
}

impl Inner {
    /// Returns true if a stub can have all that the stream has.
    fn can_be_stub(&self) -> bool {
        // Events that the store lacks are rewritten from here.
        let is_stored = match self.machine.lifecycle().phase() {
            // The store has no such stream.
            Phase::Passed => matches!(&self.head, Head::Plain(plain) if plain.kept_body().is_some()),
            Phase::Waiting | Phase::Open | Phase::Sealed { .. } => {
                self.store_progress.as_ref().is_none_or(|store_progress| store_progress.is_sealed)
            }
        };
        !self.has_moved && !self.is_restored && is_stored
    }
}
