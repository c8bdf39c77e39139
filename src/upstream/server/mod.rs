//! The MCP server by its transport: Streamable HTTP, or channels in its place.
//!
//! Owned here: [`Exchange`], the interface between the layers of the upstream, and [`Server`],
//! which chooses the transport. Absent: session names, the bridge, and revival, which are layers
//! above.

mod address;
pub(super) mod attempts;
pub(super) mod body;
mod channels;
mod client;
mod connect;
pub(super) mod exchange;
pub(super) mod http;
mod http1;
mod informational;
mod log_pause;
mod open_sockets;
mod own_error;
pub(super) mod protected_resource;
mod proxy;
pub(super) mod reach;
mod recognition;
mod redirects;
pub(super) mod request;
mod resolver;
pub(super) mod response_body;
pub(super) mod sent;
mod sent_flag;
mod session_cookies;
pub(super) mod sse_reader;
mod sse_server;
mod strangers;
pub(super) mod synthetic;
mod tls_faults;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::http::{HeaderMap, Method, Request};

use self::channels::{exchange_by_channel, forward_by_channel};
pub use self::connect::{Dial, DialFuture, Wire};
use self::exchange::{Exchange, Exchanged, ExchangedInBox};
use self::http::HttpServer;
pub use self::open_sockets::probe_open_connections;
use self::protected_resource::ProtectedResource;
use self::reach::Reachability;
pub use self::recognition::Recognition;
use self::request::{Body, Template};
use self::sent::Sent;
pub use self::sse_server::SseServer;
use crate::channel::{Caller, Channels};
use crate::config::{self, PublicUrl};
use crate::otel::Span;
use crate::protocol::headers::Lines;
use crate::protocol::ids::Owner;
use crate::tls::{self, ClientFiles};

/// The MCP server behind the proxy.
pub struct Server {
    http: HttpServer,
    /// Channels to a server that is not on Streamable HTTP, in place of `http`: from the start, or
    /// once it was recognised.
    channels: Arc<OnceLock<Arc<Channels>>>,
    /// Search for the transport of a server that is configured as Streamable HTTP.
    recognition: Option<Arc<Recognition>>,
    /// Owner in the names of sessions, set once the server is known to be on channels.
    owner: Arc<OnceLock<Owner>>,
}

impl Server {
    /// Creates a client for the configured server. Connects nothing yet.
    ///
    /// # Errors
    /// If the TLS files cannot be loaded.
    pub fn new(config: config::Upstream) -> Result<Self, tls::Error> {
        HttpServer::new(config).map(Self::on_http)
    }

    /// Creates a client for the configured server with connections from `dialer`, without TLS.
    ///
    /// # Errors
    /// None at present.
    pub fn with_dialer(config: config::Upstream, dialer: Arc<dyn Dial>) -> Result<Self, tls::Error> {
        HttpServer::with_dialer(config, dialer).map(Self::on_http)
    }

    fn on_http(http: HttpServer) -> Self {
        Self { http, channels: Arc::default(), recognition: None, owner: Arc::default() }
    }

    /// Returns the same server with channels in place of Streamable HTTP.
    pub fn with_channels(self, channels: Arc<Channels>) -> Self {
        Self { channels: Arc::new(channels.into()), ..self }
    }

    /// Returns the same server, which can be recognised as HTTP+SSE.
    pub fn with_recognition(self, recognition: Recognition) -> Self {
        Self { recognition: Some(Arc::new(recognition)), ..self }
    }

    /// Returns the same server under the URL that clients type, or as it is without one.
    pub fn with_public_url(self, public: Option<&Arc<PublicUrl>>) -> Self {
        Self { http: self.http.with_resource(public.cloned().map(ProtectedResource::new)), ..self }
    }

    /// Returns the same server with connections of its own; channels are shared.
    pub(super) fn with_own_connections(&self) -> Self {
        Self {
            http: self.http.with_own_connections(),
            channels: self.channels.clone(),
            recognition: self.recognition.clone(),
            owner: self.owner.clone(),
        }
    }

    /// Returns the server on HTTP.
    pub(super) fn http(&self) -> &HttpServer {
        &self.http
    }

    /// Returns the owner in the names of sessions, which a recognised server sets.
    pub(super) fn owner(&self) -> &Arc<OnceLock<Owner>> {
        &self.owner
    }

    /// Returns true if the server is not on Streamable HTTP. Callers then have servers or event
    /// streams of their own.
    pub fn has_channels(&self) -> bool {
        self.channels.get().is_some()
    }

    /// Returns the time limit for the start of a server on a channel, or `None` for Streamable
    /// HTTP.
    pub(super) fn start_limit(&self) -> Option<Duration> {
        self.channels.get().map(|channels| channels.start_limit())
    }

    /// Ends the servers on channels; see [`Channels::replace_servers`]. Does nothing on Streamable
    /// HTTP.
    pub async fn replace_servers(&self) {
        if let Some(channels) = self.channels.get() {
            channels.replace_servers().await;
        }
    }

    /// Ends all channels.
    pub(super) async fn end_channels(&self) {
        if let Some(channels) = self.channels.get() {
            channels.end_all().await;
        }
    }

    /// Records that the server has opened a session, which excludes HTTP+SSE from now on.
    pub(super) fn record_session(&self) {
        if let Some(recognition) = &self.recognition
            && !self.has_channels()
        {
            recognition.mark_streamable();
        }
    }

    /// Returns the reachability of the server, after an attempt if the last check began a second
    /// ago or more. Takes half a second at most.
    pub async fn reachability(&self) -> Reachability {
        match self.channels.get() {
            Some(channels) if !channels.is_available() => Reachability::Lost,
            Some(_) if self.http.config.command.is_some() => Reachability::Accepting,
            Some(_) | None => self.http.reachability().await,
        }
    }

    /// Returns the TLS files, or `None` without TLS. New connections use the newest.
    pub fn tls_files(&self) -> Option<&Arc<ClientFiles>> {
        self.http.tls_files()
    }

    /// Returns true if a response is also resumed at the server after a hard cut.
    pub fn resumes_hard_cuts(&self) -> bool {
        self.http.config.resume
    }

    /// Returns the time to resume the response of a call at the server after a break, or `None` if
    /// each response is resumed once.
    pub fn resumes_for(&self) -> Option<Duration> {
        self.http.config.resume_for
    }

    /// Returns the path of the endpoint, which is the same on both sides.
    pub fn endpoint_path(&self) -> &str {
        self.http.config.url.endpoint_path()
    }

    /// Returns the path and query of the endpoint: the configured query is always sent, the
    /// client's is added.
    pub fn endpoint_target(&self, client_query: Option<&str>) -> String {
        self.http.endpoint_target(client_query)
    }

    /// Rewrites a `Location` that names the server to a reference that is valid at the proxy.
    pub fn rewrite_location(&self, headers: &mut HeaderMap) {
        self.http.rewrite_location(headers);
    }

    /// Sets the attributes that name the server in the span of a request.
    pub(super) fn describe_in(&self, span: &mut Span) {
        match self.http.config.command {
            Some(_) => span.set("network.transport", "pipe"),
            None => self.http.describe_in(span),
        }
    }

    /// Returns true if a channel takes the request. Clients of the old transport of a server that
    /// was recognised still reach it: their requests at the endpoint are GETs without a session.
    fn is_for_channel(&self, template: &Template) -> bool {
        self.recognition.is_none() || *template.method() == Method::POST || template.names_session()
    }

    /// Returns true if channels take requests for any path.
    pub(super) fn forwards_to_channels(&self) -> bool {
        self.has_channels() && self.recognition.is_none()
    }

    /// Sends a request for `path`, whose headers are `lines`, with its body, and waits for the
    /// response head. `caller` is the party that a server on a channel is started for.
    pub(super) async fn forward(
        &self,
        mut request: Request<Body>,
        lines: Lines,
        path: &str,
        caller: Option<Arc<Caller>>,
    ) -> Exchanged {
        match self.channels.get() {
            Some(channels) if self.recognition.is_none() => {
                let is_endpoint = self.http.config.url.is_endpoint(request.uri().path());
                Ok(Box::pin(forward_by_channel(channels, request, (lines, caller), is_endpoint)).await)
            }
            Some(_) | None => {
                *request.headers_mut() = lines.to_map();
                self.http.forward(request, path).await
            }
        }
    }
}

impl Exchange for Server {
    async fn exchange_in_box(&self, template: &Template, sent: Option<&Sent>) -> ExchangedInBox {
        if let Some(channels) = self.channels.get()
            && self.is_for_channel(template)
        {
            return Ok(Box::new(exchange_by_channel(channels, template, sent).await));
        }
        let mut response = self.http.exchange_in_box(template, sent).await?;
        if let Some(recognition) = &self.recognition
            && Recognition::may_concern(response.status())
        {
            response = Box::new(Box::pin(recognition.recognise(self, template, *response, sent)).await);
        }
        Ok(if self.http.config.way.has_strangers { strangers::without_page(template, response) } else { response })
    }
}
