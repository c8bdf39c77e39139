//! Requests that concern something at another replica: a client's answers and cancels, and the end of its session.
//!
//! A session of an upstream lives where it was opened; a call of a session of the proxy's own lives where it was begun. Its client
//! may be anywhere, with an ordinary load balancer in between. What only that replica can do is handed there through the store, and its
//! answer comes back as if it had been given here. Absent: resumes, which any replica serves from the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tracing::{debug, warn};

use super::answers::cancelled_ids;
use super::refreshed::is_concerned;
use super::{Asked, Connection, Ingress, respond};
use crate::event_log::{BoxBody, session_group};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{SessionId, names};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::replica::{Base64, Handed};
use crate::upstream::whole;

/// A replica that has not answered for so long holds the request, or is on its way out: the client is told that it was taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer that is larger is cut to its head. Answers to answers are empty as a rule.
const ANSWER_MAX: usize = 1024 * 1024;

impl Ingress {
    /// Hands a request to the replica that it concerns, if that is another one, and returns its answer. `None`: it is to be answered
    /// here.
    pub(super) async fn hand_over(&self, asked: &Asked, body: &Bytes) -> Option<Response<BoxBody>> {
        let replicas = self.replicas.as_ref().filter(|_| !asked.is_handed)?;
        let id = asked.binding.session.as_ref()?;
        let others = replicas.requests().others(&session_group(id)).await;
        for other in others {
            let request = hand(&asked.parts, id, asked.connection.as_ref(), body);
            match tokio::time::timeout(PATIENCE, replicas.requests().ask(other, request)).await {
                Ok(Ok(Some(reply))) => return Some(answer_of(reply)),
                // It concerns nothing there.
                Ok(Ok(None)) => {}
                Ok(Err(error)) => debug!(%error, "a request could not be handed to another replica"),
                Err(_) => return Some(respond::status(StatusCode::ACCEPTED)),
            }
        }
        None
    }

    /// Hands the end of a session to every other replica that has to do with it. Returns one of their answers.
    pub(super) async fn hand_to_all(&self, asked: &Asked) -> Option<Response<BoxBody>> {
        let replicas = self.replicas.as_ref().filter(|_| !asked.is_handed)?;
        let id = asked.binding.session.as_ref()?;
        let mut answer = None;
        for other in replicas.requests().others(&session_group(id)).await {
            let request = hand(&asked.parts, id, asked.connection.as_ref(), &Bytes::new());
            match tokio::time::timeout(PATIENCE, replicas.requests().ask(other, request)).await {
                Ok(Ok(Some(reply))) => answer = Some(answer_of(reply)),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => warn!(%error, "another replica could not be told of the end of a session"),
                Err(_) => warn!("another replica did not say that it ended a session"),
            }
        }
        answer
    }

    /// Answers a request that another replica hands over; `None` where it concerns nothing here.
    pub async fn take_handed(self: Arc<Self>, handed: Handed) -> Option<Handed> {
        let (mut asked, body) = self.asked_of(handed)?;
        let id = asked.binding.session.clone()?;
        if asked.session.as_ref().is_none_or(|session| !session.is_known()) {
            self.recall_session(&mut asked).await.ok()?;
        }
        let session = asked.session.clone()?;
        let streams = self.log.sessions().streams(&id, &session);
        let is_home = session.is_home() && !asked.is_issued && !asked.is_elsewhere;
        let response = if asked.parts.method == Method::DELETE {
            if !is_home && streams.is_empty() {
                return None;
            }
            self.delete(asked, body).await
        } else {
            let messages = jsonrpc::peek(&body).ok()?.messages().to_vec();
            let cancelled = cancelled_ids(&messages, &body);
            if !is_home && !is_concerned(&streams, &session, &messages, &cancelled) {
                return None;
            }
            self.answers(asked, messages, body).await
        };
        Some(handed_answer(response).await)
    }

    fn asked_of(&self, handed: Handed) -> Option<(Box<Asked>, Bytes)> {
        let (method, target) = handed.line.split_once(' ')?;
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in &handed.headers {
            request = request.header(name.as_str(), value.0.as_slice());
        }
        let (parts, ()) = request.body(()).ok()?.into_parts();
        let scheme = if handed.is_secure { "https" } else { "http" };
        let connection = Arc::new(Connection::new((handed.peer, 0).into(), scheme));
        let mut asked = self.identify(parts, connection);
        asked.is_handed = true;
        Some((asked, handed.body.0.into()))
    }

    /// Whether an answer, a cancel or a notification in the session of `asked` may concern another replica.
    pub(super) fn may_concern_others(&self, asked: &Asked, messages: &[Message], cancels: bool) -> bool {
        let is_home = asked.session.as_ref().is_some_and(|session| session.is_home());
        let names_something = cancels || messages.iter().any(|message| matches!(message, Message::Response { .. }));
        // A session of the proxy's own has calls anywhere, and nothing else.
        if asked.is_issued { names_something } else { asked.is_elsewhere || !is_home }
    }
}

fn hand(parts: &Parts, session: &SessionId, connection: &Connection, body: &Bytes) -> Handed {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let bytes = |value: &HeaderValue| Base64(value.as_bytes().to_vec());
    let mut headers: Vec<_> =
        parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), bytes(value))).collect();
    if !parts.headers.contains_key(names::MCP_SESSION_ID) {
        // One of the proxy's own was taken out: the upstream is not to see it.
        headers.push((names::MCP_SESSION_ID.as_str().to_owned(), Base64(session.as_str().as_bytes().to_vec())));
    }
    Handed {
        line: format!("{} {target}", parts.method),
        peer: connection.peer(),
        is_secure: connection.is_secure(),
        headers,
        body: Base64(body.to_vec()),
    }
}

async fn handed_answer(response: Response<BoxBody>) -> Handed {
    let (parts, mut body) = response.into_parts();
    let mut whole = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let data = frame.into_data().unwrap_or_default();
        if whole.len() + data.len() > ANSWER_MAX {
            break;
        }
        whole.extend_from_slice(&data);
    }
    Handed::answer(parts.status, &parts.headers, whole)
}

/// The answer of another replica, as if it had been given here.
pub(super) fn answer_of(reply: Handed) -> Response<BoxBody> {
    let Ok(status) = reply.line.parse::<StatusCode>() else {
        return respond::failure(Failure::after_send(ErrorCode::StoreFailed), &[], false);
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
