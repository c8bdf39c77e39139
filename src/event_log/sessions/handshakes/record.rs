//! Record of the handshake that opened a session.
//!
//! Owned here: the data that a later handshake repeats or compares, the state that the client has
//! set in the session, the session's name at its server, and the attempts to open it again. Absent:
//! the other records, and the limit of their bytes together ([`super`]).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedMutexGuard, watch};

use super::changes::Change;
use super::generations::{Generations, UpstreamName};
use super::held_bytes::HeldBytes;
use super::stored::{KeptCookies, StoredHandshake};
use crate::clock;
use crate::event_log::backing::HomeTerm;
use crate::identity::Principal;
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::protocol::ids::{Owner, SessionGeneration};
use crate::protocol::jsonrpc::{self, InitializeParams, Message, RequestId, ServerFacts};
use crate::protocol::lists::{Page, PageDigest, ReadLists};
use crate::sync;

/// Limit of the subscriptions of a session. Beyond it the session is not opened again.
const SUBSCRIPTIONS_MAX: usize = 256;
/// Approximate size of a record beside its variable parts.
const RECORD_COST: usize = 512;
/// Size limit of the URI of a subscription, in bytes, and the approximate size of one beside its
/// URI.
const URI_MAX: usize = 2048;
const SUBSCRIPTION_COST: usize = 64;
/// Size limit of the name of a log level, in bytes.
const LOG_LEVEL_MAX: usize = 64;
/// Limit of the principals that may cause a session to be opened again.
const PRINCIPALS_MAX: usize = 8;
/// Interval with at most [`ATTEMPTS_MAX`] new attempts.
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
    pub(super) keep: Duration,
    state: Mutex<State>,
    turn: Arc<tokio::sync::Mutex<()>>,
    pub(super) bytes: HeldBytes,
    write_turn: tokio::sync::Mutex<()>,
    /// Changes that the store does not have yet.
    pub(super) change: Change,
    /// Notified when a standalone stream of the session was opened under a new name.
    listening: Notify,
    /// Number of times that the session was opened again, with its lists compared.
    announced: watch::Sender<u64>,
}

/// Another server in a session that was opened again.
#[derive(Clone, PartialEq, Debug)]
pub struct Replacement {
    /// Negotiated protocol version.
    pub version: ProtocolVersion,
    /// Facts that the server stated about itself.
    pub server: ServerFacts,
}

/// End of an attempt to open a session again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The session lives: nothing was opened.
    Lives,
    /// The attempt failed, as an attempt of any other caller would have.
    Failed,
    /// The session was opened again, or has ended, or the server refused this caller.
    Other,
}

/// Masked: the parameters may hold secrets.
impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("version", &self.version).finish_non_exhaustive()
    }
}

pub(super) struct State {
    pub(super) name: UpstreamName,
    /// True once the store has had the record, so that a missing or a later one there means
    /// something.
    pub(super) was_written: bool,
    /// Number of replicas that took the session over.
    takeovers: u32,
    /// Term of this replica's last write of itself as the home of the session.
    confirmed: Option<HomeTerm>,
    /// Time of the last use that the store's record is kept by.
    pub(super) kept_from: Instant,
    /// Name of the session that is being opened, until its handshake is complete.
    opening: Option<Option<SessionId>>,
    pub(super) generations: Generations,
    is_initialized: bool,
    log_level: Option<Box<str>>,
    subscriptions: BTreeSet<Box<str>>,
    principals: Vec<Principal>,
    attempts: Vec<Instant>,
    /// Times of the last revivals.
    revivals: Vec<Instant>,
    /// Number of attempts that have ended, and the end of the last one.
    ended: usize,
    last_end: AttemptEnd,
    /// True once the server has responded to a request in the session.
    was_answered: bool,
    /// Pages of lists that the client has read.
    read_lists: ReadLists,
    /// Notifications of the lists that differed when the session was opened again.
    changed_lists: Vec<&'static str>,
    /// The server in the session, if it is another one than at the client's handshake.
    replacement: Option<Arc<Replacement>>,
    /// Cookies of a load balancer, of the caller whose cookies changed last.
    cookies: Option<KeptCookies>,
    /// Status of the server's refusal of the standalone stream, while the session lived, or `None`.
    pub(super) refused_get: Option<u16>,
    pub(super) is_over: bool,
    pub(super) used: Instant,
}

impl State {
    fn new(principals: Vec<Principal>) -> Self {
        let now = clock::now();
        Self {
            name: UpstreamName::Original,
            generations: Generations::new(UpstreamName::Original),
            was_written: false,
            takeovers: 0,
            confirmed: None,
            kept_from: now,
            opening: None,
            is_initialized: false,
            log_level: None,
            subscriptions: BTreeSet::new(),
            principals,
            attempts: Vec::new(),
            revivals: Vec::new(),
            ended: 0,
            last_end: AttemptEnd::Other,
            was_answered: false,
            read_lists: ReadLists::default(),
            changed_lists: Vec::new(),
            replacement: None,
            cookies: None,
            refused_get: None,
            is_over: false,
            used: now,
        }
    }
}

impl Handshake {
    /// Creates the record of a session that `opener` has opened, kept for `keep` after the last use
    /// of the session.
    pub fn new(
        params: InitializeParams,
        version: ProtocolVersion,
        server: ServerFacts,
        opener: Principal,
        keep: Duration,
    ) -> Arc<Self> {
        Self::with(params, version, server, keep, State::new(vec![opener]))
    }

    fn with(
        params: InitializeParams,
        version: ProtocolVersion,
        server: ServerFacts,
        keep: Duration,
        state: State,
    ) -> Arc<Self> {
        let bytes = HeldBytes::default();
        let of_subscriptions: usize = state.subscriptions.iter().map(|uri| uri.len() + SUBSCRIPTION_COST).sum();
        let of_lists = state.read_lists.byte_len();
        let of_cookies = state.cookies.as_ref().map_or(0, |cookies| cookies.text.len());
        bytes.add(RECORD_COST + params.as_json().len() + server.byte_len() + of_subscriptions + of_lists + of_cookies);
        Arc::new(Self {
            params,
            version,
            server,
            keep,
            state: Mutex::new(state),
            turn: Arc::default(),
            bytes,
            write_turn: tokio::sync::Mutex::default(),
            change: Change::default(),
            listening: Notify::new(),
            announced: watch::Sender::new(0),
        })
    }

    /// Restores the record of a session from a store.
    pub(in crate::event_log) fn from_stored(stored: StoredHandshake) -> Arc<Self> {
        let StoredHandshake { params, version, server, keep, .. } = stored;
        let state = State {
            generations: Generations::restored(stored.generation, stored.name.clone()),
            name: stored.name,
            was_written: true,
            takeovers: stored.takeovers,
            is_initialized: stored.is_initialized,
            log_level: stored.log_level,
            subscriptions: stored.subscriptions.into_iter().collect(),
            was_answered: stored.was_answered,
            read_lists: stored.read_lists,
            cookies: stored.cookies,
            ..State::new(stored.principals)
        };
        Self::with(params, version, server, keep, state)
    }

    /// Returns the record for a store, with `home` as the home of the session. `name` is the name
    /// of a session that was opened again and still has its old name here.
    pub(in crate::event_log) fn to_stored(&self, home: Owner, name: Option<&UpstreamName>) -> StoredHandshake {
        let state = self.lock();
        StoredHandshake {
            home,
            generation: if name.is_some() { state.generations.newest() } else { state.generations.current() },
            takeovers: state.takeovers,
            nonce: StoredHandshake::new_nonce(),
            name: name.unwrap_or(&state.name).clone(),
            principals: state.principals.clone(),
            params: self.params.clone(),
            version: self.version.clone(),
            server: self.server.clone(),
            is_initialized: state.is_initialized,
            log_level: state.log_level.clone(),
            subscriptions: state.subscriptions.iter().cloned().collect(),
            was_answered: state.was_answered,
            read_lists: state.read_lists.clone(),
            cookies: state.cookies.clone(),
            keep: self.keep,
        }
    }

    /// Waits for the turn to write the record to the store.
    pub(in crate::event_log) async fn write_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.write_turn.lock().await
    }

    /// Notes that the record is about to be read for the store, and returns whether the store has
    /// had it before.
    pub(in crate::event_log) fn begin_write(&self) -> bool {
        let mut state = self.lock();
        state.kept_from = state.used;
        state.was_written
    }

    /// Notes that the store has the record, with this replica as the home of the session. The note
    /// counts in `term`.
    pub(in crate::event_log) fn note_written(&self, term: Option<HomeTerm>) {
        let mut state = self.lock();
        state.was_written = true;
        state.confirmed = term;
    }

    /// Returns whether this replica has written itself as the home of the session in `term`.
    pub(in crate::event_log) fn is_confirmed(&self, term: Option<HomeTerm>) -> bool {
        term.is_some() && self.lock().confirmed == term
    }

    /// Creates the record of a session that cannot be opened again, for its two names alone.
    pub fn for_names(keep: Duration) -> Arc<Self> {
        let (params, server) = (InitializeParams::default(), ServerFacts::default());
        let handshake = Self::new(params, ProtocolVersion::DEFAULT, server, Principal::Anonymous, keep);
        handshake.lock().is_over = true;
        handshake
    }

    /// Sets the server's name of a session that clients know under a name of the proxy's own.
    pub(super) fn set_first_name(&self, name: SessionId) {
        let mut state = self.lock();
        state.name = UpstreamName::Renamed(Some(name));
        state.generations = Generations::new(state.name.clone());
    }

    /// Notes that the client has sent `notifications/initialized`.
    pub fn note_initialized(&self) {
        self.lock().is_initialized = true;
        self.change.note();
    }

    /// Notes the level of log messages that the client wants.
    pub fn note_log_level(&self, level: &str) {
        if level.len() <= LOG_LEVEL_MAX {
            self.lock().log_level = Some(level.into());
            self.change.note();
        }
    }

    /// Notes that the client has subscribed to a resource. Beyond 256 subscriptions, with a URI of
    /// more than 2 KiB, and where all records hold too much, the session is not opened again.
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
        self.change.note();
    }

    /// Notes that the client has ended a subscription.
    pub fn note_subscription_end(&self, uri: &str) {
        if self.lock().subscriptions.remove(uri) {
            self.bytes.remove(uri.len() + SUBSCRIPTION_COST);
            self.change.note();
        }
    }

    /// Notes that the server has accepted a principal in the session. The last seven, and the
    /// opener of the session, may cause it to be opened again.
    pub fn note_accepted(&self, principal: Principal) {
        let mut state = self.lock();
        if state.principals.contains(&principal) {
            return;
        }
        if state.principals.len() == PRINCIPALS_MAX {
            // A client whose token is refreshed is another principal each time. The opener of the
            // session stays.
            state.principals.remove(1);
        }
        state.principals.push(principal);
        self.change.note();
    }

    /// Notes that the server has responded to a request in the session.
    pub fn note_answered(&self) {
        let mut state = self.lock();
        if !state.was_answered {
            state.was_answered = true;
            self.change.note();
        }
    }

    /// Notes that the client has read a page of a list. `None` stands for a page that cannot be
    /// compared. Where all records hold too much, no list of the session can be compared.
    pub fn note_list_page(&self, page: &Page, digest: Option<PageDigest>) {
        let mut state = self.lock();
        let before = state.read_lists.clone();
        state.read_lists.note(page, digest);
        if state.read_lists == before {
            return;
        }
        let has_room = self.bytes.add(state.read_lists.byte_len());
        self.bytes.remove(before.byte_len());
        if !has_room {
            self.bytes.remove(state.read_lists.byte_len());
            state.read_lists.give_up_all();
        }
        self.change.note();
    }

    /// Returns the lists that the client has read.
    pub fn read_lists(&self) -> ReadLists {
        self.lock().read_lists.clone()
    }

    /// Sets the notifications of the lists that differ since the session was opened again.
    pub fn set_changed_lists(&self, notifications: Vec<&'static str>) {
        self.lock().changed_lists = notifications;
    }

    /// Returns the notifications of the lists that differ since the session was last opened again.
    pub fn changed_lists(&self) -> Vec<&'static str> {
        self.lock().changed_lists.clone()
    }

    /// The session was opened again, and its lists are compared. For a front without streams.
    pub fn announce(&self) {
        self.announced.send_modify(|announced| *announced += 1);
    }

    /// Returns the changes of [`Self::announce`].
    pub fn announcements(&self) -> watch::Receiver<u64> {
        self.announced.subscribe()
    }

    /// Sets the server that is in the session now, or `None` for one as at the client's handshake.
    /// Not stored: only a client in this process has such a session.
    pub fn set_replacement(&self, replacement: Option<Replacement>) {
        self.lock().replacement = replacement.map(Arc::new);
    }

    /// Returns the server in the session, if it is another one than at the client's handshake.
    pub fn replacement(&self) -> Option<Arc<Replacement>> {
        self.lock().replacement.clone()
    }

    /// Returns the protocol version that the session has now.
    pub fn current_version(&self) -> ProtocolVersion {
        self.lock().replacement.as_ref().map_or_else(|| self.version.clone(), |it| it.version.clone())
    }

    /// Returns whether the server has ever responded to a request in the session.
    pub fn was_answered(&self) -> bool {
        self.lock().was_answered
    }

    /// Notes the cookies of a caller in the session, in place of those noted before. Where all
    /// records hold too much, none are kept.
    pub fn note_cookies(&self, cookies: KeptCookies) {
        let mut state = self.lock();
        if state.cookies.as_ref() == Some(&cookies) {
            return;
        }
        if let Some(before) = state.cookies.take() {
            self.bytes.remove(before.text.len());
        }
        if self.bytes.add(cookies.text.len()) {
            state.cookies = Some(cookies);
        } else {
            self.bytes.remove(cookies.text.len());
        }
        self.change.note();
    }

    /// Notes that a caller has no cookies in the session any more.
    pub fn note_cookies_end(&self, digest: &[u8; 32]) {
        let mut state = self.lock();
        if let Some(ended) = state.cookies.take_if(|cookies| cookies.digest == *digest) {
            self.bytes.remove(ended.text.len());
            self.change.note();
        }
    }

    /// Returns the cookies that were noted last.
    pub fn cookies(&self) -> Option<KeptCookies> {
        self.lock().cookies.clone()
    }

    /// Notes the status of the server's refusal of the standalone stream of the session, which
    /// lives. It counts until the session is opened again.
    pub fn note_refused_get(&self, status: u16) {
        self.lock().refused_get = Some(status);
    }

    /// Returns the status of the server's refusal of the standalone stream, or `None` without one.
    pub fn refused_get(&self) -> Option<u16> {
        self.lock().refused_get
    }

    /// Returns whether a refused request of this principal may open the session again.
    pub fn may_revive(&self, principal: &Principal) -> bool {
        let state = self.lock();
        !state.is_over && state.principals.contains(principal)
    }

    /// Returns the principal that has opened the session.
    pub(super) fn opener(&self) -> Option<Principal> {
        self.lock().principals.first().copied()
    }

    /// Returns the principals that may cause the session to be opened again.
    pub fn principals(&self) -> Vec<Principal> {
        self.lock().principals.clone()
    }

    /// Returns whether the client has sent `notifications/initialized`.
    pub fn is_initialized(&self) -> bool {
        self.lock().is_initialized
    }

    /// Returns the level of log messages that the client has last set.
    pub fn log_level(&self) -> Option<Box<str>> {
        self.lock().log_level.clone()
    }

    /// Returns the resources that the client has subscribed to.
    pub fn subscriptions(&self) -> Vec<Box<str>> {
        self.lock().subscriptions.iter().cloned().collect()
    }

    /// Returns the name of the session at its server.
    pub fn name(&self) -> UpstreamName {
        self.lock().name.clone()
    }

    /// Returns the newest name of the session at its server: of a handshake in progress, once the
    /// server has given it.
    pub fn newest_name(&self) -> UpstreamName {
        let state = self.lock();
        state.opening.clone().map_or_else(|| state.name.clone(), UpstreamName::Renamed)
    }

    /// Returns whether a handshake is in progress that has its name from the server.
    pub fn is_opening(&self) -> bool {
        self.lock().opening.is_some()
    }

    /// Returns the server's name for the session of a handshake in progress: `Some(None)` if it
    /// gave no name.
    pub fn opening_name(&self) -> Option<Option<SessionId>> {
        self.lock().opening.clone()
    }

    /// Waits for the turn to open the session again. One task has it at a time.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Returns the number of attempts that have ended.
    pub fn ended(&self) -> usize {
        self.lock().ended
    }

    /// Gives the session a name that no server has, if its present name is `name`. Returns whether
    /// it was `name`.
    pub(super) fn lose_name(&self, name: &UpstreamName) -> bool {
        let mut state = self.lock();
        let is_lost = state.name == *name;
        if is_lost {
            state.name = UpstreamName::lost();
            self.change.note();
        }
        is_lost
    }

    /// Returns the end of the last attempt, or `None` if none has ended after the first `before`.
    pub fn end_since(&self, before: usize) -> Option<AttemptEnd> {
        let state = self.lock();
        if state.ended > before { Some(state.last_end) } else { None }
    }

    /// Begins an attempt to open the session again. Returns false beyond three a minute if it
    /// `is_limited`, and for an ended session.
    pub fn begin_attempt(&self, now: Instant, is_limited: bool) -> bool {
        let mut state = self.lock();
        state.attempts.retain(|begun| now.saturating_duration_since(*begun) < ATTEMPTS_PER);
        let may_begin = !state.is_over && (!is_limited || state.attempts.len() < ATTEMPTS_MAX);
        if may_begin {
            state.attempts.push(now);
            state.used = now;
        }
        may_begin
    }

    /// Notes that the session was opened again. Returns how often it was within the last minute.
    pub fn note_revival(&self, now: Instant) -> usize {
        let mut state = self.lock();
        state.revivals.retain(|at| now.saturating_duration_since(*at) < ATTEMPTS_PER);
        state.revivals.push(now);
        state.revivals.len()
    }

    /// Notes the end of an attempt.
    pub fn end_attempt(&self, end: AttemptEnd) {
        let mut state = self.lock();
        state.ended += 1;
        state.last_end = end;
        state.opening = None;
        state.generations.drop_begun();
    }

    /// Notes the server's name for the session that is being opened.
    pub(super) fn note_opening(&self, name: Option<SessionId>) {
        let mut state = self.lock();
        state.generations.begin(name.clone());
        state.opening = Some(name);
    }

    /// Returns whether the session was opened again, or is being opened: then it has several
    /// generations.
    pub fn has_generations(&self) -> bool {
        self.lock().generations.are_several()
    }

    /// Returns the newest generation: of a handshake in progress, once the server has given its
    /// name.
    pub fn newest_generation(&self) -> SessionGeneration {
        self.lock().generations.newest()
    }

    /// Returns the newest generation with this name at the server; the first for an unknown name.
    pub fn generation_named(&self, name: Option<&[u8]>) -> SessionGeneration {
        self.lock().generations.named(name)
    }

    /// Returns the name of the session in a generation, or `None` if it is no longer known.
    pub(super) fn name_in(&self, generation: SessionGeneration) -> Option<UpstreamName> {
        self.lock().generations.name_in(generation)
    }

    /// Notes the IDs of the server's pending requests at the beginning of a new generation, before
    /// its first request. The newest 64 are kept, each of at most 256 bytes.
    pub fn leave_unanswered(&self, ids: impl IntoIterator<Item = RequestId>) {
        self.change_ids(|generations| generations.leave_unanswered(ids));
    }

    /// Returns whether a response with this ID is for a request that an earlier generation has left
    /// pending.
    pub fn has_left_unanswered(&self, id: &RequestId) -> bool {
        self.lock().generations.have_left_unanswered(id)
    }

    /// Gives the server's requests in a message of this generation IDs of the proxy's own where
    /// their IDs would be ambiguous. A cancel names them so as well. Returns `None` if the message
    /// stays as it is.
    pub fn rename_server_requests(&self, generation: SessionGeneration, message: &[u8]) -> Option<Vec<u8>> {
        jsonrpc::rename_ids(message, |message, id| match message {
            Message::Request { method, .. } => {
                self.change_ids(|generations| generations.rename(generation, id, **method == *"ping"))
            }
            Message::Notification { .. } => self.lock().generations.id_of(generation, id),
            Message::Response { .. } => None,
        })
    }

    /// Returns the generation of a request that clients know under an ID of the proxy's own, and
    /// its ID at the server; `None` for other IDs.
    pub fn server_id_of(&self, id: &RequestId) -> Option<(SessionGeneration, RequestId)> {
        self.lock().generations.server_id_of(id)
    }

    /// Returns the server's ID of a request whose response is about to be sent, or `None` if
    /// clients know the request under that ID. From now on its ID is forgotten before the IDs of
    /// pending requests. The last 64 IDs of requests with a response are kept, and 1024 of pending
    /// ones.
    pub fn answer(&self, id: &RequestId) -> Option<RequestId> {
        self.lock().generations.answer(id)
    }

    /// Changes the kept IDs. If all records hold too much, they are forgotten.
    fn change_ids<R>(&self, change: impl FnOnce(&mut Generations) -> R) -> R {
        let mut state = self.lock();
        let before = state.generations.byte_len();
        let changed = change(&mut state.generations);
        let has_room = self.bytes.add(state.generations.byte_len());
        self.bytes.remove(before);
        if !has_room {
            self.bytes.remove(state.generations.byte_len());
            state.generations.forget_ids();
        }
        changed
    }

    /// Returns whether the session has ended: by its client, or because its server cannot serve it
    /// again.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Notes that a standalone stream was opened under the newest name.
    pub fn note_listening(&self) {
        self.listening.notify_waiters();
    }

    /// Waits for the next standalone stream that is opened, from when it is enabled or first
    /// polled.
    pub fn listening(&self) -> Notified<'_> {
        self.listening.notified()
    }

    #[cfg(test)]
    pub(super) fn is_unlocked(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}
