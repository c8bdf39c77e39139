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
mod listen;
mod opening;
mod session;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::call::ClientRequest;
use self::session::{ClientResponse, Session, Sessions};
use super::server_era::ServerEra;
use super::{Exchanged, Settings, event_stream, json_response, response_in};
use crate::channel;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::bridge::LogLevel;
use crate::protocol::bridge::legacy_clients::{self as bridge, Discovered};
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::{self, Message, RequestId, code, response};
use crate::upstream::observed::Observed;
use crate::upstream::server::Server;
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::Messages;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::synthetic;
use crate::upstream::token_probe::{confirms_token, outside_sessions};

/// Maximum number of list pages that are read for one call, and time limit for all of them.
const MAX_PAGES: usize = 32;
const LIST_WAIT: Duration = Duration::from_secs(5);
/// Maximum wait for a new client to open the session's standalone stream.
const STREAM_WAIT: Duration = Duration::from_secs(10);

/// Translates requests. All workers share it.
pub(super) struct LegacyClients {
    settings: Settings,
    /// Connections for the bridge's own requests.
    server: Arc<Server>,
    /// Tokens whose caller the server has confirmed or denied.
    observed: Arc<Observed>,
    sessions: Sessions,
    /// True once a session was opened, or a request has named one.
    is_active: AtomicBool,
    /// Capabilities of the server in the session opened last. Most sessions have equal ones and
    /// share them.
    discovered: Mutex<Option<Arc<Discovered>>>,
    era: Arc<ServerEra>,
}

impl LegacyClients {
    /// Creates a bridge with connections of its own.
    pub(super) fn new(
        settings: Settings,
        server: Arc<Server>,
        observed: Arc<Observed>,
        era: Arc<ServerEra>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            server,
            observed,
            sessions: Sessions::default(),
            is_active: AtomicBool::default(),
            discovered: Mutex::default(),
            era,
        })
    }

    /// Returns true once a session was opened, or a request has named one.
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Records that a session was opened, or that a request has named one.
    pub(super) fn record_session(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Returns true if the request names a session of the bridge.
    pub(super) fn names_session(template: &Template) -> bool {
        template.session_name().is_some_and(bridge::is_session_name)
    }

    /// Handles a request in a session of the bridge.
    pub(super) async fn send(
        self: &Arc<Self>,
        server: &Server,
        template: &Template,
        sent: Option<&Arc<Stream>>,
    ) -> Exchanged {
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
        session.record_request(template);
        Some(session)
    }

    async fn message(
        self: &Arc<Self>,
        server: &Server,
        session: &Arc<Session>,
        template: &Template,
        message: Message,
        sent: Option<&Arc<Stream>>,
    ) -> Exchanged {
        let (id, method) = match message {
            Message::Request { id, method } => (id, method.to_string()),
            Message::Notification { method } => {
                if method == "notifications/initialized" {
                    self.expect_stream(session, template);
                }
                handle_notification(session, &method, template.body());
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
        if let Some(stream) = sent {
            stream.upstream().set_sent();
        }
        Ok(response)
    }

    /// Returns the session's standalone stream.
    fn stream(self: &Arc<Self>, session: &Arc<Session>, template: &Template) -> Response<ResponseBody> {
        let response = sent_messages(session.begin_stream());
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
            if session.forget_stream()
                && let Some(latest) = session.latest()
            {
                clients.subscribe(&session, &latest).await;
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
        let uri = jsonrpc::member(template.body(), &["params", "uri"]);
        let Some(uri) = uri.and_then(|uri| serde_json::from_str::<String>(uri).ok()) else {
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

    /// Reads the list of tools with the headers of this request. Returns false if that fails.
    async fn list_tools(&self, session: &Session, template: &Template) -> bool {
        const METHOD: &str = "tools/list";
        let reading = async {
            let mut params = json!({});
            for _ in 0..MAX_PAGES {
                let id = session.next_id();
                let body = json!({"jsonrpc": "2.0", "id": id, "method": METHOD, "params": params}).to_string();
                let body = bridge::translated(body.as_bytes(), &id, &session.client, None, None)?;
                let post = call::modern(&synthetic::post(template, body), METHOD);
                let page = response_in(self.server.exchange(&post, None).await.ok()?).await?;
                jsonrpc::member(&page, &["result", "tools"])?;
                session.record_tools(&page);
                let next = jsonrpc::member(&page, &["result", "nextCursor"]).filter(|cursor| *cursor != "null");
                let Some(cursor) = next.and_then(|cursor| serde_json::from_str::<Value>(cursor).ok()) else {
                    return Some(());
                };
                params = json!({ "cursor": cursor });
            }
            Some(())
        };
        matches!(tokio::time::timeout(LIST_WAIT, reading).await, Ok(Some(())))
    }
}

/// Returns the response whose messages another task sends.
fn sent_messages(messages: mpsc::Receiver<Bytes>) -> Response<ResponseBody> {
    event_stream(ResponseBody::Messages(Messages::received(messages)))
}

/// Handles a notification of the client. The server has no sessions, so it is not forwarded.
fn handle_notification(session: &Session, method: &str, text: &[u8]) {
    if method == "notifications/cancelled"
        && let Some(id) = jsonrpc::cancelled_request_id(text)
    {
        session.cancel(&id);
    }
}

/// Returns the client response in a request.
fn client_response_in(template: &Template) -> ClientResponse {
    let body = template.body();
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    let outcome = match jsonrpc::member(body, &["result"]).and_then(parsed) {
        Some(result) => Ok(result),
        None => {
            let text = jsonrpc::member(body, &["error", "message"]);
            let text = text.and_then(|text| serde_json::from_str::<String>(text).ok());
            Err(text.unwrap_or_else(|| "the client answered with an error".to_owned()))
        }
    };
    ClientResponse { outcome, headers: template.lines().clone() }
}

fn set_level(session: &Session, id: &RequestId, body: &[u8]) -> Response<ResponseBody> {
    let level = jsonrpc::member(body, &["params", "level"]);
    let level = level.and_then(|level| serde_json::from_str::<String>(level).ok());
    match level.and_then(|level| LogLevel::of(&level)) {
        Some(level) => {
            session.set_log_level(level.name().to_owned());
            result(id)
        }
        None => error(StatusCode::OK, Some(id), code::INVALID_PARAMS, "Invalid params: level is unknown"),
    }
}

/// 404 for an unknown session. The caller has already tried to revive it.
pub(super) fn unknown_session() -> Response<ResponseBody> {
    error(StatusCode::NOT_FOUND, None, code::INVALID_REQUEST, "Session not found")
}

fn result(id: &RequestId) -> Response<ResponseBody> {
    json_response(StatusCode::OK, response::empty(id))
}

fn error(status: StatusCode, id: Option<&RequestId>, code: i64, text: &str) -> Response<ResponseBody> {
    json_response(status, response::error_with_data(id, code, text, Value::Null))
}

fn empty(status: StatusCode) -> Response<ResponseBody> {
    channel::empty(status).map(ResponseBody::from)
}
