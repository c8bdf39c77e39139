//! Records of MCP sessions: one for each session and principal that uses it.
//!
//! Owned here: the result of an `initialize` that went through the proxy, and the session's
//! streams, for its cancels, client responses and deletion. A session that was opened elsewhere has
//! a record as well, from its first POST on, without the result of `initialize`. It was opened
//! before a restart, or with a token that was refreshed since. Any caller can invent a session id,
//! so such records without streams are limited in number. The records of sessions opened here are
//! limited as well. Beyond a limit the least recently used records are removed first. The upstream
//! decides whether a session exists. Absent: the IDs of sessions that the proxy itself issues
//! (`protocol/ids`).

mod client_responses;
mod eviction;
mod finished;
mod finished_calls;
pub(super) mod handshakes;
mod home;
mod lru_queue;
mod post_slots;
mod quiet;
mod record_count;
pub(super) mod registration;
mod session;
mod turns;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::Notify;

use handshakes::Handshakes;
use lru_queue::LruQueue;
pub use post_slots::PostSlot;
use record_count::{RecordCount, unopened_max};
use session::Key;
pub use session::{Opened, RunningCall, Session};
pub use turns::{QueuedTurn, Turn};

use crate::clock;
use crate::event_log::metrics::Metrics;
use crate::event_log::stream::Stream;
use crate::identity::Principal;
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::Phase;

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

impl Sessions {
    /// Creates an empty set of sessions with room for `most` opened here, and a quarter as many
    /// others beside the sessions in use.
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
            self.lru_queue().forget(&principal);
        }
        self.enter(key, serial);
    }

    /// Returns the record of a session that the proxy issued. Its id holds all facts about it.
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
        let session = self.get(id, principal)?;
        session.lock().used = clock::now();
        Some(session)
    }

    /// Returns the record of a session for this principal, or `None`. No use of the session.
    fn get(&self, id: &SessionId, principal: &Principal) -> Option<Arc<Session>> {
        self.sessions.get(&(id.clone(), *principal)).map(|entry| entry.value().clone())
    }

    /// Returns the record of a session for this principal. Creates a record for a session opened
    /// elsewhere, and may forget other such records.
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
            self.lru_queue().forget(principal);
        }
        Some(session)
    }

    /// Returns the standalone stream of a session, while its upstream GET is in flight or open.
    pub fn standalone(&self, session: &SessionId, principal: &Principal) -> Option<Arc<Stream>> {
        let key = (session.clone(), *principal);
        self.standalone.get(&key).map(|entry| entry.value().clone()).filter(is_living)
    }

    /// Makes `stream` the standalone stream, or returns the live one.
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
        let records = principals.iter().filter_map(|principal| self.get(id, principal));
        records.flat_map(|session| session.streams()).chain(self.standalone_of(id, principals)).collect()
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

    /// Returns whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Returns the length of the queue of sessions opened here.
    #[cfg(test)]
    pub(super) fn queue_len(&self) -> usize {
        self.lru_queue().entries()
    }
}

fn is_living(stream: &Arc<Stream>) -> bool {
    stream.with_machine(|machine| matches!(machine.lifecycle().phase(), Phase::Waiting | Phase::Open))
}
