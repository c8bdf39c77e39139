//! Sessions of clients, which the proxy keeps in the server's place.
//!
//! The sessions are in memory. One that is not there is refused as a server refuses a session that
//! it has forgotten, and is opened again as that one would be.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
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
use crate::upstream::bridge::pressure::{is_pressed, relieved};
use crate::upstream::server::request::Template;
use crate::{clock, random, sync};

/// Most sessions. For one more the one that is idle longest ends.
const MAX_SESSIONS: usize = 4096;
/// Most calls of one session that run.
const MAX_CALLS: usize = 4096;
/// Most tools of one session whose calls need something.
const MAX_TOOLS: usize = 4096;
/// Most sessions of one caller with credentials.
const MAX_OF_CALLER: usize = 256;
/// Most resources that one session has subscribed to.
const MAX_RESOURCES: usize = 256;
/// Most tokens of a session's caller that are known beside the first.
const MAX_LATER_CALLERS: usize = 8;
/// Time for which a call waits for the subscription that is being made: what the server tells
/// before is lost.
const SUBSCRIBING_WAIT: Duration = Duration::from_secs(2);
/// Most messages that wait for the reader of the session's own stream. Further ones are lost.
const QUEUE: usize = 256;

/// All sessions, by their names.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, Arc<Session>>>);

/// A session of a client.
pub(super) struct Session {
    pub(super) name: String,
    pub(super) client: ClientFacts,
    pub(super) server: Arc<Discovered>,
    /// Caller whose session it is, or `None` for one without credentials.
    caller: Option<Arc<Caller>>,
    next: AtomicU64,
    state: Mutex<State>,
    /// Held while the subscription at the server is changed.
    pub(super) subscribing: Arc<tokio::sync::Mutex<()>>,
}

struct State {
    used: Instant,
    /// Last request of the caller, without its body: its credentials are the newest.
    latest: Option<Template>,
    /// Lists and resources of the subscription.
    subscribed: (bool, Vec<String>),
    log_level: Option<String>,
    resources: BTreeSet<String>,
    questions: HashMap<RequestId, oneshot::Sender<Answer>>,
    calls: HashMap<RequestId, Arc<Notify>>,
    stream: Option<mpsc::Sender<Bytes>>,
    /// The session's own stream, if its client has not asked for it yet.
    expected: Option<mpsc::Receiver<Bytes>>,
    /// True if a burst has waited in vain for the reader of the stream.
    is_slow: bool,
    subscription: Option<Subscription>,
    /// Facts about tools, from the lists that were read in the session, or `None` before the first.
    tools: Option<HashMap<String, ToolFacts>>,
    /// The caller with tokens of later, the newest last.
    later_callers: Vec<Arc<Caller>>,
}

/// Answer of a client to a question.
pub(super) struct Answer {
    /// Result, or the text of an error.
    pub(super) outcome: Result<Value, String>,
    /// Headers of the request that brought it.
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

/// A question that was asked: its ID, and its answer.
pub(super) struct Asked {
    session: Arc<Session>,
    id: RequestId,
    pub(super) answer: oneshot::Receiver<Answer>,
}

impl Sessions {
    /// Opens a session. Returns `None` if there are too many, and none of them is idle.
    pub(super) fn open(
        &self,
        client: ClientFacts,
        server: Arc<Discovered>,
        caller: Option<&Arc<Caller>>,
    ) -> Option<Arc<Session>> {
        let session = Arc::new(Session {
            name: new_session_name(random::bytes()),
            client,
            server,
            caller: known(caller).cloned(),
            next: AtomicU64::new(1),
            state: Mutex::new(State {
                used: clock::now(),
                latest: None,
                subscribed: Default::default(),
                log_level: None,
                resources: BTreeSet::new(),
                questions: HashMap::new(),
                calls: HashMap::new(),
                stream: None,
                expected: None,
                is_slow: false,
                subscription: None,
                tools: None,
                later_callers: Vec::new(),
            }),
            subscribing: Arc::default(),
        });
        let mut sessions = sync::lock(&self.0);
        let of_caller = sessions.values().filter(|other| other.caller.is_some() && other.caller == session.caller);
        if of_caller.count() >= MAX_OF_CALLER {
            end_idlest(&mut sessions, |other| other.caller == session.caller)?;
        } else if sessions.len() >= MAX_SESSIONS {
            end_idlest(&mut sessions, |_| true)?;
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

    /// Ends a session in which nothing has happened for this long. Returns the time of the next
    /// look, or `None` once it has ended.
    pub(super) fn end_if_idle(&self, session: &Session, idle: Duration) -> Option<Instant> {
        let until = session.used() + idle;
        if clock::now() < until {
            return Some(until);
        }
        self.end(session);
        None
    }
}

/// Ends the session that is idle longest of those for which this holds. Returns `None` if none of
/// them is idle.
fn end_idlest(sessions: &mut HashMap<String, Arc<Session>>, concerns: impl Fn(&Session) -> bool) -> Option<()> {
    let idle = sessions.values().filter(|session| concerns(session) && !session.is_busy());
    let name = idle.min_by_key(|session| session.used())?.name.clone();
    sessions.remove(&name)?.end();
    Some(())
}

impl Session {
    /// Returns true if the session is that of this caller. Callers without credentials are told
    /// apart by the name alone.
    pub(super) fn is_of(&self, caller: Option<&Arc<Caller>>) -> bool {
        let caller = known(caller);
        self.caller.as_ref() == caller
            || caller.is_some_and(|caller| sync::lock(&self.state).later_callers.contains(caller))
    }

    /// Returns true if this caller claims to be the one whose session it is, with another token.
    pub(super) fn may_be_of(&self, caller: &Caller) -> bool {
        self.caller.as_ref().is_some_and(|own| own.claims_subject_of(caller))
    }

    /// Adds a caller that has proven to be the one whose session it is.
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

    /// Returns what the calls of a tool need, or `None` if they need nothing, or no list has the
    /// tool.
    pub(super) fn tool_facts(&self, name: &str) -> Option<ToolFacts> {
        sync::lock(&self.state).tools.as_ref()?.get(name).cloned()
    }

    /// Notes the facts about the tools of a list. Returns the tools whose facts find no room.
    pub(super) fn note_tools(&self, message: &[u8]) -> Vec<String> {
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

    /// Returns an ID for a request to the server.
    pub(super) fn next_id(&self) -> String {
        format!("bridge-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Notes a request of the caller.
    pub(super) fn note_request(&self, request: &Template) {
        let mut state = sync::lock(&self.state);
        state.used = clock::now();
        state.latest = Some(request.with_body(Bytes::new()));
    }

    /// Returns the last request of the caller, for its credentials, or `None` before the first.
    pub(super) fn latest(&self) -> Option<Template> {
        sync::lock(&self.state).latest.clone()
    }

    /// Returns the time of the last request, or now while a call runs or the client listens.
    fn used(&self) -> Instant {
        if self.is_busy() { clock::now() } else { sync::lock(&self.state).used }
    }

    /// Returns true while a call runs or the client listens.
    fn is_busy(&self) -> bool {
        let state = sync::lock(&self.state);
        !state.calls.is_empty() || state.stream.as_ref().is_some_and(|stream| !stream.is_closed())
    }

    pub(super) fn log_level(&self) -> Option<String> {
        sync::lock(&self.state).log_level.clone()
    }

    pub(super) fn set_log_level(&self, level: String) {
        sync::lock(&self.state).log_level = Some(level);
    }

    /// Returns the resources that the client has subscribed to.
    pub(super) fn resources(&self) -> Vec<String> {
        sync::lock(&self.state).resources.iter().cloned().collect()
    }

    /// Adds a resource. Returns false if there are too many.
    pub(super) fn add_resource(&self, uri: &str) -> bool {
        let mut state = sync::lock(&self.state);
        let has_room = state.resources.len() < MAX_RESOURCES || state.resources.contains(uri);
        if has_room {
            state.resources.insert(uri.to_owned());
        }
        has_room
    }

    /// Removes a resource.
    pub(super) fn remove_resource(&self, uri: &str) {
        sync::lock(&self.state).resources.remove(uri);
    }

    /// Begins a call under the ID of its client. Returns `None` if too many run, or one of that ID
    /// does.
    pub(super) fn begin(self: &Arc<Self>, id: &RequestId) -> Option<Running> {
        let cancelled = Arc::new(Notify::new());
        let mut state = sync::lock(&self.state);
        if state.calls.len() >= MAX_CALLS || state.calls.contains_key(id) {
            return None;
        }
        state.calls.insert(id.clone(), cancelled.clone());
        Some(Running { session: self.clone(), id: id.clone(), cancelled })
    }

    /// Cancels a call.
    pub(super) fn cancel(&self, id: &RequestId) {
        if let Some(call) = sync::lock(&self.state).calls.get(id) {
            call.notify_one();
        }
    }

    /// Returns a question with an ID of its own.
    pub(super) fn ask(self: &Arc<Self>) -> Asked {
        let id = RequestId::String(format!("srv-{}", self.next.fetch_add(1, Ordering::Relaxed)).into());
        let (sender, answer) = oneshot::channel();
        sync::lock(&self.state).questions.insert(id.clone(), sender);
        Asked { session: self.clone(), id, answer }
    }

    /// Takes the answer to a question. One that no question waits for is dropped.
    pub(super) fn answer(&self, id: &RequestId, answer: Answer) {
        let waiting = sync::lock(&self.state).questions.remove(id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer);
        }
    }

    /// Begins the session's own stream, in place of the one before. Messages that have waited for
    /// it come first.
    pub(super) fn begin_stream(&self) -> mpsc::Receiver<Bytes> {
        let mut state = sync::lock(&self.state);
        if let Some(expected) = state.expected.take() {
            return expected;
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        state.stream = Some(sender);
        receiver
    }

    /// Lets messages wait for the session's own stream, unless the client has one.
    pub(super) fn expect_stream(&self) -> bool {
        let mut state = sync::lock(&self.state);
        let is_read = state.stream.as_ref().is_some_and(|stream| !stream.is_closed());
        if !is_read {
            let (sender, receiver) = mpsc::channel(QUEUE);
            (state.stream, state.expected) = (Some(sender), Some(receiver));
        }
        !is_read
    }

    /// Lets no message wait any longer for a stream. Returns false if the client has asked for it.
    pub(super) fn forget_stream(&self) -> bool {
        sync::lock(&self.state).expected.take().is_some()
    }

    /// Returns true while the client reads the session's own stream.
    pub(super) fn has_stream(&self) -> bool {
        sync::lock(&self.state).stream.as_ref().is_some_and(|stream| !stream.is_closed())
    }

    /// Tells a message on the session's own stream. Without a reader it is lost.
    pub(super) fn tell(&self, message: &[u8]) {
        if let Some(stream) = &sync::lock(&self.state).stream {
            let _ = stream.try_send(Bytes::copy_from_slice(message));
        }
    }

    /// Waits a moment for the reader of the session's own stream, if that is behind.
    pub(super) async fn wait_for_reader(&self) {
        let stream = {
            let mut state = sync::lock(&self.state);
            let is_pressed = state.stream.as_ref().is_some_and(is_pressed);
            state.is_slow &= is_pressed;
            let waits = is_pressed && !state.is_slow && state.expected.is_none();
            state.stream.clone().filter(|_| waits)
        };
        if let Some(stream) = stream
            && !relieved(stream).await
        {
            sync::lock(&self.state).is_slow = true;
        }
    }

    /// Puts a subscription at the server in place of the one before, which ends: with lists or not,
    /// and to these resources.
    pub(super) fn set_subscription(&self, subscription: Option<Subscription>, subscribed: (bool, Vec<String>)) {
        let mut state = sync::lock(&self.state);
        (state.subscription, state.subscribed) = (subscription, subscribed);
    }

    /// Returns true if the session has a subscription to just this.
    pub(super) fn is_subscribed_to(&self, wanted: &(bool, Vec<String>)) -> bool {
        self.has_subscription() && sync::lock(&self.state).subscribed == *wanted
    }

    /// Waits for a change of the subscription that is under way, for 2 s at most.
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

/// Returns a caller that has credentials.
fn known(caller: Option<&Arc<Caller>>) -> Option<&Arc<Caller>> {
    caller.filter(|caller| !caller.is_anonymous())
}

impl Asked {
    pub(super) fn id(&self) -> &str {
        self.id.text()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        sync::lock(&self.session.state).questions.remove(&self.id);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = sync::lock(&self.session.state);
        state.calls.remove(&self.id);
        state.used = clock::now();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}
