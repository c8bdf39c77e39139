//! Requests on a stream URL: a GET resumes the stream, and a POST delivers the client's responses
//! first.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::client_responses::url_responses::{self, ParsedResponses};
use super::components::Components;
use super::context::RequestContext;
use super::metrics::ResumeMeans;
use super::refusals;
use super::standalone;
use super::stream_finder;
use super::stream_response;
use crate::body::BoxBody;
use crate::config::Turns;
use crate::dialect::stream_url::{self, UrlResumption};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::names;
use crate::protocol::ids::{Cursor, EventId, StreamKind};
use crate::protocol::stream_url::Named;

/// Stream that a request names, and the place in it.
struct Target {
    id: EventId,
    /// True if the ID names an event.
    has_cursor: bool,
}

/// Handles a request on the URL of the stream `named`, with the body of a POST, or `None` for a
/// GET.
pub(super) async fn handle(
    components: &Arc<Components>,
    context: Box<RequestContext>,
    named: Named,
    body: Option<Bytes>,
) -> Response<BoxBody> {
    let responses = match body.map(|body| url_responses::parse(components, &context, body)).transpose() {
        Ok(responses) => responses,
        Err(code) => return refusals::refuse(components, code),
    };
    let target = match target(&context, named) {
        Ok(target) => target,
        Err(code) => return refusals::refuse(components, code),
    };
    if !context.facts.accept.sse {
        return refusals::refuse(components, ErrorCode::NotAcceptable);
    }
    resume(components, context, target, responses).await
}

/// Delivers the client's responses if there are any, then resumes the stream.
async fn resume(
    components: &Arc<Components>,
    mut context: Box<RequestContext>,
    target: Target,
    responses: Option<ParsedResponses>,
) -> Response<BoxBody> {
    stream_finder::wait_for_resume_rate(components, &mut context).await;
    if target.id.cursor() == Cursor::End {
        return stream_response::at_end(components, ResumeMeans::StreamUrl);
    }
    let found = match stream_finder::find_stream(components, &context, &target.id).await {
        Ok(found) => found,
        Err(unproven) => return unproven.into_response(components),
    };
    let should_notify_turn = responses.is_none() && components.config.dialects.stream_url_turns != Turns::Off;
    let resumption = match &found {
        Some((stream, cursor)) => {
            let cursor = if target.has_cursor { Some(*cursor) } else { None };
            stream_url::resume(stream, target.id.handle_text(), cursor, should_notify_turn)
        }
        None => UrlResumption::Lost,
    };
    if let (Some(_), Some(session)) = (&found, &context.session) {
        session.note_resume_by_url();
    }
    // A standalone stream fails no request: its client gets the retained events, or the next
    // stream.
    let is_standalone = target.id.unverified_kind() == Some(StreamKind::Standalone) && responses.is_none();
    match resumption {
        UrlResumption::Open(resumption) => {
            if let Some(responses) = responses {
                let stream = &resumption.stream;
                if let Err(refusal) =
                    url_responses::deliver(components, &mut context, &target.id, stream, responses).await
                {
                    return *refusal;
                }
            }
            stream_response::deliver_resumption(components, &context, ResumeMeans::StreamUrl, resumption)
        }
        UrlResumption::AtEnd
            if is_standalone
                && found.is_some_and(|(stream, _)| stream.with_machine(|machine| machine.lifecycle().is_sealed())) =>
        {
            standalone::attach(components, context).await
        }
        UrlResumption::AtEnd => stream_response::at_end(components, ResumeMeans::StreamUrl),
        UrlResumption::Lost if is_standalone => {
            standalone::resume_lost(components, context, ResumeMeans::StreamUrl).await
        }
        UrlResumption::Lost => stream_response::lost(components, ResumeMeans::StreamUrl, &target.id),
    }
}

/// Returns the stream that a request names. Its event ID names the stream as well, and must name
/// the same one.
fn target(context: &RequestContext, named: Named) -> Result<Target, ErrorCode> {
    let Named::Stream(url) = named else { return Err(ErrorCode::BadRequest) };
    let Some(text) = context.parts.headers.get(names::LAST_EVENT_ID) else {
        return Ok(Target { id: url, has_cursor: false });
    };
    let id = EventId::parse(text.as_bytes()).filter(|id| id.names_stream_of(&url)).ok_or(ErrorCode::BadRequest)?;
    Ok(Target { id, has_cursor: true })
}
