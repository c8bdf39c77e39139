//! Facts that the proxy takes from the response to one call, before the client gets it.
//!
//! Owned here: the session that a response to `initialize` opens, the edit of a tool list, and the
//! offer of tasks. Invariant: the store has a session's record before the client can use the
//! session. Absent: the memory of observed facts ([`super::observed`]).

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};

use super::observed::Credentials;
use super::server::response_body::ResponseBody;
use super::session_names::FreshName;
use super::stack::Upstream;
use crate::clock;
use crate::config::{LegacyTasks, ResumeTokens};
use crate::event_log::{EventLog, Handshake, Opened};
use crate::protocol::dialect::resume_tokens::ToolList;
use crate::protocol::headers::{self, SessionId};
use crate::protocol::ids::{IssuedSession, Owner};
use crate::protocol::jsonrpc::{self, Body, InitializeParams, Message, RequestId, ServerFacts};
use crate::protocol::lists::{Page, PageDigest};
use crate::protocol::request_ids::IdDigest;
use crate::protocol::tasks::{self, Discovery, legacy};

/// Observer of one call's response. Most calls need none, and have no memory for one.
#[derive(Clone, Debug, Default)]
pub struct ResponseObserver(Option<Box<Active>>);

/// Observer that takes a fact from the response, or edits it.
#[derive(Clone, Debug, Default)]
struct Active {
    /// Facts about the client of a call that carries `initialize`: its response opens a session.
    initialize: Option<IssuedSession>,
    /// ID of that `initialize`.
    initialize_id: Option<IdDigest>,
    /// Parameters of the `initialize`, if the session can be opened again with them.
    params: Option<InitializeParams>,
    /// Tools with possible partial results, for a call that lists tools. The list shows which tools
    /// can have them, and is marked for the client.
    tools: Option<Arc<ResumeTokens>>,
    /// True for a call that discovers the server. Its response shows the server's tasks, and gets
    /// the offer of the proxy's tasks.
    discovers: bool,
    /// Owner that precedes the IDs of the server's own tasks, or `None` for IDs without an owner.
    task_owner: Option<Owner>,
    /// Tasks of 2025-11-25 that a tool list offers, or `None` without such tasks.
    legacy_tasks: Option<Arc<LegacyTasks>>,
    /// ID of the task of 2025-11-25, for a call that is one. It marks each message.
    task_id: Option<Arc<str>>,
    /// Page of a list that the call reads, and its session. The record of the session keeps its
    /// digest.
    list_page: Option<(SessionId, Page)>,
    /// Session named by the head of a response to `initialize`.
    session: Option<SessionId>,
    /// Server's name of that session, if the client gets a name of the proxy's own.
    server_name: Option<SessionId>,
    /// True if the proxy issued that session.
    is_issued: bool,
    /// Record of that session, until the store has it.
    unsaved: Option<Opened>,
}

impl ResponseObserver {
    /// Creates the observer of a call that carries `initialize`, of a call that lists `tools` with
    /// possible partial results, or of neither.
    pub fn new(initialize: Option<IssuedSession>, tools: Option<Arc<ResumeTokens>>) -> Self {
        let has_any = initialize.is_some() || tools.is_some();
        Self(has_any.then(|| Box::new(Active { initialize, tools, ..Active::default() })))
    }

    /// Sets a fact that is to be taken, if there is one.
    fn with<T>(mut self, fact: Option<T>, set: impl FnOnce(&mut Active, T)) -> Self {
        if let Some(fact) = fact {
            set(self.0.get_or_insert_default(), fact);
        }
        self
    }

    /// Sets the parameters for opening the session again.
    pub fn with_params(self, params: Option<InitializeParams>) -> Self {
        self.with(params, |active, params| active.params = Some(params))
    }

    /// Sets the IDs of the call. The record of a session keeps the ID of its `initialize`.
    pub fn with_ids(mut self, ids: &[RequestId]) -> Self {
        if let Some(active) = self.0.as_mut().filter(|active| active.initialize.is_some()) {
            active.initialize_id = ids.first().map(IdDigest::from);
        }
        self
    }

    /// Sets whether the call discovers a server that gets tasks from the proxy.
    pub fn with_discovery(self, discovers: bool) -> Self {
        self.with(discovers.then_some(true), |active, discovers| active.discovers = discovers)
    }

    /// Sets the owner that precedes the IDs of the server's own tasks.
    pub fn with_task_owner(self, task_owner: Option<Owner>) -> Self {
        self.with(task_owner, |active, owner| active.task_owner = Some(owner))
    }

    /// Sets the tasks of 2025-11-25 that the tool list offers.
    pub fn with_legacy_tasks(self, legacy_tasks: Option<Arc<LegacyTasks>>) -> Self {
        self.with(legacy_tasks, |active, tasks| active.legacy_tasks = Some(tasks))
    }

    /// Sets the ID of the task of 2025-11-25 that this call is.
    pub fn with_task_id(self, task_id: Option<Arc<str>>) -> Self {
        self.with(task_id, |active, id| active.task_id = Some(id))
    }

    /// Sets the page of a list that the call reads in this session.
    pub fn with_list_page(self, list_page: Option<(SessionId, Page)>) -> Self {
        self.with(list_page, |active, page| active.list_page = Some(page))
    }

    /// Returns true if the response opens a session.
    pub fn opens_session(&self) -> bool {
        self.0.as_ref().is_some_and(|active| active.initialize.is_some())
    }

    /// Returns true if the response must be read before it passes.
    pub fn is_active(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the session from the head of a response to `initialize`; see [`Active::open_session`].
    pub(super) fn open_session(&mut self, response: &mut Response<ResponseBody>, upstream: &Upstream, log: &EventLog) {
        if let Some(active) = &mut self.0 {
            active.open_session(response, upstream, log);
        }
    }

    /// Observes one message of the response. Returns the message for the client.
    pub(super) fn observe(
        &mut self,
        message: Bytes,
        upstream: &Upstream,
        log: &EventLog,
        credentials: &Credentials,
    ) -> Bytes {
        match &mut self.0 {
            Some(active) => active.observe(message, upstream, log, credentials),
            None => message,
        }
    }

    /// Notes that a response with this status passes without being read.
    pub(super) fn note_unread(&self, status: StatusCode, log: &EventLog) {
        if let Some(active) = &self.0 {
            active.note_unread(status, log);
        }
    }

    /// Observes a response that is one message. Returns the message for the client, once the store
    /// has the session that it opens, and adapts the headers in `head` if the message was edited.
    pub(super) async fn observe_whole(
        &mut self,
        head: &mut Parts,
        message: Bytes,
        upstream: &Upstream,
        log: &EventLog,
        credentials: &Credentials,
    ) -> Bytes {
        match &mut self.0 {
            Some(active) => active.observe_whole(head, message, upstream, log, credentials).await,
            None => message,
        }
    }

    /// Saves a session that was recorded, before the client can use it on any replica.
    pub(super) async fn save_session(&mut self, log: &EventLog, credentials: &Credentials) {
        if let Some(active) = &mut self.0 {
            active.save_session(log, credentials).await;
        }
    }
}

impl Active {
    /// Takes the session from the head of a response to `initialize`. Without a session of the
    /// upstream, a client that declared a dialect gets an issued session: its later calls must be
    /// known by it. If another client uses the name already, this client gets a name of the proxy's
    /// own.
    fn open_session(&mut self, response: &mut Response<ResponseBody>, upstream: &Upstream, log: &EventLog) {
        let Some(initialize) = &self.initialize else { return };
        if response.status().is_success() {
            upstream.server().record_session();
        }
        self.session = SessionId::from_headers(response.headers());
        if let Some(session) = &self.session
            && response.status().is_success()
            && let Some(FreshName { visible, server }) = upstream.names().open(session)
            && let Ok(value) = HeaderValue::from_str(visible.as_str())
        {
            response.headers_mut().insert(headers::names::MCP_SESSION_ID, value);
            // The client may use the name even if the session cannot be opened again.
            let names = Handshake::for_names(upstream.revivals().keep());
            log.sessions().handshakes().record_named(visible.clone(), names, server.clone());
            (self.session, self.server_name) = (Some(visible), Some(server));
        }
        let offers_tasks = initialize.has_tasks && upstream.observed().may_have_legacy_tasks();
        let needs_session = initialize.declared.is_any() || offers_tasks;
        if self.session.is_some() || !needs_session || !response.status().is_success() {
            return;
        }
        let issued = log.issue_session(initialize);
        let value = issued.as_ref().and_then(|id| HeaderValue::from_str(id.as_str()).ok());
        if let Some(value) = value {
            response.headers_mut().insert(headers::names::MCP_SESSION_ID, value);
            self.session = issued;
            self.is_issued = true;
        }
    }

    fn observe(&mut self, message: Bytes, upstream: &Upstream, log: &EventLog, credentials: &Credentials) -> Bytes {
        self.note_list_page(&message, log);
        self.edited(message, upstream, log, credentials)
    }

    /// Takes the facts of a message, and returns the message for the client.
    fn edited(&mut self, message: Bytes, upstream: &Upstream, log: &EventLog, credentials: &Credentials) -> Bytes {
        if let Some(initialize) = &self.initialize {
            let offered = if initialize.has_tasks { legacy::offered(&message) } else { None };
            if initialize.has_tasks && jsonrpc::initialize_result(&message).is_some() {
                upstream.observed().record_legacy_tasks(offered.is_some());
            }
            self.record_initialized(&message, offered.is_some(), upstream, log, credentials);
            return offered.map_or(message, Bytes::from);
        }
        if let Some(id) = &self.task_id {
            return legacy::tagged(&message, id).map_or(message, Bytes::from);
        }
        if self.discovers {
            if let Some(discovery) = Discovery::of(&message) {
                upstream.observed().record_discovery(discovery, clock::now());
            }
            return tasks::with_extension(&message).map_or(message, Bytes::from);
        }
        if let Some(owner) = self.task_owner {
            return tasks::wrapped(owner, &message).map_or(message, Bytes::from);
        }
        let message = match &self.legacy_tasks {
            Some(tasks) => legacy::with_support(&message, |tool| tasks.has(tool)).map_or(message, Bytes::from),
            None => message,
        };
        let Some(tokens) = &self.tools else { return message };
        let ToolList { tools, edited } = ToolList::of(&message, |name| tokens.tools.contains(name));
        upstream.observed().record_tools(tools);
        edited.map_or(message, Bytes::from)
    }

    fn note_unread(&self, status: StatusCode, log: &EventLog) {
        if let Some((session, page)) = &self.list_page
            && status.is_success()
            && let Some(handshake) = log.sessions().handshakes().find(session)
        {
            handshake.note_list_page(page, None);
        }
    }

    /// Keeps the digest of the page that a message brings. A page that the client may read in
    /// another form cannot be compared.
    fn note_list_page(&self, message: &[u8], log: &EventLog) {
        let Some((session, page)) = &self.list_page else { return };
        let json = jsonrpc::as_json(message);
        let message = json.as_deref().unwrap_or(message);
        let digest = match jsonrpc::peek(message) {
            Ok(Body::Single(Message::Response { is_error: false, .. })) => PageDigest::of(message),
            Ok(Body::Single(_)) => return,
            Err(_) if message.trim_ascii().is_empty() => return,
            Ok(Body::Batch(_)) | Err(_) => None,
        };
        if let Some(handshake) = log.sessions().handshakes().find(session) {
            handshake.note_list_page(page, digest);
        }
    }

    async fn observe_whole(
        &mut self,
        head: &mut Parts,
        message: Bytes,
        upstream: &Upstream,
        log: &EventLog,
        credentials: &Credentials,
    ) -> Bytes {
        if head.status.is_success() {
            self.note_list_page(&message, log);
        }
        let edited = self.edited(message.clone(), upstream, log, credentials);
        self.save_session(log, credentials).await;
        if edited != message {
            headers::remove_body_facts(&mut head.headers);
            head.headers.insert(CONTENT_LENGTH, edited.len().into());
        }
        edited
    }

    /// Records the session that the result of `initialize` opens, before the client can use it.
    /// `has_tasks` is true if the proxy offers tasks of 2025-11-25 in it.
    fn record_initialized(
        &mut self,
        message: &[u8],
        has_tasks: bool,
        upstream: &Upstream,
        log: &EventLog,
        credentials: &Credentials,
    ) {
        let Some(initialized) = jsonrpc::initialize_result(message) else { return };
        upstream.record_begun_session(self.session.is_some() && !self.is_issued);
        if let Some(session) = &self.session
            && let Some(version) = headers::ProtocolVersion::parse(&initialized.protocol_version)
        {
            if let Some(params) = self.params.take()
                && !self.is_issued
                && let Some(server) = ServerFacts::of(message)
            {
                let keep = upstream.revivals().keep();
                let handshake = Handshake::new(params, version.clone(), server, credentials.principal, keep);
                let handshakes = log.sessions().handshakes();
                match &self.server_name {
                    Some(name) => handshakes.record_named(session.clone(), handshake, name.clone()),
                    None => handshakes.record(session.clone(), handshake),
                }
            }
            let initialize = self.initialize.as_ref();
            let declared = initialize.map(|initialize| initialize.declared).unwrap_or_default();
            let rules = initialize.map(|initialize| initialize.rules).unwrap_or_default();
            let initialize_id = self.initialize_id;
            let opened = Opened { version, logging: initialized.logging, declared, rules, has_tasks, initialize_id };
            if log.has_store() {
                self.unsaved = Some(opened.clone());
            }
            log.sessions().record(session.clone(), credentials.principal, opened);
        }
    }

    async fn save_session(&mut self, log: &EventLog, credentials: &Credentials) {
        if let (Some(opened), Some(session)) = (self.unsaved.take(), &self.session) {
            log.stored_sessions().save_opened(session, &credentials.principal, &opened).await;
        }
    }
}
