//! Records of the handshakes that opened sessions. With them the proxy can open a session again
//! after its server has forgotten it.
//!
//! Owned here: one record for each session, for all principals that use it, and the two names of a
//! revived session. Clients keep the name that they were given, and the server gets its own. A new
//! session gets a second name if its first belongs to another client. Invariants: a record holds at
//! most 16 KiB of parameters, 16 KiB of the server's statements, and 256 subscriptions. A session
//! beyond that is not opened again. It holds digests of at most 64 pages of lists. All records
//! together hold 2 KiB for each of the most sessions. They may hold secrets, so none is logged.
//! Locks are taken in one order: an entry of the session table ([`super::Sessions`]), an entry of
//! the records, the state of a record, the queue of changes. The names at the server are a leaf
//! beside them ([`renamed`]). No holder of such a lock calls back into an earlier table: `in_use`
//! of [`Handshakes::sweep`] is called without a lock. Absent: the exchange with the server
//! (`upstream/revival`), and the store of the records (`replicas/homes.rs`).

mod changes;
mod generations;
mod held_bytes;
mod record;
mod renamed;
mod stored;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dashmap::DashMap;

use changes::Changes;
pub use generations::UpstreamName;
use held_bytes::AllBytes;
pub use record::{AttemptEnd, Handshake, Replacement};
use renamed::Renamed;
pub use stored::KeptCookies;
pub(in crate::event_log) use stored::StoredHandshake;

use crate::clock;
use crate::eviction::evict_own_if_full;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::SessionGeneration;

/// Bytes that all records may hold, for each of the most sessions.
const BYTES_EACH: usize = 2048;
/// Age of a record in the store, as a part of its lifetime, at its renewal by a use of its session.
const RENEWED_PARTS: u32 = 8;

/// Records of the handshakes of all sessions that were opened here.
#[derive(Debug)]
pub struct Handshakes {
    by_session: DashMap<SessionId, Arc<Handshake>>,
    renamed: Renamed,
    /// True once a session has had a second name. Before that no request looks for its names.
    has_renamed: AtomicBool,
    all_bytes: Arc<AllBytes>,
    changes: Arc<Changes>,
    most: usize,
}

impl Handshakes {
    /// Creates an empty set of at most `most` records.
    pub fn new(most: usize) -> Self {
        Self {
            all_bytes: Arc::new(AllBytes::new(most.saturating_mul(BYTES_EACH))),
            by_session: DashMap::new(),
            renamed: Renamed::default(),
            has_renamed: AtomicBool::new(false),
            changes: Arc::default(),
            most,
        }
    }

    /// Returns the records whose changes are to be written to the store.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Notes that the store may have lost all records.
    pub(in crate::event_log) fn change_all(&self) {
        for handshake in &self.by_session {
            handshake.change.note();
        }
    }

    /// Keeps the record of a session. Beyond the limits of number and bytes the least recently used
    /// are removed.
    pub fn record(&self, id: SessionId, handshake: Arc<Handshake>) {
        self.make_room(&handshake);
        handshake.change.note_session(&id, &self.changes);
        if let Some(before) = self.by_session.insert(id, handshake) {
            before.lock().is_over = true;
        }
    }

    /// Keeps a record from the store, unless the session has one. Returns the session's record.
    pub(in crate::event_log) fn restore(&self, id: &SessionId, restored: Arc<Handshake>) -> Arc<Handshake> {
        self.make_room(&restored);
        restored.change.note_session(id, &self.changes);
        let present = self.by_session.entry(id.clone()).or_insert(restored).value().clone();
        if let UpstreamName::Renamed(name) = present.name() {
            self.has_renamed.store(true, Ordering::Relaxed);
            if let Some(name) = name {
                self.renamed.insert_if_free(name, id.clone());
            }
        }
        present
    }

    /// Counts the bytes of a record, and evicts others without room.
    fn make_room(&self, handshake: &Handshake) {
        handshake.bytes.count_in(&self.all_bytes);
        let most = if self.all_bytes.are_full() { self.by_session.len().max(1) } else { self.most };
        let now = clock::now();
        // Without its record a revived session is lost, so it goes last.
        let used = |handshake: &Arc<Handshake>| {
            let state = handshake.lock();
            if state.name == UpstreamName::Original { state.used } else { now }
        };
        let opener = handshake.opener();
        let is_own = |other: &Arc<Handshake>| other.opener() == opener;
        evict_own_if_full(&self.by_session, most, is_own, used, |id| self.changes.push(id.clone()));
    }

    /// Keeps the record of a session whose clients know it as `id`, a name of the proxy's own, and
    /// its server as `name`.
    pub fn record_named(&self, id: SessionId, handshake: Arc<Handshake>, name: SessionId) {
        handshake.set_first_name(name.clone());
        self.record(id.clone(), handshake);
        self.has_renamed.store(true, Ordering::Relaxed);
        self.renamed.insert(name, id);
    }

    /// Returns a new name of the proxy's own for a session.
    pub fn own_name() -> String {
        generations::own_name()
    }

    /// Returns the record of a session, or `None` if it has none. A session without a record cannot
    /// be opened again.
    pub fn find(&self, id: &SessionId) -> Option<Arc<Handshake>> {
        self.by_session.get(id).map(|entry| entry.value().clone())
    }

    /// Forgets the record of a session that its client has ended, or that its server cannot serve
    /// again. An attempt in progress fails.
    pub fn forget(&self, id: &SessionId) {
        if let Some((_, handshake)) = self.by_session.remove(id) {
            handshake.lock().is_over = true;
            self.changes.push(id.clone());
        }
    }

    /// Forgets the record of a session that has another home now.
    pub(in crate::event_log) fn leave(&self, id: &SessionId, handshake: &Arc<Handshake>) {
        self.by_session.remove_if(id, |_, present| Arc::ptr_eq(present, handshake));
        handshake.lock().is_over = true;
    }

    /// Notes a use of the session at `at`.
    pub(super) fn note_use(&self, id: &SessionId, at: Instant) {
        if let Some(handshake) = self.by_session.get(id) {
            let mut state = handshake.lock();
            state.used = state.used.max(at);
            if state.used.saturating_duration_since(state.kept_from) > handshake.keep / RENEWED_PARTS {
                handshake.change.note();
            }
        }
    }

    /// Forgets records that were not used for their time, except for the sessions that `in_use`
    /// returns, and names of sessions without a record. `in_use` is called under no lock of the
    /// records. It may use the session table, and records are used under an entry of the table.
    pub(super) fn sweep(&self, now: Instant, in_use: impl FnOnce() -> HashSet<SessionId>) {
        let is_due = |handshake: &Handshake| now.saturating_duration_since(handshake.lock().used) >= handshake.keep;
        if self.by_session.iter().any(|entry| is_due(entry.value())) {
            let in_use = in_use();
            self.by_session.retain(|id, handshake| {
                let stays = !is_due(handshake) || in_use.contains(id);
                if !stays {
                    self.changes.push(id.clone());
                }
                stays
            });
        }
        for (name, id) in self.renamed.all() {
            if !self.by_session.contains_key(&id) {
                self.renamed.release(&name, &id);
            }
        }
    }

    /// Notes the server's name for a session that is being opened again.
    pub fn note_opening(&self, handshake: &Handshake, name: Option<SessionId>) {
        handshake.note_opening(name);
        self.has_renamed.store(true, Ordering::Relaxed);
    }

    /// Returns the name of a session at the server in one of its generations: `Some(None)` if it
    /// has none. Returns `None` if the name is no longer known, and if the server has given it to
    /// another session since. `original` is the server's first name for the session, and `visible`
    /// returns the name that a client would have got for a server's name.
    pub fn name_in(
        &self,
        id: &SessionId,
        generation: SessionGeneration,
        original: SessionId,
        visible: impl FnOnce(&SessionId) -> SessionId,
    ) -> Option<Option<SessionId>> {
        let name = match self.find(id)?.name_in(generation)? {
            UpstreamName::Original => original,
            UpstreamName::Renamed(Some(name)) => name,
            UpstreamName::Renamed(None) => return Some(None),
        };
        let visible = visible(&name);
        let has_other_holder = self.client_name(&name).is_some_and(|holder| holder != *id);
        let has_newcomer = visible != *id && self.find(&visible).is_some_and(|it| it.name() == UpstreamName::Original);
        if has_other_holder || has_newcomer { None } else { Some(Some(name)) }
    }

    /// Gives a session the server's name for it after it was opened again. Returns false if the
    /// session has ended. `visible` is the name that a client would have got for it; see
    /// [`Self::displace`].
    pub fn rename(
        &self,
        id: &SessionId,
        handshake: &Handshake,
        name: Option<SessionId>,
        visible: Option<&SessionId>,
    ) -> bool {
        if let (Some(name), Some(visible)) = (&name, visible) {
            self.displace(name, visible, Some(id));
        }
        // No table is used under the lock of a record.
        let before = {
            let mut state = handshake.lock();
            if state.is_over {
                return false;
            }
            state.generations.adopt(&name);
            state.refused_get = None;
            std::mem::replace(&mut state.name, UpstreamName::Renamed(name.clone()))
        };
        self.has_renamed.store(true, Ordering::Relaxed);
        if let UpstreamName::Renamed(Some(before)) = before {
            self.renamed.release(&before, id);
        }
        if let Some(name) = name {
            self.renamed.insert(name, id.clone());
        }
        true
    }

    /// Notes that the server has given `name`, visible to a client as `visible`, to the session
    /// `keeper` or to a new one. A session that had it before is gone at the server. It gets a name
    /// that no server has, and is refused and opened again in its turn.
    pub fn displace(&self, name: &SessionId, visible: &SessionId, keeper: Option<&SessionId>) {
        let renamed = self.renamed.take_from_other(name, keeper).and_then(|holder| self.find(&holder));
        let original = if keeper == Some(visible) { None } else { self.find(visible) };
        if let Some(handshake) = renamed {
            handshake.lose_name(&UpstreamName::Renamed(Some(name.clone())));
        }
        if let Some(handshake) = original
            && handshake.lose_name(&UpstreamName::Original)
        {
            self.has_renamed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether any session has had a second name.
    pub fn has_renamed(&self) -> bool {
        self.has_renamed.load(Ordering::Relaxed)
    }

    /// Returns the name of a session at its server, by the name that clients use.
    pub fn upstream_name(&self, id: &str) -> UpstreamName {
        if !self.has_renamed() {
            return UpstreamName::Original;
        }
        let handshake = SessionId::parse(id).and_then(|id| self.find(&id));
        handshake.map_or(UpstreamName::Original, |handshake| handshake.name())
    }

    /// Returns the clients' name of a revived session as `name`, or `None` for another name.
    pub fn client_name(&self, name: &SessionId) -> Option<SessionId> {
        if !self.has_renamed() {
            return None;
        }
        self.renamed.session(name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::Principal;
    use crate::protocol::headers::ProtocolVersion;
    use crate::protocol::jsonrpc::{InitializeParams, ServerFacts};

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    fn handshake() -> Arc<Handshake> {
        let params = InitializeParams::of(br#"{"params":{"capabilities":{}}}"#).unwrap();
        let server = ServerFacts::of(br#"{"result":{"capabilities":{}}}"#).unwrap();
        let version = ProtocolVersion::parse("2025-11-25").unwrap();
        Handshake::new(params, version, server, Principal::Anonymous, Duration::from_secs(60))
    }

    fn known(number: u8) -> Principal {
        Principal::Known([number; 16])
    }

    #[test]
    fn a_session_has_two_names_once_it_was_opened_again() {
        let handshakes = Handshakes::new(10);
        let handshake = handshake();
        handshakes.record(id("a"), handshake.clone());
        assert_eq!(handshakes.upstream_name("a"), UpstreamName::Original);
        let rename = |name: Option<SessionId>| {
            let visible = name.clone();
            handshakes.rename(&id("a"), &handshake, name, visible.as_ref())
        };
        assert!(rename(Some(id("b"))));
        assert_eq!(handshakes.upstream_name("a"), UpstreamName::Renamed(Some(id("b"))));
        assert_eq!(handshakes.client_name(&id("b")), Some(id("a")));
        assert!(rename(Some(id("c"))));
        assert_eq!((handshakes.client_name(&id("b")), handshakes.client_name(&id("c"))), (None, Some(id("a"))));
        handshakes.forget(&id("a"));
        assert!(handshake.is_over() && !rename(None));
        handshakes.sweep(clock::now(), HashSet::new);
        assert_eq!(handshakes.client_name(&id("c")), None);
    }

    /// Returns whether a session has a name that no server has.
    fn is_lost(handshakes: &Handshakes, session: &str) -> bool {
        let name = handshakes.upstream_name(session);
        matches!(name, UpstreamName::Renamed(Some(name)) if name.as_str().starts_with("mcp-resume-"))
    }

    /// As of a server that numbers its sessions.
    #[test]
    fn a_session_whose_name_the_server_gives_to_another_is_opened_again() {
        let handshakes = Handshakes::new(10);
        let (first, second) = (handshake(), handshake());
        handshakes.record(id("1"), first.clone());
        handshakes.record(id("2"), second.clone());
        assert!(handshakes.rename(&id("2"), &second, Some(id("1")), Some(&id("1"))));
        assert!(is_lost(&handshakes, "1"));
        assert_eq!(handshakes.client_name(&id("1")), Some(id("2")));
        assert!(handshakes.rename(&id("1"), &first, Some(id("2")), Some(&id("2"))));
        assert_eq!(handshakes.upstream_name("1"), UpstreamName::Renamed(Some(id("2"))));
        assert_eq!(handshakes.upstream_name("2"), UpstreamName::Renamed(Some(id("1"))));
        // The server restarts again.
        assert!(handshakes.rename(&id("1"), &first, Some(id("1")), Some(&id("1"))));
        assert_eq!(handshakes.upstream_name("1"), UpstreamName::Renamed(Some(id("1"))));
        assert!(is_lost(&handshakes, "2"));
        assert_eq!(handshakes.client_name(&id("1")), Some(id("1")));
        assert_eq!(handshakes.client_name(&id("2")), None);
        // And gives the name to a session that a client opens.
        handshakes.displace(&id("1"), &id("1"), None);
        assert!(is_lost(&handshakes, "1"));
        assert_eq!(handshakes.client_name(&id("1")), None);
    }

    #[test]
    fn the_bytes_of_all_records_are_bounded() {
        let handshakes = Handshakes::new(8);
        let params = format!(r#"{{"params":{{"x":"{}"}}}}"#, "x".repeat(10_000));
        for number in 0..100 {
            let params = InitializeParams::of(params.as_bytes()).unwrap();
            let version = ProtocolVersion::parse("2025-11-25").unwrap();
            let server = ServerFacts::default();
            let handshake = Handshake::new(params, version, server, Principal::Anonymous, Duration::from_secs(60));
            handshakes.record(id(&number.to_string()), handshake);
            assert!(handshakes.all_bytes.held() <= 8 * BYTES_EACH + 2 * 11_000);
        }
        let last = handshakes.find(&id("99")).unwrap();
        last.note_subscription(&"u".repeat(20_000));
        assert!(last.is_over());
        drop(last);
        handshakes.by_session.clear();
        assert_eq!(handshakes.all_bytes.held(), 0);
    }

    #[test]
    fn records_are_bounded_and_end_with_their_time() {
        let handshakes = Handshakes::new(8);
        for number in 0..100 {
            handshakes.record(id(&number.to_string()), handshake());
            assert!(handshakes.by_session.len() <= 8);
        }
        assert!(handshakes.find(&id("99")).is_some());
        let later = clock::now() + Duration::from_secs(61);
        handshakes.sweep(later, || HashSet::from([id("99")]));
        assert!(handshakes.find(&id("99")).is_some() && handshakes.by_session.len() == 1);
    }

    /// Asserts that no lock of the table or of this record is held.
    fn assert_unlocked(handshakes: &Handshakes, id: &SessionId, handshake: &Handshake) {
        assert!(handshakes.by_session.try_entry(id.clone()).is_some(), "the entry of the record is locked");
        assert!(handshake.is_unlocked(), "the record is locked");
    }

    /// A thread with an entry of the session table uses a record; a sweep of the records uses the
    /// session table. With a lock of the records held meanwhile, the two could wait for each other.
    #[test]
    fn the_session_table_is_used_under_no_lock_of_the_records() {
        let handshakes = Handshakes::new(8);
        let handshake = handshake();
        handshakes.record(id("a"), handshake.clone());
        assert!(handshakes.rename(&id("a"), &handshake, Some(id("b")), Some(&id("b"))));
        let mut is_asked = false;
        handshakes.sweep(clock::now() + Duration::from_secs(61), || {
            is_asked = true;
            assert_unlocked(&handshakes, &id("a"), &handshake);
            HashSet::new()
        });
        assert!(is_asked && handshakes.find(&id("a")).is_none());
        assert_eq!(handshakes.client_name(&id("b")), None);
    }

    #[test]
    fn three_attempts_may_begin_in_a_minute() {
        let (handshake, now) = (handshake(), clock::now());
        for _ in 0..3 {
            assert!(handshake.begin_attempt(now, true));
        }
        assert!(!handshake.begin_attempt(now + Duration::from_secs(59), true));
        assert!(handshake.begin_attempt(now + Duration::from_secs(60), true));
    }

    #[test]
    fn the_opener_and_those_whom_the_server_accepted_may_revive() {
        let handshake = handshake();
        assert!(handshake.may_revive(&Principal::Anonymous) && !handshake.may_revive(&known(1)));
        for number in 1..20 {
            handshake.note_accepted(known(number));
        }
        assert!(handshake.may_revive(&Principal::Anonymous));
        assert!(handshake.may_revive(&known(19)) && handshake.may_revive(&known(13)));
        assert!(!handshake.may_revive(&known(12)), "the last seven");
    }

    #[test]
    fn a_session_with_too_many_subscriptions_is_not_opened_again() {
        let handshake = handshake();
        for number in 0..256 {
            handshake.note_subscription(&format!("file:///{number}"));
        }
        assert!(handshake.may_revive(&Principal::Anonymous));
        handshake.note_subscription("file:///more");
        assert!(!handshake.may_revive(&Principal::Anonymous) && !handshake.begin_attempt(clock::now(), true));
    }
}
