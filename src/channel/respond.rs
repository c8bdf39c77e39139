//! Responses that a channel makes itself, like a server on Streamable HTTP.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use super::body::{Body, Events, Response};
use crate::protocol::error::{Details, ErrorCode, Failure, Subject};
use crate::protocol::jsonrpc::RequestId;

/// Cause of an error that is in place of a response of the server, for the log. It is an extension
/// of the error.
#[derive(Clone, Debug)]
pub struct Cause(pub String);

/// Returns a response without a body.
pub fn empty(status: StatusCode) -> Response {
    let mut response = http::Response::new(Body::whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Returns a JSON response.
pub fn json(code: StatusCode, body: impl Into<Bytes>) -> Response {
    let mut response = http::Response::new(Body::whole(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a response with these events.
pub(super) fn event_stream(events: Events) -> Response {
    let mut response = http::Response::new(Body::Events(events));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// Returns the refusal of requests that no server has received.
pub(super) fn refusal(code: ErrorCode, ids: &[RequestId]) -> Response {
    refusal_about(code, "", ids)
}

/// Returns the refusal of requests that no server has received, with `detail` after the error's
/// constant text.
pub fn refusal_about(code: ErrorCode, detail: &str, ids: &[RequestId]) -> Response {
    refusal_with(code, Details::of_text(detail), ids)
}

/// Returns the refusal of requests that no server has received, with these details of the error.
pub(super) fn refusal_with(code: ErrorCode, details: Details<'_>, ids: &[RequestId]) -> Response {
    let failure = Failure::before_run(code);
    let body = match ids {
        [] | [_] => failure.to_message_with(ids.first(), Subject::Request, details),
        ids => failure.to_body(ids, true, Subject::Request),
    };
    let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = json(status, body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Returns the refusal of requests in a session whose server could not be started.
pub fn no_server(ids: &[RequestId]) -> Response {
    refusal(ErrorCode::NoServer, ids)
}
