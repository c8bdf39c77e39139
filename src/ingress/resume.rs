//! GET on the endpoint with an event ID: a resume.

use std::sync::Arc;

use http::Response;

use super::components::Components;
use super::context::RequestContext;
use super::metrics::{Metrics, ResumeMeans, Resumed};
use super::refusals::Refusals;
use super::request_log::log_return;
use super::standalone::{StandaloneStreams, move_server_requests};
use super::stream_finder::StreamFinder;
use super::stream_response::StreamResponder;
use super::trace::trace_return;
use crate::body::BoxBody;
use crate::delivery::Start;
use crate::event_log::{self, Slice, Stream};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers;
use crate::protocol::ids::{Cursor, EventId, Seq, StreamKind};
use crate::protocol::stream::{CursorPlace, Resume};
use crate::simulation::{self, Bug};

/// Resumes streams by `Last-Event-ID`.
pub(super) struct Resumes {
    metrics: Arc<Metrics>,
    refusals: Refusals,
    finder: Arc<StreamFinder>,
    responder: Arc<StreamResponder>,
    standalone: Arc<StandaloneStreams>,
}

impl Resumes {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        finder: Arc<StreamFinder>,
        responder: Arc<StreamResponder>,
        standalone: Arc<StandaloneStreams>,
    ) -> Self {
        Self { metrics: components.metrics.clone(), refusals, finder, responder, standalone }
    }

    /// Handles a GET with an event ID of the proxy.
    pub(super) async fn handle(&self, mut context: Box<RequestContext>, id: EventId) -> Response<BoxBody> {
        if !headers::accept(&context.parts.headers).sse {
            return self.refusals.refuse(ErrorCode::NotAcceptable);
        }
        self.finder.wait_for_resume_rate(&mut context).await;
        if id.cursor() == Cursor::End {
            return self.responder.at_end(ResumeMeans::LastEventId);
        }
        let found = match self.finder.find_stream(&context, &id).await {
            Ok(found) => found,
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        let placed = found.and_then(|(stream, cursor)| {
            let place = stream.with_machine(|machine| machine.locate(cursor));
            let slice = stream.slices().and_then(|slices| slices.find(id.handle_text()));
            let is_known = slice.is_some() || stream.slices().is_none();
            if is_known { Some((stream, cursor, slice, place)) } else { None }
        });
        let is_standalone = id.unverified_kind() == Some(StreamKind::Standalone);
        match placed {
            Some((stream, cursor, slice, CursorPlace::After(_))) => self.resume_at(&context, &stream, slice, cursor),
            // Later messages of its server are lost.
            Some((stream, _, _, CursorPlace::AtEnd))
                if is_standalone && stream.replica().has_ended_with_its_process() =>
            {
                self.standalone.resume_lost(context, ResumeMeans::LastEventId).await
            }
            Some((_, _, _, CursorPlace::AtEnd)) if is_standalone => self.standalone.attach(context).await,
            Some((stream, cursor, _, CursorPlace::AtEnd)) => {
                stream.resume(Resume::ByCursor, Some(cursor));
                self.responder.at_end(ResumeMeans::LastEventId)
            }
            Some((_, _, _, CursorPlace::Lost)) | None if is_standalone => {
                self.standalone.resume_lost(context, ResumeMeans::LastEventId).await
            }
            Some((_, _, _, CursorPlace::Lost)) | None => self.responder.lost(ResumeMeans::LastEventId, &id),
        }
    }

    fn resume_at(
        &self,
        context: &RequestContext,
        stream: &Arc<Stream>,
        slice: Option<Arc<Slice>>,
        cursor: Seq,
    ) -> Response<BoxBody> {
        self.metrics.observe_resume(ResumeMeans::LastEventId, Resumed::Served);
        let cursor = if simulation::has(Bug::TrustsWhatWasWritten) {
            stream.with_machine(|machine| machine.reader().written().max(cursor))
        } else {
            cursor
        };
        stream.resume(Resume::ByCursor, Some(cursor));
        log_return(stream, ResumeMeans::LastEventId.label(), cursor);
        let request = trace_return(context, stream, ResumeMeans::LastEventId.label(), cursor);
        if let Some(session) = &context.session {
            session.note_resume();
        }
        let attachment = stream.attach(event_log::new_attach(), cursor).with_slice(slice).answering(request);
        if stream.with_machine(|machine| machine.policy().kind == StreamKind::Standalone) {
            move_server_requests(context, stream);
        }
        let body = self.responder.follow_again(context, attachment, Start::After(cursor), None, None);
        self.responder.respond_with(None, context.parts.uri.query(), body)
    }
}
