//! The phases of a request through Pingora: who sent it, whom it names, where it goes, and what is said when that fails.
//!
//! A request is sent once more only where nothing of it can have run: no byte of it was taken, or a sidecar says so by its own mark.
//! Nothing is remembered beyond the request. Absent: the choice itself ([`super::selection`]), and connections ([`super::server`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, RETRY_AFTER};
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

use super::health::{self, Health};
use super::in_flight::{self, BackendConnection, InFlight};
use super::metrics::{Metrics, RetryReason};
use super::peer::Peers;
use super::selection::{Criteria, Selection, select};
use super::table::Table;
use super::write_buffer::READ_MAX;
use crate::clock;
use crate::protocol::classify::{self, Route};
use crate::protocol::client::{self, Client, Trust, X_FORWARDED_FOR};
use crate::protocol::dialect::Declared;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, names};
use crate::protocol::ids::Owner;
use crate::protocol::routing;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// A body is looked into only if it is no longer: Pingora keeps so much of one to send it once more.
const PEEK_MAX: usize = 64 * 1024;
/// A body of unknown length is read no further once it has so much: another piece may not fit, and what Pingora does not keep is
/// lost.
const PEEK_UNKNOWN_MAX: usize = PEEK_MAX - READ_MAX;
/// A body that is looked into has so long to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// A request is sent so often at most.
const ATTEMPTS_MAX: usize = 6;
/// Clients that are told to come back later are told this many seconds.
const RETRY_AFTER_SECS: HeaderValue = HeaderValue::from_static("1");

/// What decides over every request.
pub struct Phases {
    /// Who is where.
    pub table: Arc<Table>,
    /// Whom to ask.
    pub health: Arc<Health>,
    /// How to get there.
    pub peers: Arc<Peers>,
    /// Whose word on addresses counts.
    pub trust: Trust,
    /// Requests of one address in a second.
    pub rate: Option<(Arc<Rate>, u32)>,
    /// All counters.
    pub metrics: Arc<Metrics>,
    /// Whether the balancer is on its way out.
    pub stopping: ShutdownWatch,
    /// Decides between equals.
    pub selections: AtomicUsize,
}

/// One request.
pub struct Request {
    metrics: Arc<Metrics>,
    began: Instant,
    client: Option<Client>,
    named: Option<Owner>,
    key: Option<Bytes>,
    has_rechecked: bool,
    tried: Vec<SocketAddr>,
    /// Where it is, and who it is meant for.
    in_flight: Option<InFlight>,
    sent_owner: Option<Owner>,
    connection: Option<RawFd>,
    attempts: usize,
    /// Bytes of it may have been taken.
    is_sent: bool,
    is_answered: bool,
    /// Why it is sent once more.
    retry: Option<RetryReason>,
    /// What its sender is told.
    failure: Option<Failure>,
    body: Bytes,
}

impl Phases {
    /// The whole body, if it is one to be looked into.
    async fn peek(session: &mut Session) -> Result<Bytes> {
        let head = session.req_header();
        let length = head.headers.get(CONTENT_LENGTH).map(|length| length.to_str().ok()?.parse::<usize>().ok());
        let most = match length {
            None => PEEK_UNKNOWN_MAX,
            Some(Some(length)) if length <= PEEK_MAX => PEEK_MAX,
            Some(_) => 0,
        };
        // Whoever waits for a word before it sends the body waits for the sidecar's.
        if head.method != Method::POST
            || !headers::is_json(&head.headers)
            || most == 0
            || head.headers.contains_key(EXPECT)
        {
            return Ok(Bytes::new());
        }
        // What is read from now on is kept, to be sent on.
        session.as_mut().enable_retry_buffering();
        let mut body = BytesMut::new();
        while body.len() <= most
            && let Some(piece) = session.read_request_body().await?
        {
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }

    /// Whether another replica than those that were tried may take a new call.
    fn has_another_replica(&self, request: &Request) -> bool {
        let mut tried = request.tried.clone();
        tried.extend(request.in_flight.as_ref().map(|in_flight| in_flight.backend.address));
        let criteria = Criteria { key: request.key.as_deref(), tried: &tried, ..Criteria::default() };
        matches!(select(&criteria, &self.table.replicas()), Selection::Owner(_))
    }

    /// Notes what an answer says of the replica's server. A GET may be answered from the replica's log, and a refusal that
    /// names the replica says nothing of the server; nor does a failure that is the call's.
    fn record_response(&self, request: &Request, method: &Method, status: StatusCode, is_refusal: bool) {
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

    fn is_too_often(&self, client: Option<IpAddr>) -> bool {
        let (Some((rate, most)), Some(client)) = (&self.rate, client) else { return false };
        rate.observe(&client, 1) > isize::try_from(*most).unwrap_or(isize::MAX)
    }

    /// Another number each time, and no turn that clients could fall into step with.
    fn tie_breaker(&self) -> usize {
        xxh3_64(&self.selections.fetch_add(1, Ordering::Relaxed).to_be_bytes()) as usize
    }

    /// Where the request goes now. Asks everybody where it names one that nobody is.
    async fn select(&self, request: &mut Request) -> Option<(SocketAddr, Option<Owner>)> {
        loop {
            let replicas = self.table.replicas();
            let criteria = Criteria {
                owner: request.named,
                key: request.key.as_deref(),
                has_rechecked: request.has_rechecked,
                tried: &request.tried,
                tie_breaker: self.tie_breaker(),
            };
            match select(&criteria, &replicas) {
                Selection::Owner(replica) => return Some((replica.address, Some(replica.owner))),
                Selection::Any(replica) => return Some((replica.address, None)),
                Selection::Nowhere => return None,
                Selection::Recheck => {
                    self.health.recheck(request.began).await;
                    request.has_rechecked = true;
                    // Who could not be connected to may be there now, as another.
                    request.tried.clear();
                }
            }
        }
    }

    fn fail(request: &mut Request, failure: Failure) -> Box<Error> {
        request.failure = Some(failure);
        Error::explain(ErrorType::HTTPStatus(failure.code.http_status()), failure.code.label())
    }

    fn record_transport_failure(&self, request: &Request) {
        if let Some(in_flight) = &request.in_flight
            && in_flight.backend.record_transport_failure()
        {
            self.metrics.observe_ejection();
        }
    }

    /// A sidecar, `own` by name, says that nothing of the request has run, and why: it is not the one that was meant, takes no new
    /// calls, or cannot reach its server.
    async fn misdirected(
        &self,
        session: &mut Session,
        request: &mut Request,
        status: StatusCode,
        own: Option<Owner>,
    ) -> Result<()> {
        let is_other = status == StatusCode::MISDIRECTED_REQUEST;
        // It is the one that was meant: its body names another, and was not looked into.
        let is_by_body = is_other && own == request.sent_owner;
        if is_by_body {
            match routing::of_body(&session.as_ref().get_retry_buffer().unwrap_or_default()) {
                Some(named) => request.named = Some(named),
                // What was not kept is not there the next time either.
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
            _ => RetryReason::Closing,
        });
        let mut error = Error::explain(ErrorType::HTTPStatus(status.as_u16()), "nothing of it ran");
        error.set_retry(true);
        Err(error)
    }
}

#[async_trait]
impl ProxyHttp for Phases {
    type CTX = Request;

    /// None: the one that Pingora would add, for compression, is asked at every piece of every answer.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    fn new_ctx(&self) -> Request {
        self.metrics.observe_in_flight(1);
        Request {
            metrics: self.metrics.clone(),
            began: clock::now(),
            client: None,
            named: None,
            key: None,
            has_rechecked: false,
            tried: Vec::new(),
            in_flight: None,
            sent_owner: None,
            connection: None,
            attempts: 0,
            is_sent: false,
            is_answered: false,
            retry: None,
            failure: None,
            body: Bytes::new(),
        }
    }

    async fn request_filter(&self, session: &mut Session, request: &mut Request) -> Result<bool> {
        if *self.stopping.borrow() {
            // The next one is for another balancer.
            session.set_keepalive(None);
        }
        let head = session.req_header();
        if head.uri.path() == health::PATH {
            // Between the sidecars and those before them.
            session.respond_error(StatusCode::NOT_FOUND.as_u16()).await?;
            return Ok(true);
        }
        let peer = session.client_addr().and_then(|address| Some(address.as_inet()?.ip()));
        request.client = peer.map(|peer| self.trust.client(peer, &session.req_header().headers));
        if self.is_too_often(request.client.as_ref().map(|client| client.address)) {
            return Err(Self::fail(request, Failure::before_run(ErrorCode::TooManyRequests)));
        }
        request.body = match tokio::time::timeout(BODY_TIMEOUT, Self::peek(session)).await {
            Ok(body) => body?,
            Err(_) => return Err(Self::fail(request, Failure::before_run(ErrorCode::BodyTooSlow))),
        };
        let head = session.req_header();
        request.named = routing::named(&head.headers, &head.uri, &request.body);
        let key = head.headers.get(names::IDEMPOTENCY_KEY);
        request.key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        Ok(false)
    }

    async fn upstream_peer(&self, _: &mut Session, request: &mut Request) -> Result<Box<HttpPeer>> {
        in_flight::unwatch();
        (request.in_flight, request.connection) = (None, None);
        request.attempts += 1;
        let selected = if request.attempts > ATTEMPTS_MAX { None } else { self.select(request).await };
        let backend = selected.and_then(|(address, sent_owner)| Some((self.table.find(address)?, sent_owner)));
        let Some((backend, sent_owner)) = backend else {
            return Err(Self::fail(request, Failure::before_run(ErrorCode::NoReplica)));
        };
        (request.in_flight, request.sent_owner) = (Some(backend.begin_request()), sent_owner);
        Ok(Box::new(self.peers.peer_for(&backend)))
    }

    async fn connected_to_upstream(
        &self,
        _: &mut Session,
        _reused: bool,
        _: &HttpPeer,
        connection: RawFd,
        _: Option<&Digest>,
        request: &mut Request,
    ) -> Result<()> {
        request.connection = Some(connection);
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream: &mut RequestHeader,
        request: &mut Request,
    ) -> Result<()> {
        let is_tls = session.digest().is_some_and(|digest| digest.ssl_digest.is_some());
        if let Some(client) = &request.client {
            forward(client, if is_tls { "https" } else { "http" }, upstream)?;
        }
        upstream.remove_header(&names::MCP_RESUME_OWNER);
        if let Some(owner) = request.sent_owner {
            upstream.insert_header(names::MCP_RESUME_OWNER, owner.to_string())?;
        }
        // From here on bytes may be taken, and only the replica can say anything: without it there is nothing to wait for.
        request.is_sent = true;
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
        request: &mut Request,
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
        request: &mut Request,
        client_reused: bool,
    ) -> Box<Error> {
        // What the connection was is no more.
        in_flight::unwatch();
        let is_safe = matches!(session.req_header().method, Method::GET | Method::HEAD);
        let is_theirs = *error.esource() == ErrorSource::Upstream;
        let is_left =
            client_reused || request.in_flight.as_ref().is_some_and(|in_flight| in_flight.down().is_cancelled());
        if request.retry.is_none() && is_theirs && is_left && is_safe && !request.is_answered {
            request.retry = Some(RetryReason::Stale);
        } else if request.retry.is_none() && is_theirs {
            self.record_transport_failure(request);
        }
        let again = request.retry.take().filter(|_| request.attempts < ATTEMPTS_MAX);
        if let Some(again) = again {
            self.metrics.observe_retry(again);
            request.is_sent = false;
        }
        error.set_retry(again.is_some());
        error
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        request: &mut Request,
    ) -> Result<()> {
        let said = response.remove_header(&names::MCP_RESUME_OWNER);
        let is_by_replica = said.is_some() && request.sent_owner.is_some();
        let is_of_the_call =
            response.remove_header(&names::MCP_RESUME_FAILURE).is_some() && request.sent_owner.is_some();
        let says_nothing = is_of_the_call || (is_by_replica && response.status != StatusCode::BAD_GATEWAY);
        let method = &session.req_header().method;
        self.record_response(request, method, response.status, says_nothing);
        let has_not_run = match response.status {
            StatusCode::MISDIRECTED_REQUEST => true,
            // Whoever named it has nobody else to go to.
            StatusCode::SERVICE_UNAVAILABLE => request.named.is_none(),
            // Where nobody else can take it, its own words say most.
            StatusCode::BAD_GATEWAY => {
                let may_go_on = request.attempts < ATTEMPTS_MAX && !session.as_ref().retry_buffer_truncated();
                request.named.is_none() && may_go_on && self.has_another_replica(request)
            }
            _ => false,
        };
        if is_by_replica && has_not_run {
            let own = said.and_then(|own| Owner::parse(own.to_str().ok()?));
            return self.misdirected(session, request, response.status, own).await;
        }
        request.is_answered = true;
        in_flight::response_started();
        Ok(())
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, request: &mut Request) -> FailToProxy {
        let is_gone = *error.esource() == ErrorSource::Downstream
            && matches!(error.etype(), ErrorType::WriteError | ErrorType::ReadError | ErrorType::ConnectionClosed);
        if is_gone || request.is_answered {
            return FailToProxy { error_code: 0, can_reuse_downstream: false };
        }
        let failure = request.failure.unwrap_or(match (error.esource(), request.is_sent) {
            (ErrorSource::Downstream, _) => Failure::before_run(ErrorCode::BadRequest),
            (_, true) => Failure::after_send(ErrorCode::ReplicaBroke),
            (_, false) => Failure::before_run(ErrorCode::NoReplica),
        });
        let replica = request.in_flight.as_ref().map(|in_flight| in_flight.backend.address);
        info!(code = failure.code.label(), replica = replica.map(tracing::field::display), %error, "a request failed");
        self.metrics.observe_failure(failure.code);
        let status = failure.code.http_status();
        if let Err(error) = tell(session, failure, &request.body).await {
            debug!(%error, "a client could not be told of a failure");
        }
        FailToProxy { error_code: status, can_reuse_downstream: false }
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, _: &mut Request) {
        self.metrics.observe_answer(session.response_written().map_or(0, |response| response.status.as_u16()));
    }

    fn suppress_error_log(&self, _: &Session, _: &Request, error: &Error) -> bool {
        // Clients come and go.
        *error.esource() == ErrorSource::Downstream
    }
}

/// Says for whom the request is made.
fn forward(client: &Client, scheme: &'static str, upstream: &mut RequestHeader) -> Result<()> {
    if !client.is_behind_trusted {
        let claims: Vec<_> = upstream.headers.keys().filter(|name| client::describes_client(name)).cloned().collect();
        claims.iter().for_each(|name| drop(upstream.remove_header(name)));
    }
    upstream.insert_header(X_FORWARDED_FOR, client.forwarded_for.clone())?;
    if !upstream.headers.contains_key(X_FORWARDED_PROTO) {
        upstream.insert_header(X_FORWARDED_PROTO, scheme)?;
    }
    Ok(())
}

/// Says a failure under the ids of the requests that `body` has, as a sidecar would.
async fn tell(session: &mut Session, failure: Failure, body: &[u8]) -> Result<()> {
    let text = match classify::post(&session.req_header().headers, body, None, Declared::ALL, classify::BATCH_MAX) {
        Route::Call(call) => failure.to_body(&call.ids, call.batch),
        _ => failure.to_body(&[], false),
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

impl Drop for Request {
    fn drop(&mut self) {
        // Not everything that ends a request ends by way of the phases.
        in_flight::unwatch();
        self.metrics.observe_in_flight(-1);
    }
}
