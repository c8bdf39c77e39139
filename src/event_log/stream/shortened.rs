//! A stream as its stub has it: what may be left out, and how it comes back.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::event_log::Identity;
use crate::event_log::stream::delivery::Delivered;
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::state::{Bounds, Inner};
use crate::event_log::stream::stub::{Kept, Stub};
use crate::event_log::stream::{Spec, Stream};
use crate::event_log::writer::recorder::Backing;
use crate::protocol::ids::{Seq, StreamKind};
use crate::protocol::stream::{Machine, Phase, Policy};
use crate::store::memory::Tail;

impl Stream {
    /// The stub that may take its place; `None` while it runs or is read, and where more of it may be asked for than a stub has: by an
    /// `Idempotency-Key`, by a second answer to a question of the server, by the call of a slice. Its last response goes there if it is
    /// large, and is copied otherwise.
    pub(in crate::event_log) fn to_stub(&self, now: Instant) -> Option<Stub> {
        let inner = &mut *self.lock();
        let Phase::Sealed { outcome, at } = inner.machine.phase() else { return None };
        if !inner.is_spent() || self.slices.is_some() || self.adopted_after().is_some() {
            return None;
        }
        let snapshot = inner.machine.snapshot();
        let response = inner.machine.debts().last_response();
        let tail = inner.machine.tail();
        let kept = inner.tail.cut_after(response.map_or(tail, |response| Seq(response.0.saturating_sub(1))));
        inner.machine.handle_trimmed(inner.tail.trimmed());
        let policy = inner.machine.policy();
        let (name, secret) = (self.name.get().cloned(), self.secret().cloned());
        let answer = (!kept.is_empty()).then(|| Box::new(Kept { name, snapshot, secret, tail: kept }));
        Some(Stub {
            id: self.id,
            holding: self.share.hold(0),
            proven_at: now,
            binding: self.binding.clone(),
            origin: self.origin,
            batch: self.batch,
            era: policy.era,
            connections: inner.machine.reader().connections(),
            pauses: policy.pauses,
            outcome,
            tail,
            created: self.created,
            sealed_at: at,
            left_at: inner.machine.reader().since(),
            retention: policy.retention,
            answer,
        })
    }

    /// The stream that has so been shortened, with `answer` where that is still there.
    pub(in crate::event_log) fn from_stub(
        stub: &Stub,
        answer: Option<Box<Kept>>,
        identity: Arc<Identity>,
        bounds: Bounds,
        backing: Option<Arc<Backing>>,
    ) -> Self {
        let policy = Policy::of_ended(stub.era, stub.retention, stub.pauses);
        let spec = Spec {
            policy: policy.clone(),
            binding: stub.binding.clone(),
            ids: Vec::new(),
            batch: stub.batch,
            polls: false,
            body: None,
            slicing: None,
        };
        let is_stored = backing.is_some();
        let part = stub.share().take_part(0);
        let mut stream = Self::new(stub.id, identity, bounds, backing, spec, part, stub.created);
        stream.origin = stub.origin;
        let (snapshot, tail) = match answer.map(|answer| *answer) {
            Some(Kept { name, snapshot, secret, tail }) => {
                if let Some(name) = name {
                    let _ = stream.name.set(name);
                }
                secret.into_iter().for_each(|secret| drop(stream.secret.set(secret)));
                (Some(snapshot), tail)
            }
            None => (None, Tail::starting_at(stub.tail)),
        };
        let end = (stub.outcome, stub.sealed_at);
        let inner = stream.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        *inner.machine =
            Machine::ended(policy, snapshot, end, (stub.left_at, stub.connections), (stub.tail, tail.trimmed()));
        inner.part.forget_request(tail.byte_len());
        inner.tail = tail;
        inner.head = Head::Committed;
        inner.delivered = Delivered::proven();
        // Nothing more of it goes into the store.
        inner.is_mirror = is_stored;
        stream.note_sent();
        stream
    }
}

impl Inner {
    /// Whether nobody reads the stream, and nobody is to come for what precedes its last response.
    fn is_spent(&self) -> bool {
        let machine = &self.machine;
        let is_call = machine.policy().kind == StreamKind::Request && !machine.policy().keyed;
        // What the store is still to get is brought there from here.
        let is_stored = self.recorded.as_ref().is_none_or(|recorded| recorded.is_sealed);
        let is_here = !self.moved && !self.is_mirror && is_stored;
        let is_quiet = !machine.reader().is_attached() && machine.asks().is_empty();
        self.delivered.is_proven() && is_call && is_here && is_quiet
    }
}
