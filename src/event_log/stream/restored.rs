//! Streams from the store: written by an earlier process, or by another replica while they are read
//! here.

use std::sync::Arc;
use std::time::Instant;

use crate::clock;
use crate::event_log::backing::StoreProgress;
use crate::event_log::backing::schema::{About, State};
use crate::event_log::quota::StreamReservation;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::stream::progress::CallProgress;
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::{Spec, Stream};
use crate::otel::CallSpan;
use crate::protocol::ids::{Seq, StreamId};
use crate::protocol::stream::Machine;
use crate::protocol::tail::Tail;
use crate::store::{Stored, WriterEpoch};

/// Records of a stream from the store.
pub(in crate::event_log) struct Restored {
    pub(in crate::event_log) id: StreamId,
    pub(in crate::event_log) about: About,
    pub(in crate::event_log) state: Option<State>,
    pub(in crate::event_log) epoch: WriterEpoch,
    /// Last event that is not kept here.
    pub(in crate::event_log) tail: Seq,
    pub(in crate::event_log) store_progress: StoreProgress,
    pub(in crate::event_log) span: Option<Arc<CallSpan>>,
}

impl Stream {
    /// Rebuilds the stream of the records, without events.
    pub(in crate::event_log) fn restored(
        restored: Restored,
        context: &StreamContext,
        reservation: StreamReservation,
        now: Instant,
    ) -> Self {
        let Restored { id, about, state, epoch, tail, store_progress, span } = restored;
        let spec = Spec {
            policy: about.policy.clone(),
            binding: about.binding,
            ids: Vec::new(),
            is_batch: about.batch,
            should_poll: about.polls,
            body_fingerprint: about.body,
            slicing: about.slicing,
            get_calls: None,
            span,
        };
        let mut stream = Self::new(id, context, spec, reservation, now);
        stream.origin.made_by = (about.owner, about.epoch);
        let (machine, slices, secret) = match state {
            Some(State { machine, slices, secret, adopted_after }) => {
                if let Some(after) = adopted_after {
                    stream.replica().set_adopted(after);
                }
                (Some(machine), slices, secret)
            }
            None => (None, Vec::new(), None),
        };
        let _ = stream.progress.set(about.progress.map(|record| Box::new(CallProgress::restore(record))));
        if let Some(secret) = about.secret.or(secret) {
            let _ = stream.origin.secret.set(secret);
        }
        {
            let inner = stream.shared.inner.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            *inner.machine = Machine::restore(about.policy, about.ids, machine, tail, tail, now);
            inner.reservation.set_server_requests(inner.machine.server_requests().byte_len());
            inner.tail = Tail::starting_at(tail);
            inner.tail.set_epoch(epoch);
            inner.epoch = epoch;
            inner.head = Head::Committed;
            inner.store_progress = Some(Box::new(store_progress));
            inner.is_restored = true;
        }
        // The request was sent upstream long ago.
        stream.upstream.set_sent();
        if stream.slices.is_some() {
            stream.begin_first_slice();
            for names in slices {
                stream.begin_slice(names);
            }
        }
        let digest = stream.with_machine(|machine| stream.digest_of(machine));
        stream.shared.with_store_progress(|store_progress| store_progress.digest = digest);
        stream
    }

    /// Applies the state, and the end, that another replica wrote.
    pub(in crate::event_log) fn apply_remote_state(&self, state: Option<State>, stored: &Stored) {
        let mut inner = self.shared.lock();
        inner.epoch = stored.epoch;
        let tail = inner.tail.last();
        let (machine, slices) = state.map(|state| (state.machine, state.slices)).unzip();
        inner.machine.handle_remote_progress(machine, tail, Seq(0));
        let requests = inner.machine.server_requests().byte_len();
        inner.reservation.set_server_requests(requests);
        if stored.sealed {
            inner.machine.lifecycle_mut().handle_remote_seal(clock::now());
        }
        // A server request may be settled now, or the last response have arrived.
        self.shared.publish(inner, true);
        let known = self.slices.as_ref().map(|known| known.later()).unwrap_or_default();
        for names in slices.unwrap_or_default() {
            if !known.contains(&names) {
                self.begin_slice(names);
            }
        }
    }
}
