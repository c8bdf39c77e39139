//! Handlers of the clients' requests.
//!
//! [`Handler`] is the entrance: it checks access, identifies the caller, and passes each request to
//! the handler of its kind. That handler makes the response. [`calls`] serves a POST with requests,
//! [`client_responses`] a POST without. [`resume`], [`standalone`] and [`session_end`] serve GET
//! and DELETE, [`stream_url`] and [`dialect_requests`] the dialects. [`status_document`] serves the
//! proxy's own document, and [`forward`] all other requests. Requests from other replicas have an
//! entrance of their own, [`remote_requests`]. So have those of a client in this process,
//! [`LocalClient`]. A handler is a function of the [`Components`],
//! without state of its own, and imports nothing from this file. Errors become responses in
//! [`respond`] alone. Absent: connections ([`server`]), the state of streams (protocol, event log),
//! and how their bodies are written (delivery).

mod body;
mod callers;
mod calls;
mod client_responses;
mod components;
mod connection;
mod context;
mod cors;
mod dialect_requests;
mod forward;
mod forward_to_replicas;
mod hard_cuts;
mod home_queries;
mod metrics;
mod misdirected;
mod named_rules;
mod priming;
mod promise;
mod refusals;
mod reliance;
mod remote_requests;
mod request_log;
mod resource_metadata;
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

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Body;
use tracing::Instrument;

pub use self::components::Components;
pub use self::connection::Connection;
use self::context::{RequestContext, Sender, head_bytes};
pub use self::metrics::Metrics;
pub use self::promise::Promises;
use self::promise::Reliance;
pub use self::remote_requests::handle_forwarded;
pub use self::resource_metadata::{DocumentError, read_document};
use crate::body::{BoxBody, Incoming};
use crate::channel::Variables;
use crate::event_log::{Handshake, Session, stream_owing};
use crate::protocol::body_events;
use crate::protocol::classify::{self, Route};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, Era, Present, ProtocolVersion, RequestFacts, SessionId};
use crate::protocol::ids::{Owner, StreamKind};
use crate::protocol::jsonrpc::{self, RequestId};
use crate::protocol::stream_url::{Named, take};
use crate::protocol::tasks::TaskRequest;
use crate::server::{self, Peer};

/// Handles the requests of the data listener: access, identification of the caller, and dispatch to
/// a handler.
#[derive(Clone)]
pub struct Handler(pub Arc<Components>);

impl server::Handler for Handler {
    type Connection = Connection;

    fn connect(&self, peer: Peer) -> Connection {
        Connection::new(peer, self.0.config.listen.trusted_proxies.clone(), self.0.public_name.clone())
    }

    fn handle(
        self,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<BoxBody>> + Send + 'static {
        // hyper keeps room for the handler's future while the connection lives: a box keeps it
        // small.
        Box::pin(handle(self.0, connection, request))
    }
}

/// Response to a request of a client in this process. Dropped before it is ready, its client has
/// left.
pub type LocalResponse = Pin<Box<dyn Future<Output = Response<BoxBody>> + Send>>;

/// A client in this process. Its requests have heads and bodies, and no HTTP between them and the
/// handlers. The body of a response is JSON, or [`Messages`](crate::delivery::Messages) under the
/// mark [`MessageFrames`](crate::delivery::MessageFrames).
#[derive(Clone)]
pub struct LocalClient {
    components: Arc<Components>,
    connection: Arc<Connection>,
}

impl LocalClient {
    /// Creates the client. All its requests have one connection, which never breaks.
    pub fn new(components: Components) -> Self {
        Self { components: Arc::new(components), connection: Arc::new(Connection::of_local_client()) }
    }

    /// Returns the components that handle its requests.
    pub fn components(&self) -> &Components {
        &self.components
    }

    /// Ends the server on a channel, with its processes. The next request starts another one.
    pub async fn replace_server(&self) {
        self.components.upstream.server().replace_servers().await;
    }

    /// Returns the record of a session, which tells when the session was opened again.
    pub fn handshake(&self, session: &SessionId) -> Option<Arc<Handshake>> {
        self.components.log.sessions().handshakes().find(session)
    }

    /// Returns the messages for the client of a session that was opened again.
    pub fn revival_messages(&self, handshake: &Handshake) -> Vec<Bytes> {
        self.components.upstream.revival_messages(handshake)
    }

    /// Handles a POST of messages to the endpoint.
    pub fn post(&self, headers: HeaderMap, body: Bytes) -> LocalResponse {
        let components = self.components.clone();
        let mut context = self.context(Method::POST, headers);
        Box::pin(async move {
            context.body_bytes = body.len();
            if let Err(code) = components.log.evict_for(context.reserve()) {
                return refuse_post(&components, code, &context, &body);
            }
            if let Some(cancelled) = jsonrpc::cancelled_request_id(&body) {
                wait_for_sent(&context, &cancelled).await;
            }
            let route = route_of(&components, &context, &body);
            by_route(&components, context, route, body).await
        })
    }

    /// Handles a GET of the session's standalone stream.
    pub fn listen(&self, headers: HeaderMap) -> LocalResponse {
        let (components, context) = (self.components.clone(), self.context(Method::GET, headers));
        Box::pin(async move { standalone::attach(&components, context).await })
    }

    /// Handles a DELETE of the session.
    pub fn end_session(&self, headers: HeaderMap) -> LocalResponse {
        let (components, context) = (self.components.clone(), self.context(Method::DELETE, headers));
        Box::pin(async move { session_end::delete(&components, context, Bytes::new()).await })
    }

    fn context(&self, method: Method, headers: HeaderMap) -> Box<RequestContext> {
        let components = &self.components;
        let facts = RequestFacts::of(&headers);
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        let target = components.upstream.server().endpoint_path();
        *request.uri_mut() = Uri::try_from(target).unwrap_or_default();
        let (parts, ()) = request.into_parts();
        let size = head_bytes(&facts, &parts.uri);
        let connection = self.connection.clone();
        let variables = Variables::default();
        callers::identify(components, parts, facts, size, connection, Sender::Client, variables)
    }
}

/// Waits until the request of a client in this process that it cancels was sent: a cancel that
/// overtakes its request cancels nothing. A request that waits for the server is withdrawn.
async fn wait_for_sent(context: &RequestContext, cancelled: &RequestId) {
    const LONGEST: Duration = Duration::from_secs(10);
    let running = context.session.as_ref().map(|session| session.running()).unwrap_or_default();
    let Some((stream, _)) = stream_owing(&running, cancelled) else { return };
    if !stream.upstream().is_waiting() {
        let _ = tokio::time::timeout(LONGEST, stream.upstream().sent()).await;
    }
}

/// Handles one request. Never fails: every error is a response.
async fn handle(
    components: Arc<Components>,
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
) -> Response<BoxBody> {
    let receipts = connection.receipts().clone();
    let facts = RequestFacts::of(request.headers());
    if facts.has(Present::RepeatedSession) {
        headers::unite_session(request.headers_mut());
    }
    if let Some(public) = &components.config.listen.public_url
        && public.is_endpoint(request.uri().path())
    {
        at_endpoint(&components, request.uri_mut());
    }
    let page = cors::Page::of(&components, &request, &facts);
    let sender = if facts.has(Present::Balancer) { misdirected::sender_of(request.headers()) } else { Sender::Client };
    let access = request_log::AccessLine::begin(&request, &components.config.upstream.url);
    let span = if facts.has(Present::Trace) { trace::span(request.headers()) } else { None };
    let mut seen = Seen::default();
    let mut response = match &span {
        None => dispatch(&components, connection, request, facts, sender, &mut seen).await,
        Some(span) => {
            let dispatched = Box::pin(dispatch(&components, connection, request, facts, sender, &mut seen));
            dispatched.instrument(span.clone()).await
        }
    };
    receipts.note_opened(|| SessionId::from_headers(response.headers()));
    if seen.is_at_endpoint {
        components.promises.put(&components.log, seen.is_distinct, response.headers_mut());
    }
    if components.drain.is_sending_away() {
        // The next requests of a connection go to another replica. HTTP/2 has no such header,
        // and a signal of its own.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(access) = access {
        access.end(&response);
    }
    if sender.is_routed() {
        misdirected::sign_home(&mut response, seen.home);
        misdirected::sign(&components, &mut response);
    }
    if let Some(page) = page {
        page.permit(&components, &mut response);
    }
    match span {
        None => response,
        Some(span) => response.map(|body| trace::within(span, body)),
    }
}

/// Facts of a request that its response needs.
#[derive(Default)]
struct Seen {
    /// Home of the session, if a balancer can send the request there.
    home: Option<Owner>,
    is_at_endpoint: bool,
    /// True if a session or a credential distinguishes the caller.
    is_distinct: bool,
}

/// Checks access, then passes the request on. Keeps the future of a call small. The rarer routes
/// are boxed, because every request pays for the largest future. It pays for each of two nested
/// futures that take the request. `seen` is set once the caller is identified.
async fn dispatch(
    components: &Arc<Components>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
    facts: RequestFacts,
    sender: Sender,
    seen: &mut Seen,
) -> Response<BoxBody> {
    let (mut parts, body) = request.into_parts();
    let head_bytes = head_bytes(&facts, &parts.uri);
    if let Some(refusal) = refuse_head(components, &parts, &facts, head_bytes) {
        return refusal;
    }
    if facts.has(Present::Origin)
        && let Some(response) = cors::preflight(components, &parts)
    {
        return response;
    }
    if parts.uri.path() == status_document::PATH {
        return Box::pin(status_document::handle(components, &parts.method)).await;
    }
    if !components.config.upstream.url.is_endpoint(parts.uri.path()) {
        if resource_metadata::concerns(components, &parts) {
            return Box::pin(resource_metadata::handle(components, parts, connection.forwarded())).await;
        }
        if sender.is_routed() && home_queries::is_query(&parts) {
            // Other paths have no sessions of the endpoint.
            return home_queries::here();
        }
        return Box::pin(forward::forward_other_path(components, parts, body, connection.forwarded())).await;
    }
    // The upstream does not see the stream that the target names.
    let stream_url = if components.config.dialects.stream_url { take(&mut parts.uri) } else { None };
    let variables = match callers::variables(components, &parts) {
        Ok(variables) => variables,
        Err(unusable) => return refusals::refuse_variable(components, &unusable),
    };
    let reliance = if facts.has(Present::Promise) { Reliance::take(&mut parts.headers) } else { None };
    let mut context = callers::identify(components, parts, facts, head_bytes, connection, sender, variables);
    context.reliance = reliance;
    (seen.is_at_endpoint, seen.is_distinct) = (true, context.binding.is_distinct());
    // On HTTP/2 a request says nothing about other responses.
    context.connection.receipts().note_request(&context.binding, context.parts.version >= Version::HTTP_2);
    let refused = if !components.log.has_store() || callers::knows_session(components, &context) {
        None
    } else {
        Box::pin(callers::restore_session(components, &mut context)).await.err()
    };
    if sender.is_routed() {
        seen.home = context.session.as_ref().and_then(|session| session.remote_home());
        if home_queries::is_query(&context.parts) {
            if misdirected::is_misdirected(components, &context, None, &[]) {
                return refusals::refuse(components, ErrorCode::Misdirected);
            }
            return Box::pin(home_queries::respond(components, &context, refused)).await;
        }
    }
    renew_ping_headers(components, &context);
    if let Some(named) = stream_url
        && matches!(context.parts.method, Method::GET | Method::POST)
    {
        return Box::pin(by_stream_url(components, context, named, body)).await;
    }
    if context.parts.method == Method::POST && context.facts.is_json {
        let body = match read(components, &mut context, body).await {
            Ok(body) => body,
            Err(code) => return refusals::refuse(components, code),
        };
        context.add_message_trace(&body);
        if misdirected::is_misdirected(components, &context, None, &body) {
            return refuse_post(components, ErrorCode::Misdirected, &context, &body);
        }
        if let Some(code) = refused {
            return refuse_post(components, code, &context, &body);
        }
        return match route_of(components, &context, &body) {
            Route::Call(call) => calls::handle(components, context, call, body).await,
            route => Box::pin(by_route(components, context, route, body)).await,
        };
    }
    if misdirected::is_misdirected(components, &context, None, &[]) {
        return refusals::refuse(components, ErrorCode::Misdirected);
    }
    if let Some(code) = refused {
        return refusals::refuse(components, code);
    }
    Box::pin(by_head(components, context, body)).await
}

/// Lets pings in the session of a request have its headers.
fn renew_ping_headers(components: &Components, context: &RequestContext) {
    if !context.has_remote_session() {
        let call = || {
            let call = components.upstream.call(&context.parts, context.connection.forwarded(), Bytes::new());
            call.for_caller(context.caller.clone())
        };
        components.upstream.ping_headers().renew(&context.binding, call);
    }
}

/// Refuses a request by its head, or returns `None`.
fn refuse_head(
    components: &Components,
    parts: &Parts,
    facts: &RequestFacts,
    head_bytes: usize,
) -> Option<Response<BoxBody>> {
    if head_bytes > components.config.limits.header_bytes {
        return Some(refusals::refuse(components, ErrorCode::HeadTooLarge));
    }
    let is_status = parts.uri.path() == status_document::PATH;
    // A balancer connects by an address, which no list of hosts has.
    let admitted = if is_status { Ok(()) } else { admit_host(components, parts) };
    let admitted =
        if facts.has(Present::Origin) { admitted.and_then(|()| admit_origin(components, parts)) } else { admitted };
    if let Err(code) = admitted {
        return Some(refusals::refuse_access(components, code, parts));
    }
    (!is_status && is_tunnel_request(parts, facts)).then(|| refusals::refuse(components, ErrorCode::UpgradeRefused))
}

/// Gives a request for the public URL's path the path of the server's endpoint.
fn at_endpoint(components: &Components, uri: &mut Uri) {
    let path = components.config.upstream.url.endpoint_path();
    let target = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    let mut changed = std::mem::take(uri).into_parts();
    changed.path_and_query = target.ok().or(changed.path_and_query);
    *uri = Uri::from_parts(changed).unwrap_or_default();
}

fn admit_host(components: &Components, parts: &Parts) -> Result<(), ErrorCode> {
    let is_admitted = components.config.listen.allowed_hosts.admit(&parts.uri, &parts.headers);
    if is_admitted { Ok(()) } else { Err(ErrorCode::HostRefused) }
}

fn admit_origin(components: &Components, parts: &Parts) -> Result<(), ErrorCode> {
    let is_admitted = components.config.listen.allowed_origins.admit(&parts.uri, &parts.headers);
    if is_admitted { Ok(()) } else { Err(ErrorCode::OriginRefused) }
}

/// Passes on a request whose target names a stream.
async fn by_stream_url(
    components: &Arc<Components>,
    mut context: Box<RequestContext>,
    named: Named,
    body: Incoming,
) -> Response<BoxBody> {
    if misdirected::is_misdirected(components, &context, Some(&named), &[]) {
        return refusals::refuse(components, ErrorCode::Misdirected);
    }
    if context.parts.method != Method::POST {
        return stream_url::handle(components, context, named, None).await;
    }
    match read(components, &mut context, body).await {
        Ok(body) => stream_url::handle(components, context, named, Some(body)).await,
        Err(code) => refusals::refuse(components, code),
    }
}

/// Passes on a POST by the route of its body.
async fn by_route(
    components: &Arc<Components>,
    context: Box<RequestContext>,
    route: Route,
    body: Bytes,
) -> Response<BoxBody> {
    match route {
        Route::Call(call) => calls::handle(components, context, call, body).await,
        Route::Dialect(request) => dialect_requests::handle(components, context, request, body).await,
        Route::Task(request, call) => task(components, context, request, call, body).await,
        Route::ClientResponses(messages) => {
            context.connection.receipts().prove(&components.log);
            client_responses::handle(components, context, messages, body).await
        }
        Route::Refuse(code) => refusals::refuse_body(components, code, &body),
        Route::Forward | Route::Resume(_) | Route::Standalone | Route::Delete => match context.remote_session_error() {
            Some(code) => refuse_post(components, code, &context, &body),
            None => forward::forward_post(components, context, body).await,
        },
    }
}

/// Handles a request that concerns a task. A task of the server's own is forwarded.
async fn task(
    components: &Components,
    mut context: Box<RequestContext>,
    request: TaskRequest,
    call: classify::Call,
    body: Bytes,
) -> Response<BoxBody> {
    context.connection.receipts().prove(&components.log);
    if call.era() == Era::Legacy {
        if tasks::concerns_legacy(components, &context, &request) {
            return tasks::handle_legacy(components, context, request, call, body).await;
        }
        return calls::handle(components, context, call, body).await;
    }
    match tasks::handle(components, &mut context, &request, &body).await {
        Some(response) => response,
        None => {
            let body = tasks::to_server(components, &mut context, body);
            calls::handle(components, context, call, body).await
        }
    }
}

/// Passes on a request by its head alone.
async fn by_head(components: &Components, mut context: Box<RequestContext>, body: Incoming) -> Response<BoxBody> {
    match classify::head(&context.parts.method, &context.parts.headers) {
        Route::Resume(id) if id.unverified_kind() == Some(StreamKind::Task) => {
            Box::pin(tasks::resume(components, context, &id)).await
        }
        Route::Resume(id) => resume::handle(components, context, id).await,
        Route::Standalone => standalone::attach(components, context).await,
        Route::Delete => match read(components, &mut context, body).await {
            Ok(body) => session_end::delete(components, context, body).await,
            Err(code) => refusals::refuse(components, code),
        },
        Route::Refuse(code) => refusals::refuse(components, code),
        Route::Forward | Route::Call(_) | Route::Dialect(_) | Route::Task(..) | Route::ClientResponses(_) => {
            match context.remote_session_error() {
                Some(code) => refusals::refuse(components, code),
                None if body.is_end_stream() => forward::forward_buffered(components, context, Bytes::new()).await,
                None => {
                    let RequestContext { parts, connection, caller, .. } = *context;
                    forward::forward_to_endpoint(components, parts, body, connection.forwarded(), caller).await
                }
            }
        }
    }
}

/// Returns the route of a POST in its session.
fn route_of(components: &Components, context: &RequestContext, body: &[u8]) -> Route {
    classify(components, context, body, context.session.as_deref().and_then(Session::version))
}

/// Classifies the POST of `context`.
fn classify(
    components: &Components,
    context: &RequestContext,
    body: &[u8],
    version: Option<&ProtocolVersion>,
) -> Route {
    let (declared, longest) = (components.config.dialects.declared, components.config.limits.batch);
    classify::post(context.facts.version.as_ref(), body, version, declared, longest)
}

/// Refuses a POST whose body was read, with the IDs of its requests.
fn refuse_post(components: &Components, code: ErrorCode, context: &RequestContext, body: &[u8]) -> Response<BoxBody> {
    match classify(components, context, body, None) {
        Route::Call(call) | Route::Task(_, call) => refusals::refuse_call(components, code, &call),
        _ => refusals::refuse(components, code),
    }
}

/// Reads the whole body, and reserves its bytes.
async fn read(components: &Components, context: &mut RequestContext, body: Incoming) -> Result<Bytes, ErrorCode> {
    let evict_for = |reservation: &_| components.log.evict_for(reservation);
    let limit = components.config.limits.body_bytes;
    let body = body::read(&context.parts.headers, &context.facts, body, limit, &context.quota, evict_for).await?;
    let body = body_events::without_mark(body);
    context.body_bytes = body.len();
    context.reserve();
    Ok(body)
}

/// True for a WebSocket or a CONNECT. Other upgrades are offers that a server may ignore.
fn is_tunnel_request(parts: &Parts, facts: &RequestFacts) -> bool {
    if !facts.has(Present::Upgrade) {
        return parts.method == Method::CONNECT;
    }
    let protocols = parts.headers.get_all(UPGRADE).into_iter().filter_map(|value| value.to_str().ok());
    let is_websocket = |protocol: &str| protocol.trim().eq_ignore_ascii_case("websocket");
    parts.method == Method::CONNECT || protocols.flat_map(|value| value.split(',')).any(is_websocket)
}
