//! Requests that another replica forwards: client responses, cancels, changes of tasks, and the end
//! of a session.
//!
//! The reply is the response that a client would get. Absent: forwarding itself
//! (`forward_to_replicas.rs`).

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;

use super::callers::Callers;
use super::client_responses::{ClientResponses, PostDelivery, UrlResponses};
use super::components::Components;
use super::connection::Connection;
use super::context::{RequestContext, Sender, head_bytes};
use super::forward::Forwarder;
use super::forward_to_replicas::OwnerForwarder;
use super::misdirected::{self, OwnerCheck};
use super::refusals::Refusals;
use super::session_end::SessionEnds;
use super::stream_finder::StreamFinder;
use super::tasks::Tasks;
use super::token_refresh::{TokenRefresh, is_concerned};
use crate::body::BoxBody;
use crate::config::Config;
use crate::event_log::EventLog;
use crate::protocol::cluster::{HttpMessage, Recipient};
use crate::protocol::ids::EventId;
use crate::protocol::jsonrpc;
use crate::protocol::stream_url::{self, Named};
use crate::protocol::tasks::task_id_of;
use crate::server::{Peer, respond};

/// Largest body of a forwarded response; a larger one is cut. Responses to client responses are
/// empty as a rule.
const MAX_RESPONSE: usize = 1024 * 1024;

/// Handles the requests that other replicas forward.
pub struct RemoteRequests {
    config: Arc<Config>,
    log: Arc<EventLog>,
    callers: Callers,
    client_responses: Arc<ClientResponses>,
    url_responses: Arc<UrlResponses>,
    session_ends: Arc<SessionEnds>,
    tasks: Tasks,
}

impl RemoteRequests {
    /// Makes the handlers of forwarded requests, each with its part of `components`.
    pub fn new(components: &Components) -> Self {
        let refusals = Refusals::new(components);
        let forwarder = Arc::new(Forwarder::new(components, refusals.clone()));
        let owners = Arc::new(OwnerForwarder::new(components, refusals.clone()));
        let tokens = Arc::new(TokenRefresh::new(components, forwarder.clone()));
        let finder = Arc::new(StreamFinder::new(components, tokens.clone()));
        let delivery = Arc::new(PostDelivery::new(components, forwarder.clone()));
        let tasks = Tasks::new(components, refusals.clone(), finder.clone(), owners.clone());
        let url_responses = UrlResponses::new(components, refusals.clone(), finder, owners.clone(), delivery.clone());
        let session_ends =
            SessionEnds::new(components, refusals.clone(), forwarder.clone(), owners.clone(), tokens.clone());
        let client_responses = ClientResponses::new(components, refusals, forwarder, owners, tokens, delivery);
        let Components { config, log, .. } = components;
        Self {
            config: config.clone(),
            log: log.clone(),
            callers: Callers::new(components, OwnerCheck::new(components)),
            client_responses: Arc::new(client_responses),
            url_responses: Arc::new(url_responses),
            session_ends: Arc::new(session_ends),
            tasks,
        }
    }

    /// Handles a request that another replica forwards. `None` if it does not concern this replica.
    pub async fn handle(self: Arc<Self>, message: HttpMessage) -> Option<HttpMessage> {
        let to = message.to;
        let (mut context, stream, body) = self.context_of(message)?;
        if let Some(task) = stream.as_ref().filter(|_| task_id_of(&body).is_some()) {
            return Some(forwarded_response(self.tasks.handle_forwarded(&context, task, &body).await?).await);
        }
        if let Some(stream) = stream {
            // Each response reserves its own bytes on its way upstream.
            context.reservation = None;
            return Some(
                forwarded_response(self.url_responses.handle_forwarded(&context, &stream, &body).await?).await,
            );
        }
        let id = context.binding.session.clone()?;
        if !self.callers.knows_session(&context) {
            self.callers.restore_session(&mut context).await.ok()?;
        }
        let session = context.session.clone()?;
        let is_home = context.has_home_session();
        let response = if context.parts.method == Method::DELETE {
            if to == Recipient::SessionOver {
                self.session_ends.end_session(&context.binding).await;
                return Some(forwarded_response(respond::status(StatusCode::OK)).await);
            }
            let has_streams = !self.log.sessions().streams(&id, &session).is_empty() || session.has_finished();
            if !is_home && (!has_streams || to == Recipient::Home) {
                return None;
            }
            self.session_ends.delete(context, body).await
        } else {
            let messages = jsonrpc::peek_up_to(&body, self.config.limits.batch).ok()?.messages().to_vec();
            let cancelled = jsonrpc::cancelled_request_ids(&messages, &body);
            let may_be_any = is_home && to != Recipient::Concerned;
            let is_concerned = || {
                let streams = self.log.concerned_streams(&id, &session, &messages);
                is_concerned(&streams, &messages, &cancelled)
            };
            if !may_be_any && !is_concerned() {
                return None;
            }
            self.client_responses.handle(context, messages, body).await
        };
        Some(forwarded_response(response).await)
    }

    /// Returns the context of a forwarded request, and the stream that its target names.
    fn context_of(&self, message: HttpMessage) -> Option<(Box<RequestContext>, Option<EventId>, Bytes)> {
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
        let trust = self.config.listen.trusted_proxies.clone();
        let scheme = if message.is_secure { "https" } else { "http" };
        let peer = Peer { address: (message.peer, 0).into(), scheme, certificate: message.certificate };
        let connection = Arc::new(Connection::new(peer, trust));
        let head_bytes = head_bytes(&parts);
        let sender = misdirected::sender_of(&parts.headers);
        let mut context = self.callers.identify(parts, head_bytes, connection, sender);
        context.sender = Sender::Replica { is_marked: sender.is_routed() };
        context.body_bytes = message.body.0.len();
        context.reserve();
        Some((context, stream, message.body.0.into()))
    }
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
