//! POSTs with requests that concern tasks: `tasks/get`, `tasks/update`, `tasks/cancel`
//! ([extension `io.modelcontextprotocol/tasks`]).
//!
//! Owned here: the checks of such a request, and the responses for the proxy's own tasks. A request
//! for a task of the server goes to the server. Absent: the promotion of a call to a task (the
//! pump), and the forms of the messages (`protocol/tasks/`).
//!
//! [extension `io.modelcontextprotocol/tasks`]: https://github.com/modelcontextprotocol/ext-tasks

mod legacy;
mod lookup;
mod poll;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;

pub(super) use self::legacy::{concerns_legacy, handle_legacy};
use self::lookup::{NO_STATE, find, forward, unknown};
use self::poll::Polls;
use super::components::Components;
use super::context::RequestContext;
use super::forward_to_replicas;
use super::refusals;
use super::stream_finder;
use crate::body::{BoxBody, whole};
use crate::clock;
use crate::config;
use crate::delivery::{ANSWER, lost_event};
use crate::event_log::Stream;
use crate::protocol::channel::envelope;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::names;
use crate::protocol::ids::{Cursor, EventId, Requests};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::tasks::{self, TaskMethod, TaskRequest};
use crate::server::respond;

/// Handles the request. Returns `None` if it must be forwarded: the ID is not the proxy's, and
/// the server may have tasks.
pub(super) async fn handle(
    components: &Components,
    context: &mut RequestContext,
    request: &TaskRequest,
    body: &Bytes,
) -> Option<Response<BoxBody>> {
    let config = components.config.tasks.as_ref()?;
    let offers_none = components.upstream.observed().discovery(clock::now()).is_some_and(|known| !known.has_tasks);
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
    let stream = match find(components, context, request).await {
        Ok(stream) => stream,
        Err(response) => return Some(*response),
    };
    Some(match method {
        TaskMethod::Get => {
            if components.log.restoration().refresh(&stream).await.is_err() {
                return Some(refusals::refuse_request(components, ErrorCode::StoreFailed, id));
            }
            continue_call(components, context, &stream).await;
            let accepts_stream = context.facts.accept.sse;
            let response = polls(components, config).respond(id, &stream, accepts_stream);
            response.unwrap_or_else(|| unknown(id, Some(NO_STATE)))
        }
        _ if stream.replica().is_remote() => forward(components, context, request, body).await,
        _ => change(components, context, request, body, &stream).await,
    })
}

/// Handles a change of a task that another replica forwards. `None` if the task is not here.
pub(super) async fn handle_forwarded(
    components: &Components,
    context: &RequestContext,
    task: &EventId,
    body: &[u8],
) -> Option<Response<BoxBody>> {
    let Ok(jsonrpc::Body::Single(Message::Request { id, method })) = jsonrpc::peek(body) else { return None };
    let request = TaskRequest::parse(&id, &method, body)?;
    let stream = stream_finder::find_task(components, context, task).await.ok()??;
    if stream.replica().is_remote() {
        return None;
    }
    if stream.as_legacy_task().is_some() {
        return Some(legacy::cancel_legacy(components, &request.id, &stream).await);
    }
    Some(change(components, context, &request, body, &stream).await)
}

/// Makes a change of a task here. Its acknowledgement means that the next poll sees it, at any
/// replica.
async fn change(
    components: &Components,
    context: &RequestContext,
    TaskRequest { id, method, .. }: &TaskRequest,
    body: &[u8],
    stream: &Stream,
) -> Response<BoxBody> {
    keep_headers(components, context, stream);
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
        refusals::refuse_request(components, ErrorCode::StoreFailed, id)
    }
}

/// Returns a request for a task of the server's own as the server gets it: without the owner
/// before the ID.
pub(super) fn to_server(components: &Components, context: &mut RequestContext, body: Bytes) -> Bytes {
    if !components.config.replica.wrap_sessions {
        return body;
    }
    let owner = components.log.owner();
    let headers = &mut context.parts.headers;
    let name = headers.get(names::MCP_NAME).and_then(|name| name.to_str().ok());
    let own = name.and_then(|name| tasks::unwrapped_id(owner, name));
    if let Some(own) = own.and_then(|own| HeaderValue::from_str(own).ok()) {
        headers.insert(names::MCP_NAME, own);
    }
    tasks::unwrapped(owner, &body).map_or(body, Bytes::from)
}

/// Resumes a held poll at this event ID.
pub(super) async fn resume(
    components: &Components,
    mut context: Box<RequestContext>,
    event: &EventId,
) -> Response<BoxBody> {
    stream_finder::wait_for_resume_rate(components, &mut context).await;
    let (Some(config), Requests::One(id)) = (&components.config.tasks, event.unverified_requests()) else {
        return respond::stream(whole(lost_event(event)).map_err(Into::into));
    };
    let found = match stream_finder::find_task(components, &context, event).await {
        Ok(found) => found,
        Err(unproven) => return unproven.into_response(components),
    };
    match (event.cursor(), found) {
        (Cursor::Seq(seq), Some(_)) if seq >= ANSWER => respond::status(StatusCode::NO_CONTENT),
        (Cursor::End, _) => respond::status(StatusCode::NO_CONTENT),
        (Cursor::Seq(_), stream) => {
            if let Some(stream) = &stream {
                if components.log.restoration().refresh(stream).await.is_err() {
                    return refusals::refuse(components, ErrorCode::StoreFailed);
                }
                continue_call(components, &context, stream).await;
            }
            let response = stream.and_then(|stream| polls(components, config).resume(&id, &stream));
            response.unwrap_or_else(|| respond::stream(whole(lost_event(event)).map_err(Into::into)))
        }
    }
}

/// Continues a call that waits for a poll: here with the next reading, or at the replica that
/// runs it.
async fn continue_call(components: &Components, context: &RequestContext, stream: &Stream) {
    if !stream.replica().is_remote() {
        return keep_headers(components, context, stream);
    }
    let handle = EventId::of_handle(stream.handle().as_str());
    if let Some(handle) = handle.filter(|_| stream.as_task().read().is_some_and(|reading| reading.record.awaits_poll()))
    {
        let poll = tasks::get_request(stream.handle()).into();
        if let Ok(Some(_)) = forward_to_replicas::forward_task(components, context, &handle, &poll).await {
            // The next poll can read it, if this replica cannot yet.
            let _ = components.log.restoration().refresh(stream).await;
        }
    }
}

/// Keeps the headers of a request for the call of the task, if that waits for its client.
fn keep_headers(components: &Components, RequestContext { parts, connection, .. }: &RequestContext, stream: &Stream) {
    stream
        .as_task()
        .keep_call_headers(|| components.upstream.call(parts, connection.forwarded(), Bytes::new()).into_lines());
}

fn polls(components: &Components, config: &Arc<config::Tasks>) -> Polls {
    Polls { config: config.clone(), drain: components.drain.clone(), retry: components.config.delivery.retry }
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
