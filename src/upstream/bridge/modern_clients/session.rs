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

/// Most sessions of all callers. Made-up credentials at a server that checks none are callers of
/// their own.
const MAX_SESSIONS: usize = 4096;
/// Most pages of which a session remembers that they are done.
const MAX_COMPLETE: usize = 64;
/// Time for which a subscription waits for the session's own stream.
const LISTENING_WAIT: Duration = Duration::from_secs(2);

/// Caller with the capabilities of its client: those who share a session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    caller: Option<Arc<Caller>>,
    client: String,
}

/// Place of a session, which is empty while it is being opened.
pub(super) type Slot = Arc<tokio::sync::Mutex<Option<Arc<LegacySession>>>>;

/// All sessions.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Key, Slot>>);

/// A session at the server.
pub(super) struct LegacySession {
    /// Name, or `None` at a server that assigns none.
    pub(super) name: Option<HeaderValue>,
    /// Negotiated revision.
    pub(super) version: HeaderValue,
    /// Response to `initialize`.
    pub(super) initialized: Bytes,
    /// Name and version of the server, or `None` if it did not say.
    pub(super) server_info: Option<Value>,
    /// Capabilities of the clients.
    pub(super) declared: Declared,
    pub(super) calls: RunningCalls,
    pub(super) listeners: Arc<Listeners>,
    next: AtomicU64,
    /// True once the server has answered a request in the session.
    was_answered: AtomicBool,
    /// True once the server has forgotten the session.
    is_lost: AtomicBool,
    /// Requests that run, or wait for the answers of their clients.
    busy: AtomicUsize,
    /// Calls that wait for their client.
    waiting: AtomicUsize,
    state: Mutex<State>,
    /// True once the server has answered the request for its own stream.
    has_stream: watch::Sender<bool>,
    /// Notified of each page that is done.
    completion: Notify,
}

struct State {
    used: Instant,
    /// Last request of the caller, without its body: its credentials are the newest.
    latest: Template,
    log_level: Option<LogLevel>,
    /// Pages that are done, the oldest first.
    complete: Vec<String>,
}

/// A request in progress: its session is not idle.
pub(super) struct Busy(Arc<LegacySession>);

/// A call that waits for its client.
pub(super) struct Waiting(Arc<LegacySession>);

impl Key {
    pub(super) fn of(caller: Option<&Arc<Caller>>, envelope: &Envelope) -> Self {
        let client = format!("{}{}", envelope.declared.as_json(), envelope.client_info);
        Self { caller: caller.cloned(), client }
    }
}

impl Sessions {
    /// Returns the place of a session. If the caller has `most` others, or all callers together
    /// [`MAX_SESSIONS`], the one that is idle longest is taken out, to be ended. Returns `None` if
    /// none of them is idle.
    pub(super) fn slot(&self, key: &Key, most: usize) -> Option<(Slot, Option<Arc<LegacySession>>)> {
        let mut sessions = sync::lock(&self.0);
        if let Some(slot) = sessions.get(key) {
            return Some((slot.clone(), None));
        }
        // One that could not be opened leaves its place empty.
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

    /// Returns the session of another caller who claims the same subject for the same client, with
    /// its place, or `None` if this key has a place itself.
    pub(super) fn of_subject(&self, key: &Key) -> Option<(Slot, Arc<LegacySession>)> {
        let sessions = sync::lock(&self.0);
        let caller = key.caller.as_ref().filter(|_| !sessions.contains_key(key))?;
        let claims = |known: &Key| known.caller.as_ref().is_some_and(|known| known.claims_subject_of(caller));
        sessions.iter().filter(|(known, _)| known.client == key.client && claims(known)).find_map(|(_, slot)| {
            let session = slot.try_lock().ok()?.clone()?;
            Some((slot.clone(), session))
        })
    }

    /// Adds a key to the place of a session: its caller has another token.
    pub(super) fn add_key(&self, key: &Key, slot: Slot) {
        sync::lock(&self.0).entry(key.clone()).or_insert(slot);
    }

    /// Takes out all sessions that are open.
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

    /// Forgets a session that has ended.
    pub(super) fn forget(&self, session: &Arc<LegacySession>) {
        let is_its = |slot: &Slot| {
            slot.try_lock().is_ok_and(|known| known.as_ref().is_some_and(|known| Arc::ptr_eq(known, session)))
        };
        sync::lock(&self.0).retain(|_, slot| !is_its(slot));
    }
}

/// Takes out the session that is idle longest of those for which this holds, or returns `None` if
/// none is idle.
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
    /// Creates the session that a response to `initialize` opens, or returns `None` for an error.
    /// `listeners` are those of the session before.
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
            was_answered: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(State { used: clock::now(), latest, log_level: None, complete: Vec::new() }),
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

    /// Notes that the server has answered a request in the session.
    pub(super) fn note_answered(&self) {
        self.was_answered.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server has ever answered a request in the session.
    pub(super) fn was_answered(&self) -> bool {
        self.was_answered.load(Ordering::Relaxed)
    }

    /// Notes that the server has forgotten the session: the next request opens another.
    pub(super) fn note_lost(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server has forgotten the session.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Returns an ID for a request, and for its progress.
    pub(super) fn next_id(&self) -> String {
        format!("bridge-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn touch(&self) {
        sync::lock(&self.state).used = clock::now();
    }

    /// Notes a request of the caller.
    pub(super) fn note_request(&self, request: &Template) {
        let mut state = sync::lock(&self.state);
        state.used = clock::now();
        state.latest = request.with_body(Bytes::new());
    }

    /// Returns the last request of the caller, for its credentials.
    pub(super) fn latest(&self) -> Template {
        sync::lock(&self.state).latest.clone()
    }

    /// Returns the time of the last request, or now while one runs.
    pub(super) fn used(&self) -> Instant {
        if self.is_busy() { clock::now() } else { sync::lock(&self.state).used }
    }

    /// Returns true while a request runs or waits, or a client listens.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0 || !self.listeners.is_empty()
    }

    /// Begins a request.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Begins to let a call wait for its client. Returns `None` if `most` others wait.
    pub(super) fn begin_waiting(self: &Arc<Self>, most: usize) -> Option<Waiting> {
        let one_more = |waiting| if waiting < most { Some(waiting + 1) } else { None };
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Waiting(self.clone()))
    }

    /// Returns true if the server must be told to send messages of this level, which no request
    /// wanted before.
    pub(super) fn lowers_log_level(&self, level: LogLevel) -> bool {
        let declares = jsonrpc::member(&self.initialized, &["result", "capabilities", "logging"]).is_some();
        let mut state = sync::lock(&self.state);
        let is_lower = declares && state.log_level.is_none_or(|known| level < known);
        if is_lower {
            state.log_level = Some(level);
        }
        is_lower
    }

    /// Notes that the server has answered the request for its own stream.
    pub(super) fn note_stream(&self) {
        self.has_stream.send_replace(true);
    }

    /// Waits for that, for 2 s at most: what the server tells before is lost.
    pub(super) async fn wait_for_stream(&self) {
        let mut has_stream = self.has_stream.subscribe();
        let waiting = tokio::time::timeout(LISTENING_WAIT, has_stream.wait_for(|has_stream| *has_stream));
        drop(waiting.await);
    }

    /// Notes that the page of a question is done.
    pub(super) fn note_complete(&self, notification: &[u8]) {
        let id = jsonrpc::member(notification, &["params", "elicitationId"]);
        let Some(id) = id.and_then(|id| serde_json::from_str::<String>(id).ok()) else { return };
        let mut state = sync::lock(&self.state);
        if state.complete.len() >= MAX_COMPLETE {
            state.complete.remove(0);
        }
        state.complete.push(id);
        drop(state);
        self.completion.notify_waiters();
    }

    /// Waits until the pages of these questions are done, or until this time.
    pub(super) async fn wait_for_pages(&self, ids: &[String], until: Instant) {
        let all_done = async {
            loop {
                let mut notified = std::pin::pin!(self.completion.notified());
                notified.as_mut().enable();
                let are_done = {
                    let state = sync::lock(&self.state);
                    ids.iter().all(|id| state.complete.contains(id))
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
