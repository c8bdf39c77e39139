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
use super::request::{Beginning, Reply};
use crate::body::BoxBody;
use crate::clock::{self, ShortWait};
use crate::delivery::{DisconnectGuard, Follow, KeptResponseBody, Opening, Passthrough, Plan, Receipt};
use crate::dialect;
use crate::event_log::{Attachment, Collected, EventLog, Head, Plain};
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::metrics::Metrics;
use crate::ingress::priming;
use crate::ingress::refusals::Refusals;
use crate::ingress::stream_response::StreamResponder;
use crate::lifecycle::drain::Drain;
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

/// Makes the responses to calls.
pub(super) struct Replies {
    pub(super) log: Arc<EventLog>,
    pub(super) metrics: Arc<Metrics>,
    drain: Arc<Drain>,
    pub(super) refusals: Refusals,
    responder: Arc<StreamResponder>,
}

impl Replies {
    pub(super) fn new(components: &Components, refusals: Refusals, responder: Arc<StreamResponder>) -> Self {
        let Components { log, metrics, drain, .. } = components;
        Self { log: log.clone(), metrics: metrics.clone(), drain: drain.clone(), refusals, responder }
    }

    /// Returns the response to a call once it begins. Until then this future drives `pump`.
    pub(super) async fn reply(&self, reply: Reply, attachment: Attachment, mut pump: InlineTask) -> Response<BoxBody> {
        let guard = DisconnectGuard::new(self.log.clone(), self.metrics.delivery.clone(), attachment);
        let head = self.wait_for_head(&reply, &guard, &mut pump).await;
        if let (Ok(Head::Stream(..)), Some(attachment)) = (&head, guard.attachment())
            && reply.accept.sse
            && !pump.is_finished()
        {
            wait_for_first_event(attachment, reply.beginning.start.cursor(), &mut pump).await;
        }
        let Some((attachment, receipt)) = guard.begin() else { return self.refusals.refuse(ErrorCode::StreamLost) };
        let head = match head {
            Ok(head) => head,
            Err(interim) => return respond::json(StatusCode::OK, interim.into()),
        };
        match head {
            Head::Stream(status, head) if reply.accept.sse => {
                self.follow(&reply, Some((status, &head)), attachment, receipt)
            }
            Head::Committed | Head::TakenOver if reply.accept.sse => self.follow(&reply, None, attachment, receipt),
            Head::Stream(_, head) => self.collect(&reply, &head, attachment, receipt),
            Head::Committed | Head::TakenOver | Head::Waiting => {
                self.collect(&reply, &HeaderMap::new(), attachment, receipt)
            }
            Head::Plain(plain) => self.pass(&plain, &reply, attachment, receipt),
            Head::Failed(failure) => self.fail(failure, &reply, Some((attachment, receipt))),
        }
    }

    /// Responds to a request that reads on in the stream of an earlier call.
    pub(super) async fn read_on(
        &self,
        mut context: Box<RequestContext>,
        call: classify::Call,
        attachment: Attachment,
        beginning: Beginning,
    ) -> Response<BoxBody> {
        context.reservation = None;
        let RequestContext { parts, session, connection, .. } = *context;
        let (accept, query) = (headers::accept(&parts.headers), parts.uri.query().map(Box::from));
        let empty_events = priming::empty_events(session.as_deref(), &parts.headers);
        drop(parts);
        let reply = Reply { call, accept, empty_events, query, session, connection, beginning, may_begin: true };
        self.reply(reply, attachment, InlineTask::default()).await
    }

    /// Waits for the head of the response, or for the interim result that takes its place. Drives
    /// `pump` meanwhile.
    async fn wait_for_head(
        &self,
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
            if reply.accept.sse { poll_begin(&self.log, attachment, cx) } else { poll_complete(attachment, cx) }
        }));
        tokio::select! {
            biased;
            head = &mut head => Ok(head),
            () = self.drain.ended() => {
                if let Some(attachment) = guard.attachment() {
                    attachment.stream().expire(ErrorCode::Draining);
                }
                Ok(head.await)
            }
            interim = self.wait_for_slice(reply, guard.attachment()) => match interim {
                Some(interim) if !reply.accept.sse => Err(interim),
                Some(_) | None => Ok(head.await),
            }
        }
    }

    /// Waits until the slice that `attachment` reads has ended and its response must begin. Returns
    /// the interim result, or `None` if the stream has the final one. Never resolves for a stream
    /// without slices.
    async fn wait_for_slice(&self, reply: &Reply, attachment: Option<&Attachment>) -> Option<Vec<u8>> {
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
        self.log.publish_once(stream);
        dialect::resume_tokens::interim(stream, slice).map(|interim| interim.message)
    }

    /// Returns a failure. It is kept like any response: a retry of a call that may have run gets it
    /// again until it was delivered.
    pub(super) fn fail(
        &self,
        failure: Failure,
        reply: &Reply,
        delivery: Option<(Attachment, Receipt)>,
    ) -> Response<BoxBody> {
        self.metrics.errors.observe_reject(failure.code);
        let body = Bytes::from(failure.to_body(&reply.call.ids, reply.call.is_batch));
        let mut response = respond::failure(failure, &[], false);
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
        &self,
        reply: &Reply,
        head: Option<(StatusCode, &HeaderMap)>,
        attachment: Attachment,
        receipt: Receipt,
    ) -> Response<BoxBody> {
        let version = Some(&reply.call.version);
        // A retry does not show that its client would resume by GET.
        let plan = self.responder.plan(&attachment, version, reply.session.as_deref(), reply.empty_events, false);
        // An opening has no effect that a repetition would double, so that its response needs no ID
        // before its first event.
        let opening = if reply.call.is_opening() { Opening::Comment } else { plan.opening };
        let should_end_at_turn = self.responder.should_end_at_turn(attachment.stream(), reply.session.as_deref());
        let preface = if reply.beginning.has_gap { Some(Vec::new()) } else { None };
        let plan = Plan { opening, should_end_at_turn, preface, ..plan };
        let receipts = reply.connection.receipts().clone();
        let body =
            Follow::new(attachment, receipt, receipts, self.metrics.delivery.clone(), plan, reply.beginning.start);
        if head.is_none() {
            self.metrics.observe_commit();
        }
        self.responder.respond_with(head.map(|(status, head)| (status, head.clone())), reply.query.as_deref(), body)
    }

    pub(super) fn pass(
        &self,
        plain: &Plain,
        reply: &Reply,
        attachment: Attachment,
        receipt: Receipt,
    ) -> Response<BoxBody> {
        let body = match plain.kept_body() {
            Some(bytes) => {
                let receipts = reply.connection.receipts().clone();
                KeptResponseBody::new(bytes.clone(), attachment, receipt, receipts).boxed_unsync()
            }
            None => match plain.take_passthrough() {
                Some(body) => Passthrough::new(body, attachment, self.metrics.delivery.clone()).boxed_unsync(),
                None => return self.fail(Failure::after_send(ErrorCode::StreamLost), reply, None),
            },
        };
        let mut response = Response::new(body);
        *response.status_mut() = plain.status;
        *response.headers_mut() = plain.headers.clone();
        response
    }

    /// Returns the final responses as one body, for a client that takes JSON only.
    fn collect(&self, reply: &Reply, head: &HeaderMap, attachment: Attachment, receipt: Receipt) -> Response<BoxBody> {
        let stream = attachment.stream();
        let collected = stream.delivery().collect();
        let responses = collected.as_ref().map_or(0, |collected| collected.responses);
        let others = stream.with_machine(|machine| machine.numbering().tail().0).saturating_sub(responses as u64);
        self.metrics.observe_withheld(others);
        let Some(Collected { body, .. }) = collected else {
            // The call was cancelled: no response is owed, and none came.
            return respond::status(StatusCode::ACCEPTED);
        };
        let (body, pieces) = match attachment.slice().map(|slice| slice.rename(&body)) {
            Some(Renaming::Changed(splices)) => jsonrpc::splice_apart(body, splices),
            Some(Renaming::Same | Renaming::Unwanted) | None => (body, Vec::new()),
        };
        let receipts = reply.connection.receipts().clone();
        let mut response = respond::json(StatusCode::OK, Bytes::new());
        let mut headers = head.clone();
        headers.remove(http::header::CONTENT_TYPE);
        response.headers_mut().extend(headers);
        *response.body_mut() =
            KeptResponseBody::new(body, attachment, receipt, receipts).followed_by(pieces).boxed_unsync();
        response
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
