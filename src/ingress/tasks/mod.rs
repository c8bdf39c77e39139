//! POSTs with requests that concern tasks: `tasks/get`, `tasks/update`, `tasks/cancel`
//! ([extension `io.modelcontextprotocol/tasks`]).
//!
//! Owned here: the checks of such a request, and the responses for the proxy's own tasks. A request
//! for a task of the server goes to the server. Absent: the promotion of a call to a task (the
//! pump), and the forms of the messages (`protocol/tasks/`).
//!
//! [extension `io.modelcontextprotocol/tasks`]: https://github.com/modelcontextprotocol/ext-tasks

mod legacy;
mod poll;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use tracing::debug;

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
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::tasks::{self, TaskMethod, TaskRequest};
use crate::server::respond;
use crate::upstream::Upstream;

/// Handles requests for the proxy's own tasks.
pub(super) struct Tasks {
    /// Configuration, or `None` if calls never become tasks.
    config: Option<Arc<config::Tasks>>,
    drain: Arc<Drain>,
    /// Time to the next attempt of a cut client.
    retry: Duration,
    upstream: Arc<Upstream>,
    refusals: Refusals,
    finder: Arc<StreamFinder>,
    owners: Arc<OwnerForwarder>,
    log: Arc<EventLog>,
    /// True if the IDs of the server's own tasks have the owner before them.
    wraps_ids: bool,
}

/// Reason for an unknown task: its stream was found, but has no state.
const NO_STATE: &str = "the stream has no state of a task";

impl Tasks {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        finder: Arc<StreamFinder>,
        owners: Arc<OwnerForwarder>,
    ) -> Self {
        let Components { config, log, drain, upstream, .. } = components;
        Self {
            config: config.tasks.clone(),
            drain: drain.clone(),
            retry: config.delivery.retry,
            upstream: upstream.clone(),
            refusals,
            finder,
            owners,
            log: log.clone(),
            wraps_ids: config.replica.wrap_sessions,
        }
    }

    /// Handles the request. Returns `None` if it must be forwarded: the ID is not the proxy's, and
    /// the server may have tasks.
    pub(super) async fn handle(
        &self,
        context: &mut RequestContext,
        request: &TaskRequest,
        body: &Bytes,
    ) -> Option<Response<BoxBody>> {
        let config = self.config.as_ref()?;
        let offers_none = self.upstream.observed().discovery(clock::now()).is_some_and(|known| !known.has_tasks);
        if !request.is_own() && !offers_none {
            return None;
        }
        let TaskRequest { id, method, .. } = request;
        if matches!(method, TaskMethod::Result | TaskMethod::List) {
            return Some(respond::json(StatusCode::NOT_FOUND, jsonrpc::response::method_not_found(id).into()));
        }
        if !tasks::declares(body) {
            return Some(respond::json(StatusCode::BAD_REQUEST, tasks::missing_capability(id).into()));
        }
        if let Some(header) = mismatch(context, request) {
            return Some(respond::json(StatusCode::BAD_REQUEST, tasks::header_mismatch(id, header.as_str()).into()));
        }
        if *method == TaskMethod::Update && !tasks::has_input_responses(body) {
            return Some(respond::json(StatusCode::BAD_REQUEST, tasks::missing_responses(id).into()));
        }
        let stream = match self.find(context, request).await {
            Ok(stream) => stream,
            Err(response) => return Some(*response),
        };
        Some(match method {
            TaskMethod::Get => {
                if self.log.refresh(&stream).await.is_err() {
                    return Some(self.refusals.refuse_request(ErrorCode::StoreFailed, id));
                }
                self.continue_call(context, &stream).await;
                let accepts_stream = headers::accept(&context.parts.headers).sse;
                let response = self.polls(config).respond(id, &stream, accepts_stream);
                response.unwrap_or_else(|| unknown(id, Some(NO_STATE)))
            }
            _ if stream.replica().is_remote() => self.forward(context, request, body).await,
            _ => self.change(context, request, body, &stream).await,
        })
    }

    /// Returns the stream of the task that a request names, at the resume rate of its caller.
    ///
    /// # Errors
    /// The response to the request if the task is unknown, or cannot be searched now.
    async fn find(
        &self,
        context: &mut RequestContext,
        TaskRequest { id, handle, .. }: &TaskRequest,
    ) -> Result<Arc<Stream>, Box<Response<BoxBody>>> {
        self.finder.wait_for_resume_rate(context).await;
        let Some(handle) = handle else { return Err(Box::new(unknown(id, Some("the ID is malformed")))) };
        Err(Box::new(match self.finder.find_task(context, handle).await {
            Ok(Some(stream)) => return Ok(stream),
            Ok(None) => unknown(id, None),
            Err(Unproven::Unavailable(code)) => self.refusals.refuse_request(code, id),
            Err(unproven) => unproven.into_response(&self.refusals),
        }))
    }

    /// Forwards a change of a task to the replica that runs its call.
    async fn forward(
        &self,
        context: &RequestContext,
        TaskRequest { id, handle, .. }: &TaskRequest,
        body: &Bytes,
    ) -> Response<BoxBody> {
        let Some(handle) = handle else { return unknown(id, None) };
        match self.owners.forward_task(context, handle, body).await {
            Ok(Some(response)) => response,
            // The call still belongs to another replica, and ends with its lease.
            Ok(None) => self.refusals.refuse_request(ErrorCode::StoreFailed, id),
            Err(code) => self.refusals.refuse_request(code, id),
        }
    }

    /// Handles a change of a task that another replica forwards. `None` if the task is not here.
    pub(super) async fn handle_forwarded(
        &self,
        context: &RequestContext,
        task: &EventId,
        body: &[u8],
    ) -> Option<Response<BoxBody>> {
        let Ok(jsonrpc::Body::Single(Message::Request { id, method })) = jsonrpc::peek(body) else { return None };
        let request = TaskRequest::parse(&id, &method, body)?;
        let stream = self.finder.find_task(context, task).await.ok()??;
        if stream.replica().is_remote() {
            return None;
        }
        if stream.as_legacy_task().is_some() {
            return Some(self.cancel_legacy(&request.id, &stream).await);
        }
        Some(self.change(context, &request, body, &stream).await)
    }

    /// Makes a change of a task here. Its acknowledgement means that the next poll sees it, at any
    /// replica.
    async fn change(
        &self,
        context: &RequestContext,
        TaskRequest { id, method, .. }: &TaskRequest,
        body: &[u8],
        stream: &Stream,
    ) -> Response<BoxBody> {
        self.keep_headers(context, stream);
        match method {
            TaskMethod::Update => {
                stream.as_task().update(jsonrpc::member(body, &["params", "inputResponses"]).unwrap_or("{}"));
            }
            TaskMethod::Cancel => {
                stream.as_task().cancel();
            }
            TaskMethod::Get => {
                stream.as_task().poll();
            }
            TaskMethod::Result | TaskMethod::List => {}
        }
        if stream.as_task().stored().await {
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

    /// Resumes a held poll at this event ID.
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
                    self.continue_call(&context, stream).await;
                }
                let response = stream.and_then(|stream| self.polls(config).resume(&id, &stream));
                response.unwrap_or_else(|| respond::stream(whole(lost_event(event)).map_err(Into::into)))
            }
        }
    }

    /// Continues a call that waits for a poll: here with the next reading, or at the replica that
    /// runs it.
    async fn continue_call(&self, context: &RequestContext, stream: &Stream) {
        if !stream.replica().is_remote() {
            return self.keep_headers(context, stream);
        }
        let handle = EventId::of_handle(stream.handle().as_str());
        if let Some(handle) =
            handle.filter(|_| stream.as_task().read().is_some_and(|reading| reading.record.awaits_poll()))
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
        stream
            .as_task()
            .keep_call_headers(|| self.upstream.call(parts, connection.forwarded(), Bytes::new()).into_lines());
    }

    fn polls(&self, config: &Arc<config::Tasks>) -> Polls {
        Polls { config: config.clone(), drain: self.drain.clone(), retry: self.retry }
    }
}

/// Returns the response for an unknown task. It is the same for each reason, so that a caller
/// cannot distinguish them. The log has the reason, by the search if `reason` is `None`.
fn unknown(id: &RequestId, reason: Option<&'static str>) -> Response<BoxBody> {
    if let Some(reason) = reason {
        debug!(reason, "a task was not found");
    }
    respond::json(StatusCode::OK, tasks::unknown_task(id).into())
}

/// Returns the first header that does not match the body. `Mcp-Name` may be absent: a stock client
/// never sends it.
fn mismatch(context: &RequestContext, request: &TaskRequest) -> Option<HeaderName> {
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
    request.task_id.as_deref().filter(|id| differs(&names::MCP_NAME, id)).map(|_| names::MCP_NAME)
}
