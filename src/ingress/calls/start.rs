//! Start of a call: a POST begins a stream, or returns to the stream of an earlier call.

use std::sync::Arc;
use std::time::Duration;

use super::commit::CommitRules;
use super::drain_admission::Admission;
use super::partial_results::PartialResultsPolicy;
use super::remote_retry::PendingClaim;
use super::request::{Beginning, CallRequest, Retry};
use super::task_rules::{RequestedTask, TaskRules};
use crate::channel::Caller;
use crate::config::{AnswerPings, Config, Mode};
use crate::delivery::Start;
use crate::event_log::{
    self, Attachment, Binding, ClaimGuard, EventLog, Match, QuotaKey, Reservation, RetryMatch, Slicing, Spec, Stream,
};
use crate::ingress::components::Components;
use crate::ingress::context::{RequestContext, detached};
use crate::ingress::metrics::Metrics;
use crate::ingress::request_log::log_return;
use crate::ingress::stream_finder::StreamFinder;
use crate::ingress::stream_start::{CallTerms, StreamStarter};
use crate::ingress::trace::trace_return;
use crate::otel::CallSpan;
use crate::protocol::dialect::Declared;
use crate::protocol::dialect::resume_tokens::Form;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::Era;
use crate::protocol::ids::{Seq, StreamKind};
use crate::protocol::stream::{Policy, Resume};
use crate::protocol::tasks::TaskView;
use crate::upstream::{Bridge, InlineTask, ProgressRule, Upstream};

/// Attachment of a request to the stream of the call that it began or retried.
pub(super) struct StartedCall {
    pub(super) attachment: Attachment,
    pub(super) beginning: Beginning,
    /// Upstream call, if this request began it.
    pub(super) pump: InlineTask,
}

/// Begins calls, and attaches retries to them.
pub(super) struct CallStarter {
    config: Arc<Config>,
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    metrics: Arc<Metrics>,
    admission: Admission,
    partial: Arc<PartialResultsPolicy>,
    task_rules: Arc<TaskRules>,
    finder: Arc<StreamFinder>,
    starter: Arc<StreamStarter>,
}

impl CallStarter {
    pub(super) fn new(
        components: &Components,
        admission: Admission,
        partial: Arc<PartialResultsPolicy>,
        task_rules: Arc<TaskRules>,
        finder: Arc<StreamFinder>,
        starter: Arc<StreamStarter>,
    ) -> Self {
        let Components { config, log, upstream, metrics, .. } = components;
        Self {
            config: config.clone(),
            log: log.clone(),
            upstream: upstream.clone(),
            metrics: metrics.clone(),
            admission,
            partial,
            task_rules,
            finder,
            starter,
        }
    }

    /// Attaches to the call's stream, before the pump of a new one begins: a stream without a
    /// reader may be removed. `earlier_call` is a call that the POST may retry, with its relation
    /// to the POST. A retry reserves no further memory. A new stream takes over the bytes of the
    /// request, `held` so far.
    pub(super) fn begin(
        &self,
        request: &CallRequest,
        held: Reservation,
        earlier_call: Option<(Arc<Stream>, RetryMatch)>,
        claim: Option<PendingClaim>,
    ) -> Result<StartedCall, ErrorCode> {
        let Retry { fingerprint, body, id_use, .. } = request.retry;
        match earlier_call {
            Some((stream, RetryMatch::Retry)) => return Ok(self.return_to(&request.context, &stream)),
            Some((_, RetryMatch::OtherBody)) => return Err(ErrorCode::KeyReused),
            Some((_, RetryMatch::NewCall)) | None => {}
        }
        if !self.admission.can_admit(request) {
            return self.rejoin(request);
        }
        let request_bytes = request.context.head_bytes + request.body.len();
        let mut reservation = self.log.admit_held(held, request_bytes);
        if request.task.is_some() && reservation.as_mut().is_ok_and(|reservation| !reservation.reserve_task()) {
            return self.rejoin(request).map_err(|_| ErrorCode::TooManyStreams);
        }
        let (claim, _lock) = claim.map(|PendingClaim { guard, lock }| (Arc::<ClaimGuard>::from(guard), lock)).unzip();
        let create = || {
            let (spec, reservation) = (self.spec(request), reservation?);
            Ok(match &claim {
                Some(guard) => self.log.create_as(guard.stream(), spec, reservation),
                None => self.log.create(spec, reservation),
            })
        };
        let Some(fingerprint) = fingerprint else {
            return Ok(self.start(request, &create()?));
        };
        let mut retry_match = RetryMatch::NewCall;
        let matches = |stream: &Arc<Stream>| {
            retry_match = stream.retries().compare(body, id_use);
            retry_match != RetryMatch::NewCall
        };
        match self.log.find_or_register(fingerprint, id_use, matches, create)? {
            Match::New(stream, registration) => {
                stream.retries().register(registration.with_claim(claim));
                Ok(self.start(request, &stream))
            }
            Match::Found(stream) if retry_match == RetryMatch::Retry => Ok(self.return_to(&request.context, &stream)),
            Match::Found(_) => Err(ErrorCode::KeyReused),
        }
    }

    /// During a drain, attaches a POST to an earlier call.
    fn rejoin(&self, request: &CallRequest) -> Result<StartedCall, ErrorCode> {
        let Retry { fingerprint, body, id_use, .. } = request.retry;
        let known = fingerprint.map_or_else(Vec::new, |fingerprint| self.log.find_calls(&fingerprint));
        let matching = |stream: &Arc<Stream>| match stream.retries().compare(body, id_use) {
            RetryMatch::NewCall => None,
            retry_match => Some((stream.clone(), retry_match)),
        };
        match known.iter().find_map(matching) {
            Some((stream, RetryMatch::Retry)) => Ok(self.return_to(&request.context, &stream)),
            Some((_, RetryMatch::OtherBody)) => Err(ErrorCode::KeyReused),
            Some((_, RetryMatch::NewCall)) | None => Err(ErrorCode::Draining),
        }
    }

    fn spec(&self, request: &CallRequest) -> Spec {
        let CallRequest { context, call, accept, retry, task, .. } = request;
        let settings = self.admission.settings(request);
        let streams = &self.config.streams;
        let commit_after = match self.config.delivery.commit_after {
            Some(time) if CommitRules::may_commit(request) => Some(time),
            Some(_) | None => None,
        };
        let policy = Policy {
            kind: StreamKind::Request,
            era: call.era(),
            max_wait: settings.max_wait,
            modern_grace: streams.modern_grace,
            has_idempotency_key: retry.body.is_some(),
            retention: settings.retention,
            call_timeout: settings.call_timeout,
            cancel_grace: streams.cancel_grace,
            full_wait: self.upstream.full_wait(streams.full_wait),
            linger: streams.linger,
            input_grace: self.config.dialects.input_grace,
            commit_after,
            retry: self.config.delivery.retry,
            // Events that no client reads as a stream are never written, and must not fill it up.
            can_pause: !call.has_listen() && accept.sse,
            should_resume_hard_cuts: self.upstream.server().resumes_hard_cuts(),
            should_refuse_requests: !accept.sse,
            should_answer_pings: call.era() == Era::Legacy && self.config.upstream.answer_pings == AnswerPings::Absent,
            should_announce_cancel: call.era() == Era::Legacy && !call.has_initialize(),
            is_task: false,
            legacy_task: None,
        };
        let policy = match task {
            Some(task) => policy_of_task(policy, task),
            None => policy,
        };
        let slicing = match task {
            Some(task) => Some(slicing_of_task(task)),
            None => request.partial.as_ref().and_then(|partial| self.partial.slicing(call, partial, &request.body)),
        };
        Spec {
            policy,
            binding: binding_of(context),
            ids: call.ids.clone(),
            is_batch: call.is_batch,
            should_poll: settings.mode == Mode::Poll && task.is_none(),
            body_fingerprint: retry.body,
            slicing,
            span: self.begin_span(context),
        }
    }

    /// Begins the span of a call. Returns `None` if the call is not traced.
    fn begin_span(&self, context: &RequestContext) -> Option<Arc<CallSpan>> {
        let (traces, arrival) = (self.log.traces()?, context.arrival.as_deref()?);
        traces.begin_call(arrival.trace, arrival.at)
    }

    fn start(&self, request: &CallRequest, stream: &Arc<Stream>) -> StartedCall {
        let attachment =
            stream.attach_before_pump(event_log::new_attach(), Seq(0)).with_slice(stream.begin_first_slice());
        let RequestContext { parts, session, connection, caller, .. } = &*request.context;
        if let Some(session) = session {
            session.add_stream(stream);
            let is_announced = request.call.era() == Era::Legacy && request.accept.sse && !request.call.is_opening();
            if is_announced && request.task.is_none() {
                self.starter.announce(Some(session), stream, Declared::ALL);
            }
        }
        let template = self.upstream.call(parts, connection.forwarded(), detached(request.body.clone()));
        let caller = match caller {
            // The proxy may have to keep the session in the server's place.
            None if request.call.has_initialize() && self.upstream.bridge().is_some_and(Bridge::has_legacy_clients) => {
                let Binding { principal, subject, .. } = request.context.binding;
                let counted_as = QuotaKey::of(&principal, false, None, connection.client(&parts.headers));
                Some(Arc::new(Caller::new(principal, counted_as).claiming(subject)))
            }
            caller => caller.clone(),
        };
        let template = template.for_caller(caller);
        let tasks = self.task_rules.terms(&request.call, &request.body);
        if let Some(tasks) = &tasks {
            let at = stream.created() + tasks.after;
            stream.change(|machine, _| machine.lifecycle_mut().handle_promotion_at(at));
        }
        let task_id = request.task.as_ref().map(|_| TaskView::id_of(stream.handle()).into());
        let terms = CallTerms {
            tasks,
            method: Some(request.call.method.clone()),
            accept: request.accept,
            observer: request.observer.clone().with_task_id(task_id),
            progress: self.progress_rule(request),
        };
        let pump = self.starter.pump(&request.context, template, terms, stream);
        let beginning = Beginning { start: Start::First, has_gap: false };
        StartedCall { attachment, beginning, pump }
    }

    /// Returns the rule for the progress of the proxy's own, or `None` if the client of the call
    /// gets none.
    fn progress_rule(&self, CallRequest { context, call, accept, task, .. }: &CallRequest) -> Option<ProgressRule> {
        let config = self.config.delivery.progress.as_ref()?;
        let is_excepted = context.session.as_ref().is_some_and(|session| session.has_no_beats());
        // Progress of a task would have to name it.
        if !accept.sse || is_excepted || task.is_some() {
            return None;
        }
        // A legacy client has named itself at the beginning of its session.
        let except = match call.era() {
            Era::Legacy => None,
            Era::Modern => Some(config.except.clone()),
        };
        Some(ProgressRule { except })
    }

    /// Lets a retry take over. It continues after its `Last-Event-ID` if that names this stream,
    /// else from the first retained event.
    pub(super) fn return_to(&self, context: &RequestContext, stream: &Arc<Stream>) -> StartedCall {
        self.metrics.observe_retry();
        let cursor = self.finder.cursor_in(context, stream);
        stream.resume(Resume::ByPost, cursor);
        let first_kept = stream.with_machine(|machine| machine.numbering().trimmed());
        let wanted = cursor.unwrap_or(Seq(0));
        let has_gap = wanted < first_kept;
        if has_gap {
            self.metrics.event_log.observe_gap();
        }
        let cursor = wanted.max(first_kept);
        log_return(stream, "retry", cursor);
        let request = trace_return(context, stream, "retry", cursor);
        let attachment = stream.attach(event_log::new_attach(), cursor).with_slice(stream.begin_first_slice());
        let attachment = attachment.answering(request);
        let beginning = Beginning { start: Start::After(cursor), has_gap };
        StartedCall { attachment, beginning, pump: InlineTask::default() }
    }
}

/// Returns the policy of a call that is a task.
fn policy_of_task(policy: Policy, task: &RequestedTask) -> Policy {
    Policy {
        max_wait: Some(task.max_wait),
        retention: task.retention,
        linger: Duration::ZERO,
        commit_after: None,
        is_task: true,
        legacy_task: Some(task.terms),
        ..policy
    }
}

/// Returns the description of the stream for requests `tasks/result`: each reads it under its own
/// ID. There is no interim result.
fn slicing_of_task(task: &RequestedTask) -> Slicing {
    Slicing { sameness: task.digest, form: Form::Task, length: task.retention, first: task.names.clone() }
}

/// Returns the owner of the streams of a request. They share the id of its session with the
/// session's record.
fn binding_of(context: &RequestContext) -> Binding {
    let mut binding = context.binding.clone();
    if let (Some(id), Some(session)) = (&mut binding.session, &context.session)
        && id == session.id()
    {
        id.clone_from(session.id());
    }
    binding
}
