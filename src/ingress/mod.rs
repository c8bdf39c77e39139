//! Handlers of the clients' requests.
//!
//! Each kind of request has its file: [`calls`] for a POST with requests, [`client_responses`] for a POST without, [`resume`] for GET and
//! DELETE, [`forward`] for everything that passes unchanged. Errors become responses in [`respond`] alone. Absent: connections
//! ([`server`]), the state of streams (protocol, event log), and how their bodies are written (delivery).

mod body;
mod calls;
mod client_responses;
mod connection;
mod dialect_requests;
mod forward;
mod forward_to_owner;
mod metrics;
mod misdirected;
mod request_log;
mod resume;
mod stream_url;
mod token_refresh;
mod trace;
mod well_known;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue, ORIGIN, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response, Version};
use hyper::body::Body;
use tracing::Instrument;

pub use metrics::Metrics;

use crate::body::{BoxBody, Incoming};
use crate::cluster::Replicas;
use crate::config::{Config, Prime};
use crate::delivery::Plan;
use crate::dialect;
use crate::event_log::{
    Attachment, Binding, EventLog, Opened, Principals, Quota, QuotaKey, Reservation, Session, Shown,
};
use crate::lifecycle::drain::Drain;
use crate::lifecycle::readiness::Readiness;
use crate::protocol::classify::{self, Route};
use crate::protocol::dialect::resume_tokens::TokenField;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, ProtocolVersion, SessionId};
use crate::protocol::ids::IssuedSession;
use crate::server::{self, Peer, respond};
use crate::store;
use crate::upstream::{Credentials, Upstream};

pub use connection::Connection;

/// First revision whose clients are known to reconnect after a response that ends early.
const POLLING_REVISION: &str = "2025-11-25";

/// State that all requests share.
#[derive(Clone)]
pub struct Ingress {
    /// Configuration of the sidecar.
    pub config: Arc<Config>,
    /// Log of all streams.
    pub log: Arc<EventLog>,
    /// The MCP server.
    pub upstream: Arc<Upstream>,
    /// Identifies callers, as the owners of streams and sessions.
    pub principals: Principals,
    /// Identifies credentials, by which the upstream judges a caller.
    pub credentials: Principals,
    /// Metrics of the sidecar.
    pub metrics: Arc<Metrics>,
    /// Drain of the process.
    pub drain: Arc<Drain>,
    /// Replicas that share the store, or `None` if the store is not shared.
    pub replicas: Option<Arc<Replicas>>,
    /// Random number that tells this process from others of the same name.
    pub instance: u64,
    /// True once the log has warned of MCP traffic that passes unprotected.
    pub has_told_unprotected: Arc<AtomicBool>,
}

/// Head of a request, and facts about its sender. Boxed where it is owned: each future on a request's way would hold it twice, and all of
/// them are one allocation.
struct RequestContext {
    parts: Parts,
    binding: Binding,
    /// Credentials by which the upstream judges the sender.
    credentials: Credentials,
    session: Option<Arc<Session>>,
    session_kind: SessionKind,
    sender: Sender,
    /// Quota that the sender's requests count against.
    quota: Arc<Quota>,
    /// Bytes of the body, once it was read whole.
    body_bytes: usize,
    /// Reservation for head and body, from when the body was read until they count as a stream's or go upstream.
    reservation: Option<Reservation>,
    connection: Arc<Connection>,
}

/// Sender of a request.
#[derive(Clone, Copy)]
enum Sender {
    Client,
    /// A balancer, which has marked the request with the replica that it names.
    Balancer,
    /// Another replica, which forwards the request of a client or of a balancer.
    Replica {
        is_marked: bool,
    },
}

impl Sender {
    /// True if a balancer has marked the request.
    fn is_marked(self) -> bool {
        match self {
            Self::Client => false,
            Self::Balancer => true,
            Self::Replica { is_marked } => is_marked,
        }
    }

    /// True if another replica forwards the request.
    fn is_replica(self) -> bool {
        match self {
            Self::Client | Self::Balancer => false,
            Self::Replica { .. } => true,
        }
    }
}

/// Origin of the session that a request names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionKind {
    /// A session of the server here, or none.
    Upstream,
    /// A session that the proxy issued, of which the upstream knows nothing.
    Issued,
    /// A session of another replica's server. It is never named to the server here.
    Remote,
}

impl RequestContext {
    /// Parts of the request that may identify its sender.
    fn shown(&self) -> Shown<'_> {
        let Parts { headers, uri, .. } = &self.parts;
        Shown { headers, query: uri.query(), certificate: self.connection.certificate() }
    }

    /// Reserves bytes for the head and the body for as long as the request waits, unless they are reserved.
    fn reserve(&mut self) -> &Reservation {
        let Self { parts, body_bytes, quota, reservation, .. } = self;
        reservation.get_or_insert_with(|| quota.reserve(head_bytes(parts) + *body_bytes))
    }

    /// True if the proxy issued the session.
    fn has_issued_session(&self) -> bool {
        self.session_kind == SessionKind::Issued
    }

    /// True if the session is one of another replica's server.
    fn has_remote_session(&self) -> bool {
        self.session_kind == SessionKind::Remote
    }
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
        // hyper keeps room for the handler's future while the connection lives: a box keeps it small.
        Box::pin(self.0.handle(connection, request))
    }
}

impl Ingress {
    /// Handles one request. Never fails: every error is a response.
    pub async fn handle(self: Arc<Self>, connection: Arc<Connection>, request: Request<Incoming>) -> Response<BoxBody> {
        let receipts = connection.receipts().clone();
        let origin = request.headers().get(ORIGIN).cloned();
        let is_marked = misdirected::is_marked(request.headers());
        let access = request_log::AccessLine::begin(&request, &self.config.upstream.url);
        let span = trace::span(request.headers());
        let mut response = match &span {
            None => self.clone().dispatch(connection, request).await,
            Some(span) => Box::pin(self.clone().dispatch(connection, request)).instrument(span.clone()).await,
        };
        receipts.note_opened(|| SessionId::from_headers(response.headers()));
        if self.drain.is_sending_away() {
            // The next requests of a connection go to another replica. HTTP/2 has no such header, and a signal of its own.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(access) = access {
            access.end(&response);
        }
        if is_marked {
            self.sign(&mut response);
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

    /// Keeps the future of a call small: the rarer routes are boxed, because every request pays for the largest.
    async fn dispatch(self: Arc<Self>, connection: Arc<Connection>, request: Request<Incoming>) -> Response<BoxBody> {
        let (mut parts, body) = request.into_parts();
        if head_bytes(&parts) > self.config.limits.header_bytes {
            return self.refuse(ErrorCode::HeadTooLarge);
        }
        if parts.uri.path() == well_known::PATH {
            // A balancer connects by an address, which no list of hosts has.
            return match self.admit_origin(&parts) {
                Ok(()) => Box::pin(self.well_known(&parts.method)).await,
                Err(code) => self.refuse_access(code, &parts),
            };
        }
        if let Err(code) = self.admit(&parts) {
            return self.refuse_access(code, &parts);
        }
        if wants_tunnel(&parts) {
            return self.refuse(ErrorCode::UpgradeRefused);
        }
        if !self.config.upstream.url.is_endpoint(parts.uri.path()) {
            return Box::pin(self.forward_elsewhere(parts, body, connection.forwarded())).await;
        }
        let stream_url = self.take_stream_url(&mut parts.uri);
        let mut context = self.identify(parts, connection);
        // On HTTP/2 a request says nothing about other responses.
        context.connection.receipts().note_request(&context.binding, context.parts.version >= Version::HTTP_2);
        let is_known = !self.log.has_store()
            || context.session.as_ref().is_some_and(|session| session.is_known())
            || Box::pin(self.restore_session(&mut context)).await.is_ok();
        if let Some(named) = stream_url
            && matches!(context.parts.method, Method::GET | Method::POST)
        {
            if self.is_misdirected(&context, Some(&named), &[]) {
                return self.refuse(ErrorCode::Misdirected);
            }
            return Box::pin(self.by_stream_url(context, named, body)).await;
        }
        if context.parts.method == Method::POST && headers::is_json(&context.parts.headers) {
            return match self.read(&mut context, body).await {
                Ok(body) if self.is_misdirected(&context, None, &body) => {
                    self.refuse_post(ErrorCode::Misdirected, &context, &body)
                }
                Ok(body) if is_known => self.post(context, body).await,
                Ok(body) => self.refuse_post(ErrorCode::StoreFailed, &context, &body),
                Err(code) => self.refuse(code),
            };
        }
        if self.is_misdirected(&context, None, &[]) {
            return self.refuse(ErrorCode::Misdirected);
        }
        if !is_known {
            return self.refuse(ErrorCode::StoreFailed);
        }
        Box::pin(self.by_head(context, body)).await
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

    /// Returns whether the sidecar takes new calls, and if not, why.
    pub async fn readiness(&self) -> Readiness {
        Readiness::of(&self.drain, &self.log, self.replicas.as_deref(), &self.upstream).await
    }

    async fn by_head(self: Arc<Self>, mut context: Box<RequestContext>, body: Incoming) -> Response<BoxBody> {
        match classify::head(&context.parts.method, &context.parts.headers) {
            Route::Resume(id) => self.resume(context, id).await,
            Route::Standalone => self.standalone(context).await,
            Route::Delete => match self.read(&mut context, body).await {
                Ok(body) => self.delete(context, body).await,
                Err(code) => self.refuse(code),
            },
            Route::Refuse(code) => self.refuse(code),
            Route::Forward | Route::Call(_) | Route::Dialect(_) | Route::Answers(_) => {
                match self.remote_session_error(&context) {
                    Some(code) => self.refuse(code),
                    None if body.is_end_stream() => self.forward_read(context, Bytes::new()).await,
                    None => self.forward_to_endpoint(context.parts, body, context.connection.forwarded()).await,
                }
            }
        }
    }

    async fn post(self: Arc<Self>, context: Box<RequestContext>, body: Bytes) -> Response<BoxBody> {
        let version = context.session.as_deref().and_then(Session::version);
        match self.classify(&context, &body, version) {
            Route::Call(call) => match self.partial_results(&call, &body) {
                (partial, TokenField::Absent) => {
                    context.connection.receipts().prove(&self.log);
                    self.call(context, call, body, partial).await
                }
                (partial, said) => Box::pin(self.call_with_token(context, call, body, partial, said)).await,
            },
            Route::Dialect(request) => Box::pin(self.dialect(context, request, body)).await,
            Route::Answers(messages) => {
                context.connection.receipts().prove(&self.log);
                Box::pin(self.client_responses(context, messages, body)).await
            }
            Route::Refuse(code) => self.refuse(code),
            Route::Forward | Route::Resume(_) | Route::Standalone | Route::Delete => {
                match self.remote_session_error(&context) {
                    Some(code) => self.refuse_post(code, &context, &body),
                    None => Box::pin(self.forward_whole(context, body)).await,
                }
            }
        }
    }

    /// Classifies the POST of `context`.
    fn classify(&self, context: &RequestContext, body: &[u8], version: Option<&ProtocolVersion>) -> Route {
        let (spoken, longest) = (self.config.dialects.declared, self.config.limits.batch);
        classify::post(&context.parts.headers, body, version, spoken, longest)
    }

    fn identify(&self, mut parts: Parts, connection: Arc<Connection>) -> Box<RequestContext> {
        let shown = Shown { headers: &parts.headers, query: parts.uri.query(), certificate: connection.certificate() };
        let principal = self.principals.of(&shown);
        let subject = self.principals.subject_of(&principal, &shown);
        // A credential is hashed once if it also identifies its caller.
        let shown = if self.principals.is_auto() { principal } else { self.credentials.of(&shown) };
        let credentials = Credentials { shown, principal };
        let is_proven = self.principals.are_named() || self.upstream.observed().has_proven(&credentials);
        let (id, issued) = self.session_of(&mut parts);
        let is_marked = misdirected::is_marked(&parts.headers);
        let session_kind = match &id {
            _ if issued.is_some() => SessionKind::Issued,
            Some(id) if self.is_remote_session(id, is_marked) => SessionKind::Remote,
            Some(_) | None => SessionKind::Upstream,
        };
        let sessions = self.log.sessions();
        let session = match (&id, issued) {
            (Some(id), Some(IssuedSession { version, declared })) => {
                Some(sessions.find_or_open(id, &principal, Opened { version, logging: false, declared }))
            }
            (Some(id), None) if parts.method == Method::POST => Some(sessions.find_or_record(id, &principal)),
            (Some(id), None) => sessions.find(id, &principal),
            (None, _) => None,
        };
        let is_open = session.as_ref().is_some_and(|session| session.version().is_some());
        let address = connection.client(&parts.headers);
        let key = QuotaKey::of(&principal, is_proven, id.as_ref().filter(|_| is_open), address);
        let quota = self.log.quota(key);
        Box::new(RequestContext {
            parts,
            binding: Binding { principal, subject, session: id },
            credentials,
            session,
            session_kind,
            sender: if is_marked { Sender::Balancer } else { Sender::Client },
            quota,
            body_bytes: 0,
            reservation: None,
            connection,
        })
    }

    /// Restores the session that a request names, if another process knows more of it. Fails if no request may be served without that
    /// knowledge.
    async fn restore_session(&self, context: &mut RequestContext) -> Result<(), store::Error> {
        if let Some(id) = &context.binding.session
            && let Some(session) = self.log.load_session(id, &context.binding.principal).await?
        {
            context.session = Some(session);
        }
        Ok(())
    }

    /// Returns the session that a request names. A session that the proxy issued is never named upstream. One that claims to be issued,
    /// but with another key, counts as none.
    fn session_of(&self, parts: &mut Parts) -> (Option<SessionId>, Option<IssuedSession>) {
        let Some(id) = SessionId::from_headers(&parts.headers) else { return (None, None) };
        if !IssuedSession::is_claimed_by(&id) {
            return (Some(id), None);
        }
        parts.headers.remove(headers::names::MCP_SESSION_ID);
        let issued = self.log.open_issued(&id);
        (Some(id).filter(|_| issued.is_some()), issued)
    }

    /// Reads the whole body, and reserves its bytes.
    async fn read(&self, context: &mut RequestContext, body: Incoming) -> Result<Bytes, ErrorCode> {
        let evict_for = |reservation: &Reservation| self.log.evict_for(reservation);
        let limit = self.config.limits.body_bytes;
        let body = body::read(&context.parts.headers, body, limit, &context.quota, evict_for).await?;
        context.body_bytes = body.len();
        context.reserve();
        Ok(body)
    }

    fn refuse(&self, code: ErrorCode) -> Response<BoxBody> {
        self.metrics.errors.observe_reject(code);
        respond::refusal(code)
    }

    /// Refuses a host or an origin that is not allowed. The response names it, and the key that would allow it.
    fn refuse_access(&self, code: ErrorCode, parts: &Parts) -> Response<BoxBody> {
        respond::access_refused(code, &parts.uri, &parts.headers, &self.metrics.errors)
    }

    /// Refuses a POST whose body was read, with the IDs of its requests.
    fn refuse_post(&self, code: ErrorCode, context: &RequestContext, body: &[u8]) -> Response<BoxBody> {
        match self.classify(context, body, None) {
            Route::Call(call) => self.refuse_call(code, &call),
            _ => self.refuse(code),
        }
    }

    /// Returns how the connection of `attachment` is served, for a client that speaks `version`. `returning`: true if it has come back to
    /// the stream.
    fn plan(
        &self,
        attachment: &Attachment,
        version: Option<&ProtocolVersion>,
        session: Option<&Session>,
        returning: bool,
    ) -> Plan {
        let stream = attachment.stream();
        let delivery = &self.config.delivery;
        let is_new_enough = version.is_some_and(|version| version.is_at_least(POLLING_REVISION));
        let returns = || {
            returning
                || session.is_some_and(|session| session.has_returned() || session.declared().is_any())
                || stream.look(|machine| machine.reader().has_reconnected())
        };
        let should_prime = delivery.prime == Prime::All || is_new_enough || returns();
        let polls_by_revision = version.is_some_and(|version| version.as_str() == POLLING_REVISION);
        // A connection is closed early only if its client reconnects. All such clients are primed, and so have got a `retry`.
        let comes_back = polls_by_revision || returns();
        let should_poll = stream.polls() && comes_back;
        Plan {
            should_prime,
            retry: if should_poll { delivery.poll_retry } else { delivery.retry },
            heartbeat: delivery.heartbeat,
            max_connection: delivery.max_connection.filter(|_| comes_back),
            should_poll,
            can_close_when_asked: comes_back,
            has_turns: false,
            preface: None,
            closing: None,
            interim: attachment.slice().and_then(|slice| dialect::resume_tokens::interim(stream, slice)).map(Box::new),
        }
    }
}

/// Returns the approximate size of a head as it was sent: names, values, and four bytes of framing for each.
fn head_bytes(parts: &Parts) -> usize {
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    fields.sum::<usize>() + parts.uri.path_and_query().map_or(0, |target| target.as_str().len())
}

/// Copies a small body. It is a slice of the connection's read buffer, and would keep that alive.
fn detached(body: Bytes) -> Bytes {
    const SMALL: usize = 64 * 1024;
    if body.len() <= SMALL { Bytes::copy_from_slice(&body) } else { body }
}

/// True for a WebSocket or a CONNECT. Other upgrades are offers that a server may ignore.
fn wants_tunnel(parts: &Parts) -> bool {
    let protocols = parts.headers.get_all(UPGRADE).into_iter().filter_map(|value| value.to_str().ok());
    let is_websocket = |protocol: &str| protocol.trim().eq_ignore_ascii_case("websocket");
    parts.method == Method::CONNECT || protocols.flat_map(|value| value.split(',')).any(is_websocket)
}
