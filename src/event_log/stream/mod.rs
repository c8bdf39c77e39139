//! One stream, as every task may share it.
//!
//! The pump alone appends, through its [`crate::event_log::writer::Writer`]; any task may look, attach, cancel or answer. One short lock guards
//! state machine and tail together and is never held across an await. Absent: decisions (the machine makes them) and waiting
//! for the upstream (the pump does).

pub(in crate::event_log) mod delivery;
pub(in crate::event_log) mod in_flight;
mod partial_readers;
pub(in crate::event_log) mod partial_results;
pub(in crate::event_log) mod reader;
mod registrations;
pub(in crate::event_log) mod remote;
pub(in crate::event_log) mod response_head;
mod responses;
mod retention;
pub(in crate::event_log) mod staging;
pub(in crate::event_log) mod state;
pub(in crate::event_log) mod stub;
pub(in crate::event_log) mod summary;

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Instant;

use tokio::sync::{Notify, SetOnce};

use crate::clock;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::backing::schema::Slicing;
use crate::event_log::backing::{Backing, Staged};
use crate::event_log::identity::Identity;
use crate::event_log::identity::ownership::Binding;
use crate::event_log::quota::{Quota, StreamReservation, TailLimits};
use crate::event_log::retry_index::Registration;
use crate::event_log::stream::partial_results::Slices;
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::state::Inner;
use crate::event_log::stream::summary::Summary;
use crate::protocol::call_name::CallName;
use crate::protocol::dialect::Status;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::{Handle, Owner, Secret, Seq, StoreEpoch, StreamId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Announcements, ClientResponse, Machine, Phase, Policy};
use crate::simulation::{self, Bug};
use crate::sync;

pub use responses::Collected;

/// What a stream is made of.
pub struct Spec {
    /// What it lives by.
    pub policy: Policy,
    /// Who it belongs to.
    pub binding: Binding,
    /// The request ids it owes responses for.
    pub ids: Vec<RequestId>,
    /// Whether they came as an array.
    pub batch: bool,
    /// Whether its responses close as soon as what is stored is written.
    pub polls: bool,
    /// The body of the POST that begins it, where a retry may name it by a key.
    pub body: Option<Fingerprint>,
    /// How it is read in slices, where it is.
    pub slicing: Option<Slicing>,
}

/// What a step of the machine left to do.
pub(super) struct Advanced<R> {
    pub(super) result: R,
    /// What is to be brought into the store.
    pub(super) staged: Option<Staged>,
    /// It wants room.
    pub(super) needs_eviction: bool,
}

/// One stream. Cheap to share; lives until its retention ends and its last user is gone.
pub struct Stream {
    pub(super) id: StreamId,
    identity: Arc<Identity>,
    created: Instant,
    batch: bool,
    /// Who made it, in which contents of the store.
    origin: (Owner, StoreEpoch),
    handle: OnceLock<Handle>,
    secret: OnceLock<Secret>,
    /// What its call is. Boxed, because a prompt JSON answer has no use for it.
    name: OnceLock<Arc<CallName>>,
    /// The last event of a writer that is gone, where another one ended the stream.
    adopted_after: OnceLock<Seq>,
    binding: Binding,
    pub(super) bounds: TailLimits,
    /// What to make of a client that may be asked to poll.
    polls: bool,
    /// The body of the POST that began it, where a retry may name it by a key. Boxed, because few have one.
    body: Option<Box<Fingerprint>>,
    registrations: Mutex<Vec<Registration<Stream>>>,
    /// `None`: it is not read in slices.
    slices: Option<Box<Slices>>,
    /// Its principal's.
    quota: Arc<Quota>,
    sent: SetOnce<()>,
    is_published: AtomicBool,
    /// `None`: memory is the store.
    pub(super) backing: Option<Arc<Backing>>,
    pub(super) inner: Mutex<Inner>,
    /// Wakes the pump: something changed that it may have to act on.
    pub(super) pump: Notify,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(
        id: StreamId,
        identity: Arc<Identity>,
        bounds: TailLimits,
        backing: Option<Arc<Backing>>,
        spec: Spec,
        reservation: StreamReservation,
        now: Instant,
    ) -> Self {
        let quota = reservation.quota().clone();
        let mut inner = Inner::new(Box::new(Machine::new(spec.policy, spec.ids, now)), reservation);
        inner.store_progress = backing.is_some().then(Box::default);
        let epoch = backing.as_ref().and_then(|backing| backing.epoch()).unwrap_or(identity.epoch);
        let origin = (identity.owner, epoch);
        Self {
            id,
            identity,
            origin,
            created: now,
            batch: spec.batch,
            handle: OnceLock::new(),
            secret: OnceLock::new(),
            name: OnceLock::new(),
            adopted_after: OnceLock::new(),
            binding: spec.binding,
            bounds,
            polls: spec.polls,
            body: spec.body.map(Box::new),
            registrations: Mutex::default(),
            slices: spec.slicing.map(|slicing| Box::new(Slices::new(slicing))),
            quota,
            sent: SetOnce::new(),
            is_published: AtomicBool::new(false),
            backing,
            inner: Mutex::new(inner),
            pump: Notify::new(),
        }
    }

    /// Its random name.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Its part of every event ID; made when it is first wanted, because a prompt JSON answer never wants one. Not to be called
    /// under the stream's lock.
    pub fn handle(&self) -> &Handle {
        self.handle.get_or_init(|| {
            let ids: Vec<RequestId> = self.look(|machine| machine.owed_responses().ids().cloned().collect());
            self.mint(&ids)
        })
    }

    fn mint(&self, ids: &[RequestId]) -> Handle {
        let (owner, epoch) = self.origin;
        let kind = self.look(|machine| machine.policy().kind);
        Handle::mint(&self.identity.keys, kind, owner, epoch, self.id, ids, self.batch)
    }

    /// Says what its call is, by the body of its POST. Once is enough.
    pub fn name_call(&self, body: &[u8]) {
        if self.name.get().is_none()
            && let Some(name) = CallName::of(body)
        {
            let _ = self.name.set(Arc::new(name));
        }
    }

    /// What its call is, where that was said.
    pub fn call_name(&self) -> Option<&CallName> {
        self.name.get().map(|name| &**name)
    }

    /// What is to stand around its messages. To be told before its pump begins.
    pub fn frame(&self, frame: Announcements) {
        self.lock().machine.handle_announcements(frame);
    }

    /// Where it stands, for a client that asks without reading: its timers begin anew.
    pub fn status(&self, after: Option<Seq>) -> Status {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        inner.machine.handle_touch(clock::now());
        let status = inner.machine.status(after);
        drop(inner);
        self.pump.notify_one();
        status
    }

    /// A client came back by POST, with `cursor` where it named one: it has everything up to there, which goes. Returns where it
    /// goes on.
    pub fn note_return_by_token(&self, cursor: Option<Seq>) -> Seq {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        inner.machine.handle_reconnect(cursor, clock::now());
        if let Some(cursor) = cursor.filter(|cursor| *cursor <= inner.machine.tail()) {
            inner.release_upto(cursor);
        }
        inner.fit_paused(self.bounds);
        let after = inner.machine.default_cursor();
        drop(inner);
        self.pump.notify_one();
        after
    }

    /// Who may have it.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Whether its responses close as soon as what is stored is written.
    pub fn polls(&self) -> bool {
        self.polls
    }

    /// The body that began it, where a retry may name it by a key.
    pub fn body(&self) -> Option<Fingerprint> {
        self.body.as_deref().copied()
    }

    /// Somebody asks for it without reading.
    pub(super) fn touch(&self) {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        inner.machine.handle_touch(clock::now());
        drop(inner);
        self.pump.notify_one();
    }

    /// Waits for the head of its response, without being its reader.
    pub(super) async fn head(&self) -> Head {
        poll_fn(|cx| {
            let mut inner = self.lock();
            match &inner.head {
                Head::Waiting => {
                    inner.watch(cx);
                    Poll::Pending
                }
                head => Poll::Ready(head.clone()),
            }
        })
        .await
    }

    /// Returns the head of its response as it is now.
    pub fn head_now(&self) -> Head {
        self.lock().head.clone()
    }

    /// The bytes of its request have been handed to an upstream connection.
    pub fn note_sent(&self) {
        // The second telling is of a redirect.
        let _ = self.sent.set(());
    }

    /// Whether they have.
    pub fn is_sent(&self) -> bool {
        self.sent.initialized()
    }

    /// Waits until they have; for ever if they never are.
    pub async fn sent(&self) {
        self.sent.wait().await;
    }

    /// Whether resumes can find it, or once could.
    pub(super) fn is_published(&self) -> bool {
        self.is_published.load(Ordering::Relaxed)
    }

    /// True the first time.
    pub(super) fn publish_first(&self) -> bool {
        !self.is_published.swap(true, Ordering::Relaxed)
    }

    /// Whether its answer passed and a retry may yet come for it: nobody was there to take it, or it has a key.
    pub fn is_answer_unclaimed(&self) -> bool {
        self.has_retries()
            && self.look(|machine| {
                let unclaimed = !machine.reader().is_attached() && !machine.is_delivered();
                machine.phase() == Phase::Passed && (unclaimed || machine.policy().has_idempotency_key)
            })
    }

    /// Looks at the state machine.
    pub fn look<R>(&self, look: impl FnOnce(&Machine) -> R) -> R {
        look(&self.lock().machine)
    }

    /// The reader was given the events up to `last`: there may be room.
    pub(super) fn note_written(&self, inner: &mut Inner, last: Seq) {
        let was_full = inner.machine.is_paused();
        inner.machine.handle_written(last, clock::now());
        inner.settle_overrun();
        if was_full {
            inner.fit(self.bounds);
            self.pump.notify_one();
        }
    }

    /// A client came back by GET with `cursor`: it has everything up to there.
    pub fn note_return(&self, cursor: Option<Seq>) {
        self.take_return(|machine, now| machine.handle_reconnect(cursor, now));
    }

    /// The same by the stream's URL.
    pub fn note_return_by_url(&self, cursor: Option<Seq>) {
        self.take_return(|machine, now| machine.handle_reconnect_by_url(cursor, now));
    }

    /// Whether it is now the turn of a client that has everything up to `cursor`; see [`Machine::handle_input_turn`].
    pub fn begin_turn(&self, cursor: Seq) -> bool {
        self.lock().machine.handle_input_turn(cursor, clock::now())
    }

    /// The same POST came again, with `cursor` where it named one. Whether its client would come back by GET nobody knows.
    pub fn note_retry(&self, cursor: Option<Seq>) {
        self.take_return(|machine, now| machine.handle_confirmed(cursor, now));
    }

    fn take_return(&self, tell: impl FnOnce(&mut Machine, Instant)) {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        tell(&mut inner.machine, clock::now());
        inner.fit_paused(self.bounds);
        drop(inner);
        self.pump.notify_one();
    }

    /// Waits until no connection reads it.
    pub async fn detached(&self) {
        poll_fn(|cx| {
            let mut inner = self.lock();
            if !inner.machine.reader().is_attached() {
                return Poll::Ready(());
            }
            inner.watch(cx);
            Poll::Pending
        })
        .await;
    }

    /// What it takes of its principal's share.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Looks again whether there is room, after some may have been made.
    pub(super) fn fit(&self) {
        let mut inner = self.lock();
        inner.fit(self.bounds);
    }

    /// The client cancels `id`; see [`Machine::handle_cancel`].
    pub fn cancel(&self, id: &RequestId) -> bool {
        let mut inner = self.lock();
        let cancelled = inner.machine.handle_cancel(id, clock::now());
        if cancelled {
            // Whoever waits for the answer may wait for nothing now.
            inner.wake();
            drop(inner);
            self.pump.notify_one();
        }
        cancelled
    }

    /// The client answers a server→client request; see [`Machine::handle_client_response`].
    pub fn answer(&self, id: &RequestId) -> ClientResponse {
        self.lock().machine.handle_client_response(id, clock::now())
    }

    /// Begins the response now, because an id is about to be written; see [`Machine::handle_commit`].
    pub fn commit(&self) -> bool {
        let mut inner = self.lock();
        let begins = inner.machine.handle_commit();
        self.publish(inner, false);
        self.pump.notify_one();
        begins
    }

    /// An answer never reached the upstream.
    pub fn answer_lost(&self, id: &RequestId) {
        let mut inner = self.lock();
        inner.machine.handle_client_response_lost(id);
        // The reader may have to be told that it is its turn again.
        inner.wake();
    }

    /// Ends the stream, with the error `code` for whatever it still owes: its session was deleted, or the process ends.
    pub fn expire(&self, code: ErrorCode) {
        self.lock().machine.handle_expire(code, clock::now());
        self.pump.notify_one();
    }

    /// What an operator may see of it.
    pub fn summary(&self, now: Instant) -> Summary {
        let inner = self.lock();
        let machine = &inner.machine;
        Summary {
            id: self.id,
            kind: machine.policy().kind,
            era: machine.policy().era,
            name: self.name.get().cloned(),
            connections: machine.reader().connections(),
            failure: machine.failure().map(|failure| failure.code),
            phase: machine.phase(),
            is_answered: machine.is_answered(),
            awaits_input: machine.server_requests().has_outstanding() && !machine.is_sealed(),
            is_attached: machine.reader().is_attached(),
            age: now.saturating_duration_since(self.created),
            reader_for: now.saturating_duration_since(machine.reader().since()),
            events: machine.tail().0,
            kept_events: inner.tail.len(),
            kept_bytes: inner.tail.byte_len(),
        }
    }

    /// One step of the machine. With a store, what is to be brought there comes back; without one it is in the tail already.
    pub(super) fn advance<R>(&self, tell: impl FnOnce(&mut Machine, Instant) -> R) -> Advanced<R> {
        let now = clock::now();
        let mut inner = self.lock();
        let result = tell(&mut inner.machine, now);
        let mut stored = false;
        let staged = match self.backing {
            Some(_) => self.stage(&mut inner),
            None => {
                while let Some(ready) = inner.machine.poll_batch() {
                    inner.accept(&ready, self.bounds, now);
                    stored = true;
                }
                None
            }
        };
        let needs_eviction = inner.needs_eviction();
        self.publish(inner, stored);
        Advanced { result, staged, needs_eviction }
    }

    /// Settles the head and wakes the reader where there is something for it.
    fn publish(&self, mut inner: MutexGuard<'_, Inner>, stored: bool) {
        let settled = inner.settle_head();
        let sealed = inner.machine.is_sealed();
        if sealed {
            let epoch = inner.epoch;
            inner.tail.seal(epoch);
            let events = inner.tail.byte_len();
            inner.reservation.forget_request(events);
        }
        inner.note_presence();
        if (stored && !simulation::has(Bug::LosesTheWakeUp)) || settled || sealed {
            inner.wake();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock would have left the log consistent: every step is complete before anything that can fail.
        sync::lock(&self.inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = inner.queued {
            self.quota.dequeue(place, self.id);
        }
    }
}
