//! The response to a call: the wait for its head, then the stream, the collected results, or the
//! server's own response.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;

use super::commit::poll_begin;
use super::large_results;
use super::request::{Beginning, Reply};
use crate::body::BoxBody;
use crate::clock::{self, ShortWait};
use crate::delivery::{DisconnectGuard, Follow, KeptResponseBody, Opening, Passthrough, Plan, Receipt};
use crate::dialect;
use crate::event_log::{Attachment, Collected, Head, Plain};
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::priming;
use crate::ingress::refusals;
use crate::ingress::stream_response;
use crate::protocol::classify;
use crate::protocol::dialect::resume_tokens::Renaming;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc;
use crate::protocol::stream::Phase;
use crate::server::respond;
use crate::upstream::InlineTask;

/// Time that the head of a stream is held for its first event. The client has no id before, as
/// little as before the head.
const FIRST_EVENT_WAIT: Duration = Duration::from_millis(1);

/// Headers of most requests. hyper reads the next request of a connection into the map of the last
/// response, which would grow step by step.
const USUAL_HEADERS: usize = 12;

/// Returns the response to a call once it begins. Until then this future drives `pump`.
pub(super) async fn await_response(
    components: &Components,
    mut reply: Reply,
    attachment: Attachment,
    mut pump: InlineTask,
) -> Response<BoxBody> {
    let (log, metrics) = (components.log.clone(), components.metrics.delivery.clone());
    let guard = DisconnectGuard::new(log, metrics, attachment, reply.repeatable.take());
    let head = wait_for_head(components, &reply, &guard, &mut pump).await;
    if let (Ok(Head::Stream(..)), Some(attachment)) = (&head, guard.attachment())
        && reply.accept.sse
    {
        match reply.hold {
            Some(time) => {
                let until = attachment.stream().created() + time;
                Box::pin(large_results::wait_for_first_event(attachment, until, &mut pump)).await;
            }
            None if !pump.is_finished() => {
                wait_for_first_event(attachment, reply.beginning.start.cursor(), &mut pump).await;
            }
            None => {}
        }
    }
    let Some((attachment, receipt)) = guard.begin() else { return lost(components) };
    let head = match head {
        Ok(head) => head,
        Err(interim) => return respond::json(StatusCode::OK, interim.into()),
    };
    match head {
        Head::Stream(_, head) if reply.hold.is_some() && large_results::is_large(&attachment) => {
            collect(components, &reply, &head, attachment, receipt)
        }
        Head::Stream(status, head) if reply.accept.sse => {
            attachment.stream().release_head();
            follow(components, &reply, Some((status, Arc::unwrap_or_clone(head))), attachment, receipt)
        }
        Head::Committed | Head::TakenOver if reply.accept.sse => follow(components, &reply, None, attachment, receipt),
        Head::Stream(_, head) => collect(components, &reply, &head, attachment, receipt),
        Head::Committed | Head::TakenOver | Head::Waiting => {
            collect(components, &reply, &HeaderMap::new(), attachment, receipt)
        }
        Head::Plain(plain) => pass(components, &plain, &reply, attachment, receipt),
        Head::Failed(failure) => fail(components, failure, &reply, Some((attachment, receipt))),
    }
}

/// Returns the response to a call whose stream is lost.
pub(super) fn lost(components: &Components) -> Response<BoxBody> {
    refusals::refuse(components, ErrorCode::StreamLost)
}

/// Responds to a request that reads on in the stream of an earlier call.
pub(super) async fn read_on(
    components: &Components,
    mut context: Box<RequestContext>,
    call: classify::Call,
    attachment: Attachment,
    beginning: Beginning,
) -> Response<BoxBody> {
    context.reservation = None;
    let RequestContext { parts, facts, session, connection, .. } = *context;
    let (accept, query) = (facts.accept, parts.uri.query().map(Box::from));
    let empty_events = priming::empty_events(session.as_deref(), &facts, &parts.headers);
    let hold = large_results::hold(components, &parts.headers, accept, &call);
    drop(parts);
    let (may_begin, repeatable) = (true, None);
    let reply =
        Reply { call, accept, empty_events, hold, query, session, connection, beginning, may_begin, repeatable };
    await_response(components, reply, attachment, InlineTask::default()).await
}

/// Waits for the head of the response, or for the interim result that takes its place. Drives
/// `pump` meanwhile.
async fn wait_for_head(
    components: &Components,
    reply: &Reply,
    guard: &DisconnectGuard,
    pump: &mut InlineTask,
) -> Result<Head, Vec<u8>> {
    let mut head = pin!(poll_fn(|cx| {
        let Some(attachment) = guard.attachment() else { return Poll::Ready(Head::TakenOver) };
        if !pump.is_finished() {
            attachment.clear_waker();
            pump.poll(cx);
        }
        if reply.accept.sse { poll_begin(&components.log, attachment, cx) } else { poll_complete(attachment, cx) }
    }));
    tokio::select! {
        biased;
        head = &mut head => Ok(head),
        () = components.drain.ended() => {
            if let Some(attachment) = guard.attachment() {
                attachment.stream().expire(ErrorCode::Draining);
            }
            Ok(head.await)
        }
        interim = wait_for_slice(components, reply, guard.attachment()) => match interim {
            Some(interim) if !reply.accept.sse => Err(interim),
            Some(_) | None => Ok(head.await),
        }
    }
}

/// Waits until the slice that `attachment` reads has ended and its response must begin. Returns
/// the interim result, or `None` if the stream has the final one. Never resolves for a stream
/// without slices.
async fn wait_for_slice(components: &Components, reply: &Reply, attachment: Option<&Attachment>) -> Option<Vec<u8>> {
    let Some((attachment, slice)) = attachment.and_then(|it| Some((it, it.slice()?))) else {
        return pending().await;
    };
    clock::sleep_until(slice.ends_at()).await;
    let stream = attachment.stream();
    if !reply.may_begin && stream.with_machine(|machine| machine.lifecycle().phase() == Phase::Waiting) {
        poll_fn(|cx| attachment.poll_head_even_displaced(cx)).await;
    }
    let is_due = stream.with_machine(|machine| !machine.owed_responses().is_settled());
    if !is_due || !stream.commit() {
        return None;
    }
    components.log.publish_once(stream);
    dialect::resume_tokens::interim(stream, slice).map(|interim| interim.message)
}

/// Returns a failure. It is kept like any response: a retry of a call that may have run gets it
/// again until it was delivered.
pub(super) fn fail(
    components: &Components,
    failure: Failure,
    reply: &Reply,
    delivery: Option<(Attachment, Receipt)>,
) -> Response<BoxBody> {
    components.metrics.errors.observe_reject(failure.code);
    let body = Bytes::from(failure.to_body(&reply.call.ids, reply.call.is_batch, reply.call.subject));
    let mut response = respond::failure(failure, Bytes::new());
    *response.body_mut() = match delivery {
        Some((attachment, receipt)) => {
            let receipts = reply.connection.receipts().clone();
            KeptResponseBody::new(body, attachment, receipt, receipts).boxed_unsync()
        }
        None => crate::body::whole(body),
    };
    response
}

fn follow(
    components: &Components,
    reply: &Reply,
    head: Option<(StatusCode, HeaderMap)>,
    attachment: Attachment,
    receipt: Receipt,
) -> Response<BoxBody> {
    if reply.connection.receipts().are_local() {
        let (receipts, after) = (reply.connection.receipts().clone(), reply.beginning.start.cursor());
        return stream_response::messages(components, head, attachment, receipt, receipts, after);
    }
    let version = Some(&reply.call.version);
    // A retry does not show that its client would resume by GET.
    let plan =
        stream_response::plan(components, &attachment, version, reply.session.as_deref(), reply.empty_events, false);
    // An opening has no effect that a repetition would double, so that its response needs no ID
    // before its first event.
    let opening = if reply.call.is_opening() { Opening::Comment } else { plan.opening };
    let should_end_at_turn =
        stream_response::should_end_at_turn(components, attachment.stream(), reply.session.as_deref());
    let preface = if reply.beginning.has_gap { Some(Vec::new()) } else { None };
    let plan = Plan { opening, should_end_at_turn, preface, ..plan };
    let receipts = reply.connection.receipts().clone();
    let body =
        Follow::new(attachment, receipt, receipts, components.metrics.delivery.clone(), plan, reply.beginning.start);
    if head.is_none() {
        components.metrics.observe_commit();
    }
    stream_response::respond_with(components, head, reply.query.as_deref(), body)
}

pub(super) fn pass(
    components: &Components,
    plain: &Plain,
    reply: &Reply,
    attachment: Attachment,
    receipt: Receipt,
) -> Response<BoxBody> {
    let mut is_renamed = false;
    let body = match plain.kept_body() {
        Some(bytes) => {
            let (bytes, pieces) = in_names_of_reader(&attachment, bytes.clone());
            is_renamed = !pieces.is_empty();
            let receipts = reply.connection.receipts().clone();
            KeptResponseBody::new(bytes, attachment, receipt, receipts).followed_by(pieces).boxed_unsync()
        }
        None => match plain.take_passthrough() {
            Some(body) => Passthrough::new(body, attachment, components.metrics.delivery.clone()).boxed_unsync(),
            None => return fail(components, Failure::after_send(ErrorCode::StreamLost), reply, None),
        },
    };
    let mut response = Response::new(body);
    *response.status_mut() = plain.status;
    let mut headers = HeaderMap::with_capacity(USUAL_HEADERS.max(plain.headers.len()));
    for (name, value) in &plain.headers {
        headers.append(name, value.clone());
    }
    if is_renamed {
        headers::remove_body_facts(&mut headers);
    }
    *response.headers_mut() = headers;
    response
}

/// Returns the final responses as one body, for a client that takes JSON only.
fn collect(
    components: &Components,
    reply: &Reply,
    head: &HeaderMap,
    attachment: Attachment,
    receipt: Receipt,
) -> Response<BoxBody> {
    let stream = attachment.stream();
    let collected = stream.delivery().collect();
    let responses = collected.as_ref().map_or(0, |collected| collected.responses);
    let others = stream.with_machine(|machine| machine.numbering().tail().0).saturating_sub(responses as u64);
    components.metrics.observe_withheld(others);
    let Some(Collected { body, .. }) = collected else {
        // The call was cancelled: no response is owed, and none came.
        return respond::status(StatusCode::ACCEPTED);
    };
    let (body, pieces) = in_names_of_reader(&attachment, body);
    let receipts = reply.connection.receipts().clone();
    let mut response = respond::json(StatusCode::OK, Bytes::new());
    let mut headers = head.clone();
    headers.remove(http::header::CONTENT_TYPE);
    response.headers_mut().extend(headers);
    *response.body_mut() =
        KeptResponseBody::new(body, attachment, receipt, receipts).followed_by(pieces).boxed_unsync();
    response
}

/// Returns a body of responses in the names of its reader: its first piece, and the following ones.
fn in_names_of_reader(attachment: &Attachment, body: Bytes) -> (Bytes, Vec<Bytes>) {
    match attachment.slice().map(|slice| slice.rename(&body)) {
        Some(Renaming::Changed(splices)) => jsonrpc::splice_apart(body, splices),
        Some(Renaming::Same | Renaming::Unwanted) | None => (body, Vec::new()),
    }
}

/// Waits a moment for the first event behind `cursor`, so that it is written together with the
/// head. Drives `pump` meanwhile.
///
/// Most servers send head and event of a short call one after the other. Without the wait each
/// would be a write of its own, and the pump a task.
async fn wait_for_first_event(attachment: &Attachment, cursor: Seq, pump: &mut InlineTask) {
    let mut wait = ShortWait::new(FIRST_EVENT_WAIT);
    // The wait begins in the poll that brought the head.
    let mut is_polled = true;
    poll_fn(|cx| {
        if !std::mem::take(&mut is_polled) {
            attachment.clear_waker();
            pump.poll(cx);
        }
        if attachment.poll_unread(cx, cursor).is_ready() { Poll::Ready(()) } else { wait.poll(cx) }
    })
    .await;
}

/// Polls for the head of a response that begins with all results complete, for a client that takes
/// no stream.
fn poll_complete(attachment: &Attachment, cx: &mut Context<'_>) -> Poll<Head> {
    let head = ready!(attachment.poll_head_even_displaced(cx));
    if matches!(head, Head::Stream(..) | Head::Committed) {
        ready!(attachment.poll_all_responses(cx));
    }
    Poll::Ready(head)
}
