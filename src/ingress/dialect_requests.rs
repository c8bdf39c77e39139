//! POSTs with a request of a dialect: a token finds the stream, and the dialect makes the response.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::metrics::{Metrics, ResumeMeans, Resumed};
use super::refusals::Refusals;
use super::stream_finder::StreamFinder;
use super::stream_response::StreamResponder;
use super::token_refresh::Unproven;
use crate::body::BoxBody;
use crate::dialect::{Resumption, resumable_requests, resumable_streams};
use crate::event_log::{EventLog, Stream};
use crate::protocol::classify::Dialect;
use crate::protocol::dialect::{Method, Params};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers;
use crate::server::respond;

/// Response of a dialect.
enum DialectResponse {
    Resumption(Resumption),
    Status(Vec<u8>),
}

/// Handles the requests of dialects.
pub(super) struct DialectRequests {
    log: Arc<EventLog>,
    metrics: Arc<Metrics>,
    refusals: Refusals,
    finder: Arc<StreamFinder>,
    responder: Arc<StreamResponder>,
}

impl DialectRequests {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        finder: Arc<StreamFinder>,
        responder: Arc<StreamResponder>,
    ) -> Self {
        Self { log: components.log.clone(), metrics: components.metrics.clone(), refusals, finder, responder }
    }

    /// Handles a POST with a request of a dialect.
    pub(super) async fn handle(
        &self,
        mut context: Box<RequestContext>,
        request: Dialect,
        body: Bytes,
    ) -> Response<BoxBody> {
        let accept = headers::accept(&context.parts.headers);
        let is_resume = matches!(request.method, Method::ResumeRequest | Method::ResumeStream);
        if (is_resume && !accept.sse) || (!is_resume && !accept.json) {
            return self.refusals.refuse_request(ErrorCode::NotAcceptable, &request.id);
        }
        self.finder.wait_for_resume_rate(&mut context).await;
        let params = Params::of(&body);
        let found = match self.finder.find_by_token(&context, params.resume_token.as_deref()).await {
            Ok(found) => found,
            Err(Unproven::Unavailable(code)) => return self.refusals.refuse_request(code, &request.id),
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        let response = found.and_then(|stream| self.respond(&context, &request, &params, stream));
        match response {
            Some(DialectResponse::Resumption(resumption)) => {
                self.responder.deliver_resumption(&context, means_of(&request), resumption)
            }
            Some(DialectResponse::Status(message)) => respond::json(StatusCode::OK, message.into()),
            None => {
                self.metrics.observe_resume(means_of(&request), Resumed::Lost);
                self.refusals.refuse_request(ErrorCode::TokenRefused, &request.id)
            }
        }
    }

    /// Returns the response to a request that found `stream`, or `None` if the request does not
    /// belong to that stream.
    fn respond(
        &self,
        context: &RequestContext,
        Dialect { id, method }: &Dialect,
        params: &Params,
        stream: Arc<Stream>,
    ) -> Option<DialectResponse> {
        let cursor = self.finder.cursor_in(context, &stream);
        match method {
            Method::ResumeRequest => resumable_requests::resume(stream, id, cursor).map(DialectResponse::Resumption),
            Method::GetRequestStatus => {
                let status_of = |request| resumable_requests::status(&stream, id, request, cursor);
                let status = params.request_id.as_ref().and_then(status_of);
                self.log.release(stream);
                status.map(DialectResponse::Status)
            }
            Method::ResumeStream => {
                let name = params.stream_id.as_deref()?;
                resumable_streams::resume(stream, id, name, cursor).map(DialectResponse::Resumption)
            }
            Method::PollStream => {
                let status_of = |name| resumable_streams::poll(&stream, id, name, cursor);
                let status = params.stream_id.as_deref().and_then(status_of);
                self.log.release(stream);
                status.map(DialectResponse::Status)
            }
        }
    }
}

fn means_of(request: &Dialect) -> ResumeMeans {
    match request.method {
        Method::ResumeRequest | Method::GetRequestStatus => ResumeMeans::ResumableRequests,
        Method::ResumeStream | Method::PollStream => ResumeMeans::ResumableStreams,
    }
}
