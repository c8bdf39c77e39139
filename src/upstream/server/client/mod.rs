//! Choice of the HTTP client for a call: the proxy's own, or hyper's for HTTP/2.
//!
//! Over HTTP/1.1 every call has a connection of its own. The proxy's own client serves it; hyper's
//! client serves passing bodies and everything else. In TLS the server chooses the version for each
//! connection. The own client connects first. If the server chooses HTTP/2, hyper's client makes
//! this call and all later calls, until a server chooses HTTP/1.1 again.
//!
//! Over HTTP/2 calls share a connection, and servers limit the calls on a connection. A call beyond
//! the limit would wait behind streams that may last for hours. Therefore the number of hyper's
//! clients grows, so that each has at most as many calls as a connection carries.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::HOST;
use http::uri::Authority;
use http::{Request, Response, Uri};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connect::Connector;
use super::http1;
use super::informational::{Endless, Interim};
use super::request::{Body, Template};
use super::response_body::ResponseBody;
use super::sent::Sent;
use super::sent_flag::{Calls, SentFlag, Slot};
use crate::body::Incoming;
use crate::clock;
use crate::protocol::headers;
use crate::sync;

/// Calls on one HTTP/2 connection. Servers should allow at least as many ([RFC 9113 §6.5.2]).
///
/// [RFC 9113 §6.5.2]: https://www.rfc-editor.org/rfc/rfc9113#section-6.5.2
const CALLS_PER_CONNECTION: usize = 100;
/// Limit of calls on a connection before the server's SETTINGS arrive: a server refuses calls
/// beyond its own limit.
const CALLS_BEFORE_SETTINGS: usize = 1;
/// Flow-control window of one response. Unread bytes lie in h2's buffers, and count against no
/// caller's quota.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow-control window of a connection: responses that are not read (their streams are full) never
/// stop the others.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * CALLS_PER_CONNECTION as u32;

/// HTTP version of a client's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    /// By prior knowledge.
    Http2,
    /// Chosen in the TLS handshake.
    Agreed,
}

/// All clients of one upstream.
pub(super) struct Clients {
    connector: Connector,
    version: Version,
    pool_idle: Duration,
    http1: http1::Client,
    first: HyperClient,
    more: Mutex<Vec<HyperClient>>,
}

/// Error of a request without a response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Http1(#[from] http1::Error),
    #[error(transparent)]
    Hyper(#[from] legacy::Error),
    #[error(transparent)]
    Endless(#[from] Endless),
    #[error("the upstream's HTTP/2 connection takes no request")]
    Stuck,
}

impl Error {
    /// Returns true if it is certain that no byte of the request left.
    pub(super) fn is_unsent(&self) -> bool {
        match self {
            Error::Http1(http1::Error::Connect(_) | http1::Error::Http2 | http1::Error::Unsent(_)) => true,
            Error::Http1(http1::Error::Broken(_) | http1::Error::Malformed(_)) | Error::Endless(_) => false,
            Error::Hyper(error) => error.is_connect(),
            Error::Stuck => true,
        }
    }

    /// Returns true if a connection has taken no request during the maximum time of connecting.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(self, Error::Stuck)
    }

    /// Returns true if the upstream sent something other than an HTTP response.
    pub(super) fn is_garbage(&self) -> bool {
        matches!(self, Error::Http1(http1::Error::Malformed(_)) | Error::Endless(_))
    }
}

#[derive(Clone)]
struct HyperClient {
    client: Client<Connector, Body>,
    calls: Arc<Calls>,
}

impl HyperClient {
    /// Resolves once the connection had no call in flight for `timeout`, and took no waiting call
    /// either. The call of `sent_flag` is then withdrawn.
    async fn when_stuck(&self, sent_flag: &SentFlag, timeout: Duration) {
        let mut before = self.calls.sent_if_idle();
        while !sent_flag.is_sent() {
            clock::sleep(timeout).await;
            let now = self.calls.sent_if_idle();
            if now.is_some() && now == before && sent_flag.withdraw() {
                return;
            }
            before = now;
        }
        std::future::pending().await
    }
}

impl Clients {
    /// Creates the clients of one server, without connecting. `host` is the host of requests that
    /// name no host.
    pub(super) fn new(connector: Connector, version: Version, host: &str, pool_idle: Duration) -> Self {
        let first = client(&connector, version, pool_idle);
        let http1 = http1::Client::new(connector.clone(), host.to_owned(), pool_idle);
        Self { connector, version, pool_idle, http1, first, more: Mutex::default() }
    }

    /// Sends a request and waits for the response head, which shares no memory with the
    /// connection's read buffer. Sets `sent_flag` and records it in `sent` once bytes of the
    /// request may have left.
    pub(super) async fn send(
        &self,
        template: &Template,
        target: &Uri,
        sent_flag: &SentFlag,
        sent: Option<&Sent>,
    ) -> Result<Box<Response<ResponseBody>>, Error> {
        if self.is_http1() {
            let absolute = self.connector.http_proxy().map(|_| target.to_string());
            let place = || target.path_and_query().map_or("/", |target| target.as_str());
            let request = http1::Request {
                method: template.method(),
                target: absolute.as_deref().unwrap_or_else(place),
                lines: template.lines(),
                body: template.body(),
            };
            // Nothing else decides on the request while it is written: this task does both.
            let on_sent = || {
                sent_flag.mark_sent();
                if let Some(sent) = sent {
                    sent.set_sent();
                }
            };
            match self.http1.send(request, on_sent, |body| ResponseBody::Http1(Box::new(body))).await {
                Err(http1::Error::Http2) => {}
                response => return Ok(response?),
            }
        }
        // Boxed: every call would otherwise carry the size of this future.
        let mut response =
            Box::pin(self.send_by_hyper(template.to_request(target.clone(), sent_flag, sent), sent_flag)).await?;
        *response.headers_mut() = headers::unpinned(response.headers());
        Ok(Box::new(response))
    }

    /// Returns true if the next connection is HTTP/1.1, as far as is known.
    fn is_http1(&self) -> bool {
        match self.version {
            Version::Http1 => true,
            Version::Http2 => false,
            Version::Agreed => !self.connector.is_http2(),
        }
    }

    /// Sends a request whose body passes through, and waits for the head.
    pub(super) async fn forward(&self, request: Request<Body>) -> Result<Response<ResponseBody>, Error> {
        self.send_by_hyper(request, &SentFlag::always_sent()).await
    }

    async fn send_by_hyper(
        &self,
        mut request: Request<Body>,
        sent_flag: &SentFlag,
    ) -> Result<Response<ResponseBody>, Error> {
        let (client, slot) = match self.version {
            Version::Http1 => (self.first.clone(), None),
            Version::Http2 | Version::Agreed => {
                host_to_authority(&mut request);
                self.client_with_capacity(sent_flag)
            }
        };
        let interim = Interim::of(&mut request);
        let response = tokio::select! {
            biased;
            endless = interim.exceeded() => return Err(endless.into()),
            response = client.client.request(request) => response?,
            () = client.when_stuck(sent_flag, self.connector.ready_timeout()) => return Err(Error::Stuck),
        };
        // A request with a response has arrived, although the server may still expect the rest of
        // its body.
        sent_flag.mark_sent();
        Ok(Incoming::of_response(response, slot).map(ResponseBody::Hyper))
    }

    fn client_with_capacity(&self, sent_flag: &SentFlag) -> (HyperClient, Option<Slot>) {
        let take = |client: &HyperClient| {
            Some((client.clone(), Some(Slot::take(&client.calls, CALLS_PER_CONNECTION, sent_flag)?)))
        };
        if let Some(found) = take(&self.first) {
            return found;
        }
        let mut more = sync::lock(&self.more);
        if let Some(found) = more.iter().find_map(take) {
            return found;
        }
        let client = client(&self.connector, self.version, self.pool_idle);
        let slot = Slot::take(&client.calls, CALLS_PER_CONNECTION, sent_flag);
        more.push(client.clone());
        (client, slot)
    }
}

fn client(connector: &Connector, version: Version, pool_idle: Duration) -> HyperClient {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(pool_idle);
    if version != Version::Http1 {
        builder
            .timer(TokioTimer::new())
            .http2_initial_max_send_streams(CALLS_BEFORE_SETTINGS)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(connector.liveness().ping_after)
            .http2_keep_alive_timeout(connector.liveness().ping_timeout)
            .http2_only(version == Version::Http2);
    }
    HyperClient { client: builder.build(connector.clone()), calls: Arc::default() }
}

/// Moves the `Host` header to the URI's authority. HTTP/2 has no `Host`, and a server may refuse a
/// `Host` that differs from the `:authority`. hyper writes the authority as the connection's
/// version requires.
fn host_to_authority(request: &mut Request<Body>) {
    let Some(host) = request.headers_mut().remove(HOST) else { return };
    let Some(authority) = Authority::try_from(host.as_bytes()).ok().filter(|it| !it.as_str().contains('@')) else {
        return;
    };
    let mut parts = request.uri().clone().into_parts();
    parts.authority = Some(authority);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}
