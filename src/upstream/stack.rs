//! The layers of the upstream that each call passes on its way to the server.
//!
//! [`Named`] gives sessions their names for clients, [`Bridged`] translates for clients of another
//! era, and the server is below both. Revival is not a layer. It needs the stream of the call and
//! the log, and its outcome is a further request of the pump (`revival/`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};

use super::bridge::{self, Bridge};
use super::forwarded::{Forwarded, ReceivedHeaders};
use super::late_responses::LateResponses;
use super::observed::Observed;
use super::ping_headers::PingHeaders;
use super::server::Server;
use super::server::attempts::Attempts;
use super::server::exchange::{Exchange, Exchanged, ExchangedInBox, Unanswered};
use super::server::protected_resource::{HEAD_WAIT, document_request, redirected};
use super::server::request::{Body, Template};
use super::server::response_body::ResponseBody;
use super::server::sent::Sent;
use super::session_names::{OwnName, SessionNames};
use super::session_refusals::Revivals;
use crate::body::whole;
use crate::channel::Caller;
use crate::clock;
use crate::config;
use crate::event_log::Handshakes;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, Line, Lines};
use crate::protocol::ids::Owner;
use crate::protocol::session_refusal::SessionRefusals;

/// Limit of redirects for one document.
const MAX_REDIRECTS: usize = 3;
/// Usual size of a request's headers. A larger head allocates once more.
const USUAL_HEAD: usize = 512;

/// The server behind the bridge to clients of another era.
pub(super) struct Bridged {
    server: Server,
    /// The bridge, or `None` without translation.
    bridge: Option<Arc<Bridge>>,
}

impl Exchange for Bridged {
    async fn exchange_in_box(&self, template: &Template, sent: Option<&Sent>) -> ExchangedInBox {
        let bridge = self.bridge.as_ref();
        if let Some(bridge) = bridge.filter(|bridge| bridge.may_concern(template))
            && let Some(exchanged) = Box::pin(bridge.send(&self.server, template, sent)).await
        {
            return exchanged.map(Box::new);
        }
        let response = self.server.exchange_in_box(template, sent).await?;
        match bridge {
            Some(bridge) if bridge.may_be_refusal(template, &response, self.server.has_channels()) => {
                Box::pin(bridge.after_refusal(&self.server, template, *response)).await.map(Box::new)
            }
            Some(_) | None => Ok(response),
        }
    }
}

/// The server, whose sessions have their names for clients in responses.
struct Named {
    names: Arc<SessionNames>,
    bridged: Bridged,
}

impl Exchange for Named {
    async fn exchange_in_box(&self, template: &Template, sent: Option<&Sent>) -> ExchangedInBox {
        let mut response = self.bridged.exchange_in_box(template, sent).await?;
        let is_new = self.names.has_renamed() && !template.names_session();
        self.names.wrap(response.headers_mut(), is_new);
        Ok(response)
    }
}

/// Rules for the sessions of a server.
pub struct SessionRules<'a> {
    /// Owner in the names for clients, or `None` if clients get the server's names.
    pub owner: Option<Owner>,
    /// Section `sessions` of the configuration.
    pub config: &'a config::Sessions,
    /// Sessions that can be opened again.
    pub handshakes: Arc<Handshakes>,
}

/// The MCP server behind the proxy, with all observed facts.
pub struct Upstream {
    named: Named,
    /// `Host` of every request, or `None` for the client's.
    host: Option<HeaderValue>,
    late_responses: Arc<LateResponses>,
    revivals: Arc<Revivals>,
    ping_headers: Arc<PingHeaders>,
}

impl Upstream {
    /// Puts the layers over a server: names by `sessions`, and a bridge by `bridge`, if given.
    pub fn new(server: Server, sessions: SessionRules<'_>, bridge: Option<bridge::Settings>) -> Self {
        let SessionRules { owner, config, handshakes } = sessions;
        let handshakes = if config.revive { Some(handshakes) } else { None };
        let refusals = SessionRefusals::new(config.refusals.clone());
        let revivals = Arc::new(Revivals::new(refusals, config.revive, config.keep).for_front(config.front));
        let bridge = bridge.map(|settings| {
            let (server, observed) = (server.with_own_connections(), server.http().observed().clone());
            Bridge::new(settings, Arc::new(server), revivals.clone(), observed)
        });
        if let Some(owner) = owner {
            let _ = server.owner().set(owner);
        }
        let names = Arc::new(SessionNames::new(server.owner().clone(), handshakes));
        if let Some(cookies) = server.http().cookies() {
            let names = names.clone();
            cookies.keep_in(Box::new(move |name| names.record(name)));
        }
        Self::over(Named { names, bridged: Bridged { server, bridge } }, revivals)
    }

    /// Creates an upstream without layers: session names and messages are the server's.
    pub fn plain(server: Server) -> Self {
        let revivals = Arc::new(Revivals::new(SessionRefusals::default(), false, Duration::ZERO));
        let names = Arc::new(SessionNames::new(server.owner().clone(), None));
        Self::over(Named { names, bridged: Bridged { server, bridge: None } }, revivals)
    }

    fn over(named: Named, revivals: Arc<Revivals>) -> Self {
        let host = named.bridged.server.http().host();
        Self { named, host, revivals, late_responses: Arc::default(), ping_headers: Arc::default() }
    }

    /// Returns the same upstream with connections of its own. A connection belongs to the runtime
    /// it was made on; requests from another runtime would pass between threads.
    pub fn with_own_connections(&self) -> Self {
        let Named { names, bridged: Bridged { server, bridge } } = &self.named;
        let bridged = Bridged { server: server.with_own_connections(), bridge: bridge.clone() };
        Self {
            named: Named { names: names.clone(), bridged },
            host: self.host.clone(),
            late_responses: self.late_responses.clone(),
            revivals: self.revivals.clone(),
            ping_headers: self.ping_headers.clone(),
        }
    }

    /// Returns the server below all layers.
    pub fn server(&self) -> &Server {
        &self.named.bridged.server
    }

    /// Returns the layers below the names of sessions: the sessions in their responses have the
    /// server's names.
    pub(super) fn unnamed(&self) -> &Bridged {
        &self.named.bridged
    }

    /// Returns the bridge, or `None` without translation.
    pub fn bridge(&self) -> Option<&Bridge> {
        self.named.bridged.bridge.as_deref()
    }

    /// Returns the names of sessions.
    pub(super) fn names(&self) -> &SessionNames {
        &self.named.names
    }

    /// Returns the rules for sessions that the server refuses.
    pub fn revivals(&self) -> &Revivals {
        &self.revivals
    }

    /// Returns the facts observed in responses.
    pub fn observed(&self) -> &Observed {
        self.server().http().observed()
    }

    /// Returns the record of late responses.
    pub(super) fn late_responses(&self) -> &LateResponses {
        &self.late_responses
    }

    /// Returns the headers of pings in sessions whose own headers were refused.
    pub fn ping_headers(&self) -> &PingHeaders {
        &self.ping_headers
    }

    /// Returns true if the server is not on Streamable HTTP; see [`Server::has_channels`].
    pub fn has_channels(&self) -> bool {
        self.server().has_channels()
    }

    /// Returns true if the proxy answers for a server that is not on Streamable HTTP, at the
    /// endpoint or elsewhere. The other paths of a server that was recognised are its own.
    pub fn answers_for_server(&self, is_at_endpoint: bool) -> bool {
        self.has_channels() && (is_at_endpoint || self.server().forwards_to_channels())
    }

    /// Returns true if the CORS headers of a response to `origin` are known before the server's
    /// head. Those for a server that is not on Streamable HTTP are the proxy's own.
    pub fn knows_cors(&self, origin: Option<&HeaderValue>) -> bool {
        self.has_channels() || self.observed().cors(origin).is_some()
    }

    /// Returns how long a full stream pauses the server: `configured`, or no time on a channel,
    /// which other streams share.
    pub fn full_wait(&self, configured: Duration) -> Duration {
        if self.has_channels() { Duration::ZERO } else { configured }
    }

    /// Returns true if sessions that the server has forgotten are opened again.
    pub fn revives_sessions(&self) -> bool {
        self.revivals.is_enabled()
    }

    /// Records that a client has begun a session, and whether the server has assigned it a name.
    pub(super) fn record_begun_session(&self, is_named: bool) {
        if let Some(bridge) = self.bridge() {
            bridge.record_begun_session(is_named);
        }
    }

    /// Ends the calls and sessions of the bridge at the server, within three seconds, and then all
    /// channels.
    pub async fn end(&self) {
        if let Some(bridge) = self.bridge() {
            bridge.end().await;
        }
        self.server().end_channels().await;
    }

    /// Turns a client's POST or GET into a call to the endpoint.
    pub fn call(&self, parts: &Parts, client: &Forwarded, body: Bytes) -> Template {
        self.template(parts, headers::to_upstream(&parts.headers), client, body)
    }

    /// Turns a client's request into a request to the endpoint that is not a call: `Accept` and
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
        let mut origin = None;
        let kept = kept.inspect(|(name, value)| {
            if **name == ORIGIN {
                origin.get_or_insert(*value);
            }
        });
        let lines = self.address(kept, parts.headers.get(HOST), client, Some(&self.named.names));
        Template::new(parts, origin, lines, body)
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

    /// As [`Exchange::exchange`], without the information whether a connection could be made.
    pub async fn send(&self, template: &Template) -> Result<Response<ResponseBody>, Failure> {
        self.exchange(template, None).await.map_err(|unanswered| unanswered.failure)
    }

    /// Sends a request for any path with its body, and waits for the response head. `caller` is the
    /// party that a server on a channel is started for.
    pub async fn forward(
        &self,
        request: Request<Body>,
        client: &Forwarded,
        caller: Option<Arc<Caller>>,
    ) -> Result<Response<ResponseBody>, Failure> {
        self.forward_once(request, client, caller).await.map_err(|unanswered| unanswered.failure)
    }

    /// As [`Self::forward`], with the information whether a connection could be made.
    async fn forward_once(&self, request: Request<Body>, client: &Forwarded, caller: Option<Arc<Caller>>) -> Exchanged {
        let server = self.server();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let is_for_channel = server.forwards_to_channels();
        let client_host = request.headers().get(HOST).filter(|_| !is_for_channel);
        // Only requests to the endpoint have the endpoint's sessions.
        let is_endpoint = is_for_channel || server.http().config().url.is_endpoint(request.uri().path());
        let names = if is_endpoint { Some(self.names()) } else { None };
        let lines = self.address(headers::end_to_end(request.headers()), client_host, client, names);
        // Boxed: its callers would carry the size of this future.
        let mut response = Box::pin(server.forward(request, lines, &path, caller)).await?;
        if let Some(names) = names {
            names.wrap(response.headers_mut(), false);
        }
        if !is_for_channel {
            server.rewrite_location(response.headers_mut());
        }
        Ok(response)
    }
}

impl Upstream {
    /// Returns true if `path` is one of the metadata of the server under the URL that clients type.
    pub fn is_resource_metadata(&self, path: &str) -> bool {
        let resource = self.server().http().resource();
        resource.is_some_and(|resource| resource.is_place(path, self.server().endpoint_path()))
    }

    /// Returns the metadata of the server under the URL that clients type. `request` is a GET, HEAD
    /// or preflight of a client for it. Redirects within the server's origins are followed. Without
    /// metadata, returns the server's first response other than 404.
    ///
    /// # Errors
    /// If the server cannot be reached within `upstream.wait_secs`, breaks off, or is silent at a
    /// place and has metadata at none.
    pub async fn resource_metadata(
        &self,
        request: &Parts,
        client: &Forwarded,
    ) -> Result<Response<ResponseBody>, Failure> {
        let http = self.server().http();
        let Some(resource) = http.resource() else { return Err(Failure::before_run(ErrorCode::BadRequest)) };
        let mut places = VecDeque::from(resource.places(self.server().endpoint_path()));
        let own = |url: &str| http.own_place(url);
        let (mut best, mut redirects) = (None::<Result<Response<ResponseBody>, Failure>>, 0);
        // A server that is away or silent, or a page, says more than a place without a document.
        let is_missing = |best: &Response<ResponseBody>| best.status() == StatusCode::NOT_FOUND;
        let says_less = |best: &Result<_, _>| best.as_ref().is_ok_and(is_missing);
        let until = clock::now() + http.config().wait;
        while let Some(place) = places.pop_front() {
            let Ok(target) = place.parse::<Uri>() else { continue };
            let response = match self.document(request, &target, client, until).await {
                Ok(response) => response,
                Err(failure) if failure.code == ErrorCode::UpstreamTimeout => {
                    if best.as_ref().is_none_or(says_less) {
                        best = Some(Err(failure));
                    }
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if redirects < MAX_REDIRECTS
                && let Some(place) = redirected(&|url| http.named_place(url), &response)
            {
                redirects += 1;
                places.push_front(place);
                continue;
            }
            if request.method == Method::OPTIONS && response.status().is_success() {
                return Ok(response);
            }
            let (response, is_metadata) = resource.rename(&own, response).await;
            if is_metadata {
                return Ok(response);
            }
            if best.as_ref().is_none_or(says_less) {
                best = Some(Ok(response));
            }
        }
        best.unwrap_or_else(|| Err(Failure::before_run(ErrorCode::BadRequest)))
    }

    /// Requests a document at `target`. Waits until `until` for a server that accepts no
    /// connections.
    async fn document(
        &self,
        request: &Parts,
        target: &Uri,
        client: &Forwarded,
        until: Instant,
    ) -> Result<Response<ResponseBody>, Failure> {
        let mut attempts = Attempts::new(self.server().http().reach());
        loop {
            let document = document_request(request, target.clone(), Body::Passthrough(whole(Bytes::new())));
            let response = tokio::time::timeout(HEAD_WAIT, self.forward_once(document, client, None)).await;
            let Ok(response) = response else { return Err(Failure::before_run(ErrorCode::UpstreamTimeout)) };
            let Unanswered { failure, is_unconnected, .. } = match response {
                Ok(response) => return Ok(response),
                Err(unanswered) => unanswered,
            };
            let left = until.saturating_duration_since(clock::now());
            if !is_unconnected || tokio::time::timeout(left, attempts.next()).await.is_err() {
                return Err(failure);
            }
        }
    }
}

impl Exchange for Upstream {
    fn exchange_in_box(&self, template: &Template, sent: Option<&Sent>) -> impl Future<Output = ExchangedInBox> + Send {
        self.named.exchange_in_box(template, sent)
    }
}
