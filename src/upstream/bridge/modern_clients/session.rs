//! Sessions at the server, one for each caller with equal capabilities.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderValue;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::Template;
use super::listeners::Listeners;
use super::running::RunningCalls;
use crate::channel::Caller;
use crate::protocol::bridge::modern_clients::{Declared, Envelope, LogLevel};
use crate::protocol::jsonrpc;
use crate::{clock, sync};

/// Maximum number of sessions of all callers. At a server that checks no credentials, each made-up
/// credential is a separate caller.
const MAX_SESSIONS: usize = 4096;
/// Maximum number of completed URL elicitations remembered per session.
const MAX_COMPLETED: usize = 64;
/// Maximum wait of a subscription for the session's standalone stream.
const LISTENING_WAIT: Duration = Duration::from_secs(2);

/// Caller and capabilities of its client: equal keys share a session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    caller: Option<Arc<Caller>>,
    client: String,
}

/// Place of a session. Empty while the session is being opened.
pub(super) type Slot = Arc<tokio::sync::Mutex<Option<Arc<LegacySession>>>>;

#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Key, Slot>>);

/// A session at the server.
pub(super) struct LegacySession {
    /// Session name, or `None` if the server assigned no name.
    pub(super) name: Option<HeaderValue>,
    /// Negotiated revision.
    pub(super) version: HeaderValue,
    /// Response to `initialize`.
    pub(super) initialized: Bytes,
    /// Name and version of the server, or `None` if it sent no `serverInfo`.
    pub(super) server_info: Option<Value>,
    /// Capabilities of the clients.
    pub(super) declared: Declared,
    pub(super) calls: RunningCalls,
    pub(super) listeners: Arc<Listeners>,
    next: AtomicU64,
    /// True once the server has responded to a request in the session.
    has_responded: AtomicBool,
    /// True once the server has forgotten the session.
    is_lost: AtomicBool,
    /// Number of running and parked requests.
    busy: AtomicUsize,
    /// Number of parked calls.
    waiting: AtomicUsize,
    state: Mutex<State>,
    /// True once the server has responded to the request for the standalone stream.
    has_stream: watch::Sender<bool>,
    /// Notified of each completed URL elicitation.
    completion: Notify,
}

struct State {
    used: Instant,
    /// Last request of the caller, without its body: its credentials are the newest.
    latest: Template,
    log_level: Option<LogLevel>,
    /// Completed URL elicitations, the oldest first.
    completed: Vec<String>,
}

/// A request in progress: its session is not idle.
pub(super) struct Busy(Arc<LegacySession>);

/// A parked call, in the session's count.
pub(super) struct Waiting(Arc<LegacySession>);

impl Key {
    pub(super) fn of(caller: Option<&Arc<Caller>>, envelope: &Envelope) -> Self {
        let client = format!("{}{}", envelope.declared.as_json(), envelope.client_info);
        Self { caller: caller.cloned(), client }
    }
}

impl Sessions {
    /// Returns the place of a session. At `most` sessions of the caller, or [`MAX_SESSIONS`] of all
    /// callers, the longest idle session is returned as well, to be ended. Returns `None` if no
    /// session is idle.
    pub(super) fn slot(&self, key: &Key, most: usize) -> Option<(Slot, Option<Arc<LegacySession>>)> {
        let mut sessions = sync::lock(&self.0);
        if let Some(slot) = sessions.get(key) {
            return Some((slot.clone(), None));
        }
        // A failed opening leaves an empty place.
        sessions.retain(|_, slot| slot.try_lock().map_or(true, |session| session.is_some()));
        let of_caller = sessions.keys().filter(|known| known.caller == key.caller).count();
        let evicted = if of_caller >= most {
            Some(take_idlest(&mut sessions, |known| known.caller == key.caller)?)
        } else if sessions.len() >= MAX_SESSIONS {
            Some(take_idlest(&mut sessions, |_| true)?)
        } else {
            None
        };
        Some((sessions.entry(key.clone()).or_default().clone(), evicted))
    }

    /// Returns a session whose caller claims the same subject for the same client, with its place.
    /// Returns `None` if the key itself has a place.
    pub(super) fn of_subject(&self, key: &Key) -> Option<(Slot, Arc<LegacySession>)> {
        let sessions = sync::lock(&self.0);
        let caller = key.caller.as_ref().filter(|_| !sessions.contains_key(key))?;
        let claims = |known: &Key| known.caller.as_ref().is_some_and(|known| known.claims_subject_of(caller));
        sessions.iter().filter(|(known, _)| known.client == key.client && claims(known)).find_map(|(_, slot)| {
            let session = slot.try_lock().ok()?.clone()?;
            Some((slot.clone(), session))
        })
    }

    /// Adds a further token of the session's caller as a key to its place.
    pub(super) fn add_key(&self, key: &Key, slot: Slot) {
        sync::lock(&self.0).entry(key.clone()).or_insert(slot);
    }

    /// Takes out all open sessions.
    pub(super) fn take_all(&self) -> Vec<Arc<LegacySession>> {
        let slots = std::mem::take(&mut *sync::lock(&self.0));
        let mut all: Vec<_> = slots.into_values().filter_map(|slot| slot.try_lock().ok()?.take()).collect();
        all.dedup_by(|one, other| Arc::ptr_eq(one, other));
        all
    }

    /// Returns the session of this key, or `None` if it is not open now.
    pub(super) fn current(&self, key: &Key) -> Option<Arc<LegacySession>> {
        let slot = sync::lock(&self.0).get(key).cloned()?;
        slot.try_lock().ok()?.clone()
    }

    /// Removes a session that has ended.
    pub(super) fn forget(&self, session: &Arc<LegacySession>) {
        let is_its = |slot: &Slot| {
            slot.try_lock().is_ok_and(|known| known.as_ref().is_some_and(|known| Arc::ptr_eq(known, session)))
        };
        sync::lock(&self.0).retain(|_, slot| !is_its(slot));
    }
}

/// Takes out the longest idle of the matching sessions, or returns `None` if all are in use.
fn take_idlest(sessions: &mut HashMap<Key, Slot>, concerns: impl Fn(&Key) -> bool) -> Option<Arc<LegacySession>> {
    let idle =
        |slot: &Slot| slot.try_lock().ok().and_then(|session| session.clone()).filter(|session| !session.is_busy());
    let all = sessions.iter().filter(|(key, _)| concerns(key));
    let (key, session) =
        all.filter_map(|(key, slot)| Some((key, idle(slot)?))).min_by_key(|(_, session)| session.used())?;
    let slot = sessions.get(key)?.clone();
    sessions.retain(|_, other| !Arc::ptr_eq(other, &slot));
    Some(session)
}

impl LegacySession {
    /// Creates a session from a response to `initialize`, or returns `None` for an error.
    /// `listeners` continue from the previous session.
    pub(super) fn of(
        name: Option<HeaderValue>,
        initialized: Bytes,
        envelope: &Envelope,
        latest: Template,
        listeners: Arc<Listeners>,
    ) -> Option<Self> {
        let version = jsonrpc::initialize_result(&initialized)?.protocol_version;
        let info = jsonrpc::member(&initialized, &["result", "serverInfo"]);
        Some(Self {
            name,
            version: HeaderValue::from_str(&version).ok()?,
            server_info: info.and_then(|info| serde_json::from_str(info).ok()),
            initialized,
            declared: envelope.declared.clone(),
            calls: RunningCalls::default(),
            listeners,
            next: AtomicU64::new(1),
            has_responded: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(State { used: clock::now(), latest, log_level: None, completed: Vec::new() }),
            has_stream: watch::Sender::new(false),
            completion: Notify::new(),
        })
    }

    pub(super) fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Returns the capabilities of the server.
    pub(super) fn capabilities(&self) -> Value {
        let capabilities = jsonrpc::member(&self.initialized, &["result", "capabilities"]);
        capabilities.and_then(|capabilities| serde_json::from_str(capabilities).ok()).unwrap_or_default()
    }

    /// Records that the server has responded to a request in the session.
    pub(super) fn record_response(&self) {
        self.has_responded.store(true, Ordering::Relaxed);
    }

    /// Returns true if the server has ever responded to a request in the session.
    pub(super) fn has_responded(&self) -> bool {
        self.has_responded.load(Ordering::Relaxed)
    }

    /// Records that the server has forgotten the session. The next request opens another one.
    pub(super) fn mark_lost(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Returns true once the server has forgotten the session.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Returns a new ID, for a request and its progress token.
    pub(super) fn next_id(&self) -> String {
        format!("bridge-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn touch(&self) {
        sync::lock(&self.state).used = clock::now();
    }

    /// Records a request of the caller: it is the last use, with the newest credentials.
    pub(super) fn record_request(&self, request: &Template) {
        let mut state = sync::lock(&self.state);
        state.used = clock::now();
        state.latest = request.with_body(Bytes::new());
    }

    /// Returns the last request of the caller, for its credentials.
    pub(super) fn latest(&self) -> Template {
        sync::lock(&self.state).latest.clone()
    }

    /// Returns the time of the last use, or now while the session is busy.
    pub(super) fn used(&self) -> Instant {
        if self.is_busy() { clock::now() } else { sync::lock(&self.state).used }
    }

    /// Returns true while a request is running or parked, or a client listens.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0 || !self.listeners.is_empty()
    }

    /// Begins a request.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Counts a call as parked. Returns `None` if `most` calls are parked already.
    pub(super) fn begin_waiting(self: &Arc<Self>, most: usize) -> Option<Waiting> {
        let one_more = |waiting| if waiting < most { Some(waiting + 1) } else { None };
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Waiting(self.clone()))
    }

    /// Returns true if the server's log level must be lowered to this level, and records the level.
    pub(super) fn lowers_log_level(&self, level: LogLevel) -> bool {
        let declares = jsonrpc::member(&self.initialized, &["result", "capabilities", "logging"]).is_some();
        let mut state = sync::lock(&self.state);
        let is_lower = declares && state.log_level.is_none_or(|known| level < known);
        if is_lower {
            state.log_level = Some(level);
        }
        is_lower
    }

    /// Records that the server has responded to the request for the standalone stream.
    pub(super) fn record_stream(&self) {
        self.has_stream.send_replace(true);
    }

    /// Waits for the standalone stream, for 2 s at most. Earlier notifications are lost.
    pub(super) async fn wait_for_stream(&self) {
        let mut has_stream = self.has_stream.subscribe();
        let waiting = tokio::time::timeout(LISTENING_WAIT, has_stream.wait_for(|has_stream| *has_stream));
        drop(waiting.await);
    }

    /// Records the completion of a URL elicitation.
    pub(super) fn record_completion(&self, notification: &[u8]) {
        let id = jsonrpc::member(notification, &["params", "elicitationId"]);
        let Some(id) = id.and_then(|id| serde_json::from_str::<String>(id).ok()) else { return };
        let mut state = sync::lock(&self.state);
        if state.completed.len() >= MAX_COMPLETED {
            state.completed.remove(0);
        }
        state.completed.push(id);
        drop(state);
        self.completion.notify_waiters();
    }

    /// Waits for the completion of these URL elicitations, until this time at most.
    pub(super) async fn wait_for_completion(&self, ids: &[String], until: Instant) {
        let all_done = async {
            loop {
                let mut notified = std::pin::pin!(self.completion.notified());
                notified.as_mut().enable();
                let are_done = {
                    let state = sync::lock(&self.state);
                    ids.iter().all(|id| state.completed.contains(id))
                };
                if are_done && !ids.is_empty() {
                    return;
                }
                notified.await;
            }
        };
        tokio::select! {
            () = all_done => {}
            () = clock::sleep_until(until) => {}
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
