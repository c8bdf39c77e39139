//! Client responses in a POST on a stream URL.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::value::RawValue;
use tracing::{Instrument, warn};

use super::post_delivery::{self, OnAccepted, Outcome, UpstreamPost, reserve_upload};
use super::session_generation::GenerationRoute;
use crate::body::BoxBody;
use crate::clock;
use crate::dialect::stream_url::{self, SortedResponses};
use crate::event_log::Stream;
use crate::ingress::components::Components;
use crate::ingress::context::{RequestContext, detached};
use crate::ingress::forward_to_replicas;
use crate::ingress::refusals;
use crate::ingress::stream_finder;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::EventId;
use crate::protocol::jsonrpc::{self, Message, PeekError, RequestId};
use crate::server::respond;
use crate::upstream::Template;

/// Responses of a client in a POST on a stream URL.
pub(in crate::ingress) struct ParsedResponses {
    /// Whole body.
    body: Bytes,
    /// Responses in the body, each with the ID of its request.
    responses: Vec<(Bytes, RequestId)>,
}

/// Error for a POST whose responses must come again.
type Refusal = Box<Response<BoxBody>>;

/// Delivers the client's responses for `stream`, whose event ID is `id`: at its writer, or to
/// the server here.
///
/// # Errors
/// If the client must send them again.
pub(in crate::ingress) async fn deliver(
    components: &Arc<Components>,
    context: &mut RequestContext,
    id: &EventId,
    stream: &Arc<Stream>,
    responses: ParsedResponses,
) -> Result<(), Refusal> {
    if stream.replica().is_remote() {
        return deliver_to_writer(components, context, id, stream, responses).await;
    }
    // Each response reserves its own bytes on its way upstream.
    context.reservation = None;
    deliver_here(components, context, stream, responses.responses).await
}

/// Returns the client's responses of a POST, which has nothing else, and no more than a batch
/// may have.
pub(in crate::ingress) fn parse(
    components: &Components,
    context: &RequestContext,
    body: Bytes,
) -> Result<ParsedResponses, ErrorCode> {
    if !context.facts.is_json {
        return Err(ErrorCode::BadRequest);
    }
    let messages = jsonrpc::peek_up_to(&body, components.config.limits.batch).map_err(|error| match error {
        PeekError::TooLong => ErrorCode::BatchTooLong,
        PeekError::NotJson => ErrorCode::NotJson,
        PeekError::NotMessage | PeekError::DuplicateKey(_) | PeekError::BadId => ErrorCode::BadRequest,
    })?;
    let texts = match &messages {
        jsonrpc::Body::Single(_) => vec![body.clone()],
        jsonrpc::Body::Batch(_) => {
            let texts: Vec<&RawValue> = serde_json::from_slice(&body).map_err(|_| ErrorCode::BadRequest)?;
            texts.into_iter().map(|text| body.slice_ref(text.get().as_bytes())).collect()
        }
    };
    let responses = texts.into_iter().zip(messages.messages()).map(|(text, message)| match message {
        Message::Response { id: Some(id), .. } => Ok((text, id.clone())),
        Message::Response { id: None, .. } | Message::Request { .. } | Message::Notification { .. } => {
            Err(ErrorCode::BadRequest)
        }
    });
    let responses = responses.collect::<Result<_, _>>()?;
    Ok(ParsedResponses { body, responses })
}

/// Delivers the responses to the writer of the stream, whose server has the request. If that
/// replica is gone they are delivered here.
async fn deliver_to_writer(
    components: &Arc<Components>,
    context: &RequestContext,
    id: &EventId,
    stream: &Arc<Stream>,
    responses: ParsedResponses,
) -> Result<(), Refusal> {
    match Box::pin(forward_to_replicas::forward_to_writer(components, context, id, &responses.body)).await {
        Some(response) if response.status().is_success() => {
            // The writer says so as well, but later: the server has just got the response.
            for (_, id) in &responses.responses {
                let _ = stream.change(|machine, now| machine.handle_client_response(id, now));
            }
            Ok(())
        }
        Some(refusal) => Err(Box::new(refusal)),
        None => deliver_here(components, context, stream, responses.responses).await,
    }
}

/// Delivers the responses to the upstream one by one, since only the oldest revision has
/// arrays.
///
/// # Errors
/// If the client must send them again: none from the refused one on was delivered.
async fn deliver_here(
    components: &Arc<Components>,
    context: &RequestContext,
    stream: &Arc<Stream>,
    responses: Vec<(Bytes, RequestId)>,
) -> Result<(), Refusal> {
    let is_proven = components.upstream.observed().has_accepted(&context.credentials, clock::now());
    let route = choose_route(components, context, stream, &responses);
    let responses = match &route {
        Some(route) => without_dropped(route, stream, responses, is_proven),
        None => responses,
    };
    let SortedResponses { to_forward, repeated } = if is_proven {
        stream_url::note_responses(stream, responses)
    } else {
        stream_url::preview_responses(stream, responses)
    };
    if repeated > 0 {
        components.metrics.observe_repeated_response();
    }
    let posts = to_forward.into_iter().filter_map(|(message, id)| {
        Some(UpstreamPost {
            credentials: context.credentials,
            on_accepted: if is_proven { None } else { Some(settle_on_acceptance(stream.clone(), id.clone())) },
            reservation: reserve_upload(context, message.len()),
            slot: None,
            template: template(components, context, route.as_ref(), message)?,
            session_id: context.binding.session.clone(),
            session: context.session.clone(),
            previous: Vec::new(),
            settled: match id {
                Some(id) if is_proven => vec![(stream.clone(), id)],
                Some(_) | None => Vec::new(),
            },
            cancelled: Vec::new(),
            may_be_sent_again: should_reach_client,
        })
    });
    let posts: Vec<_> = posts.collect();
    if posts.is_empty() {
        return Ok(());
    }
    if let Some(code) = context.remote_session_error() {
        for post in &posts {
            post.reopen_requests();
        }
        return Err(Box::new(refusals::refuse(components, code)));
    }
    // A task of its own: a client that disconnects now has still responded.
    match tokio::spawn(deliver_all(components.clone(), stream.clone(), posts).in_current_span()).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Box::new(refusals::fail_forward(components, Failure::after_send(ErrorCode::UpstreamBroke)))),
    }
}

/// Returns the way of the responses in a revived session, or `None` in any other.
fn choose_route(
    components: &Components,
    context: &RequestContext,
    stream: &Arc<Stream>,
    responses: &[(Bytes, RequestId)],
) -> Option<GenerationRoute> {
    let ids = responses.iter().map(|(_, id)| id).enumerate();
    let session = context.binding.session.as_ref()?;
    GenerationRoute::choose(&components.log, session, ids, || vec![stream.clone()], Vec::new)
}

/// Returns the request with one response, or `None` if the server has lost the session that it
/// concerns.
fn template(
    components: &Components,
    context: &RequestContext,
    route: Option<&GenerationRoute>,
    message: Bytes,
) -> Option<Template> {
    let call = |message| {
        let call = components.upstream.call(&context.parts, context.connection.forwarded(), detached(message));
        call.for_caller(context.caller.clone())
    };
    match (route, &context.binding.session) {
        (Some(route), Some(id)) => {
            route.name(call(route.restore_ids(message)), &components.upstream, &components.log, id)
        }
        (None, _) | (_, None) => Some(call(message)),
    }
}

/// Delivers responses that another replica forwards to the writer of their stream. `None` if
/// this replica is not the writer.
pub(in crate::ingress) async fn handle_forwarded(
    components: &Arc<Components>,
    context: &RequestContext,
    id: &EventId,
    body: &Bytes,
) -> Option<Response<BoxBody>> {
    let responses = parse(components, context, body.clone()).ok()?;
    let (stream, _) = stream_finder::find_stream(components, context, id).await.ok()??;
    if stream.replica().is_remote() {
        return None;
    }
    Some(match deliver_here(components, context, &stream, responses.responses).await {
        Ok(()) => respond::status(StatusCode::ACCEPTED),
        Err(refusal) => *refusal,
    })
}

async fn deliver_all(
    components: Arc<Components>,
    stream: Arc<Stream>,
    posts: Vec<UpstreamPost>,
) -> Result<(), Refusal> {
    let mut left = posts.into_iter();
    while let Some(post) = left.next() {
        if let Err(refusal) = deliver_one(&components, &stream, post).await {
            for post in left {
                post.reopen_requests();
            }
            return Err(refusal);
        }
    }
    Ok(())
}

async fn deliver_one(components: &Arc<Components>, stream: &Stream, mut post: UpstreamPost) -> Result<(), Refusal> {
    match post_delivery::take_slot(components, post.session.as_ref(), &post.reservation).await {
        Ok(slot) => post.slot = slot,
        Err(code) => {
            post.reopen_requests();
            return Err(Box::new(refusals::refuse(components, code)));
        }
    }
    let queued = post.session.as_ref().and_then(|session| session.queue_turn());
    match post_delivery::start(components, post, queued).await {
        Ok(Outcome::Response(response)) if should_reach_client(response.status()) => Err(Box::new(response)),
        Ok(Outcome::Response(response)) if !response.status().is_success() => {
            warn!(status = response.status().as_u16(), "the upstream refused a client response on a stream URL");
            Ok(())
        }
        Ok(Outcome::Failed(failure))
            if failure.may_have_run || stream.with_machine(|machine| machine.lifecycle().is_sealed()) =>
        {
            warn!(error = failure.code.label(), "a client response on a stream URL may not have arrived");
            Ok(())
        }
        Ok(Outcome::Failed(failure)) => Err(Box::new(refusals::fail_forward(components, failure))),
        Ok(Outcome::Response(_) | Outcome::Held | Outcome::Dropped) | Err(_) => Ok(()),
    }
}

/// Returns the responses without responses to requests of ended generations. These count as
/// delivered.
fn without_dropped(
    route: &GenerationRoute,
    stream: &Stream,
    responses: Vec<(Bytes, RequestId)>,
    is_proven: bool,
) -> Vec<(Bytes, RequestId)> {
    let mut kept = Vec::with_capacity(responses.len());
    for (index, response) in responses.into_iter().enumerate() {
        if !route.dropped().contains(&index) {
            kept.push(response);
        } else if is_proven {
            let _ = stream.change(|machine, now| machine.handle_client_response(&response.1, now));
        }
    }
    kept
}

/// Returns the change that a POST makes once the upstream has accepted it: the request `id` of
/// `stream` has its response.
fn settle_on_acceptance(stream: Arc<Stream>, id: Option<RequestId>) -> OnAccepted {
    Box::new(move |_| {
        if let Some(id) = &id {
            // The upstream has accepted the POST, even if it repeats an earlier one.
            let _ = stream.change(|machine, now| machine.handle_client_response(id, now));
        }
    })
}

/// True for a status that only the client can act on: its credentials or its session are refused.
fn should_reach_client(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
}
