//! GET on the endpoint with an event ID: a resume.

use std::sync::Arc;

use http::Response;

use super::components::Components;
use super::context::RequestContext;
use super::metrics::{ResumeMeans, Resumed};
use super::refusals;
use super::request_log::log_return;
use super::standalone::{self, handle_reader};
use super::stream_finder;
use super::stream_response;
use super::trace::trace_return;
use crate::body::BoxBody;
use crate::delivery::Start;
use crate::event_log::{self, Slice, Stream};
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::{Cursor, EventId, Seq, StreamKind};
use crate::protocol::stream::{CursorPlace, Resume};
use crate::simulation::{self, Bug};

/// Handles a GET with an event ID of the proxy.
pub(super) async fn handle(
    components: &Components,
    mut context: Box<RequestContext>,
    id: EventId,
) -> Response<BoxBody> {
    if !context.facts.accept.sse {
        return refusals::refuse(components, ErrorCode::NotAcceptable);
    }
    stream_finder::wait_for_resume_rate(components, &mut context).await;
    if id.cursor() == Cursor::End {
        return stream_response::at_end(components, ResumeMeans::LastEventId);
    }
    let found = match stream_finder::find_stream(components, &context, &id).await {
        Ok(found) => found,
        Err(unproven) => return unproven.into_response(components),
    };
    let placed = found.and_then(|(stream, cursor)| {
        let place = stream.with_machine(|machine| machine.locate(cursor));
        let slice = stream.slices().and_then(|slices| slices.find(id.handle_text()));
        let is_known = slice.is_some() || stream.slices().is_none();
        if is_known { Some((stream, cursor, slice, place)) } else { None }
    });
    let is_standalone = id.unverified_kind() == Some(StreamKind::Standalone);
    match placed {
        Some((stream, cursor, slice, CursorPlace::After(_))) => resume_at(components, &context, &stream, slice, cursor),
        // Later messages of its server are lost.
        Some((stream, _, _, CursorPlace::AtEnd)) if is_standalone && stream.replica().has_ended_with_its_process() => {
            standalone::resume_lost(components, context, ResumeMeans::LastEventId).await
        }
        Some((_, _, _, CursorPlace::AtEnd)) if is_standalone => standalone::attach(components, context).await,
        Some((stream, cursor, _, CursorPlace::AtEnd)) => {
            stream.resume(Resume::ByCursor, Some(cursor));
            stream_response::at_end(components, ResumeMeans::LastEventId)
        }
        Some((_, _, _, CursorPlace::Lost)) | None if is_standalone => {
            standalone::resume_lost(components, context, ResumeMeans::LastEventId).await
        }
        Some((_, _, _, CursorPlace::Lost)) | None => stream_response::lost(components, ResumeMeans::LastEventId, &id),
    }
}

fn resume_at(
    components: &Components,
    context: &RequestContext,
    stream: &Arc<Stream>,
    slice: Option<Arc<Slice>>,
    cursor: Seq,
) -> Response<BoxBody> {
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
    if stream.by_get().is_some_and(|by_get| by_get.has_gone()) {
        // The client gets the response on the GET stream of its session.
        return stream_response::at_end(components, ResumeMeans::LastEventId);
    }
    components.metrics.observe_resume(ResumeMeans::LastEventId, Resumed::Served);
    if stream.with_machine(|machine| machine.policy().kind == StreamKind::Standalone) {
        handle_reader(components, context, stream);
    }
    let body = stream_response::follow_again(components, context, attachment, Start::After(cursor), None, None);
    stream_response::respond_with(components, None, context.parts.uri.query(), body)
}
