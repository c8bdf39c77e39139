//! What is left of a call once its answer is proven to have arrived.
//!
//! Owned here: the stub, which takes the stream's place in the map, and the way back. A stub has who the stream belongs to, where and how
//! it ended, and for `delivered_retention` its call's name and its last response with what follows that. A client that comes back for those
//! events gets the stream again, without the events before. Invariants: a stub counts by its bytes alone, so that it refuses nothing; it is
//! the first to go when room is needed; without its call's name and its response it is shorter than 512 bytes. Absent: what proves a
//! delivery (delivery), and what more of a stream may be asked for than a stub has (`stream/shortened.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::EventLog;
use crate::event_log::identity::ownership::Binding;
use crate::event_log::quota::{Holding, Share};
use crate::event_log::stream::Stream;
use crate::event_log::stream::summary::Summary;
use crate::event_log::sweeper::Verdict;
use crate::protocol::call_name::CallName;
use crate::protocol::headers::Era;
use crate::protocol::ids::{Owner, Secret, Seq, StoreEpoch, StreamId, StreamKind};
use crate::protocol::stream::{Outcome, Phase, Snapshot};
use crate::simulation::{self, Bug};
use crate::store::memory::Tail;

/// What a stub takes without its answer, at most: itself, its session's name, and its places in the map, in its share's row and at the
/// sweeper.
const STUB_COST: usize = 512;

/// The short form of a stream that is over.
#[derive(Debug)]
pub(in crate::event_log) struct Stub {
    pub(in crate::event_log) id: StreamId,
    pub(in crate::event_log) holding: Holding,
    /// Its place in the row of its share.
    pub(in crate::event_log) proven_at: Instant,
    pub(in crate::event_log) binding: Binding,
    pub(in crate::event_log) origin: (Owner, StoreEpoch),
    pub(in crate::event_log) batch: bool,
    pub(in crate::event_log) era: Era,
    pub(in crate::event_log) connections: u32,
    pub(in crate::event_log) pauses: bool,
    pub(in crate::event_log) outcome: Outcome,
    pub(in crate::event_log) tail: Seq,
    pub(in crate::event_log) created: Instant,
    pub(in crate::event_log) sealed_at: Instant,
    pub(in crate::event_log) left_at: Instant,
    pub(in crate::event_log) retention: Duration,
    /// Boxed, because it goes long before the stub does.
    pub(in crate::event_log) answer: Option<Box<Kept>>,
}

/// What a stub keeps for a while.
#[derive(Debug)]
pub(in crate::event_log) struct Kept {
    pub(in crate::event_log) name: Option<Arc<CallName>>,
    pub(in crate::event_log) snapshot: Snapshot,
    pub(in crate::event_log) secret: Option<Secret>,
    /// The last response and what follows it.
    pub(in crate::event_log) tail: Tail,
}

impl Kept {
    fn byte_len(&self) -> usize {
        let name = self.name.as_ref().map_or(0, |name| size_of::<CallName>() + name.byte_len());
        size_of::<Self>() + name + self.tail.byte_len()
    }
}

impl Stub {
    /// Counts it. [`Room::replace`](crate::event_log::writer::eviction::Room::replace) puts it in the row of those that go first.
    pub(in crate::event_log) fn enter(mut self) -> Box<Self> {
        self.count();
        self.share().whole().metrics.observe_stream();
        Box::new(self)
    }

    pub(in crate::event_log) fn share(&self) -> &Arc<Share> {
        self.holding.share()
    }

    fn count(&mut self) {
        self.holding.set(STUB_COST + self.answer.as_ref().map_or(0, |kept| kept.byte_len()));
    }

    /// Whether it has all that a client lacks which has everything up to `cursor`.
    pub(in crate::event_log) fn has_after(&self, cursor: Seq) -> bool {
        let from = self.answer.as_ref().map_or(self.tail, |kept| kept.tail.trimmed());
        from <= cursor && cursor <= self.tail
    }

    fn readable_until(&self) -> Instant {
        self.sealed_at.max(self.left_at) + self.retention
    }

    /// Drops the answer if its time is over; whether it did.
    fn drop_answer(&mut self, now: Instant) -> bool {
        let is_due = now >= self.proven_at + self.share().whole().allowance.delivered_retention;
        let drops = is_due && self.answer.take().is_some();
        self.count();
        drops
    }

    /// What an operator may see of it.
    pub(in crate::event_log) fn summary(&self, now: Instant) -> Summary {
        Summary {
            id: self.id,
            kind: StreamKind::Request,
            era: self.era,
            name: self.answer.as_ref().and_then(|kept| kept.name.clone()),
            connections: self.connections,
            failure: None,
            phase: Phase::Sealed { outcome: self.outcome, at: self.sealed_at },
            is_answered: self.outcome != Outcome::Cancelled,
            awaits_input: false,
            is_attached: false,
            age: now.saturating_duration_since(self.created),
            reader_for: now.saturating_duration_since(self.left_at),
            events: self.tail.0,
            kept_events: self.answer.as_ref().map_or(0, |kept| kept.tail.len()),
            kept_bytes: self.answer.as_ref().map_or(0, |kept| kept.tail.byte_len()),
        }
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.share().forget_proven(self.proven_at, self.id);
        self.share().whole().metrics.observe_stream_end();
    }
}

/// A stream that can be found, whole or as a stub.
#[derive(Debug)]
pub(in crate::event_log) enum Known {
    Stream(Arc<Stream>),
    Stub(Box<Stub>),
}

impl Known {
    pub(in crate::event_log) fn stream(&self) -> Option<&Arc<Stream>> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Stub(_) => None,
        }
    }

    pub(in crate::event_log) fn is(&self, stream: &Arc<Stream>) -> bool {
        self.stream().is_some_and(|known| Arc::ptr_eq(known, stream))
    }

    pub(in crate::event_log) fn binding(&self) -> &Binding {
        match self {
            Self::Stream(stream) => stream.binding(),
            Self::Stub(stub) => &stub.binding,
        }
    }

    pub(in crate::event_log) fn summary(&self, now: Instant) -> Summary {
        match self {
            Self::Stream(stream) => stream.summary(now),
            Self::Stub(stub) => stub.summary(now),
        }
    }
}

impl EventLog {
    /// Puts a stub in the place of a stream that is over and proven to have arrived, where that has all that may be asked for.
    pub(in crate::event_log) fn shorten(&self, stream: &Arc<Stream>) {
        if !stream.is_proven() || !self.room.has(stream) {
            return;
        }
        let now = clock::now();
        if let Some(stub) = stream.to_stub(now)
            && self.room.replace(stream, stub.enter())
        {
            // What has arrived is no call to come back to.
            stream.forget_retries();
            self.sweeper.schedule(now + self.room.shares.whole().allowance.delivered_retention, stream.id());
        }
    }

    /// The stream of that name, from its stub where it has one. A stub without an answer stays, because its stream has no events to be read:
    /// its retention begins anew.
    pub(in crate::event_log) fn whole(&self, id: StreamId) -> Option<Arc<Stream>> {
        let now = clock::now();
        let mut known = self.room.streams.get_mut(&id)?;
        let stub = match known.value_mut() {
            Known::Stream(stream) => return Some(stream.clone()),
            Known::Stub(stub) => stub,
        };
        stub.left_at = now;
        let answer = stub.answer.take();
        let has_answer = answer.is_some();
        let stream =
            Arc::new(Stream::from_stub(stub, answer, self.identity.clone(), self.bounds, self.backing.clone()));
        stream.publish_first();
        if has_answer {
            let stub = std::mem::replace(known.value_mut(), Known::Stream(stream.clone()));
            drop(known);
            drop(stub);
            stream.note_delivered(crate::event_log::stream::delivery::Delivery::Proven);
            self.sweeper.schedule(now + self.room.shares.whole().allowance.delivered_retention, id);
        }
        Some(stream)
    }

    /// What becomes now of a stub whose time may have come; `None` where there is none of that name.
    pub(in crate::event_log) fn judge_stub(&self, id: StreamId, now: Instant) -> Option<Verdict> {
        let mut known = self.room.streams.get_mut(&id)?;
        let Known::Stub(stub) = known.value_mut() else { return None };
        let until = stub.readable_until();
        if until <= now || simulation::has(Bug::ForgetsTheLastReader) {
            drop(known);
            drop(self.room.streams.remove_if(&id, |_, known| known.stream().is_none()));
            return Some(Verdict::Gone);
        }
        // Its end is waited for since it was sealed.
        let is_early = stub.drop_answer(now);
        drop(known);
        if !is_early {
            self.keep_for(id, Some(until), now);
        }
        Some(if is_early { Verdict::Gone } else { Verdict::Until(Some(until)) })
    }
}
