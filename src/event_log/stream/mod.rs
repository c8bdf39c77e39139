//! One stream, shared by all its tasks.
//!
//! The pump alone appends, through its [`crate::event_log::writer::Writer`]; any task may read the
//! state, attach, cancel or answer. One short lock guards state machine and tail together and is
//! never held across an await. Absent: decisions (the machine makes them) and the wait for the
//! upstream (the pump).

pub(in crate::event_log) mod attachment;
mod backpressure;
mod collected_response;
pub(in crate::event_log) mod delivery_certainty;
mod due_progress;
mod eviction_state;
pub(in crate::event_log) mod finished_call;
pub(in crate::event_log) mod in_flight;
mod legacy_task;
mod partial_readers;
pub(in crate::event_log) mod partial_results;
pub(in crate::event_log) mod progress;
pub(in crate::event_log) mod remote;
mod rendering;
pub(in crate::event_log) mod response_head;
pub(in crate::event_log) mod retries;
pub(in crate::event_log) mod staging;
pub(in crate::event_log) mod state;
pub(in crate::event_log) mod stub;
pub(in crate::event_log) mod summary;
mod task;
pub(in crate::event_log) mod trace;
mod upstream_state;

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Instant;

use tokio::sync::Notify;

use crate::clock;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::backing::schema::Slicing;
use crate::event_log::backing::{Backing, Staged};
use crate::event_log::identity::Identity;
use crate::event_log::identity::binding::Binding;
use crate::event_log::quota::{Quota, StreamReservation, TailLimits};
use crate::event_log::retry_index::Registration;
use crate::event_log::stream::finished_call::FinishedCall;
use crate::event_log::stream::legacy_task::LegacyTaskState;
use crate::event_log::stream::partial_results::Slices;
use crate::event_log::stream::progress::CallProgress;
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::state::Inner;
use crate::event_log::stream::summary::{Summary, TaskSummary};
use crate::otel::CallSpan;
use crate::protocol::call_name::CallName;
use crate::protocol::dialect::Status;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::{Handle, Owner, Secret, Seq, SessionGeneration, StoreEpoch, StreamId, StreamKind};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Announcements, ClientResponse, Machine, Phase, Policy, Resume, SessionChange};
use crate::simulation::{self, Bug};
use crate::sync;

pub use collected_response::Collected;
pub use task::TaskReading;
pub use upstream_state::UpstreamState;

/// Specification of a new stream.
pub struct Spec {
    /// Policy of the stream's machine.
    pub policy: Policy,
    /// Owner of the stream.
    pub binding: Binding,
    /// Ids of the requests that it owes responses for.
    pub ids: Vec<RequestId>,
    /// True if the requests came as an array.
    pub is_batch: bool,
    /// True if the client is asked to poll: a response to one that reconnects closes once all
    /// stored events are written.
    pub should_poll: bool,
    /// Fingerprint of the POST body, if a retry may name the call by a key.
    pub body_fingerprint: Option<Fingerprint>,
    /// Description for reading in slices, or `None` if the stream is not sliced.
    pub slicing: Option<Slicing>,
    /// Span of the call, or `None` if the call is not traced.
    pub span: Option<Arc<CallSpan>>,
}

/// Result of a step of the machine.
pub(super) struct Advanced<R> {
    pub(super) result: R,
    /// Batch to write to the store, or `None`.
    pub(super) staged: Option<Staged>,
    /// True if the stream needs an eviction.
    pub(super) needs_eviction: bool,
}

/// One stream. Cheap to share; lives until its retention ends and its last user is gone.
pub struct Stream {
    pub(super) id: StreamId,
    identity: Arc<Identity>,
    created: Instant,
    is_batch: bool,
    /// Replica that made the stream, and the epoch of the store's contents then.
    origin: (Owner, StoreEpoch),
    handle: OnceLock<Handle>,
    secret: OnceLock<Secret>,
    /// Name of the call. Boxed, because a prompt JSON response needs none.
    name: OnceLock<Arc<CallName>>,
    /// Last event of a dead writer, if another replica ended the stream.
    adopted_after: OnceLock<Seq>,
    binding: Binding,
    pub(super) bounds: TailLimits,
    /// See [`Spec::should_poll`].
    should_poll: bool,
    /// Fingerprint of the POST body, if a retry may name the call by a key. Boxed, because few
    /// streams have one.
    body_fingerprint: Option<Box<Fingerprint>>,
    registrations: Mutex<Vec<Registration<Stream>>>,
    /// Entry of the call in the records of sessions, if it has one.
    finished_call: OnceLock<Arc<FinishedCall>>,
    /// Slices, or `None` if the stream is not sliced.
    slices: Option<Box<Slices>>,
    /// Span of the call, or `None` if the call is not traced.
    span: Option<Arc<CallSpan>>,
    /// Progress that the requests ask for, once it was read; see [`Stream::progress`].
    progress: OnceLock<Option<Box<CallProgress>>>,
    /// Quota of the stream's principal.
    quota: Arc<Quota>,
    /// True while an upstream connection has the request, or has had it.
    is_sent: AtomicBool,
    /// Notified when a connection takes the request.
    sent: Notify,
    /// True while the call waits for a server that accepts no connections.
    is_waiting: AtomicBool,
    /// State of the upstream connection, an [`UpstreamState`].
    upstream: AtomicU8,
    /// Generation of the session in which the upstream has the request.
    session_generation: AtomicU32,
    is_published: AtomicBool,
    /// Stream of the task that the call has become.
    task: OnceLock<StreamId>,
    /// State of a task of 2025-11-25, or `None` for every other stream.
    legacy_task: Option<Box<LegacyTaskState>>,
    /// Polls of a task that are held.
    held_polls: AtomicU32,
    /// Store behind the log, or `None` if memory is the store.
    pub(super) backing: Option<Arc<Backing>>,
    pub(super) inner: Mutex<Inner>,
    /// Wakes the pump after a change that it may have to act on.
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
        let legacy_task = spec.policy.legacy_task.is_some().then(Box::default);
        let mut inner = Inner::new(Box::new(Machine::new(spec.policy, spec.ids, now)), reservation);
        inner.store_progress = backing.is_some().then(Box::default);
        let epoch = backing.as_ref().and_then(|backing| backing.epoch()).unwrap_or(identity.epoch);
        let origin = (identity.owner, epoch);
        Self {
            id,
            identity,
            origin,
            created: now,
            is_batch: spec.is_batch,
            handle: OnceLock::new(),
            secret: OnceLock::new(),
            name: OnceLock::new(),
            adopted_after: OnceLock::new(),
            binding: spec.binding,
            bounds,
            should_poll: spec.should_poll,
            body_fingerprint: spec.body_fingerprint.map(Box::new),
            registrations: Mutex::default(),
            finished_call: OnceLock::new(),
            slices: spec.slicing.map(|slicing| Box::new(Slices::new(slicing))),
            span: spec.span,
            progress: OnceLock::new(),
            quota,
            is_sent: AtomicBool::new(false),
            sent: Notify::new(),
            is_waiting: AtomicBool::new(false),
            upstream: AtomicU8::default(),
            session_generation: AtomicU32::new(0),
            is_published: AtomicBool::new(false),
            task: OnceLock::new(),
            legacy_task,
            held_polls: AtomicU32::new(0),
            backing,
            inner: Mutex::new(inner),
            pump: Notify::new(),
        }
    }

    /// Returns the random id of the stream.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the time at which the stream was created.
    pub fn created(&self) -> Instant {
        self.created
    }

    /// Returns the stream's part of every event ID. Made at its first use, because a prompt JSON
    /// response needs none. Not to be called under the stream's lock.
    pub fn handle(&self) -> &Handle {
        self.handle.get_or_init(|| {
            let ids: Vec<RequestId> = self.with_machine(|machine| machine.owed_responses().ids().cloned().collect());
            self.mint(&ids)
        })
    }

    fn mint(&self, ids: &[RequestId]) -> Handle {
        let (owner, epoch) = self.origin;
        let (kind, has_records) = self.with_machine(|machine| (machine.policy().kind, machine.policy().has_records()));
        if has_records {
            return Handle::mint(&self.identity.keys, StreamKind::Task, owner, epoch, self.id, &[], false);
        }
        Handle::mint(&self.identity.keys, kind, owner, epoch, self.id, ids, self.is_batch)
    }

    /// Names the call by `name`, unless it has a name.
    pub fn name_call(&self, name: impl FnOnce() -> CallName) {
        self.name.get_or_init(|| Arc::new(name()));
    }

    /// Returns the name of the call, or `None` if it has none yet.
    pub fn call_name(&self) -> Option<&CallName> {
        self.name.get().map(|name| &**name)
    }

    /// Sets the announcements around the stream's messages. To be called before the pump begins.
    pub fn set_announcements(&self, announcements: Announcements) {
        self.lock().machine.lifecycle_mut().set_announcements(announcements);
    }

    /// Returns the status for a client that does not read; the stream's timers restart.
    pub fn status(&self, after: Option<Seq>) -> Status {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        inner.machine.handle_touch(clock::now());
        let status = inner.machine.status(after);
        self.notify_pump(inner);
        status
    }

    /// Notes that a client resumed by POST with all events up to `cursor`, if it named one; those
    /// are trimmed. Returns the position from which it reads on.
    pub fn note_resume_by_token(&self, cursor: Option<Seq>) -> Seq {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        inner.machine.handle_resume(Resume::ByCursor, cursor, clock::now());
        if let Some(cursor) = cursor.filter(|cursor| *cursor <= inner.machine.numbering().tail()) {
            inner.release_upto(cursor);
        }
        inner.enforce_limits_if_paused(self.bounds);
        let after = inner.machine.default_cursor();
        self.notify_pump(inner);
        after
    }

    /// Returns the owner of the stream.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Returns whether the client is asked to poll; see [`Spec::should_poll`].
    pub fn should_poll(&self) -> bool {
        self.should_poll
    }

    /// Returns the fingerprint of the POST body, if a retry may name the call by a key.
    pub fn body_fingerprint(&self) -> Option<Fingerprint> {
        self.body_fingerprint.as_deref().copied()
    }

    /// Notes a request for the stream without a reader.
    pub(super) fn touch(&self) {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        inner.machine.handle_touch(clock::now());
        self.notify_pump(inner);
    }

    /// Waits for the response head without being the reader.
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

    /// Returns the response head as it is now.
    pub fn head_now(&self) -> Head {
        self.lock().head.clone()
    }

    /// Notes that the request was handed to an upstream connection.
    pub fn note_sent(&self) {
        self.is_sent.store(true, Ordering::Release);
        self.sent.notify_waiters();
    }

    /// Notes that the upstream has refused the request without running it, and that the request is
    /// about to be sent once more.
    pub fn note_unsent(&self) {
        self.is_sent.store(false, Ordering::Release);
    }

    /// Returns whether the request was handed to an upstream connection.
    pub fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Acquire)
    }

    /// Waits until the request was handed to an upstream connection; for ever if it never is.
    pub async fn sent(&self) {
        let mut sent = pin!(self.sent.notified());
        // Enabled before the look: no connection is missed in between.
        sent.as_mut().enable();
        if !self.is_sent() {
            sent.await;
        }
    }

    /// Sets the generation of the session in which the upstream has the request.
    pub fn set_session_generation(&self, generation: SessionGeneration) {
        self.session_generation.store(generation.0, Ordering::Relaxed);
    }

    /// Returns the generation of the session in which the upstream has the request: the first, if
    /// the session was never opened again.
    pub fn session_generation(&self) -> SessionGeneration {
        SessionGeneration(self.session_generation.load(Ordering::Relaxed))
    }

    /// Opens a standalone stream anew, in its session that is being opened again.
    pub fn reopen_in_session(&self) {
        let mut inner = self.lock();
        inner.machine.handle_session(SessionChange::Reopening, clock::now());
        self.notify_pump(inner);
    }

    /// Notes that the session of a standalone stream is gone at the server, or was not opened again
    /// after all.
    pub fn lose_session(&self) {
        let mut inner = self.lock();
        inner.machine.handle_session(SessionChange::Lost, clock::now());
        self.notify_pump(inner);
    }

    /// Announces on a standalone stream that its session was opened again.
    pub fn announce_revival(&self) {
        let mut inner = self.lock();
        inner.machine.handle_session(SessionChange::Revived, clock::now());
        self.notify_pump(inner);
    }

    /// Sets whether the call waits for a server that accepts no connections.
    pub fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
        if !is_waiting {
            self.lock().wake();
        }
    }

    /// Waits until the call no longer waits for the server: its request was sent, or never will be.
    pub async fn wait_over(&self) {
        poll_fn(|cx| {
            let mut inner = self.lock();
            if self.is_waiting() {
                inner.watch(cx);
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Returns whether the call waits for a server that accepts no connections. Nothing of its
    /// request was sent then.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed) && !self.is_sent()
    }

    /// Returns whether resumes can find the stream, or once could.
    pub(super) fn is_published(&self) -> bool {
        self.is_published.load(Ordering::Relaxed)
    }

    /// Publishes the stream. Returns true the first time.
    pub(super) fn publish_first(&self) -> bool {
        !self.is_published.swap(true, Ordering::Relaxed)
    }

    /// Returns whether the response passed through and a retry may still fetch it: no client was
    /// there to take it, or it has a key.
    pub fn has_unclaimed_response(&self) -> bool {
        self.has_retries()
            && self.with_machine(|machine| {
                let unclaimed = !machine.reader().is_attached() && !machine.reader().is_delivered();
                machine.lifecycle().phase() == Phase::Passed && (unclaimed || machine.policy().has_idempotency_key)
            })
    }

    /// Reads the state machine.
    pub fn with_machine<R>(&self, read: impl FnOnce(&Machine) -> R) -> R {
        read(&self.lock().machine)
    }

    /// Notes that the reader was given the events up to `last`, which may free capacity.
    pub(super) fn note_written(&self, inner: &mut Inner, last: Seq) {
        let was_full = inner.machine.lifecycle().is_paused();
        inner.machine.handle_written(last, clock::now());
        inner.settle_overrun();
        if was_full {
            inner.enforce_limits(self.bounds);
            self.pump.notify_one();
        }
    }

    /// Notes that a client resumed by GET with all events up to `cursor`.
    pub fn note_resume(&self, cursor: Option<Seq>) {
        self.take_return(|machine, now| machine.handle_resume(Resume::ByCursor, cursor, now));
    }

    /// Notes that a client resumed by the stream's URL with all events up to `cursor`.
    pub fn note_resume_by_url(&self, cursor: Option<Seq>) {
        self.take_return(|machine, now| machine.handle_resume(Resume::ByUrl, cursor, now));
    }

    /// Returns whether it is now the turn of a client with all events up to `cursor`; see
    /// [`Machine::handle_input_turn`].
    pub fn begin_input_turn(&self, cursor: Seq) -> bool {
        self.lock().machine.handle_input_turn(cursor, clock::now())
    }

    /// Notes that the same POST was repeated, with `cursor` if it named one. Whether its client
    /// would resume by GET stays unknown.
    pub fn note_retry(&self, cursor: Option<Seq>) {
        self.take_return(|machine, now| machine.handle_resume(Resume::ByPost, cursor, now));
    }

    fn take_return(&self, tell: impl FnOnce(&mut Machine, Instant)) {
        let mut inner = self.lock();
        self.note_requested(&mut inner);
        tell(&mut inner.machine, clock::now());
        inner.enforce_limits_if_paused(self.bounds);
        self.notify_pump(inner);
    }

    /// Waits until the stream has no reader.
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

    /// Returns the quota of the stream's principal.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Cancels `id` for the client; see [`Machine::handle_cancel`].
    pub fn cancel(&self, id: &RequestId) -> bool {
        let mut inner = self.lock();
        let cancelled = inner.machine.lifecycle_mut().handle_cancel(id, clock::now());
        if cancelled {
            // A task that waits for the response may have nothing left to wait for.
            inner.wake();
            self.notify_pump(inner);
        }
        cancelled
    }

    /// Notes that the response to `id` came on the session's standalone stream; see
    /// [`Machine::handle_answered_elsewhere`].
    pub fn note_answered_elsewhere(&self, id: &RequestId) {
        let mut inner = self.lock();
        inner.machine.late_head().handle_answered_elsewhere(id, clock::now());
        self.notify_pump(inner);
    }

    /// Handles a client response; see [`Machine::handle_client_response`].
    pub fn handle_client_response(&self, id: &RequestId) -> ClientResponse {
        self.lock().machine.handle_client_response(id, clock::now())
    }

    /// Commits the response head now, before an id is written; see [`Machine::handle_commit`].
    pub fn commit(&self) -> bool {
        let mut inner = self.lock();
        let begins = inner.machine.lifecycle_mut().handle_commit();
        self.publish(inner, false);
        self.pump.notify_one();
        begins
    }

    /// Notes that a client response never reached the upstream.
    pub fn note_client_response_lost(&self, id: &RequestId) {
        let mut inner = self.lock();
        inner.machine.handle_client_response_lost(id, clock::now());
        // The reader may have to be told that it is its turn again.
        inner.wake();
        self.notify_pump(inner);
    }

    /// Has the pump send the upstream a ping; see [`Machine::handle_quiet`]. Returns true if it
    /// does: this process makes the call, whose request was sent.
    pub(super) fn keep_alive(&self) -> bool {
        if !self.is_sent() {
            return false;
        }
        let mut inner = self.lock();
        let pings = inner.machine.lifecycle_mut().handle_quiet();
        if pings {
            self.notify_pump(inner);
        }
        pings
    }

    /// Ends the stream with the error `code` for each owed response: its session was deleted, or
    /// the process ends.
    pub fn expire(&self, code: ErrorCode) {
        self.lock().machine.handle_expire(code, clock::now());
        self.pump.notify_one();
    }

    /// Returns a summary for the operator.
    pub fn summary(&self, now: Instant) -> Summary {
        let legacy_task = self.legacy_view().map(|view| TaskSummary { status: view.status, text: view.text });
        let inner = self.lock();
        let machine = &inner.machine;
        let is_task = machine.policy().is_task;
        Summary {
            id: self.id,
            kind: if is_task { StreamKind::Task } else { machine.policy().kind },
            era: machine.policy().era,
            name: self.name.get().cloned(),
            connections: machine.reader().connections(),
            task: legacy_task.or_else(|| if is_task { task::summarize(&inner) } else { None }),
            failure: machine.lifecycle().failure().map(|failure| failure.code),
            phase: machine.lifecycle().phase(),
            is_answered: machine.lifecycle().is_answered(),
            awaits_input: (machine.server_requests().has_outstanding() && !machine.lifecycle().is_sealed())
                || machine.task().is_some_and(|task| task.state().awaits_client()),
            is_attached: machine.reader().is_attached(),
            age: now.saturating_duration_since(self.created),
            reader_for: now.saturating_duration_since(machine.reader().since()),
            events: machine.numbering().tail().0,
            kept_events: inner.tail.len(),
            kept_bytes: inner.tail.byte_len(),
        }
    }

    /// Makes one step of the machine. With a store, returns the batch to write; without one, the
    /// events are in the tail already.
    pub(super) fn advance<R>(&self, tell: impl FnOnce(&mut Machine, Instant) -> R) -> Advanced<R> {
        let now = clock::now();
        let mut inner = self.lock();
        let result = tell(&mut inner.machine, now);
        let mut stored = false;
        let staged = match self.backing {
            Some(_) => self.stage(&mut inner),
            None => {
                while let Some(ready) = inner.machine.lifecycle_mut().poll_batch() {
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

    /// Settles the head, and wakes the reader after a change for it.
    fn publish(&self, mut inner: MutexGuard<'_, Inner>, stored: bool) {
        let settled = inner.settle_head();
        let sealed = inner.machine.lifecycle().is_sealed();
        if sealed {
            inner.asking = None;
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

    /// Notifies the pump after a change. Unlocks first, because the pump takes the lock.
    pub(super) fn notify_pump(&self, inner: MutexGuard<'_, Inner>) {
        drop(inner);
        self.pump.notify_one();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock leaves the log consistent: every step is complete before anything
        // that can fail.
        sync::lock(&self.inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = inner.queued {
            self.quota.evictable().dequeue(place, self.id);
        }
    }
}
