//! The standalone stream of a session: for a GET without an event ID, and for the resume of a
//! standalone stream that has ended or lost its events.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::forward::Forwarder;
use super::metrics::{Metrics, ResumeMeans, Resumed};
use super::refusals::Refusals;
use super::stream_response::StreamResponder;
use super::stream_start::{CallTerms, StreamStarter};
use super::token_refresh::{TokenRefresh, Unproven};
use crate::body::{BoxBody, whole};
use crate::clock;
use crate::config::{AnswerPings, Config};
use crate::delivery::Start;
use crate::event_log::{self, Attachment, EventLog, Head, Spec, Stream};
use crate::lifecycle::drain::Drain;
use crate::protocol::dialect::Declared;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{Accept, Era, SessionId};
use crate::protocol::ids::{Seq, StreamKind};
use crate::protocol::stream::{Policy, Resume};
use crate::server::respond;
use crate::upstream::{ResponseObserver, Upstream, gap_warning};

/// Opens standalone streams, and attaches clients to them.
pub(super) struct StandaloneStreams {
    config: Arc<Config>,
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    metrics: Arc<Metrics>,
    drain: Arc<Drain>,
    refusals: Refusals,
    forwarder: Arc<Forwarder>,
    tokens: Arc<TokenRefresh>,
    starter: Arc<StreamStarter>,
    responder: Arc<StreamResponder>,
}

impl StandaloneStreams {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        forwarder: Arc<Forwarder>,
        tokens: Arc<TokenRefresh>,
        starter: Arc<StreamStarter>,
        responder: Arc<StreamResponder>,
    ) -> Self {
        let Components { config, log, upstream, metrics, drain, .. } = components;
        Self {
            config: config.clone(),
            log: log.clone(),
            upstream: upstream.clone(),
            metrics: metrics.clone(),
            drain: drain.clone(),
            refusals,
            forwarder,
            tokens,
            starter,
            responder,
        }
    }

    /// Handles a GET without an event ID, or with the ID of an ended standalone stream: attaches to
    /// the session's standalone stream, after the last event written to any connection.
    pub(super) async fn attach(&self, context: Box<RequestContext>) -> Response<BoxBody> {
        let Some(id) = context.binding.session.clone() else {
            // Without a session the stream could not be found again.
            return self.forwarder.forward_buffered(context, Bytes::new()).await;
        };
        if context.has_remote_home()
            && let Some(code) = context.remote_session_error()
        {
            // A stream that was open here belongs to a server that has lost the session.
            return self.refusals.refuse(code);
        }
        if let Some(session) = &context.session {
            session.wait_idle().await;
        }
        let stream = match self.find_standalone(&context, &id).await {
            Ok(stream) => stream,
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        match stream {
            Some(stream) => {
                let (cursor, preface) = self.after_written(&context, &stream);
                self.join_standalone(&context, &stream, cursor, preface).await
            }
            None => self.open_standalone(&context, &id, None).await,
        }
    }

    /// Returns the cursor after the last event written to any connection, and the preface if events
    /// were dropped before they were written.
    fn after_written(&self, context: &RequestContext, stream: &Stream) -> (Seq, Option<Vec<u8>>) {
        let (mut written, trimmed) =
            stream.with_machine(|machine| (machine.reader().written(), machine.numbering().trimmed()));
        if context.session.as_ref().is_some_and(|session| session.has_tasks() == Some(true))
            && let Some(request) = stream.with_machine(|machine| machine.server_requests().oldest_unanswered())
        {
            // A server request of a task has no other way to its client.
            written = written.min(Seq(request.0.saturating_sub(1)));
        }
        let preface = if written < trimmed { Some(self.gap_preface(context)) } else { None };
        (written.max(trimmed), preface)
    }

    /// Counts a gap of a standalone stream, and returns the preface for its client.
    fn gap_preface(&self, context: &RequestContext) -> Vec<u8> {
        self.metrics.event_log.observe_gap();
        let has_logging = context.session.as_ref().is_some_and(|session| session.logs());
        if has_logging { gap_warning() } else { Vec::new() }
    }

    /// Handles a resume whose event is gone while its session lives: continues with the oldest
    /// retained event, and reports the gap to the client.
    pub(super) async fn resume_lost(&self, context: Box<RequestContext>, by: ResumeMeans) -> Response<BoxBody> {
        self.metrics.observe_resume(by, Resumed::Lost);
        let Some(id) = &context.binding.session else {
            return self.forwarder.forward_buffered(context, Bytes::new()).await;
        };
        let preface = Some(self.gap_preface(&context));
        let stream = match self.find_standalone(&context, id).await {
            Ok(stream) => stream,
            Err(unproven) => return unproven.into_response(&self.refusals),
        };
        match stream {
            Some(stream) => {
                let oldest = stream.with_machine(|machine| machine.numbering().trimmed());
                self.join_standalone(&context, &stream, oldest, preface).await
            }
            None => self.open_standalone(&context, id, preface).await,
        }
    }

    /// Returns the session's standalone stream, which any of the caller's tokens may have opened.
    async fn find_standalone(&self, context: &RequestContext, id: &SessionId) -> Result<Option<Arc<Stream>>, Unproven> {
        match self.log.sessions().standalone(id, &context.binding.principal) {
            Some(stream) => Ok(Some(stream)),
            None => self.tokens.previous_standalone(context, id).await,
        }
    }

    /// Returns the status of the server's earlier refusal of the session's standalone stream, or
    /// `None` if a further request is due.
    fn refused_before(&self, context: &RequestContext, id: &SessionId) -> Option<StatusCode> {
        let has_tasks = context.session.as_ref().is_some_and(|session| session.has_tasks() == Some(true));
        let handshake = self.log.sessions().handshakes().find(id)?;
        // The messages of tasks need a stream, which the proxy opens once the server has refused
        // its own.
        if has_tasks || !handshake.may_revive(&context.binding.principal) {
            return None;
        }
        StatusCode::from_u16(handshake.refused_get()?).ok()
    }

    async fn open_standalone(
        &self,
        context: &RequestContext,
        id: &SessionId,
        preface: Option<Vec<u8>>,
    ) -> Response<BoxBody> {
        if let Some(code) = context.remote_session_error() {
            return self.refusals.refuse(code);
        }
        if let Some(status) = self.refused_before(context, id) {
            return respond::status(status);
        }
        // Requests of the server during a call may come on this stream.
        let is_busy = || context.session.as_ref().is_some_and(|session| session.is_busy(clock::now()));
        if self.drain.is_refusing_calls() && !is_busy() {
            return self.refusals.refuse(ErrorCode::Draining);
        }
        self.starter.register_session(context).await;
        let reservation = match self.log.admit_standalone(&context.quota, context.head_bytes) {
            Ok(reservation) => reservation,
            Err(code) => return self.refusals.refuse(code),
        };
        let spec = Spec {
            policy: self.standalone_policy(),
            binding: context.binding.clone(),
            ids: Vec::new(),
            is_batch: false,
            should_poll: false,
            body_fingerprint: None,
            slicing: None,
            span: None,
        };
        let stream = self.log.create(spec, reservation);
        if let Some(other) = self.log.sessions().set_standalone(id, &context.binding.principal, &stream) {
            let (cursor, preface) = match preface {
                Some(preface) => (other.with_machine(|machine| machine.numbering().trimmed()), Some(preface)),
                None => self.after_written(context, &other),
            };
            return self.join_standalone(context, &other, cursor, preface).await;
        }
        self.starter.announce(
            context.session.as_deref(),
            &stream,
            Declared { resumable_requests: false, ..Declared::ALL },
        );
        let template = self.upstream.call(&context.parts, context.connection.forwarded(), Bytes::new());
        let template = template.for_caller(context.caller.clone());
        let attachment = stream.attach(event_log::new_attach(), Seq(0));
        let terms = CallTerms {
            method: None,
            accept: Accept { json: true, sse: true, names_sse: true },
            observer: ResponseObserver::default(),
            progress: None,
            tasks: None,
        };
        // The pump outlives this request as a rule: dropped, it becomes a task of its own.
        drop(self.starter.pump(context, template, terms, &stream));
        let head = poll_fn(|cx| attachment.poll_head(cx)).await;
        move_server_requests(context, &stream);
        self.reply_standalone(context, head, attachment, Start::First, preface)
    }

    /// Attaches to a standalone stream that is open, or whose head is not there yet.
    async fn join_standalone(
        &self,
        context: &RequestContext,
        stream: &Arc<Stream>,
        cursor: Seq,
        preface: Option<Vec<u8>>,
    ) -> Response<BoxBody> {
        stream.resume(Resume::ByCursor, None);
        if stream.with_machine(|machine| machine.upstream().is_dormant()) && !self.drain.is_refusing_calls() {
            let get = self.upstream.call(&context.parts, context.connection.forwarded(), Bytes::new());
            let get = get.for_caller(context.caller.clone());
            self.upstream.reopen_session(&self.log, &self.metrics.upstream, stream, get);
        }
        let attachment = stream.attach(event_log::new_attach(), cursor);
        move_server_requests(context, stream);
        let head = poll_fn(|cx| attachment.poll_head(cx)).await;
        self.reply_standalone(context, head, attachment, Start::After(cursor), preface)
    }

    fn reply_standalone(
        &self,
        context: &RequestContext,
        head: Head,
        attachment: Attachment,
        start: Start,
        preface: Option<Vec<u8>>,
    ) -> Response<BoxBody> {
        match head {
            Head::Plain(plain) => {
                let body = plain.kept_body().cloned().map(whole).or_else(|| plain.take_passthrough());
                // Another GET has the body. This client may try again.
                let Some(body) = body else {
                    return respond::failure(Failure::after_send(ErrorCode::UpstreamBroke), &[], false);
                };
                let mut response = Response::new(body);
                *response.status_mut() = plain.status;
                *response.headers_mut() = plain.headers.clone();
                response
            }
            Head::Failed(failure) => self.refusals.fail(failure),
            Head::Stream(status, head) => {
                let body = self.responder.follow_again(context, attachment, start, preface, None);
                self.responder.respond_with(Some((status, head.as_ref().clone())), context.parts.uri.query(), body)
            }
            // A newer GET took over before there was a head: this response ends at once.
            Head::TakenOver | Head::Committed | Head::Waiting => {
                let body = self.responder.follow_again(context, attachment, start, preface, None);
                self.responder.respond_with(None, context.parts.uri.query(), body)
            }
        }
    }

    fn standalone_policy(&self) -> Policy {
        let streams = &self.config.streams;
        Policy {
            kind: StreamKind::Standalone,
            era: Era::Legacy,
            max_wait: streams.max_wait,
            modern_grace: streams.modern_grace,
            has_idempotency_key: false,
            retention: streams.retention,
            call_timeout: None,
            cancel_grace: streams.cancel_grace,
            full_wait: self.upstream.full_wait(streams.full_wait),
            linger: streams.linger,
            input_grace: self.config.dialects.input_grace,
            commit_after: None,
            retry: self.config.delivery.retry,
            can_pause: false,
            should_resume_hard_cuts: true,
            should_refuse_requests: false,
            should_answer_pings: self.config.upstream.answer_pings == AnswerPings::Absent,
            should_announce_cancel: false,
            is_task: false,
            legacy_task: None,
        }
    }
}

/// Sends waiting server requests of a session's tasks to its standalone stream, which now has a
/// reader.
pub(super) fn move_server_requests(context: &RequestContext, standalone: &Arc<Stream>) {
    let Some(session) = context.session.as_ref().filter(|session| session.has_tasks() != Some(false)) else {
        return;
    };
    let running = session.running();
    for task in running.iter().filter_map(|stream| stream.as_legacy_task()) {
        task.move_requests(standalone);
        task.wake_pump();
    }
}
