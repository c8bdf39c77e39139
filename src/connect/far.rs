//! The far side as the host's one session sees it: requests to the core, and the state of the
//! session between them.
//!
//! Owned here: the name and the revision of the session, the headers of requests, and the place of
//! the credentials. Absent: everything between a request and its response, which is the core's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::watch;

use super::credentials::Credentials;
use super::input::HostRequest;
use super::keys::CallKey;
use crate::body::BoxBody;
use crate::delivery::MessageFrames;
use crate::event_log::{Handshake, Replacement};
use crate::ingress::LocalClient;
use crate::protocol::bridge::legacy_clients;
use crate::protocol::channel::envelope;
use crate::protocol::era;
use crate::protocol::headers::{SessionId, names};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::promise::Promise;
use crate::server::respond;
use crate::sync;

/// Largest response that is no stream, in bytes.
const WHOLE_MAX: usize = 64 * 1024 * 1024;
/// Name of this program for servers.
const AGENT: &str = concat!("mcp-resume/", env!("CARGO_PKG_VERSION"));

/// The far side.
pub(super) struct Far {
    client: LocalClient,
    credentials: Arc<dyn Credentials>,
    session: Mutex<SessionHeaders>,
    state: watch::Sender<FarState>,
    /// Promise of a `serve` at the far side, or `None` before a response has shown whether it has
    /// one.
    promise: Mutex<Option<Option<Promise>>>,
    /// True once the far side has answered a request with success.
    has_worked: AtomicBool,
}

/// State of the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FarState {
    /// There is no session yet.
    Absent,
    /// The far side has answered `initialize`.
    Open,
    /// The session is open, and `initialized` was answered.
    Ready,
    /// The far side has refused the session, with this error object.
    Refused(String),
}

/// Headers that name the session.
#[derive(Clone, Default)]
struct SessionHeaders {
    id: Option<HeaderValue>,
    revision: Option<HeaderValue>,
}

/// A response of the far side.
pub(super) enum Reply {
    /// Messages, one for each frame.
    Messages(BoxBody),
    /// A whole response.
    Whole {
        /// Status.
        status: StatusCode,
        /// Body; empty if it could not be read.
        body: Bytes,
        /// True if a `serve` at the far side has sent it, and no proxy before it.
        is_of_serve: bool,
    },
}

impl Reply {
    /// Returns the response to `request`, or a whole response in its place. The other messages are
    /// dropped.
    pub(super) async fn response_to(self, request: &HostRequest) -> Option<Bytes> {
        let mut messages = match self {
            Self::Whole { body, .. } => return Some(body),
            Self::Messages(messages) => messages,
        };
        while let Some(Ok(frame)) = messages.frame().await {
            let Ok(message) = frame.into_data() else { continue };
            if request.response_in(&message).is_some() {
                return Some(message);
            }
        }
        None
    }
}

impl Far {
    pub(super) fn new(client: LocalClient, credentials: Arc<dyn Credentials>) -> Self {
        Self {
            client,
            credentials,
            session: Mutex::default(),
            state: watch::Sender::new(FarState::Absent),
            promise: Mutex::default(),
            has_worked: AtomicBool::new(false),
        }
    }

    /// Returns changes of the session's state.
    pub(super) fn state(&self) -> watch::Receiver<FarState> {
        self.state.subscribe()
    }

    /// Changes the state of the session.
    pub(super) fn set_state(&self, state: FarState) {
        self.state.send_replace(state);
    }

    /// Returns the credentials of requests.
    pub(super) fn credentials(&self) -> &dyn Credentials {
        &*self.credentials
    }

    /// Takes the name of the session from the head of the response to `initialize`.
    pub(super) fn open(&self, id: Option<HeaderValue>, revision: Option<&str>) {
        let revision = revision.and_then(|revision| HeaderValue::from_str(revision).ok());
        *sync::lock(&self.session) = SessionHeaders { id, revision };
        self.set_state(FarState::Open);
    }

    /// Posts an `initialize`, which names no session.
    pub(super) async fn post_opening(&self, body: Bytes) -> (Reply, Option<HeaderValue>) {
        *sync::lock(&self.session) = SessionHeaders::default();
        self.send(self.headers(true), body).await
    }

    /// Returns the last promise of a `serve` at the far side.
    pub(super) fn promise(&self) -> Option<Promise> {
        sync::lock(&self.promise).clone().flatten()
    }

    /// Returns true once a response has shown whether the far side promises anything.
    pub(super) fn knows_promise(&self) -> bool {
        sync::lock(&self.promise).is_some()
    }

    /// Returns true once the far side has answered a request with success.
    pub(super) fn has_worked(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed)
    }

    /// Posts a request, with the headers of its key.
    pub(super) async fn post_request(&self, request: &HostRequest, keyed: HeaderMap) -> Reply {
        let mut headers = match &request.revision {
            Some(revision) => self.modern_headers(&request.method, &request.body, revision),
            None => self.headers(true),
        };
        headers.extend(keyed);
        self.send(headers, request.body.clone()).await.0
    }

    /// Posts a message in the session. The second value is the session that the response opens.
    pub(super) async fn post(&self, body: Bytes) -> (Reply, Option<HeaderValue>) {
        self.send(self.headers(true), body).await
    }

    /// Posts an array in the session, whose responses come as an array.
    pub(super) async fn post_batch(&self, body: Bytes) -> Reply {
        let mut headers = self.headers(true);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        self.send(headers, body).await.0
    }

    /// Posts a request of a revision without sessions.
    pub(super) async fn post_modern(&self, request: &HostRequest, revision: &str) -> Reply {
        let headers = self.modern_headers(&request.method, &request.body, revision);
        self.send(headers, request.body.clone()).await.0
    }

    /// Cancels a call of a revision without sessions by its key. Its ID may be another process's,
    /// too.
    pub(super) async fn cancel_by_key(&self, id: &RequestId, key: &CallKey, revision: &str) -> Reply {
        const METHOD: &str = "notifications/cancelled";
        let meta = json!({era::VERSION: revision});
        let params = format!(r#"{{"requestId":{},"_meta":{meta}}}"#, id.to_json());
        let body = Bytes::from(format!(r#"{{"jsonrpc":"2.0","method":"{METHOD}","params":{params}}}"#));
        let mut headers = self.modern_headers(METHOD, &body, revision);
        headers.insert(names::IDEMPOTENCY_KEY, key.value.clone());
        self.send(headers, body).await.0
    }

    /// Ends the program behind the session. The next request starts it again.
    pub(super) async fn replace_server(&self) {
        self.client.replace_server().await;
    }

    /// Returns the server in the session, if it is another one than at the handshake.
    pub(super) fn replacement(&self) -> Option<Arc<Replacement>> {
        self.handshake()?.replacement()
    }

    /// Returns the core's record of the session.
    pub(super) fn handshake(&self) -> Option<Arc<Handshake>> {
        let id = sync::lock(&self.session).id.clone()?;
        self.client.handshake(&SessionId::parse(id.to_str().ok()?)?)
    }

    /// Returns the messages for the host after the session was opened again.
    pub(super) fn revival_messages(&self, handshake: &Handshake) -> Vec<Bytes> {
        self.client.revival_messages(handshake)
    }

    /// Opens the session's GET stream.
    pub(super) async fn listen(&self) -> Reply {
        let mut headers = self.headers(true);
        headers.remove(CONTENT_TYPE);
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = self.client.listen(headers).await;
        Self::reply(response).await
    }

    /// Returns true if the session has a name.
    pub(super) fn has_session(&self) -> bool {
        sync::lock(&self.session).id.is_some()
    }

    /// Ends the session at the far side, within `limit`. Sends nothing without a session.
    pub(super) async fn end(&self, limit: Duration) {
        if self.has_session() {
            let _ = tokio::time::timeout(limit, self.client.end_session(self.headers(true))).await;
        }
    }

    async fn send(&self, headers: HeaderMap, body: Bytes) -> (Reply, Option<HeaderValue>) {
        let sent = headers.get(AUTHORIZATION).cloned();
        let response = self.client.post(headers, body).await;
        if response.status() == StatusCode::UNAUTHORIZED {
            let challenge = response.headers().get(WWW_AUTHENTICATE);
            self.credentials.refused(sent.as_ref(), challenge);
        }
        let is_success_of_far = response.status().is_success() && !respond::has_own_head(&response);
        if is_success_of_far {
            self.has_worked.store(true, Ordering::Relaxed);
        }
        let session = response.headers().get(names::MCP_SESSION_ID).cloned();
        match response.headers().get(names::MCP_RESUME) {
            Some(promise) => *sync::lock(&self.promise) = Some(Promise::parse(promise)),
            // The far side is no `serve`, or no longer one.
            None if is_success_of_far => *sync::lock(&self.promise) = Some(None),
            None => {}
        }
        (Self::reply(response).await, session)
    }

    async fn reply(response: Response<BoxBody>) -> Reply {
        let (parts, mut body) = response.into_parts();
        if parts.extensions.get::<MessageFrames>().is_some() {
            return Reply::Messages(body);
        }
        let is_of_serve = parts.headers.contains_key(names::MCP_RESUME);
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) if whole.len() + data.len() <= WHOLE_MAX => whole.extend_from_slice(&data),
                // Trailers.
                Ok(Err(_)) => {}
                Ok(Ok(_)) | Err(_) => {
                    whole.clear();
                    break;
                }
            }
        }
        Reply::Whole { status: parts.status, body: whole.freeze(), is_of_serve }
    }

    fn modern_headers(&self, method: &str, body: &[u8], revision: &str) -> HeaderMap {
        let mut headers = self.headers(false);
        let mut insert = |name, value: &str| {
            if let Some(value) = envelope::encoded(value) {
                headers.insert(name, value);
            }
        };
        insert(names::MCP_PROTOCOL_VERSION, revision);
        insert(names::MCP_METHOD, method);
        if let Some(name) = legacy_clients::name_header(body, method) {
            insert(names::MCP_NAME, &name);
        }
        headers
    }

    fn headers(&self, is_in_session: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(authorization) = self.credentials.authorization() {
            headers.insert(AUTHORIZATION, authorization);
        }
        if is_in_session {
            let SessionHeaders { id, mut revision } = sync::lock(&self.session).clone();
            if let Some(replacement) = self.replacement() {
                revision = HeaderValue::from_str(replacement.version.as_str()).ok();
            }
            for (name, value) in [(names::MCP_SESSION_ID, id), (names::MCP_PROTOCOL_VERSION, revision)] {
                if let Some(value) = value {
                    headers.insert(name, value);
                }
            }
        }
        headers
    }
}
