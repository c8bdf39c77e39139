//! Records of the handshakes that opened sessions, by which the proxy can open a session again after its server forgot it.
//!
//! Owned here: one record for each session, for all principals that use it, and the two names of a session that was opened again: clients
//! keep the name that they were given, and the server gets its own. Invariants: a record holds at most 16 KiB of parameters, as much of what
//! the server stated, and 256 subscriptions; a session beyond that is not opened again. All records together hold 2 KiB for each of the most
//! sessions. They may hold secrets, so none is logged. Absent: the exchange with the server (`upstream/revival`), and records in the store:
//! they end with the process.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::clock;
use crate::event_log::identity::principal::Principal;
use crate::eviction::evict_if_full;
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::protocol::jsonrpc::{InitializeParams, ServerFacts};
use crate::sync;

/// Limit of the subscriptions of a session. Beyond it the session is not opened again.
const SUBSCRIPTIONS_MAX: usize = 256;
/// Bytes that all records may hold, for each of the most sessions.
const BYTES_EACH: usize = 2048;
/// Approximate size of a record beside its variable parts.
const RECORD_COST: usize = 512;
/// Size limit of the URI of a subscription, in bytes, and the approximate size of one beside its URI.
const URI_MAX: usize = 2048;
const SUBSCRIPTION_COST: usize = 64;
/// Size limit of the name of a log level, in bytes.
const LOG_LEVEL_MAX: usize = 64;
/// Limit of the principals that may cause a session to be opened again.
const PRINCIPALS_MAX: usize = 8;
/// Interval within which [`ATTEMPTS_MAX`] attempts may begin.
const ATTEMPTS_PER: Duration = Duration::from_secs(60);
const ATTEMPTS_MAX: usize = 3;

/// Record of the handshake that opened a session.
pub struct Handshake {
    /// Parameters of the client's `initialize`.
    pub params: InitializeParams,
    /// Negotiated protocol version.
    pub version: ProtocolVersion,
    /// Facts that the server stated about itself.
    pub server: ServerFacts,
    /// Lifetime of the record after the last use of its session.
    keep: Duration,
    state: Mutex<State>,
    turn: Arc<tokio::sync::Mutex<()>>,
    bytes: HeldBytes,
    /// Notified when a standalone stream of the session was opened under a new name.
    listening: Notify,
}

/// Masked: the parameters may hold secrets.
impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Name of a session at its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UpstreamName {
    /// The name that clients use, without any owner that the proxy has put before it.
    Original,
    /// A name that the server gave when the session was opened again, or `None` if it gave none.
    Renamed(Option<SessionId>),
}

struct State {
    name: UpstreamName,
    /// Number of times that the session was opened again.
    generation: u32,
    /// Name of the session that is being opened, until its handshake is complete.
    opening: Option<Option<SessionId>>,
    is_initialized: bool,
    log_level: Option<Box<str>>,
    subscriptions: BTreeSet<Box<str>>,
    principals: Vec<Principal>,
    attempts: Vec<Instant>,
    /// Number of attempts that have ended, and whether the last one failed for every caller alike.
    ended: usize,
    has_failed: bool,
    is_over: bool,
    used: Instant,
}

impl Handshake {
    /// Creates the record of a session that `opener` has opened, kept for `keep` after the last use of the session.
    pub fn new(
        params: InitializeParams,
        version: ProtocolVersion,
        server: ServerFacts,
        opener: Principal,
        keep: Duration,
    ) -> Arc<Self> {
        let bytes = HeldBytes::default();
        bytes.add(RECORD_COST + params.as_json().len() + server.byte_len());
        let state = State {
            name: UpstreamName::Original,
            generation: 0,
            opening: None,
            is_initialized: false,
            log_level: None,
            subscriptions: BTreeSet::new(),
            principals: vec![opener],
            attempts: Vec::new(),
            ended: 0,
            has_failed: false,
            is_over: false,
            used: clock::now(),
        };
        Arc::new(Self {
            params,
            version,
            server,
            keep,
            state: Mutex::new(state),
            turn: Arc::default(),
            bytes,
            listening: Notify::new(),
        })
    }

    /// Notes that the client has sent `notifications/initialized`.
    pub fn note_initialized(&self) {
        self.lock().is_initialized = true;
    }

    /// Notes the level that the client has asked log messages for.
    pub fn note_log_level(&self, level: &str) {
        if level.len() <= LOG_LEVEL_MAX {
            self.lock().log_level = Some(level.into());
        }
    }

    /// Notes that the client has subscribed to a resource. Beyond 256 subscriptions, with a URI of more than 2 KiB, and where all records
    /// hold too much, the session is not opened again.
    pub fn note_subscription(&self, uri: &str) {
        let mut state = self.lock();
        if state.is_over || !state.subscriptions.insert(uri.into()) {
            return;
        }
        let has_room = self.bytes.add(uri.len() + SUBSCRIPTION_COST);
        if !has_room || uri.len() > URI_MAX || state.subscriptions.len() > SUBSCRIPTIONS_MAX {
            state.is_over = true;
            let freed = state.subscriptions.iter().map(|uri| uri.len() + SUBSCRIPTION_COST).sum();
            state.subscriptions.clear();
            self.bytes.remove(freed);
        }
    }

    /// Notes that the client has ended a subscription.
    pub fn note_subscription_end(&self, uri: &str) {
        if self.lock().subscriptions.remove(uri) {
            self.bytes.remove(uri.len() + SUBSCRIPTION_COST);
        }
    }

    /// Notes that the server has accepted a principal in the session. The last seven, and the one that opened the session, may cause it to be opened
    /// again.
    pub fn note_accepted(&self, principal: Principal) {
        let mut state = self.lock();
        if state.principals.contains(&principal) {
            return;
        }
        if state.principals.len() == PRINCIPALS_MAX {
            // A client whose token is refreshed is another principal each time. The one that opened the session stays.
            state.principals.remove(1);
        }
        state.principals.push(principal);
    }

    /// Returns whether a refused request of this principal may open the session again.
    pub fn may_revive(&self, principal: &Principal) -> bool {
        let state = self.lock();
        !state.is_over && state.principals.contains(principal)
    }

    /// Returns the principals that may cause the session to be opened again.
    pub fn principals(&self) -> Vec<Principal> {
        self.lock().principals.clone()
    }

    /// Returns whether the client has sent `notifications/initialized`.
    pub fn is_initialized(&self) -> bool {
        self.lock().is_initialized
    }

    /// Returns the level that the client has asked log messages for last.
    pub fn log_level(&self) -> Option<Box<str>> {
        self.lock().log_level.clone()
    }

    /// Returns the resources to which the client is subscribed.
    pub fn subscriptions(&self) -> Vec<Box<str>> {
        self.lock().subscriptions.iter().cloned().collect()
    }

    /// Returns the name of the session at its server.
    pub fn name(&self) -> UpstreamName {
        self.lock().name.clone()
    }

    /// Returns the newest name of the session at its server: that of a handshake in progress, once the server has given it.
    pub fn newest_name(&self) -> UpstreamName {
        let state = self.lock();
        state.opening.clone().map_or_else(|| state.name.clone(), UpstreamName::Renamed)
    }

    /// Returns whether a handshake is in progress for which the server has given a name.
    pub fn is_opening(&self) -> bool {
        self.lock().opening.is_some()
    }

    /// Returns the name that the server has given in a handshake that is in progress: `Some(None)` if it gave none.
    pub fn opening_name(&self) -> Option<Option<SessionId>> {
        self.lock().opening.clone()
    }

    /// Returns the number of times that the session was opened again.
    pub fn generation(&self) -> u32 {
        self.lock().generation
    }

    /// Waits for the turn to open the session again, which one task has at a time.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Returns the number of attempts that have ended.
    pub fn ended(&self) -> usize {
        self.lock().ended
    }

    /// Returns whether an attempt has ended after the first `before`, and failed for every caller alike.
    pub fn has_failed_since(&self, before: usize) -> bool {
        let state = self.lock();
        state.ended > before && state.has_failed
    }

    /// Begins an attempt to open the session again. Returns false beyond three a minute, and for a session that is over.
    pub fn begin_attempt(&self, now: Instant) -> bool {
        let mut state = self.lock();
        state.attempts.retain(|begun| now.saturating_duration_since(*begun) < ATTEMPTS_PER);
        let may_begin = !state.is_over && state.attempts.len() < ATTEMPTS_MAX;
        if may_begin {
            state.attempts.push(now);
            state.used = now;
        }
        may_begin
    }

    /// Notes the end of an attempt. `has_failed` is true if another caller would have failed as well.
    pub fn end_attempt(&self, has_failed: bool) {
        let mut state = self.lock();
        state.ended += 1;
        state.has_failed = has_failed;
        state.opening = None;
    }

    /// Notes the name that the server has given to the session that is being opened.
    pub fn note_opening(&self, name: Option<SessionId>) {
        self.lock().opening = Some(name);
    }

    /// Returns whether the session is over: its client has ended it, or its server cannot serve it again.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Notes that a standalone stream was opened under the newest name.
    pub fn note_listening(&self) {
        self.listening.notify_waiters();
    }

    /// Waits for the next standalone stream that is opened, from when it is enabled or first polled.
    pub fn listening(&self) -> Notified<'_> {
        self.listening.notified()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

/// Bytes of one record, which count in those of all records while the record is among them.
#[derive(Default)]
struct HeldBytes {
    own: AtomicUsize,
    all: OnceLock<Arc<AllBytes>>,
}

#[derive(Debug)]
struct AllBytes {
    held: AtomicUsize,
    most: usize,
}

impl AllBytes {
    fn are_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.most
    }
}

impl HeldBytes {
    /// Counts further bytes. Returns false if all records hold too much.
    fn add(&self, bytes: usize) -> bool {
        self.own.fetch_add(bytes, Ordering::Relaxed);
        let Some(all) = self.all.get() else { return true };
        all.held.fetch_add(bytes, Ordering::Relaxed);
        !all.are_full()
    }

    fn remove(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(all) = self.all.get() {
            all.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn count_in(&self, all: &Arc<AllBytes>) {
        if self.all.set(all.clone()).is_ok() {
            all.held.fetch_add(self.own.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.remove(self.own.load(Ordering::Relaxed));
    }
}

/// Records of the handshakes of all sessions that were opened here.
#[derive(Debug)]
pub struct Handshakes {
    by_session: DashMap<SessionId, Arc<Handshake>>,
    /// Clients' names of sessions that were opened again, by their names at the server.
    by_upstream_name: DashMap<SessionId, SessionId>,
    /// True once a session was opened again. Before that no request looks for its names.
    has_renamed: AtomicBool,
    all_bytes: Arc<AllBytes>,
    most: usize,
}

impl Handshakes {
    /// Creates an empty set of at most `most` records.
    pub fn new(most: usize) -> Self {
        let all_bytes = Arc::new(AllBytes { held: AtomicUsize::new(0), most: most.saturating_mul(BYTES_EACH) });
        Self {
            all_bytes,
            by_session: DashMap::new(),
            by_upstream_name: DashMap::new(),
            has_renamed: AtomicBool::new(false),
            most,
        }
    }

    /// Keeps the record of a session. Beyond the limits of number and bytes those that were used longest ago go.
    pub fn record(&self, id: SessionId, handshake: Arc<Handshake>) {
        handshake.bytes.count_in(&self.all_bytes);
        let most = if self.all_bytes.are_full() { self.by_session.len().max(1) } else { self.most };
        let now = clock::now();
        // Without its record a session that was opened again is lost, so it goes last.
        evict_if_full(&self.by_session, most, |handshake| {
            let state = handshake.lock();
            if state.name == UpstreamName::Original { state.used } else { now }
        });
        if let Some(before) = self.by_session.insert(id, handshake) {
            before.lock().is_over = true;
        }
    }

    /// Returns the record of a session, or `None` if it cannot be opened again.
    pub fn find(&self, id: &SessionId) -> Option<Arc<Handshake>> {
        self.by_session.get(id).map(|entry| entry.value().clone())
    }

    /// Forgets the record of a session that its client has ended, or that its server cannot serve again. An attempt in progress fails.
    pub fn forget(&self, id: &SessionId) {
        if let Some((_, handshake)) = self.by_session.remove(id) {
            handshake.lock().is_over = true;
        }
    }

    /// Notes a use of the session at `at`.
    pub(super) fn note_use(&self, id: &SessionId, at: Instant) {
        if let Some(handshake) = self.by_session.get(id) {
            let mut state = handshake.lock();
            state.used = state.used.max(at);
        }
    }

    /// Forgets records that were not used for their time, except those of the sessions that `in_use` returns, and names of sessions without a record.
    pub(super) fn sweep(&self, now: Instant, in_use: impl FnOnce() -> HashSet<SessionId>) {
        let is_due = |handshake: &Handshake| now.saturating_duration_since(handshake.lock().used) >= handshake.keep;
        if self.by_session.iter().any(|entry| is_due(entry.value())) {
            let in_use = in_use();
            self.by_session.retain(|id, handshake| !is_due(handshake) || in_use.contains(id));
        }
        // No map is used under an entry of the other.
        let names: Vec<_> =
            self.by_upstream_name.iter().map(|entry| (entry.key().clone(), entry.value().clone())).collect();
        for (name, id) in names {
            if !self.by_session.contains_key(&id) {
                self.by_upstream_name.remove_if(&name, |_, holder| *holder == id);
            }
        }
    }

    /// Gives a session the name at the server under which it was opened again. Returns false if the session is over. `visible` is the name that
    /// a client would have got for it. A session with that name is gone at the server: `placeholder` takes its place, which the server
    /// refuses, so that the session is opened again in its turn.
    pub fn rename(
        &self,
        id: &SessionId,
        handshake: &Handshake,
        name: Option<SessionId>,
        visible: Option<&SessionId>,
        placeholder: SessionId,
    ) -> bool {
        if let (Some(name), Some(visible)) = (&name, visible) {
            self.displace(name, visible, Some(id), placeholder);
        }
        // No map is used under the lock of a record.
        let before = {
            let mut state = handshake.lock();
            if state.is_over {
                return false;
            }
            state.generation += 1;
            std::mem::replace(&mut state.name, UpstreamName::Renamed(name.clone()))
        };
        self.has_renamed.store(true, Ordering::Relaxed);
        if let UpstreamName::Renamed(Some(before)) = before {
            self.by_upstream_name.remove_if(&before, |_, holder| holder == id);
        }
        if let Some(name) = name {
            self.by_upstream_name.insert(name, id.clone());
        }
        true
    }

    /// Notes that the server has given `name`, of which a client would see `visible`, to the session `keeper` or to a new one. A session that
    /// had it before is gone at the server: it gets the name `placeholder`, which the server refuses, so that it is opened again in its turn.
    pub fn displace(&self, name: &SessionId, visible: &SessionId, keeper: Option<&SessionId>, placeholder: SessionId) {
        let taken = self.by_upstream_name.remove_if(name, |_, holder| Some(holder) != keeper);
        let renamed = taken.and_then(|(_, holder)| self.find(&holder));
        let original = if keeper == Some(visible) { None } else { self.find(visible) };
        let lost = UpstreamName::Renamed(Some(placeholder));
        if let Some(handshake) = renamed {
            let mut state = handshake.lock();
            if state.name == UpstreamName::Renamed(Some(name.clone())) {
                state.name = lost.clone();
            }
        }
        if let Some(handshake) = original {
            let mut state = handshake.lock();
            if state.name == UpstreamName::Original {
                state.name = lost;
                self.has_renamed.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether any session was opened again.
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

    /// Returns the name that clients use for a session that was opened again as `name`, or `None` for any other.
    pub fn client_name(&self, name: &SessionId) -> Option<SessionId> {
        if !self.has_renamed() {
            return None;
        }
        self.by_upstream_name.get(name).map(|entry| entry.value().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            handshakes.rename(&id("a"), &handshake, name, visible.as_ref(), id("placeholder"))
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

    /// As of a server that numbers its sessions.
    #[test]
    fn a_session_whose_name_the_server_gives_to_another_is_opened_again() {
        let handshakes = Handshakes::new(10);
        let (first, second) = (handshake(), handshake());
        handshakes.record(id("1"), first.clone());
        handshakes.record(id("2"), second.clone());
        assert!(handshakes.rename(&id("2"), &second, Some(id("1")), Some(&id("1")), id("placeholder")));
        assert_eq!(handshakes.upstream_name("1"), UpstreamName::Renamed(Some(id("placeholder"))));
        assert_eq!(handshakes.client_name(&id("1")), Some(id("2")));
        assert!(handshakes.rename(&id("1"), &first, Some(id("2")), Some(&id("2")), id("placeholder")));
        assert_eq!(handshakes.upstream_name("1"), UpstreamName::Renamed(Some(id("2"))));
        assert_eq!(handshakes.upstream_name("2"), UpstreamName::Renamed(Some(id("1"))));
        // The server restarts again.
        assert!(handshakes.rename(&id("1"), &first, Some(id("1")), Some(&id("1")), id("placeholder")));
        assert_eq!(handshakes.upstream_name("1"), UpstreamName::Renamed(Some(id("1"))));
        assert_eq!(handshakes.upstream_name("2"), UpstreamName::Renamed(Some(id("placeholder"))));
        assert_eq!(handshakes.client_name(&id("1")), Some(id("1")));
        assert_eq!(handshakes.client_name(&id("2")), None);
        // And gives the name to a session that a client opens.
        handshakes.displace(&id("1"), &id("1"), None, id("another"));
        assert_eq!(handshakes.upstream_name("1"), UpstreamName::Renamed(Some(id("another"))));
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
            assert!(handshakes.all_bytes.held.load(Ordering::Relaxed) <= 8 * BYTES_EACH + 2 * 11_000);
        }
        let last = handshakes.find(&id("99")).unwrap();
        last.note_subscription(&"u".repeat(20_000));
        assert!(last.is_over());
        drop(last);
        handshakes.by_session.clear();
        assert_eq!(handshakes.all_bytes.held.load(Ordering::Relaxed), 0);
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

    #[test]
    fn three_attempts_may_begin_in_a_minute() {
        let (handshake, now) = (handshake(), clock::now());
        for _ in 0..3 {
            assert!(handshake.begin_attempt(now));
        }
        assert!(!handshake.begin_attempt(now + Duration::from_secs(59)));
        assert!(handshake.begin_attempt(now + Duration::from_secs(60)));
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
        assert!(!handshake.may_revive(&Principal::Anonymous) && !handshake.begin_attempt(clock::now()));
    }
}
