//! POSTs without requests: the client's responses and notifications.
//!
//! A POST is forwarded at once, and gets the upstream's status. It is held, and gets 202, only
//! while the upstream refuses connections or has not responded in time. A POST is tried again, in
//! order, if no byte of it was sent, and never otherwise. Later POSTs of the session wait behind
//! it. Before it is sent, it takes a slot of its session, and a reservation of memory if it needs
//! one. It keeps both until the upstream has responded or its deadline has passed.
//!
//! This holds for credentials that the upstream has accepted lately. With other credentials nothing
//! changes here before the upstream has responded with 2xx. Its refusal must reach the client as a
//! status. It must not end a call or settle a server's request.

mod post_delivery;
mod session_generation;
pub(super) mod url_responses;

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::value::RawValue;

use self::post_delivery::{OnAccepted, Outcome, UpstreamPost, reserve_upload, running_calls};
use self::session_generation::{GenerationRoute, requesting_streams};
use super::components::Components;
use super::context::{RequestContext, detached};
use super::forward;
use super::forward_to_replicas::{self, OwnerUnknown};
use super::refusals;
use super::reliance;
use super::session_state;
use super::token_refresh::{self, Unproven};
use crate::body::BoxBody;
use crate::clock;
use crate::event_log::{EventLog, Session, Sessions, Stream, stream_owing};
use crate::protocol::dialect::resume_tokens;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::stream::ClientResponse;
use crate::server::respond;
use crate::simulation::{self, Bug};

/// Messages of a POST, and the session that it names.
struct SessionPost<'a> {
    id: &'a SessionId,
    session: &'a Arc<Session>,
    messages: &'a [Message],
    /// Requests that the POST cancels.
    cancelled: &'a [RequestId],
}

/// Messages of a POST that go to the server.
struct TakenMessages {
    /// Body as the server gets it.
    body: Bytes,
    /// Server requests with their first response.
    settled: Vec<(Arc<Stream>, RequestId)>,
    /// Way in a revived session, or `None` in any other.
    route: Option<GenerationRoute>,
}

/// Handles a POST: forwards it to the replica that it concerns, or applies its messages here
/// and delivers it to the server.
pub(super) async fn handle(
    components: &Arc<Components>,
    mut context: Box<RequestContext>,
    messages: Vec<Message>,
    body: Bytes,
) -> Response<BoxBody> {
    let (Some(session), Some(id)) = (context.session.clone(), &context.binding.session) else {
        if reliance::cancel(components, &context, &messages) {
            return respond::status(StatusCode::ACCEPTED);
        }
        return forward::forward_post(components, context, body).await;
    };
    session_state::apply_notifications(components, &context, &messages);
    let cancelled = jsonrpc::cancelled_request_ids(&messages, &body);
    if messages.len() == 1 && cancelled.iter().any(|id| is_of_task(&session, id)) {
        // A client gives up a request that has its response, or a reader: only `tasks/cancel`
        // ends a task.
        return respond::status(StatusCode::ACCEPTED);
    }
    let post = SessionPost { id, session: &session, messages: &messages, cancelled: &cancelled };
    let owner_unknown = match forward_to_owner(components, &context, &post, &body).await {
        Ok(Some(response)) => return response,
        Ok(None) => None,
        Err(owner_unknown) => Some(owner_unknown),
    };
    if let Some(code) = context.remote_session_error() {
        return refusals::refuse(components, code);
    }
    let previous = match find_previous_sessions(components, &context, &post).await {
        Ok(previous) => previous,
        Err(unproven) => return unproven.into_response(components),
    };
    let records = || std::iter::once(&session).chain(&previous);
    let body = with_upstream_ids(body, &cancelled, records());
    context.reservation = None;
    let reservation = reserve_upload(&context, body.len());
    let slot = match post_delivery::take_slot(components, Some(&session), &reservation).await {
        Ok(slot) => slot,
        Err(code) => return refusals::refuse(components, code),
    };
    let queued = session.queue_turn();
    let is_proven = components.upstream.observed().has_accepted(&context.credentials, clock::now());
    let Some(taken) = take_messages(components, &post, &previous, body, is_proven) else {
        return respond::status(StatusCode::ACCEPTED);
    };
    let TakenMessages { body, settled, route } = taken;
    let template = components.upstream.call(&context.parts, context.connection.forwarded(), detached(body));
    let template = template.for_caller(context.caller.clone());
    let template = match &route {
        Some(route) => route.name(template, &components.upstream, &components.log, id),
        None => Some(template),
    };
    // The server has lost the session that the POST concerns.
    let Some(template) = template else { return respond::status(StatusCode::ACCEPTED) };
    let on_accepted =
        if is_proven { None } else { Some(settle_on_acceptance(id, records().cloned().collect(), messages)) };
    let post = UpstreamPost {
        template,
        session_id: Some(id.clone()),
        session: Some(session),
        previous,
        settled,
        cancelled,
        reservation,
        slot,
        credentials: context.credentials,
        on_accepted,
        may_be_sent_again: |status| !status.is_success(),
    };
    match post_delivery::start(components, post, queued).await {
        Ok(Outcome::Held | Outcome::Dropped) => respond::status(StatusCode::ACCEPTED),
        Ok(Outcome::Response(response)) => match owner_unknown {
            Some(owner_unknown) => owner_unknown.check(components, response),
            None => response,
        },
        Ok(Outcome::Failed(failure)) => refusals::fail_forward(components, failure),
        Err(_) => refusals::fail_forward(components, Failure::after_send(ErrorCode::UpstreamBroke)),
    }
}

/// Applies the responses of a POST to the server's requests, at once if the caller is proven.
/// Returns `None` if nothing is left to be sent.
fn take_messages(
    components: &Components,
    post: &SessionPost<'_>,
    previous: &[Arc<Session>],
    body: Bytes,
    is_proven: bool,
) -> Option<TakenMessages> {
    let messages = post.messages;
    let records = || std::iter::once(post.session).chain(previous);
    let requesting = || requesting_streams(&components.log, post.id, records());
    let cancelled = || {
        let running = running_calls(records());
        let owing = |id| running.iter().find_map(|running| stream_owing(running, id));
        post.cancelled.iter().filter_map(owing).map(|(stream, _)| stream).collect()
    };
    let responses = messages.iter().enumerate().filter_map(|(index, message)| match message {
        Message::Response { id, .. } => Some((index, id.as_ref()?)),
        Message::Request { .. } | Message::Notification { .. } => None,
    });
    let route = GenerationRoute::choose(&components.log, post.id, responses, requesting, cancelled);
    let (settled, mut unwanted) = if is_proven {
        settle_requests(&components.log, post.id, records(), messages)
    } else {
        (Vec::new(), repeated_responses(&components.log, post.id, records(), messages))
    };
    if !unwanted.is_empty() {
        components.metrics.observe_repeated_response();
    }
    let body = match &route {
        Some(route) => {
            unwanted.extend(route.dropped());
            unwanted.sort_unstable();
            unwanted.dedup();
            route.restore_ids(body)
        }
        None => body,
    };
    Some(TakenMessages { body: without(body, messages.len(), &unwanted)?, settled, route })
}

/// Forwards the POST if it concerns another replica, and no stream of the caller here; see
/// [`forward_to_replicas::forward_to_owner`].
async fn forward_to_owner(
    components: &Components,
    context: &RequestContext,
    post: &SessionPost<'_>,
    body: &Bytes,
) -> Result<Option<Response<BoxBody>>, OwnerUnknown> {
    let has_request_id = forward_to_replicas::has_request_id(post.messages, !post.cancelled.is_empty());
    if !forward_to_replicas::may_concern_others(components, context, has_request_id) {
        return Ok(None);
    }
    if !context.has_remote_session() && is_concerned(components, post, post.id, post.session) {
        return Ok(None);
    }
    Box::pin(forward_to_replicas::forward_to_owner(components, context, body, has_request_id)).await
}

/// Returns the records of the session under older tokens, if any of them is concerned. Streams
/// of the caller's current token need no older token.
async fn find_previous_sessions(
    components: &Components,
    context: &RequestContext,
    post: &SessionPost<'_>,
) -> Result<Vec<Arc<Session>>, Unproven> {
    if context.binding.subject.is_none() || is_concerned(components, post, post.id, post.session) {
        return Ok(Vec::new());
    }
    let is_concerned = |id: &SessionId, session: &Session| is_concerned(components, post, id, session);
    Box::pin(token_refresh::previous_sessions(components, context, is_concerned)).await
}

/// True if the POST responds to or cancels a request on a stream of `session`.
fn is_concerned(components: &Components, post: &SessionPost<'_>, id: &SessionId, session: &Session) -> bool {
    let streams = components.log.retention().concerned_streams(id, session, post.messages);
    token_refresh::is_concerned(&streams, post.messages, post.cancelled)
}

/// Returns true for the ID of a call that is a task, or of a request that reads a task.
fn is_of_task(session: &Session, id: &RequestId) -> bool {
    session.running().iter().any(|stream| stream.as_legacy_task().is_some() && stream.upstream_id(id).is_some())
}

/// Applies the responses to server requests. Returns the first responses, and the indexes of
/// repeated ones. Searches the streams once, however many messages there are.
fn settle_requests<'a>(
    log: &EventLog,
    session_id: &SessionId,
    records: impl Iterator<Item = &'a Arc<Session>>,
    messages: &[Message],
) -> (Vec<(Arc<Stream>, RequestId)>, Vec<usize>) {
    let mut settled = Vec::new();
    let mut repeated = Vec::new();
    if !messages.iter().any(|message| matches!(message, Message::Response { id: Some(_), .. })) {
        return (settled, repeated);
    }
    let open_streams: Vec<_> =
        records.map(|session| log.retention().asking_streams(session_id, session, messages)).collect();
    for (index, message) in messages.iter().enumerate() {
        let Message::Response { id: Some(id), .. } = message else { continue };
        let outcomes = open_streams.iter().map(|streams| Sessions::match_client_response(streams, id));
        match { outcomes }.find(|(outcome, _)| *outcome != ClientResponse::Unknown) {
            Some((ClientResponse::First, Some(stream))) => settled.push((stream, id.clone())),
            Some((ClientResponse::Duplicate, _)) if !simulation::has(Bug::ForwardsEveryAnswer) => repeated.push(index),
            Some((
                ClientResponse::First | ClientResponse::Duplicate | ClientResponse::Late | ClientResponse::Unknown,
                _,
            ))
            | None => {}
        }
    }
    (settled, repeated)
}

/// Returns the indexes of repeated responses to server requests. Changes nothing.
fn repeated_responses<'a>(
    log: &EventLog,
    session_id: &SessionId,
    records: impl Iterator<Item = &'a Arc<Session>>,
    messages: &[Message],
) -> Vec<usize> {
    if !messages.iter().any(|message| matches!(message, Message::Response { id: Some(_), .. })) {
        return Vec::new();
    }
    let open_streams: Vec<_> =
        records.map(|session| log.retention().asking_streams(session_id, session, messages)).collect();
    let is_repeated = |message: &Message| {
        let Message::Response { id: Some(id), .. } = message else { return false };
        let waits = |stream: &Arc<Stream>| {
            stream.with_machine(|machine| machine.server_requests().outstanding_since(id).is_some())
        };
        let has_answered =
            |stream: &Arc<Stream>| stream.with_machine(|machine| machine.server_requests().has_answered(id));
        let mut requesting = open_streams.iter().flat_map(|streams| streams.iter());
        requesting.clone().any(has_answered) && !requesting.any(waits)
    };
    (0..messages.len()).filter(|index| is_repeated(&messages[*index])).collect()
}

/// Returns the changes that a POST makes once the upstream has accepted it.
fn settle_on_acceptance(id: &SessionId, records: Vec<Arc<Session>>, messages: Vec<Message>) -> OnAccepted {
    let id = id.clone();
    Box::new(move |log| {
        // The upstream has judged the POST as it was: nothing is left out any more.
        let _ = settle_requests(log, &id, records.iter(), &messages);
    })
}

/// Returns the body with the cancels of later slices under the IDs that the upstream knows. The
/// streams are searched again when they are cancelled, since some may have ended by then.
fn with_upstream_ids<'a>(
    body: Bytes,
    cancelled: &[RequestId],
    records: impl Iterator<Item = &'a Arc<Session>>,
) -> Bytes {
    if cancelled.is_empty() {
        return body;
    }
    let running = running_calls(records);
    let named = |id| running.iter().find_map(|running| stream_owing(running, id)).map(|(_, named)| named);
    let renamed = cancelled.iter().filter_map(|id| Some((id, named(id).filter(|named| named != id)?))).collect();
    resume_tokens::rename_cancelled(&body, &renamed).map_or(body, Bytes::from)
}

/// Returns the body without the messages at the indexes `unwanted`, which are in order, or `None`
/// if none is left.
fn without(body: Bytes, messages: usize, unwanted: &[usize]) -> Option<Bytes> {
    if unwanted.is_empty() {
        return Some(body);
    }
    if unwanted.len() == messages {
        return None;
    }
    let Ok(batch) = serde_json::from_slice::<Vec<&RawValue>>(&body) else { return Some(body) };
    let mut unwanted = unwanted.iter().peekable();
    let kept = batch.iter().enumerate().filter(|(index, _)| unwanted.next_if_eq(&index).is_none());
    let kept: Vec<&str> = kept.map(|(_, message)| message.get()).collect();
    Some(format!("[{}]", kept.join(",")).into())
}
