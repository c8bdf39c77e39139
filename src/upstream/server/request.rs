//! Requests to the upstream: the client headers that are kept, and the headers that are added.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::sent::Sent;
use super::sent_flag::SentFlag;
use crate::body::{BoxBody, BoxError};
use crate::channel::{Caller, StartKind};
use crate::event_log::{Handshake, SentRequest, UpstreamName};
use crate::protocol::headers::{self, Lines};
use crate::protocol::trace::{TRACEPARENT, TRACESTATE, TraceContext, TraceId};

/// Beginning of an `Authorization` of AWS Signature Version 4, which signs one request.
const SIGNED: &[u8] = b"AWS4-";

/// A request to the endpoint. It is sent once, and again only if no byte of it had left.
#[derive(Clone)]
pub struct Template {
    method: Method,
    /// Headers, except the headers of the body.
    lines: Lines,
    /// Origin of the page that sent the request, or `None` without such a header.
    origin: Option<HeaderValue>,
    query: Option<String>,
    body: Bytes,
    /// Caller that servers are started for, or `None` if no servers are started.
    caller: Option<Arc<Caller>>,
    /// Occasion of a server start that an `initialize` needs.
    start_kind: StartKind,
}

/// Masked: the headers and sometimes the query hold credentials, and the body may hold anything.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Gives the body of the request.
impl AsRef<[u8]> for Template {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl SentRequest for Template {
    fn head(&self) -> [&[u8]; 2] {
        [self.query.as_deref().unwrap_or_default().as_bytes(), self.lines.as_bytes()]
    }

    fn body(&self) -> &[u8] {
        &self.body
    }
}

impl Template {
    /// Creates a request for the endpoint. `lines` must not describe the body: a length without its
    /// bytes would make the server read the next request as a body. `parts` is the client's, and
    /// `origin` its header.
    pub(in crate::upstream) fn new(parts: &Parts, origin: Option<&HeaderValue>, lines: Lines, body: Bytes) -> Self {
        let origin = origin.and_then(|origin| HeaderValue::from_bytes(origin.as_bytes()).ok());
        let query = parts.uri.query().map(Into::into);
        Self { method: parts.method.clone(), lines, origin, query, body, caller: None, start_kind: StartKind::First }
    }

    /// Returns another request with the caller and query of this one.
    pub(in crate::upstream) fn beside(&self, method: Method, headers: &HeaderMap, body: Bytes) -> Self {
        let (origin, query, caller) = (self.origin.clone(), self.query.clone(), self.caller.clone());
        Self { method, lines: headers.into(), origin, query, body, caller, start_kind: StartKind::First }
    }

    /// Returns the same request of this caller. A server may be started for it.
    pub fn for_caller(self, caller: Option<Arc<Caller>>) -> Self {
        Self { caller, ..self }
    }

    /// Returns the same request, marked as the revival of a session.
    pub(in crate::upstream) fn for_revival(self) -> Self {
        Self { start_kind: StartKind::Revival, ..self }
    }

    /// Returns the occasion of a server start that an `initialize` needs.
    pub(in crate::upstream) fn start_kind(&self) -> StartKind {
        self.start_kind
    }

    /// Returns the caller that a server may be started for.
    pub(in crate::upstream) fn caller(&self) -> Option<&Arc<Caller>> {
        self.caller.as_ref()
    }

    /// Creates a request without an origin and without a client query.
    pub(in crate::upstream) fn plain(method: Method, headers: &HeaderMap, body: Bytes) -> Self {
        let (lines, start_kind) = (headers.into(), StartKind::First);
        Self { method, lines, origin: None, query: None, body, caller: None, start_kind }
    }

    /// Returns true if the request has no body.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Returns the method.
    pub(in crate::upstream) fn method(&self) -> &Method {
        &self.method
    }

    /// Returns the body.
    pub(in crate::upstream) fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the headers, except the headers of the body.
    pub(in crate::upstream) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Returns the origin of the page that sent the request, or `None` without such a header.
    pub fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_ref()
    }

    /// Returns the headers, except the headers of the body.
    pub fn into_lines(self) -> Lines {
        self.lines
    }

    /// Returns the same request with another body.
    pub(in crate::upstream) fn with_body(&self, body: Bytes) -> Self {
        Self { body, ..self.clone() }
    }

    /// Returns the call with the credentials of the client's `later` request. Everything that
    /// describes the call stays.
    pub(in crate::upstream) fn going_on(&self, later: &Lines) -> Self {
        let of_the_call = [ACCEPT, CONTENT_TYPE, headers::names::LAST_EVENT_ID];
        let describes_call = |name: &HeaderName| name.as_str().starts_with("mcp-") || of_the_call.contains(name);
        let mut headers = later.to_map();
        let described: Vec<HeaderName> = headers.keys().filter(|name| describes_call(name)).cloned().collect();
        for name in described {
            headers.remove(name);
        }
        for (name, value) in &self.lines.to_map() {
            if describes_call(name) {
                headers.append(name, value.clone());
            }
        }
        Self { lines: Lines::from(&headers), ..self.clone() }
    }

    /// Returns the client's query.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// Returns the headers for another request of the same caller, without the headers of this
    /// body.
    pub fn own_headers(&self) -> HeaderMap {
        let mut headers = self.lines.to_map();
        headers.remove(headers::names::IDEMPOTENCY_KEY);
        headers.remove(headers::names::MCP_RESUME_EPOCH);
        headers.remove(headers::names::MCP_RESUME_HOLD);
        headers.remove(headers::names::DPOP);
        headers.remove(headers::names::MCP_METHOD);
        headers.remove(headers::names::MCP_NAME);
        headers
    }

    /// Removes the credentials other than `Authorization`: API keys, cookies and the query.
    pub(in crate::upstream) fn with_token_alone(self) -> Self {
        let mut headers = self.lines.to_map();
        for name in [headers::names::X_API_KEY, COOKIE] {
            headers.remove(name);
        }
        Self { lines: Lines::from(&headers), query: None, ..self }
    }

    /// Returns the same request below a span of the proxy. The state of another trace is left out.
    pub(in crate::upstream) fn below(&self, parent: TraceContext) -> Self {
        let mut headers = self.lines.to_map();
        if TraceId::from_headers(&headers) != Some(parent.trace) {
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, parent.to_header());
        Self { lines: Lines::from(&headers), ..self.clone() }
    }

    /// Sets this header, and replaces any value of that name.
    pub(in crate::upstream) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        let mut headers = self.lines.to_map();
        headers.insert(name, value);
        self.lines = Lines::from(&headers);
        self
    }

    /// Returns the request with these headers, as [`headers::replace`] sets them.
    pub(in crate::upstream) fn with_headers(&self, added: &[(HeaderName, HeaderValue)]) -> Self {
        let mut headers = self.lines.to_map();
        headers::replace(&mut headers, added);
        Self { lines: Lines::from(&headers), ..self.clone() }
    }

    /// Returns the request under the session's current name, or `None` if it has that name already.
    pub fn renamed_since(&self, handshake: &Handshake) -> Option<Self> {
        let name = handshake.name();
        if self.is_in_session(&name) { None } else { Some(self.clone().in_session(&name)) }
    }

    /// Returns the same request in a session with another name at the server.
    pub(in crate::upstream) fn in_session(mut self, name: &UpstreamName) -> Self {
        let UpstreamName::Renamed(name) = name else { return self };
        let mut headers = self.lines.to_map();
        match name.as_ref().map(|name| HeaderValue::from_str(name.as_str())) {
            Some(Ok(name)) => drop(headers.insert(headers::names::MCP_SESSION_ID, name)),
            Some(Err(_)) | None => drop(headers.remove(headers::names::MCP_SESSION_ID)),
        }
        self.lines = Lines::from(&headers);
        self
    }

    /// Returns the same request outside a session.
    pub(in crate::upstream) fn without_session(self) -> Self {
        self.in_session(&UpstreamName::Renamed(None))
    }

    /// Returns true if the request has a proof or a signature for itself alone: a server refuses
    /// another one with it.
    pub(in crate::upstream) fn has_proof(&self) -> bool {
        let is_signed = |value: &[u8]| value.starts_with(SIGNED);
        self.lines.get(&headers::names::DPOP).is_some() || self.lines.get(&AUTHORIZATION).is_some_and(is_signed)
    }

    /// Returns true if the request names a session.
    pub(in crate::upstream) fn names_session(&self) -> bool {
        self.session_name().is_some()
    }

    /// Returns the server's name of the session, or `None` without a session.
    pub(in crate::upstream) fn session_name(&self) -> Option<&[u8]> {
        self.lines.get(&headers::names::MCP_SESSION_ID)
    }

    /// Returns true if the request has the session's current name at the server.
    pub(in crate::upstream) fn is_in_session(&self, name: &UpstreamName) -> bool {
        let UpstreamName::Renamed(name) = name else { return true };
        self.session_name() == name.as_ref().map(|name| name.as_str().as_bytes())
    }

    /// Returns the same request in the session that `other` names: streams of one session may have
    /// begun under different names.
    pub(in crate::upstream) fn in_session_of(&self, other: &Self) -> Cow<'_, Self> {
        let name = |template: &Self| template.session_name().map(<[u8]>::to_vec);
        let wanted = name(other);
        if name(self) == wanted {
            return Cow::Borrowed(self);
        }
        match wanted.and_then(|name| HeaderValue::from_bytes(&name).ok()) {
            Some(name) => Cow::Owned(self.clone().with(headers::names::MCP_SESSION_ID, name)),
            None => Cow::Borrowed(self),
        }
    }

    /// Returns the same call as a GET for the events after `last_event_id`, an ID of the upstream.
    pub fn to_get(&self, last_event_id: Option<&[u8]>) -> Self {
        let mut headers = self.own_headers();
        headers.remove(http::header::CONTENT_TYPE);
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            headers.insert(headers::names::LAST_EVENT_ID.clone(), id);
        }
        self.beside(Method::GET, &headers, Bytes::new())
    }

    pub(in crate::upstream) fn to_request(
        &self,
        target: Uri,
        sent_flag: &SentFlag,
        sent: Option<&Sent>,
    ) -> Request<Body> {
        let mut request = Request::new(Body::Whole {
            bytes: Some(self.body.clone()).filter(|bytes| !bytes.is_empty()),
            sent_flag: sent_flag.clone(),
            sent: sent.cloned(),
        });
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = target;
        *request.headers_mut() = self.lines.to_map();
        if !self.body.is_empty() {
            request.headers_mut().insert(CONTENT_LENGTH, self.body.len().into());
        }
        request
    }
}

/// Error of a request that its call withdrew before a connection took it.
#[derive(Debug, thiserror::Error)]
#[error("the request was given up")]
struct Withdrawn;

/// Body of a request to the upstream.
pub enum Body {
    /// In memory. A poll shows that the head was written before it.
    Whole {
        /// Unsent bytes.
        bytes: Option<Bytes>,
        /// Flag that is set when a connection takes the body.
        sent_flag: SentFlag,
        /// Record of the request, or `None` for a request without one.
        sent: Option<Sent>,
    },
    /// Passed through.
    Passthrough(BoxBody),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Body::Whole { bytes, sent_flag, sent } => {
                if !sent_flag.mark_sent() {
                    return Poll::Ready(Some(Err(Withdrawn.into())));
                }
                if let Some(sent) = sent.take() {
                    sent.set_sent();
                }
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Body::Passthrough(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole { bytes, .. } => bytes.is_none(),
            Body::Passthrough(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole { bytes, .. } => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Body::Passthrough(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_client() {
        let request = Request::post("/mcp?key=hunter2").header("authorization", "Bearer hunter2").body(()).unwrap();
        let (parts, ()) = request.into_parts();
        let template = Template::new(&parts, None, (&parts.headers).into(), Bytes::from_static(b"hunter2"));
        let shown = format!("{template:?}");
        assert!(shown.contains("POST") && !shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    }
}
