//! Stub: the short form of a call with a proven delivery.
//!
//! Owned here: the stub, which replaces the stream in the table, and the way back. A stub has the owner of the stream
//! and its end, and for `delivered_retention` the name of the call and its last response with all that follows. A
//! client that resumes for those events gets the stream again, without the earlier events. Invariants: a stub counts
//! by its bytes alone, so that it refuses no call; it is evicted first; without name and response it is shorter than
//! 512 bytes. Absent: the proof of a delivery (`delivery_certainty`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event_log::backing::Backing;
use crate::event_log::identity::Identity;
use crate::event_log::identity::binding::Binding;
use crate::event_log::quota::{Quota, Reservation, TailLimits};
use crate::event_log::stream::delivery_certainty::Delivered;
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::state::Inner;
use crate::event_log::stream::summary::Summary;
use crate::event_log::stream::{Spec, Stream};
use crate::protocol::call_name::CallName;
use crate::protocol::headers::Era;
use crate::protocol::ids::{Owner, Secret, Seq, StoreEpoch, StreamId, StreamKind};
use crate::protocol::stream::Machine;
use crate::protocol::stream::Policy;
use crate::protocol::stream::{Outcome, Phase, Snapshot};
use crate::store::tail::Tail;
use std::sync::PoisonError;

/// Upper bound of a stub's cost without its response: itself, the session's id, and its entries in the table, in the
/// quota and at the sweeper.
const STUB_COST: usize = 512;

/// Short form of a finished stream.
#[derive(Debug)]
pub(in crate::event_log) struct Stub {
    pub(in crate::event_log) id: StreamId,
    pub(in crate::event_log) reservation: Reservation,
    /// Key in the quota's set of stubs.
    pub(in crate::event_log) proven_at: Instant,
    pub(in crate::event_log) binding: Binding,
    pub(in crate::event_log) origin: (Owner, StoreEpoch),
    pub(in crate::event_log) is_batch: bool,
    pub(in crate::event_log) era: Era,
    pub(in crate::event_log) connections: u32,
    pub(in crate::event_log) can_pause: bool,
    pub(in crate::event_log) outcome: Outcome,
    pub(in crate::event_log) tail: Seq,
    pub(in crate::event_log) created: Instant,
    pub(in crate::event_log) sealed_at: Instant,
    pub(in crate::event_log) left_at: Instant,
    pub(in crate::event_log) retention: Duration,
    /// Response, or `None` once its time is over. Boxed, because it is dropped long before the stub.
    pub(in crate::event_log) response: Option<Box<KeptResponse>>,
}

/// Temporary part of a stub.
#[derive(Debug)]
pub(in crate::event_log) struct KeptResponse {
    pub(in crate::event_log) name: Option<Arc<CallName>>,
    pub(in crate::event_log) snapshot: Snapshot,
    pub(in crate::event_log) secret: Option<Secret>,
    /// Last response, and all that follows.
    pub(in crate::event_log) tail: Tail,
}

impl KeptResponse {
    fn byte_len(&self) -> usize {
        let name = self.name.as_ref().map_or(0, |name| size_of::<CallName>() + name.byte_len());
        size_of::<Self>() + name + self.tail.byte_len()
    }
}

impl Stub {
    /// Counts the stub. [`StreamTable::replace`](crate::event_log::writer::stream_table::StreamTable::replace) adds it
    /// to the quota's set.
    pub(in crate::event_log) fn enter(mut self) -> Box<Self> {
        self.count();
        self.quota().global().metrics.observe_stream();
        Box::new(self)
    }

    pub(in crate::event_log) fn quota(&self) -> &Arc<Quota> {
        self.reservation.quota()
    }

    fn count(&mut self) {
        self.reservation.set(STUB_COST + self.response.as_ref().map_or(0, |kept| kept.byte_len()));
    }

    /// Returns whether the stub has every event after `cursor`.
    pub(in crate::event_log) fn has_after(&self, cursor: Seq) -> bool {
        let from = self.response.as_ref().map_or(self.tail, |kept| kept.tail.trimmed());
        from <= cursor && cursor <= self.tail
    }

    pub(in crate::event_log) fn readable_until(&self) -> Instant {
        self.sealed_at.max(self.left_at) + self.retention
    }

    /// Drops the response if its time is over. Returns whether it did.
    pub(in crate::event_log) fn drop_response(&mut self, now: Instant) -> bool {
        let is_due = now >= self.proven_at + self.quota().global().allowance.delivered_retention;
        let drops = is_due && self.response.take().is_some();
        self.count();
        drops
    }

    /// Returns a summary for the operator.
    pub(in crate::event_log) fn summary(&self, now: Instant) -> Summary {
        Summary {
            id: self.id,
            kind: StreamKind::Request,
            era: self.era,
            name: self.response.as_ref().and_then(|kept| kept.name.clone()),
            connections: self.connections,
            failure: None,
            phase: Phase::Sealed { outcome: self.outcome, at: self.sealed_at },
            is_answered: self.outcome != Outcome::Cancelled,
            awaits_input: false,
            is_attached: false,
            age: now.saturating_duration_since(self.created),
            reader_for: now.saturating_duration_since(self.left_at),
            events: self.tail.0,
            kept_events: self.response.as_ref().map_or(0, |kept| kept.tail.len()),
            kept_bytes: self.response.as_ref().map_or(0, |kept| kept.tail.byte_len()),
        }
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.quota().evictable().remove_stub(self.proven_at, self.id);
        self.quota().global().metrics.observe_stream_end();
    }
}

impl Stream {
    /// Builds the stub that may replace the stream. Returns `None` while it runs or has a reader, and if more may be
    /// asked for than a stub has: by an `Idempotency-Key`, a repeated client response, or a slice. A large last
    /// response is moved, a small one copied.
    pub(in crate::event_log) fn to_stub(&self, now: Instant) -> Option<Stub> {
        let inner = &mut *self.lock();
        let Phase::Sealed { outcome, at } = inner.machine.phase() else { return None };
        if !inner.is_spent() || self.slices.is_some() || self.adopted_after().is_some() {
            return None;
        }
        let snapshot = inner.machine.snapshot();
        let last_response = inner.machine.owed_responses().last_response();
        let tail = inner.machine.tail();
        let kept = inner.tail.cut_after(last_response.map_or(tail, |last| Seq(last.0.saturating_sub(1))));
        inner.machine.handle_trimmed(inner.tail.trimmed());
        let policy = inner.machine.policy();
        let (name, secret) = (self.name.get().cloned(), self.secret().cloned());
        let response =
            if kept.is_empty() { None } else { Some(Box::new(KeptResponse { name, snapshot, secret, tail: kept })) };
        Some(Stub {
            id: self.id,
            reservation: self.quota.reserve(0),
            proven_at: now,
            binding: self.binding.clone(),
            origin: self.origin,
            is_batch: self.is_batch,
            era: policy.era,
            connections: inner.machine.reader().connections(),
            can_pause: policy.can_pause,
            outcome,
            tail,
            created: self.created,
            sealed_at: at,
            left_at: inner.machine.reader().since(),
            retention: policy.retention,
            response,
        })
    }

    /// Rebuilds the stream of a stub, with its `response` if that is still there.
    pub(in crate::event_log) fn from_stub(
        stub: &Stub,
        response: Option<Box<KeptResponse>>,
        identity: Arc<Identity>,
        bounds: TailLimits,
        backing: Option<Arc<Backing>>,
    ) -> Self {
        let policy = Policy::of_ended(stub.era, stub.retention, stub.can_pause);
        let spec = Spec {
            policy: policy.clone(),
            binding: stub.binding.clone(),
            ids: Vec::new(),
            is_batch: stub.is_batch,
            should_poll: false,
            body_fingerprint: None,
            slicing: None,
        };
        let is_stored = backing.is_some();
        let reservation = stub.quota().reserve_stream(0);
        let mut stream = Self::new(stub.id, identity, bounds, backing, spec, reservation, stub.created);
        stream.origin = stub.origin;
        let (snapshot, tail) = match response.map(|response| *response) {
            Some(KeptResponse { name, snapshot, secret, tail }) => {
                if let Some(name) = name {
                    let _ = stream.name.set(name);
                }
                if let Some(secret) = secret {
                    let _ = stream.secret.set(secret);
                }
                (Some(snapshot), tail)
            }
            None => (None, Tail::starting_at(stub.tail)),
        };
        let end = (stub.outcome, stub.sealed_at);
        let inner = stream.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        *inner.machine =
            Machine::ended(policy, snapshot, end, (stub.left_at, stub.connections), (stub.tail, tail.trimmed()));
        inner.reservation.forget_request(tail.byte_len());
        inner.tail = tail;
        inner.head = Head::Committed;
        inner.delivered = Delivered::proven();
        // The store gets nothing more of the stream.
        inner.is_restored = is_stored;
        stream.note_sent();
        stream
    }
}

impl Inner {
    /// Returns whether the stream has no reader, and no client may ask for events before its last response.
    fn is_spent(&self) -> bool {
        let machine = &self.machine;
        let is_call = machine.policy().kind == StreamKind::Request && !machine.policy().has_idempotency_key;
        // Events that the store lacks are rewritten from here.
        let is_stored = self.store_progress.as_ref().is_none_or(|store_progress| store_progress.is_sealed);
        let is_here = !self.has_moved && !self.is_restored && is_stored;
        let is_quiet = !machine.reader().is_attached() && machine.server_requests().is_empty();
        self.delivered.is_proven() && is_call && is_here && is_quiet
    }
}
