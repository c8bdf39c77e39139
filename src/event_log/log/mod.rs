//! The log of streams: creates and finds them, and has the parts that keep them.

mod tasks;

pub use tasks::TaskTerms;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::config::OnUnreachable;
use crate::event_log::backing::Backing;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::broken_calls::BrokenCalls;
use crate::event_log::identity::Identity;
use crate::event_log::metrics::Metrics;
use crate::event_log::quota::{
    Quota, QuotaKey, QuotaLimits, Quotas, Reservation, StreamReservation, TailLimits, UploadReservation,
};
use crate::event_log::recovery::adoption::Adoption;
use crate::event_log::recovery::restore::Restoration;
use crate::event_log::recovery::resync::Resync;
use crate::event_log::replicas::claims::Claims;
use crate::event_log::replicas::homes::Homes;
use crate::event_log::replicas::kept_responses::KeptResponses;
use crate::event_log::replicas::leases::Leases;
use crate::event_log::replicas::readers::RemoteReaders;
use crate::event_log::replicas::sessions::StoredSessions;
use crate::event_log::retention::Retention;
use crate::event_log::retry_index::{Match, RetryIndex};
use crate::event_log::sessions::Sessions;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::stream::summary::Summary;
use crate::event_log::stream::{Spec, Stream};
use crate::event_log::writer::Writer;
use crate::event_log::writer::stream_table::{StreamEntry, StreamTable};
use crate::identity::Binding;
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

/// Interval of the checks of a drain for undelivered responses.
const FETCH_POLL: Duration = Duration::from_millis(50);

/// Name that a client gives for its stream. Its handle is `None` if it was signed with a key that
/// this log does not have.
#[derive(Clone, Copy, Debug)]
pub enum StreamName<'a> {
    /// Event ID. Names the stream in the session that the stream belongs to.
    Event(Option<&'a Verified>),
    /// ID of a task. Names it in any session of the caller: clients that connect anew continue
    /// their tasks.
    Task(Option<&'a Verified>),
    /// Resume token. Names the stream in any session of the caller, because tokens outlive
    /// sessions.
    Token(&'a ResumeToken, Option<&'a Verified>),
}

impl<'a> StreamName<'a> {
    /// Returns the contents of the handle, or `None` if it is forged.
    pub fn verified(self) -> Option<&'a Verified> {
        match self {
            Self::Event(verified) | Self::Task(verified) | Self::Token(_, verified) => verified,
        }
    }
}

/// All streams of this process.
pub struct EventLog {
    pub(in crate::event_log) context: Arc<StreamContext>,
    pub(in crate::event_log) streams: Arc<StreamTable>,
    sessions: Arc<Sessions>,
    retry_index: Arc<RetryIndex<Stream>>,
    broken_calls: Arc<BrokenCalls>,
    retention: Arc<Retention>,
    leases: Arc<Leases>,
    readers: RemoteReaders,
    homes: Arc<Homes>,
    stored_sessions: Arc<StoredSessions>,
    claims: Claims,
    kept_responses: Arc<KeptResponses>,
    adoption: Arc<Adoption>,
    restoration: Restoration,
    resync: Arc<Resync>,
    dummy_secret: [u8; 16],
}

impl EventLog {
    /// Creates an empty log. `backing: None` is the memory store: the tail alone; `traces: None`
    /// traces no call.
    pub fn new(
        identity: Identity,
        bounds: TailLimits,
        allowance: QuotaLimits,
        metrics: Arc<Metrics>,
        backing: Option<Backing>,
        traces: Option<Arc<Traces>>,
    ) -> Self {
        let sessions = Arc::new(Sessions::new(metrics.clone(), allowance.max_sessions));
        if backing.is_some() {
            sessions.handshakes().changes().keep();
        }
        let streams = Arc::new(StreamTable::new(Quotas::new(allowance, metrics)));
        let room = Arc::downgrade(&streams);
        streams.quotas.set_room(room);
        let (here, backing) = (identity.owner, backing.map(Arc::new));
        let context =
            Arc::new(StreamContext { identity: Arc::new(identity), bounds, backing: backing.clone(), traces });
        let retry_index: Arc<RetryIndex<Stream>> = Arc::default();
        let retention =
            Arc::new(Retention::new(context.clone(), streams.clone(), retry_index.clone(), sessions.clone()));
        let leases = Arc::new(Leases::new(here, backing.as_ref()));
        let homes = Arc::new(Homes::new(here, backing.clone(), leases.clone(), sessions.clone()));
        let stored_sessions = Arc::new(StoredSessions::new(backing.clone(), sessions.clone(), homes.clone()));
        let kept_responses = Arc::new(KeptResponses::new(backing.clone()));
        let adoption = Arc::new(Adoption::new(context.clone(), streams.clone(), leases.clone()));
        Self {
            readers: RemoteReaders::new(streams.clone(), backing.as_ref()),
            claims: Claims::new(here, backing.clone(), retry_index.clone(), retention.clone()),
            restoration: Restoration::new(
                context.clone(),
                streams.clone(),
                retention.clone(),
                leases.clone(),
                adoption.clone(),
            ),
            resync: Arc::new(Resync {
                backing,
                streams: streams.clone(),
                retention: retention.clone(),
                retry_index: retry_index.clone(),
                sessions: sessions.clone(),
                stored_sessions: stored_sessions.clone(),
                kept_responses: kept_responses.clone(),
            }),
            context,
            streams,
            sessions,
            retry_index,
            broken_calls: Arc::default(),
            retention,
            leases,
            homes,
            stored_sessions,
            kept_responses,
            adoption,
            dummy_secret: random::bytes(),
        }
    }

    /// Returns the traces of calls, or `None` if calls are not traced.
    pub fn traces(&self) -> Option<&Arc<Traces>> {
        self.context.traces.as_ref()
    }

    /// Returns the quota of `key`.
    pub fn quota(&self, key: QuotaKey) -> Arc<Quota> {
        self.streams.quotas.of(key)
    }

    /// Reserves memory for one more call with a request of this size. `held`, the memory that the
    /// request has reserved already, becomes the stream's reservation. May evict delivered streams.
    ///
    /// # Errors
    /// The limit that was reached: `TooManyDetached`, `ShareFull`, `ProxyFull` or `TooManyStreams`;
    /// or `StoreFailed` if no call may begin without a store.
    pub fn admit(&self, held: Reservation, request_bytes: usize) -> Result<StreamReservation, ErrorCode> {
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
        self.context.backing.as_ref().is_none_or(|backing| match backing.store.health() {
            StoreHealth::Ready => true,
            StoreHealth::Full => false,
            StoreHealth::Unreachable => backing.on_unreachable == OnUnreachable::Degrade,
        })
    }

    /// Returns the health of the store.
    pub fn store_health(&self) -> StoreHealth {
        self.context.backing.as_ref().map_or(StoreHealth::Ready, |backing| backing.store.health())
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
        Arc::new(Stream::new(id, &self.context, spec, reservation, clock::now()))
    }

    /// Creates the stream of a call that began at `began`.
    pub fn create_begun(&self, spec: Spec, reservation: StreamReservation, began: Instant) -> Arc<Stream> {
        Arc::new(Stream::new(StreamId::from_bytes(random::bytes()), &self.context, spec, reservation, began))
    }

    /// Returns the one writer of a stream that [`Self::create`] made. To be called once.
    pub fn writer(&self, stream: &Arc<Stream>) -> Writer {
        Writer::new(stream.clone(), self.streams.clone())
    }

    /// Publishes the stream, so that resumes find it from its first id on.
    pub fn publish_once(&self, stream: &Arc<Stream>) {
        self.streams.publish_once(stream);
    }

    /// Returns the contents of an event ID if a key of this log signed it, or `None` if it is
    /// forged. Checked once: the methods that find or restore a stream take the result.
    pub fn verify(&self, id: &EventId) -> Option<Verified> {
        id.verify(&self.context.identity.keys)
    }

    /// Does as [`Self::verify`] for the ID of a task, and for nothing else.
    pub fn verify_task(&self, id: &EventId) -> Option<Verified> {
        id.verify_task(&self.context.identity.keys)
    }

    /// Returns the stream of an event ID and the cursor in it, if the caller may have it; see
    /// [`Self::find_by`].
    pub fn find(&self, id: Option<&Verified>, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_by(StreamName::Event(id), binding)
    }

    /// Returns the stream with this name and the cursor in it, if the caller may have it. Forged,
    /// foreign, cancelled, abandoned, unknown and forgotten ones are indistinguishable from
    /// outside, also by time: every step is taken in every case.
    pub fn find_by(&self, name: StreamName<'_>, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(name, |owner| match name {
            StreamName::Event(_) => owner.admits(binding),
            StreamName::Task(_) | StreamName::Token(..) => owner.principal == binding.principal,
        })
    }

    /// Returns the stream that [`Self::find_by`] would find if the caller's token were genuine; see
    /// [`Binding::is_claimed_by`].
    pub fn find_claimed(&self, name: StreamName<'_>, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(name, |owner| match name {
            StreamName::Event(_) => owner.is_claimed_by(binding),
            StreamName::Task(_) | StreamName::Token(..) => {
                owner.has_subject_of(binding) && owner.principal != binding.principal
            }
        })
    }

    fn find_where(&self, name: StreamName<'_>, admits: impl Fn(&Binding) -> bool) -> Option<(Arc<Stream>, Seq)> {
        let found = self.find_owned(name.verified(), admits);
        let stream = found.as_ref().map(|(stream, _)| stream);
        let is_meant = match name {
            StreamName::Event(_) => true,
            StreamName::Task(_) => stream.is_some_and(|stream| stream.with_machine(|machine| machine.policy().is_task)),
            StreamName::Token(token, _) => {
                // Without a stream, the token is compared with a secret that opens none.
                let dummy = Secret::from_bytes(self.dummy_secret);
                let secret = stream.and_then(|stream| stream.handles().secret()).unwrap_or(&dummy);
                let opens = token.is_opened_by(secret);
                opens && stream.is_some_and(|stream| !stream.with_machine(|machine| machine.lifecycle().is_revoked()))
            }
        };
        found.filter(|_| is_meant)
    }

    fn find_owned(&self, handle: Option<&Verified>, admits: impl Fn(&Binding) -> bool) -> Option<(Arc<Stream>, Seq)> {
        let id = handle.map_or(StreamId::from_bytes([0; 12]), |verified| verified.stream);
        let is_admitted = |known: &StreamEntry| admits(known.binding()) || simulation::has(Bug::AdmitsAnyone);
        let is_callers = self.streams.entries.get(&id).is_some_and(|known| is_admitted(known.value()));
        let verified = handle.filter(|_| is_callers)?;
        let stream = self.retention.expand(id)?;
        let cursor = stream.replica().resume_cursor(verified.seq, verified.is_adopted);
        Some((stream, cursor))
    }

    /// Returns this replica, the owner of new streams.
    pub fn owner(&self) -> Owner {
        self.context.identity.owner
    }

    /// Returns the epoch of the store's contents, part of the ids of new streams.
    pub fn epoch(&self) -> StoreEpoch {
        self.context.backing.as_ref().and_then(|backing| backing.epoch()).unwrap_or(self.context.identity.epoch)
    }

    /// Returns the retention of the streams that can be found.
    pub fn retention(&self) -> &Retention {
        &self.retention
    }

    /// Returns the leases of the replicas.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Returns the homes of the sessions.
    pub fn homes(&self) -> &Arc<Homes> {
        &self.homes
    }

    /// Returns the records of sessions in the store.
    pub fn stored_sessions(&self) -> &StoredSessions {
        &self.stored_sessions
    }

    /// Returns the claims of calls with a key.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Returns the kept responses of calls with a key.
    pub fn kept_responses(&self) -> &KeptResponses {
        &self.kept_responses
    }

    /// Returns the adoption of the streams of dead writers.
    pub fn adoption(&self) -> &Arc<Adoption> {
        &self.adoption
    }

    /// Returns the restoration of streams from the store.
    pub fn restoration(&self) -> &Restoration {
        &self.restoration
    }

    /// Returns the resync of the store after a loss.
    pub fn resync(&self) -> &Arc<Resync> {
        &self.resync
    }

    /// Returns the readers at other replicas.
    pub fn remote_readers(&self) -> &RemoteReaders {
        &self.readers
    }

    /// Returns the records of sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Issues an id for a session that the upstream did not name.
    pub fn issue_session(&self, session: &IssuedSession) -> Option<SessionId> {
        session.seal(&self.context.identity.keys, random::bytes())
    }

    /// Decodes a session id that a proxy with any of these keys has issued.
    pub fn open_issued(&self, id: &SessionId) -> Option<IssuedSession> {
        IssuedSession::open(id, &self.context.identity.keys)
    }

    /// Returns the stream of the oldest call with this fingerprint, or `None` if no retry can match
    /// one.
    pub fn find_call(&self, call: &Fingerprint) -> Option<Arc<Stream>> {
        self.find_calls(call).into_iter().next()
    }

    /// Returns the streams of the calls with this fingerprint, the oldest first. There are several
    /// only where request IDs are free.
    pub fn find_calls(&self, call: &Fingerprint) -> Vec<Arc<Stream>> {
        self.retry_index.find(call, |id| self.retention.expand(id))
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
        self.retry_index.find_or_register(call, keeps_others, |id| self.retention.expand(id), matches, create)
    }

    /// Returns the index of calls that a retry may match.
    pub fn retry_index(&self) -> &Arc<RetryIndex<Stream>> {
        &self.retry_index
    }

    /// Returns the calls outside sessions whose connection broke lately.
    pub fn broken_calls(&self) -> &Arc<BrokenCalls> {
        &self.broken_calls
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

    /// Ends every connection that reads now, so that its client finds the stream at another
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
        self.context.backing.is_some()
    }

    /// Returns the policy for an unreachable store.
    pub fn on_unreachable(&self) -> OnUnreachable {
        self.context.backing.as_ref().map_or(OnUnreachable::Degrade, |backing| backing.on_unreachable)
    }

    /// Returns the coordination of a shared store, or `None` if the store is not shared.
    pub fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        self.context.backing.as_ref()?.coordination.clone()
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // The claims outlive this process.
        self.claims.leave_all();
    }
}

/// Returns a fresh id for a connection's attachment.
pub fn new_attach() -> AttachId {
    AttachId(u64::from_be_bytes(random::bytes()))
}
