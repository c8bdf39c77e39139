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
mod status_notices;
mod trace;

use std::future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response};
use tracing::{Instrument, Level, debug, enabled, info};

pub(super) use self::plain_response::adapt_passing;
use self::status_notices::StatusNotices;
use super::gateway_errors;
use super::input::{InputSource, UpstreamInput};
use super::metrics::{Metrics, OpenCall};
use super::observed::Credentials;
use super::pings::Pings;
use super::response_observer::ResponseObserver;
use super::revival::{Refused, Settled};
use super::server::exchange::{Exchange, ExchangedInBox};
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::sent::Sent;
use super::server::sse_reader::{EventReader, GatherResult};
use super::server::synthetic;
use super::server_request_refusals::Refusals;
use super::stack::Upstream;
use super::wait;
use crate::clock::{self, Alarm};
use crate::config::Tasks;
use crate::event_log::{AskingRequests, EventLog, Head, Next, Session, Stream, Subject, Writer};
use crate::identity::SessionHash;
use crate::metrics::Repair;
use crate::otel::Span;
use crate::protocol::call_name::{CallName, NameSource};
use crate::protocol::client_names::ClientNames;
use crate::protocol::error::{ErrorCode, Failure, Side};
use crate::protocol::headers::{self, ResponseFacts};
use crate::protocol::ids::{Seq, StreamKind};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::sse;
use crate::protocol::stream::{Effect, Ending, Machine, Outcome, Phase};

/// A call and the conditions of its execution.
pub struct Call {
    /// Request to the server.
    pub template: Arc<Template>,
    /// Source of the call's name, or `None` for a standalone stream.
    pub name: Option<NameSource>,
    /// Media types that the client accepts.
    pub accept: headers::Accept,
    /// Credentials of the caller.
    pub credentials: Credentials,
    /// Address of the client.
    pub address: IpAddr,
    /// Subject claimed by the caller's token, or `None` without a claim.
    pub subject: Option<Subject>,
    /// Observer of the response.
    pub observer: ResponseObserver,
    /// True if the call waits while the server accepts no connections.
    pub should_wait: bool,
    /// True if the call may revive a session that its server has forgotten.
    pub may_revive: bool,
    /// True if a balancer can send the call to another replica.
    pub is_routed: bool,
    /// True if the server must accept the caller before the caller may revive the session.
    pub is_guest: bool,
    /// Hash of the session for logs, or `None` without a record of a session.
    pub session_hash: Option<SessionHash>,
    /// Session without any known response of the server, or `None` for every other call.
    pub unanswered: Option<Arc<Session>>,
    /// Size limit of an event, and of a JSON response that becomes one.
    pub max_event_bytes: usize,
    /// Rule for progress notifications of the proxy, or `None` if the call gets no such
    /// notifications.
    pub progress: Option<ProgressRule>,
    /// Terms of a promotion to a task, or `None` if the call must not become a task.
    pub tasks: Option<Arc<Tasks>>,
}

impl Call {
    /// Returns true if the response may be that of a gateway without a server behind it, and the
    /// call waits for the server.
    pub(super) fn may_ask_again(&self, response: &Response<ResponseBody>) -> bool {
        self.should_wait && gateway_errors::may_concern(&self.template, response)
    }

    /// Records the credential status, the accepted token and the CORS headers of a response that
    /// came `now`, to a call that began at `began`. Later responses of the proxy's own need them.
    pub(super) fn record_response(
        &self,
        response: &Response<ResponseBody>,
        upstream: &Upstream,
        began: Instant,
        now: Instant,
    ) {
        let observed = upstream.observed();
        observed.record_status(self.credentials, response.status(), began, now);
        if response.status().is_success()
            && let Some(subject) = self.subject
        {
            observed.tokens().record_accepted(subject, self.credentials.principal, now);
        }
        if let Some(origin) = self.template.origin() {
            observed.record_cors(origin, response.headers(), now);
        }
    }
}

/// Beginning of a call.
pub(super) struct BegunCall {
    /// Counts the call as open.
    pub(super) open: OpenCall,
    /// Time of the beginning.
    pub(super) began: Instant,
}

/// The request of a call that began without a stream.
pub(super) enum SentRequest {
    InFlight(InFlight),
    /// The response, or the reason for its absence.
    Answered(ExchangedInBox),
}

/// A request in flight.
pub(super) type InFlight = Pin<Box<dyn Future<Output = ExchangedInBox> + Send>>;

/// Rule for progress notifications that the proxy writes.
#[derive(Clone, Debug, Default)]
pub struct ProgressRule {
    /// Clients without such notifications, if the request itself names its client.
    pub except: Option<ClientNames>,
}

/// Runs one call.
pub struct Pump {
    upstream: Arc<Upstream>,
    log: Arc<EventLog>,
    metrics: Arc<Metrics>,
    writer: Writer,
    call: Call,
    input: InputSource,
    /// Refusals of server requests, or `None` before the first.
    refusals: Option<Arc<Refusals>>,
    /// Pings of the server and of the proxy, or `None` before the first.
    pings: Option<Arc<Pings>>,
    /// Status notifications of a task of 2025-11-25, or `None` for every other call.
    notices: Option<Box<StatusNotices>>,
    /// Bytes received of an incomplete event, or of an incomplete response that becomes one.
    arriving: usize,
    /// True once the server has refused the call with its session, and the session was revived.
    was_refused: bool,
    began: Instant,
    alarm: Alarm,
    /// Span of the current request to the server. `None` without a request, or if the call is not
    /// traced.
    span: Option<Span>,
    /// True if the body of the response ends the span of the call.
    is_traced_by_body: bool,
    /// Counts the call as open.
    _open: OpenCall,
}

/// End of a stream, for its last log line.
struct End {
    kind: StreamKind,
    outcome: Outcome,
    failure: Option<Failure>,
    /// True if a client was connected at the end, or has the whole response.
    is_attached: bool,
    events: u64,
    connections: u32,
    at: Instant,
}

impl End {
    /// Returns the end of a sealed stream, or `None` for any other stream.
    fn of(machine: &Machine, at: Instant) -> Option<Self> {
        let Phase::Sealed { outcome, .. } = machine.lifecycle().phase() else { return None };
        let (reader, tail) = (machine.reader(), machine.numbering().tail());
        // A client may close its connection as soon as it has the response, before this is read.
        let has_response = outcome == Outcome::Completed && tail > Seq(0) && reader.written() == tail;
        Some(Self {
            kind: machine.policy().kind,
            outcome,
            failure: machine.lifecycle().failure(),
            is_attached: reader.is_attached() || has_response,
            events: tail.0,
            connections: reader.connections(),
            at,
        })
    }
}

/// Received events.
struct Arrived {
    events: Vec<sse::Event>,
    /// Size of their data, in bytes.
    bytes: usize,
    /// True if the next event is too large.
    is_too_large: bool,
    /// Loss of the server that the proxy reports in its place, or `None` if all responses are the
    /// server's own.
    lost: Option<Failure>,
    /// End of the response after the events, or `None` while the response continues.
    ending: Option<Ending>,
}

impl Arrived {
    /// Passes the events to the machine, which encodes them. They are dropped here, before a wait
    /// for a store.
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

impl Pump {
    /// Begins the call. [`Self::run`] completes it.
    pub fn begin(
        upstream: Arc<Upstream>,
        log: Arc<EventLog>,
        metrics: Arc<Metrics>,
        writer: Writer,
        call: Call,
    ) -> Box<Self> {
        let begun = BegunCall { open: metrics.begin_call(), began: clock::now() };
        let mut pump = Self::new(upstream, log, metrics, writer, call, begun);
        pump.send(pump.call.template.clone(), false);
        pump
    }

    /// Continues a call that began without a stream.
    pub(super) fn take_over(
        upstream: Arc<Upstream>,
        log: Arc<EventLog>,
        metrics: Arc<Metrics>,
        writer: Writer,
        (call, begun, request): (Call, BegunCall, SentRequest),
    ) -> Box<Self> {
        let mut pump = Self::new(upstream, log, metrics, writer, call, begun);
        match request {
            // The call names no session that could have to be revived.
            SentRequest::Answered(Ok(response)) if !pump.call.may_ask_again(&response) => {
                pump.set_input(InputSource::Responded(Some(response)));
            }
            SentRequest::Answered(answered) => pump.await_again(Box::pin(future::ready(answered))),
            SentRequest::InFlight(in_flight) => pump.await_again(in_flight),
        }
        pump
    }

    fn await_again(&mut self, in_flight: InFlight) {
        self.await_response(self.call.template.clone(), false, Some(in_flight));
    }

    fn new(
        upstream: Arc<Upstream>,
        log: Arc<EventLog>,
        metrics: Arc<Metrics>,
        writer: Writer,
        call: Call,
        BegunCall { open, began }: BegunCall,
    ) -> Box<Self> {
        let notices = writer.stream().as_legacy_task().map(|_| Box::new(StatusNotices::new()));
        if notices.is_some() {
            metrics.observe_task();
            info!(task.id = %writer.stream().id(), "a call begins as a task");
        }
        // Boxed, like the rarer steps below: futures are moved as a whole, so the enclosing future
        // should be small.
        let pump = Box::new(Self {
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
            _open: open,
        });
        if pump.writer.stream().trace().span().is_some() {
            // The record of the stream names its call.
            pump.name_call(pump.writer.stream());
        }
        pump.record_generation();
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
            if self.is_finished(phase) {
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
            self.notify_status();
        }
        self.finish().await;
    }

    /// Handles a change by another task, which may be a commit.
    async fn handle_change(&mut self) {
        if self.call.progress.is_some()
            && self.writer.stream().with_machine(|machine| machine.lifecycle().is_committed())
        {
            self.keep_request();
        }
        self.writer.update(|_, _| ()).await;
    }

    async fn handle_timeout(&mut self) {
        // One reading of the clock: the stream must be published before its first id is sent.
        let now = clock::now();
        if self.writer.stream().with_machine(|machine| machine.lifecycle().is_commit_due(now)) {
            if self.may_commit(now) {
                self.publish();
                self.keep_request();
            } else {
                self.writer.update(|machine, _| machine.lifecycle_mut().handle_commit_forbidden()).await;
            }
        }
        self.writer.update(|machine, _| machine.handle_timeout(now)).await;
    }

    /// Publishes the stream under the name of its call.
    fn publish(&self) {
        self.name_call(self.writer.stream());
        self.log.publish_once(self.writer.stream());
    }

    /// Keeps the request for connections that write progress. Must be called before the stream has
    /// a record in the store.
    fn keep_request(&mut self) {
        if let Some(ProgressRule { except }) = self.call.progress.take() {
            let body = self.call.template.clone();
            self.writer.stream().keep_asking(AskingRequests { body, except });
        }
    }

    /// Gives the stream the name of its call. A standalone stream has no call.
    fn name_call(&self, stream: &Stream) {
        let Call { name, template, .. } = &self.call;
        if let Some(name) = name {
            stream.trace().set_name(|| CallName::of(name, template.body()));
        }
    }

    fn is_finished(&self, phase: Phase) -> bool {
        match phase {
            Phase::Sealed { .. } => true,
            Phase::Passed => matches!(self.input, InputSource::Idle),
            Phase::Waiting | Phase::Open => false,
        }
    }

    async fn finish(mut self: Box<Self>) {
        self.conclude(None).await;
        self.notify_status();
        // The client may have left before the end.
        let (log, stream) = (self.log.clone(), self.writer.stream().clone());
        drop(self);
        log.retention().release(stream);
    }

    /// Seals the stream of `writer` in the store, and keeps it until its retention ends. `None`
    /// stands for the pump's own writer.
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
                // A call that continues as a task has not ended.
                StreamKind::Request if stream.task().is_some() => {}
                StreamKind::Request => self.report_seal(stream, &end),
                // A standalone stream is no call, so it cannot fail or be abandoned.
                StreamKind::Standalone | StreamKind::Task => {
                    debug!(stream.id = %stream.id(), failure = ?end.failure, "standalone stream ended")
                }
            }
            if !stream.upstream().is_sent() {
                // No tool ran: a retry is a new call.
                stream.retries().forget();
            }
            self.log.retention().retain(stream);
            if stream.retries().body_fingerprint().is_some() {
                // A call that ended before its response head is no stream in the store.
                Box::pin(self.log.kept_responses().store(stream, &stream.head_now())).await;
            }
        } else if stream.retries().has_unclaimed_response() {
            stream.retries().drop_unread_response();
            self.log.retention().retain(stream);
        }
    }

    /// Reports the outcome of a call to log and metrics.
    fn report_seal(&self, stream: &Stream, end: &End) {
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
            session = self.call.session_hash.or_else(|| stream.binding().session_hash()).as_deref(),
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
                self.pings().respond(id);
            }
            Effect::KeepAlive => self.pings().send_ping(),
            Effect::AnnounceGap => self.announce_gap().await,
            Effect::RecordResponse(id) => self.record_session_response(&id),
            Effect::RecordRespelled => self.metrics.repairs.record(Repair::ResponseId),
            Effect::AnnounceRevival => Box::pin(self.announce_revival()).await,
            Effect::Promote => Box::pin(self.promote()).await,
            Effect::CallAgain(continuation) => self.call_again(&continuation),
        }
    }

    fn send(&mut self, template: Arc<Template>, is_reopening: bool) {
        let template = self.trace_request(template, is_reopening);
        self.await_response(template, is_reopening, None);
    }

    /// Awaits the response to a request that is sent now, or is `in_flight` already.
    fn await_response(&mut self, template: Arc<Template>, is_reopening: bool, in_flight: Option<InFlight>) {
        let upstream = self.upstream.clone();
        let stream = self.writer.stream().clone();
        let (log, metrics, began) = (self.log.clone(), self.metrics.clone(), self.began);
        // A reopening is repeated by the machine, and its credentials may be older than the
        // client's latest.
        let should_wait = self.call.should_wait && !is_reopening;
        let may_revive = self.call.may_revive && !is_reopening;
        let was_refused = self.was_refused;
        let is_routed = self.call.is_routed;
        let response = Box::pin(async move {
            let first = match in_flight {
                Some(in_flight) => in_flight.await,
                None => upstream.exchange_in_box(&template, Some(&Sent::In(stream.clone()))).await,
            };
            let (response, has_waited) = if should_wait {
                wait::when_reachable(first, &upstream, &template, &stream, &metrics, began).await
            } else {
                (first.map_err(|unanswered| unanswered.failure), false)
            };
            let (response, has_waited) = match response {
                Ok(response) if should_wait && gateway_errors::may_concern(&template, &response) => {
                    let call = (&*template, &stream);
                    // Boxed: each call would carry the size of this future.
                    Box::pin(gateway_errors::ask_again(&upstream, call, &metrics, began, response)).await
                }
                response => (response, has_waited),
            };
            // A server that accepted no connection was restarted, and has forgotten the revived
            // session too.
            let may_revive = may_revive && (!was_refused || has_waited);
            match response {
                Ok(response) if may_revive && upstream.revivals().may_concern(response.status()) => {
                    let (upstream, log, metrics) = (&upstream, &log, &metrics);
                    let refused = Refused { upstream, log, metrics, stream: &stream, template: &template, is_routed };
                    // Boxed: each call would carry the size of this future.
                    Box::pin(refused.settle(*response)).await
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

    /// Refuses a server request.
    fn refuse_server_request(&mut self, id: RequestId) {
        let (upstream, stream, call) = (&self.upstream, self.writer.stream(), &self.call.template);
        let new = || Refusals::new(upstream.clone(), stream.clone(), call.clone());
        self.refusals.get_or_insert_with(new).refuse(id);
    }

    fn pings(&mut self) -> &Arc<Pings> {
        let (upstream, stream, call) = (&self.upstream, self.writer.stream(), &self.call.template);
        // The session may have a new name at the server.
        let pings = self.pings.take().filter(|pings| pings.are_of(call));
        let new = || Pings::new(upstream.clone(), stream.clone(), self.metrics.clone(), call.clone());
        self.pings.insert(pings.unwrap_or_else(new))
    }

    /// Posts a message of the proxy's own in a separate task. Its outcome does not affect the call.
    fn post_aside(&self, message: Vec<u8>) {
        let upstream = self.upstream.clone();
        let template = synthetic::post(&self.call.template, message);
        let sending = async move {
            if let Err(failure) = upstream.send(&template).await {
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

    /// Handles the growth of a response that is being collected.
    async fn handle_growth(&mut self, bytes: usize) {
        self.set_arriving(bytes);
        self.writer.update(|_, _| ()).await;
    }

    /// Updates the byte count of an incomplete event. Most events arrive whole, which leaves the
    /// count unchanged.
    fn set_arriving(&mut self, bytes: usize) {
        if std::mem::replace(&mut self.arriving, bytes) != bytes {
            self.writer.note_arriving(bytes);
        }
    }

    async fn end(&mut self, ending: Ending) {
        if ending == Ending::Broken {
            self.trace_break();
        }
        self.set_input(InputSource::Idle);
        self.set_arriving(0);
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
        self.set_arriving(held);
        Some(Arrived { events, bytes, is_too_large: error.is_some(), lost, ending })
    }

    async fn handle_failure(&mut self, failure: Failure, is_reopening: bool) {
        self.set_input(InputSource::Idle);
        if is_reopening {
            self.end(Ending::Unavailable).await;
            return self.report_failure(failure.code, is_reopening);
        }
        let may_respond = self.writer.update(|machine, now| machine.handle_failure(failure, now)).await;
        self.report_failure(failure.code, is_reopening);
        if may_respond {
            // No tool ran: a retry is a new call.
            if !failure.may_have_run {
                self.writer.stream().retries().forget();
            }
            self.publish_head(Head::Failed(failure)).await;
        }
    }

    /// Publishes a head that is the whole response. With a key, the store must have it first.
    async fn publish_head(&mut self, head: Head) {
        if self.is_keyed() {
            Box::pin(self.log.kept_responses().store(self.writer.stream(), &head)).await;
        }
        self.writer.set_head(head);
    }

    fn is_keyed(&self) -> bool {
        self.writer.stream().retries().body_fingerprint().is_some()
    }

    /// Reports a failure, unless it ended the stream: then the seal reports it.
    fn report_failure(&self, code: ErrorCode, is_reopening: bool) {
        let stream = self.writer.stream();
        if stream.with_machine(|machine| machine.lifecycle().failure().is_none()) {
            self.metrics.errors.observe_upstream_failure(code);
            info!(stream.id = %stream.id(), error = code.label(), again = is_reopening, "upstream call failed");
        }
    }

    async fn handle_head(&mut self, mut response: Box<Response<ResponseBody>>) {
        let now = clock::now();
        self.metrics.observe_head(now.saturating_duration_since(self.began));
        self.record_response(&response, now);
        self.call.observer.open_session(&mut response, &self.upstream, &self.log);
        let facts = ResponseFacts::of(response.headers());
        if facts.has_hop_by_hop {
            headers::remove_hop_by_hop(response.headers_mut());
        }
        if response.status().is_success() && facts.is_sse {
            self.handle_stream(response, facts).await;
        } else {
            self.handle_plain_response(response, facts).await;
        }
    }

    async fn handle_stream(&mut self, response: Box<Response<ResponseBody>>, facts: ResponseFacts) {
        let (mut parts, body) = response.into_parts();
        if facts.has_encoding && is_compressed(&parts.headers) {
            return self.handle_failure(Failure::after_send(ErrorCode::UpstreamGarbage), false).await;
        }
        self.keep_request();
        headers::sse_downstream(&mut parts.headers, &facts);
        if facts.has_cors {
            headers::expose_ours(&mut parts.headers);
        }
        self.set_input(InputSource::Reading(EventReader::new(body, self.call.max_event_bytes)));
        // A short response has often arrived whole. It is then one step, with one call of a store.
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

    /// Records the facts of the response for later responses of the proxy's own, and that the
    /// server has responded in the session.
    fn record_response(&mut self, response: &Response<ResponseBody>, now: Instant) {
        self.call.record_response(response, &self.upstream, self.began, now);
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
    }

    /// Observes a message of the response. Returns the message for the client.
    fn observe(&mut self, message: Bytes) -> Bytes {
        self.call.observer.observe(message, &self.upstream, &self.log, &self.call.credentials)
    }
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}
