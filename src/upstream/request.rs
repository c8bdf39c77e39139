//! Requests on their way up: what is kept of the client's, what is added, and whether their bytes have left.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, FORWARDED, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::config::{self, HostHeader};
use crate::event_log::{BoxBody, BoxError, Stream};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers;

const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A request to the endpoint that can be sent: once, and again where nothing of it had left.
#[derive(Clone, Debug)]
pub struct Template {
    method: Method,
    headers: HeaderMap,
    query: Option<String>,
    body: Bytes,
}

impl Template {
    /// A request as the client made it, its headers already made fit by [`to_upstream`].
    pub fn new(method: Method, headers: HeaderMap, query: Option<String>, body: Bytes) -> Self {
        Self { method, headers, query, body }
    }

    /// Whether it has no body.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
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
        headers.remove(MCP_METHOD);
        headers.remove(MCP_NAME);
        headers
    }

    /// The same call as a GET that asks for the rest after `last_event_id`, one of the upstream's own.
    pub fn to_get(&self, last_event_id: Option<&[u8]>) -> Self {
        let mut headers = self.own_headers();
        headers.remove(http::header::CONTENT_TYPE);
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            headers.insert(headers::names::LAST_EVENT_ID.clone(), id);
        }
        Self { method: Method::GET, headers, query: self.query.clone(), body: Bytes::new() }
    }

    pub(super) fn to_request(
        &self,
        target: &str,
        config: &config::Upstream,
        taken: &Taken,
        sent: Option<&Arc<Stream>>,
    ) -> Result<Request<Body>, Failure> {
        let uri = format!("http://{}{target}", config.url.authority());
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(uri)
            .body(Body::Whole {
                bytes: Some(self.body.clone()).filter(|bytes| !bytes.is_empty()),
                taken: taken.clone(),
                sent: sent.cloned(),
            })
            .map_err(|_| Failure::before_run(ErrorCode::BadRequest))?;
        *request.headers_mut() = self.headers.clone();
        let client_host = request.headers_mut().remove(HOST);
        set_host(request.headers_mut(), client_host, config);
        // The client's framing is not ours: a length without its bytes would make the server read the next request as a body.
        request.headers_mut().remove(CONTENT_LENGTH);
        request.headers_mut().remove(EXPECT);
        if !self.body.is_empty() {
            request.headers_mut().insert(CONTENT_LENGTH, self.body.len().into());
        }
        Ok(request)
    }
}

/// Makes a client's headers fit for the endpoint. `Host` stays, for `upstream.host = "client"`.
pub fn to_upstream(from: &HeaderMap, peer: IpAddr) -> HeaderMap {
    let mut to = headers::unpinned(from);
    let host = to.get(HOST).cloned();
    headers::to_upstream(&mut to);
    if let Some(host) = host {
        to.insert(HOST, host);
    }
    add_forwarded(&mut to, peer);
    to
}

/// Says for whom and for which host the request is made, behind what proxies before us said.
pub fn add_forwarded(headers: &mut HeaderMap, peer: IpAddr) {
    let host = headers.get(HOST).cloned();
    append_list(headers, X_FORWARDED_FOR, &peer.to_string());
    let node = match peer {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("\"[{v6}]\""),
    };
    let mut element = format!("for={node};proto=http");
    if let Some(name) = host.as_ref().and_then(|host| host.to_str().ok()) {
        element.push_str(&format!(";host=\"{}\"", name.replace(['"', '\\'], "")));
    }
    append_list(headers, FORWARDED, &element);
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

fn append_list(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(element.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

pub(super) fn set_host(headers: &mut HeaderMap, client: Option<HeaderValue>, config: &config::Upstream) {
    let host = match &config.host {
        HostHeader::Upstream => HeaderValue::from_str(config.url.authority().as_str()).ok(),
        HostHeader::Client => client,
        HostHeader::Name(name) => Some(name.clone()),
    };
    if let Some(host) = host {
        headers.insert(HOST, host);
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

    fn take(&self) {
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
