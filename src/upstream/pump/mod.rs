//! One stream's upstream call, from the request to the seal.
//!
//! The pump begins with the request, owns the upstream response, and alone appends to the stream.
//! Its loop reads from the upstream, passes the input to the stream machine, carries out the
//! machine's effects, and sleeps until the machine's deadline. Absent: any dependence on a
//! connected client. A client that disconnects or resumes only changes the machine's timers.

mod late_response;
mod legacy_task;
mod plain_response;
mod promotion;
mod reopening;
mod session_generation;
mod trace;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response};
use tracing::{Instrument, Level, debug, enabled, info};

use self::legacy_task::StatusNotices;
use super::input::{InputSource, UpstreamInput};
use super::metrics::Metrics;
use super::observed::Credentials;
use super::pings::Pings;
use super::response_observer::ResponseObserver;
use super::revival::{Refused, Settled};
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::sse_reader::{EventReader, GatherResult};
use super::server::synthetic;
use super::server_request_refusals::Refusals;
use super::stack::Upstream;
use super::wait;
use crate::clock::{self, Alarm};
use crate::config::Tasks;
use crate::event_log::{AskingRequests, EventLog, Head, Next, Session, Stream, Subject, Writer};
use crate::otel::Span;
use crate::protocol::call_name::CallName;
use crate::protocol::error::{ErrorCode, Failure, Side};
use crate::protocol::headers;
use crate::protocol::ids::StreamKind;
use crate::protocol::jsonrpc::{MethodName, RequestId};
use crate::protocol::sse;
use crate::protocol::stream::{Effect, Ending, Machine, Outcome, Phase};

/// One call to be made.
pub struct Call {
    /// The request.
    pub template: Arc<Template>,
    /// Method of the request, as the call is named after it, or `None` for a standalone stream.
    pub method: Option<MethodName>,
    /// Media types that the client accepts.
    pub accept: headers::Accept,
    /// Credentials of the caller.
    pub credentials: Credentials,
    /// Address of the client.
    pub address: IpAddr,
    /// Subject that the caller's token claims, or `None` if it claims none.
    pub subject: Option<Subject>,
    /// Observer of the response.
    pub observer: ResponseObserver,
    /// True if the call waits for a server that accepts no connections.
    pub should_wait: bool,
    /// True if a session that its server has forgotten may be opened again for the call.
    pub may_revive: bool,
    /// True if a balancer can send the call to another replica.
    pub is_routed: bool,
    /// True if the server has to accept the caller before it may cause that.
    pub is_guest: bool,
    /// Session in which the server has answered no request so far as is known, or `None` for every
    /// other call.
    pub unanswered: Option<Arc<Session>>,
    /// Size limit of an event, and of a JSON response that becomes one.
    pub max_event_bytes: usize,
    /// Progress of the proxy's own, or `None` if connections write none for the call.
    pub progress: Option<ProgressRule>,
    /// Terms under which the call becomes a task, or `None` if it becomes none.
    pub tasks: Option<Arc<Tasks>>,
}

/// Rule for the progress of the proxy's own.
#[derive(Clone, Debug, Default)]
pub struct ProgressRule {
    /// Clients that get none, if the request itself names its client.
    pub except: Option<Arc<[String]>>,
}

/// Runs one call.
pub struct Pump {
    upstream: Arc<Upstream>,
    log: Arc<EventLog>,
    metrics: Arc<Metrics>,
    writer: Writer,
    call: Call,
    input: InputSource,
    /// Refusals of the server's requests, or `None` before the first.
    refusals: Option<Arc<Refusals>>,
    /// Pings of the server and of the proxy, or `None` before the first.
    pings: Option<Arc<Pings>>,
    /// Notifications of the changes of a task of 2025-11-25, or `None` for every other call.
    notices: Option<Box<StatusNotices>>,
    /// Bytes received of an incomplete event, or of an incomplete response that becomes one.
    arriving: usize,
    /// True once the server has refused the call with its session, and the session was opened
    /// again.
    was_refused: bool,
    began: Instant,
    alarm: Alarm,
    /// Span of the present request to the server, or `None` without one or if the call is not
    /// traced.
    span: Option<Span>,
    /// True if the body of the response ends the span of the call.
    is_traced_by_body: bool,
}

/// End of a stream, for its last log line.
struct End {
    kind: StreamKind,
    outcome: Outcome,
    failure: Option<Failure>,
    is_attached: bool,
    events: u64,
    connections: u32,
    at: Instant,
}

impl End {
    /// Returns the end of a sealed stream, or `None` for another.
    fn of(machine: &Machine, at: Instant) -> Option<Self> {
        let Phase::Sealed { outcome, .. } = machine.lifecycle().phase() else { return None };
        Some(Self {
            kind: machine.policy().kind,
            outcome,
            failure: machine.lifecycle().failure(),
            is_attached: machine.reader().is_attached(),
            events: machine.numbering().tail().0,
            connections: machine.reader().connections(),
            at,
        })
    }
}

/// Events that have arrived.
struct Arrived {
    events: Vec<sse::Event>,
    /// Bytes of their data.
    bytes: usize,
    /// True if the next event is too large.
    is_too_large: bool,
    /// Failure of the server that the responses among the events report, or `None` if they are its
    /// own.
    lost: Option<Failure>,
    /// End of the response behind the events, or `None` if it goes on.
    ending: Option<Ending>,
}

impl Arrived {
    /// Passes the events to the machine. They are dropped here, before a store is waited for: they
    /// are encoded by then.
    fn pass_to(self, machine: &mut Machine, now: Instant) {
        machine.lifecycle_mut().reserve(self.events.len(), self.bytes);
        if let Some(failure) = self.lost {
            machine.lifecycle_mut().handle_server_lost(failure);
        }
        for event in &self.events {
            machine.handle_event(event, now);
        }
        if self.is_too_large {
            machine.handle_failure(Failure::after_send(ErrorCode::EventTooLarge), now);
        } else if let Some(ending) = self.ending {
            machine.handle_upstream_end(ending, now);
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.metrics.observe_call_end();
    }
}

impl Pump {
    /// Begins the call. [`Self::run`] completes it.
    pub fn begin(
        upstream: Arc<Upstream>,
        log: Arc<EventLog>,
        metrics: Arc<Metrics>,
        writer: Writer,
        call: Call,
    ) -> Box<Self> {
        metrics.observe_call();
        let began = clock::now();
        let notices = writer.stream().as_legacy_task().map(|_| Box::new(StatusNotices::new()));
        if notices.is_some() {
            metrics.observe_task();
            info!(task.id = %writer.stream().id(), "a call begins as a task");
        }
        // Boxed, like the rarer steps below: futures are moved as a whole, and the one that holds
        // this should be small.
        let mut pump = Box::new(Self {
            upstream,
            log,
            metrics,
            writer,
            call,
            input: InputSource::Idle,
            refusals: None,
            pings: None,
            notices,
            arriving: 0,
            was_refused: false,
            began,
            alarm: Alarm::new(),
            span: None,
            is_traced_by_body: false,
        });
        if pump.writer.stream().trace().span().is_some() {
            // The record of the stream names its call.
            pump.name_call(pump.writer.stream());
        }
        pump.note_generation();
        pump.send(pump.call.template.clone(), false);
        pump
    }

    /// Runs until the stream is sealed or the response has passed.
    pub async fn run(mut self: Box<Self>) {
        loop {
            let (phase, deadline, may_read) = match self.writer.poll_next() {
                Next::Effect(effect) => {
                    self.apply_effect(effect).await;
                    continue;
                }
                Next::Input { phase, deadline, may_read } => (phase, deadline, may_read),
            };
            if self.is_over(phase) {
                break;
            }
            let notice_at = self.notices.as_ref().and_then(|notices| notices.wakes_at(self.writer.stream()));
            self.alarm.set(deadline.into_iter().chain(notice_at).min());
            tokio::select! {
                // A random order would make simulated runs differ. The upstream is last, because it
                // alone can be ready without end.
                biased;
                // Another task may have staged events.
                () = self.writer.changed(may_read) => self.handle_change().await,
                () = self.alarm.ring() => self.handle_timeout().await,
                input = self.input.next(), if may_read => self.handle_input(input).await,
            }
            self.tell_status();
        }
        self.finish().await;
    }

    /// Handles a change by another task, which may be a commit.
    async fn handle_change(&mut self) {
        if self.call.progress.is_some()
            && self.writer.stream().with_machine(|machine| machine.lifecycle().is_committed())
        {
            self.keep_asking();
        }
        self.writer.update(|_, _| ()).await;
    }

    async fn handle_timeout(&mut self) {
        // One reading of the clock: the stream must be published before its first id is sent.
        let now = clock::now();
        if self.writer.stream().with_machine(|machine| machine.lifecycle().is_commit_due(now)) {
            if self.may_commit(now) {
                self.publish();
                self.keep_asking();
            } else {
                self.writer.update(|machine, _| machine.lifecycle_mut().handle_commit_forbidden()).await;
            }
        }
        self.writer.update(|machine, _| machine.handle_timeout(now)).await;
    }

    /// Publishes the stream under its call's name.
    fn publish(&self) {
        self.name_call(self.writer.stream());
        self.log.publish_once(self.writer.stream());
    }

    /// Keeps the request for connections that write progress of the proxy's own. To be called
    /// before the stream has a record in the store.
    fn keep_asking(&mut self) {
        if let Some(ProgressRule { except }) = self.call.progress.take() {
            let body = self.call.template.clone();
            self.writer.stream().keep_asking(AskingRequests { body, except });
        }
    }

    /// Names the call, if this is one.
    fn name_call(&self, stream: &Stream) {
        let Call { method, template, .. } = &self.call;
        if let Some(method) = method {
            stream.trace().set_name(|| CallName::of(method, template.body()));
        }
    }

    fn is_over(&self, phase: Phase) -> bool {
        match phase {
            Phase::Sealed { .. } => true,
            Phase::Passed => matches!(self.input, InputSource::Idle),
            Phase::Waiting | Phase::Open => false,
        }
    }

    async fn finish(mut self: Box<Self>) {
        self.conclude(None).await;
        self.tell_status();
        // Its client may have left before.
        let (log, stream) = (self.log.clone(), self.writer.stream().clone());
        drop(self);
        log.release(stream);
    }

    /// Seals the stream of `writer`, or of the pump without one, in the store, and keeps it until
    /// its retention ends.
    async fn conclude(&mut self, writer: Option<Writer>) {
        let writer = writer.as_ref().unwrap_or(&self.writer);
        // Another task may have ended the stream since the last update, and its reader was not
        // notified.
        let end = writer.update(|machine, now| End::of(machine, now)).await;
        let stream = writer.stream();
        if !self.is_traced_by_body {
            stream.end_span();
        }
        if let Some(end) = end {
            writer.seal().await;
            match end.kind {
                // A call that goes on as a task has not ended.
                StreamKind::Request if stream.task().is_some() => {}
                StreamKind::Request => self.note_seal(stream, &end),
                // A standalone stream is no call, so it cannot fail or be abandoned.
                StreamKind::Standalone | StreamKind::Task => {
                    debug!(stream.id = %stream.id(), failure = ?end.failure, "standalone stream ended")
                }
            }
            if !stream.upstream().is_sent() {
                // No tool ran: a retry is a new call.
                stream.retries().forget();
            }
            self.log.retain(stream);
            if stream.retries().body_fingerprint().is_some() {
                // A call that ended before its response head is no stream in the store.
                Box::pin(self.log.store_response(stream, &stream.head_now())).await;
            }
        } else if stream.retries().has_unclaimed_response() {
            stream.retries().drop_unread_response();
            self.log.retain(stream);
        }
    }

    /// Reports the outcome of a call to log and metrics.
    fn note_seal(&self, stream: &Stream, end: &End) {
        self.metrics.observe_seal(end.outcome, end.is_attached);
        if end.failure.is_some_and(|failure| failure.code == ErrorCode::Abandoned) {
            self.metrics.observe_abandoned();
        }
        if let Some(failure) = end.failure
            && failure.code.side() == Side::Upstream
        {
            self.metrics.errors.observe_upstream_failure(failure.code);
        }
        self.name_call(stream);
        if !enabled!(Level::INFO) {
            return;
        }
        let name = stream.trace().name();
        info!(
            stream.id = %stream.id(),
            session = stream.binding().session_hash().as_deref(),
            method = name.map(|name| &*name.method),
            tool = name.and_then(|name| name.tool.as_deref()),
            duration_ms = end.at.saturating_duration_since(stream.created()).as_millis() as u64,
            events = end.events,
            connections = end.connections,
            outcome = end.outcome.label(),
            error = end.failure.map(|failure| failure.code.label()),
            attached = end.is_attached,
            "call ended"
        );
    }

    // ── effects ──────────────────────────────────────────────────────────────────────────────────

    async fn apply_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Close => self.set_input(InputSource::Idle),
            Effect::Reopen(last_id) => {
                self.follow_session();
                self.send(Arc::new(self.call.template.to_get(last_id.as_deref())), true);
            }
            Effect::AnnounceCancel(ids) if self.writer.stream().upstream().is_sent() => {
                for id in &ids {
                    self.post_aside(synthetic::cancelled(id));
                }
            }
            Effect::AnnounceCancel(_) => {}
            Effect::RefuseServerRequest(id) => self.refuse_server_request(self.server_id(id)),
            Effect::AnswerPing(id) => {
                let id = self.server_id(id);
                self.pings().answer(id);
            }
            Effect::KeepAlive => self.pings().send_ping(),
            Effect::AnnounceGap => self.announce_gap().await,
            Effect::RecordResponse(id) => self.note_response_of_session(&id),
            Effect::AnnounceRevival => Box::pin(self.announce_revival()).await,
            Effect::Promote => Box::pin(self.promote()).await,
            Effect::CallAgain(continuation) => self.call_again(&continuation),
        }
    }

    fn send(&mut self, template: Arc<Template>, is_reopening: bool) {
        let template = self.trace_request(template, is_reopening);
        let upstream = self.upstream.clone();
        let stream = self.writer.stream().clone();
        let (log, metrics, began) = (self.log.clone(), self.metrics.clone(), self.began);
        // A request that resumes the stream is repeated by the machine, and has no credentials that
        // a client has just used.
        let should_wait = self.call.should_wait && !is_reopening;
        let may_revive = self.call.may_revive && !is_reopening;
        let was_refused = self.was_refused;
        let is_routed = self.call.is_routed;
        let response = Box::pin(async move {
            let (response, has_waited) = if should_wait {
                wait::send_when_reachable(&upstream, &template, &stream, &metrics, began).await
            } else {
                (upstream.send(&template, Some(&stream)).await, false)
            };
            // A server that accepted no connection was restarted, and has forgotten the new session
            // too.
            let may_revive = may_revive && (!was_refused || has_waited);
            match response {
                Ok(response) if may_revive && upstream.revivals().may_concern(response.status()) => {
                    let (upstream, log, metrics) = (&upstream, &log, &metrics);
                    let refused = Refused { upstream, log, metrics, stream: &stream, template: &template, is_routed };
                    // Boxed: each call would carry the size of this future.
                    Box::pin(refused.settle(response)).await
                }
                response => Settled::Response(response),
            }
        });
        self.set_input(InputSource::Sending { response, is_reopening });
    }

    fn set_input(&mut self, input: InputSource) {
        self.writer.stream().upstream().set_state(input.upstream_state());
        if matches!(input, InputSource::Idle) {
            self.span = None;
        }
        self.input = input;
    }

    /// Refuses a request of the server.
    fn refuse_server_request(&mut self, id: RequestId) {
        let (upstream, stream, call) = (&self.upstream, self.writer.stream(), &self.call.template);
        let new = || Refusals::new(upstream.clone(), stream.clone(), call.clone());
        self.refusals.get_or_insert_with(new).refuse(id);
    }

    fn pings(&mut self) -> &Arc<Pings> {
        let (upstream, stream, call) = (&self.upstream, self.writer.stream(), &self.call.template);
        // The session may have a new name at the server since.
        let pings = self.pings.take().filter(|pings| pings.are_of(call));
        let new = || Pings::new(upstream.clone(), stream.clone(), self.metrics.clone(), call.clone());
        self.pings.insert(pings.unwrap_or_else(new))
    }

    /// Posts a message of the proxy's own beside the call. Its outcome changes nothing.
    fn post_aside(&self, message: Vec<u8>) {
        let upstream = self.upstream.clone();
        let template = synthetic::post(&self.call.template, message);
        let sending = async move {
            if let Err(failure) = upstream.send(&template, None).await {
                debug!(?failure, "a message of the proxy's own did not reach the upstream");
            }
        };
        tokio::spawn(sending.in_current_span());
    }

    // ── upstream input ───────────────────────────────────────────────────────────────────────────

    async fn handle_input(&mut self, input: UpstreamInput) {
        self.trace_input(&input);
        match input {
            UpstreamInput::Head { response: Ok(response), is_reopening: true } => {
                Box::pin(self.handle_reopened(response)).await
            }
            UpstreamInput::Head { response: Ok(response), is_reopening: false } => self.handle_head(response).await,
            UpstreamInput::Head { response: Err(failure), is_reopening } => {
                self.handle_failure(failure, is_reopening).await
            }
            UpstreamInput::Revived { again, refusal } => Box::pin(self.send_again(again, refusal)).await,
            UpstreamInput::Piece(piece) => self.handle_piece(piece).await,
            UpstreamInput::End(ending) => self.end(ending).await,
            UpstreamInput::Grown(bytes) => self.handle_growth(bytes).await,
            UpstreamInput::Body(collected) => self.log_collected(collected).await,
        }
    }

    /// Notes the growth of a response that is being collected.
    async fn handle_growth(&mut self, bytes: usize) {
        self.note_arriving(bytes);
        self.writer.update(|_, _| ()).await;
    }

    /// Counts the bytes of an incomplete event. Most events arrive whole, so that there is nothing
    /// to count.
    fn note_arriving(&mut self, bytes: usize) {
        if std::mem::replace(&mut self.arriving, bytes) != bytes {
            self.writer.note_arriving(bytes);
        }
    }

    async fn end(&mut self, ending: Ending) {
        if ending == Ending::Broken {
            self.trace_break();
        }
        self.set_input(InputSource::Idle);
        self.note_arriving(0);
        self.writer.update(|machine, now| machine.handle_upstream_end(ending, now)).await;
    }

    async fn handle_piece(&mut self, piece: Bytes) {
        let Some(arrived) = self.gather(piece).await else { return };
        self.writer.update(move |machine, now| arrived.pass_to(machine, now)).await;
    }

    /// Returns the events of `piece` and of all further pieces that are ready, or `None` if no
    /// stream is read.
    async fn gather(&mut self, piece: Bytes) -> Option<Arrived> {
        let InputSource::Reading(reader) = &mut self.input else { return None };
        let GatherResult { mut events, error, ending } = reader.gather(piece).await;
        let held = if error.is_some() || ending.is_some() { 0 } else { reader.held() };
        let lost = reader.lost().map(Failure::after_send);
        if let (Some(span), Some(failure)) = (&mut self.span, lost) {
            span.fail(failure.code.label());
        } else if ending == Some(Ending::Broken) {
            self.trace_break();
        }
        if self.call.observer.is_active() {
            for event in &mut events {
                event.data = self.observe(std::mem::take(&mut event.data));
            }
            Box::pin(self.call.observer.save_session(&self.log, &self.call.credentials)).await;
        }
        self.rename_server_requests(&mut events);
        self.route_task_messages(&mut events);
        let bytes = events.iter().map(|event| event.data.len()).sum();
        self.metrics.observe_events(events.len(), bytes);
        if error.is_some() || ending.is_some() {
            self.set_input(InputSource::Idle);
        }
        self.note_arriving(held);
        Some(Arrived { events, bytes, is_too_large: error.is_some(), lost, ending })
    }

    async fn handle_failure(&mut self, failure: Failure, is_reopening: bool) {
        self.set_input(InputSource::Idle);
        if is_reopening {
            self.end(Ending::Unavailable).await;
            return self.note_failure(failure.code, is_reopening);
        }
        let may_respond = self.writer.update(|machine, now| machine.handle_failure(failure, now)).await;
        self.note_failure(failure.code, is_reopening);
        if may_respond {
            // No tool ran: a retry is a new call.
            if !failure.may_have_run {
                self.writer.stream().retries().forget();
            }
            self.publish_head(Head::Failed(failure)).await;
        }
    }

    /// Publishes a head that is the whole response; for a call with a key, once the store has it.
    async fn publish_head(&mut self, head: Head) {
        if self.is_keyed() {
            Box::pin(self.log.store_response(self.writer.stream(), &head)).await;
        }
        self.writer.set_head(head);
    }

    fn is_keyed(&self) -> bool {
        self.writer.stream().retries().body_fingerprint().is_some()
    }

    /// Reports a failure, unless it ended the stream: that one is reported when the stream is
    /// sealed.
    fn note_failure(&self, code: ErrorCode, is_reopening: bool) {
        let stream = self.writer.stream();
        if stream.with_machine(|machine| machine.lifecycle().failure().is_none()) {
            self.metrics.errors.observe_upstream_failure(code);
            info!(stream.id = %stream.id(), error = code.label(), again = is_reopening, "upstream call failed");
        }
    }

    async fn handle_head(&mut self, mut response: Box<Response<ResponseBody>>) {
        self.metrics.observe_head(clock::now().saturating_duration_since(self.began));
        self.note_response(&response);
        self.call.observer.open_session(&mut response, &self.upstream, &self.log);
        headers::remove_hop_by_hop(response.headers_mut());
        if response.status().is_success() && headers::is_sse(response.headers()) {
            self.handle_stream(response).await;
        } else {
            self.handle_plain_response(response).await;
        }
    }

    async fn handle_stream(&mut self, response: Box<Response<ResponseBody>>) {
        let (mut parts, body) = response.into_parts();
        if is_compressed(&parts.headers) {
            return self.handle_failure(Failure::after_send(ErrorCode::UpstreamGarbage), false).await;
        }
        self.keep_asking();
        headers::sse_downstream(&mut parts.headers);
        headers::expose_ours(&mut parts.headers);
        self.set_input(InputSource::Reading(Box::new(EventReader::new(body, self.call.max_event_bytes))));
        // A short response is often there as a whole. Then it is one step, and one call of a store.
        let (arrived, end) = match self.input.next_if_ready(self.writer.may_read()).await {
            Some(UpstreamInput::Piece(piece)) => (self.gather(piece).await, None),
            Some(UpstreamInput::End(ending)) => (None, Some(ending)),
            Some(_) | None => (None, None),
        };
        let handle = |machine: &mut Machine, now: Instant| {
            let may_respond = machine.handle_stream_head();
            if let Some(arrived) = arrived {
                arrived.pass_to(machine, now);
            }
            may_respond
        };
        if self.writer.update(handle).await {
            self.publish();
            self.writer.set_head(Head::Stream(parts.status, Arc::new(parts.headers)));
        }
        if let Some(ending) = end {
            self.end(ending).await;
        }
    }

    /// Notes the upstream's judgement of the caller and the CORS headers, for later responses of
    /// the proxy's own.
    fn note_response(&mut self, response: &Response<ResponseBody>) {
        let observed = self.upstream.observed();
        observed.note_status(self.call.credentials, response.status(), self.began, clock::now());
        if response.status().is_success()
            && self.call.is_guest
            && let Some(handshake) = self.handshake()
        {
            handshake.note_accepted(self.writer.stream().binding().principal);
        }
        if response.status().is_success()
            && let Some(session) = self.call.unanswered.take()
        {
            session.note_answered();
            if let Some(handshake) = self.handshake() {
                handshake.note_answered();
            }
        }
        if response.status().is_success()
            && let Some(subject) = self.call.subject
        {
            observed.tokens().note_accepted(subject, self.call.credentials.principal, clock::now());
        }
        if let Some(origin) = self.call.template.origin() {
            observed.note_cors(origin, response.headers(), clock::now());
        }
    }

    /// Observes a message of the response. Returns the message for the client.
    fn observe(&mut self, message: Bytes) -> Bytes {
        self.call.observer.observe(message, &self.upstream, &self.log, &self.call.credentials)
    }
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}
