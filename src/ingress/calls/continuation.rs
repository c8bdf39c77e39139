//! Continuation of a call that comes again with its resume token.

use std::sync::Arc;

use http::Response;

use super::partial_results::names_of;
use super::reply::Replies;
use super::request::Beginning;
use crate::body::BoxBody;
use crate::delivery::Start;
use crate::dialect::{self, Resumption};
use crate::event_log;
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::metrics::{Metrics, ResumeMeans, Resumed};
use crate::ingress::refusals::Refusals;
use crate::ingress::request_log::log_return;
use crate::ingress::stream_finder::StreamFinder;
use crate::ingress::token_refresh::Unproven;
use crate::ingress::trace::trace_return;
use crate::protocol::classify;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers;

/// Continues calls by their resume token.
pub(super) struct Continuations {
    metrics: Arc<Metrics>,
    refusals: Refusals,
    finder: Arc<StreamFinder>,
    replies: Arc<Replies>,
}

impl Continuations {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        finder: Arc<StreamFinder>,
        replies: Arc<Replies>,
    ) -> Self {
        Self { metrics: components.metrics.clone(), refusals, finder, replies }
    }

    /// Continues a call that comes again with its token. It is never sent upstream.
    pub(super) async fn handle(
        &self,
        mut context: Box<RequestContext>,
        call: classify::Call,
        method: &str,
        body: &[u8],
        token: Option<&str>,
    ) -> Response<BoxBody> {
        let accept = headers::accept(&context.parts.headers);
        if !accept.json && !accept.sse {
            return self.refusals.refuse_call(ErrorCode::NotAcceptable, &call);
        }
        let Some(names) = names_of(&call, body) else { return self.refusals.refuse_call(ErrorCode::BadRequest, &call) };
        self.finder.wait_for_resume_rate(&mut context).await;
        let digest = CallDigest::of(body, method);
        let found = match self.finder.find_by_token(&context, token).await {
            Ok(found) => found,
            Err(Unproven::Unavailable(code)) => return self.refusals.refuse_call(code, &call),
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        let resumption = found.and_then(|stream| {
            let cursor = self.finder.cursor_in(&context, &stream);
            dialect::resume_tokens::resume(stream, digest, names, cursor)
        });
        let Some(Resumption { stream, after, has_gap, slice, .. }) = resumption else {
            self.metrics.observe_resume(ResumeMeans::ResumeTokens, Resumed::Lost);
            return self.refusals.refuse_call(ErrorCode::TokenRefused, &call);
        };
        self.metrics.observe_resume(ResumeMeans::ResumeTokens, Resumed::Served);
        log_return(&stream, ResumeMeans::ResumeTokens.label(), after);
        let request = trace_return(&context, &stream, ResumeMeans::ResumeTokens.label(), after);
        if has_gap {
            self.metrics.event_log.observe_gap();
        }
        // By the session the client cancels the call and responds to its requests.
        if let Some(session) = &context.session {
            session.join_stream(&stream);
        }
        let attachment = stream.attach(event_log::new_attach(), after).with_slice(slice).answering(request);
        let beginning = Beginning { start: Start::After(after), has_gap };
        self.replies.read_on(context, call, attachment, beginning).await
    }
}
