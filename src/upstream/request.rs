//! Requests on their way up: what is kept of the client's, and what is added.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, COOKIE, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::sent_flag::SentFlag;
use crate::body::{BoxBody, BoxError};
use crate::event_log::Stream;
use crate::protocol::headers::{self, Lines};

/// A request to the endpoint that can be sent: once, and again where nothing of it had left.
#[derive(Clone)]
pub struct Template {
    method: Method,
    /// They say nothing of the body.
    lines: Lines,
    /// The page it comes from, where it says one.
    origin: Option<HeaderValue>,
    query: Option<String>,
    body: Bytes,
}

/// Masked: credentials are in its headers and sometimes in its query, and anything in its body.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("method", &self.method).finish_non_exhaustive()
    }
}

impl Template {
    /// A request whose headers are fit for the endpoint and say nothing of its body. That is ours to say: a length without its
    /// bytes would make the server read the next request as a body. `parts` is the client's.
    pub(super) fn new(parts: &Parts, lines: Lines, body: Bytes) -> Self {
        let origin = parts.headers.get(ORIGIN).and_then(|origin| HeaderValue::from_bytes(origin.as_bytes()).ok());
        let query = parts.uri.query().map(Into::into);
        Self { method: parts.method.clone(), lines, origin, query, body }
    }

    /// Another request in the name of this one.
    pub(super) fn beside(&self, method: Method, headers: &HeaderMap, body: Bytes) -> Self {
        Self { method, lines: headers.into(), origin: self.origin.clone(), query: self.query.clone(), body }
    }

    /// Whether it has no body.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Its method.
    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    /// Its body.
    pub(super) fn body(&self) -> &Bytes {
        &self.body
    }

    /// Its headers, but for those that say something of its body.
    pub(super) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// The page it comes from, where it says one.
    pub fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_ref()
    }

    /// The client's query.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The headers for another request in the name of this one: without those that speak of this one's body.
    pub fn own_headers(&self) -> HeaderMap {
        let mut headers = self.lines.to_map();
        headers.remove(headers::names::IDEMPOTENCY_KEY);
        headers.remove(headers::names::MCP_METHOD);
        headers.remove(headers::names::MCP_NAME);
        headers
    }

    /// The same without the credentials that stand beside `Authorization`: API keys, cookies and the query.
    pub(super) fn with_token_alone(self) -> Self {
        let mut headers = self.lines.to_map();
        [headers::names::X_API_KEY, COOKIE].iter().for_each(|name| drop(headers.remove(name)));
        Self { lines: Lines::from(&headers), query: None, ..self }
    }

    /// The same with this header, in place of any of that name.
    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        let mut headers = self.lines.to_map();
        headers.insert(name, value);
        self.lines = Lines::from(&headers);
        self
    }

    /// The same call as a GET that asks for the rest after `last_event_id`, one of the upstream's own.
    pub fn to_get(&self, last_event_id: Option<&[u8]>) -> Self {
        let mut headers = self.own_headers();
        headers.remove(http::header::CONTENT_TYPE);
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            headers.insert(headers::names::LAST_EVENT_ID.clone(), id);
        }
        self.beside(Method::GET, &headers, Bytes::new())
    }

    pub(super) fn to_request(&self, target: Uri, sent_flag: &SentFlag, sent: Option<&Arc<Stream>>) -> Request<Body> {
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

/// The call was given up before a connection took its request.
#[derive(Debug, thiserror::Error)]
#[error("the request was given up")]
struct GivenUp;

/// The body of a request on its way up.
pub enum Body {
    /// In memory. Polling it is what tells that the head has been written before it.
    Whole {
        /// What is left.
        bytes: Option<Bytes>,
        /// Told when a connection takes it.
        sent_flag: SentFlag,
        /// The stream whose request it is.
        sent: Option<Arc<Stream>>,
    },
    /// Passing through.
    Passthrough(BoxBody),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Body::Whole { bytes, sent_flag, sent } => {
                if !sent_flag.mark_sent() {
                    return Poll::Ready(Some(Err(GivenUp.into())));
                }
                if let Some(stream) = sent.take() {
                    stream.note_sent();
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
        let template = Template::new(&parts, (&parts.headers).into(), Bytes::from_static(b"hunter2"));
        let shown = format!("{template:?}");
        assert!(shown.contains("POST") && !shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    }
}
