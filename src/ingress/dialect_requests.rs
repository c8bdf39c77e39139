//! POSTs with a request of a dialect: a token finds the stream, and the dialect makes the response.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::metrics::{ResumeMeans, Resumed};
use super::refusals;
use super::stream_finder;
use super::stream_response;
use super::token_refresh::Unproven;
use crate::body::BoxBody;
use crate::dialect::{Resumption, resumable_requests, resumable_streams};
use crate::event_log::Stream;
use crate::protocol::classify::Dialect;
use crate::protocol::dialect::{Method, Params};
use crate::protocol::error::ErrorCode;
use crate::server::respond;

/// Response of a dialect.
enum DialectResponse {
    Resumption(Resumption),
    Status(Vec<u8>),
}

/// Handles a POST with a request of a dialect.
pub(super) async fn handle(
    components: &Components,
    mut context: Box<RequestContext>,
    request: Dialect,
    body: Bytes,
) -> Response<BoxBody> {
    let accept = context.facts.accept;
    let is_resume = matches!(request.method, Method::ResumeRequest | Method::ResumeStream);
    if (is_resume && !accept.sse) || (!is_resume && !accept.json) {
        return refusals::refuse_request(components, ErrorCode::NotAcceptable, &request.id);
    }
    stream_finder::wait_for_resume_rate(components, &mut context).await;
    let params = Params::of(&body);
    let found = match stream_finder::find_by_token(components, &context, params.resume_token.as_deref()).await {
        Ok(found) => found,
        Err(Unproven::Unavailable(code)) => return refusals::refuse_request(components, code, &request.id),
        Err(unproven) => return unproven.into_response(components),
    };
    let response = found.and_then(|stream| respond(components, &context, &request, &params, stream));
    match response {
        Some(DialectResponse::Resumption(resumption)) => {
            stream_response::deliver_resumption(components, &context, means_of(&request), resumption)
        }
        Some(DialectResponse::Status(message)) => respond::json(StatusCode::OK, message.into()),
        None => {
            components.metrics.observe_resume(means_of(&request), Resumed::Lost);
            refusals::refuse_request(components, ErrorCode::TokenRefused, &request.id)
        }
    }
}

/// Returns the response to a request that found `stream`. Returns `None` if the request does not
/// belong to the stream.
fn respond(
    components: &Components,
    context: &RequestContext,
    Dialect { id, method }: &Dialect,
    params: &Params,
    stream: Arc<Stream>,
) -> Option<DialectResponse> {
    let cursor = stream_finder::cursor_in(components, context, &stream);
    match method {
        Method::ResumeRequest => resumable_requests::resume(stream, id, cursor).map(DialectResponse::Resumption),
        Method::GetRequestStatus => {
            let status_of = |request| resumable_requests::status(&stream, id, request, cursor);
            let status = params.request_id.as_ref().and_then(status_of);
            components.log.retention().release(stream);
            status.map(DialectResponse::Status)
        }
        Method::ResumeStream => {
            let name = params.stream_id.as_deref()?;
            resumable_streams::resume(stream, id, name, cursor).map(DialectResponse::Resumption)
        }
        Method::PollStream => {
            let status_of = |name| resumable_streams::poll(&stream, id, name, cursor);
            let status = params.stream_id.as_deref().and_then(status_of);
            components.log.retention().release(stream);
            status.map(DialectResponse::Status)
        }
    }
}

fn means_of(request: &Dialect) -> ResumeMeans {
    match request.method {
        Method::ResumeRequest | Method::GetRequestStatus => ResumeMeans::ResumableRequests,
        Method::ResumeStream | Method::PollStream => ResumeMeans::ResumableStreams,
    }
}
