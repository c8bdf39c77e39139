//! Requests of clients of the revisions with sessions at a server that speaks 2026-07-28 alone.
//!
//! Above this module the server appears to have sessions. Each request is translated to the later
//! revision with the client's facts from `initialize`. Input that the server requires becomes
//! server requests on the call's stream. The call is sent again with the client responses.
//!
//! Owned here: the sessions, and the calls between their rounds. Absent: the bytes of the messages
//! (`protocol/bridge/legacy_clients/`), and the records of sessions that are opened again after a
//! restart.

mod batch;
mod call;
mod clients;
mod listen;
mod opening;
mod request;
mod session;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Response, StatusCode};

pub(super) use self::clients::LegacyClients;
use self::request::ClientRequest;
use self::session::{ClientResponse, Session};
use super::responses::{empty, error, event_stream, json_response, unknown_session};
use crate::channel::{self, Caller};
use crate::clock;
use crate::protocol::bridge::LogLevel;
use crate::protocol::bridge::legacy_clients as bridge;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::{self, Message, RequestId, code, response};
use crate::upstream::server::Server;
use crate::upstream::server::exchange::Exchanged;
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::Messages;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::sent::Sent;
use crate::upstream::token_probe::{confirms_token, outside_sessions};

/// Maximum wait for a new client to open the session's standalone stream.
const STREAM_WAIT: Duration = Duration::from_secs(10);

impl LegacyClients {
    /// Returns true if the request names a session of the bridge.
    pub(super) fn names_session(template: &Template) -> bool {
        template.session_name().is_some_and(bridge::is_session_name)
    }

    /// Handles a request in a session of the bridge.
    pub(super) async fn send(self: &Arc<Self>, server: &Server, template: &Template, sent: Option<&Sent>) -> Exchanged {
        if self.is_of_other_variables(template) {
            return Ok(other_variables(template));
        }
        let Some(session) = self.session_of(server, template).await else { return Ok(unknown_session()) };
        match *template.method() {
            Method::GET => return Ok(self.stream(&session, template)),
            Method::DELETE => {
                self.sessions.end(&session);
                return Ok(empty(StatusCode::OK));
            }
            _ => {}
        }
        let response = match jsonrpc::peek(template.body()) {
            Ok(jsonrpc::Body::Single(message)) => self.message(server, &session, template, message, sent).await?,
            Ok(jsonrpc::Body::Batch(messages)) => self.batch(&session, template, messages, sent),
            Err(_) => error(StatusCode::BAD_REQUEST, None, code::INVALID_REQUEST, "Invalid request"),
        };
        Ok(response)
    }

    /// Returns true if a request names a session whose processes have other variables.
    fn is_of_other_variables(&self, template: &Template) -> bool {
        let session = template.session_name().and_then(|name| self.sessions.find(name));
        session.is_some_and(|session| !Caller::have_same_variables(session.caller(), template.caller()))
    }

    /// Returns the session that a request names, if it belongs to its caller. A refreshed token is
    /// accepted if the server confirms it.
    async fn session_of(&self, server: &Server, template: &Template) -> Option<Arc<Session>> {
        let name = template.session_name()?;
        let (session, caller) = (self.sessions.find(name)?, template.caller());
        if !session.is_of(caller) {
            let later = caller.filter(|caller| session.may_be_of(caller))?;
            let used_in = std::str::from_utf8(name).ok().and_then(SessionId::parse);
            let (tokens, probe) = (self.observed.tokens(), outside_sessions(template.clone()));
            if !confirms_token(server, tokens, later, used_in, probe).await {
                return None;
            }
            session.add_caller(later);
        }
        session.usage.record_request(template);
        Some(session)
    }

    async fn message(
        self: &Arc<Self>,
        server: &Server,
        session: &Arc<Session>,
        template: &Template,
        message: Message,
        sent: Option<&Sent>,
    ) -> Exchanged {
        let (id, method) = match message {
            Message::Request { id, method } => (id, method.to_string()),
            Message::Notification { method } => {
                // The server has no sessions, so no notification is forwarded.
                match &*method {
                    "notifications/initialized" => self.expect_stream(session, template),
                    "notifications/cancelled" => session.cancel(jsonrpc::cancelled_request_id(template.body())),
                    _ => {}
                }
                return Ok(empty(StatusCode::ACCEPTED));
            }
            Message::Response { id, .. } => {
                if let Some(id) = id {
                    session.accept_response(&id, client_response_in(template));
                }
                return Ok(empty(StatusCode::ACCEPTED));
            }
        };
        let response = match method.as_str() {
            "ping" => result(&id),
            "logging/setLevel" => set_level(session, &id, template.body()),
            "resources/subscribe" => self.subscribe_to(session, &id, template, true).await,
            "resources/unsubscribe" => self.subscribe_to(session, &id, template, false).await,
            "initialize" => {
                error(StatusCode::BAD_REQUEST, Some(&id), code::INVALID_REQUEST, "the session is initialized")
            }
            method if method.starts_with("tasks/") => {
                error(StatusCode::OK, Some(&id), code::METHOD_NOT_FOUND, "Method not found")
            }
            _ => {
                session.wait_for_subscription().await;
                let request = ClientRequest { template: template.clone(), id, method };
                return self.call(server, session.clone(), request, sent).await;
            }
        };
        if let Some(sent) = sent {
            sent.set_sent();
        }
        Ok(response)
    }

    /// Returns the session's standalone stream.
    fn stream(self: &Arc<Self>, session: &Arc<Session>, template: &Template) -> Response<ResponseBody> {
        let response = event_stream(Messages::received(session.begin_stream()));
        self.begin_subscription(session, template);
        response
    }

    /// Subscribes to list changes for a new client. It opens its standalone stream beside its first
    /// call; notifications before that wait for the stream.
    fn expect_stream(self: &Arc<Self>, session: &Arc<Session>, template: &Template) {
        if session.server.announced_lists().is_empty() || !session.expect_stream() {
            return;
        }
        self.begin_subscription(session, template);
        let (clients, session) = (Arc::downgrade(self), Arc::downgrade(session));
        tokio::spawn(async move {
            clock::sleep(STREAM_WAIT).await;
            let (Some(clients), Some(session)) = (clients.upgrade(), session.upgrade()) else { return };
            if session.forget_stream() {
                clients.subscribe(&session, &session.usage.last_request()).await;
            }
        });
    }

    /// Subscribes, unless the session has a subscription. Calls wait for it from now on.
    fn begin_subscription(self: &Arc<Self>, session: &Arc<Session>, template: &Template) {
        if session.has_subscription() {
            return;
        }
        let (clients, session, template) = (self.clone(), session.clone(), template.clone());
        let changing = session.subscribing.clone().try_lock_owned();
        tokio::spawn(async move {
            let _changing = match changing {
                Ok(changing) => changing,
                Err(_) => session.subscribing.clone().lock_owned().await,
            };
            clients.subscribe_anew(&session, &template).await
        });
    }

    /// Begins or ends the client's subscription to a resource.
    async fn subscribe_to(
        self: &Arc<Self>,
        session: &Arc<Session>,
        id: &RequestId,
        template: &Template,
        begins: bool,
    ) -> Response<ResponseBody> {
        if !session.server.announces("resources", "subscribe") {
            return error(StatusCode::OK, Some(id), code::METHOD_NOT_FOUND, "Method not found");
        }
        let Some(uri) = jsonrpc::string_member(template.body(), &["params", "uri"]) else {
            return error(StatusCode::OK, Some(id), code::INVALID_PARAMS, "Invalid params: uri is no text");
        };
        if begins && !session.add_resource(&uri) {
            return error(StatusCode::OK, Some(id), code::INTERNAL_ERROR, "the session has too many subscriptions");
        }
        if !begins {
            session.remove_resource(&uri);
        }
        if !self.subscribe(session, template).await && begins {
            session.remove_resource(&uri);
            return error(StatusCode::OK, Some(id), code::INTERNAL_ERROR, "the server did not take the subscription");
        }
        result(id)
    }
}

/// Returns the refusal of a request in a session whose processes have other variables.
fn other_variables(template: &Template) -> Response<ResponseBody> {
    let body = jsonrpc::peek(template.body()).ok();
    let messages = body.as_ref().map(jsonrpc::Body::messages).unwrap_or_default();
    let ids: Vec<RequestId> = messages.iter().filter_map(channel::request_id).cloned().collect();
    channel::refusal_about(ErrorCode::OtherVariables, "", &ids).map(ResponseBody::from)
}

/// Returns the client response in a request.
fn client_response_in(template: &Template) -> ClientResponse {
    let body = template.body();
    let error = || {
        let text = jsonrpc::string_member(body, &["error", "message"]);
        text.unwrap_or_else(|| "the client answered with an error".to_owned())
    };
    let result = jsonrpc::parsed_member(body, &["result"]);
    let outcome = result.filter(|_| jsonrpc::error_in(body).is_none()).ok_or_else(error);
    ClientResponse { outcome, headers: template.lines().clone() }
}

fn set_level(session: &Session, id: &RequestId, body: &[u8]) -> Response<ResponseBody> {
    let level = jsonrpc::string_member(body, &["params", "level"]);
    match level.and_then(|level| LogLevel::of(&level)) {
        Some(level) => {
            session.set_log_level(level.name().to_owned());
            result(id)
        }
        None => error(StatusCode::OK, Some(id), code::INVALID_PARAMS, "Invalid params: level is unknown"),
    }
}

fn result(id: &RequestId) -> Response<ResponseBody> {
    json_response(StatusCode::OK, response::empty(id))
}
