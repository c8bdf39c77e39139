//! Sessions at the server, one for each caller with equal capabilities.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderValue;
use serde_json::Value;

use super::{ModernClients, ResponseBody, Template};
use crate::channel::Caller;
use crate::protocol::bridge::modern_clients::{self as bridge, Envelope, LogLevel};
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::upstream::sse_reader::EventReader;
use crate::upstream::synthetic;
use crate::{clock, sync};

/// Most sessions of all callers. Made-up credentials at a server that checks none are callers of their own.
const MAX_SESSIONS: usize = 4096;

/// Caller with the capabilities of its client: those who share a session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    caller: Option<Arc<Caller>>,
    client: String,
}

/// A session, or the place of one that is being opened.
type Slot = Arc<tokio::sync::Mutex<Option<Arc<LegacySession>>>>;

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
    next: AtomicU64,
    running: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    used: Instant,
    log_level: Option<LogLevel>,
}

impl Key {
    pub(super) fn of(caller: Option<&Arc<Caller>>, envelope: &Envelope) -> Self {
        let client = format!("{}{}", envelope.declared.for_server(), envelope.client_info);
        Self { caller: caller.cloned(), client }
    }
}

impl Sessions {
    /// Returns the place of a session, or `None` if the caller has `most` others, or all callers together [`MAX_SESSIONS`].
    pub(super) fn slot(&self, key: &Key, most: usize) -> Option<Slot> {
        let mut sessions = sync::lock(&self.0);
        if let Some(slot) = sessions.get(key) {
            return Some(slot.clone());
        }
        // One that could not be opened leaves its place empty.
        sessions.retain(|_, slot| slot.try_lock().map_or(true, |session| session.is_some()));
        let of_caller = sessions.keys().filter(|known| known.caller == key.caller).count();
        if of_caller >= most || sessions.len() >= MAX_SESSIONS {
            return None;
        }
        Some(sessions.entry(key.clone()).or_default().clone())
    }

    /// Forgets a session that its server has forgotten, or that has ended.
    pub(super) fn forget(&self, key: &Key, session: &Arc<LegacySession>) {
        let mut sessions = sync::lock(&self.0);
        let is_its = |slot: &Slot| {
            slot.try_lock().is_ok_and(|known| known.as_ref().is_some_and(|known| Arc::ptr_eq(known, session)))
        };
        if sessions.get(key).is_some_and(is_its) {
            sessions.remove(key);
        }
    }
}

impl LegacySession {
    /// Creates the session that a response to `initialize` opens, or returns `None` for an error.
    pub(super) fn of(name: Option<HeaderValue>, initialized: Bytes) -> Option<Self> {
        let version = jsonrpc::initialize_result(&initialized)?.protocol_version;
        let info = jsonrpc::member(&initialized, &["result", "serverInfo"]);
        Some(Self {
            name,
            version: HeaderValue::from_str(&version).ok()?,
            server_info: info.and_then(|info| serde_json::from_str(info).ok()),
            initialized,
            next: AtomicU64::new(1),
            running: AtomicUsize::new(0),
            state: Mutex::new(State { used: clock::now(), log_level: None }),
        })
    }

    pub(super) fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Returns an ID for a request, and for its progress.
    pub(super) fn next_id(&self) -> String {
        format!("bridge-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn touch(&self) {
        sync::lock(&self.state).used = clock::now();
    }

    pub(super) fn touch_if_busy(&self) {
        if self.is_busy() {
            self.touch();
        }
    }

    pub(super) fn used(&self) -> Instant {
        sync::lock(&self.state).used
    }

    /// Returns true while a call runs or waits.
    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    pub(super) fn begin_call(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_call(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
        self.touch();
    }

    /// Returns true if the server must be told to send messages of this level, which no request wanted before.
    pub(super) fn lowers_log_level(&self, level: LogLevel) -> bool {
        let declares = jsonrpc::member(&self.initialized, &["result", "capabilities", "logging"]).is_some();
        let mut state = sync::lock(&self.state);
        let is_lower = declares && state.log_level.is_none_or(|known| level < known);
        if is_lower {
            state.log_level = Some(level);
        }
        is_lower
    }
}

/// Reads the session's own stream to its end.
pub(super) async fn read_standalone(
    bridge: &Weak<ModernClients>,
    session: &Weak<LegacySession>,
    template: &Template,
    body: ResponseBody,
) {
    let Some(limit) = bridge.upgrade().map(|bridge| bridge.settings.max_event_bytes) else { return };
    let mut reader = EventReader::new(body, limit);
    while let Ok(piece) = reader.next().await {
        let gathered = reader.gather(piece).await;
        let (Some(bridge), Some(session)) = (bridge.upgrade(), session.upgrade()) else { return };
        for event in &gathered.events {
            let Ok(body) = jsonrpc::peek(&event.data) else { continue };
            for message in body.messages() {
                if let Message::Request { id, method } = message {
                    bridge.post(&session, template, answer_of(id, method)).await;
                }
            }
        }
        if gathered.error.is_some() || gathered.ending.is_some() {
            return;
        }
    }
}

/// Returns the answer to a request that names no call: no client can be asked.
fn answer_of(id: &RequestId, method: &str) -> Vec<u8> {
    if method == "ping" {
        return synthetic::pong(id);
    }
    jsonrpc::error_message(Some(id), bridge::NOT_ASKED.0, bridge::NOT_ASKED.1, Value::Null)
}
