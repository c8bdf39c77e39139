//! Staging: the events and records of a stream that go to the store, and the batches that return
//! from it.
//!
//! An event passes here twice: [`Stream::stage`] takes it out of the machine, and
//! [`Stream::accept`] puts it into the tail once the recorder has persisted it. Absent: the write
//! in between (`writer/recorder.rs`).

use crate::clock;
use crate::event_log::backing::schema::{About, State, StateDigest};
use crate::event_log::backing::{Persisted, Staged, StagedState};
use crate::event_log::stream::progress::CallProgress;
use crate::event_log::stream::state::Inner;
use crate::event_log::stream::{Advanced, Stream};
use crate::protocol::ids::Seq;
use crate::protocol::stream::{Batch, Machine, Phase, Snapshot, SnapshotDigest};

impl Stream {
    /// Returns the description for the stream's record.
    pub(in crate::event_log) fn about(&self) -> About {
        let (policy, ids) =
            self.with_machine(|machine| (machine.policy().clone(), machine.owed_responses().ids().cloned().collect()));
        let (owner, epoch) = self.origin.made_by;
        // A call that has ended writes no progress any more.
        let is_running = self.with_machine(|machine| machine.lifecycle().ending().is_none());
        let progress = if is_running { self.progress().map(CallProgress::record) } else { None };
        let is_shared = self.backing.as_ref().is_some_and(|backing| backing.coordination.is_some());
        let call = if is_running && !is_shared { self.retries().unkeyed_call() } else { None };
        About {
            owner,
            epoch,
            policy,
            binding: self.binding.clone(),
            ids,
            batch: self.shared.is_batch,
            polls: self.should_poll,
            body: self.retries().body_fingerprint(),
            slicing: self.slices().map(|slices| slices.slicing.clone()),
            secret: self.handles().secret().cloned(),
            progress,
            trace: self.trace.span().map(|span| span.record(self.trace.name())),
            call: call.map(|call| call.to_wire()),
        }
    }

    /// Returns the state for the stream's record.
    pub(in crate::event_log) fn state_of(&self, machine: &Machine) -> State {
        let slices = self.slices.as_ref().map(|slices| slices.later()).unwrap_or_default();
        let adopted_after = self.adopted_after.get().copied();
        State { machine: Snapshot::of(machine), slices, secret: self.handles().secret().cloned(), adopted_after }
    }

    pub(in crate::event_log) fn digest_of(&self, machine: &Machine) -> StateDigest {
        let slices = self.slices.as_ref().map_or(0, |slices| slices.begun());
        StateDigest { machine: SnapshotDigest::of(machine), slices, has_secret: self.handles().secret().is_some() }
    }

    /// Returns the batch to write to the store, or `None`.
    pub(in crate::event_log) fn stage(&self, inner: &mut Inner) -> Option<Staged> {
        let batch = inner.machine.lifecycle_mut().poll_batch();
        if let Some(batch) = &batch {
            inner.reservation.set_staged(batch.byte_len());
        }
        let has_begun = matches!(inner.machine.lifecycle().phase(), Phase::Open | Phase::Sealed { .. });
        let store_progress = inner.store_progress.as_ref()?;
        if batch.is_none() && !(has_begun && store_progress.is_created) {
            // A new stream gets a record even before its first event.
            let begins = inner.machine.lifecycle().phase() == Phase::Open
                && !store_progress.is_created
                && !store_progress.is_behind;
            return if begins { Some(Staged::default()) } else { None };
        }
        let digest = self.digest_of(&inner.machine);
        let state = if digest == store_progress.digest {
            None
        } else {
            Some(StagedState { digest, encoded: self.state_of(&inner.machine).encode() })
        };
        let is_sealed = inner.machine.lifecycle().is_sealed();
        match (batch, state) {
            (None, None) => None,
            // The seal writes a state of its own, and while memory stands in for the store no state
            // is needed.
            (None, Some(_)) if is_sealed || store_progress.is_behind || store_progress.is_memory_only => None,
            (batch, state) => {
                let batch = batch.unwrap_or_else(|| Batch::starting_at(Seq(inner.machine.numbering().tail().0 + 1)));
                Some(Staged { batch, state })
            }
        }
    }

    /// Accepts a persisted batch: its events may be read. Returns the next batch to persist.
    pub(in crate::event_log) fn accept(&self, persisted: Persisted) -> Advanced<()> {
        let has_events = !persisted.batch.is_empty();
        let mut inner = self.shared.lock();
        if has_events {
            inner.accept(persisted.batch, self.shared.bounds, clock::now());
        }
        let staged = self.stage(&mut inner);
        let needs_eviction = inner.needs_eviction();
        self.shared.publish(inner, has_events);
        Advanced { result: (), staged, needs_eviction }
    }

    /// Leaves the stream to another writer: its readers end, to find it there. Returns false if
    /// that was known.
    pub(in crate::event_log) fn leave(&self) -> bool {
        let mut inner = self.shared.lock();
        let is_news = !std::mem::replace(&mut inner.has_moved, true);
        inner.machine.lifecycle_mut().handle_refused(clock::now());
        inner.reservation.set_staged(0);
        inner.wake();
        self.shared.publish(inner, false);
        self.retries().leave_claims();
        is_news
    }
}
