//! A server on HTTP: its connections, the requests to its origin, and redirects within that.
//!
//! Absent: channels to servers that are not on Streamable HTTP ([`super::channels`]).

use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::header::PROXY_AUTHORIZATION;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version};

use super::client::{self, Clients};
use super::connect::{Connector, Dial, TooMany, Transport};
use super::exchange::{Exchange, Exchanged, ExchangedInBox, Unanswered};
use super::protected_resource::ProtectedResource;
use super::reach::{Reach, Reachability};
use super::redirects::{self, Redirect};
use super::request::{Body, Template};
use super::response_body::ResponseBody;
use super::sent::Sent;
use super::sent_flag::SentFlag;
use super::session_cookies::SessionCookies;
use super::strangers::WayRefused;
use crate::config::{self, HostHeader};
use crate::otel::Span;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers;
use crate::protocol::http1::{Error as HeadError, check_length};
use crate::tls::{self, ClientFiles};
use crate::upstream::observed::Observed;

/// Limit of redirects for one request: more is a loop.
const MAX_REDIRECTS: usize = 3;

/// A server on HTTP.
pub(in crate::upstream) struct HttpServer {
    pub(super) clients: Clients,
    connector: Connector,
    pub(super) config: config::Upstream,
    /// URI of the endpoint with the configured query.
    endpoint: Option<Uri>,
    observed: Arc<Observed>,
    /// Cookies of sessions, or `None` if none are kept.
    cookies: Option<Arc<SessionCookies>>,
    /// The server under the URL that clients type, or `None` without one.
    resource: Option<Arc<ProtectedResource>>,
    /// Headers of each request to the endpoint, in place of the client's. `None` if there are none.
    headers: Option<Arc<[(HeaderName, HeaderValue)]>>,
    /// The https form of the server, once it has redirected there.
    https_form: OnceLock<Box<HttpServer>>,
    /// True if each request goes to the https form at once: its paths are the same.
    is_https_only: AtomicBool,
}

impl HttpServer {
    /// Creates a client for the configured upstream. Connects nothing yet.
    ///
    /// # Errors
    /// If the TLS files cannot be loaded.
    pub(super) fn new(config: config::Upstream) -> Result<Self, tls::Error> {
        let transport = if config.url.is_https() { Transport::tls(&config.tls)? } else { Transport::Tcp };
        let cookies = SessionCookies::new(&config.session_cookies);
        Ok(Self::by(Connector::new(transport, &config)?, config, Arc::default(), cookies))
    }

    /// Creates a client for the configured upstream with connections from `dialer`, without TLS.
    ///
    /// # Errors
    /// None at present.
    pub(super) fn with_dialer(config: config::Upstream, dialer: Arc<dyn Dial>) -> Result<Self, tls::Error> {
        let cookies = SessionCookies::new(&config.session_cookies);
        Ok(Self::by(Connector::new(Transport::Dialed(dialer), &config)?, config, Arc::default(), cookies))
    }

    fn by(
        connector: Connector,
        config: config::Upstream,
        observed: Arc<Observed>,
        cookies: Option<Arc<SessionCookies>>,
    ) -> Self {
        let version = match (config.url.is_https(), config.http2) {
            (true, _) => client::Version::Agreed,
            (false, true) => client::Version::Http2,
            (false, false) => client::Version::Http1,
        };
        let clients = Clients::new(connector.clone(), version, config.url.authority().as_str(), config.pool_idle);
        let headers = config.headers.values().map(|(name, value)| (name.clone(), value.clone()));
        let of_proxy = connector.http_proxy().and_then(|proxy| proxy.authorization.clone());
        let headers: Arc<[_]> = headers.chain(of_proxy.map(|value| (PROXY_AUTHORIZATION, value))).collect();
        let headers = if headers.is_empty() { None } else { Some(headers) };
        let mut server = Self {
            clients,
            connector,
            config,
            endpoint: None,
            observed,
            cookies,
            resource: None,
            headers,
            https_form: OnceLock::new(),
            is_https_only: AtomicBool::new(false),
        };
        server.endpoint = server.uri(&server.endpoint_target(None)).ok();
        server
    }

    /// Returns the same server with connections of its own. A connection belongs to the runtime it
    /// was made on; requests from another runtime would pass between threads.
    pub(super) fn with_own_connections(&self) -> Self {
        let (observed, cookies) = (self.observed.clone(), self.cookies.clone());
        Self::by(self.connector.clone(), self.config.clone(), observed, cookies).with_resource(self.resource.clone())
    }

    /// Returns the same server as this resource.
    pub(super) fn with_resource(self, resource: Option<Arc<ProtectedResource>>) -> Self {
        Self { resource, ..self }
    }

    /// Returns the server under the URL that clients type, or `None` without one.
    pub(in crate::upstream) fn resource(&self) -> Option<&Arc<ProtectedResource>> {
        self.resource.as_ref()
    }

    /// Returns the cookies of sessions, or `None` if none are kept.
    pub(in crate::upstream) fn cookies(&self) -> Option<&Arc<SessionCookies>> {
        self.cookies.as_ref()
    }

    /// Returns the configuration.
    pub(in crate::upstream) fn config(&self) -> &config::Upstream {
        &self.config
    }

    /// Returns `Host` of every request, or `None` for the client's.
    pub(in crate::upstream) fn host(&self) -> Option<HeaderValue> {
        match &self.config.host {
            HostHeader::Upstream => HeaderValue::from_str(self.config.url.authority().as_str()).ok(),
            HostHeader::Client => None,
            HostHeader::Name(name) => Some(name.clone()),
        }
    }

    /// Returns the facts observed in responses.
    pub(in crate::upstream) fn observed(&self) -> &Arc<Observed> {
        &self.observed
    }

    /// Returns the reachability as connection attempts have found it.
    pub(in crate::upstream) fn reach(&self) -> &Reach {
        &self.connector.reach
    }

    /// Returns the reachability of the server, after an attempt if the last check began a second
    /// ago or more. Takes half a second at most.
    pub(super) async fn reachability(&self) -> Reachability {
        self.connector.reachability().await
    }

    /// Returns the TLS files, or `None` without TLS. New connections use the newest.
    pub(super) fn tls_files(&self) -> Option<&Arc<ClientFiles>> {
        self.connector.tls_files()
    }

    /// Sets the attributes that name the server in the span of a request.
    pub(super) fn describe_in(&self, span: &mut Span) {
        let authority = self.config.url.authority();
        span.set("server.address", authority.host().to_owned());
        let default_port = if self.config.url.is_https() { 443 } else { 80 };
        span.set("server.port", i64::from(authority.port_u16().unwrap_or(default_port)));
    }

    /// Sends a request to the endpoint with the cookies of its session, and takes those of the
    /// response.
    async fn exchange_with_cookies(
        &self,
        cookies: &SessionCookies,
        template: &Template,
        target: &Uri,
        sent: Option<&Sent>,
    ) -> ExchangedInBox {
        let with_cookies = cookies.added_to(template);
        let mut response = self.exchange_at(with_cookies.as_ref().unwrap_or(template), target, sent).await?;
        cookies.take_from(&mut response, template);
        Ok(response)
    }

    /// As [`Exchange::exchange_in_box`], for another place of the endpoint: that of the messages to
    /// a server on HTTP+SSE. Follows 307 and 308 within the server's own origins, with the body and
    /// a proof, as a client would.
    pub(super) async fn exchange_at(&self, template: &Template, target: &Uri, sent: Option<&Sent>) -> ExchangedInBox {
        // Boxed, because few servers get further headers.
        let with_headers = self.headers.as_ref().map(|headers| Box::new(template.with_headers(headers)));
        let template = with_headers.as_deref().unwrap_or(template);
        if self.is_https_only() {
            return self.exchange_on_https(template, path_of(target), sent).await;
        }
        let mut redirected: Option<Box<Uri>> = None;
        for _ in 0..=MAX_REDIRECTS {
            let sent_flag = if template.is_empty() { SentFlag::always_sent() } else { SentFlag::default() };
            let response = {
                let target = redirected.as_deref().unwrap_or(target);
                let sending = pin!(self.clients.send(template, target, &sent_flag, sent));
                match self.await_head(sending, &sent_flag).await {
                    Err(Unanswered { refused: Some(refused), .. }) => {
                        return Ok(Box::new(refused.response_to(template)));
                    }
                    response => response?,
                }
            };
            match self.redirect(template, redirected.as_deref().unwrap_or(target), &response) {
                Redirect::To(next) => redirected = Some(Box::new(self.uri(&next)?)),
                Redirect::ToHttps(path) => {
                    self.is_https_only.fetch_or(path == path_of(target), Ordering::Relaxed);
                    return self.exchange_on_https(template, &path, sent).await;
                }
                Redirect::Away(away) => {
                    let key = if self.config.sse.is_some() { "upstream.sse_url" } else { "upstream.url" };
                    return Ok(Box::new(redirects::refuse(template, &away, key)));
                }
                Redirect::None => return Ok(response),
            }
        }
        Err(Failure::after_send(ErrorCode::UpstreamGarbage).into())
    }

    /// Returns true if each request goes to the https form of the server.
    pub(super) fn is_https_only(&self) -> bool {
        self.is_https_only.load(Ordering::Relaxed)
    }

    /// Sends a request to a path of the server's https form. Credentials go there too: it is the
    /// same host, and no other can have its certificate.
    fn exchange_on_https<'a>(
        &'a self,
        template: &'a Template,
        path: &'a str,
        sent: Option<&'a Sent>,
    ) -> Pin<Box<dyn Future<Output = ExchangedInBox> + Send + 'a>> {
        // Boxed: the other server is of the same type.
        Box::pin(async move {
            let server = match self.https_form.get() {
                Some(server) => server,
                None => {
                    let server = self.to_https().map_err(|_| Failure::before_run(ErrorCode::Unreachable))?;
                    self.https_form.get_or_init(|| Box::new(server))
                }
            };
            let target = server.uri(path)?;
            server.exchange_at(template, &target, sent).await
        })
    }

    /// Returns the server on https at the same host.
    fn to_https(&self) -> Result<Self, tls::Error> {
        let config = config::Upstream { url: self.config.url.to_https(), ..self.config.clone() };
        let connector = Connector::new(Transport::tls(&config.tls)?, &config)?;
        Ok(Self::by(connector, config, self.observed.clone(), self.cookies.clone()))
    }

    /// Sends a request for `path` with its body, and waits for the response head.
    pub(super) async fn forward(&self, mut request: Request<Body>, path: &str) -> Exchanged {
        if let Some(added) = &self.headers
            && self.config.url.is_endpoint(request.uri().path())
        {
            headers::replace(request.headers_mut(), added);
        }
        *request.uri_mut() = self.uri(path)?;
        let resource = self.resource.as_ref().filter(|_| self.config.url.is_endpoint(request.uri().path()));
        *request.version_mut() = Version::HTTP_11;
        let sending = pin!(async { self.clients.forward(request).await.map(Box::new) });
        let mut response = *self.await_head(sending, &SentFlag::always_sent()).await?;
        headers::remove_hop_by_hop(response.headers_mut());
        if let Some(resource) = resource {
            resource.rewrite_challenges(&|url| self.own_place(url), response.headers_mut());
        }
        Ok(response)
    }

    pub(super) async fn await_head(
        &self,
        sending: Pin<&mut impl Future<Output = Result<Box<Response<ResponseBody>>, client::Error>>>,
        sent_flag: &SentFlag,
    ) -> ExchangedInBox {
        let outcome = match self.config.header_timeout {
            Some(limit) => tokio::time::timeout(limit, self.connector.reach.hear(sending))
                .await
                .map_err(|_| ErrorCode::UpstreamTimeout),
            None => Ok(self.connector.reach.hear(sending).await),
        };
        let code = match outcome {
            // No request offers an upgrade to another protocol.
            Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => ErrorCode::UpstreamGarbage,
            Ok(Ok(mut response)) => match check_head(&mut response) {
                Ok(()) => {
                    self.observed.record_any_status(response.status());
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
                // A server whose HTTP/2 connection takes no request accepts connections.
                let refused = self.config.way.has_strangers.then(|| WayRefused::cause_of(causes(&error))).flatten();
                let is_unconnected = code != ErrorCode::TooManyConnections
                    && !error.is_stuck()
                    && !is_caused_by_tls(&error)
                    && refused.is_none();
                let refused = refused.map(Box::new);
                return Err(Unanswered { failure: Failure::before_run(code), is_unconnected, refused });
            }
            // The server promises that it did not process the request.
            Ok(Err(error)) if is_refused_stream(&error) => {
                return Err(Failure::before_run(ErrorCode::UpstreamBroke).into());
            }
            Ok(Err(error)) => {
                if !self.config.url.is_https() && !self.connector.reach.is_heard() {
                    self.connector.tls_faults.report_no_http();
                }
                if error.is_garbage() { ErrorCode::UpstreamGarbage } else { ErrorCode::UpstreamBroke }
            }
            Err(code) => code,
        };
        // The connection may be about to take the request at this moment.
        Err(match sent_flag.withdraw() {
            true => Unanswered { failure: Failure::before_run(code), is_unconnected: true, refused: None },
            false => Failure::after_send(code).into(),
        })
    }
}

impl Exchange for HttpServer {
    async fn exchange_in_box(&self, template: &Template, sent: Option<&Sent>) -> ExchangedInBox {
        // Boxed, because few calls have a target of their own.
        let own: Box<Uri>;
        let target = match (template.query(), &self.endpoint) {
            (None, Some(endpoint)) => endpoint,
            (query, _) => {
                own = Box::new(self.uri(&self.endpoint_target(query))?);
                &*own
            }
        };
        let mut response = match &self.cookies {
            None => self.exchange_at(template, target, sent).await?,
            Some(cookies) => Box::pin(self.exchange_with_cookies(cookies, template, target, sent)).await?,
        };
        if let Some(resource) = &self.resource {
            resource.rewrite_challenges(&|url| self.own_place(url), response.headers_mut());
            if response.status() == StatusCode::UNAUTHORIZED {
                resource.check_audience(template);
            }
        }
        Ok(response)
    }
}

/// Returns path and query of a place.
fn path_of(target: &Uri) -> &str {
    target.path_and_query().map_or("/", |path| path.as_str())
}

/// Checks the length that a head declares. The proxy's own client has checked it.
fn check_head(response: &mut Response<ResponseBody>) -> Result<(), HeadError> {
    match response.body() {
        ResponseBody::Http1(_) | ResponseBody::Whole(_) | ResponseBody::Messages(_) | ResponseBody::Begun(_) => Ok(()),
        ResponseBody::Hyper(_) => check_length(response.status(), response.headers_mut()),
    }
}

fn is_caused_by_timeout(error: &(dyn Error + 'static)) -> bool {
    let timed_out = |io: &std::io::Error| io.kind() == std::io::ErrorKind::TimedOut;
    causes(error).any(|cause| cause.downcast_ref().is_some_and(timed_out))
}

/// Returns true for a failed TLS handshake: the server runs, but does not speak TLS or has a wrong
/// certificate.
fn is_caused_by_tls(error: &(dyn Error + 'static)) -> bool {
    let is_invalid = |io: &std::io::Error| io.kind() == std::io::ErrorKind::InvalidData;
    causes(error).any(|cause| cause.downcast_ref().is_some_and(is_invalid))
}

fn is_caused_by_limit(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(<dyn Error>::is::<TooMany>)
}

fn is_refused_stream(error: &(dyn Error + 'static)) -> bool {
    let refused = |error: &h2::Error| error.is_remote() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    causes(error).any(|cause| cause.downcast_ref().is_some_and(refused))
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}
