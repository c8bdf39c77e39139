//! Opening of a session of the bridge, for an `initialize` that the server has refused.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use tracing::debug;

use super::clients::LegacyClients;
use super::session::Session;
use crate::protocol::bridge::legacy_clients::{self as bridge, ClientFacts, Discovered};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::names;
use crate::protocol::jsonrpc::{self, Message, RequestId, code, response};
use crate::sync;
use crate::upstream::bridge::responses::{error, json_response, refusal, response_in};
use crate::upstream::bridge::sessions::until_idle;
use crate::upstream::server::exchange::{Exchange, Exchanged, Unanswered};
use crate::upstream::server::request::Template;
use crate::upstream::server::synthetic::discover_request;

/// Time limit of the request for the server's capabilities.
const OPENING_WAIT: Duration = Duration::from_secs(60);

impl LegacyClients {
    /// Returns the ID of an `initialize` without a session, or `None` for another request.
    pub(in super::super) fn initialize_in(template: &Template) -> Option<RequestId> {
        if template.names_session() {
            return None;
        }
        match jsonrpc::peek(template.body()) {
            Ok(jsonrpc::Body::Single(Message::Request { id, method })) if method == "initialize" => Some(id),
            Ok(_) | Err(_) => None,
        }
    }

    /// Responds to an `initialize` with the result of the server's `server/discover`.
    pub(in super::super) async fn open(self: &Arc<Self>, template: &Template, id: &RequestId) -> Exchanged {
        let client = match ClientFacts::of(template.body()) {
            Ok(client) => client,
            Err(reason) => {
                let text = format!("Invalid params: {reason}");
                return Ok(error(StatusCode::BAD_REQUEST, Some(id), code::INVALID_PARAMS, &text));
            }
        };
        let discovery = async {
            let response = self.link.server.exchange(&discover_request(template, None), None).await?;
            let status = response.status();
            if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) || status.is_server_error() {
                return Ok(Err(response));
            }
            Ok::<_, Unanswered>(Ok(response_in(response).await.unwrap_or_default()))
        };
        let message = match tokio::time::timeout(OPENING_WAIT, discovery).await {
            Ok(Ok(Ok(message))) => message,
            Ok(Ok(Err(refusal))) => return Ok(refusal),
            Ok(Err(unanswered)) => return Err(unanswered),
            Err(_) => return Err(Failure::before_run(ErrorCode::UpstreamTimeout).into()),
        };
        let Some(server) = Discovered::of(&message) else {
            let error = bridge::error_of(&message, id)
                .unwrap_or_else(|| response::error(id, code::INTERNAL_ERROR, "the server did not say what it has"));
            return Ok(json_response(StatusCode::BAD_REQUEST, error));
        };
        self.record_session();
        let mut response = json_response(StatusCode::OK, server.initialized(id, &client));
        let Some(session) = self.sessions.open(client, self.shared(server), template) else {
            return Ok(refusal(ErrorCode::NoServer, "there are too many sessions", id));
        };
        if let Ok(name) = HeaderValue::from_str(&session.name) {
            response.headers_mut().insert(names::MCP_SESSION_ID, name);
        }
        debug!("a session was opened for a client of an older revision");
        self.end_when_idle(&session);
        Ok(response)
    }

    /// Returns the capabilities of the session opened last, if these are equal.
    fn shared(&self, server: Discovered) -> Arc<Discovered> {
        let mut last = sync::lock(&self.discovered);
        match &*last {
            Some(known) if **known == server => known.clone(),
            Some(_) | None => last.insert(Arc::new(server)).clone(),
        }
    }

    /// Ends the session after its idle time. The client's next request opens it again.
    fn end_when_idle(self: &Arc<Self>, session: &Arc<Session>) {
        let (clients, session, idle) = (Arc::downgrade(self), Arc::downgrade(session), self.link.settings.config.idle);
        tokio::spawn(async move {
            if let Some(session) = until_idle(session, idle).await
                && let Some(clients) = clients.upgrade()
            {
                clients.sessions.end(&session);
            }
        });
    }
}
