//! Requests forwarded to another replica: a client's responses and cancels, and the end of its
//! session.
//!
//! A session of an upstream belongs to the replica that opened it, and a call to the replica that
//! began it. The two may differ if servers share their sessions, and an ordinary load balancer may
//! send the client to a third. A cancel or a response goes to the replica that runs the call. The
//! end of a session goes to the replica that opened it, which notifies the others. Such a request
//! is forwarded through the store, and its response is returned as if it came from here. Absent:
//! the handling of a forwarded request (`remote_requests.rs`), and resumes, which any replica
//! serves from the store.

use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};
use tracing::{debug, warn};

use super::components::Components;
use super::context::RequestContext;
use super::misdirected::owner_unreachable_error;
use super::refusals;
use crate::body::{BoxBody, whole};
use crate::clock;
use crate::cluster::Replicas;
use crate::protocol::cluster::{Base64, HttpMessage, Recipient};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::names;
use crate::protocol::ids::{EventId, Owner};
use crate::protocol::jsonrpc::Message;
use crate::protocol::stream_url;
use crate::server::respond;
use crate::store::{self, StoreHealth};

/// Time for another replica to respond. After it, the replica holds the request or is about to end,
/// and the client gets 202.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for another replica to respond if the server there may refuse the credentials: its status
/// is waited for.
const UNPROVEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Unknown owner of a request. It may be this replica: the request goes to the server here, and the
/// client must retry if that server does not know the session.
pub(super) struct OwnerUnknown;

impl OwnerUnknown {
    /// Returns the response for the client, given the `response` of the server here.
    pub(super) fn check(self, components: &Components, response: Response<BoxBody>) -> Response<BoxBody> {
        match response.status() {
            StatusCode::NOT_FOUND => refusals::refuse(components, ErrorCode::StoreFailed),
            _ => response,
        }
    }
}

/// Returns the possible receivers of a forwarded request of `context`. `None` if no replicas
/// share the store, or if another replica has forwarded the request already.
fn replicas_for<'a>(components: &'a Components, context: &RequestContext) -> Option<&'a Replicas> {
    if context.sender.is_replica() { None } else { components.replicas.as_deref() }
}

/// Forwards a request to its owner if that is another replica. Returns the owner's response, or a
/// refusal if the client must retry. `None` if this replica handles the request. With
/// `has_request_id` the message goes first to the replica with the request that it names.
///
/// # Errors
/// If the owner is unknown, and the session may belong to the server behind this replica.
pub(super) async fn forward_to_owner(
    components: &Components,
    context: &RequestContext,
    body: &Bytes,
    has_request_id: bool,
) -> Result<Option<Response<BoxBody>>, OwnerUnknown> {
    let Some(replicas) = replicas_for(components, context) else { return Ok(None) };
    let Some(id) = context.binding.session.as_ref() else { return Ok(None) };
    let is_home = context.has_home_session();
    let recipients = [Recipient::Concerned, Recipient::Any];
    let recipients = &recipients[usize::from(!has_request_id)..if is_home { 1 } else { 2 }];
    let forwarding = async {
        let others = replicas.requests().others(id).await?;
        for to in recipients {
            for other in &others {
                let request = HttpMessage { to: *to, ..message(context, target_of(context), body) };
                match forward_to(components, replicas, *other, context, request).await {
                    Ok(Some(response)) => return Ok(Some(response)),
                    Ok(None) => {}
                    Err(error) if has_request_id => {
                        // The request may have arrived all the same, and must reach one server
                        // only.
                        debug!(%error, "a request may or may not have reached another replica");
                        return Ok(Some(refusals::fail_forward(
                            components,
                            Failure::after_send(ErrorCode::StoreFailed),
                        )));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    };
    forwarding.await.or_else(|error: store::Error| {
        debug!(%error, "a request could not be forwarded to another replica");
        // The server here knows the session, even if another replica runs the call.
        if is_home { Ok(None) } else { owner_unknown(components, context).map(Some) }
    })
}

/// Forwards the end of a server's session to the replica that opened it, else to a replica that
/// runs calls in it. Returns its response, or a refusal if the client must retry. `None` if
/// this replica handles the request.
///
/// # Errors
/// As for [`forward_to_owner`].
pub(super) async fn forward_session_end(
    components: &Components,
    context: &RequestContext,
) -> Result<Option<Response<BoxBody>>, OwnerUnknown> {
    let Some(replicas) = replicas_for(components, context) else { return Ok(None) };
    let Some(id) = context.binding.session.as_ref() else { return Ok(None) };
    let forwarding = async {
        let others = replicas.requests().others(id).await?;
        for to in [Recipient::Home, Recipient::Any] {
            for other in &others {
                let request = HttpMessage { to, ..message(context, target_of(context), &Bytes::new()) };
                let reply = tokio::time::timeout(REPLY_TIMEOUT, replicas.requests().ask(*other, request));
                let timeout = |_| store::Error::Unavailable("a replica does not respond".into());
                if let Some(reply) = reply.await.map_err(timeout)?? {
                    return Ok(Some(response_of(reply)));
                }
            }
        }
        Ok(None)
    };
    forwarding.await.or_else(|error: store::Error| {
        warn!(%error, "another replica could not be notified of the end of a session");
        owner_unknown(components, context).map(Some)
    })
}

/// Notifies all other replicas that run calls in a session of its end.
pub(super) async fn announce_session_end(components: &Components, context: &RequestContext) {
    let (Some(replicas), Some(id)) = (components.replicas.as_ref(), context.binding.session.as_ref()) else { return };
    let others = match replicas.requests().others(id).await {
        Ok(others) => others,
        Err(error) => return warn!(%error, "other replicas could not be notified of the end of a session"),
    };
    for other in others {
        let request = HttpMessage { to: Recipient::SessionOver, ..message(context, target_of(context), &Bytes::new()) };
        match tokio::time::timeout(REPLY_TIMEOUT, replicas.requests().ask(other, request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => warn!(%error, "another replica could not be notified of the end of a session"),
            Err(_) => warn!("another replica did not confirm that it ended the calls of a session"),
        }
    }
}

/// Refuses a request whose owner is unknown: its session was not opened here, or the store is
/// reached and has lost the owner.
///
/// # Errors
/// If the store is away, and the session may belong to the server behind this replica.
fn owner_unknown(components: &Components, context: &RequestContext) -> Result<Response<BoxBody>, OwnerUnknown> {
    let has_lost = components.log.resync().is_store_recovering() || components.log.store_health() == StoreHealth::Ready;
    if context.has_issued_session() || context.has_remote_session() || has_lost {
        return Ok(refusals::refuse(components, ErrorCode::StoreFailed));
    }
    Err(OwnerUnknown)
}

/// Forwards responses on a stream URL to the replica that writes the stream of `id`, with or
/// without a session. Returns that replica's response. `None` if this replica must deliver
/// them, because that one is gone or does not know the stream.
pub(super) async fn forward_to_writer(
    components: &Components,
    context: &RequestContext,
    id: &EventId,
    body: &Bytes,
) -> Option<Response<BoxBody>> {
    let replicas = replicas_for(components, context)?;
    let writer = id.unverified_owner().filter(|owner| *owner != replicas.owner())?;
    let forwarding = async {
        if !replicas.requests().lives(writer).await? {
            return Ok(None);
        }
        let request = message(context, stream_url::with(&context.parts.uri, id.handle_text()), body);
        forward_to(components, replicas, writer, context, request).await
    };
    forwarding.await.unwrap_or_else(|error: store::Error| {
        debug!(%error, "a client response could not be forwarded to the writer of its stream");
        Some(refusals::refuse(components, owner_unreachable_error(context, id, components.log.owner())))
    })
}

/// Forwards a change of a task to the replica that has its call. Returns that replica's
/// response. `None` if that replica is gone, or does not know the task.
///
/// # Errors
/// If it is not known whether that replica has the change.
pub(super) async fn forward_task(
    components: &Components,
    context: &RequestContext,
    task: &EventId,
    body: &Bytes,
) -> Result<Option<Response<BoxBody>>, ErrorCode> {
    let Some(replicas) = replicas_for(components, context) else { return Ok(None) };
    let writer = task.unverified_owner().filter(|owner| *owner != replicas.owner());
    let Some(writer) = writer else { return Ok(None) };
    let forwarding = async {
        if !replicas.requests().lives(writer).await? {
            return Ok(None);
        }
        let request = message(context, stream_url::with(&context.parts.uri, task.handle_text()), body);
        replicas.requests().ask(writer, request).await
    };
    match tokio::time::timeout(REPLY_TIMEOUT, forwarding).await {
        Ok(Ok(reply)) => Ok(reply.map(response_of)),
        Ok(Err(error)) => {
            let error: store::Error = error;
            debug!(%error, "a change of a task could not be forwarded");
            Err(owner_unreachable_error(context, task, components.log.owner()))
        }
        Err(_) => Err(ErrorCode::StoreFailed),
    }
}

/// Forwards the end of an issued session to every other replica concerned. Returns a response
/// of theirs, or a refusal if a replica cannot be reached and the client must retry. `None` if
/// this replica handles the request.
///
/// # Errors
/// As for [`forward_to_owner`].
pub(super) async fn forward_to_all(
    components: &Components,
    context: &RequestContext,
) -> Result<Option<Response<BoxBody>>, OwnerUnknown> {
    let Some(replicas) = replicas_for(components, context) else { return Ok(None) };
    let Some(id) = context.binding.session.as_ref() else { return Ok(None) };
    let mut response = None;
    let mut are_all_notified = true;
    let others = match replicas.requests().others(id).await {
        Ok(others) => others,
        Err(error) => {
            warn!(%error, "other replicas could not be notified of the end of a session");
            return owner_unknown(components, context).map(Some);
        }
    };
    for other in others {
        let request = message(context, target_of(context), &Bytes::new());
        match tokio::time::timeout(REPLY_TIMEOUT, replicas.requests().ask(other, request)).await {
            Ok(Ok(Some(reply))) => response = Some(response_of(reply)),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                warn!(%error, "another replica could not be notified of the end of a session");
                are_all_notified = false;
            }
            Err(_) => {
                warn!("another replica did not confirm that it ended a session");
                are_all_notified = false;
            }
        }
    }
    if are_all_notified { Ok(response) } else { owner_unknown(components, context).map(Some) }
}

/// Forwards a request to another replica. `None` if it does not concern that replica. A slow
/// replica is not waited for, unless the server there may refuse the credentials of `context`:
/// such a refusal must stay a status.
async fn forward_to(
    components: &Components,
    replicas: &Replicas,
    other: Owner,
    context: &RequestContext,
    request: HttpMessage,
) -> Result<Option<Response<BoxBody>>, store::Error> {
    let is_proven = components.upstream.observed().has_accepted(&context.credentials, clock::now());
    let limit = if is_proven { REPLY_TIMEOUT } else { UNPROVEN_TIMEOUT };
    match tokio::time::timeout(limit, replicas.requests().ask(other, request)).await {
        Ok(reply) => Ok(reply?.map(response_of)),
        Err(_) if is_proven => Ok(Some(respond::status(StatusCode::ACCEPTED))),
        Err(_) => Ok(Some(refusals::fail_forward(components, Failure::after_send(ErrorCode::UpstreamTimeout)))),
    }
}

/// True if a response, a cancel or a notification in the session of `context` may concern
/// another replica. `has_request_id`: true if it names a request.
pub(super) fn may_concern_others(components: &Components, context: &RequestContext, has_request_id: bool) -> bool {
    // An issued session has calls at any replica, and nothing else. A session opened here may
    // have calls at any replica, too.
    let is_served_here = context.has_issued_session() || context.has_home_session();
    components.replicas.is_some() && (has_request_id || !is_served_here)
}

/// True if a POST without requests names a request of the client or of the server.
pub(super) fn has_request_id(messages: &[Message], cancels: bool) -> bool {
    cancels || messages.iter().any(|message| matches!(message, Message::Response { .. }))
}

fn target_of(context: &RequestContext) -> String {
    context.parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned()
}

fn message(context: &RequestContext, target: String, body: &Bytes) -> HttpMessage {
    let (parts, connection) = (&context.parts, &context.connection);
    let bytes = |value: &HeaderValue| Base64(value.as_bytes().to_vec());
    let mut headers: Vec<_> =
        parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), bytes(value))).collect();
    if let Some(session) = &context.binding.session
        && !parts.headers.contains_key(names::MCP_SESSION_ID)
    {
        // The ID of an issued session was taken out, since the upstream must not see it.
        headers.push((names::MCP_SESSION_ID.as_str().to_owned(), Base64(session.as_str().as_bytes().to_vec())));
    }
    HttpMessage {
        line: format!("{} {target}", parts.method),
        peer: connection.peer(),
        is_secure: connection.is_secure(),
        certificate: connection.certificate(),
        headers,
        body: Base64(body.to_vec()),
        to: Recipient::Any,
    }
}

/// Returns the response of another replica as if it came from here.
pub(super) fn response_of(reply: HttpMessage) -> Response<BoxBody> {
    let Ok(status) = reply.line.parse::<StatusCode>() else {
        return respond::failure_without_id(Failure::after_send(ErrorCode::StoreFailed));
    };
    let mut response = Response::new(whole(reply.body.0.into()));
    *response.status_mut() = status;
    for (name, value) in reply.headers {
        let header = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value.0));
        if let (Ok(name), Ok(value)) = header {
            response.headers_mut().append(name, value);
        }
    }
    response.headers_mut().remove(http::header::CONTENT_LENGTH);
    response
}
