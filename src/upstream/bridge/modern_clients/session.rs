//! Sessions at the server, one for each caller with equal capabilities.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::listeners::Listeners;
use super::running::RunningCalls;
use crate::channel::Caller;
use crate::protocol::bridge::modern_clients::{Declared, Envelope, LogLevel};
use crate::protocol::headers::names;
use crate::protocol::jsonrpc;
use crate::upstream::bridge::responses::response_in;
use crate::upstream::bridge::sessions::{self, Usage, make_room};
use crate::upstream::bridge::settings::Link;
use crate::upstream::server::exchange::{Exchange, Exchanged};
use crate::upstream::server::request::Template;
use crate::upstream::server::synthetic;
use crate::{clock, sync};

/// Maximum number of parked calls of one session.
const MAX_PARKED: usize = 64;
/// Maximum number of completed URL elicitations remembered per session.
const MAX_COMPLETED: usize = 64;
/// Maximum wait of a call for the change of the server's log level.
const LEVEL_WAIT: Duration = Duration::from_secs(2);
/// Time limit of the bridge's own requests in a session. Client requests may wait meanwhile.
pub(super) const REQUEST_WAIT: Duration = Duration::from_secs(10);
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
    pub(super) link: Arc<Link>,
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
    pub(super) usage: Usage,
    /// True once the server has responded to a request in the session.
    has_responded: AtomicBool,
    /// True once the server has forgotten the session.
    is_lost: AtomicBool,
    /// Number of running and parked requests.
    busy: AtomicUsize,
    /// Permits of the calls that may be parked.
    parking: Arc<Semaphore>,
    /// Lowest log level of the clients, or `None` before the first.
    log_level: Mutex<Option<LogLevel>>,
    /// True once the server has responded to the request for the standalone stream.
    has_stream: watch::Sender<bool>,
    /// Completed URL elicitations, the oldest first.
    completed: watch::Sender<Vec<String>>,
}

/// A request in progress: its session is not idle.
pub(super) struct Busy(Arc<LegacySession>);

impl Key {
    pub(super) fn of(caller: Option<&Arc<Caller>>, envelope: &Envelope) -> Self {
        let client = format!("{}{}", envelope.declared.as_json(), envelope.client_info);
        Self { caller: caller.cloned(), client }
    }
}

impl Sessions {
    /// Returns the place of a session. If the caller has `most` sessions, or all callers have too
    /// many, the longest idle session is returned as well, to be ended. Returns `None` if no
    /// session is idle.
    pub(super) fn slot(&self, key: &Key, most: usize) -> Option<(Slot, Option<Arc<LegacySession>>)> {
        let mut sessions = sync::lock(&self.0);
        if let Some(slot) = sessions.get(key) {
            return Some((slot.clone(), None));
        }
        // A failed opening leaves an empty place.
        sessions.retain(|_, slot| slot.try_lock().map_or(true, |session| session.is_some()));
        let session_in = |slot: &Slot| slot.try_lock().ok()?.clone();
        let evicted = make_room(&mut sessions, most, |known, _| known.caller == key.caller, session_in).ok()?;
        let evicted = evicted.map(|(slot, session)| {
            sessions.retain(|_, other| !Arc::ptr_eq(other, &slot));
            session
        });
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

    /// Removes an ended session.
    pub(super) fn forget(&self, session: &Arc<LegacySession>) {
        let is_its = |slot: &Slot| {
            slot.try_lock().is_ok_and(|known| known.as_ref().is_some_and(|known| Arc::ptr_eq(known, session)))
        };
        sync::lock(&self.0).retain(|_, slot| !is_its(slot));
    }
}

impl sessions::Session for LegacySession {
    /// A session is in use while a request is running or parked, or a client listens.
    fn idle_since(&self) -> Option<Instant> {
        let is_busy = self.busy.load(Ordering::Relaxed) > 0 || !self.listeners.is_empty();
        if is_busy { None } else { Some(self.usage.last_use()) }
    }
}

impl LegacySession {
    /// Creates a session from a response to `initialize`, or returns `None` for an error.
    /// `listeners` continue from the previous session.
    pub(super) fn of(
        link: &Arc<Link>,
        name: Option<HeaderValue>,
        initialized: Bytes,
        envelope: &Envelope,
        request: &Template,
        listeners: Arc<Listeners>,
    ) -> Option<Self> {
        let version = jsonrpc::initialize_result(&initialized)?.protocol_version;
        Some(Self {
            link: link.clone(),
            name,
            version: HeaderValue::from_str(&version).ok()?,
            server_info: jsonrpc::parsed_member(&initialized, &["result", "serverInfo"]),
            initialized,
            declared: envelope.declared.clone(),
            calls: RunningCalls::default(),
            listeners,
            usage: Usage::of(request),
            has_responded: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            parking: Arc::new(Semaphore::new(MAX_PARKED)),
            log_level: Mutex::default(),
            has_stream: watch::Sender::new(false),
            completed: watch::Sender::default(),
        })
    }

    pub(super) fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Returns a client's request with the headers of the session.
    pub(super) fn addressed(&self, template: &Template) -> Template {
        let template = plain(template).with(names::MCP_PROTOCOL_VERSION, self.version.clone());
        match &self.name {
            Some(name) => template.with(names::MCP_SESSION_ID, name.clone()),
            None => template,
        }
    }

    /// Sends a request in the session.
    pub(super) async fn exchange(&self, template: &Template) -> Exchanged {
        self.link.server.exchange(&self.addressed(template), None).await
    }

    /// Posts a message in the session. Returns true if the server has accepted it.
    pub(super) async fn post(&self, template: &Template, body: Vec<u8>) -> bool {
        let posted = tokio::time::timeout(REQUEST_WAIT, self.exchange(&synthetic::post(template, body))).await;
        matches!(posted, Ok(Ok(response)) if response.status().is_success())
    }

    /// Posts a request in the session. Returns its response, or `None` without one in time.
    pub(super) async fn request(&self, template: &Template, body: Vec<u8>) -> Option<Bytes> {
        let post = synthetic::post(template, body);
        let exchange = async { response_in(self.exchange(&post).await.ok()?).await };
        tokio::time::timeout(REQUEST_WAIT, exchange).await.ok()?
    }

    /// Ends the session at the server. An unreachable server forgets it by itself.
    pub(super) async fn end(&self) {
        if self.is_named() {
            let latest = self.usage.last_request();
            let delete = latest.beside(Method::DELETE, &latest.own_headers(), Bytes::new());
            drop(tokio::time::timeout(REQUEST_WAIT, self.exchange(&delete)).await);
        }
    }

    /// Returns the capabilities of the server.
    pub(super) fn capabilities(&self) -> Value {
        jsonrpc::parsed_member(&self.initialized, &["result", "capabilities"]).unwrap_or_default()
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

    /// Begins a request.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Permits a call to be parked. Returns `None` if [`MAX_PARKED`] calls are parked already.
    pub(super) fn begin_parking(&self) -> Option<OwnedSemaphorePermit> {
        self.parking.clone().try_acquire_owned().ok()
    }

    /// Lowers the log level of the session, if the server declares logging.
    pub(super) async fn lower_log_level(&self, template: &Template, level: LogLevel) {
        if self.lowers_log_level(level) {
            let id = synthetic::own_id();
            let body =
                json!({"jsonrpc": "2.0", "id": id, "method": "logging/setLevel", "params": {"level": level.name()}});
            let setting = self.post(template, body.to_string().into_bytes());
            drop(tokio::time::timeout(LEVEL_WAIT, setting).await);
        }
    }

    /// Returns true if the server's log level must be lowered to this level, and records the level.
    fn lowers_log_level(&self, level: LogLevel) -> bool {
        let declares = jsonrpc::member(&self.initialized, &["result", "capabilities", "logging"]).is_some();
        let mut lowest = sync::lock(&self.log_level);
        let is_lower = declares && lowest.is_none_or(|known| level < known);
        if is_lower {
            *lowest = Some(level);
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
        let Some(id) = jsonrpc::string_member(notification, &["params", "elicitationId"]) else { return };
        self.completed.send_modify(|completed| {
            if completed.len() >= MAX_COMPLETED {
                completed.remove(0);
            }
            completed.push(id);
        });
    }

    /// Waits for the completion of these URL elicitations, until this time at most.
    pub(super) async fn wait_for_completion(&self, ids: &[String], until: Instant) {
        let mut completed = self.completed.subscribe();
        let all_done = completed.wait_for(|done| !ids.is_empty() && ids.iter().all(|id| done.contains(id)));
        tokio::select! {
            _ = all_done => {}
            () = clock::sleep_until(until) => {}
        }
    }
}

/// Returns the request without the headers of the later revision.
pub(super) fn plain(template: &Template) -> Template {
    let mut headers = template.own_headers();
    let later: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("mcp-param-")).cloned().collect();
    for name in later.iter().chain([&names::MCP_PROTOCOL_VERSION, &names::MCP_SESSION_ID]) {
        headers.remove(name);
    }
    template.beside(template.method().clone(), &headers, template.body().clone()).for_caller(template.caller().cloned())
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.usage.touch();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
