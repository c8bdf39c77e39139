//! Requests on their way up: what is kept of the client's, what is added, and whether their bytes have left.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::event_log::{BoxBody, BoxError, Stream};
use crate::protocol::headers;

/// A request to the endpoint that can be sent: once, and again where nothing of it had left.
#[derive(Clone)]
pub struct Template {
    method: Method,
    headers: HeaderMap,
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
    /// A request whose headers are fit for the endpoint. The framing is ours: a length without its bytes would make the server
    /// read the next request as a body.
    pub(super) fn new(method: Method, mut headers: HeaderMap, query: Option<String>, body: Bytes) -> Self {
        headers.remove(EXPECT);
        if body.is_empty() {
            headers.remove(CONTENT_LENGTH);
        } else {
            headers.insert(CONTENT_LENGTH, body.len().into());
        }
        Self { method, headers, query, body }
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

    /// Its headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The client's query.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The headers for another request in the name of this one: without those that speak of this one's body.
    pub fn own_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.remove(headers::names::IDEMPOTENCY_KEY);
        headers.remove(headers::names::MCP_METHOD);
        headers.remove(headers::names::MCP_NAME);
        headers
    }

    /// The same with this header, in place of any of that name.
    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The same call as a GET that asks for the rest after `last_event_id`, one of the upstream's own.
    pub fn to_get(&self, last_event_id: Option<&[u8]>) -> Self {
        let mut headers = self.own_headers();
        headers.remove(http::header::CONTENT_TYPE);
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            headers.insert(headers::names::LAST_EVENT_ID.clone(), id);
        }
        Self::new(Method::GET, headers, self.query.clone(), Bytes::new())
    }

    pub(super) fn to_request(&self, target: Uri, taken: &Taken, sent: Option<&Arc<Stream>>) -> Request<Body> {
        let mut request = Request::new(Body::Whole {
            bytes: Some(self.body.clone()).filter(|bytes| !bytes.is_empty()),
            taken: taken.clone(),
            sent: sent.cloned(),
        });
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = target;
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// Whether a connection has taken a request's body, so that the upstream may act on it. A request that no connection took was
/// not sent, whatever the error says.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Of a body that passes through, or is empty and never asked for: nobody can tell.
    pub(super) fn passing() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub(super) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The body of a request on its way up.
pub enum Body {
    /// In memory. Polling it is what tells that the head has been written before it.
    Whole {
        /// What is left.
        bytes: Option<Bytes>,
        /// Told when a connection takes it.
        taken: Taken,
        /// The stream whose request it is.
        sent: Option<Arc<Stream>>,
    },
    /// Passing through.
    Passing(BoxBody),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Body::Whole { bytes, taken, sent } => {
                taken.take();
                if let Some(stream) = sent.take() {
                    stream.note_sent();
                }
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Body::Passing(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole { bytes, .. } => bytes.is_none(),
            Body::Passing(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole { bytes, .. } => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Body::Passing(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_client() {
        let headers: HeaderMap =
            [(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer hunter2"))].into_iter().collect();
        let template = Template::new(Method::POST, headers, Some("key=hunter2".into()), Bytes::from_static(b"hunter2"));
        let shown = format!("{template:?}");
        assert!(shown.contains("POST") && !shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    }
}
