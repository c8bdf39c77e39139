//! One stream's upstream call, from the request to the seal.
//!
//! The pump begins with the request, owns the upstream response, and alone appends to the stream. It is a loop: read, tell the
//! machine, do what the machine asks, sleep until its deadline. Nothing in it depends on a client being there; a client that
//! leaves or comes back only changes the machine's timers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, ETAG};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tracing::{Instrument, debug, info};

use super::body::{keep, passing_body};
use super::input::{Collected, Input, Source};
use super::metrics::Metrics;
use super::refusals::Refusals;
use super::sse_reader::{EventReader, Gathered};
use super::synthetic;
use super::{Credentials, Received, Template, Upstream};
use crate::clock::{self, Alarm};
use crate::config::ResumeTokens;
use crate::event_log::{EventLog, Head, Opened, Plain, Subject, Writer};
use crate::protocol::dialect::resume_tokens::Listed;
use crate::protocol::error::{ErrorCode, Failure, Side};
use crate::protocol::headers::{self, SessionId};
use crate::protocol::ids::{IssuedSession, StreamKind};
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::stream::{Effect, Ending, Outcome, Phase};

/// A JSON answer up to this size is kept for a retry; a larger one streams.
const KEPT_ANSWER_MAX: usize = 64 * 1024;
/// A JSON answer that is not complete after this long streams, whatever its size.
const KEPT_ANSWER_WAIT: Duration = Duration::from_millis(500);
/// An answer that something is to be learned of is waited for this long before it streams.
const LESSON_WAIT: Duration = Duration::from_secs(10);

/// One call to be made.
pub struct Call {
    /// The request.
    pub template: Arc<Template>,
    /// What the client takes.
    pub accept: headers::Accept,
    /// Who it comes from.
    pub credentials: Credentials,
    /// Whom that one's token claims to speak for.
    pub subject: Option<Subject>,
    /// What its answer teaches.
    pub teaches: Teaches,
    /// The largest event, and the largest JSON answer that can become one.
    pub max_event_bytes: usize,
}

/// What is learned of the answer to a call. Nothing of most.
#[derive(Clone, Debug, Default)]
pub struct Teaches {
    /// It carries `initialize`, of which this is known: its answer makes a session.
    pub initialize: Option<IssuedSession>,
    /// It lists tools, and these may be answered in slices: the answer shows which can, and says so to the client.
    pub tools: Option<Arc<ResumeTokens>>,
}

impl Teaches {
    /// Whether its answer is read before it passes.
    fn is_any(&self) -> bool {
        self.initialize.is_some() || self.tools.is_some()
    }
}

/// Runs one call.
pub struct Pump {
    upstream: Arc<Upstream>,
    log: Arc<EventLog>,
    metrics: Arc<Metrics>,
    writer: Writer,
    call: Call,
    source: Source,
    /// The session named by the head of an `initialize` answer.
    opened_session: Option<SessionId>,
    /// What its result says, until the store has it.
    unsaved: Option<Opened>,
    /// Of its questions, where there are any.
    refusals: Option<Arc<Refusals>>,
    /// Bytes of an event, or of an answer that becomes one, that is not whole.
    arriving: usize,
    began: Instant,
    alarm: Alarm,
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.metrics.observe_call_end();
    }
}

impl Pump {
    /// Begins the call; [`Self::run`] carries it through.
    pub fn begin(
        upstream: Arc<Upstream>,
        log: Arc<EventLog>,
        metrics: Arc<Metrics>,
        writer: Writer,
        call: Call,
    ) -> Box<Self> {
        metrics.observe_call();
        let began = clock::now();
        // Boxed, like the rarer steps below: futures are moved whole, and what holds this one should be small.
        let mut pump = Box::new(Self {
            upstream,
            log,
            metrics,
            writer,
            call,
            source: Source::Idle,
            opened_session: None,
            unsaved: None,
            refusals: None,
            arriving: 0,
            began,
            alarm: Alarm::new(),
        });
        pump.send(pump.call.template.clone(), false);
        pump
    }

    /// Until the stream is sealed or its answer passed.
    pub async fn run(mut self: Box<Self>) {
        loop {
            self.do_effects().await;
            if self.is_over() {
                break;
            }
            let (deadline, may_read) = self.writer.agenda();
            self.alarm.set(deadline);
            tokio::select! {
                // A drawn order would make each simulated run another one. The upstream is last, because it alone can be ready
                // without end.
                biased;
                // Another task may have staged events.
                () = self.writer.changed(may_read) => self.writer.update(|_, _| ()).await,
                () = self.alarm.ring() => self.take_timeout().await,
                input = self.source.next(), if may_read => self.take(input).await,
            }
        }
        self.finish().await;
    }

    async fn take_timeout(&mut self) {
        // One reading of the clock: the stream must be there before its first id is out.
        let now = clock::now();
        if self.writer.stream().look(|machine| machine.commits_by(now)) {
            self.publish();
        }
        self.writer.update(|machine, _| machine.handle_timeout(now)).await;
    }

    /// Lets the stream be found, and says what it is.
    fn publish(&self) {
        let stream = self.writer.stream();
        stream.name_call(self.call.template.body());
        self.log.publish_once(stream);
    }

    fn is_over(&self) -> bool {
        self.writer.stream().look(|machine| match machine.phase() {
            Phase::Sealed { .. } => true,
            Phase::Passed => matches!(self.source, Source::Idle),
            Phase::Waiting | Phase::Open => false,
        })
    }

    async fn finish(self: Box<Self>) {
        // Another task may have ended the stream since the last update, and nobody has told its reader.
        self.writer.update(|_, _| ()).await;
        let stream = self.writer.stream();
        let outcome = stream.look(|machine| match machine.phase() {
            Phase::Sealed { outcome, .. } => Some((outcome, machine.failure(), machine.reader().is_attached())),
            Phase::Waiting | Phase::Passed | Phase::Open => None,
        });
        if let Some((outcome, failure, attached)) = outcome {
            self.writer.seal().await;
            match stream.look(|machine| machine.policy().kind) {
                StreamKind::Request => self.note_seal(outcome, failure, attached),
                // No call, so nothing that could fail or be abandoned.
                StreamKind::Standalone => debug!(stream.id = %stream.id(), ?failure, "standalone stream ended"),
            }
            if !stream.is_sent() {
                // Nothing ran: a retry is a new call.
                stream.forget_retries();
            }
            self.log.retain(stream);
            if self.is_keyed() {
                // One that ended before it had a head is no stream in the store.
                Box::pin(self.log.keep_answer(stream, &stream.head_now())).await;
            }
        } else if stream.is_answer_unclaimed() {
            stream.drop_unread_answer();
            self.log.retain(stream);
        }
    }

    /// What became of a call shows in log and metrics.
    fn note_seal(&self, outcome: Outcome, failure: Option<Failure>, attached: bool) {
        let stream = self.writer.stream();
        self.metrics.observe_seal(outcome, attached);
        if failure.is_some_and(|failure| failure.code == ErrorCode::Abandoned) {
            self.metrics.observe_abandoned();
        }
        if let Some(failure) = failure
            && failure.code.side() == Side::Upstream
        {
            self.metrics.errors.observe_upstream_failure(failure.code);
        }
        stream.name_call(self.call.template.body());
        let (name, summary) = (stream.call_name(), stream.summary(clock::now()));
        info!(
            stream.id = %stream.id(),
            session = stream.binding().session_hash(),
            method = name.map(|name| &*name.method),
            tool = name.and_then(|name| name.tool.as_deref()),
            duration_ms = summary.age.as_millis() as u64,
            events = summary.events,
            connections = summary.connections,
            outcome = outcome.label(),
            error = failure.map(|failure| failure.code.label()),
            attached,
            "call ended"
        );
    }

    // ── effects ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async fn do_effects(&mut self) {
        while let Some(effect) = self.writer.poll_effect() {
            match effect {
                Effect::Close => self.source = Source::Idle,
                Effect::Reopen(last_id) => self.send(Arc::new(self.call.template.to_get(last_id.as_deref())), true),
                Effect::AnnounceCancel(ids) if self.writer.stream().is_sent() => {
                    ids.iter().for_each(|id| self.post_aside(synthetic::cancelled(id)));
                }
                Effect::AnnounceCancel(_) => {}
                Effect::RefuseAsk(id) => self.refuse_ask(id),
                Effect::TellGap => self.tell_gap().await,
            }
        }
    }

    async fn tell_gap(&mut self) {
        let stream = self.writer.stream();
        self.metrics.event_log.observe_gap();
        info!(stream.id = %stream.id(), "the upstream cannot go on after its own event ID: events are lost");
        let binding = stream.binding();
        let session = binding.session.as_ref().and_then(|id| self.log.sessions().find(id, &binding.principal));
        if session.is_some_and(|session| session.logs()) {
            self.writer.update(|machine, now| machine.handle_message(b"message", &synthetic::gap_warning(), now)).await;
        }
    }

    fn send(&mut self, template: Arc<Template>, again: bool) {
        let upstream = self.upstream.clone();
        let stream = self.writer.stream().clone();
        let answer = Box::pin(async move { upstream.send(&template, Some(&stream)).await });
        self.source = Source::Sending { answer, again };
    }

    /// Refuses a question.
    fn refuse_ask(&mut self, id: RequestId) {
        let (upstream, stream, call) = (&self.upstream, self.writer.stream(), &self.call.template);
        let new = || Refusals::new(upstream.clone(), stream.clone(), call.clone());
        self.refusals.get_or_insert_with(new).refuse(id);
    }

    /// Posts a message of our own beside the call; what becomes of it changes nothing.
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

    // ── what the upstream sends ───────────────────────────────────────────────────────────────────────────────────────

    async fn take(&mut self, input: Input) {
        match input {
            Input::Head { answer: Ok(response), again: false } => self.take_head(response).await,
            Input::Head { answer: Ok(response), again: true } => Box::pin(self.take_reopened(response)).await,
            Input::Head { answer: Err(failure), again } => self.take_failure(failure, again).await,
            Input::Piece(piece) => self.take_piece(piece).await,
            Input::End(ending) => self.end(ending).await,
            Input::Grown(bytes) => self.take_growth(bytes).await,
            Input::Body(collected) => self.log_answer(collected).await,
        }
    }

    /// More of an answer has come, which is not whole.
    async fn take_growth(&mut self, bytes: usize) {
        self.note_arriving(bytes);
        self.writer.update(|_, _| ()).await;
    }

    /// Counts what has come of an event that is not whole. Most events come whole, so that there is nothing to be told.
    fn note_arriving(&mut self, bytes: usize) {
        if std::mem::replace(&mut self.arriving, bytes) != bytes {
            self.writer.note_arriving(bytes);
        }
    }

    async fn end(&mut self, ending: Ending) {
        self.source = Source::Idle;
        self.note_arriving(0);
        self.writer.update(|machine, now| machine.handle_upstream_end(ending, now)).await;
    }

    async fn take_piece(&mut self, piece: Bytes) {
        let Source::Reading(reader) = &mut self.source else { return };
        let Gathered { mut events, error, ending } = reader.gather(piece).await;
        let held = if error.is_some() || ending.is_some() { 0 } else { reader.held() };
        if self.call.teaches.is_any() {
            events.iter_mut().for_each(|event| event.data = self.be_taught(std::mem::take(&mut event.data)));
            Box::pin(self.save_session()).await;
        }
        let bytes = events.iter().map(|event| event.data.len()).sum();
        self.metrics.observe_events(events.len(), bytes);
        if error.is_some() || ending.is_some() {
            self.source = Source::Idle;
        }
        self.note_arriving(held);
        // The events go with the closure, before the store is waited for: they are encoded by then.
        self.writer
            .update(move |machine, now| {
                machine.reserve(events.len(), bytes);
                for event in &events {
                    machine.handle_event(event, now);
                }
                if error.is_some() {
                    machine.handle_failure(Failure::after_send(ErrorCode::EventTooLarge), now);
                } else if let Some(ending) = ending {
                    machine.handle_upstream_end(ending, now);
                }
            })
            .await;
    }

    async fn take_failure(&mut self, failure: Failure, again: bool) {
        self.source = Source::Idle;
        if again {
            self.end(Ending::Unavailable).await;
            return self.note_failure(failure.code, again);
        }
        let tellable = self.writer.update(|machine, now| machine.handle_failure(failure, now)).await;
        self.note_failure(failure.code, again);
        if tellable {
            // Nothing ran: a retry is a new call.
            if !failure.may_have_run {
                self.writer.stream().forget_retries();
            }
            self.settle(Head::Failed(failure)).await;
        }
    }

    /// Publishes a head that is the whole answer; that of a call with a key once the store has it.
    async fn settle(&mut self, head: Head) {
        if self.is_keyed() {
            Box::pin(self.log.keep_answer(self.writer.stream(), &head)).await;
        }
        self.writer.set_head(head);
    }

    fn is_keyed(&self) -> bool {
        self.writer.stream().body().is_some()
    }

    /// What failed shows once: what ended a stream does when it is sealed.
    fn note_failure(&self, code: ErrorCode, again: bool) {
        let stream = self.writer.stream();
        if stream.look(|machine| machine.failure().is_none()) {
            self.metrics.errors.observe_upstream_failure(code);
            info!(stream.id = %stream.id(), error = code.label(), again, "upstream call failed");
        }
    }

    async fn take_head(&mut self, mut response: Box<Response<Received>>) {
        self.metrics.observe_head(clock::now().saturating_duration_since(self.began));
        self.learn(&response);
        self.open_session(&mut response);
        headers::remove_hop_by_hop(response.headers_mut());
        if response.status().is_success() && headers::is_sse(response.headers()) {
            self.take_stream(response).await;
        } else {
            self.take_answer(response).await;
        }
    }

    /// The upstream goes on with the stream, or will not.
    async fn take_reopened(&mut self, response: Box<Response<Received>>) {
        let status = response.status();
        if status.is_success() && headers::is_sse(response.headers()) && !is_compressed(response.headers()) {
            self.source = Source::Reading(Box::new(EventReader::new(response.into_body(), self.call.max_event_bytes)));
            self.writer.update(|machine, _| machine.handle_stream_head()).await;
            return;
        }
        let is_standalone = self.writer.stream().look(|machine| machine.policy().kind == StreamKind::Standalone);
        let ending = match status {
            // The old stream lingers, or the server is away or busy.
            StatusCode::CONFLICT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
                if is_standalone =>
            {
                Ending::Unavailable
            }
            refused => Ending::Refused(refused.as_u16()),
        };
        self.end(ending).await;
    }

    async fn take_stream(&mut self, response: Box<Response<Received>>) {
        let (mut parts, body) = response.into_parts();
        if is_compressed(&parts.headers) {
            return self.take_failure(Failure::after_send(ErrorCode::UpstreamGarbage), false).await;
        }
        headers::sse_downstream(&mut parts.headers);
        self.source = Source::Reading(Box::new(EventReader::new(body, self.call.max_event_bytes)));
        if self.writer.update(|machine, _| machine.handle_stream_head()).await {
            self.publish();
            self.writer.set_head(Head::Stream(parts.status, Arc::new(parts.headers)));
        }
    }

    /// An answer that is no stream: passed as it is, or made a message where the client has a stream already.
    async fn take_answer(&mut self, response: Box<Response<Received>>) {
        self.source = Source::Idle;
        let json = headers::is_json(response.headers());
        if response.status().is_success() && json && !self.call.accept.json && self.call.accept.sse {
            return Box::pin(self.convert_answer(response)).await;
        }
        if self.writer.update(|machine, _| machine.handle_plain_head()).await {
            self.pass_answer(response).await;
        } else {
            self.collect_answer(response.status(), json, response.into_body());
        }
    }

    /// The client takes SSE only: a JSON answer becomes one event.
    async fn convert_answer(&mut self, response: Box<Response<Received>>) {
        let (mut parts, body) = response.into_parts();
        if is_compressed(&parts.headers) {
            return self.take_failure(Failure::after_send(ErrorCode::UpstreamGarbage), false).await;
        }
        headers::sse_downstream(&mut parts.headers);
        parts.headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        if self.writer.update(|machine, _| machine.handle_stream_head()).await {
            self.publish();
            self.writer.set_head(Head::Stream(parts.status, Arc::new(parts.headers)));
        }
        self.collect_answer(parts.status, true, body);
    }

    /// The body is read like any other input, so that timers and cancels go on.
    fn collect_answer(&mut self, status: StatusCode, json: bool, body: Received) {
        let limit = self.call.max_event_bytes;
        self.source = Source::collecting(status, json.then_some(body), limit);
    }

    /// After a commit a JSON-RPC body of any status is the message for its request; anything else is the proxy's error.
    async fn log_answer(&mut self, Collected { status, body }: Collected) {
        self.source = Source::Idle;
        let refused = refused_by(status);
        let body = body.and_then(|body| self.as_answer(body).ok_or(refused)).map(|body| self.be_taught(body));
        Box::pin(self.save_session()).await;
        self.note_arriving(0);
        self.writer
            .update(|machine, now| match body {
                Ok(body) => {
                    machine.handle_message(b"message", &body, now);
                    machine.handle_upstream_end(Ending::Clean, now);
                }
                Err(code) => {
                    let failure = Failure { http_status: Some(status.as_u16()), ..Failure::after_send(code) };
                    machine.handle_failure(failure, now);
                }
            })
            .await;
    }

    /// A JSON body as the message that answers what this stream owes. An error that names no request, as a server gives for a
    /// session it does not know, is the answer to the only one there is.
    fn as_answer(&self, body: Bytes) -> Option<Bytes> {
        let messages = jsonrpc::peek(&body).ok()?;
        self.writer.stream().look(|machine| {
            // A cancelled request may still be answered.
            let answers = |message: &Message| match message {
                Message::Response { id: Some(id), .. } => machine.debts().is_unanswered(id),
                Message::Response { id: None, .. } | Message::Request { .. } | Message::Notification { .. } => false,
            };
            if messages.messages().iter().any(answers) {
                return Some(body.clone());
            }
            let mut unanswered = machine.debts().unanswered();
            match (messages.messages(), unanswered.next(), unanswered.next()) {
                ([Message::Response { id: None, is_error: true }], Some(only), None) => {
                    jsonrpc::address_error(&body, only).map(Into::into)
                }
                _ => None,
            }
        })
    }

    async fn pass_answer(&mut self, response: Box<Response<Received>>) {
        let (mut parts, mut body) = response.into_parts();
        if says_nothing_ran(parts.status) {
            // A retry of a call that was refused as a whole is a new call.
            self.writer.stream().forget_retries();
        }
        self.upstream.rewrite_location(&mut parts.headers);
        headers::expose_ours(&mut parts.headers);
        let mut kept = BytesMut::new();
        // What opens a session is read whole: the record must be there before the client uses it. So is a list that is edited.
        let (limit, wait) = match self.call.teaches.is_any() {
            true => (self.call.max_event_bytes, LESSON_WAIT),
            false if self.is_keyed() => (KEPT_ANSWER_MAX, LESSON_WAIT),
            false => (KEPT_ANSWER_MAX, KEPT_ANSWER_WAIT),
        };
        let complete = tokio::time::timeout(wait, keep(&mut body, &mut kept, limit, &self.writer)).await;
        let plain = match complete {
            Ok(Ok(true)) => {
                let kept = kept.freeze();
                let body = match self.call.teaches.is_any() && !is_compressed(&parts.headers) {
                    true => Box::pin(self.be_taught_by(&mut parts.headers, kept)).await,
                    false => kept,
                };
                Plain::kept(parts.status, parts.headers, body)
            }
            Ok(Ok(false)) | Err(_) => {
                // A key still finds the call, and an error in the place of the answer: the tool does not run again.
                if !self.is_keyed() {
                    self.writer.stream().forget_retries();
                }
                let timeout = self.writer.stream().look(|machine| machine.policy().call_timeout);
                let body = passing_body(self.writer.counted(kept), body, timeout.map(|timeout| self.began + timeout));
                Plain::passing(parts.status, parts.headers, body)
            }
            Ok(Err(_)) => {
                let failure = Failure::after_send(ErrorCode::UpstreamBroke);
                self.note_failure(failure.code, false);
                self.writer.note_arriving(0);
                return self.settle(Head::Failed(failure)).await;
            }
        };
        self.settle(Head::Plain(Arc::new(plain))).await;
    }

    // ── what an answer teaches ────────────────────────────────────────────────────────────────────────────────────────

    fn learn(&mut self, response: &Response<Received>) {
        let learned = self.upstream.learned();
        learned.note_status(self.call.credentials, response.status(), clock::now());
        if let Some(subject) = self.call.subject.filter(|_| response.status().is_success()) {
            learned.tokens().note_accepted(subject, self.call.credentials.principal, clock::now());
        }
        if let Some(origin) = self.call.template.origin() {
            learned.note_cors(origin, response.headers(), clock::now());
        }
    }

    /// The session that the answer to `initialize` names. Where the upstream names none, a client that declared a dialect gets one of
    /// the proxy's own: what it declared must be known of its calls.
    fn open_session(&mut self, response: &mut Response<Received>) {
        let Some(initialize) = &self.call.teaches.initialize else { return };
        self.opened_session = SessionId::from_headers(response.headers());
        if self.opened_session.is_some() || !initialize.declared.is_any() || !response.status().is_success() {
            return;
        }
        let issued = self.log.issue_session(initialize);
        let named = issued.as_ref().and_then(|id| HeaderValue::from_str(id.as_str()).ok());
        if let Some(name) = named {
            response.headers_mut().insert(headers::names::MCP_SESSION_ID, name);
            self.opened_session = issued;
        }
    }

    /// A message of an answer that something is to be learned of, as the client gets it.
    fn be_taught(&mut self, message: Bytes) -> Bytes {
        if self.call.teaches.initialize.is_some() {
            self.note_initialized(&message);
        }
        let Some(tokens) = &self.call.teaches.tools else { return message };
        let Listed { tools, edited } = Listed::of(&message, |name| tokens.tools.contains(name));
        self.upstream.learned().note_tools(tools);
        edited.map_or(message, Bytes::from)
    }

    /// An answer with this head that something is to be learned of, as the client gets it: once the store has what it says.
    async fn be_taught_by(&mut self, headers: &mut HeaderMap, answer: Bytes) -> Bytes {
        let taught = self.be_taught(answer.clone());
        self.save_session().await;
        if taught != answer {
            headers.remove(ETAG);
            headers.insert(CONTENT_LENGTH, taught.len().into());
        }
        taught
    }

    /// The result of `initialize` makes a record, before the client can use the session.
    fn note_initialized(&mut self, message: &[u8]) {
        if let Some(session) = &self.opened_session
            && let Some(initialized) = jsonrpc::initialize_result(message)
            && let Some(version) = headers::ProtocolVersion::parse(&initialized.protocol_version)
        {
            let declared =
                self.call.teaches.initialize.as_ref().map(|initialize| initialize.declared).unwrap_or_default();
            let opened = Opened { version, logging: initialized.logging, declared };
            self.unsaved = self.log.has_store().then(|| opened.clone());
            self.log.sessions().record(session.clone(), self.call.credentials.principal, opened);
        }
    }

    /// Before the client can use the session on any replica.
    async fn save_session(&mut self) {
        if let (Some(opened), Some(session)) = (self.unsaved.take(), &self.opened_session) {
            self.log.save_session(session, &self.call.credentials.principal, &opened).await;
        }
    }
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether an answer of this status says that no tool ran. A server error may come after one did, or instead of its result.
fn says_nothing_ran(status: StatusCode) -> bool {
    let is_failure = status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE;
    !status.is_success() && !is_failure
}

/// What an answer of this status is that holds no response.
pub(super) fn refused_by(status: StatusCode) -> ErrorCode {
    if status.is_success() { ErrorCode::UpstreamGarbage } else { ErrorCode::UpstreamStatus }
}
