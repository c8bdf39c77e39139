//! Responses that follow a stream: the plan of their delivery, and their head.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;

use super::components::Components;
use super::context::RequestContext;
use super::hard_cuts;
use super::metrics::{ResumeMeans, Resumed};
use super::priming;
use super::request_log::log_return;
use super::trace::trace_return;
use crate::body::{BoxBody, whole};
use crate::clock;
use crate::config::{Prime, Turns};
use crate::delivery::{
    BeatTimes, EarlyClose, EmptyEvents, Follow, LaterRetry, MessageFrames, Messages, Opening, Plan, Receipt, Receipts,
    Start, lost_event,
};
use crate::dialect::{self, Resumption};
use crate::event_log::{self, Attachment, Session, Stream};
use crate::protocol::headers::ProtocolVersion;
use crate::protocol::ids::{EventId, Seq, StreamKind};
use crate::protocol::stream_url::put;
use crate::server::respond;

/// First revision with clients that reconnect after the early end of a response.
const POLLING_REVISION: &str = "2025-11-25";

/// Returns the response that resumes a stream.
pub(super) fn deliver_resumption(
    components: &Components,
    context: &RequestContext,
    by: ResumeMeans,
    resumption: Resumption,
) -> Response<BoxBody> {
    let Resumption { stream, after, has_gap, closing, slice } = resumption;
    components.metrics.observe_resume(by, Resumed::Served);
    log_return(&stream, by.label(), after);
    let request = trace_return(context, &stream, by.label(), after);
    if has_gap {
        components.metrics.event_log.observe_gap();
    }
    if let Some(session) = &context.session {
        session.note_resume();
    }
    let attachment = stream.attach(event_log::new_attach(), after).with_slice(slice).answering(request);
    let preface = if has_gap { Some(Vec::new()) } else { None };
    let mut body = follow_again(components, context, attachment, Start::After(after), preface, closing);
    if matches!(by, ResumeMeans::StreamUrl) && components.config.dialects.stream_url_turns != Turns::Off {
        body = body.until_turn();
    }
    respond_with(components, None, context.parts.uri.query(), body)
}

/// Returns the body that follows the stream of `attachment` for a GET or a resume.
pub(super) fn follow_again(
    components: &Components,
    context: &RequestContext,
    attachment: Attachment,
    start: Start,
    preface: Option<Vec<u8>>,
    closing: Option<Vec<u8>>,
) -> Follow {
    let stream = attachment.stream().clone();
    let is_resume = matches!(start, Start::After(_));
    let (version, session, headers) = (context.version(), context.session.as_deref(), &context.parts.headers);
    let follows_cut = || stream.with_machine(|machine| machine.reader().follows_cut());
    let plan = Plan {
        preface,
        closing,
        should_recount: is_resume && hard_cuts::are_counted(&stream, headers) && follows_cut(),
        ..plan(
            components,
            &attachment,
            version.as_ref(),
            session,
            priming::empty_events(session, &context.facts, headers),
            is_resume,
        )
    };
    let receipt = Receipt::new(components.log.clone(), stream);
    let receipts = context.connection.receipts().clone();
    Follow::new(attachment, receipt, receipts, components.metrics.delivery.clone(), plan, start)
}

/// Returns the plan of delivery for the connection of `attachment`, whose client speaks
/// `version` and takes `empty_events`. `is_resume`: true if this request resumes the stream.
pub(super) fn plan(
    components: &Components,
    attachment: &Attachment,
    version: Option<&ProtocolVersion>,
    session: Option<&Session>,
    empty_events: EmptyEvents,
    is_resume: bool,
) -> Plan {
    let stream = attachment.stream();
    let delivery = &components.config.delivery;
    let has_resumed = || {
        is_resume
            || session.is_some_and(|session| session.has_resumed() || session.declared().is_any())
            || stream.with_machine(|machine| machine.reader().has_reconnected())
    };
    let can_resume = version.is_some_and(|version| version.is_at_least(POLLING_REVISION));
    let is_primed = delivery.prime == Prime::All || can_resume || has_resumed();
    let opening =
        if is_primed && empty_events != EmptyEvents::Absent { Opening::PrimingEvent } else { Opening::Comment };
    // A connection is closed early only if its client reconnects. All such clients are primed,
    // and so have got a `retry`.
    let is_polling_revision = version.is_some_and(|version| version.as_str() == POLLING_REVISION);
    let max_connection = delivery.max_connection;
    let early_close = if !is_polling_revision && !has_resumed() {
        EarlyClose::Never
    } else if stream.should_poll() {
        EarlyClose::Polling { max_connection }
    } else {
        EarlyClose::WhenAsked { max_connection }
    };
    let retry = match early_close {
        EarlyClose::Polling { .. } => delivery.poll_retry,
        EarlyClose::Never | EarlyClose::WhenAsked { .. } => delivery.retry,
    };
    let (retry, later_retry) = match later_retry(components, stream) {
        Some(later) if later.retry <= retry => (retry, None),
        Some(later) if later.from <= clock::now() && opening == Opening::PrimingEvent => (later.retry, None),
        later => (retry, later),
    };
    Plan {
        opening,
        empty_events,
        retry,
        later_retry,
        should_recount: false,
        heartbeat: delivery.heartbeat,
        early_close,
        should_end_at_turn: false,
        preface: None,
        closing: None,
        interim: attachment.slice().and_then(|slice| dialect::resume_tokens::interim(stream, slice)).map(Box::new),
        beats: delivery.progress.as_ref().map(BeatTimes::from),
    }
}

/// Returns the later `retry` of a call, or `None` for a stream without one.
fn later_retry(components: &Components, stream: &Stream) -> Option<LaterRetry> {
    let delivery = &components.config.delivery;
    let is_call = stream.with_machine(|machine| machine.policy().kind == StreamKind::Request);
    is_call.then(|| LaterRetry { from: stream.created() + delivery.retry_long_after, retry: delivery.retry_long })
}

/// Returns the response that follows a stream and names its URL, under the upstream's head or
/// the proxy's own. `query` is the query of the request's target.
pub(super) fn respond_with(
    components: &Components,
    head: Option<(StatusCode, HeaderMap)>,
    query: Option<&str>,
    body: Follow,
) -> Response<BoxBody> {
    let handle = if components.config.dialects.stream_url { Some(body.handle().clone()) } else { None };
    let mut response = match head {
        Some((status, head)) => respond::stream_with(status, head, body),
        None => respond::stream(body),
    };
    if let Some(handle) = handle {
        put(response.headers_mut(), query, &handle);
    }
    response
}

/// Returns the response with the messages of a stream behind `after`, for a client in this process,
/// under the upstream's head or the proxy's own.
pub(super) fn messages(
    components: &Components,
    head: Option<(StatusCode, HeaderMap)>,
    attachment: Attachment,
    receipt: Receipt,
    receipts: Arc<Receipts>,
    after: Seq,
) -> Response<BoxBody> {
    let delivery = &components.config.delivery;
    let beats = delivery.progress.as_ref().map(BeatTimes::from);
    let metrics = components.metrics.delivery.clone();
    let body = Messages::new(attachment, receipt, receipts, metrics, beats, after);
    let mut response = match head {
        Some((status, head)) => respond::stream_with(status, head, body),
        None => respond::stream(body),
    };
    response.extensions_mut().insert(MessageFrames);
    response
}

/// True if the connection of a client whose call begins `stream` is closed when its input is
/// required.
pub(super) fn should_end_at_turn(components: &Components, stream: &Stream, session: Option<&Session>) -> bool {
    match components.config.dialects.stream_url_turns {
        Turns::Off => false,
        Turns::All => true,
        Turns::Seen => {
            session.is_some_and(Session::has_used_url) || stream.with_machine(|machine| machine.reader().has_used_url())
        }
    }
}

/// Returns the response to a client that has all events of its stream.
pub(super) fn at_end(components: &Components, by: ResumeMeans) -> Response<BoxBody> {
    components.metrics.observe_resume(by, Resumed::AtEnd);
    respond::status(StatusCode::NO_CONTENT)
}

/// Returns the response to an event ID whose stream, or whose event, is gone.
pub(super) fn lost(components: &Components, by: ResumeMeans, id: &EventId) -> Response<BoxBody> {
    components.metrics.observe_resume(by, Resumed::Lost);
    respond::stream(whole(lost_event(id)).map_err(Into::into))
}
