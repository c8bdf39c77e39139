//! The pipe: the host's lines become requests of one client, and messages of streams become lines.
//!
//! Owned here: the dispatch of lines, the order of notifications, the GET stream, and the place of
//! each message of the far side. Absent: the way of one request ([`super::calls`]), the beginning
//! ([`super::opening`]) and the end ([`super::end`]) of the session.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::facts::Facts;
use super::far::{Far, FarState, Reply};
use super::ignored::IgnoredTools;
use super::input::{HostLine, HostRequest, Input};
use super::keys::CallKey;
use super::memory::{Memory, Record};
use super::output::Output;
use super::program::Program;
use super::running::{Cancelled, Kind, NotTaken, Running};
use super::tools::Tools;
use crate::backoff::Backoff;
use crate::body::BoxBody;
use crate::clock;
use crate::config::{Connect, ProgressBeats};
use crate::protocol::jsonrpc::{self, Body, Message, RequestId, code, response};
use crate::sync;

/// Notifications of the host that wait for each other.
const NOTIFICATIONS: usize = 1024;
/// Longest wait for the head of the GET stream before `initialized` is sent: a server may send
/// requests on it at once.
const LISTEN_WAIT: Duration = Duration::from_millis(250);
/// Time for all requests for lists together, if they come before the session is open.
const LISTS_WAIT: Duration = Duration::from_secs(45);
/// Time for them from the answer to `initialize`, if the host is impatient.
const IMPATIENT_LISTS_WAIT: Duration = Duration::from_secs(4);
/// Pauses before a message without a response, or the GET stream, is sent again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// Pauses of a server that does not open the GET stream now.
const LISTEN_PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Changes of lists as the core writes them after a revival, by their declarations in a handshake.
pub(super) const LIST_CHANGES: [(&[&str], &str); 3] = [
    (&["result", "capabilities", "tools"], r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
    (&["result", "capabilities", "prompts"], r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#),
    (&["result", "capabilities", "resources"], r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#),
];

/// Rules of the pipe.
pub(super) struct Rules {
    /// The user's settings.
    pub(super) connect: Connect,
    /// Progress for callers that wait, or `None` if it is off.
    pub(super) progress: Option<ProgressBeats>,
    /// Origin of the far side, for errors.
    pub(super) origin: String,
    /// True if the far side is on HTTP.
    pub(super) is_http: bool,
    /// Tools that the user hides.
    pub(super) ignored: IgnoredTools,
    /// True for a program behind it, whose last lines may be in errors.
    pub(super) is_program: bool,
    /// True if changes of its files replace the program.
    pub(super) is_watched: bool,
}

/// One session of one host.
pub(super) struct Pipe {
    pub(super) far: Far,
    pub(super) output: Output,
    pub(super) running: Running,
    pub(super) tools: Tools,
    pub(super) settings: Rules,
    pub(super) program: Program,
    pub(super) facts: Facts,
    /// The host's `initialize`.
    pub(super) opening: Mutex<Option<HostRequest>>,
    /// True while the far side of a revision without sessions is away, and memory answers for it.
    pub(super) is_away: AtomicBool,
    memory: Arc<Memory>,
    /// Remembered answers to this host, once it has named itself.
    record: Mutex<Option<Arc<Record>>>,
    /// Changes of lists of our own making, until no call of a tool runs.
    held: Mutex<Vec<Bytes>>,
    /// Name of the host, once it has named itself.
    host: OnceLock<String>,
    /// Time of the answer to `initialize`.
    greeted: OnceLock<Instant>,
    /// Time until which lists wait for the session.
    lists_until: OnceLock<Instant>,
    notifications: mpsc::Sender<Bytes>,
    /// Held while this process asks the far side for its promise.
    pub(super) probing: tokio::sync::Mutex<()>,
    /// The pipe, for its own tasks.
    pub(super) itself: Weak<Self>,
    tasks: Mutex<JoinSet<()>>,
}

impl Pipe {
    /// Creates the pipe, and the queue of notifications that [`Self::post_notifications`] empties.
    pub(super) fn new(far: Far, output: Output, settings: Rules, memory: Memory) -> (Arc<Self>, mpsc::Receiver<Bytes>) {
        let (notifications, queue) = mpsc::channel(NOTIFICATIONS);
        let pipe = Arc::new_cyclic(|itself| Self {
            far,
            output,
            running: Running::new(),
            tools: Tools::default(),
            program: Program::new(settings.is_watched),
            facts: Facts::default(),
            opening: Mutex::default(),
            settings,
            is_away: AtomicBool::new(false),
            memory: Arc::new(memory),
            record: Mutex::default(),
            held: Mutex::default(),
            host: OnceLock::new(),
            greeted: OnceLock::new(),
            lists_until: OnceLock::new(),
            notifications,
            probing: tokio::sync::Mutex::default(),
            itself: itself.clone(),
            tasks: Mutex::default(),
        });
        (pipe, queue)
    }

    /// Looks up the remembered answers to a host with this `initialize` or `server/discover`.
    pub(super) async fn remember(&self, request: &HostRequest) -> Arc<Record> {
        let _ = self.host.set(jsonrpc::client_name(&request.body).unwrap_or_default());
        let (memory, request) = (self.memory.clone(), request.clone());
        let looking_up = tokio::task::spawn_blocking(move || memory.record(&request));
        let record = Arc::new(looking_up.await.unwrap_or_default());
        *sync::lock(&self.record) = Some(record.clone());
        record
    }

    /// Returns the remembered answers to this host.
    pub(super) fn record(&self) -> Option<Arc<Record>> {
        sync::lock(&self.record).clone()
    }

    /// Handles lines until stdin ends.
    pub(super) async fn read<R: AsyncRead + Unpin>(self: &Arc<Self>, input: &mut Input<R>) {
        while let Some(line) = input.next().await {
            self.handle(line).await;
        }
    }

    /// Runs `task` until it ends, or the session does.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = sync::lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Runs a task of the pipe until it ends, or the session does.
    fn spawn_of<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(task(self.clone()));
    }

    /// Ends all tasks.
    pub(super) async fn end_tasks(&self) {
        let mut tasks = std::mem::take(&mut *sync::lock(&self.tasks));
        tasks.shutdown().await;
    }

    /// Answers `initialize`.
    pub(super) async fn greet(&self, id: &RequestId, message: Bytes) {
        let _ = self.greeted.set(clock::now());
        self.respond(id, message).await;
    }

    /// Returns the name of the host, or an empty text before it has named itself.
    pub(super) fn host(&self) -> &str {
        self.host.get().map_or("", String::as_str)
    }

    /// Returns the time until which lists wait for the session. It is counted from the first, and
    /// for an impatient host from the answer to `initialize`.
    pub(super) fn lists_until(&self) -> Instant {
        if self.settings.connect.impatient.has(self.host()) {
            let greeted = self.greeted.get().copied().unwrap_or_else(clock::now);
            return greeted + IMPATIENT_LISTS_WAIT;
        }
        *self.lists_until.get_or_init(|| clock::now() + LISTS_WAIT)
    }

    /// Returns true if the request has no response yet.
    pub(super) fn is_running(&self, id: &RequestId) -> bool {
        self.running.has(id)
    }

    /// Writes the response to a request, unless it has one.
    pub(super) async fn respond(&self, id: &RequestId, message: Bytes) {
        if !self.running.answer(id) {
            return;
        }
        self.output.respond(message).await;
        self.write_held().await;
    }

    /// Ends a subscription whose stream at the far side has ended: on stdio a server says so by a
    /// cancel of its request.
    pub(super) async fn end_subscription(&self, id: &RequestId) {
        if self.running.answer(id) {
            let params = format!(r#"{{"requestId":{}}}"#, id.to_json());
            let message = format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
            self.output.write(message.into()).await;
        }
    }

    /// Writes the changes of lists that wait, unless a call of a tool runs.
    async fn write_held(&self) {
        if self.running.has_tool_calls() {
            return;
        }
        let held = std::mem::take(&mut *sync::lock(&self.held));
        for message in held {
            self.output.write(message).await;
        }
    }

    async fn handle(self: &Arc<Self>, line: HostLine) {
        match line {
            HostLine::Request(request) => self.handle_request(request).await,
            HostLine::Notification { method, body } => match &*method {
                "notifications/cancelled" => self.handle_cancel(body),
                method => {
                    if method == "notifications/initialized" {
                        self.output.open();
                    }
                    if self.notifications.try_send(body).is_err() {
                        warn!("too many notifications of the host wait: one is dropped");
                    }
                }
            },
            HostLine::Response(body) => self.spawn_of(|pipe| async move { pipe.post_until_taken(body).await }),
            HostLine::Batch(ids, body) => self.handle_batch(ids, body).await,
            HostLine::Invalid(error) => self.output.respond(error.into()).await,
        }
    }

    async fn handle_request(self: &Arc<Self>, request: HostRequest) {
        if &*request.method == "ping" && request.revision.is_none() {
            return self.output.respond(response::empty(&request.id).into()).await;
        }
        let is_tool_call = &*request.method == "tools/call";
        if is_tool_call && jsonrpc::tool_name(&request.body).is_some_and(|tool| self.settings.ignored.has(&tool)) {
            let error = response::error(&request.id, code::INVALID_PARAMS, "the tool is hidden by --ignore-tool");
            return self.output.respond(error.into()).await;
        }
        let is_listen = request.is_listen();
        let kind = Kind { is_modern: request.revision.is_some(), is_tool_call, is_listen };
        let entry = match self.running.begin(&request.id, kind) {
            Ok(entry) => entry,
            Err(refused) => return self.output.respond(not_taken(&request.id, refused)).await,
        };
        let pipe = self.clone();
        match &*request.method {
            "initialize" => self.spawn(async move { pipe.open(request).await }),
            "server/discover" => self.spawn(async move { pipe.discover(request).await }),
            _ => {
                // A host that never says `initialized` is open with its first request.
                self.output.open();
                self.spawn(async move { pipe.call(request, &entry).await });
            }
        }
    }

    async fn handle_batch(self: &Arc<Self>, ids: Vec<RequestId>, body: Bytes) {
        for (index, id) in ids.iter().enumerate() {
            if let Err(refused) = self.running.begin(id, Kind::default()) {
                for id in &ids[..index] {
                    self.running.answer(id);
                }
                return self.output.respond(not_taken(id, refused)).await;
            }
        }
        let pipe = self.clone();
        self.spawn(async move { pipe.call_batch(ids, body).await });
    }

    async fn call_batch(&self, ids: Vec<RequestId>, body: Bytes) {
        let is_open = |state: &FarState| *state != FarState::Absent;
        let _ = tokio::time::timeout(self.settings.connect.wait, self.far.state().wait_for(is_open)).await;
        let reply = self.far.post_batch(body).await;
        let body = match reply {
            Reply::Whole { status, body, .. } if status.is_success() => body,
            Reply::Whole { status, body, .. } => self.refused_batch(&ids, status, &body),
            // Asked for as a whole, which the core collects.
            Reply::Messages(_) => return,
        };
        for id in &ids {
            self.running.answer(id);
        }
        if !body.is_empty() {
            self.output.respond(body).await;
        }
    }

    fn refused_batch(&self, ids: &[RequestId], status: StatusCode, body: &[u8]) -> Bytes {
        let refused = |id: &RequestId| {
            let request = HostRequest { id: id.clone(), method: "batch".into(), body: Bytes::new(), revision: None };
            self.refusal(&request, status, body)
        };
        let errors: Vec<Bytes> = ids.iter().map(refused).collect();
        [b"[".as_slice(), &errors.join(&b","[..]), b"]"].concat().into()
    }

    fn handle_cancel(self: &Arc<Self>, body: Bytes) {
        let Some(id) = jsonrpc::cancelled_request_id(&body) else { return };
        match self.running.cancel(&id) {
            Cancelled::Unknown => {}
            Cancelled::Withdrawn => self.spawn_of(|pipe| async move { pipe.write_held().await }),
            Cancelled::Sent => self.spawn_of(|pipe| async move {
                pipe.write_held().await;
                pipe.post_until_taken(body).await;
            }),
        }
    }

    // ── messages without a response ──────────────────────────────────────────────────────────────

    /// Posts notifications one after the other. Before `initialized` the GET stream is opened,
    /// because a server may use it at once.
    pub(super) async fn post_notifications(self: Arc<Self>, mut queue: mpsc::Receiver<Bytes>) {
        while let Some(body) = queue.recv().await {
            let is_initialized = matches!(
                jsonrpc::peek(&body),
                Ok(Body::Single(Message::Notification { method })) if method == "notifications/initialized"
            );
            let mut state = self.far.state();
            let Ok(reached) = state.wait_for(|state| *state != FarState::Absent).await.map(|state| state.clone())
            else {
                return;
            };
            if matches!(reached, FarState::Refused(_)) {
                continue;
            }
            if is_initialized {
                self.begin_listening().await;
            }
            self.post_until_taken(body).await;
            if is_initialized && *self.far.state().borrow() == FarState::Open {
                self.far.set_state(FarState::Ready);
            }
        }
    }

    /// Posts a message that has no response, until the far side has taken or refused it.
    async fn post_until_taken(&self, body: Bytes) {
        let post = || {
            let body = body.clone();
            async { self.far.post(body).await.0 }
        };
        self.until_taken(post).await;
    }

    /// Cancels a call of a revision without sessions, which has a key. A lost cancel would leave it
    /// to run for as long as it is held.
    pub(super) async fn cancel_by_key(&self, id: &RequestId, key: &CallKey) {
        if let Some(revision) = &key.revision {
            self.until_taken(|| self.far.cancel_by_key(id, key, revision)).await;
        }
    }

    async fn until_taken<F>(&self, post: impl Fn() -> F)
    where
        F: Future<Output = Reply>,
    {
        let until = clock::now() + self.settings.connect.max_wait;
        let mut pauses = PAUSES;
        loop {
            match post().await {
                Reply::Messages(body) => return self.read_stream(body).await,
                Reply::Whole { status, .. } if status.is_server_error() && clock::now() < until => {
                    clock::sleep(pauses.next_pause()).await;
                }
                Reply::Whole { status, .. } => {
                    if !status.is_success() {
                        debug!(status = status.as_u16(), "the far side refused a message of the host");
                    }
                    return;
                }
            }
        }
    }

    // ── messages of the far side ─────────────────────────────────────────────────────────────────

    /// Begins the GET stream, and waits a moment for its head.
    async fn begin_listening(self: &Arc<Self>) {
        if !self.far.has_session() {
            return;
        }
        let (sender, opened) = oneshot::channel();
        let pipe = self.clone();
        self.spawn(async move { pipe.listen(sender).await });
        let _ = tokio::time::timeout(LISTEN_WAIT, opened).await;
    }

    /// Follows the session's GET stream, as long as the far side has one.
    async fn listen(&self, opened: oneshot::Sender<()>) {
        let (mut opened, mut pauses) = (Some(opened), LISTEN_PAUSES);
        loop {
            let reply = self.far.listen().await;
            if let Some(opened) = opened.take() {
                let _ = opened.send(());
            }
            match reply {
                Reply::Messages(body) => {
                    pauses = LISTEN_PAUSES;
                    self.read_stream(body).await;
                }
                // The session lives, and has an older stream, or none before `initialized`.
                Reply::Whole { status, .. } if is_temporary(status) => {}
                Reply::Whole { status, .. } => {
                    return debug!(status = status.as_u16(), "the far side has no GET stream");
                }
            }
            clock::sleep(pauses.next_pause()).await;
        }
    }

    pub(super) async fn read_stream(&self, mut body: BoxBody) {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(message) = frame.into_data() {
                self.pass(message).await;
            }
        }
    }

    /// Writes a message of the far side. A second response to a request is dropped.
    pub(super) async fn pass(&self, message: Bytes) {
        match jsonrpc::peek_any(&message) {
            Ok(Body::Single(single)) => self.pass_single(single, message).await,
            Ok(Body::Batch(all)) => {
                let texts: Vec<Bytes> =
                    jsonrpc::messages(&message).iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect();
                for (single, text) in all.into_iter().zip(texts) {
                    self.pass_single(single, text).await;
                }
            }
            Err(error) => debug!(%error, "the far side sent what is no message"),
        }
    }

    async fn pass_single(&self, single: Message, message: Bytes) {
        match single {
            Message::Response { id: Some(id), .. } => self.respond(&id, message).await,
            Message::Response { id: None, .. } => debug!("the far side sent a response to no request"),
            Message::Notification { .. } if is_list_change(&message) && self.running.has_tool_calls() => {
                // Some hosts list their tools at once, and wait for that in the middle of the call.
                let mut held = sync::lock(&self.held);
                if !held.contains(&message) {
                    held.push(message);
                }
            }
            Message::Request { .. } | Message::Notification { .. } => self.output.write(message).await,
        }
    }
}

/// Returns true for a change of a list as the core writes it.
fn is_list_change(message: &[u8]) -> bool {
    LIST_CHANGES.iter().any(|(_, change)| change.as_bytes() == message)
}

/// Returns true for a status after which the GET stream is requested again.
fn is_temporary(status: StatusCode) -> bool {
    status == StatusCode::CONFLICT
        || status == StatusCode::BAD_REQUEST
        || status == StatusCode::TOO_MANY_REQUESTS
        || status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

fn not_taken(id: &RequestId, refused: NotTaken) -> Bytes {
    let (code, text) = match refused {
        NotTaken::TooMany => (code::LIMIT_REACHED, "too many requests wait for their responses"),
        NotTaken::IdInUse => (code::INVALID_REQUEST, "a request with this ID has no response yet"),
    };
    response::error(id, code, text).into()
}
