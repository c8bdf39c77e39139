//! The phases of a request through Pingora: client address, owner, selection of a backend, retry,
//! and error response.
//!
//! A request is retried only if no part of it can have run. This is so if no byte of it was read,
//! or if a sidecar says so in a response that names its owner. Nothing is remembered beyond the
//! request. Absent: the selection itself ([`super::selection`]), and connections
//! ([`super::server`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::server::ShutdownWatch;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_limits::rate::Rate;
use pingora_proxy::{FailToProxy, ProxyHttp, Session};
use tracing::{debug, info};
use xxhash_rust::xxh3::xxh3_64;

use super::callers::Callers;
use super::health::{self, HealthChecker};
use super::home_finder::{self, Found, HomeFinder};
use super::in_flight::{self, BackendConnection, InFlight};
use super::metrics::{Metrics, RetryReason};
use super::peer::Peers;
use super::request_body;
use super::selection::{Criteria, Replica, Selection, StoreScope, select};
use super::table::{Backend, Table};
use mcp_resume_base::clock;
use mcp_resume_protocol::classify::{self, Route};
use mcp_resume_protocol::client_address::{self, Client, Trust, X_FORWARDED_FOR};
use mcp_resume_protocol::dialect::Declared;
use mcp_resume_protocol::error::{ErrorCode, Failure, Subject};
use mcp_resume_protocol::headers::{ProtocolVersion, names};
use mcp_resume_protocol::ids::Owner;
use mcp_resume_protocol::routing;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Deadline for a body that is searched for an owner.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Most attempts to send a request.
const ATTEMPTS_MAX: usize = 6;
/// `Retry-After` of refusals, in seconds.
const RETRY_AFTER_SECS: HeaderValue = HeaderValue::from_static("1");

/// Handler of the phases of every request.
pub struct Phases {
    /// The backends.
    pub table: Arc<Table>,
    /// Health checks, for a request that names an unknown owner.
    pub health: Arc<HealthChecker>,
    /// Connection settings for each backend.
    pub peers: Arc<Peers>,
    /// Queries for the homes of sessions.
    pub homes: HomeFinder,
    /// Finds the callers of requests that name no session.
    pub callers: Arc<Callers>,
    /// Proxies whose statements about client addresses are trusted.
    pub trust: Trust,
    /// Limit of requests per second and client address.
    pub rate: Option<(Arc<Rate>, u32)>,
    /// Metrics of the balancer.
    pub metrics: Arc<Metrics>,
    /// True once the balancer stops.
    pub stopping: ShutdownWatch,
    /// Count of selections, which yields the tie-breakers.
    pub selections: AtomicUsize,
}

/// State of one request.
pub struct RequestState {
    metrics: Arc<Metrics>,
    arrived: Instant,
    client: Option<Client>,
    owner: Option<Owner>,
    session: Option<Bytes>,
    key: Option<Bytes>,
    /// Digest of the caller, if a sidecar keeps callers apart.
    caller: Option<[u8; 16]>,
    /// True if a replica gets a query for the session's home before the body. Pingora may not keep
    /// the body for a second attempt.
    needs_home: bool,
    has_rechecked: bool,
    /// True if a replica has waited in vain for the end of the home's lease.
    has_living_home: bool,
    tried: Vec<SocketAddr>,
    /// The request at its backend.
    in_flight: Option<InFlight>,
    /// Replica that the request is marked with.
    mark: Mark,
    connection: Option<RawFd>,
    attempts: usize,
    progress: Progress,
    /// Reason for a retry, set by the phase that requests it.
    retry: Option<RetryReason>,
    /// Error that the client gets.
    failure: Option<Failure>,
    body: Bytes,
}

/// A replica that was selected for a request.
struct Selected {
    backend: Arc<Backend>,
    mark: Mark,
    /// True if its store names the homes of sessions.
    has_homes: bool,
}

/// Mark of a request for the sidecar that it is sent to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// No mark: a stand-in responds as if it had no balancer.
    Absent,
    /// The sidecar's own owner.
    Owner(Owner),
    /// The home of the session, which the sidecar may take over.
    LostHome(Owner),
}

impl Mark {
    /// Replaces the mark in the head of a request.
    fn write(self, head: &mut RequestHeader) -> Result<()> {
        head.remove_header(&names::MCP_RESUME_OWNER);
        head.remove_header(&names::MCP_RESUME_HOME);
        match self {
            Self::Absent => Ok(()),
            Self::Owner(owner) => head.insert_header(names::MCP_RESUME_OWNER, owner.to_string()),
            Self::LostHome(home) => head.insert_header(names::MCP_RESUME_HOME, home.to_string()),
        }
    }
}

/// Progress of a request at its backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No byte was sent.
    Waiting,
    /// Bytes may have been read.
    Sent,
    /// A response has begun.
    Answered,
}

impl Phases {
    /// Returns true if a replica that was not tried may take a new call.
    fn has_another_replica(&self, request: &RequestState) -> bool {
        let mut tried = request.tried.clone();
        tried.extend(request.in_flight.as_ref().map(|in_flight| in_flight.backend.address));
        let criteria = Criteria { key: request.key.as_deref(), tried: &tried, ..Criteria::default() };
        matches!(select(&criteria, &self.table.replicas()), Selection::Chosen(_))
    }

    /// Records at the backend what a response reveals of the replica's server. Three kinds reveal
    /// nothing: a response to a GET, which may come from the replica's log, a refusal with the
    /// replica's owner, and a failure of the call itself.
    fn record_response(&self, request: &RequestState, method: &Method, status: StatusCode, is_refusal: bool) {
        let Some(in_flight) = &request.in_flight else { return };
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
                if *method == Method::POST && !is_refusal =>
            {
                if in_flight.backend.record_error_response() {
                    self.metrics.observe_ejection();
                }
            }
            status if *method == Method::POST && !status.is_server_error() && !is_refusal => {
                in_flight.backend.record_success()
            }
            _ => in_flight.backend.record_response(),
        }
    }

    fn is_over_rate_limit(&self, client: Option<IpAddr>) -> bool {
        let (Some((rate, most)), Some(client)) = (&self.rate, client) else { return false };
        rate.observe(&client, 1) > isize::try_from(*most).unwrap_or(isize::MAX)
    }

    /// Returns a different number for each call, without a period that clients could fall into step
    /// with.
    fn tie_breaker(&self) -> usize {
        xxh3_64(&self.selections.fetch_add(1, Ordering::Relaxed).to_be_bytes()) as usize
    }

    /// Queries the selected replica for the home of the session. Returns false if another replica
    /// is to be selected.
    async fn is_at(
        &self,
        session: &Session,
        request: &mut RequestState,
        peer: &HttpPeer,
        selected: &InFlight,
    ) -> Result<bool> {
        let mut query = home_finder::query_for(session.req_header())?;
        describe_client(session, request, &mut query)?;
        request.mark.write(&mut query)?;
        match self.homes.find(peer, selected, query).await {
            Found::Here => Ok(true),
            Found::Home(home) => {
                self.follow_to_home(request, home).await;
                Ok(false)
            }
            Found::Down => {
                request.tried.push(selected.backend.address);
                Ok(false)
            }
            // With the body the request could go nowhere else.
            Found::Silent => Err(Self::fail(request, Failure::before_run(ErrorCode::NoReplica))),
        }
    }

    /// Selects a backend for the request. An unknown owner causes one round of health checks.
    async fn select(&self, request: &mut RequestState) -> Option<Selected> {
        loop {
            let replicas = self.table.replicas();
            let criteria = Criteria {
                owner: request.owner,
                session: request.session.as_deref(),
                key: request.key.as_deref(),
                caller: request.caller.as_ref().map(<[u8; 16]>::as_slice),
                has_rechecked: request.has_rechecked,
                tried: &request.tried,
                tie_breaker: self.tie_breaker(),
            };
            match select(&criteria, &replicas) {
                Selection::Chosen(replica) => return self.selected(replica, Mark::Owner(replica.owner)),
                // The home of the session lives, but not for this balancer.
                Selection::StandIn(_) if request.has_living_home => return None,
                Selection::StandIn(replica) => {
                    let home =
                        request.owner.filter(|_| request.session.is_some() && replica.store == StoreScope::Shared);
                    return self.selected(replica, home.map_or(Mark::Absent, Mark::LostHome));
                }
                Selection::Nowhere => return None,
                Selection::Recheck => {
                    self.health.recheck(request.arrived).await;
                    request.has_rechecked = true;
                    // Another replica may have come up at an address that could not be connected
                    // to.
                    request.tried.clear();
                }
            }
        }
    }

    fn selected(&self, replica: &Replica, mark: Mark) -> Option<Selected> {
        let has_homes = mark != Mark::Absent && replica.store == StoreScope::Shared;
        Some(Selected { backend: self.table.find(replica.address)?, mark, has_homes })
    }

    fn fail(request: &mut RequestState, failure: Failure) -> Box<Error> {
        request.failure = Some(failure);
        Error::explain(ErrorType::HTTPStatus(failure.code.http_status()), failure.code.label())
    }

    fn record_transport_failure(&self, request: &RequestState) {
        if let Some(in_flight) = &request.in_flight
            && in_flight.backend.record_transport_failure()
        {
            self.metrics.observe_ejection();
        }
    }

    /// Handles the response of the sidecar `owner` that nothing of the request has run. That
    /// sidecar is not the owner, takes no new calls, or cannot reach its server. Returns an error
    /// that has Pingora retry the request, if it can be retried.
    async fn retry_not_run(
        &self,
        session: &mut Session,
        request: &mut RequestState,
        status: StatusCode,
        owner: Option<Owner>,
    ) -> Result<()> {
        let is_other = status == StatusCode::MISDIRECTED_REQUEST;
        // The right replica was selected by the head, but the body, which was not searched, names
        // another.
        let is_by_body = is_other && owner.is_some_and(|owner| request.mark == Mark::Owner(owner));
        if is_by_body {
            let body = session.as_ref().get_retry_buffer().unwrap_or_default();
            match routing::of_body(&body).or_else(|| routing::of_parked_call(&body)) {
                Some(owner) => request.owner = Some(owner),
                // Pingora has not kept the body, and would not keep it in a retry.
                None => return Err(Self::fail(request, Failure::before_run(ErrorCode::BodyTooLarge))),
            }
        }
        if request.attempts >= ATTEMPTS_MAX || session.as_ref().retry_buffer_truncated() {
            return Err(Self::fail(request, Failure::before_run(ErrorCode::NoReplica)));
        }
        if is_other && !std::mem::replace(&mut request.has_rechecked, true) {
            self.health.recheck(clock::now()).await;
        } else if let Some(in_flight) = &request.in_flight {
            request.tried.push(in_flight.backend.address);
        }
        request.retry = Some(match status {
            StatusCode::MISDIRECTED_REQUEST => RetryReason::Misdirected,
            StatusCode::BAD_GATEWAY => RetryReason::Unreachable,
            _ => RetryReason::NoNewCalls,
        });
        let mut error = Error::explain(ErrorType::HTTPStatus(status.as_u16()), "nothing of the request has run");
        error.set_retry(true);
        Err(error)
    }

    /// Handles the refusal of a sidecar because another replica is the home of the session. No part
    /// of the request has run. Returns an error that has Pingora retry the request there, if it can
    /// be retried.
    async fn retry_at_home(&self, session: &Session, request: &mut RequestState, home: Owner) -> Result<()> {
        if request.attempts >= ATTEMPTS_MAX || session.as_ref().retry_buffer_truncated() {
            return Err(Self::fail(request, Failure::before_run(ErrorCode::NoReplica)));
        }
        self.follow_to_home(request, home).await;
        request.retry = Some(RetryReason::Misdirected);
        let mut error = Error::explain(ErrorType::HTTPStatus(421), "the session is at another replica");
        error.set_retry(true);
        Err(error)
    }

    /// Records the home of the session, as a replica reported it, for the next selection.
    async fn follow_to_home(&self, request: &mut RequestState, home: Owner) {
        if request.mark == Mark::LostHome(home) {
            // The home may be up again meanwhile.
            self.health.recheck(clock::now()).await;
            request.tried.clear();
            request.has_living_home = true;
        }
        request.owner = Some(home);
    }
}

#[async_trait]
impl ProxyHttp for Phases {
    type CTX = RequestState;

    /// Installs no module: Pingora's default one, for compression, would be called for every piece
    /// of every response.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    fn new_ctx(&self) -> RequestState {
        self.metrics.observe_in_flight(1);
        RequestState {
            metrics: self.metrics.clone(),
            arrived: clock::now(),
            client: None,
            owner: None,
            session: None,
            key: None,
            caller: None,
            needs_home: false,
            has_rechecked: false,
            has_living_home: false,
            tried: Vec::new(),
            in_flight: None,
            mark: Mark::Absent,
            connection: None,
            attempts: 0,
            progress: Progress::Waiting,
            retry: None,
            failure: None,
            body: Bytes::new(),
        }
    }

    async fn request_filter(&self, session: &mut Session, request: &mut RequestState) -> Result<bool> {
        if *self.stopping.borrow() {
            // The client's next request goes to another balancer.
            session.set_keepalive(None);
        }
        let head = session.req_header();
        if head.uri.path() == health::PATH {
            // Only balancers request the reports of sidecars.
            session.respond_error(StatusCode::NOT_FOUND.as_u16()).await?;
            return Ok(true);
        }
        let peer = session.client_addr().and_then(|address| Some(address.as_inet()?.ip()));
        request.client = peer.map(|peer| self.trust.client(peer, &session.req_header().headers));
        if self.is_over_rate_limit(request.client.as_ref().map(|client| client.address)) {
            return Err(Self::fail(request, Failure::before_run(ErrorCode::TooManyRequests)));
        }
        request.body = match tokio::time::timeout(BODY_TIMEOUT, request_body::peek(session)).await {
            Ok(body) => body?,
            Err(_) => return Err(Self::fail(request, Failure::before_run(ErrorCode::BodyTooSlow))),
        };
        let is_long = request_body::is_long(session);
        let head = session.req_header();
        request.owner =
            routing::named(&head.headers, &head.uri, &request.body).or_else(|| routing::of_parked_call(&request.body));
        // A request that names a stream goes to the owner of the stream, not to the home of its
        // session.
        request.needs_home = is_long
            && head.headers.contains_key(names::MCP_SESSION_ID)
            && routing::of_head(&head.headers, &head.uri).is_none();
        let session = head.headers.get(names::MCP_SESSION_ID);
        request.session = session.map(|session| Bytes::copy_from_slice(session.as_bytes()));
        let key = head.headers.get(names::IDEMPOTENCY_KEY);
        request.key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        if request.owner.is_none() && self.table.keeps_callers() {
            request.caller = self.callers.of(head, &request.body);
        }
        Ok(false)
    }

    async fn upstream_peer(&self, session: &mut Session, request: &mut RequestState) -> Result<Box<HttpPeer>> {
        in_flight::unwatch();
        loop {
            (request.in_flight, request.connection) = (None, None);
            request.attempts += 1;
            let selected = if request.attempts > ATTEMPTS_MAX { None } else { self.select(request).await };
            let Some(Selected { backend, mark, has_homes }) = selected else {
                return Err(Self::fail(request, Failure::before_run(ErrorCode::NoReplica)));
            };
            let in_flight = InFlight::begin(&backend);
            request.mark = mark;
            let peer = self.peers.peer_for(&backend);
            if !request.needs_home || !has_homes || self.is_at(session, request, &peer, &in_flight).await? {
                request.in_flight = Some(in_flight);
                return Ok(Box::new(peer));
            }
        }
    }

    async fn connected_to_upstream(
        &self,
        _: &mut Session,
        _reused: bool,
        _: &HttpPeer,
        connection: RawFd,
        _: Option<&Digest>,
        request: &mut RequestState,
    ) -> Result<()> {
        request.connection = Some(connection);
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream: &mut RequestHeader,
        request: &mut RequestState,
    ) -> Result<()> {
        describe_client(session, request, upstream)?;
        upstream.remove_header(&names::MCP_RESUME_LOCATE);
        request.mark.write(upstream)?;
        // From here on the replica may read bytes, and only it can respond. If it goes down, the
        // wait ends.
        if request.progress == Progress::Waiting {
            request.progress = Progress::Sent;
        }
        if let Some(in_flight) = &request.in_flight {
            let address = in_flight.backend.address;
            in_flight.watch(request.connection.map(|fd| BackendConnection { fd, address }));
        }
        Ok(())
    }

    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        request: &mut RequestState,
        mut error: Box<Error>,
    ) -> Box<Error> {
        self.record_transport_failure(request);
        if let Some(in_flight) = request.in_flight.take() {
            request.tried.push(in_flight.backend.address);
        }
        self.metrics.observe_retry(RetryReason::Connect);
        error.set_retry(true);
        error
    }

    fn error_while_proxy(
        &self,
        _: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        request: &mut RequestState,
        client_reused: bool,
    ) -> Box<Error> {
        // Pingora may close the connection from here on.
        in_flight::unwatch();
        let is_safe = matches!(session.req_header().method, Method::GET | Method::HEAD);
        let is_backend_error = *error.esource() == ErrorSource::Upstream;
        let is_down = request.in_flight.as_ref().is_some_and(|in_flight| in_flight.down().is_cancelled());
        let mut retry = request.retry.take();
        if retry.is_none() && is_backend_error {
            if (client_reused || is_down) && is_safe && request.progress != Progress::Answered {
                retry = Some(RetryReason::Stale);
            } else {
                self.record_transport_failure(request);
            }
        }
        if request.attempts >= ATTEMPTS_MAX {
            retry = None;
        }
        if let Some(reason) = retry {
            self.metrics.observe_retry(reason);
            if request.progress == Progress::Sent {
                request.progress = Progress::Waiting;
            }
        }
        error.set_retry(retry.is_some());
        error
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        request: &mut RequestState,
    ) -> Result<()> {
        let owner = response.remove_header(&names::MCP_RESUME_OWNER);
        let home = response.remove_header(&names::MCP_RESUME_HOME).filter(|_| request.mark != Mark::Absent);
        let is_marked = matches!(request.mark, Mark::Owner(_));
        let is_by_replica = owner.is_some() && is_marked;
        let is_call_failure = response.remove_header(&names::MCP_RESUME_FAILURE).is_some() && is_marked;
        let is_refusal = is_call_failure || (is_by_replica && response.status != StatusCode::BAD_GATEWAY);
        let method = &session.req_header().method;
        self.record_response(request, method, response.status, is_refusal || home.is_some());
        if response.status == StatusCode::MISDIRECTED_REQUEST
            && let Some(home) = home.and_then(|home| Owner::parse(home.to_str().ok()?))
        {
            return self.retry_at_home(session, request, home).await;
        }
        let has_not_run = match response.status {
            StatusCode::MISDIRECTED_REQUEST => true,
            // A request with an owner has no other replica to go to.
            StatusCode::SERVICE_UNAVAILABLE => request.owner.is_none(),
            // If no other replica can take the call, this response says the most.
            StatusCode::BAD_GATEWAY => {
                let may_go_on = request.attempts < ATTEMPTS_MAX && !session.as_ref().retry_buffer_truncated();
                request.owner.is_none() && may_go_on && self.has_another_replica(request)
            }
            _ => false,
        };
        if is_by_replica && has_not_run {
            let owner = owner.and_then(|owner| Owner::parse(owner.to_str().ok()?));
            return self.retry_not_run(session, request, response.status, owner).await;
        }
        request.progress = Progress::Answered;
        in_flight::response_started();
        Ok(())
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, request: &mut RequestState) -> FailToProxy {
        let is_gone = *error.esource() == ErrorSource::Downstream
            && matches!(error.etype(), ErrorType::WriteError | ErrorType::ReadError | ErrorType::ConnectionClosed);
        if is_gone || request.progress == Progress::Answered {
            return FailToProxy { error_code: 0, can_reuse_downstream: false };
        }
        let failure = request.failure.unwrap_or(match (error.esource(), request.progress) {
            (ErrorSource::Downstream, _) => Failure::before_run(ErrorCode::BadRequest),
            (_, Progress::Sent | Progress::Answered) => Failure::after_send(ErrorCode::ReplicaBroke),
            (_, Progress::Waiting) => Failure::before_run(ErrorCode::NoReplica),
        });
        let replica = request.in_flight.as_ref().map(|in_flight| in_flight.backend.address);
        info!(code = failure.code.label(), replica = replica.map(tracing::field::display), %error, "a request failed");
        self.metrics.observe_failure(failure.code);
        let status = failure.code.http_status();
        if let Err(error) = respond_with_failure(session, failure, &request.body).await {
            debug!(%error, "an error response could not be sent");
        }
        FailToProxy { error_code: status, can_reuse_downstream: false }
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, _: &mut RequestState) {
        self.metrics.observe_response(session.response_written().map_or(0, |response| response.status.as_u16()));
    }

    fn suppress_error_log(&self, _: &Session, _: &RequestState, error: &Error) -> bool {
        // Clients may disconnect at any time.
        *error.esource() == ErrorSource::Downstream
    }
}

/// Sets the headers that describe the client of the request to the sidecar.
fn describe_client(session: &Session, request: &RequestState, upstream: &mut RequestHeader) -> Result<()> {
    let Some(client) = &request.client else { return Ok(()) };
    if !client.is_behind_trusted {
        let claims: Vec<_> =
            upstream.headers.keys().filter(|name| client_address::describes_client(name)).cloned().collect();
        for name in claims {
            upstream.remove_header(&name);
        }
    }
    upstream.insert_header(X_FORWARDED_FOR, client.forwarded_for.clone())?;
    if !upstream.headers.contains_key(X_FORWARDED_PROTO) {
        let is_tls = session.digest().is_some_and(|digest| digest.ssl_digest.is_some());
        upstream.insert_header(X_FORWARDED_PROTO, if is_tls { "https" } else { "http" })?;
    }
    Ok(())
}

/// Responds with a failure, under the ids of the requests in `body`, in the format of a sidecar.
async fn respond_with_failure(session: &mut Session, failure: Failure, body: &[u8]) -> Result<()> {
    let version = ProtocolVersion::from_headers(&session.req_header().headers);
    let text = match classify::post(version.as_ref(), body, None, Declared::ALL, classify::BATCH_MAX) {
        Route::Call(call) => failure.to_body(&call.ids, call.is_batch, call.subject),
        _ => failure.to_message(None, Subject::Request),
    };
    let status = failure.code.http_status();
    let mut response = ResponseHeader::build(status, Some(4))?;
    response.insert_header(CONTENT_TYPE, "application/json")?;
    response.insert_header(CONTENT_LENGTH, text.len())?;
    response.insert_header(CACHE_CONTROL, "no-store")?;
    if matches!(status, 429 | 503) {
        response.insert_header(RETRY_AFTER, RETRY_AFTER_SECS)?;
    }
    session.set_keepalive(None);
    session.write_response_header(Box::new(response), false).await?;
    session.write_response_body(Some(text.into()), true).await
}

impl Drop for RequestState {
    fn drop(&mut self) {
        // A request may be dropped outside of the phases.
        in_flight::unwatch();
        self.metrics.observe_in_flight(-1);
    }
}
