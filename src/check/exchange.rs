//! One request to the upstream and the [`Observation`] of its response: status, form, ids and
//! messages, as far as it was read.
//!
//! Every wait and size is bounded. Absent: the facts that follow from observations
//! ([`super::probe`]), and their evaluation.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, LOCATION, WWW_AUTHENTICATE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Full, Limited};
use serde_json::Value;

use super::facts::{Form, Standalone, printable, printable_words};
use crate::body::BoxBody;
use crate::channel::{Caller, Channels, Variables};
use crate::clock;
use crate::config::{self, Config, HostHeader};
use crate::event_log::{Principal, QuotaKey};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{SessionId, is_read_as_json, is_sse};
use crate::protocol::origin;
use crate::protocol::sse::{Decoder, Event};
use crate::tls;
use crate::upstream::{Body, Forwarded, PublicName, Server, Upstream};

/// Size limit of a response; the rest is not read.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;
/// Redirects followed for one request, as in the proxy.
const MAX_REDIRECTS: usize = 3;
/// Bytes of a refusal that are read.
const WORDS_READ: usize = 64 * 1024;
/// A host name that no server has ([RFC 6761 §6.4]).
///
/// [RFC 6761 §6.4]: https://www.rfc-editor.org/rfc/rfc6761#section-6.4
const FOREIGN_HOST: HeaderValue = HeaderValue::from_static("mcp-resume-check.invalid");

/// One request of the probe.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// Path and query, or `None` for the endpoint.
    pub(super) path: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Bytes>,
    /// Request ID of the JSON-RPC response that ends the read.
    pub(super) id: Option<u64>,
    /// True if the user's headers are left out.
    pub(super) is_anonymous: bool,
    /// True for a `Host` that is not the server's.
    pub(super) has_foreign_host: bool,
    /// True for `localhost` with the port of the server as `Host`.
    pub(super) is_for_localhost: bool,
}

impl Request {
    pub(super) fn new(method: Method, headers: HeaderMap, body: Option<Bytes>) -> Self {
        let (id, is_anonymous, has_foreign_host, is_for_localhost) = (None, false, false, false);
        Self { method, path: None, headers, body, id, is_anonymous, has_foreign_host, is_for_localhost }
    }
}

/// Reason for a missing response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangeError {
    /// No response in time.
    TimedOut,
    /// The connection broke first.
    Broken,
}

/// Point in a response where the client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Nowhere.
    Never,
    /// After the head.
    AfterHead,
    /// After an empty first event with an id.
    AfterPrime,
    /// After the first message with an id, unless it is the response.
    AfterMessage,
}

/// Observation of one response: its head, and the part of its body that was received before its
/// end, the cut or the limit.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) status: StatusCode,
    pub(super) form: Form,
    /// Media type without parameters.
    pub(super) content_type: Option<String>,
    pub(super) session: Option<SessionId>,
    /// The scheme that `WWW-Authenticate` names.
    pub(super) scheme: Option<String>,
    /// The whole `WWW-Authenticate`, which must not be shown.
    pub(super) challenge: Option<String>,
    /// Place of a redirect that was not followed.
    pub(super) redirects_to: Option<String>,
    /// True after the first event.
    has_events: bool,
    /// The ids of the events, in order.
    pub(super) ids: Vec<Bytes>,
    /// True if the first event had an id and no data.
    pub(super) is_primed: bool,
    /// Messages, the JSON-RPC response included.
    pub(super) messages: usize,
    /// JSON-RPC response.
    pub(super) response: Option<Value>,
    pub(super) was_cut: bool,
    /// Beginning of the body of a refusal with 401, 403 or 421.
    pub(super) words: String,
}

impl Observation {
    /// Returns the result, which is an object in every revision, or `None` for an error.
    pub(super) fn result(&self) -> Option<&Value> {
        self.response.as_ref()?.get("result").filter(|result| result.is_object())
    }

    /// Returns the code of an error, or `None` for a result.
    pub(super) fn error_code(&self) -> Option<i64> {
        self.response.as_ref()?.get("error")?.get("code")?.as_i64()
    }

    /// Returns the message of an error, or an empty text.
    pub(super) fn error_message(&self) -> &str {
        let error = self.response.as_ref().and_then(|response| response.get("error"));
        error.and_then(|error| error.get("message")?.as_str()).unwrap_or_default()
    }

    /// Returns the message of an error of the proxy itself about a server that it could not start,
    /// with the last lines of its stderr, or `None` for any other response.
    pub(super) fn start_failure(&self) -> Option<String> {
        let is_own = matches!(
            self.status,
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT | StatusCode::SERVICE_UNAVAILABLE
        );
        let error = self.response.as_ref().filter(|_| is_own)?.get("error")?;
        let message = error.get("message")?.as_str()?;
        Some(match error["data"]["stderr"].as_str() {
            Some(lines) => format!("{message}; its stderr: {lines}"),
            None => message.to_owned(),
        })
    }

    /// Returns true if an event came twice, alone or after `before`.
    pub(super) fn has_repeats(&self, before: &Observation) -> bool {
        let mut seen: HashSet<&Bytes> = before.ids.iter().collect();
        // A resumed connection may begin with an empty event that names the place again.
        self.ids.iter().skip(usize::from(self.is_primed)).any(|id| !seen.insert(id))
    }
}

/// A client of the upstream that sends requests as the proxy does.
pub(super) struct Client {
    upstream: Upstream,
    foreign: Upstream,
    /// Server of the configuration, under the name `localhost`.
    localhost: Upstream,
    peer: Forwarded,
    /// `Host` of the proxy's clients; it reaches the upstream if `upstream.host` says so.
    host: Option<HeaderValue>,
    headers: HeaderMap,
    /// Caller whose headers become variables of the program, or `None` if they do not.
    caller: Option<Arc<Caller>>,
}

impl Client {
    /// Creates a client of the upstream of `config`, or of the server of `channels`.
    ///
    /// # Errors
    /// If a TLS file cannot be used.
    pub(super) fn new(
        config: &Config,
        headers: HeaderMap,
        channels: Option<&Arc<Channels>>,
    ) -> Result<Self, tls::Error> {
        let foreign = config::Upstream { host: HostHeader::Name(FOREIGN_HOST), ..config.upstream.clone() };
        let localhost = config::Upstream { host: HostHeader::Name(localhost_of(config)), ..config.upstream.clone() };
        let public = config.listen.public_url.as_deref().map(PublicName::of);
        let mut server = Server::new(config.upstream.clone())?.with_public_url(config.listen.public_url.as_ref());
        if let Some(channels) = channels {
            server = server.with_channels(channels.clone());
        }
        Ok(Self {
            upstream: Upstream::plain(server),
            foreign: Upstream::plain(Server::new(foreign)?),
            localhost: Upstream::plain(Server::new(localhost)?),
            peer: Forwarded::new(config.listen.address.ip(), "http", false, public),
            host: HeaderValue::from_str(&config.listen.address.to_string()).ok(),
            caller: caller(config, &headers),
            headers,
        })
    }

    /// Returns true if the user gave headers, which may be credentials.
    pub(super) fn has_headers(&self) -> bool {
        !self.headers.is_empty()
    }

    /// Sends a request and reads its response, for `timeout` at most. A response that is read no
    /// further is closed.
    pub(super) async fn exchange(
        &self,
        request: Request,
        timeout: Duration,
        cut: Cut,
    ) -> Result<Observation, ExchangeError> {
        let id = request.id;
        let (head, mut body) = self.open(request, clock::now() + timeout).await?;
        let mut observation = observe_head(head.status, &head.headers);
        match observation.form {
            _ if cut == Cut::AfterHead => {}
            Form::EventStream => {
                let mut events = EventReader::new(body);
                while let Some(event) = events.next_event().await {
                    if observation.add_event(event, id, cut) {
                        break;
                    }
                }
            }
            _ if is_refusal(head.status) => {
                let text = body.beginning().await;
                observation.response = serde_json::from_slice(&text).ok().filter(Value::is_object);
                observation.words = excerpt(&text);
            }
            Form::Json => {
                observation.response = body.document().await.filter(|document| document.is_object());
                observation.messages = usize::from(observation.response.is_some());
            }
            Form::Other => {}
        }
        Ok(observation)
    }

    /// Returns the first event, or `None` if the response is no stream of events.
    pub(super) async fn first_event(&self, request: Request, timeout: Duration) -> Option<Event> {
        self.listen(request, clock::now() + timeout).await.1?.next_event().await
    }

    /// Opens the stream of events that a GET requests. Its head must come by `deadline`.
    pub(super) async fn listen(&self, request: Request, deadline: Instant) -> (Standalone, Option<EventReader>) {
        let Ok((head, mut body)) = self.open(request, deadline).await else { return (Standalone::NoHead, None) };
        if !head.status.is_success() || form(&head.headers) != Form::EventStream {
            return (Standalone::Refused { status: head.status.as_u16() }, None);
        }
        // Events are dropped as they are read: the length of the whole needs no limit.
        body.remaining = usize::MAX;
        (Standalone::Stream, Some(EventReader::new(body)))
    }

    /// Returns a JSON document of the origin.
    pub(super) async fn document(&self, request: Request, timeout: Duration) -> Option<Value> {
        let (head, mut body) = self.open(request, clock::now() + timeout).await.ok()?;
        if head.status != StatusCode::OK || form(&head.headers) != Form::Json {
            return None;
        }
        body.document().await
    }

    /// Returns the metadata of the server as a protected resource, as clients of the proxy get it
    /// under `listen.public_url`, or `None` without metadata.
    pub(super) async fn public_metadata(&self, timeout: Duration) -> Option<Value> {
        let deadline = clock::now() + timeout;
        let mut request = http::Request::new(());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(host) = &self.host {
            request.headers_mut().insert(HOST, host.clone());
        }
        let (request, ()) = request.into_parts();
        let response = before(deadline, self.upstream.resource_metadata(&request, &self.peer)).await?.ok()?;
        let (head, body) = response.into_parts();
        let body = body.map_err(Into::into).boxed_unsync();
        let mut reader = BodyReader { body, deadline, remaining: MAX_RESPONSE };
        let document = if head.status == StatusCode::OK { reader.document().await } else { None };
        document.filter(|document| document["resource"].is_string())
    }

    /// Returns the status and the body of a response, the body up to `most` bytes: `None` if it is
    /// longer or does not come in time.
    pub(super) async fn plain(
        &self,
        request: Request,
        most: usize,
        timeout: Duration,
    ) -> Result<(StatusCode, Option<Bytes>), ExchangeError> {
        let (head, reader) = self.open(request, clock::now() + timeout).await?;
        let body = before(reader.deadline, Limited::new(reader.body, most).collect()).await.and_then(Result::ok);
        Ok((head.status, body.map(|body| body.to_bytes())))
    }

    /// Sends a request, and waits for the response until `deadline`. Returns its head, and a reader
    /// of its body.
    async fn open(&self, request: Request, deadline: Instant) -> Result<(Parts, BodyReader), ExchangeError> {
        let response = before(deadline, self.send(request)).await.ok_or(ExchangeError::TimedOut)??;
        let (head, body) = response.into_parts();
        Ok((head, BodyReader { body, deadline, remaining: MAX_RESPONSE }))
    }

    /// Sends a request and waits for the head. Follows redirects that keep the method, within the
    /// origin.
    async fn send(&self, request: Request) -> Result<http::Response<BoxBody>, ExchangeError> {
        let upstream = match request {
            Request { has_foreign_host: true, .. } => &self.foreign,
            Request { is_for_localhost: true, .. } => &self.localhost,
            _ => &self.upstream,
        };
        let mut target = request.path.clone().unwrap_or_else(|| upstream.server().endpoint_target(None));
        for _ in 0..=MAX_REDIRECTS {
            let caller = self.caller.clone().filter(|_| !request.is_anonymous);
            let response = upstream.forward(self.build(&request, &target)?, &self.peer, caller).await;
            let response = response.map_err(|failure| match failure.code {
                ErrorCode::UpstreamTimeout => ExchangeError::TimedOut,
                _ => ExchangeError::Broken,
            })?;
            let keeps_method =
                matches!(response.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
            // The client removes the upstream's own origin from it.
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            match next.filter(|next| keeps_method && next.starts_with('/') && !next.starts_with("//")) {
                Some(next) => target = next.to_owned(),
                None => return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
            }
        }
        Err(ExchangeError::Broken)
    }

    fn build(&self, request: &Request, target: &str) -> Result<http::Request<Body>, ExchangeError> {
        let body: BoxBody = match request.body.clone() {
            Some(body) => Full::new(body).map_err(|never| match never {}).boxed_unsync(),
            None => Empty::new().map_err(|never| match never {}).boxed_unsync(),
        };
        let mut built = http::Request::new(Body::Passthrough(body));
        *built.method_mut() = request.method.clone();
        *built.uri_mut() = target.parse().map_err(|_| ExchangeError::Broken)?;
        let headers = built.headers_mut();
        headers.clone_from(&request.headers);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(host) = &self.host {
            headers.insert(HOST, host.clone());
        }
        if !request.is_anonymous {
            headers.extend(self.headers.clone());
        }
        Ok(built)
    }
}

/// Returns the caller whose headers become variables of the program, or `None` if none do. The
/// values were checked.
fn caller(config: &Config, headers: &HeaderMap) -> Option<Arc<Caller>> {
    let wanted = &config.upstream.command.as_ref()?.env_from_headers;
    let variables = Variables::of(wanted, headers).unwrap_or_default();
    if variables.as_slice().is_empty() {
        return None;
    }
    let address = QuotaKey::Peer(config.listen.address.ip());
    Some(Arc::new(Caller::new(Principal::Anonymous, address).with_variables(variables)))
}

/// Returns `localhost` with the port of the server.
pub(super) fn localhost_of(config: &Config) -> HeaderValue {
    let port = config.upstream.url.authority().port_u16();
    let host = port.map_or("localhost".to_owned(), |port| format!("localhost:{port}"));
    HeaderValue::from_str(&host).unwrap_or(HeaderValue::from_static("localhost"))
}

/// Reader of a stream of events.
pub(super) struct EventReader {
    body: BodyReader,
    decoder: Decoder,
}

impl EventReader {
    fn new(body: BodyReader) -> Self {
        Self { body, decoder: Decoder::new(MAX_RESPONSE) }
    }

    /// Returns the next event, or `None` at the end of the stream or at its deadline. Dropped
    /// early, it loses nothing.
    async fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.decoder.poll_event().ok()? {
                return Some(event);
            }
            self.decoder.feed(self.body.next().await?);
        }
    }

    /// Returns the next JSON message, or `None` at the end of the stream or at `deadline`. Dropped
    /// early, it loses nothing.
    pub(super) async fn next_message(&mut self, deadline: Instant) -> Option<Value> {
        self.body.deadline = deadline;
        loop {
            if let Ok(message) = serde_json::from_slice(&self.next_event().await?.data) {
                return Some(message);
            }
        }
    }
}

/// Reader of a response body.
struct BodyReader {
    body: BoxBody,
    deadline: Instant,
    /// Number of further bytes that are read.
    remaining: usize,
}

impl BodyReader {
    /// Returns the next piece, or `None` at the end, an error, the deadline or the size limit.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = before(self.deadline, self.body.frame()).await??.ok()?;
            if let Ok(piece) = frame.into_data() {
                self.remaining = self.remaining.checked_sub(piece.len())?;
                return Some(piece);
            }
        }
    }

    /// Returns the body up to [`WORDS_READ`] bytes.
    async fn beginning(&mut self) -> Vec<u8> {
        self.remaining = WORDS_READ;
        let mut beginning = Vec::new();
        while let Some(piece) = self.next().await {
            beginning.extend_from_slice(&piece);
        }
        beginning
    }

    /// Returns the whole body as JSON, or `None` if it is no JSON or incomplete.
    async fn document(&mut self) -> Option<Value> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await {
            whole.extend_from_slice(&piece);
        }
        serde_json::from_slice(&whole).ok()
    }
}

impl Observation {
    /// Adds an event. Returns true if the response is read no further.
    fn add_event(&mut self, event: Event, request: Option<u64>, cut: Cut) -> bool {
        let is_first = !std::mem::replace(&mut self.has_events, true);
        let id = event.id.filter(|id| !id.is_empty());
        let is_numbered = id.is_some();
        self.ids.extend(id);
        if event.data.is_empty() {
            self.is_primed |= is_first && is_numbered;
            self.was_cut = self.is_primed && cut == Cut::AfterPrime;
            return self.was_cut;
        }
        self.messages += 1;
        let message: Option<Value> = serde_json::from_slice(&event.data).ok();
        let is_response = |message: &Value| {
            let has_outcome = message.get("result").is_some() || message.get("error").is_some();
            has_outcome && request.is_some_and(|id| message.get("id") == Some(&id.into()))
        };
        self.response = message.filter(is_response);
        self.was_cut = is_numbered && self.response.is_none() && cut == Cut::AfterMessage;
        self.response.is_some() || self.was_cut
    }
}

/// Returns true for a status that may concern credentials or `Host`.
pub(super) fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST)
}

/// Returns the first characters of a body on one line.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    printable_words(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn observe_head(status: StatusCode, headers: &HeaderMap) -> Observation {
    let challenges: Vec<&str> =
        headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).collect();
    let scheme = challenges.first().and_then(|challenge| challenge.split([' ', ',']).next());
    Observation {
        status,
        form: form(headers),
        content_type: media_type(headers).map(|text| printable(&text)),
        session: SessionId::from_headers(headers),
        scheme: scheme.filter(|scheme| !scheme.is_empty()).map(printable),
        challenge: if challenges.is_empty() { None } else { Some(challenges.join(", ")) },
        redirects_to: redirect_place(status, headers),
        has_events: false,
        ids: Vec::new(),
        is_primed: false,
        messages: 0,
        response: None,
        was_cut: false,
        words: String::new(),
    }
}

/// Returns the form as clients read it, and the proxy: by the beginning of the type for JSON.
fn form(headers: &HeaderMap) -> Form {
    if is_sse(headers) {
        Form::EventStream
    } else if is_read_as_json(headers) {
        Form::Json
    } else {
        Form::Other
    }
}

/// Returns the place of a redirect without its query, which may hold secrets: the origin of another
/// server, or a path of this one. The client has removed this server's own origin.
fn redirect_place(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let location = headers.get(LOCATION).filter(|_| status.is_redirection())?;
    let location = location.to_str().unwrap_or_default();
    let place = match location.parse::<Uri>().ok().as_ref().and_then(origin::of) {
        Some(origin) => origin,
        None => location.split(['?', '#']).next().unwrap_or_default().to_owned(),
    };
    Some(printable_words(&place))
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(|text| text.trim().to_ascii_lowercase())
}

async fn before<T>(deadline: Instant, wait: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout_at(deadline.into(), wait).await.ok()
}
