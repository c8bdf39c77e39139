//! Continuation of a call that comes again with its resume token.

use http::Response;

use super::partial_results::names_of;
use super::reply;
use super::request::Beginning;
use crate::body::BoxBody;
use crate::delivery::Start;
use crate::dialect::{self, Resumption};
use crate::event_log;
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::metrics::{ResumeMeans, Resumed};
use crate::ingress::refusals;
use crate::ingress::request_log::log_return;
use crate::ingress::stream_finder;
use crate::ingress::token_refresh::Unproven;
use crate::ingress::trace::trace_return;
use crate::protocol::classify;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::error::ErrorCode;

/// Continues a call that comes again with its token. It is never sent upstream.
pub(super) async fn handle(
    components: &Components,
    mut context: Box<RequestContext>,
    call: classify::Call,
    method: &str,
    body: &[u8],
    token: Option<&str>,
) -> Response<BoxBody> {
    let accept = context.facts.accept;
    if !accept.json && !accept.sse {
        return refusals::refuse_call(components, ErrorCode::NotAcceptable, &call);
    }
    let Some(names) = names_of(&call, body) else {
        return refusals::refuse_call(components, ErrorCode::BadRequest, &call);
    };
    stream_finder::wait_for_resume_rate(components, &mut context).await;
    let digest = CallDigest::of(body, method);
    let found = match stream_finder::find_by_token(components, &context, token).await {
        Ok(found) => found,
        Err(Unproven::Unavailable(code)) => return refusals::refuse_call(components, code, &call),
        Err(unproven) => return unproven.into_response(components),
    };
    let resumption = found.and_then(|stream| {
        let cursor = stream_finder::cursor_in(components, &context, &stream);
        dialect::resume_tokens::resume(stream, digest, names, cursor)
    });
    let Some(Resumption { stream, after, has_gap, slice, .. }) = resumption else {
        components.metrics.observe_resume(ResumeMeans::ResumeTokens, Resumed::Lost);
        return refusals::refuse_call(components, ErrorCode::TokenRefused, &call);
    };
    components.metrics.observe_resume(ResumeMeans::ResumeTokens, Resumed::Served);
    log_return(&stream, ResumeMeans::ResumeTokens.label(), after);
    let request = trace_return(&context, &stream, ResumeMeans::ResumeTokens.label(), after);
    if has_gap {
        components.metrics.event_log.observe_gap();
    }
    // By the session the client cancels the call and responds to its requests.
    if let Some(session) = &context.session {
        session.join_stream(&stream);
    }
    let attachment = stream.attach(event_log::new_attach(), after).with_slice(slice).answering(request);
    let beginning = Beginning { start: Start::After(after), has_gap };
    reply::read_on(components, context, call, attachment, beginning).await
}
