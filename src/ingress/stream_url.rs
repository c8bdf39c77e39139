//! Requests on a stream URL: a GET resumes the stream, and a POST delivers the client's responses
//! first.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::client_responses::{ParsedResponses, UrlResponses};
use super::components::Components;
use super::context::RequestContext;
use super::metrics::ResumeMeans;
use super::refusals::Refusals;
use super::standalone::StandaloneStreams;
use super::stream_finder::StreamFinder;
use super::stream_response::StreamResponder;
use crate::body::BoxBody;
use crate::config::{Config, Turns};
use crate::dialect::stream_url::{self, UrlResumption};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, names};
use crate::protocol::ids::{Cursor, EventId, StreamKind};
use crate::protocol::stream_url::Named;

/// Stream that a request names, and the place in it.
struct Target {
    id: EventId,
    /// True if the ID names an event.
    has_cursor: bool,
}

/// Handles the requests on stream URLs.
pub(super) struct StreamUrls {
    config: Arc<Config>,
    refusals: Refusals,
    finder: Arc<StreamFinder>,
    responder: Arc<StreamResponder>,
    standalone: Arc<StandaloneStreams>,
    responses: Arc<UrlResponses>,
}

impl StreamUrls {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        finder: Arc<StreamFinder>,
        responder: Arc<StreamResponder>,
        standalone: Arc<StandaloneStreams>,
        responses: Arc<UrlResponses>,
    ) -> Self {
        Self { config: components.config.clone(), refusals, finder, responder, standalone, responses }
    }

    /// Handles a request on the URL of the stream `named`, with the body of a POST, or `None` for a
    /// GET.
    pub(super) async fn handle(
        &self,
        context: Box<RequestContext>,
        named: Named,
        body: Option<Bytes>,
    ) -> Response<BoxBody> {
        let responses = match body.map(|body| self.responses.parse(&context, body)).transpose() {
            Ok(responses) => responses,
            Err(code) => return self.refusals.refuse(code),
        };
        let target = match target(&context, named) {
            Ok(target) => target,
            Err(code) => return self.refusals.refuse(code),
        };
        if !headers::accept(&context.parts.headers).sse {
            return self.refusals.refuse(ErrorCode::NotAcceptable);
        }
        self.resume(context, target, responses).await
    }

    /// Delivers the client's responses if there are any, then resumes the stream.
    async fn resume(
        &self,
        mut context: Box<RequestContext>,
        target: Target,
        responses: Option<ParsedResponses>,
    ) -> Response<BoxBody> {
        self.finder.wait_for_resume_rate(&mut context).await;
        if target.id.cursor() == Cursor::End {
            return self.responder.at_end(ResumeMeans::StreamUrl);
        }
        let found = match self.finder.find_stream(&context, &target.id).await {
            Ok(found) => found,
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        let should_notify_turn = responses.is_none() && self.config.dialects.stream_url_turns != Turns::Off;
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
                    if let Err(refusal) = self.responses.deliver(&mut context, &target.id, stream, responses).await {
                        return *refusal;
                    }
                }
                self.responder.deliver_resumption(&context, ResumeMeans::StreamUrl, resumption)
            }
            UrlResumption::AtEnd
                if is_standalone
                    && found
                        .is_some_and(|(stream, _)| stream.with_machine(|machine| machine.lifecycle().is_sealed())) =>
            {
                self.standalone.attach(context).await
            }
            UrlResumption::AtEnd => self.responder.at_end(ResumeMeans::StreamUrl),
            UrlResumption::Lost if is_standalone => self.standalone.resume_lost(context, ResumeMeans::StreamUrl).await,
            UrlResumption::Lost => self.responder.lost(ResumeMeans::StreamUrl, &target.id),
        }
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
