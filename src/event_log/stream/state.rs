//! State under a stream's lock: the machine and the tail, which change together, the response head,
//! and the waiting tasks.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock;
use crate::event_log::backing::StoreProgress;
use crate::event_log::quota::{EvictionQueue, Quota, StreamReservation, TailLimits};
use crate::event_log::stream::delivery_certainty::Delivered;
use crate::event_log::stream::in_flight::Copied;
use crate::event_log::stream::progress::AskingRequests;
use crate::event_log::stream::response_head::Head;
use crate::protocol::headers::Lines;
use crate::protocol::ids::{AttachId, Seq, StreamId, StreamKind};
use crate::protocol::stream::{Batch, Machine, Phase};
use crate::protocol::tail::Tail;
use crate::simulation::{self, Bug};
use crate::store::{Appended, WriterEpoch};
use crate::sync;

/// State of a stream under its lock, with what changes of it need. Each part of the stream that
/// reads or changes the state has a reference.
pub(in crate::event_log) struct Shared {
    pub(in crate::event_log) id: StreamId,
    /// True if the requests came as an array.
    pub(in crate::event_log) is_batch: bool,
    pub(in crate::event_log) bounds: TailLimits,
    /// Quota of the stream's principal.
    pub(in crate::event_log) quota: Arc<Quota>,
    pub(in crate::event_log) inner: Mutex<Inner>,
    /// Wakes the pump after a change that it may have to act on.
    pub(in crate::event_log) pump: Notify,
}

impl Shared {
    pub(in crate::event_log) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock leaves the log consistent: every step is complete before anything
        // that can fail.
        sync::lock(&self.inner)
    }

    /// Reads the state machine.
    pub(in crate::event_log) fn with_machine<R>(&self, read: impl FnOnce(&Machine) -> R) -> R {
        read(&self.lock().machine)
    }

    /// Changes the state machine, and notifies the pump.
    pub(in crate::event_log) fn change<R>(&self, change: impl FnOnce(&mut Machine, Instant) -> R) -> R {
        let mut inner = self.lock();
        let result = change(&mut inner.machine, clock::now());
        self.notify_pump(inner);
        result
    }

    /// Notifies the pump after a change. Unlocks first, because the pump takes the lock.
    pub(in crate::event_log) fn notify_pump(&self, inner: MutexGuard<'_, Inner>) {
        drop(inner);
        self.pump.notify_one();
    }

    /// Settles the head, and wakes the reader after a change for it.
    pub(super) fn publish(&self, mut inner: MutexGuard<'_, Inner>, stored: bool) {
        let settled = inner.settle_head();
        let sealed = inner.machine.lifecycle().is_sealed();
        if sealed {
            inner.asking = None;
            let epoch = inner.epoch;
            inner.tail.seal(epoch);
            let events = inner.tail.byte_len();
            inner.reservation.forget_request(events);
        }
        inner.count_presence();
        if (stored && !simulation::has(Bug::LosesTheWakeUp)) || settled || sealed {
            inner.wake();
        }
    }

    /// Reads or changes the progress in the store. For streams with a store.
    pub(in crate::event_log) fn with_store_progress<R: Default>(&self, act: impl FnOnce(&mut StoreProgress) -> R) -> R {
        self.lock().store_progress.as_deref_mut().map(act).unwrap_or_default()
    }

    /// The reader was given the events up to `last`, which may free capacity.
    pub(super) fn handle_written(&self, inner: &mut Inner, last: Seq) {
        let was_full = inner.machine.lifecycle().is_paused();
        inner.machine.handle_written(last, clock::now());
        inner.settle_overrun();
        if was_full {
            inner.enforce_limits(self.bounds);
            self.pump.notify_one();
        }
    }

    /// Waits until the store has accepted or refused the event at `seq`, if that is in flight.
    pub(in crate::event_log) async fn stored(&self, seq: Seq) {
        self.wait_until(|inner| {
            let (numbering, lifecycle) = (inner.machine.numbering(), inner.machine.lifecycle());
            lifecycle.is_sealed() || seq <= numbering.tail() || numbering.last() < seq
        })
        .await;
    }

    /// Waits until the state fulfils `is_met`, without being the reader.
    pub(in crate::event_log) async fn wait_until(&self, is_met: impl Fn(&Inner) -> bool) {
        poll_fn(|cx| {
            let mut inner = self.lock();
            if is_met(&inner) {
                return Poll::Ready(());
            }
            inner.watch(cx);
            Poll::Pending
        })
        .await;
    }
}

#[derive(Debug)]
pub(in crate::event_log) struct Inner {
    /// Boxed, so that a stream stays small enough for fast allocation, and is not moved with it
    /// while it is made.
    pub(in crate::event_log) machine: Box<Machine>,
    pub(in crate::event_log) tail: Tail,
    pub(in crate::event_log) epoch: WriterEpoch,
    /// Progress in the store, or `None` if memory is the store.
    pub(in crate::event_log) store_progress: Option<Box<StoreProgress>>,
    /// True if the stream came from the store, and is written here only to end it.
    pub(in crate::event_log) is_restored: bool,
    /// True if a connection of another replica may be the reader.
    pub(in crate::event_log) has_remote_reader: bool,
    /// Connection that is to end after the stored events, and the pause before its client
    /// reconnects; `None` without one.
    pub(in crate::event_log) closing: Option<(AttachId, Duration)>,
    /// True if another writer has the stream: the state here is outdated, except what was read.
    pub(in crate::event_log) has_moved: bool,
    pub(in crate::event_log) head: Head,
    /// Reservation in the principal's quota.
    pub(in crate::event_log) reservation: StreamReservation,
    /// Requests of a running call that may want progress, until they are read, or `None`.
    pub(in crate::event_log) asking: Option<AskingRequests>,
    /// Headers of the next call of a task, or `None` for the headers that it has.
    pub(in crate::event_log) call_headers: Option<Box<Lines>>,
    /// True if the rest of an event waits for capacity.
    pub(in crate::event_log) is_held_up: bool,
    /// Certainty of the delivery of the last message.
    pub(in crate::event_log) delivered: Delivered,
    /// Place in an eviction queue, once the stream has ended, or `None`.
    pub(in crate::event_log) queued: Option<(EvictionQueue, Instant)>,
    /// Task of the one reader, waiting for the head or at the tail.
    pub(in crate::event_log) reader: Option<Waker>,
    /// Time at which the first unread event was stored while the reader waited at the tail.
    pub(in crate::event_log) stored_at: Option<Instant>,
    /// Tasks that wait for the head or the response without being the reader: displaced connections
    /// whose clients take no stream.
    pub(in crate::event_log) watchers: Vec<Waker>,
    /// Copy of the responses, while a connection without a stream has it.
    pub(in crate::event_log) collected: Weak<Copied>,
}

impl Inner {
    pub(in crate::event_log) fn new(machine: Box<Machine>, reservation: StreamReservation) -> Self {
        Self {
            machine,
            tail: Tail::new(),
            epoch: WriterEpoch::default(),
            store_progress: None,
            is_restored: false,
            has_remote_reader: false,
            closing: None,
            has_moved: false,
            head: Head::Waiting,
            reservation,
            asking: None,
            call_headers: None,
            is_held_up: false,
            delivered: Delivered::default(),
            queued: None,
            reader: None,
            stored_at: None,
            watchers: Vec::new(),
            collected: Weak::new(),
        }
    }

    pub(in crate::event_log) fn watch(&mut self, cx: &Context<'_>) {
        if !self.watchers.iter().any(|watcher| watcher.will_wake(cx.waker())) {
            self.watchers.push(cx.waker().clone());
        }
    }

    /// Wakers only schedule their tasks, so they may be called under the lock.
    pub(in crate::event_log) fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        self.wake_watchers();
    }

    /// Wakes the tasks that are not the reader.
    pub(in crate::event_log) fn wake_watchers(&mut self) {
        for watcher in self.watchers.drain(..) {
            watcher.wake();
        }
    }

    /// Trims the events up to `upto`, which the client has confirmed.
    pub(in crate::event_log) fn release_upto(&mut self, upto: Seq) {
        // Events that the store lacks are rewritten from here.
        if self.store_progress.as_ref().is_some_and(|store_progress| store_progress.is_behind) {
            return;
        }
        self.tail.trim(upto);
        self.machine.handle_trimmed(upto);
        self.reservation.set_events(self.tail.byte_len());
    }

    /// Appends a batch that the store has accepted. If the quota is full, an eviction comes first;
    /// see [`Self::needs_eviction`].
    pub(in crate::event_log) fn accept(&mut self, batch: Batch, bounds: TailLimits, now: Instant) {
        let after = self.tail.last();
        let appended = self.tail.append_owned(self.epoch, after, batch);
        debug_assert_eq!(appended, Appended::Ok, "the pump is the only writer");
        self.machine.lifecycle_mut().handle_stored(now);
        self.reservation.set_server_requests(self.machine.requests_len());
        if self.reader.is_some() && self.stored_at.is_none() {
            self.stored_at = Some(now);
        }
        self.reservation.set_stored(self.tail.byte_len());
        if !self.reservation.quota().is_exceeded() {
            self.enforce_limits(bounds);
        }
    }

    /// Returns true if the head may be written: the stream has a record in the store, or cannot
    /// have one.
    fn is_recorded(&self) -> bool {
        self.store_progress.as_ref().is_none_or(|store_progress| store_progress.is_created || store_progress.is_behind)
    }

    /// Appends a batch of another writer from the store.
    pub(in crate::event_log) fn append_remote(&mut self, batch: &Batch, bounds: TailLimits, now: Instant) {
        let after = self.tail.last();
        let appended = self.tail.append(self.epoch, after, batch);
        debug_assert_eq!(appended, Appended::Ok, "a follower's copy has one writer as well");
        self.machine.handle_remote_progress(None, self.tail.last(), Seq(0));
        if self.reader.is_some() && self.stored_at.is_none() {
            self.stored_at = Some(now);
        }
        self.reservation.set_events(self.tail.byte_len());
        if !self.reservation.quota().is_exceeded() {
            self.enforce_limits(bounds);
        }
    }

    /// Counts the running calls here, the calls without a reader, and the calls of tasks. A
    /// standalone stream is no call, and a call of another replica counts there.
    pub(in crate::event_log) fn count_presence(&mut self) {
        let policy = self.machine.policy();
        let is_call = policy.kind == StreamKind::Request && !policy.is_task && !self.is_restored;
        let is_open = matches!(self.machine.lifecycle().phase(), Phase::Waiting | Phase::Open);
        let runs = is_call && is_open;
        if policy.is_task {
            self.reservation.set_task(is_open && !self.is_restored);
        }
        self.reservation.set_running(runs);
        self.reservation.set_detached(runs && !self.machine.reader().is_attached());
        self.settle_overrun();
    }

    /// Settles an outstanding head after a commit or the end of the stream. Returns true if it
    /// changed.
    pub(in crate::event_log) fn settle_head(&mut self) -> bool {
        if !matches!(self.head, Head::Waiting) {
            return false;
        }
        match self.machine.lifecycle().phase() {
            Phase::Open if self.machine.lifecycle().is_committed() && self.is_recorded() => self.head = Head::Committed,
            Phase::Sealed { .. } => {
                self.head = match self.machine.lifecycle().failure() {
                    Some(failure) => Head::Failed(failure),
                    None => Head::Committed,
                };
            }
            Phase::Waiting | Phase::Passed | Phase::Open => return false,
        }
        true
    }
}
