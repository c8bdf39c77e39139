//! Requests to a server on channels, in place of Streamable HTTP.
//!
//! Absent: the channels themselves (`channel/`), and the detection of such a server
//! ([`super::recognition`]).

use std::sync::Arc;

use http::header::ORIGIN;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;

use super::request::{Body, Template};
use super::response_body::ResponseBody;
use super::sent::Sent;
use crate::channel::{self, Caller, Channels};
use crate::protocol::headers::{self, Lines};

/// Size limit of the body of a forwarded request to a server on channels.
const MAX_FORWARDED: usize = 4 * 1024 * 1024;

/// Sends a request of a caller for any path, with these headers. A server on channels has only the
/// endpoint.
pub(super) async fn forward_by_channel(
    channels: &Arc<Channels>,
    request: Request<Body>,
    (lines, caller): (Lines, Option<Arc<Caller>>),
    is_endpoint: bool,
) -> Response<ResponseBody> {
    let empty = |status| channel::empty(status).map(ResponseBody::from);
    let (parts, body) = request.into_parts();
    // Browsers let a web page send other content types to any address without a preflight.
    if parts.method == Method::POST && !headers::is_json(&parts.headers) {
        return empty(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let body = match http_body_util::Limited::new(body, MAX_FORWARDED).collect().await {
        Ok(body) if is_endpoint => body.to_bytes(),
        Ok(_) => return empty(StatusCode::NOT_FOUND),
        Err(_) => return empty(StatusCode::BAD_REQUEST),
    };
    let template = Template::new(&parts, parts.headers.get(ORIGIN), lines, body).for_caller(caller);
    exchange_by_channel(channels, &template, None).await
}

/// Sends a request to a server on channels. Each error is a response.
pub(super) async fn exchange_by_channel(
    channels: &Arc<Channels>,
    template: &Template,
    sent: Option<&Sent>,
) -> Response<ResponseBody> {
    let record = sent.cloned();
    let on_begin = move || {
        if let Some(record) = record {
            record.set_sent();
        }
    };
    let request = channel::Request {
        method: template.method(),
        headers: template.lines(),
        session: template.session_name(),
        body: template.body(),
        stream: sent.and_then(Sent::stream),
        caller: template.caller(),
        start_kind: template.start_kind(),
        on_begin: Box::new(on_begin),
    };
    channels.send(request).await.map(ResponseBody::from)
}
