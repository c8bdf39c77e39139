//! Records of MCP sessions: one for each session and principal that uses it.
//!
//! Owned here: the result of an `initialize` that went through the proxy, and the session's
//! streams, for its cancels, client responses and deletion. A session that was opened elsewhere
//! (before a restart, or with a token that was refreshed since) has a record as well, from its
//! first POST on, without the result of `initialize`. Any caller can invent a session id, so such
//! records without streams are limited in number, and so are the records of sessions opened here;
//! beyond the limit the least recently used are removed first. The upstream decides whether a
//! session exists. Absent: the IDs of sessions that the proxy itself issues (`protocol/ids`).

mod client_responses;
mod eviction;
mod finished;
pub(super) mod handshakes;
pub(super) mod home;
mod lru_queue;
mod quiet;
pub(super) mod registration;
mod turns;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use eviction::{RecordCount, unopened_max};
use finished::FinishedCalls;
use handshakes::Handshakes;
use home::KnownHome;
use lru_queue::LruQueue;
use registration::Registration;
use turns::PostSlots;
pub use turns::{PostSlot, QueuedTurn, Turn};

use crate::clock;
use crate::event_log::identity::principal::Principal;
use crate::event_log::metrics::Metrics;
use crate::event_log::stream::Stream;
use crate::protocol::dialect::Declared;
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::request_ids::{IdDigest, IdUse, UsedIds};
use crate::protocol::stream::Phase;
use crate::sync;

/// Time that a session counts as busy after the end of a call.
const BUSY_AFTER: Duration = Duration::from_secs(5);
/// Number of a session's streams below which no search for ended ones takes place.
const STREAMS_MIN: usize = 4;

/// One session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    principal: Principal,
    /// Result of `initialize`, or `None` if it did not pass here.
    opened: Option<Opened>,
    is_home: bool,
    record_count: Arc<RecordCount>,
    serial: u64,
    state: Mutex<State>,
    turns: Arc<tokio::sync::Mutex<()>>,
    /// Number of POSTs that are held, or wait behind one.
    held_posts: Arc<AtomicUsize>,
    post_slots: Arc<PostSlots>,
    /// Number of running calls.
    calls: AtomicUsize,
    /// True once the server has responded to a request of this principal in the session.
    was_answered: AtomicBool,
}

/// A running call of a session, counted for as long as this lives.
#[derive(Debug)]
pub struct RunningCall(Arc<Session>);

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.lock().call_ended = Some(clock::now());
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Result of an `initialize`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Negotiated protocol version.
    pub version: ProtocolVersion,
    /// True if the server declared `logging`.
    pub logging: bool,
    /// Dialects that the client declared.
    pub declared: Declared,
    /// True if the client gets no progress of the proxy's own.
    #[serde(default, rename = "no_beats", skip_serializing_if = "std::ops::Not::not")]
    pub has_no_beats: bool,
    /// True if the proxy offers the client tasks of 2025-11-25.
    #[serde(default, rename = "tasks", skip_serializing_if = "std::ops::Not::not")]
    pub has_tasks: bool,
    /// ID of the `initialize`, or `None` if it did not pass here.
    #[serde(default, rename = "initialize", skip_serializing_if = "Option::is_none")]
    pub initialize_id: Option<IdDigest>,
}

/// Ability of a client to resume, as it has shown so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resumption {
    NotSeen,
    Seen,
    /// The client has also named a stream by its URL.
    SeenByUrl,
}

#[derive(Debug)]
struct State {
    streams: Vec<Weak<Stream>>,
    finished: FinishedCalls,
    /// Number of streams that causes the next pruning of dead ones.
    prune_at: usize,
    resumption: Resumption,
    /// True if the store is known to have no record.
    is_looked_up: bool,
    /// True once the session has ended, so that nothing of it is to be in the store.
    has_ended: bool,
    home: KnownHome,
    /// Registration of this replica for the session in the store, or `None` if it was not begun.
    registration: Option<Registration>,
    used: Instant,
    call_ended: Option<Instant>,
    used_ids: UsedIds,
    /// Time of the last message without a stream that went to the server, or `None` before the
    /// first.
    sent: Option<Instant>,
}

impl State {
    /// Drops the references to dead streams; the next pruning follows at twice the number of live
    /// ones.
    fn prune(&mut self) {
        self.streams.retain(|stream| stream.strong_count() > 0);
        self.prune_at = (self.streams.len() * 2).max(STREAMS_MIN);
    }
}

impl Session {
    fn new((id, principal): Key, opened: Option<Opened>, is_home: bool, record_count: Arc<RecordCount>) -> Arc<Self> {
        record_count.enter(opened.is_some());
        let state = State {
            streams: Vec::new(),
            finished: FinishedCalls::default(),
            prune_at: STREAMS_MIN,
            resumption: Resumption::NotSeen,
            is_looked_up: false,
            has_ended: false,
            home: KnownHome::Unasked,
            registration: None,
            used: clock::now(),
            call_ended: None,
            used_ids: UsedIds::new(opened.as_ref().and_then(|opened| opened.initialize_id)),
            sent: None,
        };
        Arc::new(Self {
            id,
            principal,
            opened,
            is_home,
            serial: record_count.next_serial(),
            record_count,
            state: Mutex::new(state),
            turns: Arc::default(),
            held_posts: Arc::default(),
            post_slots: Arc::default(),
            calls: AtomicUsize::new(0),
            was_answered: AtomicBool::new(false),
        })
    }

    /// Counts a new call.
    pub fn begin_call(self: &Arc<Self>) -> RunningCall {
        self.calls.fetch_add(1, Ordering::Relaxed);
        RunningCall(self.clone())
    }

    /// Returns whether a call runs, or ended less than five seconds before `now`.
    pub fn is_busy(&self, now: Instant) -> bool {
        let has_just_ended = |at| now.saturating_duration_since(at) < BUSY_AFTER;
        self.calls.load(Ordering::Relaxed) > 0 || self.lock().call_ended.is_some_and(has_just_ended)
    }

    /// Notes that the server has responded to a request in the session.
    pub fn note_answered(&self) {
        self.was_answered.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server has responded to a request of this principal in the session, as
    /// far as this process knows.
    pub fn was_answered(&self) -> bool {
        self.was_answered.load(Ordering::Relaxed)
    }

    /// Returns the principal of the record.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns whether the session was opened through this process, whose server knows it.
    pub fn is_home(&self) -> bool {
        self.is_home
    }

    /// Returns the result of `initialize`, or `None` if unknown.
    pub(super) fn opened(&self) -> Option<&Opened> {
        self.opened.as_ref()
    }

    /// Returns whether all is known that can be: the result of `initialize`, or that the store has
    /// no record.
    pub fn is_known(&self) -> bool {
        self.opened.is_some() || self.lock().is_looked_up
    }

    /// Notes that the store has no record.
    pub(super) fn note_looked_up(&self) {
        self.lock().is_looked_up = true;
    }

    /// Notes that the session has ended.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
    }

    /// Returns whether the session has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// Returns the negotiated protocol version, or `None` if unknown.
    pub fn version(&self) -> Option<&ProtocolVersion> {
        self.opened.as_ref().map(|opened| &opened.version)
    }

    /// Returns whether the server is known to have declared `logging`, so that a warning can be
    /// sent.
    pub fn logs(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.logging)
    }

    /// Returns the dialects that the client is known to have declared.
    pub fn declared(&self) -> Declared {
        self.opened.as_ref().map(|opened| opened.declared).unwrap_or_default()
    }

    /// Returns whether the client is known to get no progress of the proxy's own.
    pub fn has_no_beats(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.has_no_beats)
    }

    /// Returns whether the proxy offers the client tasks of 2025-11-25, or `None` if the
    /// `initialize` did not pass here.
    pub fn has_tasks(&self) -> Option<bool> {
        self.opened.as_ref().map(|opened| opened.has_tasks)
    }

    /// Notes the IDs of a POST's requests, and returns the use of IDs in the session. `contents` is
    /// a digest of the POST, equal for a retry.
    pub fn note_request_ids(&self, ids: &[RequestId], contents: u32) -> IdUse {
        let mut state = self.lock();
        for id in ids {
            state.used_ids.note(id.into(), contents);
        }
        state.used_ids.id_use()
    }

    /// Returns whether the client has ever resumed a stream, and so can.
    pub fn has_resumed(&self) -> bool {
        self.lock().resumption >= Resumption::Seen
    }

    /// Notes that the client has resumed a stream.
    pub fn note_resume(&self) {
        let mut state = self.lock();
        state.resumption = state.resumption.max(Resumption::Seen);
    }

    /// Returns whether the client has ever named a stream by its URL.
    pub fn has_used_url(&self) -> bool {
        self.lock().resumption == Resumption::SeenByUrl
    }

    /// Notes that the client has resumed a stream by its URL.
    pub fn note_resume_by_url(&self) {
        self.lock().resumption = Resumption::SeenByUrl;
    }

    /// Returns the id of the session. All streams of the session can share it.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Adds a request stream.
    pub fn add_stream(&self, stream: &Arc<Stream>) {
        let mut state = self.lock();
        if state.streams.len() >= state.prune_at {
            state.prune();
        }
        state.streams.push(Arc::downgrade(stream));
    }

    /// Takes over the streams and the used request IDs of an earlier record of the session.
    fn take_over_streams(&self, before: &Session) {
        let (streams, finished, used_ids) = {
            let before = before.lock();
            (before.streams.clone(), before.finished.clone(), before.used_ids.clone())
        };
        let mut state = self.lock();
        (state.streams, state.finished) = (streams, finished);
        state.used_ids.follow(&used_ids);
        state.prune();
    }

    /// Adds a stream that began in another session, unless this one has it.
    pub fn join_stream(&self, stream: &Arc<Stream>) {
        if !self.streams().iter().any(|known| Arc::ptr_eq(known, stream)) {
            self.add_stream(stream);
            // Under this record too once it is a stub.
            self.join_finished(stream.finished_call());
        }
    }

    /// Returns the open request streams, which may owe a response.
    pub fn running(&self) -> Vec<Arc<Stream>> {
        let mut running = self.streams();
        running.retain(|stream| stream.with_machine(|machine| !machine.lifecycle().is_sealed()));
        running
    }

    /// Returns every live request stream.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        let state = self.lock();
        state.streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the number of references to streams, dead ones included.
    #[cfg(test)]
    pub(super) fn stream_refs(&self) -> usize {
        self.lock().streams.len()
    }

    /// Returns whether any stream is live. Drops references to dead ones, which keep a part of
    /// their memory.
    fn has_streams(&self) -> bool {
        let mut state = self.lock();
        state.prune();
        state.streams.shrink_to(STREAMS_MIN);
        !state.streams.is_empty() || state.has_finished()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.record_count.leave(self.opened.is_some());
    }
}

/// Returns the newest stream among `running` that owes a response for `id`, with the upstream's id
/// of that request.
pub fn stream_owing(running: &[Arc<Stream>], id: &RequestId) -> Option<(Arc<Stream>, RequestId)> {
    let owing = running.iter().rev().filter_map(|stream| Some((stream.clone(), stream.upstream_id(id)?)));
    owing.min_by_key(|(_, named)| named != id)
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    sessions: DashMap<Key, Arc<Session>>,
    /// Standalone streams need no record, because a GET names its session.
    standalone: DashMap<Key, Arc<Stream>>,
    /// Handshakes of the sessions that were opened here.
    handshakes: Arc<Handshakes>,
    record_count: Arc<RecordCount>,
    /// Sessions that were opened here, by their last use. Not to be locked under an entry of the
    /// map.
    lru_queue: Mutex<LruQueue>,
    /// Notified when the registrations are to be renewed at once.
    renewal_due: Notify,
    /// Limit of the sessions opened here.
    max_opened: usize,
    /// Number of records of sessions opened elsewhere that causes the next eviction.
    evict_at: AtomicUsize,
}

type Key = (SessionId, Principal);

impl Sessions {
    /// Creates an empty set of sessions with room for `most` opened here, and a quarter as many
    /// others beside those in use.
    pub fn new(metrics: Arc<Metrics>, most: usize) -> Self {
        Self {
            sessions: DashMap::new(),
            standalone: DashMap::new(),
            handshakes: Arc::new(Handshakes::new(most)),
            record_count: Arc::new(RecordCount::new(metrics)),
            lru_queue: Mutex::default(),
            renewal_due: Notify::new(),
            max_opened: most,
            evict_at: AtomicUsize::new(unopened_max(most)),
        }
    }

    /// Records a session that has just been assigned. If it has a record, the new one takes over
    /// its streams. May forget another.
    pub fn record(&self, id: SessionId, principal: Principal, opened: Opened) {
        let key = (id, principal);
        let session = Session::new(key.clone(), Some(opened), true, self.record_count.clone());
        let serial = session.serial;
        let before = match self.sessions.entry(key.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(session);
                None
            }
            Entry::Occupied(mut entry) => {
                session.take_over_streams(entry.get());
                Some(entry.insert(session))
            }
        };
        // The queue is not locked under an entry of the map.
        if before.is_some_and(|before| before.opened.is_some()) {
            self.lru_queue().forget(1);
        }
        self.enter(key, serial);
    }

    /// Returns the record of a session that the proxy issued, whose id holds all that is to be
    /// known.
    pub fn find_or_open(&self, id: &SessionId, principal: &Principal, opened: Opened) -> Arc<Session> {
        self.find(id, principal).unwrap_or_else(|| self.restore(id, principal, opened))
    }

    /// Restores the record of a session that was opened elsewhere from the store.
    pub(super) fn restore(&self, id: &SessionId, principal: &Principal, opened: Opened) -> Arc<Session> {
        let key = (id.clone(), *principal);
        let fresh = Session::new(key.clone(), Some(opened), false, self.record_count.clone());
        let mut entry = self.sessions.entry(key.clone()).or_insert_with(|| fresh.clone());
        if entry.opened.is_none() {
            // Streams that began before the lookup stay with the session.
            fresh.take_over_streams(&entry);
            *entry.value_mut() = fresh.clone();
        }
        let session = entry.value().clone();
        // The queue is not locked under an entry of the map.
        drop(entry);
        if Arc::ptr_eq(&session, &fresh) {
            self.enter(key, session.serial);
        }
        session
    }

    /// Returns the record of a session for this principal, or `None`.
    pub fn find(&self, id: &SessionId, principal: &Principal) -> Option<Arc<Session>> {
        let session = self.sessions.get(&(id.clone(), *principal)).map(|entry| entry.value().clone())?;
        session.lock().used = clock::now();
        Some(session)
    }

    /// Returns the record of a session for this principal; creates one for a session opened
    /// elsewhere, and may forget others of that kind.
    pub fn find_or_record(&self, id: &SessionId, principal: &Principal) -> Arc<Session> {
        self.find(id, principal).unwrap_or_else(|| {
            self.keep_bound();
            let key = (id.clone(), *principal);
            let entry = self.sessions.entry(key.clone());
            entry.or_insert_with(|| Session::new(key, None, false, self.record_count.clone())).clone()
        })
    }

    /// Forgets a session and returns it, so that its streams can be ended.
    pub fn remove(&self, id: &SessionId, principal: &Principal) -> Option<Arc<Session>> {
        let (_, session) = self.sessions.remove(&(id.clone(), *principal))?;
        session.end();
        if session.opened.is_some() {
            self.lru_queue().forget(1);
        }
        Some(session)
    }

    /// Returns the standalone stream of a session, while its upstream GET is in flight or open.
    pub fn standalone(&self, session: &SessionId, principal: &Principal) -> Option<Arc<Stream>> {
        let key = (session.clone(), *principal);
        self.standalone.get(&key).map(|entry| entry.value().clone()).filter(is_living)
    }

    /// Makes `stream` the standalone stream, unless there is a live one, which is returned.
    pub fn set_standalone(
        &self,
        session: &SessionId,
        principal: &Principal,
        stream: &Arc<Stream>,
    ) -> Option<Arc<Stream>> {
        let mut entry = self.standalone.entry((session.clone(), *principal)).or_insert_with(|| stream.clone());
        if Arc::ptr_eq(&entry, stream) {
            return None;
        }
        if is_living(&entry) {
            return Some(entry.clone());
        }
        let ended = std::mem::replace(entry.value_mut(), stream.clone());
        // The stream may have its last user here: it is not dropped under the lock of the map.
        drop(entry);
        drop(ended);
        None
    }

    /// Returns every live stream of a session, the standalone one included.
    pub fn streams(&self, id: &SessionId, session: &Session) -> Vec<Arc<Stream>> {
        session.streams().into_iter().chain(self.standalone(id, &session.principal)).collect()
    }

    /// Returns every live stream of a session under these principals, the standalone ones included.
    pub fn streams_of(&self, id: &SessionId, principals: &[Principal]) -> Vec<Arc<Stream>> {
        let of = |principal: &Principal| {
            let session = self.sessions.get(&(id.clone(), *principal)).map(|entry| entry.value().clone());
            session.map_or_else(Vec::new, |session| session.streams())
        };
        principals.iter().flat_map(of).chain(self.standalone_of(id, principals)).collect()
    }

    /// Returns the open standalone streams of a session under these principals.
    pub fn standalone_of(&self, id: &SessionId, principals: &[Principal]) -> Vec<Arc<Stream>> {
        let is_open = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.lifecycle().phase() == Phase::Open);
        principals.iter().filter_map(|principal| self.standalone(id, principal)).filter(is_open).collect()
    }

    /// Returns the handshakes of the sessions that were opened here.
    pub fn handshakes(&self) -> &Arc<Handshakes> {
        &self.handshakes
    }

    /// Returns the number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the length of the queue of sessions opened here.
    #[cfg(test)]
    pub(super) fn queue_len(&self) -> usize {
        self.lru_queue().entries()
    }

    /// Returns whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}

fn is_living(stream: &Arc<Stream>) -> bool {
    stream.with_machine(|machine| matches!(machine.lifecycle().phase(), Phase::Waiting | Phase::Open))
}
