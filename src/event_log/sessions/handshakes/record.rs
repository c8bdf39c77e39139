//! Record of the handshake that opened a session.
//!
//! Owned here: all that a later handshake repeats or compares, the state that the client has set in the session, the session's name at its
//! server, and the attempts to open it again. Absent: the other records, and the limit of their bytes together ([`super`]).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedMutexGuard};

use super::held_bytes::HeldBytes;
use crate::clock;
use crate::event_log::identity::principal::Principal;
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::protocol::jsonrpc::{InitializeParams, ServerFacts};
use crate::sync;

/// Limit of the subscriptions of a session. Beyond it the session is not opened again.
const SUBSCRIPTIONS_MAX: usize = 256;
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
    pub(super) keep: Duration,
    state: Mutex<State>,
    turn: Arc<tokio::sync::Mutex<()>>,
    pub(super) bytes: HeldBytes,
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

pub(super) struct State {
    pub(super) name: UpstreamName,
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
    pub(super) is_over: bool,
    pub(super) used: Instant,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}
