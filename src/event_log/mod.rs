//! The one stream log: every stream, by its id, from its first byte upstream to the end of its retention.
//!
//! Owned here: the streams, the index by which a resume finds one, the records of sessions, the index of calls that a retry
//! may match, and the sweeper that forgets what is over. Invariant: no index keeps a stream longer than its retention. Absent:
//! HTTP (ingress), SSE responses (delivery) and the upstream (upstream).

mod backing;
mod identity;
mod metrics;
mod quota;
mod recovery;
mod retry_index;
mod sessions;
mod stream;
mod sweeper;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

pub use identity::ownership::Binding;
pub use identity::principal::{Principal, Principals, Shown, Subject};
pub use metrics::Metrics;
pub use quota::{Allowance, Carried, Holding, Part, Share, Sharer, Shares};
pub use recovery::follower::READER_HOLD;
pub use recovery::lease::Heard;
pub use recovery::remote_readers::Displaced;
pub use recovery::remote_retries::{Claim, Claimed, Elder, Hold, Run};
pub use recovery::restore::Unreachable;
pub use recovery::resync::{Contents, Regained};
pub use recovery::sessions::session_group;
pub use retry_index::{Fingerprint, Match, Registering, Registration, Retries};
pub use sessions::{Opened, Place, QueuedTurn, Session, Sessions, Turn, stream_owing};
pub use stream::delivery::Delivery;
pub use stream::partial_results::{Slice, Slicing};
pub use stream::reader::{Attachment, ReadOutcome};
pub use stream::response_head::{Head, Plain};
pub use stream::state::Bounds;
pub use stream::summary::Summary;
pub use stream::{Collected, Spec, Stream};
pub use writer::Writer;
pub use writer::recorder::Backing;

use crate::config::OnUnreachable;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::{
    AttachId, EventId, IssuedSession, Keyring, Owner, ResumeToken, Secret, Seq, StoreEpoch, StreamId,
};
use crate::simulation::{self, Bug};
use crate::store::Standing;
use crate::{clock, random};
use recovery::kept_responses;
use recovery::remote_readers::Readers;
use recovery::remote_retries::Released;
use stream::stub::Known;
use sweeper::{Sweeper, Verdict};
use writer::eviction::Room;
use writer::recorder;

/// How often idle sessions are looked for.
const SESSION_SWEEP: Duration = Duration::from_secs(60);

/// How often a drain looks whether answers were fetched.
const FETCH_LOOK: Duration = Duration::from_millis(50);

/// What names this replica and its store's contents in every event ID.
pub struct Identity {
    /// The replica.
    pub owner: Owner,
    /// The contents of its store when it began.
    pub epoch: StoreEpoch,
    /// Signs event IDs, and accepts them.
    pub keys: Keyring,
}

/// All streams of this process.
pub struct EventLog {
    identity: Arc<Identity>,
    bounds: Bounds,
    backing: Option<Arc<Backing>>,
    room: Arc<Room>,
    sessions: Sessions,
    retries: Arc<Retries>,
    released: Arc<Released>,
    sweeper: Sweeper,
    readers: Readers,
    /// The turns of answers that wait for the store.
    late_answers: Arc<Semaphore>,
    /// Replicas whose lease has lapsed; see [`EventLog::note_lapsed`].
    lapsed: Mutex<HashSet<Owner>>,
    nobodys_secret: [u8; 16],
}

impl EventLog {
    /// An empty log. `backing: None` is the memory store: the tail alone.
    pub fn new(
        identity: Identity,
        bounds: Bounds,
        allowance: Allowance,
        metrics: Arc<Metrics>,
        backing: Option<Backing>,
    ) -> Self {
        Self {
            identity: Arc::new(identity),
            bounds,
            backing: backing.map(Arc::new),
            room: Arc::new(Room::new(Shares::new(allowance, metrics.clone()))),
            sessions: Sessions::new(metrics, allowance.max_sessions),
            retries: Arc::default(),
            released: Arc::default(),
            sweeper: Sweeper::default(),
            readers: Readers::default(),
            late_answers: Arc::new(Semaphore::new(kept_responses::LATE_AT_ONCE)),
            lapsed: Mutex::default(),
            nobodys_secret: random::bytes(),
        }
    }

    /// What `sharer` holds.
    pub fn share(&self, sharer: Sharer) -> Arc<Share> {
        self.room.shares.of(sharer, clock::now())
    }

    /// Room for one more call of `share`, whose request has so many bytes. May forget streams that have arrived.
    ///
    /// # Errors
    /// The bound that was reached: `TooManyDetached`, `ShareFull`, `ProxyFull` or `TooManyStreams`; or `StoreFailed`, where no call may
    /// begin without a store.
    pub fn admit(&self, share: &Arc<Share>, request_bytes: usize) -> Result<Part, ErrorCode> {
        if !self.takes_calls() {
            return Err(ErrorCode::StoreFailed);
        }
        self.room.admit(share, request_bytes)
    }

    /// Room for a session's standalone stream. That is no call: neither the bound of those that run nor that of those without a
    /// client holds for it.
    ///
    /// # Errors
    /// `ShareFull`, `ProxyFull`, or `StoreFailed`.
    pub fn admit_standalone(&self, share: &Arc<Share>, request_bytes: usize) -> Result<Part, ErrorCode> {
        if !self.takes_calls() {
            return Err(ErrorCode::StoreFailed);
        }
        self.room.admit_standalone(share, request_bytes)
    }

    /// Whether new calls may begin, for all that the store says.
    pub fn takes_calls(&self) -> bool {
        self.backing.as_ref().is_none_or(|backing| match backing.store.standing() {
            Standing::Ready => true,
            Standing::Full => false,
            Standing::Unreachable => backing.on_unreachable == OnUnreachable::Degrade,
        })
    }

    /// Whether the store can be reached, and takes what is new.
    pub fn store_standing(&self) -> Standing {
        self.backing.as_ref().map_or(Standing::Ready, |backing| backing.store.standing())
    }

    /// Room for what `holding` holds of a request, made where it can be.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull`.
    pub fn make_room(&self, holding: &Holding) -> Result<(), ErrorCode> {
        self.room.require(holding.share())
    }

    /// The same for a POST without requests, where it needs any.
    ///
    /// # Errors
    /// As for [`Self::make_room`].
    pub fn make_room_for(&self, carried: &Carried) -> Result<(), ErrorCode> {
        if carried.needs_room() { self.make_room(carried.holding()) } else { Ok(()) }
    }

    /// A new stream, not yet found by anybody.
    pub fn create(&self, spec: Spec, part: Part) -> Arc<Stream> {
        self.create_as(StreamId::from_bytes(random::bytes()), spec, part)
    }

    /// The same of one whose name is known already.
    pub fn create_as(&self, id: StreamId, spec: Spec, part: Part) -> Arc<Stream> {
        Arc::new(Stream::new(id, self.identity.clone(), self.bounds, self.backing.clone(), spec, part, clock::now()))
    }

    /// The one writer of a stream that [`Self::create`] made; asked for once.
    pub fn writer(&self, stream: &Arc<Stream>) -> Writer {
        Writer::new(stream.clone(), self.room.clone())
    }

    /// Lets resumes find the stream, from its first id on.
    pub fn publish_once(&self, stream: &Arc<Stream>) {
        if stream.publish_first() {
            self.room.insert(stream);
            // Where another replica has taken it before, or just now, it was not there to be left.
            if stream.has_moved() {
                self.room.leave(stream);
            }
        }
    }

    /// The stream is over: keeps it until its retention ends.
    pub fn retain(&self, stream: &Arc<Stream>) {
        self.publish_once(stream);
        let until = stream.kept_until();
        let at = until.unwrap_or_else(|| clock::now() + stream.look(|machine| machine.policy().retention));
        self.sweeper.schedule(at, stream.id());
        // Its client may have been faster than its end.
        self.shorten(stream);
    }

    /// Forgets the stream now.
    pub fn forget(&self, stream: &Arc<Stream>) {
        if stream.is_published() {
            self.room.forget(stream);
        }
    }

    /// The stream an event ID names and the cursor in it, if the caller may have it. Forged, foreign, unknown and forgotten
    /// look the same from outside, in time as well: every step is taken in every case.
    pub fn find(&self, id: &EventId, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(id, |owner| owner.admits(binding))
    }

    /// The same where the caller may have it only if its token is what it claims to be.
    pub fn find_claimed(&self, id: &EventId, binding: &Binding) -> Option<(Arc<Stream>, Seq)> {
        self.find_where(id, |owner| owner.is_claimed_by(binding))
    }

    /// The stream that a resume token opens for this caller, in whichever session: tokens outlive those. Forged, foreign, cancelled,
    /// abandoned and forgotten look the same from outside, in time as well.
    pub fn find_by_token(&self, token: &ResumeToken, binding: &Binding) -> Option<Arc<Stream>> {
        self.find_opened(token, |owner| owner.principal == binding.principal)
    }

    /// The same where the caller may have it only if its own token is what it claims to be.
    pub fn find_claimed_by_token(&self, token: &ResumeToken, binding: &Binding) -> Option<Arc<Stream>> {
        self.find_opened(token, |owner| owner.has_subject_of(binding) && owner.principal != binding.principal)
    }

    fn find_opened(&self, token: &ResumeToken, admits: impl Fn(&Binding) -> bool) -> Option<Arc<Stream>> {
        let found = self.find_where(token.handle(), admits).map(|(stream, _)| stream);
        // Whoever has no stream to compare with compares with one that nobody has.
        let nobodys = Secret::from_bytes(self.nobodys_secret);
        let secret = found.as_ref().and_then(|stream| stream.secret()).unwrap_or(&nobodys);
        let opens = token.is_opened_by(secret);
        found.filter(|stream| opens && !stream.look(|machine| machine.is_revoked()))
    }

    fn find_where(&self, id: &EventId, admits: impl Fn(&Binding) -> bool) -> Option<(Arc<Stream>, Seq)> {
        let verified = id.verify(&self.identity.keys);
        let name = verified.as_ref().map_or(StreamId::from_bytes([0; 12]), |verified| verified.stream);
        let is_admitted = |known: &Known| admits(known.binding()) || simulation::has(Bug::AdmitsAnyone);
        let is_callers = self.room.streams.get(&name).is_some_and(|known| is_admitted(known.value()));
        match (is_callers, verified) {
            (true, Some(verified)) => {
                let stream = self.whole(name)?;
                let cursor = stream.settled_cursor(verified.seq, verified.is_adopted);
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
    pub fn retries(&self) -> &Arc<Retries> {
        &self.retries
    }

    /// Every stream that can be found, as an operator may see it, in no order.
    pub fn summaries(&self) -> Vec<Summary> {
        let now = clock::now();
        self.room.streams.iter().map(|entry| entry.value().summary(now)).collect()
    }

    /// Returns how many streams that are over have an answer that a client may still come for; see [`Self::fetched`].
    pub fn unfetched(&self, patience: Duration) -> usize {
        let now = clock::now();
        let expects = |stream: &Stream| stream.look(|machine| machine.expects_reader(patience, now)).is_some();
        self.room.streams.iter().filter(|entry| entry.value().stream().is_some_and(|stream| expects(stream))).count()
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
        self.room.all().iter().for_each(|stream| stream.close_reader(retry));
    }

    /// Ends every stream that can be found and is not over, with the error `code` for whatever it owes.
    pub fn end_all(&self, code: ErrorCode) {
        self.room.all().iter().for_each(|stream| stream.expire(code));
    }

    /// How many streams can be found.
    pub fn len(&self) -> usize {
        self.room.streams.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.room.streams.is_empty()
    }

    /// Forgets what is over, until dropped.
    pub async fn sweep(&self) {
        tokio::join!(self.sweeper.run(|id, now| self.judge(id, now)), self.sweep_sessions());
    }

    fn judge(&self, id: StreamId, now: Instant) -> Verdict {
        if simulation::has(Bug::KeepsForEver) {
            return Verdict::Until(None);
        }
        let Some(stream) = self.room.get(id) else {
            return self.judge_stub(id, now).unwrap_or(Verdict::Gone);
        };
        match stream.kept_until() {
            Some(until) if until <= now || simulation::has(Bug::ForgetsTheLastReader) => {
                self.room.forget(&stream);
                Verdict::Gone
            }
            until => {
                // One that came out of its stub for a client goes back.
                self.shorten(&stream);
                self.keep_for(id, until, now);
                Verdict::Until(until)
            }
        }
    }

    /// Somebody came back for a stream that is over: the store keeps it for as long as this process does, and a restart takes nothing.
    fn keep_for(&self, id: StreamId, until: Option<Instant>, now: Instant) {
        if let Some(backing) = self.backing.clone() {
            let keep = until.unwrap_or(now + recorder::KEEP_UNSEALED).saturating_duration_since(now);
            tokio::spawn(async move { drop(backing.store.keep(id, keep).wait().await) });
        }
    }

    async fn sweep_sessions(&self) {
        loop {
            clock::sleep(SESSION_SWEEP).await;
            self.sessions.sweep(clock::now());
            self.room.shares.sweep(clock::now());
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // What the store has of them outlives them.
        self.leave_runs();
    }
}

/// A fresh name for a connection's claim on a stream.
pub fn new_attach() -> AttachId {
    AttachId(u64::from_be_bytes(random::bytes()))
}
