//! The log of streams: creates, finds, keeps and forgets them.

mod retention;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock;
use crate::config::OnUnreachable;
use crate::event_log::backing::Backing;
use crate::event_log::backing::claim::ReleasedClaims;
use crate::event_log::backing::reader_table::ReaderTable;
use crate::event_log::identity::Identity;
use crate::event_log::identity::ownership::Binding;
use crate::event_log::metrics::Metrics;
use crate::event_log::quota::{
    Quota, QuotaKey, QuotaLimits, Quotas, Reservation, StreamReservation, TailLimits, UploadReservation,
};
use crate::event_log::retry_index::RetryIndex;
use crate::event_log::sessions::Sessions;
use crate::event_log::stream::summary::Summary;
use crate::event_log::stream::{Spec, Stream};
use crate::event_log::sweeper::Sweeper;
use crate::event_log::writer::Writer;
use crate::event_log::writer::stream_table::{StreamEntry, StreamTable};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::{
    AttachId, EventId, IssuedSession, Owner, ResumeToken, Secret, Seq, StoreEpoch, StreamId, Verified,
};
use crate::random;
use crate::simulation::{self, Bug};
use crate::store::{Coordination, StoreHealth};

/// TailLimits the answers that are written to the store at a time once it takes them again.
pub(in crate::event_log) const LATE_WRITES_MAX: usize = 16;
/// How often a drain looks whether answers were fetched.
const FETCH_LOOK: Duration = Duration::from_millis(50);

/// All streams of this process.
pub struct EventLog {
    pub(in crate::event_log) identity: Arc<Identity>,
    pub(in crate::event_log) bounds: TailLimits,
    pub(in crate::event_log) backing: Option<Arc<Backing>>,
    pub(in crate::event_log) streams: Arc<StreamTable>,
    pub(in crate::event_log) sessions: Sessions,
    pub(in crate::event_log) retry_index: Arc<RetryIndex<Stream>>,
    pub(in crate::event_log) released: Arc<ReleasedClaims>,
    pub(in crate::event_log) sweeper: Sweeper,
    pub(in crate::event_log) readers: ReaderTable,
    /// The turns of answers that wait for the store.
    pub(in crate::event_log) late_responses: Arc<Semaphore>,
    /// Replicas whose lease has lapsed; see [`EventLog::set_expired_owners`].
    pub(in crate::event_log) expired_owners: Mutex<HashSet<Owner>>,
    pub(in crate::event_log) dummy_secret: [u8; 16],
}

impl EventLog {
    /// An empty log. `backing: None` is the memory store: the tail alone.
    pub fn new(
        identity: Identity,
        bounds: TailLimits,
        allowance: QuotaLimits,
        metrics: Arc<Metrics>,
        backing: Option<Backing>,
    ) -> Self {
        Self {
            identity: Arc::new(identity),
            bounds,
            backing: backing.map(Arc::new),
            streams: Arc::new(StreamTable::new(Quotas::new(allowance, metrics.clone()))),
            sessions: Sessions::new(metrics, allowance.max_sessions),
            retry_index: Arc::default(),
            released: Arc::default(),
            sweeper: Sweeper::default(),
            readers: ReaderTable::default(),
            late_responses: Arc::new(Semaphore::new(LATE_WRITES_MAX)),
            expired_owners: Mutex::default(),
            dummy_secret: random::bytes(),
        }
    }

    /// What `sharer` holds.
    pub fn quota(&self, key: QuotaKey) -> Arc<Quota> {
        self.streams.quotas.of(key, clock::now())
    }

    /// StreamTable for one more call of `share`, whose request has so many bytes. May forget streams that have arrived.
    ///
    /// # Errors
    /// The bound that was reached: `TooManyDetached`, `ShareFull`, `ProxyFull` or `TooManyStreams`; or `StoreFailed`, where no call may
    /// begin without a store.
    pub fn admit(&self, quota: &Arc<Quota>, request_bytes: usize) -> Result<StreamReservation, ErrorCode> {
        if !self.takes_calls() {
            return Err(ErrorCode::StoreFailed);
        }
        self.streams.admit(quota, request_bytes)
    }

    /// StreamTable for a session's standalone stream. That is no call: neither the bound of those that run nor that of those without a
    /// client holds for it.
    ///
    /// # Errors
    /// `ShareFull`, `ProxyFull`, or `StoreFailed`.
    pub fn admit_standalone(&self, quota: &Arc<Quota>, request_bytes: usize) -> Result<StreamReservation, ErrorCode> {
        if !self.takes_calls() {
            return Err(ErrorCode::StoreFailed);
        }
        self.streams.admit_standalone(quota, request_bytes)
    }

    /// Whether new calls may begin, for all that the store says.
    pub fn takes_calls(&self) -> bool {
        self.backing.as_ref().is_none_or(|backing| match backing.store.health() {
            StoreHealth::Ready => true,
            StoreHealth::Full => false,
            StoreHealth::Unreachable => backing.on_unreachable == OnUnreachable::Degrade,
        })
    }

    /// Whether the store can be reached, and takes what is new.
    pub fn store_health(&self) -> StoreHealth {
        self.backing.as_ref().map_or(StoreHealth::Ready, |backing| backing.store.health())
    }

    /// StreamTable for what `holding` holds of a request, made where it can be.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull`.
    pub fn evict_for(&self, reservation: &Reservation) -> Result<(), ErrorCode> {
        self.streams.ensure_within_limits(reservation.quota())
    }

    /// The same for a POST without requests, where it needs any.
    ///
    /// # Errors
    /// As for [`Self::make_room`].
    pub fn evict_for_upload(&self, carried: &UploadReservation) -> Result<(), ErrorCode> {
        if carried.needs_capacity() { self.evict_for(carried.reservation()) } else { Ok(()) }
    }

    /// A new stream, not yet found by anybody.
    pub fn create(&self, spec: Spec, reservation: StreamReservation) -> Arc<Stream> {
        self.create_as(StreamId::from_bytes(random::bytes()), spec, reservation)
    }

    /// The same of one whose name is known already.
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

    /// The one writer of a stream that [`Self::create`] made; asked for once.
    pub fn writer(&self, stream: &Arc<Stream>) -> Writer {
        Writer::new(stream.clone(), self.streams.clone())
    }

    /// Lets resumes find the stream, from its first id on.
    pub fn publish_once(&self, stream: &Arc<Stream>) {
        if stream.publish_first() {
            self.streams.insert(stream);
            // Where another replica has taken it before, or just now, it was not there to be left.
            if stream.has_moved() {
                self.streams.leave(stream);
            }
        }
    }

    /// Returns the contents of an event ID if a key of this log signed it, or `None` if it is forged. Checked once: the methods that find or
    /// restore a stream take the result.
    pub fn verify(&self, id: &EventId) -> Option<Verified> {
        id.verify(&self.identity.keys)
    }

    /// The stream an event ID names and the cursor in it, if the caller may have it. Forged, foreign, unknown and forgotten
    /// look the same from outside, in time as well: every step is taken in every case.
    pub fn find(&self, id: Option<&Verified>, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(id, |owner| owner.admits(binding))
    }

    /// The same where the caller may have it only if its token is what it claims to be.
    pub fn find_claimed(&self, id: Option<&Verified>, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(id, |owner| owner.is_claimed_by(binding))
    }

    /// The stream that a resume token opens for this caller, in whichever session: tokens outlive those. Forged, foreign, cancelled,
    /// abandoned and forgotten look the same from outside, in time as well.
    pub fn find_by_token(
        &self,
        token: &ResumeToken,
        handle: Option<&Verified>,
        binding: &Binding,
    ) -> Option<Arc<Stream>> {
        self.find_opened(token, handle, |owner| owner.principal == binding.principal)
    }

    /// The same where the caller may have it only if its own token is what it claims to be.
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
        // Whoever has no stream to compare with compares with one that nobody has.
        let dummy = Secret::from_bytes(self.dummy_secret);
        let secret = found.as_ref().and_then(|stream| stream.secret()).unwrap_or(&dummy);
        let opens = token.is_opened_by(secret);
        found.filter(|stream| opens && !stream.look(|machine| machine.is_revoked()))
    }

    fn find_where(&self, verified: Option<&Verified>, admits: impl Fn(&Binding) -> bool) -> Option<(Arc<Stream>, Seq)> {
        let name = verified.map_or(StreamId::from_bytes([0; 12]), |verified| verified.stream);
        let is_admitted = |known: &StreamEntry| admits(known.binding()) || simulation::has(Bug::AdmitsAnyone);
        let is_callers = self.streams.entries.get(&name).is_some_and(|known| is_admitted(known.value()));
        match (is_callers, verified) {
            (true, Some(verified)) => {
                let stream = self.expand(name)?;
                let cursor = stream.resume_cursor(verified.seq, verified.is_adopted);
                Some((stream, cursor))
            }
            (true, None) | (false, _) => None,
        }
    }

    /// The replica whose streams begin here.
    pub fn owner(&self) -> Owner {
        self.identity.owner
    }

    /// The contents of the store, as streams that begin now are named by them.
    pub fn epoch(&self) -> StoreEpoch {
        self.backing.as_ref().and_then(|backing| backing.epoch()).unwrap_or(self.identity.epoch)
    }

    /// The records of sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// A name for a session that the upstream did not name.
    pub fn issue_session(&self, session: &IssuedSession) -> Option<SessionId> {
        session.seal(&self.identity.keys, random::bytes())
    }

    /// What a session's name says, if a proxy with one of our keys issued it.
    pub fn open_issued(&self, id: &SessionId) -> Option<IssuedSession> {
        IssuedSession::open(id, &self.identity.keys)
    }

    /// The calls that a retry may match.
    pub fn retry_index(&self) -> &Arc<RetryIndex<Stream>> {
        &self.retry_index
    }

    /// Every stream that can be found, as an operator may see it, in no order.
    pub fn summaries(&self) -> Vec<Summary> {
        let now = clock::now();
        self.streams.entries.iter().map(|entry| entry.value().summary(now)).collect()
    }

    /// Returns how many streams that are over have an answer that a client may still come for; see [`Self::fetched`].
    pub fn unfetched(&self, patience: Duration) -> usize {
        let now = clock::now();
        let expects = |stream: &Stream| stream.look(|machine| machine.reader_expected_until(patience, now)).is_some();
        self.streams.entries.iter().filter(|entry| entry.value().stream().is_some_and(|stream| expects(stream))).count()
    }

    /// Waits until nobody can be expected to come for the answer of a stream that is over, if clients take at most `patience` to
    /// come back.
    pub async fn fetched(&self, patience: Duration) {
        while self.unfetched(patience) > 0 {
            clock::sleep(FETCH_LOOK).await;
        }
    }

    /// Asks every connection that reads now to end, so that its client finds the stream at another replica; see
    /// [`Stream::close_reader`].
    pub fn close_readers(&self, retry: Duration) {
        self.streams.all().iter().for_each(|stream| stream.close_reader(retry));
    }

    /// Ends every stream that can be found and is not over, with the error `code` for whatever it owes.
    pub fn end_all(&self, code: ErrorCode) {
        self.streams.all().iter().for_each(|stream| stream.expire(code));
    }

    /// How many streams can be found.
    pub fn len(&self) -> usize {
        self.streams.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.streams.entries.is_empty()
    }

    /// Whether anything outlives this process.
    pub fn has_store(&self) -> bool {
        self.backing.is_some()
    }

    /// What is done without the store.
    pub fn on_unreachable(&self) -> OnUnreachable {
        self.backing.as_ref().map_or(OnUnreachable::Degrade, |backing| backing.on_unreachable)
    }

    /// The store, where other replicas use it as well.
    pub fn shared(&self) -> Option<Arc<dyn Coordination>> {
        self.backing.as_ref()?.shared.clone()
    }

    /// Leaves the records of all calls: this process ends, and others, or the next one, serve what is in the store.
    pub fn leave_claims(&self) {
        self.retry_index().streams().iter().for_each(|stream| stream.leave_claims());
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // What the store has of them outlives them.
        self.leave_claims();
    }
}

/// A fresh name for a connection's claim on a stream.
pub fn new_attach() -> AttachId {
    AttachId(u64::from_be_bytes(random::bytes()))
}
