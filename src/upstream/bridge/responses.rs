//! Responses that the bridge makes itself, and the message in a response of the server.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use serde_json::Value;

use crate::channel;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, RequestId, code, response};
use crate::upstream::server::body::collect;
use crate::upstream::server::exchange::Unanswered;
use crate::upstream::server::response_body::{Messages, ResponseBody};
use crate::upstream::server::sse_reader::first_message;

/// Size limit of the response to a request of the bridge's own.
const RESPONSE_MAX: usize = 1024 * 1024;

/// Returns the first response in a body of JSON or of events, as JSON. The rest of the body is not
/// read.
pub(super) async fn response_in(response: Response<ResponseBody>) -> Option<Bytes> {
    first_message(response, RESPONSE_MAX, is_response).await.map(as_json)
}

/// Reads a body of at most `limit` bytes as one message of the server, as JSON.
///
/// # Errors
/// If the body is larger, or breaks off.
pub(super) async fn message_in(body: ResponseBody, limit: usize) -> Result<Bytes, ErrorCode> {
    collect(body, limit).await.map(message_of)
}

/// Returns a body as one message of the server, as JSON: the response of an array.
pub(super) fn message_of(body: Bytes) -> Bytes {
    let json = as_json(body);
    if !json.trim_ascii_start().starts_with(b"[") {
        return json;
    }
    let response =
        jsonrpc::find_message(&json, |message| is_response(message.as_bytes()).then(|| jsonrpc::span(&json, message)));
    response.map_or(json.clone(), |response| json.slice(response))
}

fn is_response(message: &[u8]) -> bool {
    let has = |path| jsonrpc::place(message, path).is_some();
    has(&["result"]) || has(&["error"])
}

/// Returns the failure of a request whose response of status 200 cannot be translated. Such a
/// response has an ID of the bridge's, which no client knows.
pub(super) fn untranslatable() -> Unanswered {
    let status = Some(StatusCode::OK.as_u16());
    Failure { http_status: status, ..Failure::after_send(ErrorCode::UpstreamGarbage) }.into()
}

/// Returns a message of the server as JSON. A message that is translated cannot keep what only
/// lenient parsers read.
pub(super) fn as_json(message: Bytes) -> Bytes {
    jsonrpc::as_json(&message).map_or(message, Bytes::from)
}

/// Returns true if the response carries a message to translate. Server failures and refusals of the
/// caller pass with their headers.
pub(super) fn is_translated(parts: &Parts) -> bool {
    let passes =
        parts.status.is_server_error() || matches!(parts.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    !passes && headers::is_read_as_json(&parts.headers)
}

/// Returns a response without a body.
pub(super) fn empty(status: StatusCode) -> Response<ResponseBody> {
    channel::empty(status).map(ResponseBody::from)
}

/// Returns a JSON response.
pub(super) fn json_response(status: StatusCode, message: Vec<u8>) -> Response<ResponseBody> {
    channel::json(status, message).map(ResponseBody::from)
}

/// Returns a JSON response with an error.
pub(super) fn error(status: StatusCode, id: Option<&RequestId>, code: i64, text: &str) -> Response<ResponseBody> {
    json_response(status, response::error_with_data(id, code, text, Value::Null))
}

/// Returns the refusal of an unknown session, after the attempt to revive it.
pub(super) fn unknown_session() -> Response<ResponseBody> {
    error(StatusCode::NOT_FOUND, None, code::INVALID_REQUEST, "Session not found")
}

/// Returns an error of the proxy for a request that no server has received, with `detail` after its
/// constant text.
pub(super) fn refusal(code: ErrorCode, detail: &str, id: &RequestId) -> Response<ResponseBody> {
    channel::refusal_about(code, detail, std::slice::from_ref(id)).map(ResponseBody::from)
}

/// Returns a response with these messages as an event stream.
pub(super) fn event_stream(messages: Messages) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Messages(messages));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// Returns true for a status that refuses the request itself, and so perhaps its revision. Others
/// refuse the caller or its rate, or are temporary: a server that is asked again then suffers more.
pub(super) fn refuses_request(status: StatusCode) -> bool {
    const OF_OTHERS: [StatusCode; 7] = [
        StatusCode::UNAUTHORIZED,
        StatusCode::PAYMENT_REQUIRED,
        StatusCode::FORBIDDEN,
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_client_error() && !OF_OTHERS.contains(&status)
}
