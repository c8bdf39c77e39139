//! POSTs with a request of a dialect: a token finds the stream, and the dialect makes the response.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::metrics::{self, Resumed};
use super::request_log::log_return;
use super::token_refresh::Unproven;
use super::{Ingress, RequestContext, respond};
use crate::body::BoxBody;
use crate::config::Turns;
use crate::delivery::Start;
use crate::dialect::{Resumption, resumable_requests, resumable_streams};
use crate::event_log::{self, Stream};
use crate::protocol::classify::Dialect;
use crate::protocol::dialect::{Method, Params};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, names};
use crate::protocol::ids::{EventId, ResumeToken, Seq};

/// Response of a dialect.
enum Answer {
    Resumption(Resumption),
    Status(Vec<u8>),
}

impl Ingress {
    pub(super) async fn dialect(
        self: Arc<Self>,
        mut context: Box<RequestContext>,
        request: Dialect,
        body: Bytes,
    ) -> Response<BoxBody> {
        let accept = headers::accept(&context.parts.headers);
        let streams = matches!(request.method, Method::ResumeRequest | Method::ResumeStream);
        if (streams && !accept.sse) || (!streams && !accept.json) {
            return self.refuse_dialect(ErrorCode::NotAcceptable, &request);
        }
        self.wait_for_resume_turn(&mut context).await;
        let params = Params::of(&body);
        let found = match self.find_by_token(&context, params.resume_token.as_deref()).await {
            Ok(found) => found,
            Err(Unproven::Unavailable(code)) => return self.refuse_dialect(code, &request),
            Err(unproven) => return self.refuse_unproven(unproven),
        };
        let answer = found.and_then(|stream| self.ask(&context, &request, &params, stream));
        match answer {
            Some(Answer::Resumption(resumption)) => self.deliver_resumption(&context, label(&request), resumption),
            Some(Answer::Status(message)) => respond::json(StatusCode::OK, message.into()),
            None => {
                self.metrics.observe_resume(label(&request), Resumed::Lost);
                self.refuse_dialect(ErrorCode::TokenRefused, &request)
            }
        }
    }

    fn ask(
        &self,
        context: &RequestContext,
        Dialect { id, method }: &Dialect,
        params: &Params,
        stream: Arc<Stream>,
    ) -> Option<Answer> {
        let cursor = self.cursor_in(context, &stream);
        match method {
            Method::ResumeRequest => resumable_requests::resume(stream, id, cursor).map(Answer::Resumption),
            Method::GetRequestStatus => {
                resumable_requests::status(&stream, id, params.request_id.as_ref()?, cursor).map(Answer::Status)
            }
            Method::ResumeStream => {
                let name = params.stream_id.as_deref()?;
                resumable_streams::resume(stream, id, name, cursor).map(Answer::Resumption)
            }
            Method::PollStream => {
                resumable_streams::poll(&stream, id, params.stream_id.as_deref()?, cursor).map(Answer::Status)
            }
        }
    }

    /// Returns the stream that the request's token opens, for the caller with this credential or an older one.
    pub(super) async fn find_by_token(
        &self,
        context: &RequestContext,
        token: Option<&str>,
    ) -> Result<Option<Arc<Stream>>, Unproven> {
        let Some(token) = token.and_then(ResumeToken::parse) else { return Ok(None) };
        let handle = self.log.verify(token.handle());
        for _ in 0..if self.log.has_store() { 2 } else { 1 } {
            self.restore(context, token.handle(), handle.as_ref()).await?;
            self.restore_cursor(context, token.handle()).await?;
            let found =
                self.log.find_by_token(&token, handle.as_ref(), &context.binding).filter(|stream| !stream.has_moved());
            if found.is_some() {
                return Ok(found);
            }
        }
        self.find_previous_by_resume_token(context, &token, handle.as_ref()).await
    }

    /// Waits until the stream of `id` is here, up to the event that the request's `Last-Event-ID` names in it. Does nothing if that names
    /// no event of this stream.
    pub(super) async fn restore_cursor(&self, context: &RequestContext, id: &EventId) -> Result<(), Unproven> {
        match last_event_id(context).filter(|named| named.names_stream_of(id)) {
            Some(named) => self.restore(context, &named, self.log.verify(&named).as_ref()).await,
            None => Ok(()),
        }
    }

    /// Returns the cursor in `stream` that the request's `Last-Event-ID` names, or `None` if it names none of this stream.
    pub(super) fn cursor_in(&self, context: &RequestContext, stream: &Arc<Stream>) -> Option<Seq> {
        let named = last_event_id(context)?;
        let (found, cursor) = self.log.find(self.log.verify(&named).as_ref(), stream.binding())?;
        Arc::ptr_eq(&found, stream).then_some(cursor)
    }

    pub(super) fn deliver_resumption(
        &self,
        context: &RequestContext,
        by: metrics::Dialect,
        resumption: Resumption,
    ) -> Response<BoxBody> {
        let Resumption { stream, after, has_gap, closing, slice } = resumption;
        self.metrics.observe_resume(by, Resumed::Served);
        log_return(&stream, by.label(), after);
        if has_gap {
            self.metrics.event_log.observe_gap();
        }
        if let Some(session) = &context.session {
            session.note_return();
        }
        let attachment = stream.attach(event_log::new_attach(), after).under(slice);
        let preface = has_gap.then(Vec::new);
        let takes_turns =
            matches!(by, metrics::Dialect::StreamUrl) && self.config.dialects.stream_url_turns != Turns::Off;
        let body = self.follow_again(context, attachment, Start::After(after), preface, closing);
        self.respond_with(None, context.parts.uri.query(), body.with_turns(takes_turns))
    }

    fn refuse_dialect(&self, code: ErrorCode, request: &Dialect) -> Response<BoxBody> {
        self.metrics.errors.observe_reject(code);
        respond::failure(Failure::before_run(code), std::slice::from_ref(&request.id), false)
    }
}

fn last_event_id(context: &RequestContext) -> Option<EventId> {
    context.parts.headers.get(names::LAST_EVENT_ID).and_then(|id| EventId::parse(id.as_bytes()))
}

fn label(request: &Dialect) -> metrics::Dialect {
    match request.method {
        Method::ResumeRequest | Method::GetRequestStatus => metrics::Dialect::ResumableRequests,
        Method::ResumeStream | Method::PollStream => metrics::Dialect::ResumableStreams,
    }
}
