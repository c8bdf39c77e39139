//! Requests that another replica forwards: client responses, cancels, changes of tasks, and the end
//! of a session.
//!
//! The reply is the response that a client would get. Absent: forwarding itself
//! (`forward_to_replicas.rs`).

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;

use super::callers;
use super::client_responses::{self, url_responses};
use super::components::Components;
use super::connection::Connection;
use super::context::{RequestContext, Sender, head_bytes};
use super::misdirected;
use super::session_end;
use super::tasks;
use super::token_refresh::is_concerned;
use crate::body::BoxBody;
use crate::protocol::cluster::{HttpMessage, Recipient};
use crate::protocol::headers::RequestFacts;
use crate::protocol::ids::EventId;
use crate::protocol::jsonrpc;
use crate::protocol::stream_url::{self, Named};
use crate::protocol::tasks::task_id_of;
use crate::server::{Peer, respond};

/// Largest body of a forwarded response; a larger one is cut. Responses to client responses are
/// empty as a rule.
const MAX_RESPONSE: usize = 1024 * 1024;

/// Handles a request that another replica forwards. `None` if it does not concern this replica.
pub async fn handle_forwarded(components: Arc<Components>, message: HttpMessage) -> Option<HttpMessage> {
    let to = message.to;
    let (mut context, stream, body) = context_of(&components, message)?;
    if let Some(task) = stream.as_ref().filter(|_| task_id_of(&body).is_some()) {
        let response = tasks::handle_forwarded(&components, &context, task, &body).await?;
        return Some(forwarded_response(response).await);
    }
    if let Some(stream) = stream {
        // Each response reserves its own bytes on its way upstream.
        context.reservation = None;
        let response = url_responses::handle_forwarded(&components, &context, &stream, &body).await?;
        return Some(forwarded_response(response).await);
    }
    let id = context.binding.session.clone()?;
    if !callers::knows_session(&components, &context) {
        callers::restore_session(&components, &mut context).await.ok()?;
    }
    let session = context.session.clone()?;
    let is_home = context.has_home_session();
    let response = if context.parts.method == Method::DELETE {
        if to == Recipient::SessionOver {
            session_end::end_session(&components, &context.binding).await;
            return Some(forwarded_response(respond::status(StatusCode::OK)).await);
        }
        let has_streams = !components.log.sessions().streams(&id, &session).is_empty() || session.has_finished();
        if !is_home && (!has_streams || to == Recipient::Home) {
            return None;
        }
        session_end::delete(&components, context, body).await
    } else {
        let messages = jsonrpc::peek_up_to(&body, components.config.limits.batch).ok()?.messages().to_vec();
        let cancelled = jsonrpc::cancelled_request_ids(&messages, &body);
        let may_be_any = is_home && to != Recipient::Concerned;
        let is_concerned = || {
            let streams = components.log.retention().concerned_streams(&id, &session, &messages);
            is_concerned(&streams, &messages, &cancelled)
        };
        if !may_be_any && !is_concerned() {
            return None;
        }
        client_responses::handle(&components, context, messages, body).await
    };
    Some(forwarded_response(response).await)
}

/// Returns the context of a forwarded request, and the stream that its target names.
fn context_of(components: &Components, message: HttpMessage) -> Option<(Box<RequestContext>, Option<EventId>, Bytes)> {
    let (method, target) = message.line.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in &message.headers {
        request = request.header(name.as_str(), value.0.as_slice());
    }
    let (mut parts, ()) = request.body(()).ok()?.into_parts();
    let stream = match stream_url::take(&mut parts.uri) {
        Some(Named::Stream(id)) => Some(id),
        Some(Named::Malformed) => return None,
        None => None,
    };
    let trust = components.config.listen.trusted_proxies.clone();
    let scheme = if message.is_secure { "https" } else { "http" };
    let peer = Peer { address: (message.peer, 0).into(), scheme, certificate: message.certificate };
    let connection = Arc::new(Connection::new(peer, trust, components.public_name.clone()));
    let facts = RequestFacts::of(&parts.headers);
    let head_bytes = head_bytes(&facts, &parts.uri);
    let sender = misdirected::sender_of(&parts.headers);
    let variables = callers::variables(components, &parts).ok()?;
    let mut context = callers::identify(components, parts, facts, head_bytes, connection, sender, variables);
    context.sender = Sender::Replica { is_marked: sender.is_routed() };
    context.body_bytes = message.body.0.len();
    context.reserve();
    Some((context, stream, message.body.0.into()))
}

async fn forwarded_response(response: Response<BoxBody>) -> HttpMessage {
    let (parts, mut body) = response.into_parts();
    let mut whole = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let data = frame.into_data().unwrap_or_default();
        if whole.len() + data.len() > MAX_RESPONSE {
            break;
        }
        whole.extend_from_slice(&data);
    }
    HttpMessage::of_response(parts.status, &parts.headers, whole)
}
