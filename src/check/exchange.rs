//! One request to the upstream and what is heard of its answer, every wait and size bounded.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, HOST, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use serde_json::Value;

use super::facts::{Form, printable};
use crate::body::BoxBody;
use crate::clock;
use crate::config::{self, Config, HostHeader};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::sse::{Decoder, Event};
use crate::tls;
use crate::upstream::{Body, Forwarded, Upstream};

/// An answer that is larger is not read further.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Redirects followed for one request, as in the proxy.
const MAX_REDIRECTS: usize = 3;
/// A name that no server has ([RFC 6761 §6.4]).
///
/// [RFC 6761 §6.4]: https://www.rfc-editor.org/rfc/rfc6761#section-6.4
const FOREIGN_HOST: HeaderValue = HeaderValue::from_static("mcp-resume-check.invalid");

/// One request of the probe's.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// `None`: the endpoint.
    pub(super) path: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Bytes>,
    /// Without what the user gave.
    pub(super) anonymous: bool,
    /// With a `Host` that is not the server's.
    pub(super) foreign_host: bool,
}

impl Request {
    pub(super) fn new(method: Method, headers: HeaderMap, body: Option<Bytes>) -> Self {
        Self { method, path: None, headers, body, anonymous: false, foreign_host: false }
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// None in time.
    Silent,
    /// The connection broke first.
    Broke,
}

/// Point at which a client leaves.
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

/// Extent of a wait for a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listen {
    /// The request whose response ends the wait.
    pub(super) id: Option<u64>,
    /// The longest wait for all of it.
    pub(super) limit: Duration,
    pub(super) cut: Cut,
}

/// Part of a response received before its end, the cut or the limit.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) status: StatusCode,
    pub(super) form: Form,
    /// Of the head, without parameters.
    pub(super) content_type: Option<String>,
    pub(super) session: Option<SessionId>,
    /// The scheme that `WWW-Authenticate` names.
    pub(super) scheme: Option<String>,
    /// `WWW-Authenticate` whole; not for showing.
    pub(super) challenge: Option<String>,
    /// A redirect that was not followed.
    pub(super) redirects: bool,
    /// The ids of the events, in order.
    pub(super) ids: Vec<Bytes>,
    /// True if the first event had an id and no data.
    pub(super) primed: bool,
    /// Messages, the response included.
    pub(super) messages: usize,
    pub(super) response: Option<Value>,
    pub(super) was_cut: bool,
}

impl Observation {
    /// The result, if the response is one: an object in every revision.
    pub(super) fn result(&self) -> Option<&Value> {
        self.response.as_ref()?.get("result").filter(|result| result.is_object())
    }

    /// The code, if the response is an error.
    pub(super) fn error_code(&self) -> Option<i64> {
        self.response.as_ref()?.get("error")?.get("code")?.as_i64()
    }

    /// Returns true if an event came twice, alone or after `before`.
    pub(super) fn repeats(&self, before: &Observation) -> bool {
        let mut seen: HashSet<&Bytes> = before.ids.iter().collect();
        // A resumed connection may begin with an empty event that names the place again.
        self.ids.iter().skip(usize::from(self.primed)).any(|id| !seen.insert(id))
    }
}

/// A client of the upstream that asks as the proxy does.
pub(super) struct Client {
    upstream: Upstream,
    foreign: Upstream,
    peer: Forwarded,
    /// `Host` of the proxy's clients; it reaches the upstream if `upstream.host` says so.
    host: Option<HeaderValue>,
    headers: HeaderMap,
}

impl Client {
    pub(super) fn new(config: &Config, headers: HeaderMap) -> Result<Self, tls::Error> {
        let foreign = config::Upstream { host: HostHeader::Name(FOREIGN_HOST), ..config.upstream.clone() };
        Ok(Self {
            upstream: Upstream::new(config.upstream.clone())?,
            foreign: Upstream::new(foreign)?,
            peer: Forwarded::new(config.listen.address.ip(), "http", false),
            host: HeaderValue::from_str(&config.listen.address.to_string()).ok(),
            headers,
        })
    }

    /// Returns true if the user gave headers, which may be credentials.
    pub(super) fn has_headers(&self) -> bool {
        !self.headers.is_empty()
    }

    /// Sends a request and reads its response. A response that is read no further is closed.
    pub(super) async fn ask(&self, request: Request, listen: Listen) -> Result<Observation, Failed> {
        let until = clock::now() + listen.limit;
        let answer = before(until, self.send(request)).await.ok_or(Failed::Silent)??;
        let (parts, body) = answer.into_parts();
        let mut heard = head(parts.status, &parts.headers);
        let mut pieces = Pieces { body, until, left: MAX_ANSWER };
        match heard.form {
            _ if listen.cut == Cut::AfterHead => {}
            Form::EventStream => pieces.listen(&mut heard, listen).await,
            Form::Json => {
                heard.response = pieces.document().await.filter(|document| document.is_object());
                heard.messages = usize::from(heard.response.is_some());
            }
            Form::Other => {}
        }
        Ok(heard)
    }

    /// The name of the first event, where the answer is a stream of events.
    pub(super) async fn first_event(&self, request: Request, limit: Duration) -> Option<Bytes> {
        let until = clock::now() + limit;
        let answer = before(until, self.send(request)).await?.ok()?;
        let (parts, body) = answer.into_parts();
        if !parts.status.is_success() || form(&parts.headers) != Form::EventStream {
            return None;
        }
        let mut decoder = Decoder::new(MAX_ANSWER);
        let mut pieces = Pieces { body, until, left: MAX_ANSWER };
        loop {
            decoder.feed(pieces.next().await?);
            if let Some(event) = decoder.poll_event().ok()? {
                return Some(event.name);
            }
        }
    }

    /// A JSON document of the origin.
    pub(super) async fn document(&self, request: Request, limit: Duration) -> Option<Value> {
        let until = clock::now() + limit;
        let answer = before(until, self.send(request)).await?.ok()?;
        let (parts, body) = answer.into_parts();
        if parts.status != StatusCode::OK || form(&parts.headers) != Form::Json {
            return None;
        }
        Pieces { body, until, left: MAX_ANSWER }.document().await
    }

    /// Waits for the head. Redirects that keep the method are followed within the origin.
    async fn send(&self, request: Request) -> Result<http::Response<BoxBody>, Failed> {
        let upstream = if request.foreign_host { &self.foreign } else { &self.upstream };
        let mut target = request.path.clone().unwrap_or_else(|| upstream.endpoint_target(None));
        for _ in 0..=MAX_REDIRECTS {
            let response = upstream.forward(self.build(&request, &target)?, &self.peer).await;
            let response = response.map_err(|failure| match failure.code {
                ErrorCode::UpstreamTimeout => Failed::Silent,
                _ => Failed::Broke,
            })?;
            let keeps = matches!(response.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
            // The upstream's own origin was taken out of it.
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            match next.filter(|next| keeps && next.starts_with('/') && !next.starts_with("//")) {
                Some(next) => target = next.to_owned(),
                None => return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
            }
        }
        Err(Failed::Broke)
    }

    fn build(&self, request: &Request, target: &str) -> Result<http::Request<Body>, Failed> {
        let body: BoxBody = match request.body.clone() {
            Some(body) => Full::new(body).map_err(|never| match never {}).boxed_unsync(),
            None => Empty::new().map_err(|never| match never {}).boxed_unsync(),
        };
        let mut built = http::Request::new(Body::Passthrough(body));
        *built.method_mut() = request.method.clone();
        *built.uri_mut() = target.parse().map_err(|_| Failed::Broke)?;
        let headers = built.headers_mut();
        headers.clone_from(&request.headers);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(host) = &self.host {
            headers.insert(HOST, host.clone());
        }
        if !request.anonymous {
            headers.extend(self.headers.clone());
        }
        Ok(built)
    }
}

/// The rest of an answer.
struct Pieces {
    body: BoxBody,
    until: Instant,
    /// Bytes that are still read.
    left: usize,
}

impl Pieces {
    /// The next piece; `None` at the end, however it came.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = before(self.until, self.body.frame()).await??.ok()?;
            if let Ok(piece) = frame.into_data() {
                self.left = self.left.checked_sub(piece.len())?;
                return Some(piece);
            }
        }
    }

    /// The whole body as JSON; `None` if it is none, or broke off.
    async fn document(&mut self) -> Option<Value> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await {
            whole.extend_from_slice(&piece);
        }
        serde_json::from_slice(&whole).ok()
    }

    async fn listen(&mut self, heard: &mut Observation, listen: Listen) {
        let mut decoder = Decoder::new(MAX_ANSWER);
        let mut events = 0;
        while let Some(piece) = self.next().await {
            decoder.feed(piece);
            while let Ok(Some(event)) = decoder.poll_event() {
                events += 1;
                if heard.take(event, events == 1, listen) {
                    return;
                }
            }
        }
    }
}

impl Observation {
    /// Takes an event; true when nothing after it is wanted.
    fn take(&mut self, event: Event, first: bool, listen: Listen) -> bool {
        let id = event.id.filter(|id| !id.is_empty());
        let numbered = id.is_some();
        self.ids.extend(id);
        if event.data.is_empty() {
            self.primed |= first && numbered;
            self.was_cut = self.primed && listen.cut == Cut::AfterPrime;
            return self.was_cut;
        }
        self.messages += 1;
        let message: Option<Value> = serde_json::from_slice(&event.data).ok();
        let is_response = |message: &Value| {
            let answers = message.get("result").is_some() || message.get("error").is_some();
            answers && listen.id.is_some_and(|id| message.get("id") == Some(&id.into()))
        };
        self.response = message.filter(is_response);
        self.was_cut = numbered && self.response.is_none() && listen.cut == Cut::AfterMessage;
        self.response.is_some() || self.was_cut
    }
}

fn head(status: StatusCode, headers: &HeaderMap) -> Observation {
    let challenge = headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let scheme = challenge.as_deref().and_then(|challenge| challenge.split([' ', ',']).next());
    Observation {
        status,
        form: form(headers),
        content_type: media_type(headers).map(|text| printable(&text)),
        session: SessionId::from_headers(headers),
        scheme: scheme.filter(|scheme| !scheme.is_empty()).map(printable),
        redirects: status.is_redirection() && headers.contains_key(LOCATION),
        challenge,
        ids: Vec::new(),
        primed: false,
        messages: 0,
        response: None,
        was_cut: false,
    }
}

fn form(headers: &HeaderMap) -> Form {
    match media_type(headers).as_deref() {
        Some("text/event-stream") => Form::EventStream,
        Some("application/json") => Form::Json,
        Some(_) | None => Form::Other,
    }
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(|text| text.trim().to_ascii_lowercase())
}

async fn before<T>(until: Instant, wait: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout_at(until.into(), wait).await.ok()
}
