//! POSTs with requests that concern tasks: `tasks/get`, `tasks/update`, `tasks/cancel`
//! ([extension `io.modelcontextprotocol/tasks`]).
//!
//! Owned here: the checks of such a request, and the responses for tasks of the proxy's own. Every
//! other request goes to the server: one for a task that it may have itself. Absent: the moment at
//! which a call becomes a task (the pump), and the forms of the messages (`protocol/tasks/`).
//!
//! [extension `io.modelcontextprotocol/tasks`]: https://github.com/modelcontextprotocol/ext-tasks

mod legacy;
mod poll;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;

use self::legacy::LegacyTasks;
use self::poll::Polls;

use super::components::Components;
use super::context::RequestContext;
use super::forward_to_replicas::OwnerForwarder;
use super::refusals::Refusals;
use super::stream_finder::StreamFinder;
use super::token_refresh::Unproven;
use crate::body::{BoxBody, whole};
use crate::clock;
use crate::config;
use crate::delivery::{ANSWER, lost_event};
use crate::event_log::{EventLog, Stream};
use crate::lifecycle::drain::Drain;
use crate::protocol::channel::envelope;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, names};
use crate::protocol::ids::{Cursor, EventId, Requests};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::tasks::{self, TaskMethod, TaskRequest};
use crate::server::respond;
use crate::upstream::Upstream;

/// Handles requests for tasks of the proxy's own.
pub(super) struct Tasks {
    /// Configuration, or `None` if calls become no tasks.
    config: Option<Arc<config::Tasks>>,
    drain: Arc<Drain>,
    /// Time after which a client that is cut comes back.
    retry: Duration,
    upstream: Arc<Upstream>,
    refusals: Refusals,
    finder: Arc<StreamFinder>,
    owners: Arc<OwnerForwarder>,
    log: Arc<EventLog>,
    /// True if the IDs of the server's own tasks have the owner before them.
    wraps_ids: bool,
    /// Requests for tasks of 2025-11-25.
    pub(super) legacy: LegacyTasks,
}

impl Tasks {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        finder: Arc<StreamFinder>,
        owners: Arc<OwnerForwarder>,
    ) -> Self {
        let legacy = LegacyTasks::new(components, refusals.clone(), finder.clone(), owners.clone());
        let Components { config, log, drain, upstream, .. } = components;
        let (tasks, retry, wraps_ids) = (config.tasks.clone(), config.delivery.retry, config.replica.wrap_sessions);
        Self {
            config: tasks,
            drain: drain.clone(),
            retry,
            upstream: upstream.clone(),
            refusals,
            finder,
            owners,
            log: log.clone(),
            wraps_ids,
            legacy,
        }
    }

    /// Handles the request, or returns `None` if the server must answer it: it has tasks of its
    /// own, or may have them and the ID is none of the proxy's.
    pub(super) async fn handle(
        &self,
        context: &mut RequestContext,
        request: &TaskRequest,
        body: &Bytes,
    ) -> Option<Response<BoxBody>> {
        let config = self.config.as_ref()?;
        let task_id = tasks::task_id_of(body);
        let is_own = task_id.as_deref().is_some_and(|id| id.starts_with(tasks::ID_PREFIX));
        let offers_none = self.upstream.observed().discovery(clock::now()).is_some_and(|known| !known.has_tasks);
        if !is_own && !offers_none {
            return None;
        }
        let TaskRequest { id, method } = request;
        if matches!(method, TaskMethod::Result | TaskMethod::List) {
            return Some(respond::json(StatusCode::NOT_FOUND, tasks::method_not_found(id).into()));
        }
        if !tasks::declares(body) {
            return Some(respond::json(StatusCode::BAD_REQUEST, tasks::missing_capability(id).into()));
        }
        if let Some(header) = mismatch(context, request, task_id.as_deref()) {
            return Some(respond::json(StatusCode::BAD_REQUEST, tasks::header_mismatch(id, header.as_str()).into()));
        }
        if *method == TaskMethod::Update && !tasks::has_input_responses(body) {
            return Some(respond::json(StatusCode::BAD_REQUEST, tasks::missing_responses(id).into()));
        }
        self.finder.wait_for_resume_rate(context).await;
        let handle = task_id.as_deref().and_then(tasks::handle_of);
        let found = match &handle {
            Some(handle) => self.finder.find_task(context, handle).await,
            None => Ok(None),
        };
        let stream = match found {
            Ok(stream) => stream,
            Err(Unproven::Unavailable(code)) => return Some(self.refusals.refuse_request(code, id)),
            Err(unproven) => return Some(unproven.into_response(&self.refusals)),
        };
        let response = match (stream, handle) {
            (Some(stream), Some(_)) if *method == TaskMethod::Get => {
                if self.log.refresh(&stream).await.is_err() {
                    return Some(self.refusals.refuse_request(ErrorCode::StoreFailed, id));
                }
                self.note_poll(context, &stream).await;
                self.polls(config).respond(id, &stream, headers::accept(&context.parts.headers).sse)
            }
            (Some(stream), Some(_)) if !stream.is_remote() => Some(self.change(context, request, body, &stream).await),
            (Some(_), Some(handle)) => {
                let forwarded = self.owners.forward_task(context, &handle, body).await;
                // Without a reply the call is another replica's still, and ends with its lease.
                let refused = |code| self.refusals.refuse_request(code, id);
                Some(match forwarded {
                    Ok(Some(response)) => response,
                    Ok(None) => refused(ErrorCode::StoreFailed),
                    Err(code) => refused(code),
                })
            }
            (_, _) => None,
        };
        Some(response.unwrap_or_else(|| respond::json(StatusCode::OK, tasks::unknown_task(id).into())))
    }

    /// Handles a change of a task that another replica forwards. `None` if the task is not here.
    pub(super) async fn handle_forwarded(
        &self,
        context: &RequestContext,
        task: &EventId,
        body: &[u8],
    ) -> Option<Response<BoxBody>> {
        let Ok(jsonrpc::Body::Single(Message::Request { id, method })) = jsonrpc::peek(body) else { return None };
        let request = TaskRequest { id, method: TaskMethod::parse(&method)? };
        let stream = self.finder.find_task(context, task).await.ok()??;
        if stream.is_remote() {
            return None;
        }
        if stream.is_legacy_task() {
            return Some(self.legacy.cancel(&request.id, &stream).await);
        }
        Some(self.change(context, &request, body, &stream).await)
    }

    /// Makes a change of a task here. Its acknowledgement means that the next poll sees it, at any
    /// replica.
    async fn change(
        &self,
        context: &RequestContext,
        TaskRequest { id, method }: &TaskRequest,
        body: &[u8],
        stream: &Stream,
    ) -> Response<BoxBody> {
        self.keep_headers(context, stream);
        match method {
            TaskMethod::Update => {
                stream.update_task(jsonrpc::member(body, &["params", "inputResponses"]).unwrap_or("{}"));
            }
            TaskMethod::Cancel => {
                stream.cancel_task();
            }
            TaskMethod::Get => {
                stream.poll_task();
            }
            TaskMethod::Result | TaskMethod::List => {}
        }
        if stream.task_stored().await {
            respond::json(StatusCode::OK, tasks::acknowledgement(id).into())
        } else {
            self.refusals.refuse_request(ErrorCode::StoreFailed, id)
        }
    }

    /// Returns a request for a task of the server's own as the server gets it: without the owner
    /// before the ID.
    pub(super) fn to_server(&self, context: &mut RequestContext, body: Bytes) -> Bytes {
        if !self.wraps_ids {
            return body;
        }
        let owner = self.log.owner();
        let headers = &mut context.parts.headers;
        let name = headers.get(names::MCP_NAME).and_then(|name| name.to_str().ok());
        let own = name.and_then(|name| tasks::unwrapped_id(owner, name));
        if let Some(own) = own.and_then(|own| HeaderValue::from_str(own).ok()) {
            headers.insert(names::MCP_NAME, own);
        }
        tasks::unwrapped(owner, &body).map_or(body, Bytes::from)
    }

    /// Answers a client that comes back for the answer to a held poll, whose event ID this is.
    pub(super) async fn resume(&self, mut context: Box<RequestContext>, event: &EventId) -> Response<BoxBody> {
        self.finder.wait_for_resume_rate(&mut context).await;
        let (Some(config), Requests::One(id)) = (&self.config, event.unverified_requests()) else {
            return respond::stream(whole(lost_event(event)).map_err(Into::into));
        };
        let found = match self.finder.find_task(&context, event).await {
            Ok(found) => found,
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        match (event.cursor(), found) {
            (Cursor::Seq(seq), Some(_)) if seq >= ANSWER => respond::status(StatusCode::NO_CONTENT),
            (Cursor::End, _) => respond::status(StatusCode::NO_CONTENT),
            (Cursor::Seq(_), stream) => {
                if let Some(stream) = &stream {
                    if self.log.refresh(stream).await.is_err() {
                        return self.refusals.refuse(ErrorCode::StoreFailed);
                    }
                    self.note_poll(&context, stream).await;
                }
                let response = stream.and_then(|stream| self.polls(config).respond_again(&id, &stream));
                response.unwrap_or_else(|| respond::stream(whole(lost_event(event)).map_err(Into::into)))
            }
        }
    }

    /// Lets a call go on that waits for a poll: here with the next reading, or at the replica that
    /// has it.
    async fn note_poll(&self, context: &RequestContext, stream: &Stream) {
        if !stream.is_remote() {
            return self.keep_headers(context, stream);
        }
        let handle = EventId::of_handle(stream.handle().as_str());
        if let Some(handle) = handle.filter(|_| stream.read_task().is_some_and(|reading| reading.record.awaits_poll()))
        {
            let poll = tasks::get_request(stream.handle()).into();
            if let Ok(Some(_)) = self.owners.forward_task(context, &handle, &poll).await {
                // The next poll can read it, if this replica cannot yet.
                let _ = self.log.refresh(stream).await;
            }
        }
    }

    /// Keeps the headers of a request for the call of the task, if that waits for its client.
    fn keep_headers(&self, RequestContext { parts, connection, .. }: &RequestContext, stream: &Stream) {
        stream.keep_call_headers(|| self.upstream.call(parts, connection.forwarded(), Bytes::new()).into_lines());
    }

    fn polls(&self, config: &Arc<config::Tasks>) -> Polls {
        Polls { config: config.clone(), drain: self.drain.clone(), retry: self.retry }
    }
}

/// Returns the first header that does not match the body. `Mcp-Name` may be absent: a stock client
/// never sends it.
fn mismatch(context: &RequestContext, request: &TaskRequest, task_id: Option<&str>) -> Option<HeaderName> {
    let headers = &context.parts.headers;
    let method = match request.method {
        TaskMethod::Get => "tasks/get",
        TaskMethod::Update => "tasks/update",
        TaskMethod::Cancel => "tasks/cancel",
        TaskMethod::Result | TaskMethod::List => return None,
    };
    let differs = |name: &HeaderName, value: &str| headers.contains_key(name) && !envelope::is(headers, name, value);
    if differs(&names::MCP_METHOD, method) {
        return Some(names::MCP_METHOD);
    }
    task_id.filter(|id| differs(&names::MCP_NAME, id)).map(|_| names::MCP_NAME)
}
