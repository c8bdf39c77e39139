//! Responses of the proxy's own: the only place that makes responses of errors, and the heads that
//! the proxy writes itself.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use tracing::warn;

use crate::body::BoxBody;
use crate::body::whole;
use mcp_resume_base::clock;
use mcp_resume_base::sync;
use mcp_resume_metrics::Errors;
use mcp_resume_protocol::access;
use mcp_resume_protocol::error::{Details, ErrorCode, Failure, Subject};
use mcp_resume_protocol::headers::{self, ResponseFacts};
use mcp_resume_protocol::ids::Owner;

/// Seconds in `Retry-After`.
const RETRY_AFTER_SECS: &str = "1";
/// Pause between log lines of refusals that any client can cause.
const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(10);

/// Returns a failure as a whole response with its error, or its errors, as `body`.
pub fn failure(failure: Failure, body: impl Into<Bytes>) -> Response<BoxBody> {
    let status = failure.code.http_status();
    let mut response = json(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), body.into());
    if matches!(status, 429 | 503) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
    }
    if matches!(failure.code, ErrorCode::BodyTooLarge | ErrorCode::BodyTooSlow) {
        // The rest of the body is not read, so the connection must end.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let may_go_elsewhere =
        matches!(failure.code, ErrorCode::Misdirected | ErrorCode::Draining | ErrorCode::Unreachable);
    if may_go_elsewhere && !failure.may_have_run {
        response.extensions_mut().insert(RetryElsewhere { home: failure.home });
    }
    let is_call_failure = match failure.code {
        ErrorCode::CallTimedOut | ErrorCode::Abandoned | ErrorCode::OwnerDied => true,
        // A call of another replica whose outcome the store does not have.
        ErrorCode::StoreFailed => failure.may_have_run,
        _ => false,
    };
    if is_call_failure {
        response.extensions_mut().insert(CallFailure);
    }
    response
}

/// Returns the failure of a request whose ID and method are unknown.
pub fn failure_without_id(failure: Failure) -> Response<BoxBody> {
    self::failure(failure, failure.to_message(None, Subject::Request))
}

/// Marks a refusal of a request that another replica may take.
#[derive(Clone, Copy)]
struct RetryElsewhere {
    /// Replica that can serve it, if that is known.
    home: Option<Owner>,
}

/// True if nothing of the request has run, and another replica may take it.
pub fn may_retry_elsewhere(response: &Response<BoxBody>) -> bool {
    response.extensions().get::<RetryElsewhere>().is_some()
}

/// Returns the replica that can serve a refused request, if it is known.
pub fn home(response: &Response<BoxBody>) -> Option<Owner> {
    response.extensions().get::<RetryElsewhere>()?.home
}

/// Marks a failure that says nothing of the server here: the call took too long, its client was
/// away, or another replica ran it.
#[derive(Clone, Copy)]
struct CallFailure;

/// True if the server here is not the cause of the failure in `response`.
pub fn is_call_failure(response: &Response<BoxBody>) -> bool {
    response.extensions().get::<CallFailure>().is_some()
}

/// Marks a response whose head the proxy wrote itself: a browser needs the upstream's CORS headers
/// on it.
#[derive(Clone, Copy)]
struct OwnHead;

/// True if the proxy wrote the head of `response`.
pub fn has_own_head(response: &Response<BoxBody>) -> bool {
    response.extensions().get::<OwnHead>().is_some()
}

/// Returns the refusal of a request before any byte of it reached the upstream.
pub fn refusal(code: ErrorCode) -> Response<BoxBody> {
    failure_without_id(Failure::before_run(code))
}

/// Returns a refusal with `detail` after the error's constant text.
pub fn refusal_about(code: ErrorCode, detail: &str) -> Response<BoxBody> {
    let failure = Failure::before_run(code);
    self::failure(failure, failure.to_message_with(None, Subject::Request, Details::of_text(detail)))
}

/// True if another refusal may be logged. Any client can cause one, so the log has at most one in
/// [`REFUSAL_LOG_PAUSE`].
fn may_log_refusal() -> bool {
    static LAST_LOGGED: Mutex<Option<Instant>> = Mutex::new(None);
    let now = clock::now();
    let mut last = sync::lock(&LAST_LOGGED);
    let may_log = last.is_none_or(|last| now.saturating_duration_since(last) >= REFUSAL_LOG_PAUSE);
    if may_log {
        *last = Some(now);
    }
    may_log
}

/// Returns the refusal of a request for its host or its origin. It names the host or origin, and
/// the key to allow it. Counts each refusal, and logs some.
pub fn access_refused(code: ErrorCode, uri: &Uri, headers: &HeaderMap, errors: &Errors) -> Response<BoxBody> {
    let detail = match code {
        ErrorCode::HostRefused => access::host_refused(uri, headers),
        _ => access::origin_refused(headers),
    };
    if may_log_refusal() {
        warn!(code = code.label(), detail, "a request was refused for its host or origin");
    }
    errors.observe_reject(code);
    let mut response = refusal_about(code, &detail);
    response.extensions_mut().insert(AccessRefused);
    response
}

/// Marks the refusal of a host or an origin: no page may read it.
#[derive(Clone, Copy)]
struct AccessRefused;

/// True if `response` refuses the host or the origin of a request.
pub fn is_access_refused(response: &Response<BoxBody>) -> bool {
    response.extensions().get::<AccessRefused>().is_some()
}

/// Returns a response with a JSON body.
pub fn json(status: StatusCode, body: Bytes) -> Response<BoxBody> {
    let mut response = self::status(status);
    *response.body_mut() = whole(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a response without a body.
pub fn status(status: StatusCode) -> Response<BoxBody> {
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = status;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(OwnHead);
    response
}

/// Returns a page of an admin listener, with its media type.
pub fn page(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response<BoxBody> {
    let mut response = self::status(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    *response.body_mut() = whole(body.into());
    response
}

/// Returns a page of plain text.
pub fn text(status: StatusCode, text: &'static str) -> Response<BoxBody> {
    page(status, "text/plain; charset=utf-8", text)
}

/// Returns the page with `metrics` in the text format of Prometheus.
pub fn metrics(metrics: Vec<u8>) -> Response<BoxBody> {
    page(StatusCode::OK, "text/plain; version=0.0.4", metrics)
}

/// Returns the refusal of a method that an admin page does not take.
pub fn method_not_allowed() -> Response<BoxBody> {
    let mut response = status(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// Returns an SSE response under a head of the proxy's own.
pub fn stream<B>(body: B) -> Response<BoxBody>
where
    B: http_body::Body<Data = Bytes, Error = crate::body::BoxError> + Send + 'static,
{
    let mut head = HeaderMap::new();
    head.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers::sse_downstream(&mut head, &ResponseFacts::default());
    let mut response = stream_with(StatusCode::OK, head, body);
    response.extensions_mut().insert(OwnHead);
    response
}

/// Returns an SSE response under a head that is ready for the client.
pub fn stream_with<B>(status: StatusCode, head: HeaderMap, body: B) -> Response<BoxBody>
where
    B: http_body::Body<Data = Bytes, Error = crate::body::BoxError> + Send + 'static,
{
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    *response.headers_mut() = head;
    response
}
