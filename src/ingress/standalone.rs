//! The standalone stream of a session. It is for a GET without an event ID, and for the resume of a
//! standalone stream that has ended or lost its events.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::forward;
use super::metrics::{ResumeMeans, Resumed};
use super::refusals;
use super::stream_response;
use super::stream_start::{self, CallTerms};
use super::token_refresh::{self, Unproven};
use crate::body::{BoxBody, whole};
use crate::clock;
use crate::config::AnswerPings;
use crate::delivery::{Receipt, Start, watch_ended_calls};
use crate::event_log::{self, Attachment, Head, Spec, Stream};
use crate::protocol::dialect::Declared;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{Accept, Era, Present, SessionId};
use crate::protocol::ids::{Seq, StreamKind};
use crate::protocol::stream::{Policy, Resume};
use crate::server::respond;
use crate::upstream::{ResponseObserver, gap_warning};

/// Time of the server to open the stream of a caller with credentials. Most servers open it at
/// once.
const HEAD_AFTER: Duration = Duration::from_secs(1);

/// Handles a GET without an event ID, or with the ID of an ended standalone stream. Attaches to the
/// session's standalone stream, after the last event written to any connection.
pub(super) async fn attach(components: &Components, context: Box<RequestContext>) -> Response<BoxBody> {
    let Some(id) = context.binding.session.clone() else {
        // Without a session the stream could not be found again.
        return forward::forward_buffered(components, context, Bytes::new()).await;
    };
    if context.has_remote_home()
        && let Some(code) = context.remote_session_error()
    {
        // A stream that was open here belongs to a server that has lost the session.
        return refusals::refuse(components, code);
    }
    if let Some(session) = &context.session {
        session.wait_idle().await;
    }
    let stream = match find_standalone(components, &context, &id).await {
        Ok(stream) => stream,
        Err(unproven) => return unproven.into_response(components),
    };
    match stream {
        Some(stream) => {
            let (cursor, preface) = after_written(components, &context, &stream);
            join_standalone(components, &context, &stream, cursor, preface).await
        }
        None => open_standalone(components, &context, &id, None).await,
    }
}

/// Returns the cursor after the last event written to any connection, and the preface if events
/// were dropped before they were written.
fn after_written(components: &Components, context: &RequestContext, stream: &Stream) -> (Seq, Option<Vec<u8>>) {
    let (mut written, trimmed) =
        stream.with_machine(|machine| (machine.reader().written(), machine.numbering().trimmed()));
    if context.session.as_ref().is_some_and(|session| session.has_tasks() == Some(true))
        && let Some(request) = stream.with_machine(|machine| machine.server_requests().oldest_unanswered())
    {
        // A server request of a task has no other way to its client.
        written = written.min(Seq(request.0.saturating_sub(1)));
    }
    let preface = if written < trimmed { Some(gap_preface(components, context)) } else { None };
    (written.max(trimmed), preface)
}

/// Counts a gap of a standalone stream, and returns the preface for its client.
fn gap_preface(components: &Components, context: &RequestContext) -> Vec<u8> {
    components.metrics.event_log.observe_gap();
    let has_logging = context.session.as_ref().is_some_and(|session| session.logs());
    if has_logging { gap_warning() } else { Vec::new() }
}

/// Handles a resume whose event is gone while its session lives: continues with the oldest
/// retained event, and reports the gap to the client.
pub(super) async fn resume_lost(
    components: &Components,
    context: Box<RequestContext>,
    by: ResumeMeans,
) -> Response<BoxBody> {
    components.metrics.observe_resume(by, Resumed::Lost);
    let Some(id) = &context.binding.session else {
        return forward::forward_buffered(components, context, Bytes::new()).await;
    };
    let preface = Some(gap_preface(components, &context));
    let stream = match find_standalone(components, &context, id).await {
        Ok(stream) => stream,
        Err(unproven) => return unproven.into_response(components),
    };
    match stream {
        Some(stream) => {
            let oldest = stream.with_machine(|machine| machine.numbering().trimmed());
            join_standalone(components, &context, &stream, oldest, preface).await
        }
        None => open_standalone(components, &context, id, preface).await,
    }
}

/// Returns the session's standalone stream, which any of the caller's tokens may have opened.
async fn find_standalone(
    components: &Components,
    context: &RequestContext,
    id: &SessionId,
) -> Result<Option<Arc<Stream>>, Unproven> {
    match components.log.sessions().standalone(id, &context.binding.principal) {
        Some(stream) => Ok(Some(stream)),
        None => token_refresh::previous_standalone(components, context, id).await,
    }
}

/// Returns the status of the server's earlier refusal of the session's standalone stream, or
/// `None` if a further request is due.
fn refused_before(components: &Components, context: &RequestContext, id: &SessionId) -> Option<StatusCode> {
    let needs_stream = context.session.as_ref().is_some_and(|session| session.needs_standalone());
    let handshake = components.log.sessions().handshakes().find(id)?;
    // The proxy opens a stream once the server has refused its own.
    if needs_stream || !handshake.may_revive(&context.binding.principal) {
        return None;
    }
    StatusCode::from_u16(handshake.refused_get()?).ok()
}

async fn open_standalone(
    components: &Components,
    context: &RequestContext,
    id: &SessionId,
    preface: Option<Vec<u8>>,
) -> Response<BoxBody> {
    if let Some(code) = context.remote_session_error() {
        return refusals::refuse(components, code);
    }
    if let Some(status) = refused_before(components, context, id) {
        return respond::status(status);
    }
    // Requests of the server during a call may come on this stream.
    let is_busy = || context.session.as_ref().is_some_and(|session| session.is_busy(clock::now()));
    if components.drain.is_refusing_calls() && !is_busy() {
        return refusals::refuse(components, ErrorCode::Draining);
    }
    stream_start::register_session(components, context).await;
    let reservation = match components.log.admit_standalone(&context.quota, context.head_bytes) {
        Ok(reservation) => reservation,
        Err(code) => return refusals::refuse(components, code),
    };
    let spec = Spec {
        policy: standalone_policy(components, context),
        binding: context.binding.clone(),
        ids: Vec::new(),
        is_batch: false,
        should_poll: false,
        body_fingerprint: None,
        slicing: None,
        get_calls: None,
        span: None,
    };
    let stream = components.log.create(spec, reservation);
    if let Some(other) = components.log.sessions().set_standalone(id, &context.binding.principal, &stream) {
        let (cursor, preface) = match preface {
            Some(preface) => (other.with_machine(|machine| machine.numbering().trimmed()), Some(preface)),
            None => after_written(components, context, &other),
        };
        return join_standalone(components, context, &other, cursor, preface).await;
    }
    stream_start::announce(
        components,
        context.session.as_deref(),
        &stream,
        Declared { resumable_requests: false, ..Declared::ALL },
    );
    let template = components.upstream.call(&context.parts, context.connection.forwarded(), Bytes::new());
    let template = Arc::new(template.for_caller(context.caller.clone()));
    let attachment = stream.attach(event_log::new_attach(), Seq(0));
    let terms = CallTerms {
        name: None,
        accept: Accept { json: true, sse: true, names_sse: true },
        observer: ResponseObserver::default(),
        progress: None,
        tasks: None,
    };
    // The pump outlives this request as a rule: dropped, it becomes a task of its own.
    drop(stream_start::pump(components, context, template, terms, &stream));
    let head = poll_fn(|cx| attachment.poll_head(cx)).await;
    handle_reader(components, context, &stream);
    reply_standalone(components, context, head, attachment, Start::First, preface)
}

/// Attaches to a standalone stream that is open, or that still waits for its head.
async fn join_standalone(
    components: &Components,
    context: &RequestContext,
    stream: &Arc<Stream>,
    cursor: Seq,
    preface: Option<Vec<u8>>,
) -> Response<BoxBody> {
    stream.resume(Resume::ByCursor, None);
    if stream.with_machine(|machine| machine.upstream().is_dormant()) && !components.drain.is_refusing_calls() {
        let get = components.upstream.call(&context.parts, context.connection.forwarded(), Bytes::new());
        let get = get.for_caller(context.caller.clone());
        components.upstream.reopen_session(&components.log, &components.metrics.upstream, stream, get);
    }
    let attachment = stream.attach(event_log::new_attach(), cursor);
    handle_reader(components, context, stream);
    let head = poll_fn(|cx| attachment.poll_head(cx)).await;
    reply_standalone(components, context, head, attachment, Start::After(cursor), preface)
}

fn reply_standalone(
    components: &Components,
    context: &RequestContext,
    head: Head,
    attachment: Attachment,
    start: Start,
    preface: Option<Vec<u8>>,
) -> Response<BoxBody> {
    let receipts = context.connection.receipts();
    match head {
        Head::Stream(..) | Head::TakenOver | Head::Committed | Head::Waiting if receipts.are_local() => {
            let receipt = Receipt::new(components.log.clone(), attachment.stream().clone());
            stream_response::messages(components, None, attachment, receipt, receipts.clone(), start.cursor())
        }
        Head::Plain(plain) => {
            let body = plain.kept_body().cloned().map(whole).or_else(|| plain.take_passthrough());
            // Another GET has the body. This client may try again.
            let Some(body) = body else {
                return respond::failure_without_id(Failure::after_send(ErrorCode::UpstreamBroke));
            };
            let mut response = Response::new(body);
            *response.status_mut() = plain.status;
            *response.headers_mut() = plain.headers.clone();
            response
        }
        Head::Failed(failure) => refusals::fail(components, failure),
        Head::Stream(status, head) => {
            let body = stream_response::follow_again(components, context, attachment, start, preface, None);
            stream_response::respond_with(
                components,
                Some((status, head.as_ref().clone())),
                context.parts.uri.query(),
                body,
            )
        }
        // A newer GET took over before there was a head: this response ends at once.
        Head::TakenOver | Head::Committed | Head::Waiting => {
            let body = stream_response::follow_again(components, context, attachment, start, preface, None);
            stream_response::respond_with(components, None, context.parts.uri.query(), body)
        }
    }
}

/// Returns the time after which the proxy opens the stream itself, or `None` to wait for the
/// server. OAuth clients of Python's SDKs send no other request until they have the head.
fn head_after(context: &RequestContext) -> Option<Duration> {
    let has_credential = context.facts.has(Present::Credential) && !context.facts.has(Present::Proof);
    if has_credential { Some(HEAD_AFTER) } else { None }
}

fn standalone_policy(components: &Components, context: &RequestContext) -> Policy {
    let streams = &components.config.streams;
    Policy {
        kind: StreamKind::Standalone,
        era: Era::Legacy,
        max_wait: streams.max_wait,
        modern_grace: streams.modern_grace,
        unprimed_grace: Duration::ZERO,
        has_idempotency_key: false,
        retention: streams.retention,
        call_timeout: None,
        cancel_grace: streams.cancel_grace,
        full_wait: components.upstream.full_wait(streams.full_wait),
        linger: streams.linger,
        input_grace: components.config.dialects.input_grace,
        commit_after: head_after(context),
        retry: components.config.delivery.retry,
        can_pause: false,
        should_resume_hard_cuts: true,
        resumes_for: None,
        should_refuse_requests: false,
        should_answer_pings: components.config.upstream.answer_pings == AnswerPings::Absent,
        is_tool_call: false,
        should_announce_cancel: false,
        is_task: false,
        counts_breaks: context.session.as_ref().is_some_and(|session| session.rules().counts_breaks),
        legacy_task: None,
    }
}

/// Sends waiting messages to the standalone stream of a session, which now has a reader. These are
/// server requests of its tasks, and responses of calls that their client does not resume.
pub(super) fn handle_reader(components: &Components, context: &RequestContext, standalone: &Arc<Stream>) {
    if let Some(calls) = context.session.as_ref().and_then(|session| session.get_calls()) {
        calls.note_opened();
        watch_ended_calls(&components.log, &context.binding);
    }
    let Some(session) = context.session.as_ref().filter(|session| session.has_tasks() != Some(false)) else {
        return;
    };
    let running = session.running();
    for task in running.iter().filter_map(|stream| stream.as_legacy_task()) {
        task.move_requests(standalone);
        task.wake_pump();
    }
}
