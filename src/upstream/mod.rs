//! Calls to the MCP server. A call outlives the downstream connection that began it.
//!
//! Owned here: the pooled clients, the rewriting of requests, redirects within the origin, and
//! facts observed in responses (accepted credentials, the tokens of one subject, CORS headers).
//! [`pump`] runs one stream's call. Absent: everything downstream.

mod address;
mod body;
mod bridge;
mod channels;
mod client;
mod connect;
mod discovery;
mod forwarded;
mod http1;
mod informational;
mod inline_task;
mod input;
mod late_responses;
mod metrics;
mod observed;
mod ping_headers;
mod pings;
mod pump;
mod reach;
mod recognition;
mod request;
mod response_body;
mod response_observer;
mod revival;
mod sent_flag;
mod server_request_refusals;
mod session_names;
mod sse_reader;
mod sse_server;
mod synthetic;
mod token_probe;
mod token_subjects;
mod tool_schemas;
mod wait;

use std::borrow::Cow;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};

use bridge::Bridge;
pub use bridge::Settings as BridgeSettings;
use channels::exchange_by_channel;
use client::Clients;
use connect::{Connector, Transport};
pub use connect::{Dial, DialFuture, Wire};
pub use forwarded::Forwarded;
use forwarded::ReceivedHeaders;
pub use inline_task::InlineTask;
use late_responses::LateResponses;
pub use metrics::Metrics;
pub use observed::{CredentialKind, Credentials, Observed};
pub use ping_headers::PingHeaders;
pub use pump::{Call, ProgressRule, Pump};
pub use reach::Reachability;
pub use recognition::Recognition;
pub use request::{Body, Template};
pub use response_body::ResponseBody;
pub use response_observer::ResponseObserver;
use revival::Revivals;
use sent_flag::SentFlag;
use session_names::{OwnName, SessionNames};
pub use sse_server::SseServer;
pub use synthetic::gap_warning;
pub use token_probe::ProbeOutcome;
pub use token_subjects::{ProbeGuard, ProbeWaiter, TokenSubjects, TokenUse};

use crate::channel::Channels;
use crate::config::{self, HostHeader, UpstreamUrl};
use crate::event_log::{Handshakes, Stream};
use crate::otel::Span;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, Line, Lines};
use crate::protocol::http1::{Error as HeadError, check_length};
use crate::protocol::ids::Owner;
use crate::protocol::session_refusal::SessionRefusals;
use crate::tls::{self, ClientFiles};

/// Limit of redirects for one request: more is a loop.
const MAX_REDIRECTS: usize = 3;
/// Usual size of a request's headers. For larger ones memory is allocated once more.
const USUAL_HEAD: usize = 512;

/// A request without a response.
#[derive(Debug)]
struct Unanswered {
    failure: Failure,
    /// True if no connection to the server could be made, or none that took a byte of the request.
    /// A failed TLS handshake is no such case: a server that is restarted does not mend it.
    is_unconnected: bool,
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self { failure, is_unconnected: false }
    }
}

/// The MCP server behind the proxy.
pub struct Upstream {
    clients: Clients,
    connector: Connector,
    /// Channels to a server that is not on Streamable HTTP, in place of `clients`: from the start,
    /// or once it was recognised.
    channels: Arc<OnceLock<Arc<Channels>>>,
    /// Search for the transport of a server that is configured as one on Streamable HTTP.
    recognition: Option<Arc<Recognition>>,
    config: config::Upstream,
    /// `Host` of every request, or `None` for the client's.
    host: Option<HeaderValue>,
    /// URI of the endpoint with the configured query.
    endpoint: Option<Uri>,
    observed: Arc<Observed>,
    late_responses: Arc<LateResponses>,
    sessions: Arc<SessionNames>,
    revivals: Arc<Revivals>,
    ping_headers: Arc<PingHeaders>,
    /// Bridge to a server of another era, or `None` if nothing is translated.
    bridge: Option<Arc<Bridge>>,
}

impl Upstream {
    /// Creates a client for the configured upstream. Connects nothing yet.
    ///
    /// # Errors
    /// If the TLS files cannot be loaded.
    pub fn new(config: config::Upstream) -> Result<Self, tls::Error> {
        let transport = if config.url.is_https() { Transport::tls(&config.tls)? } else { Transport::Tcp };
        Ok(Self::by(Connector::new(transport, &config)?, config))
    }

    /// Creates a client for the configured upstream with connections from `dialer`, without TLS.
    ///
    /// # Errors
    /// None at present.
    pub fn with_dialer(config: config::Upstream, dialer: Arc<dyn Dial>) -> Result<Self, tls::Error> {
        Ok(Self::by(Connector::new(Transport::Dialed(dialer), &config)?, config))
    }

    fn by(connector: Connector, config: config::Upstream) -> Self {
        let version = match (config.url.is_https(), config.http2) {
            (true, _) => client::Version::Agreed,
            (false, true) => client::Version::Http2,
            (false, false) => client::Version::Http1,
        };
        let clients = Clients::new(connector.clone(), version, config.url.authority().as_str(), config.pool_idle);
        let host = match &config.host {
            HostHeader::Upstream => HeaderValue::from_str(config.url.authority().as_str()).ok(),
            HostHeader::Client => None,
            HostHeader::Name(name) => Some(name.clone()),
        };
        let mut upstream = Self {
            clients,
            connector,
            channels: Arc::default(),
            recognition: None,
            config,
            host,
            endpoint: None,
            observed: Arc::default(),
            late_responses: Arc::default(),
            sessions: Arc::default(),
            revivals: Arc::new(Revivals::new(SessionRefusals::default(), false, Duration::ZERO)),
            ping_headers: Arc::default(),
            bridge: None,
        };
        upstream.endpoint = upstream.uri(&upstream.endpoint_target(None)).ok();
        upstream
    }

    /// Returns the same upstream with connections of its own. A connection belongs to the runtime
    /// it was made on; requests from another runtime would pass between threads.
    pub fn with_own_connections(&self) -> Self {
        let (observed, sessions) = (self.observed.clone(), self.sessions.clone());
        let (revivals, ping_headers) = (self.revivals.clone(), self.ping_headers.clone());
        let (channels, recognition) = (self.channels.clone(), self.recognition.clone());
        Self {
            observed,
            late_responses: self.late_responses.clone(),
            sessions,
            revivals,
            ping_headers,
            channels,
            recognition,
            bridge: self.bridge.clone(),
            ..Self::by(self.connector.clone(), self.config.clone())
        }
    }

    /// Returns the same upstream with `owner`, if any, in the session names that clients see, and
    /// with these rules for sessions that the server has forgotten. `handshakes` has the sessions
    /// that can be opened again.
    pub fn with_sessions(self, owner: Option<Owner>, config: &config::Sessions, handshakes: Arc<Handshakes>) -> Self {
        let handshakes = if config.revive { Some(handshakes) } else { None };
        let refusals = SessionRefusals::new(config.refusals.clone());
        Self {
            sessions: Arc::new(SessionNames::new(owner, handshakes)),
            revivals: Arc::new(Revivals::new(refusals, config.revive, config.keep)),
            ..self
        }
    }

    /// Returns the same upstream with a bridge for clients of another era.
    pub fn with_bridge(self, settings: bridge::Settings) -> Self {
        let bridge = Bridge::new(settings, Arc::new(self.with_own_connections()));
        Self { bridge: Some(bridge), ..self }
    }

    /// Returns true if requests may be translated: each caller has a session then.
    pub fn may_bridge(&self) -> bool {
        self.bridge.as_ref().is_some_and(|bridge| bridge.may_translate())
    }

    /// Returns true if the proxy may keep the sessions of older clients, each for its caller.
    pub fn bridges_older_clients(&self) -> bool {
        self.bridge.as_ref().is_some_and(|bridge| bridge.has_legacy_clients())
    }

    /// Ends what a bridge has at the server: calls that wait for their clients, and sessions. Takes
    /// three seconds at most.
    pub async fn end_bridge(&self) {
        if let Some(bridge) = &self.bridge {
            bridge.end().await;
        }
    }

    /// Notes that a client names a session that the proxy keeps in the server's place, or has kept
    /// before a restart.
    pub fn note_bridged_session(&self) {
        if let Some(bridge) = &self.bridge {
            bridge.note_bridged_session();
        }
    }

    /// Returns true if the request is one in a session that the proxy keeps in the server's place.
    fn names_bridged_session(&self, template: &Template) -> bool {
        self.bridge.as_ref().is_some_and(|bridge| bridge.keeps_session_of(template))
    }

    /// Notes that a client has begun a session, to which the server has given a name or none.
    fn note_begun(&self, is_named: bool) {
        if let Some(bridge) = &self.bridge {
            bridge.note_begun(is_named);
        }
    }

    /// Sets the attributes that name the server in the span of a request.
    fn describe_in(&self, span: &mut Span) {
        if self.config.command.is_some() {
            return span.set("network.transport", "pipe");
        }
        let authority = self.config.url.authority();
        span.set("server.address", authority.host().to_owned());
        let default_port = if self.config.url.is_https() { 443 } else { 80 };
        span.set("server.port", i64::from(authority.port_u16().unwrap_or(default_port)));
    }

    /// Returns the facts observed in responses.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Returns the calls whose responses came late.
    fn late_responses(&self) -> &LateResponses {
        &self.late_responses
    }

    /// Returns the headers of pings in sessions whose own were refused.
    pub fn ping_headers(&self) -> &PingHeaders {
        &self.ping_headers
    }

    /// Returns the TLS files, or `None` without TLS. New connections use the newest.
    pub fn tls_files(&self) -> Option<&Arc<ClientFiles>> {
        self.connector.tls_files()
    }

    /// Returns the path of the endpoint, which is the same on both sides.
    pub fn endpoint_path(&self) -> &str {
        self.config.url.endpoint_path()
    }

    /// Returns the reachability of the server, after an attempt if the last check began a second
    /// ago or more. Takes half a second at most.
    pub async fn reachability(&self) -> Reachability {
        match self.channels.get() {
            Some(channels) if !channels.is_available() => Reachability::Lost,
            Some(_) if self.config.command.is_some() => Reachability::Accepting,
            Some(_) | None => self.connector.reachability().await,
        }
    }

    /// Returns whether sessions that the server has forgotten are opened again.
    pub fn revives_sessions(&self) -> bool {
        self.revivals.is_enabled()
    }

    /// Returns true if the upstream is also resumed after hard cuts.
    pub fn resumes_hard_cuts(&self) -> bool {
        self.config.resume
    }

    /// Makes a client's POST or GET a call to the endpoint.
    pub fn call(&self, parts: &Parts, client: &Forwarded, body: Bytes) -> Template {
        self.template(parts, headers::to_upstream(&parts.headers), client, body)
    }

    /// Makes a client's request a request to the endpoint that is no call: `Accept` and
    /// `Accept-Encoding` stay the client's.
    pub fn pass(&self, parts: &Parts, client: &Forwarded, body: Bytes) -> Template {
        self.template(parts, headers::to_endpoint(&parts.headers), client, body)
    }

    fn template<'a>(
        &self,
        parts: &'a Parts,
        kept: impl Iterator<Item = Line<'a>>,
        client: &Forwarded,
        body: Bytes,
    ) -> Template {
        let lines = self.address(kept, parts.headers.get(HOST), client, Some(&self.sessions));
        Template::new(parts, lines, body)
    }

    /// Builds the headers of a request: the client's `kept` headers, the host, the forwarding
    /// headers, and the session under the server's name for it.
    fn address<'a>(
        &self,
        kept: impl Iterator<Item = Line<'a>>,
        client_host: Option<&HeaderValue>,
        client: &Forwarded,
        sessions: Option<&SessionNames>,
    ) -> Lines {
        let mut lines = Lines::with_capacity(USUAL_HEAD);
        if let Some(host) = self.host.as_ref().or(client_host) {
            lines.push(&HOST, host);
        }
        let mut received = ReceivedHeaders::default();
        for (name, value) in kept {
            if client.collects((name, value), &mut received) {
                continue;
            }
            match sessions.map_or(OwnName::Unchanged, |sessions| sessions.own_name(name, value)) {
                OwnName::Unchanged => lines.push(name, value),
                OwnName::Part(own) => lines.push_pieces(name, [own]),
                OwnName::Renamed(Some(own)) => lines.push_pieces(name, [own.as_str().as_bytes()]),
                OwnName::Renamed(None) => {}
            }
        }
        client.append_to(&received, client_host, &mut lines);
        lines
    }

    /// Sends a request to the endpoint and waits for the response head. Follows 307 and 308 within
    /// the origin, with the body. A request whose bytes were written is never sent again. Does not
    /// wait for a server that accepts no connections.
    pub async fn send(
        &self,
        template: &Template,
        sent: Option<&Arc<Stream>>,
    ) -> Result<Response<ResponseBody>, Failure> {
        self.send_once(template, sent).await.map_err(|unanswered| unanswered.failure)
    }

    /// Does as [`Self::send`], with the session of the response under the server's name.
    async fn send_unnamed(&self, template: &Template) -> Result<Response<ResponseBody>, Failure> {
        self.send_bridged(template, None).await.map_err(|unanswered| unanswered.failure)
    }

    async fn send_once(
        &self,
        template: &Template,
        sent: Option<&Arc<Stream>>,
    ) -> Result<Response<ResponseBody>, Unanswered> {
        let mut response = self.send_bridged(template, sent).await?;
        let is_new = self.sessions.has_renamed() && !template.names_session();
        self.sessions.wrap(response.headers_mut(), is_new);
        Ok(response)
    }

    /// Sends a request to the server, or to the bridge in its place.
    async fn send_bridged(
        &self,
        template: &Template,
        sent: Option<&Arc<Stream>>,
    ) -> Result<Response<ResponseBody>, Unanswered> {
        let bridge = self.bridge.as_ref();
        if let Some(bridge) = bridge.filter(|bridge| bridge.may_concern(template))
            && let Some(answer) = Box::pin(bridge.send(self, template, sent)).await
        {
            return answer;
        }
        let response = self.exchange(template, sent).await?;
        match bridge {
            Some(bridge) if bridge.may_be_refusal(&response, self.has_channels()) => {
                Box::pin(bridge.after_refusal(self, template, response)).await
            }
            Some(_) | None => Ok(response),
        }
    }

    /// Sends a request and waits for the response head. Follows redirects; see [`Self::send`].
    async fn exchange(
        &self,
        template: &Template,
        sent: Option<&Arc<Stream>>,
    ) -> Result<Response<ResponseBody>, Unanswered> {
        if let Some(channels) = self.channels.get()
            && self.is_for_channel(template)
        {
            return Ok(exchange_by_channel(channels, template, sent).await);
        }
        let target = match (template.query(), &self.endpoint) {
            (None, Some(endpoint)) => Cow::Borrowed(endpoint),
            (query, _) => Cow::Owned(self.uri(&self.endpoint_target(query))?),
        };
        let response = self.exchange_at(template, target, sent).await?;
        match &self.recognition {
            Some(recognition) if Recognition::may_concern(response.status()) => {
                Ok(Box::pin(self.recognise(recognition, template, response, sent)).await)
            }
            Some(_) | None => Ok(response),
        }
    }

    /// Does as [`Self::exchange`], with a place other than the endpoint.
    async fn exchange_at(
        &self,
        template: &Template,
        mut target: Cow<'_, Uri>,
        sent: Option<&Arc<Stream>>,
    ) -> Result<Response<ResponseBody>, Unanswered> {
        for _ in 0..=MAX_REDIRECTS {
            let sent_flag = if template.is_empty() { SentFlag::always_sent() } else { SentFlag::default() };
            let response = {
                let sending = pin!(self.clients.send(template, &target, &sent_flag, sent));
                self.await_head(sending, &sent_flag).await?
            };
            match self.redirect_target(&response) {
                Some(next) => target = Cow::Owned(self.uri(&next)?),
                None => return Ok(response),
            }
        }
        Err(Failure::after_send(ErrorCode::UpstreamGarbage).into())
    }

    /// Sends a request for any path with its body, and waits for the response head.
    pub async fn forward(
        &self,
        mut request: Request<Body>,
        client: &Forwarded,
    ) -> Result<Response<ResponseBody>, Failure> {
        if let Some(channels) = self.channels.get()
            && self.recognition.is_none()
        {
            return Ok(Box::pin(self.forward_by_channel(channels, request, client)).await);
        }
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let client_host = request.headers().get(HOST);
        // Sessions of other paths are not the endpoint's.
        let is_endpoint = self.config.url.is_endpoint(request.uri().path());
        let sessions = if is_endpoint { Some(&*self.sessions) } else { None };
        let lines = self.address(headers::end_to_end(request.headers()), client_host, client, sessions);
        *request.headers_mut() = lines.to_map();
        *request.uri_mut() = self.uri(&path)?;
        *request.version_mut() = Version::HTTP_11;
        let sending = pin!(self.clients.forward(request));
        let head = self.await_head(sending, &SentFlag::always_sent()).await;
        let mut response = head.map_err(|unanswered| unanswered.failure)?;
        headers::remove_hop_by_hop(response.headers_mut());
        if let Some(sessions) = sessions {
            sessions.wrap(response.headers_mut(), false);
        }
        self.rewrite_location(response.headers_mut());
        Ok(response)
    }

    async fn await_head(
        &self,
        sending: Pin<&mut impl Future<Output = Result<Response<ResponseBody>, client::Error>>>,
        sent_flag: &SentFlag,
    ) -> Result<Response<ResponseBody>, Unanswered> {
        let outcome = match self.config.header_timeout {
            Some(limit) => tokio::time::timeout(limit, sending).await.map_err(|_| ErrorCode::UpstreamTimeout),
            None => Ok(sending.await),
        };
        let code = match outcome {
            // No request asks for another protocol.
            Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => ErrorCode::UpstreamGarbage,
            Ok(Ok(mut response)) => match check_head(&mut response) {
                Ok(()) => {
                    self.observed.note_any_status(response.status());
                    return Ok(response);
                }
                Err(_) => ErrorCode::UpstreamGarbage,
            },
            Ok(Err(error)) if error.is_unsent() || sent_flag.withdraw() => {
                let code = if is_caused_by_limit(&error) {
                    ErrorCode::TooManyConnections
                } else if error.is_stuck() || is_caused_by_timeout(&error) {
                    ErrorCode::UpstreamTimeout
                } else {
                    ErrorCode::Unreachable
                };
                // A server whose HTTP/2 connection takes no request is there.
                let is_unconnected =
                    code != ErrorCode::TooManyConnections && !error.is_stuck() && !is_caused_by_tls(&error);
                return Err(Unanswered { failure: Failure::before_run(code), is_unconnected });
            }
            // The server promises that it did not process the request.
            Ok(Err(error)) if is_refused_stream(&error) => {
                return Err(Failure::before_run(ErrorCode::UpstreamBroke).into());
            }
            Ok(Err(error)) if error.is_garbage() => ErrorCode::UpstreamGarbage,
            Ok(Err(_)) => ErrorCode::UpstreamBroke,
            Err(code) => code,
        };
        // The connection may be about to take the request at this moment.
        Err(match sent_flag.withdraw() {
            true => Unanswered { failure: Failure::before_run(code), is_unconnected: true },
            false => Failure::after_send(code).into(),
        })
    }
}

/// Checks the length that a head declares. The proxy's own client has checked it.
fn check_head(response: &mut Response<ResponseBody>) -> Result<(), HeadError> {
    match response.body() {
        ResponseBody::Http1(_) | ResponseBody::Whole(_) | ResponseBody::Messages(_) | ResponseBody::Begun(_) => Ok(()),
        ResponseBody::Hyper(_) => check_length(response.status(), response.headers_mut()),
    }
}

fn origin(url: &UpstreamUrl) -> Uri {
    let parts = Uri::builder().scheme(url.scheme()).authority(url.authority().clone()).path_and_query("/");
    parts.build().expect("the parts were taken from a URL")
}

fn is_caused_by_timeout(error: &(dyn Error + 'static)) -> bool {
    let timed_out = |io: &std::io::Error| io.kind() == std::io::ErrorKind::TimedOut;
    causes(error).any(|cause| cause.downcast_ref().is_some_and(timed_out))
}

/// Returns true for a failed TLS handshake: the server is there, and does not speak TLS or shows a
/// wrong certificate.
fn is_caused_by_tls(error: &(dyn Error + 'static)) -> bool {
    let is_invalid = |io: &std::io::Error| io.kind() == std::io::ErrorKind::InvalidData;
    causes(error).any(|cause| cause.downcast_ref().is_some_and(is_invalid))
}

fn is_caused_by_limit(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(<dyn Error>::is::<connect::TooMany>)
}

fn is_refused_stream(error: &(dyn Error + 'static)) -> bool {
    let refused = |error: &h2::Error| error.is_remote() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    causes(error).any(|cause| cause.downcast_ref().is_some_and(refused))
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}
