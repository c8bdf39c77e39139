//! Handlers of the clients' requests.
//!
//! [`Ingress`] is the entrance: it checks access, identifies the caller, and passes each request to
//! the handler of its kind. That handler makes the response: [`calls`] for a POST with requests,
//! [`client_responses`] for a POST without, [`resume`], [`standalone`] and [`session_end`] for GET
//! and DELETE, [`stream_url`] and [`dialect_requests`] for the dialects, [`status_document`] for
//! the proxy's own document, [`forward`] for all other requests. Requests from other replicas have
//! an entrance of their own, [`remote_requests`]. Each handler holds only the [`Components`] and
//! the handlers that it needs, and imports nothing from this file. Errors become responses in
//! [`respond`] alone. Absent: connections ([`server`]), the state of streams (protocol, event log),
//! and how their bodies are written (delivery).

mod body;
mod callers;
mod calls;
mod client_responses;
mod components;
mod connection;
mod context;
mod dialect_requests;
mod forward;
mod forward_to_replicas;
mod hard_cuts;
mod home_queries;
mod metrics;
mod misdirected;
mod priming;
mod refusals;
mod remote_requests;
mod request_log;
mod resume;
mod session_end;
mod session_state;
mod standalone;
mod status_document;
mod stream_finder;
mod stream_response;
mod stream_start;
mod stream_url;
mod tasks;
mod token_refresh;
mod trace;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue, ORIGIN, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response, Version};
use hyper::body::Body;
use tracing::Instrument;

use self::callers::Callers;
use self::calls::Calls;
use self::client_responses::{ClientResponses, PostDelivery, UrlResponses};
pub use self::components::Components;
pub use self::connection::Connection;
use self::context::{RequestContext, Sender, head_bytes};
use self::dialect_requests::DialectRequests;
use self::forward::Forwarder;
use self::forward_to_replicas::OwnerForwarder;
use self::home_queries::HomeQueries;
pub use self::metrics::Metrics;
use self::misdirected::OwnerCheck;
use self::refusals::Refusals;
pub use self::remote_requests::RemoteRequests;
use self::resume::Resumes;
use self::session_end::SessionEnds;
use self::standalone::StandaloneStreams;
use self::status_document::StatusDocument;
use self::stream_finder::StreamFinder;
use self::stream_response::StreamResponder;
use self::stream_start::StreamStarter;
use self::stream_url::StreamUrls;
use self::tasks::Tasks;
use self::token_refresh::TokenRefresh;
use crate::body::{BoxBody, Incoming};
use crate::config::Config;
use crate::event_log::{EventLog, Session};
use crate::lifecycle::drain::Drain;
use crate::protocol::classify::{self, Route};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, Era, ProtocolVersion, SessionId};
use crate::protocol::ids::{Owner, StreamKind};
use crate::protocol::stream_url::{Named, take};
use crate::protocol::tasks::TaskRequest;
use crate::server::{self, Peer, respond};
use crate::upstream::Upstream;

/// Entrance of requests: access, identification of the caller, and dispatch to a handler.
pub struct Ingress {
    config: Arc<Config>,
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    drain: Arc<Drain>,
    refusals: Refusals,
    owner_check: OwnerCheck,
    callers: Callers,
    calls: Calls,
    client_responses: Arc<ClientResponses>,
    dialect_requests: DialectRequests,
    tasks: Tasks,
    stream_urls: StreamUrls,
    resumes: Resumes,
    standalone: Arc<StandaloneStreams>,
    session_ends: Arc<SessionEnds>,
    forwarder: Arc<Forwarder>,
    home_queries: HomeQueries,
    status_document: StatusDocument,
}

/// Handles the requests of the data listener.
#[derive(Clone)]
pub struct Handler(pub Arc<Ingress>);

impl server::Handler for Handler {
    type Connection = Connection;

    fn connect(&self, peer: Peer) -> Connection {
        Connection::new(peer, self.0.config.listen.trusted_proxies.clone())
    }

    fn handle(
        self,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<BoxBody>> + Send + 'static {
        // hyper keeps room for the handler's future while the connection lives: a box keeps it
        // small.
        Box::pin(self.0.handle(connection, request))
    }
}

impl Ingress {
    /// Makes the handlers, each with its part of `components`.
    pub fn new(components: &Components) -> Self {
        let refusals = Refusals::new(components);
        let owner_check = OwnerCheck::new(components);
        let callers = Callers::new(components, owner_check.clone());
        let forwarder = Arc::new(Forwarder::new(components, refusals.clone()));
        let owners = Arc::new(OwnerForwarder::new(components, refusals.clone()));
        let tokens = Arc::new(TokenRefresh::new(components, forwarder.clone()));
        let finder = Arc::new(StreamFinder::new(components, tokens.clone()));
        let starter = Arc::new(StreamStarter::new(components));
        let responder = Arc::new(StreamResponder::new(components));
        let delivery = Arc::new(PostDelivery::new(components, forwarder.clone()));
        let url_responses =
            Arc::new(UrlResponses::new(components, refusals.clone(), finder.clone(), owners.clone(), delivery.clone()));
        let standalone = Arc::new(StandaloneStreams::new(
            components,
            refusals.clone(),
            forwarder.clone(),
            tokens.clone(),
            starter.clone(),
            responder.clone(),
        ));
        let session_ends =
            Arc::new(SessionEnds::new(components, refusals.clone(), forwarder.clone(), owners.clone(), tokens.clone()));
        let client_responses = Arc::new(ClientResponses::new(
            components,
            refusals.clone(),
            forwarder.clone(),
            owners.clone(),
            tokens.clone(),
            delivery,
        ));
        let Components { config, log, upstream, drain, .. } = components;
        Self {
            config: config.clone(),
            log: log.clone(),
            upstream: upstream.clone(),
            drain: drain.clone(),
            owner_check,
            callers,
            calls: Calls::new(components, refusals.clone(), tokens, finder.clone(), starter, responder.clone()),
            client_responses,
            tasks: Tasks::new(components, refusals.clone(), finder.clone(), owners),
            dialect_requests: DialectRequests::new(components, refusals.clone(), finder.clone(), responder.clone()),
            stream_urls: StreamUrls::new(
                components,
                refusals.clone(),
                finder.clone(),
                responder.clone(),
                standalone.clone(),
                url_responses,
            ),
            resumes: Resumes::new(components, refusals.clone(), finder, responder, standalone.clone()),
            standalone,
            session_ends,
            forwarder,
            home_queries: HomeQueries::new(components, refusals.clone()),
            status_document: StatusDocument::new(components),
            refusals,
        }
    }

    /// Handles one request. Never fails: every error is a response.
    async fn handle(self: Arc<Self>, connection: Arc<Connection>, request: Request<Incoming>) -> Response<BoxBody> {
        let receipts = connection.receipts().clone();
        let origin = request.headers().get(ORIGIN).cloned();
        let sender = misdirected::sender_of(request.headers());
        let access = request_log::AccessLine::begin(&request, &self.config.upstream.url);
        let span = trace::span(request.headers());
        let mut home = None;
        let mut response = match &span {
            None => self.dispatch(connection, request, sender, &mut home).await,
            Some(span) => {
                Box::pin(self.dispatch(connection, request, sender, &mut home)).instrument(span.clone()).await
            }
        };
        receipts.note_opened(|| SessionId::from_headers(response.headers()));
        if self.drain.is_sending_away() {
            // The next requests of a connection go to another replica. HTTP/2 has no such header,
            // and a signal of its own.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(access) = access {
            access.end(&response);
        }
        if sender.is_routed() {
            OwnerCheck::sign_home(&mut response, home);
            self.owner_check.sign(&mut response);
        }
        if let Some(origin) = origin
            && respond::has_own_head(&response)
        {
            let known = self.upstream.observed().cors(Some(&origin)).unwrap_or_default();
            response.headers_mut().extend(known);
            headers::expose_ours(response.headers_mut());
        }
        match span {
            None => response,
            Some(span) => response.map(|body| trace::within(span, body)),
        }
    }

    /// Checks access, then passes the request on. Keeps the future of a call small: the rarer
    /// routes are boxed, because every request pays for the largest, and for each of two nested
    /// futures that take the request. `home` is set to the home of the session, if a balancer can
    /// send the request there.
    async fn dispatch(
        &self,
        connection: Arc<Connection>,
        request: Request<Incoming>,
        sender: Sender,
        home: &mut Option<Owner>,
    ) -> Response<BoxBody> {
        let (mut parts, body) = request.into_parts();
        let head_bytes = head_bytes(&parts);
        if let Some(refusal) = self.refuse_head(&parts, head_bytes) {
            return refusal;
        }
        if parts.uri.path() == status_document::PATH {
            return Box::pin(self.status_document.handle(&parts.method)).await;
        }
        if !self.config.upstream.url.is_endpoint(parts.uri.path()) {
            if sender.is_routed() && home_queries::is_query(&parts) {
                // Other paths have no sessions of the endpoint.
                return home_queries::here();
            }
            return Box::pin(self.forwarder.forward_other_path(parts, body, connection.forwarded())).await;
        }
        // The upstream does not see the stream that the target names.
        let stream_url = if self.config.dialects.stream_url { take(&mut parts.uri) } else { None };
        let mut context = self.callers.identify(parts, head_bytes, connection, sender);
        // On HTTP/2 a request says nothing about other responses.
        context.connection.receipts().note_request(&context.binding, context.parts.version >= Version::HTTP_2);
        let refused = if !self.log.has_store() || self.callers.knows_session(&context) {
            None
        } else {
            Box::pin(self.callers.restore_session(&mut context)).await.err()
        };
        if sender.is_routed() {
            *home = context.session.as_ref().and_then(|session| session.remote_home());
            if home_queries::is_query(&context.parts) {
                if self.owner_check.is_misdirected(&context, None, &[]) {
                    return self.refusals.refuse(ErrorCode::Misdirected);
                }
                return Box::pin(self.home_queries.respond(&context, refused)).await;
            }
        }
        if !context.has_remote_session() {
            let call = || {
                let call = self.upstream.call(&context.parts, context.connection.forwarded(), Bytes::new());
                call.for_caller(context.caller.clone())
            };
            self.upstream.ping_headers().renew(&context.binding, call);
        }
        if let Some(named) = stream_url
            && matches!(context.parts.method, Method::GET | Method::POST)
        {
            return Box::pin(self.by_stream_url(context, named, body)).await;
        }
        if context.parts.method == Method::POST && headers::is_json(&context.parts.headers) {
            let body = match self.read(&mut context, body).await {
                Ok(body) => body,
                Err(code) => return self.refusals.refuse(code),
            };
            context.add_message_trace(&body);
            if self.owner_check.is_misdirected(&context, None, &body) {
                return self.refuse_post(ErrorCode::Misdirected, &context, &body);
            }
            if let Some(code) = refused {
                return self.refuse_post(code, &context, &body);
            }
            return self.by_body(context, body).await;
        }
        if self.owner_check.is_misdirected(&context, None, &[]) {
            return self.refusals.refuse(ErrorCode::Misdirected);
        }
        if let Some(code) = refused {
            return self.refusals.refuse(code);
        }
        Box::pin(self.by_head(context, body)).await
    }

    /// Refuses a request by its head, or returns `None`.
    fn refuse_head(&self, parts: &Parts, head_bytes: usize) -> Option<Response<BoxBody>> {
        if head_bytes > self.config.limits.header_bytes {
            return Some(self.refusals.refuse(ErrorCode::HeadTooLarge));
        }
        let is_status = parts.uri.path() == status_document::PATH;
        // A balancer connects by an address, which no list of hosts has.
        let admitted = if is_status { self.admit_origin(parts) } else { self.admit(parts) };
        if let Err(code) = admitted {
            return Some(self.refusals.refuse_access(code, parts));
        }
        (!is_status && is_tunnel_request(parts)).then(|| self.refusals.refuse(ErrorCode::UpgradeRefused))
    }

    /// Checks the host and the origin of a request.
    fn admit(&self, parts: &Parts) -> Result<(), ErrorCode> {
        if !self.config.listen.allowed_hosts.admit(&parts.uri, &parts.headers) {
            return Err(ErrorCode::HostRefused);
        }
        self.admit_origin(parts)
    }

    fn admit_origin(&self, parts: &Parts) -> Result<(), ErrorCode> {
        let is_admitted = self.config.listen.allowed_origins.admit(&parts.uri, &parts.headers);
        if is_admitted { Ok(()) } else { Err(ErrorCode::OriginRefused) }
    }

    /// Passes on a request whose target names a stream.
    async fn by_stream_url(&self, mut context: Box<RequestContext>, named: Named, body: Incoming) -> Response<BoxBody> {
        if self.owner_check.is_misdirected(&context, Some(&named), &[]) {
            return self.refusals.refuse(ErrorCode::Misdirected);
        }
        if context.parts.method != Method::POST {
            return self.stream_urls.handle(context, named, None).await;
        }
        match self.read(&mut context, body).await {
            Ok(body) => self.stream_urls.handle(context, named, Some(body)).await,
            Err(code) => self.refusals.refuse(code),
        }
    }

    /// Passes on a POST by its body.
    async fn by_body(&self, context: Box<RequestContext>, body: Bytes) -> Response<BoxBody> {
        let version = context.session.as_deref().and_then(Session::version);
        match self.classify(&context, &body, version) {
            Route::Call(call) => self.calls.handle(context, call, body).await,
            Route::Dialect(request) => Box::pin(self.dialect_requests.handle(context, request, body)).await,
            Route::Task(request, call) => Box::pin(self.task(context, request, call, body)).await,
            Route::ClientResponses(messages) => {
                context.connection.receipts().prove(&self.log);
                Box::pin(self.client_responses.handle(context, messages, body)).await
            }
            Route::Refuse(code) => self.refusals.refuse(code),
            Route::Forward | Route::Resume(_) | Route::Standalone | Route::Delete => {
                match context.remote_session_error() {
                    Some(code) => self.refuse_post(code, &context, &body),
                    None => Box::pin(self.forwarder.forward_post(context, body)).await,
                }
            }
        }
    }

    /// Handles a request that concerns a task. A task of the server's own is forwarded.
    async fn task(
        &self,
        mut context: Box<RequestContext>,
        request: TaskRequest,
        call: classify::Call,
        body: Bytes,
    ) -> Response<BoxBody> {
        context.connection.receipts().prove(&self.log);
        if call.era() == Era::Legacy {
            if self.tasks.concerns_legacy(&context, &request) {
                return self.tasks.handle_legacy(context, request, call, body, &self.calls).await;
            }
            return self.calls.handle(context, call, body).await;
        }
        match self.tasks.handle(&mut context, &request, &body).await {
            Some(response) => response,
            None => {
                let body = self.tasks.to_server(&mut context, body);
                self.calls.handle(context, call, body).await
            }
        }
    }

    /// Passes on a request by its head alone.
    async fn by_head(&self, mut context: Box<RequestContext>, body: Incoming) -> Response<BoxBody> {
        match classify::head(&context.parts.method, &context.parts.headers) {
            Route::Resume(id) if id.unverified_kind() == Some(StreamKind::Task) => {
                Box::pin(self.tasks.resume(context, &id)).await
            }
            Route::Resume(id) => self.resumes.handle(context, id).await,
            Route::Standalone => self.standalone.attach(context).await,
            Route::Delete => match self.read(&mut context, body).await {
                Ok(body) => self.session_ends.delete(context, body).await,
                Err(code) => self.refusals.refuse(code),
            },
            Route::Refuse(code) => self.refusals.refuse(code),
            Route::Forward | Route::Call(_) | Route::Dialect(_) | Route::Task(..) | Route::ClientResponses(_) => {
                match context.remote_session_error() {
                    Some(code) => self.refusals.refuse(code),
                    None if body.is_end_stream() => self.forwarder.forward_buffered(context, Bytes::new()).await,
                    None => {
                        let RequestContext { parts, connection, .. } = *context;
                        self.forwarder.forward_to_endpoint(parts, body, connection.forwarded()).await
                    }
                }
            }
        }
    }

    /// Classifies the POST of `context`.
    fn classify(&self, context: &RequestContext, body: &[u8], version: Option<&ProtocolVersion>) -> Route {
        let (declared, longest) = (self.config.dialects.declared, self.config.limits.batch);
        classify::post(&context.parts.headers, body, version, declared, longest)
    }

    /// Refuses a POST whose body was read, with the IDs of its requests.
    fn refuse_post(&self, code: ErrorCode, context: &RequestContext, body: &[u8]) -> Response<BoxBody> {
        match self.classify(context, body, None) {
            Route::Call(call) | Route::Task(_, call) => self.refusals.refuse_call(code, &call),
            _ => self.refusals.refuse(code),
        }
    }

    /// Reads the whole body, and reserves its bytes.
    async fn read(&self, context: &mut RequestContext, body: Incoming) -> Result<Bytes, ErrorCode> {
        let evict_for = |reservation: &_| self.log.evict_for(reservation);
        let limit = self.config.limits.body_bytes;
        let body = body::read(&context.parts.headers, body, limit, &context.quota, evict_for).await?;
        context.body_bytes = body.len();
        context.reserve();
        Ok(body)
    }
}

/// True for a WebSocket or a CONNECT. Other upgrades are offers that a server may ignore.
fn is_tunnel_request(parts: &Parts) -> bool {
    let protocols = parts.headers.get_all(UPGRADE).into_iter().filter_map(|value| value.to_str().ok());
    let is_websocket = |protocol: &str| protocol.trim().eq_ignore_ascii_case("websocket");
    parts.method == Method::CONNECT || protocols.flat_map(|value| value.split(',')).any(is_websocket)
}
