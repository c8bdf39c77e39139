//! Client sessions that the proxy keeps for the server.
//!
//! The sessions are in memory. An unknown session is refused as by a server that has forgotten it,
//! and is opened again in the same way.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::channel::Caller;
use crate::protocol::bridge::legacy_clients::{ClientFacts, Discovered, ToolFacts, new_session_name, tool_facts};
use crate::protocol::headers::Lines;
use crate::protocol::jsonrpc::RequestId;
use crate::upstream::bridge::outbox::Outbox;
use crate::upstream::bridge::sessions::{self, Usage, make_room};
use crate::upstream::server::request::Template;
use crate::{random, sync};

/// Maximum number of running calls of one session.
const MAX_CALLS: usize = 4096;
/// Maximum number of tools with requirements that one session remembers.
const MAX_TOOLS: usize = 4096;
/// Maximum number of sessions of one caller with credentials.
const MAX_OF_CALLER: usize = 256;
/// Maximum number of subscribed resources of one session.
const MAX_RESOURCES: usize = 256;
/// Maximum number of further tokens of a session's caller.
const MAX_LATER_CALLERS: usize = 8;
/// Maximum wait of a call for a subscription in progress. Earlier notifications are lost.
const SUBSCRIBING_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of messages that wait for the reader of the standalone stream. Further messages
/// are lost.
const QUEUE: usize = 256;

/// All sessions, by name.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, Arc<Session>>>);

/// A session of a client.
pub(super) struct Session {
    pub(super) name: String,
    pub(super) client: ClientFacts,
    pub(super) server: Arc<Discovered>,
    /// Caller that owns the session, or `None` for a caller without credentials.
    caller: Option<Arc<Caller>>,
    pub(super) usage: Usage,
    state: Mutex<State>,
    /// Held during a change of the subscription at the server.
    pub(super) subscribing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    /// Lists and resources of the subscription.
    subscribed: (bool, Vec<String>),
    log_level: Option<String>,
    resources: BTreeSet<String>,
    pending: HashMap<RequestId, oneshot::Sender<ClientResponse>>,
    calls: HashMap<RequestId, Arc<Notify>>,
    stream: Option<Arc<Outbox>>,
    /// The session's standalone stream, until its client opens it.
    expected: Option<mpsc::Receiver<Bytes>>,
    subscription: Option<Subscription>,
    /// Facts about tools from the lists read in the session, or `None` before the first list.
    tools: Option<HashMap<String, ToolFacts>>,
    /// Later tokens of the same caller, the newest last.
    later_callers: Vec<Arc<Caller>>,
}

/// A client response to a server request.
pub(super) struct ClientResponse {
    /// Result, or the text of the error.
    pub(super) outcome: Result<Value, String>,
    /// Headers of the HTTP request that carried it.
    pub(super) headers: Lines,
}

/// Task that reads the session's subscription at the server.
pub(super) struct Subscription(pub(super) AbortHandle);

/// A running call.
pub(super) struct Running {
    session: Arc<Session>,
    id: RequestId,
    /// Notified when the client cancels the call.
    pub(super) cancelled: Arc<Notify>,
}

/// A pending server request. Dropping it discards a later response.
pub(super) struct PendingRequest {
    session: Arc<Session>,
    id: RequestId,
    pub(super) response: oneshot::Receiver<ClientResponse>,
}

impl Sessions {
    /// Opens a session. Returns `None` if there are too many sessions, all in use.
    pub(super) fn open(
        &self,
        client: ClientFacts,
        server: Arc<Discovered>,
        request: &Template,
    ) -> Option<Arc<Session>> {
        let session = Arc::new(Session {
            name: new_session_name(random::bytes()),
            client,
            server,
            caller: with_credentials(request.caller()).cloned(),
            usage: Usage::of(request),
            state: Mutex::default(),
            subscribing: Arc::default(),
        });
        let mut sessions = sync::lock(&self.0);
        let is_of_caller = |_: &String, other: &Arc<Session>| other.caller.is_some() && other.caller == session.caller;
        let evicted = make_room(&mut sessions, MAX_OF_CALLER, is_of_caller, |session| Some(session.clone())).ok()?;
        if let Some((_, evicted)) = evicted {
            evicted.end();
        }
        sessions.insert(session.name.clone(), session.clone());
        Some(session)
    }

    /// Returns the session of this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<Arc<Session>> {
        sync::lock(&self.0).get(std::str::from_utf8(name).ok()?).cloned()
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Session) {
        sync::lock(&self.0).remove(&session.name);
        session.end();
    }
}

impl sessions::Session for Session {
    /// A session is in use while a call runs or the client listens.
    fn idle_since(&self) -> Option<Instant> {
        let state = sync::lock(&self.state);
        let is_busy = !state.calls.is_empty() || state.stream.as_ref().is_some_and(|stream| stream.is_read());
        if is_busy { None } else { Some(self.usage.last_use()) }
    }
}

impl Session {
    /// Returns the caller that owns the session, or `None` for a caller without credentials.
    pub(super) fn caller(&self) -> Option<&Arc<Caller>> {
        self.caller.as_ref()
    }

    /// Returns true if the caller owns the session. The session's name alone identifies callers
    /// without credentials.
    pub(super) fn is_of(&self, caller: Option<&Arc<Caller>>) -> bool {
        let caller = with_credentials(caller);
        self.caller.as_ref() == caller
            || caller.is_some_and(|caller| sync::lock(&self.state).later_callers.contains(caller))
    }

    /// Returns true if another token of this caller claims the owner's subject.
    pub(super) fn may_be_of(&self, caller: &Caller) -> bool {
        self.caller.as_ref().is_some_and(|own| own.claims_subject_of(caller))
    }

    /// Adds a token of the owner, as confirmed by the server. The oldest is dropped beyond
    /// [`MAX_LATER_CALLERS`].
    pub(super) fn add_caller(&self, caller: &Arc<Caller>) {
        let later = &mut sync::lock(&self.state).later_callers;
        if later.len() >= MAX_LATER_CALLERS {
            later.remove(0);
        }
        later.push(caller.clone());
    }

    /// Returns true once a list of tools was read in the session.
    pub(super) fn has_listed_tools(&self) -> bool {
        sync::lock(&self.state).tools.is_some()
    }

    /// Returns the requirements of a tool's calls, or `None` if it has no requirements or is not
    /// listed.
    pub(super) fn tool_facts(&self, name: &str) -> Option<ToolFacts> {
        sync::lock(&self.state).tools.as_ref()?.get(name).cloned()
    }

    /// Records the facts about the tools of a list. Returns the tools beyond [`MAX_TOOLS`].
    pub(super) fn record_tools(&self, message: &[u8]) -> Vec<String> {
        let mut unknown = Vec::new();
        let facts = tool_facts(message);
        let mut state = sync::lock(&self.state);
        let tools = state.tools.get_or_insert_default();
        for (name, facts) in facts {
            match facts {
                Some(facts) if tools.len() < MAX_TOOLS || tools.contains_key(&name) => drop(tools.insert(name, facts)),
                Some(_) => unknown.push(name),
                None => drop(tools.remove(&name)),
            }
        }
        unknown
    }

    pub(super) fn log_level(&self) -> Option<String> {
        sync::lock(&self.state).log_level.clone()
    }

    pub(super) fn set_log_level(&self, level: String) {
        sync::lock(&self.state).log_level = Some(level);
    }

    /// Returns the subscribed resources.
    pub(super) fn resources(&self) -> Vec<String> {
        sync::lock(&self.state).resources.iter().cloned().collect()
    }

    /// Adds a resource. Returns false beyond [`MAX_RESOURCES`].
    pub(super) fn add_resource(&self, uri: &str) -> bool {
        let mut state = sync::lock(&self.state);
        let has_room = state.resources.len() < MAX_RESOURCES || state.resources.contains(uri);
        if has_room {
            state.resources.insert(uri.to_owned());
        }
        has_room
    }

    pub(super) fn remove_resource(&self, uri: &str) {
        sync::lock(&self.state).resources.remove(uri);
    }

    /// Begins a call under the ID of its client. Returns `None` beyond [`MAX_CALLS`], or while a
    /// call of that ID runs.
    pub(super) fn begin(self: &Arc<Self>, id: &RequestId) -> Option<Running> {
        let cancelled = Arc::new(Notify::new());
        let mut state = sync::lock(&self.state);
        if state.calls.len() >= MAX_CALLS || state.calls.contains_key(id) {
            return None;
        }
        state.calls.insert(id.clone(), cancelled.clone());
        Some(Running { session: self.clone(), id: id.clone(), cancelled })
    }

    /// Cancels the call of this ID, if there is one.
    pub(super) fn cancel(&self, id: Option<RequestId>) {
        if let Some(call) = id.and_then(|id| sync::lock(&self.state).calls.get(&id).cloned()) {
            call.notify_one();
        }
    }

    /// Registers a server request under a new ID.
    pub(super) fn begin_server_request(self: &Arc<Self>) -> PendingRequest {
        let id = RequestId::String(format!("srv-{}", self.usage.next_number()).into());
        let (sender, response) = oneshot::channel();
        sync::lock(&self.state).pending.insert(id.clone(), sender);
        PendingRequest { session: self.clone(), id, response }
    }

    /// Delivers a client response to its server request. Without a pending server request it is
    /// dropped.
    pub(super) fn accept_response(&self, id: &RequestId, response: ClientResponse) {
        let pending = sync::lock(&self.state).pending.remove(id);
        if let Some(pending) = pending {
            let _ = pending.send(response);
        }
    }

    /// Begins the session's standalone stream, which replaces the previous one. Messages that have
    /// waited for it come first.
    pub(super) fn begin_stream(&self) -> mpsc::Receiver<Bytes> {
        let mut state = sync::lock(&self.state);
        if let Some(expected) = state.expected.take() {
            return expected;
        }
        let (stream, receiver) = Outbox::new(QUEUE);
        state.stream = Some(stream);
        receiver
    }

    /// Queues messages for the standalone stream, unless the client has one. Returns true if it
    /// queues them.
    pub(super) fn expect_stream(&self) -> bool {
        let mut state = sync::lock(&self.state);
        let is_read = state.stream.as_ref().is_some_and(|stream| stream.is_read());
        if !is_read {
            let (stream, receiver) = Outbox::new(QUEUE);
            (state.stream, state.expected) = (Some(stream), Some(receiver));
        }
        !is_read
    }

    /// Stops queueing messages for a stream. Returns false if the client has opened it.
    pub(super) fn forget_stream(&self) -> bool {
        sync::lock(&self.state).expected.take().is_some()
    }

    /// Returns true while the client reads the standalone stream.
    pub(super) fn has_stream(&self) -> bool {
        sync::lock(&self.state).stream.as_ref().is_some_and(|stream| stream.is_read())
    }

    /// Sends a message on the standalone stream. Without a reader it is lost.
    pub(super) fn notify(&self, message: &[u8]) {
        if let Some(stream) = &sync::lock(&self.state).stream {
            stream.send(Bytes::copy_from_slice(message));
        }
    }

    /// Waits briefly for the reader of the standalone stream, if it is behind.
    pub(super) async fn wait_for_reader(&self) {
        let stream = {
            let state = sync::lock(&self.state);
            state.stream.clone().filter(|_| state.expected.is_none())
        };
        if let Some(stream) = stream {
            stream.wait_for_reader().await;
        }
    }

    /// Replaces the subscription at the server, which ends the previous one. `subscribed`: with
    /// list changes or without, and the resources.
    pub(super) fn set_subscription(&self, subscription: Option<Subscription>, subscribed: (bool, Vec<String>)) {
        let mut state = sync::lock(&self.state);
        (state.subscription, state.subscribed) = (subscription, subscribed);
    }

    /// Returns true if the session has exactly this subscription.
    pub(super) fn is_subscribed_to(&self, wanted: &(bool, Vec<String>)) -> bool {
        self.has_subscription() && sync::lock(&self.state).subscribed == *wanted
    }

    /// Waits for a change of the subscription in progress, for 2 s at most.
    pub(super) async fn wait_for_subscription(&self) {
        if self.subscribing.try_lock().is_err() {
            drop(tokio::time::timeout(SUBSCRIBING_WAIT, self.subscribing.lock()).await);
        }
    }

    pub(super) fn has_subscription(&self) -> bool {
        sync::lock(&self.state).subscription.as_ref().is_some_and(|subscription| !subscription.0.is_finished())
    }

    fn end(&self) {
        let mut state = sync::lock(&self.state);
        for call in state.calls.values() {
            call.notify_one();
        }
        state.stream = None;
        state.expected = None;
        state.subscription = None;
    }
}

/// Returns the caller if it has credentials.
fn with_credentials(caller: Option<&Arc<Caller>>) -> Option<&Arc<Caller>> {
    caller.filter(|caller| !caller.is_anonymous())
}

impl PendingRequest {
    pub(super) fn id(&self) -> &str {
        self.id.text()
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        sync::lock(&self.session.state).pending.remove(&self.id);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // In this order: a session without a call is idle since its last use.
        self.session.usage.touch();
        sync::lock(&self.session.state).calls.remove(&self.id);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}
