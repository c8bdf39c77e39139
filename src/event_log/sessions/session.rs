//! One session: its record for one principal.
//!
//! Absent: what a search by session finds (`finished.rs`), the home (`home.rs`), the registration
//! (`registration.rs`), and the turns of POSTs (`turns.rs`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::event_log::backing::{HomeTerm, Term};
use crate::event_log::sessions::finished_calls::{FinishedCalls, STREAMS_MIN};
use crate::event_log::sessions::post_slots::PostSlots;
use crate::event_log::sessions::record_count::RecordCount;
use crate::event_log::stream::Stream;
use crate::event_log::stream::get_calls::GetCalls;
use crate::identity::{Principal, SessionHash};
use crate::protocol::dialect::Declared;
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::protocol::ids::Owner;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::named_rules::NamedRules;
use crate::protocol::request_ids::{IdDigest, IdUse, UsedIds};
use crate::sync;

/// Time that a session counts as busy after the end of a call.
const BUSY_AFTER: Duration = Duration::from_secs(5);
/// Session and principal of a record.
pub(super) type Key = (SessionId, Principal);

/// One session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    pub(super) principal: Principal,
    /// Result of `initialize`, or `None` if it did not pass here.
    pub(super) opened: Option<Opened>,
    pub(super) is_home: bool,
    /// Calls whose responses may go by GET, or `None` for nearly all sessions.
    get_calls: Option<Arc<GetCalls>>,
    pub(super) record_count: Arc<RecordCount>,
    pub(super) serial: u64,
    pub(super) state: Mutex<State>,
    pub(super) turns: Arc<tokio::sync::Mutex<()>>,
    /// Number of POSTs that are held, or wait behind one.
    pub(super) held_posts: Arc<AtomicUsize>,
    pub(super) post_slots: Arc<PostSlots>,
    /// Number of running calls.
    pub(super) calls: AtomicUsize,
    /// True once the server has responded to a request of this principal in the session.
    was_answered: AtomicBool,
    /// Hash of the id for logs, once a line has named the session.
    hash: OnceLock<SessionHash>,
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
    /// Rules that the client's name has chosen.
    #[serde(flatten)]
    pub rules: NamedRules,
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
pub(super) struct State {
    streams: Vec<Weak<Stream>>,
    pub(super) finished: FinishedCalls,
    /// Number of streams that causes the next pruning of dead ones.
    prune_at: usize,
    resumption: Resumption,
    /// True if the store is known to have no record.
    is_looked_up: bool,
    /// True once the session has ended, so that nothing of it is to be in the store.
    has_ended: bool,
    pub(super) home: KnownHome,
    /// Registration of this replica for the session in the store, or `None` if it was not begun.
    pub(super) registration: Option<Registration>,
    pub(super) used: Instant,
    pub(super) call_ended: Option<Instant>,
    used_ids: UsedIds,
    /// Time of the last message without a stream that went to the server, or `None` before the
    /// first.
    pub(super) sent: Option<Instant>,
}

/// Home of a session by the store. It counts in the term of the read: after that, another replica
/// may have taken the session over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownHome {
    Unasked,
    /// This replica. `is_accepted` is true if the server has accepted the record's principal in the
    /// session.
    Here {
        term: Option<HomeTerm>,
        is_accepted: bool,
    },
    /// Another replica. The next request reads the store again.
    Elsewhere(Owner),
    /// The store names no home, or an irrelevant one: the server here decides whether it has the
    /// session.
    Unknown(Option<HomeTerm>),
}

/// Registration of this replica for a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registration {
    pub(super) until: Instant,
    /// Term of its write, or `None` if the store may not have it.
    pub(super) term: Option<Term>,
}

impl State {
    /// Drops the references to dead streams; the next pruning follows at twice the number of live
    /// ones.
    pub(super) fn prune(&mut self) {
        self.streams.retain(|stream| stream.strong_count() > 0);
        self.prune_at = (self.streams.len() * 2).max(STREAMS_MIN);
    }
}

impl Session {
    pub(super) fn new(
        (id, principal): Key,
        opened: Option<Opened>,
        is_home: bool,
        record_count: Arc<RecordCount>,
    ) -> Arc<Self> {
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
            get_calls: opened.as_ref().filter(|opened| opened.rules.by_get).map(|_| Arc::default()),
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
            hash: OnceLock::new(),
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

    /// Returns the hash of the id for logs, which is computed once.
    pub fn hash(&self) -> SessionHash {
        *self.hash.get_or_init(|| SessionHash::of(&self.id))
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
    pub(in crate::event_log) fn opened(&self) -> Option<&Opened> {
        self.opened.as_ref()
    }

    /// Returns whether the record is complete: it has the result of `initialize`, or the store has
    /// no record.
    pub fn is_known(&self) -> bool {
        self.opened.is_some() || self.lock().is_looked_up
    }

    /// Notes that the store has no record.
    pub(in crate::event_log) fn note_looked_up(&self) {
        self.lock().is_looked_up = true;
    }

    /// Notes that the session has ended.
    pub(in crate::event_log) fn end(&self) {
        self.lock().has_ended = true;
    }

    /// Returns whether the session has ended.
    pub(in crate::event_log) fn has_ended(&self) -> bool {
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

    /// Returns the rules that the client's name has chosen, as far as they are known.
    pub fn rules(&self) -> NamedRules {
        self.opened.as_ref().map(|opened| opened.rules).unwrap_or_default()
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
        let id_use = state.used_ids.id_use();
        if let (Some(calls), IdUse::Free) = (&self.get_calls, id_use) {
            calls.note_free_ids();
        }
        id_use
    }

    /// Returns whether the client needs a standalone stream, which its server may lack. It is for
    /// messages of tasks, or for responses by GET.
    pub fn needs_standalone(&self) -> bool {
        self.has_tasks() == Some(true) || self.rules().by_get
    }

    /// Returns the calls whose responses may go by GET, or `None` if the client resumes its calls.
    pub fn get_calls(&self) -> Option<&Arc<GetCalls>> {
        self.get_calls.as_ref()
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
    pub(super) fn take_over_streams(&self, before: &Session) {
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
    pub(in crate::event_log) fn stream_refs(&self) -> usize {
        self.lock().streams.len()
    }

    /// Returns whether any stream is live. Drops references to dead ones, which keep a part of
    /// their memory.
    pub(super) fn has_streams(&self) -> bool {
        let mut state = self.lock();
        state.prune();
        state.streams.shrink_to(STREAMS_MIN);
        !state.streams.is_empty() || state.finished.has_any()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.record_count.leave(self.opened.is_some());
    }
}
