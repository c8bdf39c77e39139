//! One stream, shared by all its tasks.
//!
//! The pump alone appends, through its [`crate::event_log::writer::Writer`]; any task may read the
//! state, attach, cancel or respond. One short lock guards state machine and tail together and is
//! never held across an await. A subject of a stream is a part of its own, with its state and its
//! rules; it changes the locked state through [`state::Shared`]. Absent: decisions (the machine
//! makes them) and the wait for the upstream (the pump).

pub(in crate::event_log) mod attachment;
mod backpressure;
mod by_get;
mod call_trace;
mod collected_response;
pub(in crate::event_log) mod context;
pub(in crate::event_log) mod delivery;
pub(in crate::event_log) mod delivery_certainty;
mod due_progress;
pub(in crate::event_log) mod finished_call;
pub(in crate::event_log) mod get_calls;
mod handles;
pub(in crate::event_log) mod in_flight;
mod legacy_task;
mod legacy_task_state;
pub(in crate::event_log) mod messages;
mod partial_readers;
pub(in crate::event_log) mod partial_results;
pub(in crate::event_log) mod progress;
mod relayed_messages;
mod rendering;
pub(in crate::event_log) mod replica;
pub(in crate::event_log) mod response_head;
pub(in crate::event_log) mod restored;
pub(in crate::event_log) mod retries;
pub(in crate::event_log) mod staging;
pub(in crate::event_log) mod state;
pub(in crate::event_log) mod stub;
pub(in crate::event_log) mod summary;
mod task;
pub(in crate::event_log) mod trace;
mod upstream_call;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use tokio::sync::Notify;

use crate::clock;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::backing::schema::Slicing;
use crate::event_log::backing::{Backing, Staged};
use crate::event_log::quota::{Quota, StreamReservation};
use crate::event_log::retry_index::Registration;
use crate::event_log::stream::call_trace::CallTrace;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::stream::delivery::Delivery;
use crate::event_log::stream::finished_call::FinishedCall;
use crate::event_log::stream::get_calls::{GetCall, GetCalls};
use crate::event_log::stream::handles::{Handles, Origin};
use crate::event_log::stream::legacy_task_state::LegacyTaskState;
use crate::event_log::stream::partial_results::Slices;
use crate::event_log::stream::progress::CallProgress;
use crate::event_log::stream::replica::Replica;
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::state::{Inner, Shared};
use crate::identity::Binding;
use crate::otel::CallSpan;
use crate::protocol::dialect::Status;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::{Handle, Seq, StreamId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Machine, Policy, Resume};

pub use by_get::{ByGet, GetProgress, Turn};
pub use collected_response::Collected;
pub use legacy_task::LegacyTask;
pub use task::TaskReading;
use upstream_call::UpstreamCall;
pub use upstream_call::UpstreamState;

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
    /// True if the client shall poll: a response to a reconnected client closes once all
    /// stored events are written.
    pub should_poll: bool,
    /// Fingerprint of the POST body, if a retry may name the call by a key.
    pub body_fingerprint: Option<Fingerprint>,
    /// Description for reading in slices, or `None` if the stream is not sliced.
    pub slicing: Option<Slicing>,
    /// Span of the call, or `None` if the call is not traced.
    pub span: Option<Arc<CallSpan>>,
    /// Calls of the session whose responses may go by GET, or `None` if this one never does.
    pub get_calls: Option<Arc<GetCalls>>,
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
    pub(super) shared: Shared,
    origin: Origin,
    created: Instant,
    /// Name and span of the call.
    trace: CallTrace,
    /// Last event of a dead writer, if another replica ended the stream.
    adopted_after: OnceLock<Seq>,
    binding: Binding,
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
    /// Progress that the requests want, once it was read; see [`Stream::progress`].
    progress: OnceLock<Option<Box<CallProgress>>>,
    upstream: UpstreamCall,
    is_published: AtomicBool,
    /// Stream of the task that the call has become.
    task: OnceLock<StreamId>,
    /// State of a task of 2025-11-25, or `None` for every other stream.
    legacy_task: Option<Box<LegacyTaskState<Stream>>>,
    /// State of a call whose response may go by GET, or `None` for every other stream.
    get_call: Option<Box<GetCall<Stream>>>,
    /// Polls of a task that are held.
    held_polls: AtomicU32,
    /// Store behind the log, or `None` if memory is the store.
    pub(super) backing: Option<Arc<Backing>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(
        id: StreamId,
        context: &StreamContext,
        spec: Spec,
        reservation: StreamReservation,
        now: Instant,
    ) -> Self {
        let (identity, backing) = (context.identity.clone(), context.backing.clone());
        let quota = reservation.quota().clone();
        let legacy_task = spec.policy.legacy_task.is_some().then(Box::default);
        let get_call = spec.get_calls.map(|calls| Box::new(GetCall::new(calls, id, &spec.ids)));
        let mut inner = Inner::new(Box::new(Machine::new(spec.policy, spec.ids, now)), reservation);
        inner.store_progress = backing.is_some().then(Box::default);
        let epoch = backing.as_ref().and_then(|backing| backing.epoch()).unwrap_or(identity.epoch);
        let made_by = (identity.owner, epoch);
        Self {
            shared: Shared {
                id,
                is_batch: spec.is_batch,
                bounds: context.bounds,
                quota,
                inner: Mutex::new(inner),
                pump: Notify::new(),
            },
            origin: Origin { identity, made_by, handle: OnceLock::new(), secret: OnceLock::new() },
            created: now,
            trace: CallTrace::new(spec.span),
            adopted_after: OnceLock::new(),
            binding: spec.binding,
            should_poll: spec.should_poll,
            body_fingerprint: spec.body_fingerprint.map(Box::new),
            registrations: Mutex::default(),
            finished_call: OnceLock::new(),
            slices: spec.slicing.map(|slicing| Box::new(Slices::new(slicing))),
            progress: OnceLock::new(),
            upstream: UpstreamCall::default(),
            is_published: AtomicBool::new(false),
            task: OnceLock::new(),
            legacy_task,
            get_call,
            held_polls: AtomicU32::new(0),
            backing,
        }
    }

    /// Returns the random id of the stream.
    pub fn id(&self) -> StreamId {
        self.shared.id
    }

    /// Returns the request at the upstream.
    pub fn upstream(&self) -> &UpstreamCall {
        &self.upstream
    }

    /// Returns the delivery of the response.
    pub fn delivery(&self) -> Delivery<'_> {
        Delivery(&self.shared)
    }

    /// Returns the stream as other replicas and other processes change it.
    pub fn replica(&self) -> Replica<'_> {
        Replica { shared: &self.shared, adopted_after: &self.adopted_after }
    }

    /// Returns the entry of the call for the records of sessions.
    pub(super) fn finished_call(&self) -> &Arc<FinishedCall> {
        self.finished_call.get_or_init(|| Arc::new(FinishedCall::new(self.id())))
    }

    /// Returns the stream of the task that the call has become, or `None` if it has not become a
    /// task.
    pub fn task(&self) -> Option<StreamId> {
        self.task.get().copied()
    }

    /// Sets the stream of the task that the call has become.
    pub fn set_task(&self, task: StreamId) {
        let _ = self.task.set(task);
    }

    /// Returns the time at which the stream was created.
    pub fn created(&self) -> Instant {
        self.created
    }

    /// Returns the stream's part of every event ID. Not to be called under the stream's lock.
    pub fn handle(&self) -> &Handle {
        self.handles().own()
    }

    /// Returns the handles of the stream.
    pub fn handles(&self) -> Handles<'_> {
        Handles { origin: &self.origin, shared: &self.shared }
    }

    /// Returns the name and the span of the call.
    pub fn trace(&self) -> &CallTrace {
        &self.trace
    }

    /// Returns the status for a client that does not read; the stream's timers restart.
    pub fn status(&self, after: Option<Seq>) -> Status {
        let mut inner = self.shared.lock();
        self.shared.handle_request(&mut inner);
        inner.machine.handle_touch(clock::now());
        let status = inner.machine.status(after);
        self.shared.notify_pump(inner);
        status
    }

    /// A client resumes by POST with all events up to `cursor`, if it named one; these are trimmed.
    /// Returns the position of its reading.
    pub fn resume_by_token(&self, cursor: Option<Seq>) -> Seq {
        let mut inner = self.shared.lock();
        self.shared.handle_request(&mut inner);
        inner.machine.handle_resume(Resume::ByCursor, cursor, clock::now());
        if let Some(cursor) = cursor.filter(|cursor| *cursor <= inner.machine.numbering().tail()) {
            inner.release_upto(cursor);
        }
        inner.enforce_limits_if_paused(self.shared.bounds);
        let after = inner.machine.default_cursor();
        self.shared.notify_pump(inner);
        after
    }

    /// Returns the owner of the stream.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Returns true if the client shall poll; see [`Spec::should_poll`].
    pub fn should_poll(&self) -> bool {
        self.should_poll
    }

    /// A client requests the stream without reading it.
    pub fn touch(&self) {
        let mut inner = self.shared.lock();
        self.shared.handle_request(&mut inner);
        inner.machine.handle_touch(clock::now());
        self.shared.notify_pump(inner);
    }

    /// Waits for the response head without being the reader.
    pub(super) async fn head(&self) -> Head {
        self.shared.wait_until(|inner| !matches!(inner.head, Head::Waiting)).await;
        self.head_now()
    }

    /// Returns the response head as it is now.
    pub fn head_now(&self) -> Head {
        self.shared.lock().head.clone()
    }

    /// Drops the stream's reference to the head of the server's response, if no retry and no span
    /// needs it: only the request that has it responds with it.
    pub fn release_head(&self) {
        if !self.retries().may_come() && self.trace.span().is_none() {
            let mut inner = self.shared.lock();
            if let Head::Stream(..) = &inner.head {
                inner.head = Head::Committed;
            }
        }
    }

    /// Returns true if resumes can find the stream, or once could.
    pub(super) fn is_published(&self) -> bool {
        self.is_published.load(Ordering::Relaxed)
    }

    /// Publishes the stream. Returns true the first time.
    pub(super) fn publish_first(&self) -> bool {
        !self.is_published.swap(true, Ordering::Relaxed)
    }

    /// Reads the state machine.
    pub fn with_machine<R>(&self, read: impl FnOnce(&Machine) -> R) -> R {
        self.shared.with_machine(read)
    }

    /// Changes the state machine, and notifies the pump.
    pub fn change<R>(&self, change: impl FnOnce(&mut Machine, Instant) -> R) -> R {
        self.shared.change(change)
    }

    /// Appends a message beside the pump. Returns false if the stream takes no message now.
    pub fn append_message(&self, data: &[u8]) -> bool {
        self.shared.append_message(data)
    }

    /// A client reads the stream again, with all events up to `cursor` if it named one.
    pub fn resume(&self, resume: Resume, cursor: Option<Seq>) {
        let mut inner = self.shared.lock();
        self.shared.handle_request(&mut inner);
        inner.machine.handle_resume(resume, cursor, clock::now());
        inner.enforce_limits_if_paused(self.shared.bounds);
        self.shared.notify_pump(inner);
    }

    /// Returns the quota of the stream's principal.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.shared.quota
    }

    /// Cancels `id` for the client; see [`Lifecycle::handle_cancel`].
    ///
    /// [`Lifecycle::handle_cancel`]: crate::protocol::stream::Lifecycle::handle_cancel
    pub fn cancel(&self, id: &RequestId) -> bool {
        let mut inner = self.shared.lock();
        let cancelled = inner.machine.lifecycle_mut().handle_cancel(id, clock::now());
        if cancelled {
            // A task that waits for the response may have nothing left to wait for.
            inner.wake();
            self.shared.notify_pump(inner);
        }
        cancelled
    }

    /// Commits the response head now, before an id is written. Returns false if the upstream's
    /// response passes as it is.
    pub fn commit(&self) -> bool {
        let mut inner = self.shared.lock();
        let begins = inner.machine.lifecycle_mut().handle_commit();
        self.shared.publish(inner, false);
        self.shared.pump.notify_one();
        begins
    }

    /// A client response never reached the upstream.
    pub fn handle_client_response_lost(&self, id: &RequestId) {
        let mut inner = self.shared.lock();
        inner.machine.handle_client_response_lost(id, clock::now());
        // It may be the turn of the reader again.
        inner.wake();
        self.shared.notify_pump(inner);
    }

    /// Has the pump send the upstream a ping; see
    /// [`handle_quiet`](crate::protocol::stream::Lifecycle::handle_quiet). Returns true if it does:
    /// this process makes the call, and its request was sent.
    pub(super) fn keep_alive(&self) -> bool {
        if !self.upstream.is_sent() {
            return false;
        }
        let mut inner = self.shared.lock();
        let pings = inner.machine.lifecycle_mut().handle_quiet();
        if pings {
            self.shared.notify_pump(inner);
        }
        pings
    }

    /// Ends the stream with the error `code` for each owed response: its session was deleted, or
    /// the process ends.
    pub fn expire(&self, code: ErrorCode) {
        self.change(|machine, now| machine.handle_expire(code, now));
    }

    /// Makes one step of the machine. With a store, returns the batch to write; without one, the
    /// events are in the tail already.
    pub(super) fn advance<R>(&self, change: impl FnOnce(&mut Machine, Instant) -> R) -> Advanced<R> {
        let now = clock::now();
        let mut inner = self.shared.lock();
        let result = change(&mut inner.machine, now);
        let mut stored = false;
        let staged = match self.backing {
            Some(_) => self.stage(&mut inner),
            None => {
                while let Some(ready) = inner.machine.lifecycle_mut().poll_batch() {
                    inner.accept(ready, self.shared.bounds, now);
                    stored = true;
                }
                None
            }
        };
        let needs_eviction = inner.needs_eviction();
        self.shared.publish(inner, stored);
        Advanced { result, staged, needs_eviction }
    }
}
