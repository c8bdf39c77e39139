//! Start of a call: a POST begins a stream, or returns to the stream of an earlier call.

use std::sync::Arc;
use std::time::Duration;

use super::adoption;
use super::commit;
use super::direct;
use super::drain_admission;
use super::partial_results;
use super::remote_retry::PendingClaim;
use super::repetition::{self, RepeatedCall};
use super::request::{Beginning, CallRequest, Retry, StartedCall};
use super::task_rules::{self, RequestedTask};
use crate::channel::Caller;
use crate::config::{self, AnswerPings, Mode, Tasks};
use crate::delivery::Start;
use crate::event_log::{
    self, Binding, ClaimGuard, GetCalls, Match, QuotaKey, Repeatable, Reservation, RetryMatch, Slice, Slicing, Spec,
    Stream, StreamReservation,
};
use crate::ingress::components::Components;
use crate::ingress::context::{RequestContext, detached};
use crate::ingress::named_rules;
use crate::ingress::reliance;
use crate::ingress::request_log::log_return;
use crate::ingress::session_state;
use crate::ingress::stream_finder;
use crate::ingress::stream_start::{self, CallTerms};
use crate::ingress::trace::trace_return;
use crate::otel::CallSpan;
use crate::protocol::call_name::NameSource;
use crate::protocol::dialect::Declared;
use crate::protocol::dialect::resume_tokens::Form;
use crate::protocol::error::{ErrorCode, Subject};
use crate::protocol::headers::Era;
use crate::protocol::ids::{Seq, StreamKind};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Policy, Resume};
use crate::protocol::tasks::TaskView;
use crate::upstream::{Bridge, InlineTask, ProgressRule, ResponseObserver, Template};

/// Outcome of the start of a call.
pub(super) enum Begun {
    /// The request reads the stream of its call.
    Stream(StartedCall),
    /// The call has no stream yet.
    Direct(Box<direct::BegunCall>),
}

/// Attaches to the call's stream, before the pump of a new one begins: a stream without a
/// reader may be removed. `earlier_call` is a call that the POST may retry, with its relation
/// to the POST. A retry reserves no further memory. A new stream takes over the bytes of the
/// request, `held` so far. A call that needs no stream yet begins without one.
pub(super) fn begin(
    components: &Components,
    request: &CallRequest,
    held: Reservation,
    earlier_call: Option<(Arc<Stream>, RetryMatch)>,
    claim: Option<PendingClaim>,
) -> Result<Begun, ErrorCode> {
    let Retry { fingerprint, body, id_use, .. } = request.retry;
    match earlier_call {
        Some((stream, RetryMatch::Retry)) => {
            return Ok(Begun::Stream(return_to(components, &request.context, &stream)));
        }
        Some((_, RetryMatch::OtherBody)) => return Err(ErrorCode::KeyReused),
        Some((_, RetryMatch::NewCall)) | None => {}
    }
    if let Some(returned) = return_after_break(components, request) {
        return Ok(Begun::Stream(returned));
    }
    if !drain_admission::can_admit(components, request) {
        return rejoin(components, request).map(Begun::Stream);
    }
    let request_bytes = request.context.head_bytes + request.body.len();
    let mut reservation = components.log.admit(held, request_bytes);
    if request.task.is_some() && reservation.as_mut().is_ok_and(|reservation| !reservation.reserve_task()) {
        return rejoin(components, request).map(Begun::Stream).map_err(|_| ErrorCode::TooManyStreams);
    }
    let (claim, _lock) = claim.map(|PendingClaim { guard, lock }| (Arc::<ClaimGuard>::from(guard), lock)).unzip();
    let create = |reservation| {
        let spec = spec(components, request, request.call.ids.clone());
        match &claim {
            Some(guard) => components.log.create_as(guard.stream(), spec, reservation),
            None => components.log.create(spec, reservation),
        }
    };
    let Some(fingerprint) = fingerprint else {
        return Ok(match begin_directly(components, request, reservation?) {
            Ok(begun) => Begun::Direct(begun),
            Err(reservation) => Begun::Stream(start(components, request, &create(reservation))),
        });
    };
    let create = || Ok(create(reservation?));
    let mut retry_match = RetryMatch::NewCall;
    let matches = |stream: &Arc<Stream>| {
        retry_match = stream.retries().compare(body, id_use);
        retry_match != RetryMatch::NewCall
    };
    match components.log.find_or_register(fingerprint, id_use, matches, create)? {
        Match::New(stream, registration) => {
            stream.retries().register(registration.with_claim(claim));
            Ok(Begun::Stream(start(components, request, &stream)))
        }
        Match::Found(stream) if retry_match == RetryMatch::Retry => {
            Ok(Begun::Stream(return_to(components, &request.context, &stream)))
        }
        Match::Found(_) => Err(ErrorCode::KeyReused),
    }
}

/// Begins a call without a stream.
///
/// # Errors
/// The reservation of the call if it needs a stream now.
fn begin_directly(
    components: &Components,
    request: &CallRequest,
    reservation: StreamReservation,
) -> Result<Box<direct::BegunCall>, StreamReservation> {
    if !direct::may_begin(components, request) {
        return Err(reservation);
    }
    let (spec, observer) = (spec(components, request, Vec::new()), observer_of(components, request));
    if observer.is_active() || spec.slicing.is_some() || !direct::may_wait(&spec.policy) {
        return Err(reservation);
    }
    let (template, terms, repeatable) = terms_of(components, request, observer, None);
    if repeatable.is_some() && request.context.connection.receipts().is_multiplexed() {
        // On HTTP/2 the end of a connection shows nothing of one response.
        return Err(reservation);
    }
    let call = stream_start::call(components, &request.context, template, terms);
    Ok(direct::begin(components, &request.context, call, spec, reservation, repeatable))
}

/// During a drain, attaches a POST to an earlier call.
fn rejoin(components: &Components, request: &CallRequest) -> Result<StartedCall, ErrorCode> {
    let Retry { fingerprint, body, id_use, .. } = request.retry;
    let known = fingerprint.map_or_else(Vec::new, |fingerprint| components.log.find_calls(&fingerprint));
    let matching = |stream: &Arc<Stream>| match stream.retries().compare(body, id_use) {
        RetryMatch::NewCall => None,
        retry_match => Some((stream.clone(), retry_match)),
    };
    match known.iter().find_map(matching) {
        Some((stream, RetryMatch::Retry)) => Ok(return_to(components, &request.context, &stream)),
        Some((_, RetryMatch::OtherBody)) => Err(ErrorCode::KeyReused),
        Some((_, RetryMatch::NewCall)) | None => Err(ErrorCode::Draining),
    }
}

/// Returns the specification of the stream of a call with these IDs.
fn spec(components: &Components, request: &CallRequest, ids: Vec<RequestId>) -> Spec {
    let CallRequest { context, call, retry, task, .. } = request;
    let settings = drain_admission::settings(components, request);
    let should_poll = settings.mode == Mode::Poll && task.is_none();
    let policy = policy(components, request, &settings);
    let policy = match task {
        Some(task) => policy_of_task(policy, task),
        None => policy,
    };
    let slicing = match task {
        Some(task) => Some(slicing_of_task(task)),
        None => request
            .partial
            .as_ref()
            .and_then(|partial| partial_results::slicing(components, call, partial, &request.body))
            .or_else(|| adoption::slicing(components, request)),
    };
    Spec {
        policy,
        binding: binding_of(context),
        ids,
        is_batch: call.is_batch,
        should_poll,
        body_fingerprint: retry.body,
        slicing,
        span: begin_span(components, context),
        get_calls: get_calls(request),
    }
}

/// Returns the policy of the call's stream, unless the call is a task.
fn policy(components: &Components, request: &CallRequest, settings: &config::Call) -> Policy {
    let CallRequest { call, accept, retry, .. } = request;
    let streams = &components.config.streams;
    let commit_after = match components.config.delivery.commit_after {
        Some(time) if commit::may_commit(request) => Some(time),
        Some(_) | None => None,
    };
    Policy {
        kind: StreamKind::Request,
        era: call.era(),
        max_wait: settings.max_wait,
        modern_grace: reliance::hold(&request.context, retry.body, settings.max_wait).or(streams.modern_grace),
        unprimed_grace: repetition::grace_of(components, request),
        has_idempotency_key: retry.body.is_some(),
        retention: settings.retention,
        call_timeout: settings.call_timeout,
        cancel_grace: streams.cancel_grace,
        full_wait: components.upstream.full_wait(streams.full_wait),
        linger: streams.linger,
        input_grace: components.config.dialects.input_grace,
        commit_after,
        retry: components.config.delivery.retry,
        // Events that no client reads as a stream are never written, and must not fill it up.
        can_pause: !call.has_listen() && accept.sse,
        should_resume_hard_cuts: components.upstream.server().resumes_hard_cuts(),
        resumes_for: components.upstream.server().resumes_for(),
        should_refuse_requests: !accept.sse,
        should_answer_pings: call.era() == Era::Legacy
            && components.config.upstream.answer_pings == AnswerPings::Absent,
        should_announce_cancel: call.era() == Era::Legacy && !call.has_initialize(),
        is_tool_call: call.subject == Subject::ToolCall,
        is_task: false,
        counts_breaks: counts_breaks(components, request),
        legacy_task: None,
    }
}

/// Returns true if the client counts broken connections, by its name: that of its session, or that
/// of a request without one.
fn counts_breaks(components: &Components, CallRequest { context, call, body, .. }: &CallRequest) -> bool {
    if context.repairs_connections() {
        return false;
    }
    match call.era() {
        Era::Legacy => context.session.as_ref().is_some_and(|session| session.rules().counts_breaks),
        Era::Modern => named_rules::counts_breaks(components, body),
    }
}

/// Returns the calls of the session whose responses may go by GET, if that of this request may: its
/// client reads event streams, and does not resume them. A client of 2026-07-28 has no GET stream.
fn get_calls(CallRequest { context, call, accept, task, .. }: &CallRequest) -> Option<Arc<GetCalls>> {
    let calls = context.session.as_ref()?.get_calls()?;
    let may_go = call.era() == Era::Legacy && !call.is_opening() && accept.sse && task.is_none();
    let may_go = may_go && !context.repairs_connections();
    may_go.then(|| calls.clone())
}

/// Begins the span of a call. Returns `None` if the call is not traced.
fn begin_span(components: &Components, context: &RequestContext) -> Option<Arc<CallSpan>> {
    let (traces, arrival) = (components.log.traces()?, context.arrival.as_deref()?);
    traces.begin_call(arrival.trace, arrival.at)
}

fn start(components: &Components, request: &CallRequest, stream: &Arc<Stream>) -> StartedCall {
    let attachment = stream.attach_before_pump(event_log::new_attach(), Seq(0)).with_slice(stream.begin_first_slice());
    if let Some(session) = &request.context.session {
        session.add_stream(stream);
        let is_announced = request.call.era() == Era::Legacy && request.accept.sse && !request.call.is_opening();
        if is_announced && request.task.is_none() {
            stream_start::announce(components, Some(session), stream, Declared::ALL);
        }
    }
    let tasks = task_rules::terms(components, &request.call, &request.body, request.tool.as_deref());
    if let Some(tasks) = &tasks {
        let at = stream.created() + tasks.after;
        stream.change(|machine, _| machine.lifecycle_mut().handle_promotion_at(at));
    }
    let task_id = request.task.as_ref().map(|_| TaskView::id_of(stream.handle()).into());
    let observer = observer_of(components, request).with_task_id(task_id);
    let (template, terms, repeatable) = terms_of(components, request, observer, tasks);
    let pump = stream_start::pump(components, &request.context, template, terms, stream);
    let beginning = Beginning { start: Start::First, has_gap: false };
    StartedCall { attachment, beginning, pump, repeatable }
}

/// Returns the request to the server, the terms of its call, and the request as one that may come
/// again.
fn terms_of(
    components: &Components,
    request: &CallRequest,
    observer: ResponseObserver,
    tasks: Option<Arc<Tasks>>,
) -> (Arc<Template>, CallTerms, Option<Repeatable>) {
    let RequestContext { parts, connection, caller, .. } = &*request.context;
    let template = components.upstream.call(parts, connection.forwarded(), detached(request.body.clone()));
    let caller = match caller {
        // The proxy may have to keep the session in the server's place.
        None if request.call.has_initialize()
            && components.upstream.bridge().is_some_and(Bridge::has_legacy_clients) =>
        {
            let Binding { principal, subject, .. } = request.context.binding;
            let counted_as = QuotaKey::of(&principal, false, None, connection.client(&parts.headers));
            Some(Arc::new(Caller::new(principal, counted_as).claiming(subject)))
        }
        caller => caller.clone(),
    };
    let template = Arc::new(template.for_caller(caller));
    let repeatable = repetition::repeatable(components, request, &template);
    let terms = CallTerms {
        tasks,
        name: Some(NameSource { method: request.call.method.clone(), tool: request.call.name.clone() }),
        accept: request.accept,
        observer,
        progress: progress_rule(components, request),
    };
    (template, terms, repeatable)
}

/// Returns the observer of the response.
fn observer_of(
    components: &Components,
    CallRequest { context, call, body, initialize, .. }: &CallRequest,
) -> ResponseObserver {
    ResponseObserver::new(initialize.clone(), partial_results::edited_list(components, call))
        .with_ids(&call.ids)
        .with_params(session_state::params_of(components, call, body))
        .with_task_owner(task_rules::owner_of_ids(components, call, body))
        .with_discovery(task_rules::observes_discovery(components, call))
        .with_legacy_tasks(task_rules::listed(components, context.session.as_deref(), call))
        .with_list_page(session_state::list_page_of(components, context, call, body))
}

/// Returns the rule for the progress of the proxy's own, or `None` if the client of the call
/// gets none.
fn progress_rule(
    components: &Components,
    CallRequest { context, call, accept, task, .. }: &CallRequest,
) -> Option<ProgressRule> {
    let config = components.config.delivery.progress.as_ref()?;
    let is_excepted = context.session.as_ref().is_some_and(|session| session.rules().has_no_beats);
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

/// Returns to a call outside sessions whose connection broke, if the request repeats it.
fn return_after_break(components: &Components, request: &CallRequest) -> Option<StartedCall> {
    let RepeatedCall { stream, slice, repeatable } = repetition::earlier_call(components, request)?;
    let returned = return_as(components, &request.context, &stream, slice);
    Some(StartedCall { repeatable: Some(repeatable), ..returned })
}

/// Lets a retry take over. It continues after its `Last-Event-ID` if that names this stream,
/// else from the first retained event.
pub(super) fn return_to(components: &Components, context: &RequestContext, stream: &Arc<Stream>) -> StartedCall {
    return_as(components, context, stream, stream.begin_first_slice())
}

/// Lets a request take over as the reader of `slice`.
fn return_as(
    components: &Components,
    context: &RequestContext,
    stream: &Arc<Stream>,
    slice: Option<Arc<Slice>>,
) -> StartedCall {
    components.metrics.observe_retry();
    let cursor = stream_finder::cursor_in(components, context, stream);
    stream.resume(Resume::ByPost, cursor);
    let first_kept = stream.with_machine(|machine| machine.numbering().trimmed());
    let wanted = cursor.unwrap_or(Seq(0));
    let has_gap = wanted < first_kept;
    if has_gap {
        components.metrics.event_log.observe_gap();
    }
    let cursor = wanted.max(first_kept);
    log_return(stream, "retry", cursor);
    let request = trace_return(context, stream, "retry", cursor);
    let attachment = stream.attach(event_log::new_attach(), cursor).with_slice(slice);
    let attachment = attachment.answering(request);
    let beginning = Beginning { start: Start::After(cursor), has_gap };
    StartedCall { attachment, beginning, pump: InlineTask::default(), repeatable: None }
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
