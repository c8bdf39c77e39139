//! The log of streams: creates, finds, keeps and forgets them.

mod finished;
mod retention;
mod stubs;
mod tasks;

pub use finished::FoundStreams;
pub use tasks::TaskTerms;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock;
use crate::config::OnUnreachable;
use crate::event_log::backing::Backing;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::backing::living::Living;
use crate::event_log::backing::reader_table::ReaderTable;
use crate::event_log::identity::Identity;
use crate::event_log::identity::binding::Binding;
use crate::event_log::metrics::Metrics;
use crate::event_log::quota::{
    Quota, QuotaKey, QuotaLimits, Quotas, Reservation, StreamReservation, TailLimits, UploadReservation,
};
use crate::event_log::retry_index::{Match, RetryIndex};
use crate::event_log::sessions::Sessions;
use crate::event_log::stream::summary::Summary;
use crate::event_log::stream::{Spec, Stream};
use crate::event_log::sweeper::Sweeper;
use crate::event_log::writer::Writer;
use crate::event_log::writer::stream_table::{StreamEntry, StreamTable};
use crate::otel::Traces;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::{
    AttachId, EventId, IssuedSession, Owner, ResumeToken, Secret, Seq, StoreEpoch, StreamId, Verified,
};
use crate::protocol::request_ids::IdUse;
use crate::random;
use crate::simulation::{self, Bug};
use crate::store::{Coordination, StoreHealth};

/// Late responses that are written at a time, once the store accepts writes again.
pub(in crate::event_log) const LATE_WRITES_MAX: usize = 16;
/// Interval of the checks of a drain for undelivered responses.
const FETCH_POLL: Duration = Duration::from_millis(50);

/// All streams of this process.
pub struct EventLog {
    pub(in crate::event_log) identity: Arc<Identity>,
    pub(in crate::event_log) bounds: TailLimits,
    pub(in crate::event_log) backing: Option<Arc<Backing>>,
    pub(in crate::event_log) streams: Arc<StreamTable>,
    pub(in crate::event_log) sessions: Sessions,
    pub(in crate::event_log) retry_index: Arc<RetryIndex<Stream>>,
    pub(in crate::event_log) sweeper: Sweeper,
    pub(in crate::event_log) readers: ReaderTable,
    /// Permits for the late responses that are written to the store.
    pub(in crate::event_log) late_responses: Arc<Semaphore>,
    /// Replicas whose lease had expired at the last sweep; see [`EventLog::set_expired_owners`].
    pub(in crate::event_log) expired_owners: Mutex<HashSet<Owner>>,
    /// Replicas whose lease runs.
    pub(in crate::event_log) living: Living,
    pub(in crate::event_log) dummy_secret: [u8; 16],
    traces: Option<Arc<Traces>>,
}

impl EventLog {
    /// Creates an empty log. `backing: None` is the memory store: the tail alone.
    pub fn new(
        identity: Identity,
        bounds: TailLimits,
        allowance: QuotaLimits,
        metrics: Arc<Metrics>,
        backing: Option<Backing>,
    ) -> Self {
        let sessions = Sessions::new(metrics.clone(), allowance.max_sessions);
        if backing.is_some() {
            sessions.handshakes().keep_changes();
        }
        let streams = Arc::new(StreamTable::new(Quotas::new(allowance, metrics)));
        let room = Arc::downgrade(&streams);
        streams.quotas.set_room(room);
        Self {
            identity: Arc::new(identity),
            bounds,
            backing: backing.map(Arc::new),
            streams,
            sessions,
            retry_index: Arc::default(),
            sweeper: Sweeper::default(),
            readers: ReaderTable::default(),
            late_responses: Arc::new(Semaphore::new(LATE_WRITES_MAX)),
            expired_owners: Mutex::default(),
            living: Living::default(),
            dummy_secret: random::bytes(),
            traces: None,
        }
    }

    /// Sets the traces of calls, or `None` for none.
    pub fn with_traces(mut self, traces: Option<Arc<Traces>>) -> Self {
        self.traces = traces;
        self
    }

    /// Returns the traces of calls, or `None` if calls are not traced.
    pub fn traces(&self) -> Option<&Arc<Traces>> {
        self.traces.as_ref()
    }

    /// Returns the quota of `key`.
    pub fn quota(&self, key: QuotaKey) -> Arc<Quota> {
        self.streams.quotas.of(key)
    }

    /// Reserves memory for one more call of `quota` with a request of this size. May evict
    /// delivered streams.
    ///
    /// # Errors
    /// The limit that was reached: `TooManyDetached`, `ShareFull`, `ProxyFull` or `TooManyStreams`;
    /// or `StoreFailed` if no call may begin without a store.
    pub fn admit(&self, quota: &Arc<Quota>, request_bytes: usize) -> Result<StreamReservation, ErrorCode> {
        self.admit_held(quota.reserve(0), request_bytes)
    }

    /// Does as [`Self::admit`] for a request that has reserved memory already: `held` becomes the
    /// stream's reservation.
    ///
    /// # Errors
    /// As for [`Self::admit`].
    pub fn admit_held(&self, held: Reservation, request_bytes: usize) -> Result<StreamReservation, ErrorCode> {
        if !self.can_take_calls() {
            return Err(ErrorCode::StoreFailed);
        }
        self.streams.admit(held, request_bytes)
    }

    /// Reserves memory for a session's standalone stream. That is no call: the limits of running
    /// and of detached calls do not apply.
    ///
    /// # Errors
    /// `ShareFull`, `ProxyFull`, or `StoreFailed`.
    pub fn admit_standalone(&self, quota: &Arc<Quota>, request_bytes: usize) -> Result<StreamReservation, ErrorCode> {
        if !self.can_take_calls() {
            return Err(ErrorCode::StoreFailed);
        }
        self.streams.admit_standalone(quota, request_bytes)
    }

    /// Returns whether the store allows new calls.
    pub fn can_take_calls(&self) -> bool {
        self.backing.as_ref().is_none_or(|backing| match backing.store.health() {
            StoreHealth::Ready => true,
            StoreHealth::Full => false,
            StoreHealth::Unreachable => backing.on_unreachable == OnUnreachable::Degrade,
        })
    }

    /// Returns the health of the store.
    pub fn store_health(&self) -> StoreHealth {
        self.backing.as_ref().map_or(StoreHealth::Ready, |backing| backing.store.health())
    }

    /// Evicts until the quota of `reservation` is within its limits.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull`.
    pub fn evict_for(&self, reservation: &Reservation) -> Result<(), ErrorCode> {
        self.streams.ensure_within_limits(reservation.quota())
    }

    /// Evicts for a POST without requests, if that needs capacity.
    ///
    /// # Errors
    /// As for [`Self::evict_for`].
    pub fn evict_for_upload(&self, carried: &UploadReservation) -> Result<(), ErrorCode> {
        if carried.needs_capacity() { self.evict_for(carried.reservation()) } else { Ok(()) }
    }

    /// Creates a stream, which cannot be found yet.
    pub fn create(&self, spec: Spec, reservation: StreamReservation) -> Arc<Stream> {
        self.create_as(StreamId::from_bytes(random::bytes()), spec, reservation)
    }

    /// Creates a stream with a known id.
    pub fn create_as(&self, id: StreamId, spec: Spec, reservation: StreamReservation) -> Arc<Stream> {
        Arc::new(Stream::new(
            id,
            self.identity.clone(),
            self.bounds,
            self.backing.clone(),
            spec,
            reservation,
            clock::now(),
        ))
    }

    /// Returns the one writer of a stream that [`Self::create`] made. To be called once.
    pub fn writer(&self, stream: &Arc<Stream>) -> Writer {
        Writer::new(stream.clone(), self.streams.clone())
    }

    /// Publishes the stream, so that resumes find it from its first id on.
    pub fn publish_once(&self, stream: &Arc<Stream>) {
        if stream.publish_first() {
            self.streams.insert(stream);
            // Another replica may have adopted the stream before it was published, when there was
            // no entry to remove.
            if stream.replica().has_moved() {
                self.streams.leave(stream);
            }
        }
    }

    /// Returns the contents of an event ID if a key of this log signed it, or `None` if it is
    /// forged. Checked once: the methods that find or restore a stream take the result.
    pub fn verify(&self, id: &EventId) -> Option<Verified> {
        id.verify(&self.identity.keys)
    }

    /// Does as [`Self::verify`] for the ID of a task, and for nothing else.
    pub fn verify_task(&self, id: &EventId) -> Option<Verified> {
        id.verify_task(&self.identity.keys)
    }

    /// Returns the stream of an event ID and the cursor in it, if the caller may have it. Forged,
    /// foreign, unknown and forgotten ids are indistinguishable from outside, also by time: every
    /// step is taken in every case.
    pub fn find(&self, id: Option<&Verified>, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(id, |owner| owner.admits(binding))
    }

    /// Returns the stream of an event ID if it would be the caller's with a genuine token; see
    /// [`Binding::is_claimed_by`].
    pub fn find_claimed(&self, id: Option<&Verified>, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(id, |owner| owner.is_claimed_by(binding))
    }

    /// Returns the stream of a task, in any session of the caller: clients that connect anew go on
    /// with their tasks.
    pub fn find_task(&self, handle: Option<&Verified>, binding: &Binding) -> Option<Arc<Stream>> {
        let found = self.find_where(handle, |owner| owner.principal == binding.principal);
        found.map(|(stream, _)| stream).filter(|stream| stream.with_machine(|machine| machine.policy().is_task))
    }

    /// Returns the stream of a task if it would be the caller's with a genuine token; see
    /// [`Binding::is_claimed_by`].
    pub fn find_claimed_task(&self, handle: Option<&Verified>, binding: &Binding) -> Option<Arc<Stream>> {
        let is_claimed = |owner: &Binding| owner.has_subject_of(binding) && owner.principal != binding.principal;
        let found = self.find_where(handle, is_claimed);
        found.map(|(stream, _)| stream).filter(|stream| stream.with_machine(|machine| machine.policy().is_task))
    }

    /// Returns the stream that a resume token opens for this caller, in any session, because tokens
    /// outlive sessions. Forged, foreign, cancelled, abandoned and forgotten ones are
    /// indistinguishable from outside, also by time.
    pub fn find_by_token(
        &self,
        token: &ResumeToken,
        handle: Option<&Verified>,
        binding: &Binding,
    ) -> Option<Arc<Stream>> {
        self.find_opened(token, handle, |owner| owner.principal == binding.principal)
    }

    /// Returns the stream that a resume token opens if it would be the caller's with a genuine
    /// token of its own.
    pub fn find_claimed_by_token(
        &self,
        token: &ResumeToken,
        handle: Option<&Verified>,
        binding: &Binding,
    ) -> Option<Arc<Stream>> {
        self.find_opened(token, handle, |owner| owner.has_subject_of(binding) && owner.principal != binding.principal)
    }

    fn find_opened(
        &self,
        token: &ResumeToken,
        handle: Option<&Verified>,
        admits: impl Fn(&Binding) -> bool,
    ) -> Option<Arc<Stream>> {
        let found = self.find_where(handle, admits).map(|(stream, _)| stream);
        // Without a stream, the token is compared with a secret that opens none.
        let dummy = Secret::from_bytes(self.dummy_secret);
        let secret = found.as_ref().and_then(|stream| stream.handles().secret()).unwrap_or(&dummy);
        let opens = token.is_opened_by(secret);
        found.filter(|stream| opens && !stream.with_machine(|machine| machine.lifecycle().is_revoked()))
    }

    fn find_where(&self, verified: Option<&Verified>, admits: impl Fn(&Binding) -> bool) -> Option<(Arc<Stream>, Seq)> {
        let name = verified.map_or(StreamId::from_bytes([0; 12]), |verified| verified.stream);
        let is_admitted = |known: &StreamEntry| admits(known.binding()) || simulation::has(Bug::AdmitsAnyone);
        let is_callers = self.streams.entries.get(&name).is_some_and(|known| is_admitted(known.value()));
        match (is_callers, verified) {
            (true, Some(verified)) => {
                let stream = self.expand(name)?;
                let cursor = stream.replica().resume_cursor(verified.seq, verified.is_adopted);
                Some((stream, cursor))
            }
            (true, None) | (false, _) => None,
        }
    }

    /// Returns this replica, the owner of new streams.
    pub fn owner(&self) -> Owner {
        self.identity.owner
    }

    /// Returns the epoch of the store's contents, part of the ids of new streams.
    pub fn epoch(&self) -> StoreEpoch {
        self.backing.as_ref().and_then(|backing| backing.epoch()).unwrap_or(self.identity.epoch)
    }

    /// Returns the records of sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Issues an id for a session that the upstream did not name.
    pub fn issue_session(&self, session: &IssuedSession) -> Option<SessionId> {
        session.seal(&self.identity.keys, random::bytes())
    }

    /// Decodes a session id, if a proxy with one of these keys issued it.
    pub fn open_issued(&self, id: &SessionId) -> Option<IssuedSession> {
        IssuedSession::open(id, &self.identity.keys)
    }

    /// Returns the stream of the oldest call with this fingerprint, or `None` if no retry can match
    /// one.
    pub fn find_call(&self, call: &Fingerprint) -> Option<Arc<Stream>> {
        self.find_calls(call).into_iter().next()
    }

    /// Returns the streams of the calls with this fingerprint, the oldest first. There are several
    /// only where request IDs are free.
    pub fn find_calls(&self, call: &Fingerprint) -> Vec<Arc<Stream>> {
        self.retry_index.find(call, |id| self.expand(id))
    }

    /// Returns the stream of the oldest call with this fingerprint that `matches` accepts; else
    /// registers the stream that `create` makes; see [`RetryIndex`]. Where IDs are free, earlier
    /// calls stay registered beside it.
    ///
    /// # Errors
    /// The error of `create`; nothing is registered then.
    pub fn find_or_register<E>(
        &self,
        call: Fingerprint,
        id_use: IdUse,
        matches: impl FnMut(&Arc<Stream>) -> bool,
        create: impl FnOnce() -> Result<Arc<Stream>, E>,
    ) -> Result<Match<Stream>, E> {
        let create = || create().map(|stream| (stream.id(), stream));
        let keeps_others = id_use == IdUse::Free;
        self.retry_index.find_or_register(call, keeps_others, |id| self.expand(id), matches, create)
    }

    /// Returns the index of calls that a retry may match.
    pub fn retry_index(&self) -> &Arc<RetryIndex<Stream>> {
        &self.retry_index
    }

    /// Returns a summary of every stream in the log, in no order.
    pub fn summaries(&self) -> Vec<Summary> {
        let now = clock::now();
        self.streams.entries.iter().map(|entry| entry.value().summary(now)).collect()
    }

    /// Returns the number of finished streams with a response that a client may still fetch; see
    /// [`Self::fetched`].
    pub fn unfetched(&self, patience: Duration) -> usize {
        let now = clock::now();
        let expects = |known: &StreamEntry| match known {
            StreamEntry::Stream(stream) => stream.with_machine(|machine| machine.reader_expected_until(patience, now)),
            StreamEntry::Stub(stub) => stub.end.reader_expected_until(patience, now),
        };
        self.streams.entries.iter().filter(|entry| expects(entry.value()).is_some()).count()
    }

    /// Waits until no client can be expected to fetch the response of a finished stream, if clients
    /// reconnect within `patience`.
    pub async fn fetched(&self, patience: Duration) {
        while self.unfetched(patience) > 0 {
            clock::sleep(FETCH_POLL).await;
        }
    }

    /// Asks every connection that reads now to end, so that its client finds the stream at another
    /// replica; see [`Stream::close_reader`].
    pub fn close_readers(&self, retry: Duration) {
        for stream in self.streams.all() {
            stream.replica().close_reader(retry);
        }
    }

    /// Ends every open stream with the error `code` for each owed response.
    pub fn end_all(&self, code: ErrorCode) {
        for stream in self.streams.all() {
            stream.expire(code);
        }
    }

    /// Returns the number of streams in the log.
    pub fn len(&self) -> usize {
        self.streams.entries.len()
    }

    /// Returns whether the log is empty.
    pub fn is_empty(&self) -> bool {
        self.streams.entries.is_empty()
    }

    /// Returns whether a store outlives this process.
    pub fn has_store(&self) -> bool {
        self.backing.is_some()
    }

    /// Returns the policy for an unreachable store.
    pub fn on_unreachable(&self) -> OnUnreachable {
        self.backing.as_ref().map_or(OnUnreachable::Degrade, |backing| backing.on_unreachable)
    }

    /// Returns the coordination of a shared store, or `None` if the store is not shared.
    pub fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        self.backing.as_ref()?.coordination.clone()
    }

    /// Leaves the claims of all calls in the store: this process ends, and others, or the next one,
    /// serve its streams.
    pub fn leave_claims(&self) {
        for claim in self.retry_index().claims() {
            claim.leave();
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // The claims outlive this process.
        self.leave_claims();
    }
}

/// Returns a fresh id for a connection's attachment.
pub fn new_attach() -> AttachId {
    AttachId(u64::from_be_bytes(random::bytes()))
}
