//! POSTs with requests: each begins a request stream, or takes over the stream of an earlier call
//! as its retry.

mod adoption;
mod commit;
mod continuation;
mod direct;
mod drain_admission;
mod ended_call;
mod large_results;
mod partial_results;
mod remote_retry;
mod repetition;
mod reply;
mod request;
mod start;
mod task_handle;
mod task_rules;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};

use self::remote_retry::EarlierCall;
use self::request::{Beginning, CallRequest, Reply, Retry, StartedCall, retry_of};
use self::start::Begun;
use self::task_rules::{Undeclared, Unsupported};
use super::components::Components;
use super::context::RequestContext;
use super::forward_to_replicas;
use super::named_rules;
use super::priming;
use super::refusals;
use super::reliance;
use super::session_state;
use super::stream_start;
use super::token_refresh::{self, Unproven};
use super::trace::trace_return;
use crate::body::BoxBody;
use crate::delivery::Start;
use crate::event_log::{self, Attachment, Binding, Retries, RetryMatch, Stream};
use crate::protocol::classify;
use crate::protocol::dialect::Declared;
use crate::protocol::dialect::resume_tokens::{self, Names, TokenField};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Era, ProtocolVersion};
use crate::protocol::ids::IssuedSession;
use crate::protocol::jsonrpc;
use crate::protocol::tasks;
use crate::server::respond;
use crate::upstream::InlineTask;

/// Response to a POST that begins no call here and returns to none.
type Refusal = Box<Response<BoxBody>>;

/// Handles a POST with requests. Responds from the call that it begins, or from the earlier call
/// that it retries.
pub(super) async fn handle(
    components: &Components,
    context: Box<RequestContext>,
    mut call: classify::Call,
    mut body: Bytes,
) -> Response<BoxBody> {
    let (partial, token) = partial_results::decide(components, &call, &body);
    match (token, &partial) {
        (TokenField::Absent, _) => context.connection.receipts().prove(&components.log),
        (TokenField::Null | TokenField::Token(_), None) => {
            return refusals::refuse_call(components, ErrorCode::NotInBatch, &call);
        }
        (TokenField::Null, Some(partial)) => {
            body = resume_tokens::without_token(&body, &partial.method).into();
            call.name = None;
        }
        (TokenField::Token(token), Some(partial)) => {
            let continued = continuation::handle(components, context, call, &partial.method, &body, token.as_deref());
            return Box::pin(continued).await;
        }
    }
    let mut request = CallRequest::new(components, context, call, body, partial);
    match start_call(components, &mut request).await {
        Ok(Begun::Stream(started)) if request.task.is_some() => {
            Box::pin(reply_with_handle(components, request, started)).await
        }
        Ok(Begun::Stream(started)) => reply(components, request, started).await,
        Ok(Begun::Direct(begun)) => reply_directly(components, request, begun).await,
        Err(refusal) => *refusal,
    }
}

/// Waits for the turn of the POST, and for an earlier call that it may retry. Then begins a call,
/// or returns to that one.
///
/// # Errors
/// The response to the POST if it has no stream here.
async fn start_call(components: &Components, request: &mut CallRequest) -> Result<Begun, Refusal> {
    admit(components, request)?;
    reliance::admit(components, &request.context, &request.call)?;
    if request.context.session.as_ref().is_some_and(|session| session.has_held()) {
        let turn = Box::pin(wait_for_held_posts(components, &mut request.context)).await;
        turn.map_err(|code| refuse(components, code, request))?;
    }
    edit(components, request)?;
    request.note_retry();
    let earlier_call = match wait_for_earlier_call(components, request).await {
        Ok(earlier_call) => earlier_call,
        Err(unproven) => return Err(refuse_unproven(components, unproven, request)),
    };
    if !request.context.has_remote_session() {
        partial_results::observe_tool(components, &request.context, &request.call, request.partial.as_deref()).await;
    }
    session_state::apply_call(components, &request.context, &request.call, &request.body);
    if drain_admission::can_admit(components, request) && !request.context.has_remote_session() {
        stream_start::register_session(components, &request.context).await;
    }
    match find_remote_call(components, request, earlier_call.as_ref()).await {
        EarlierCall::None(claim) => match request.context.remote_session_error() {
            Some(code) => Err(refuse(components, code, request)),
            None => {
                let held = request.context.take_reservation();
                let begun = start::begin(components, request, held, earlier_call, claim);
                begun.map_err(|code| refuse(components, code, request))
            }
        },
        EarlierCall::Stream(stream) => Ok(Begun::Stream(start::return_to(components, &request.context, &stream))),
        EarlierCall::Response(response) => {
            components.metrics.observe_retry();
            Err(Box::new(forward_to_replicas::response_of(response)))
        }
        EarlierCall::Unproven(unproven) => Err(refuse_unproven(components, unproven, request)),
        EarlierCall::Refused(failure) => Err(Box::new(refusals::fail_call(components, failure, &request.call))),
    }
}

/// Checks that the client accepts a response, and declares tasks if its tool requires them.
fn admit(components: &Components, CallRequest { accept, call, body, tool, .. }: &CallRequest) -> Result<(), Refusal> {
    if !accept.json && !accept.sse {
        return Err(Box::new(refusals::refuse_call(components, ErrorCode::NotAcceptable, call)));
    }
    task_rules::admit(components, call, body, tool.as_deref()).map_err(|undeclared| refuse_undeclared(undeclared, call))
}

/// Returns the call of another replica that the POST may retry. A POST with an `earlier_call` here
/// needs no search.
async fn find_remote_call(
    components: &Components,
    request: &CallRequest,
    earlier_call: Option<&(Arc<Stream>, RetryMatch)>,
) -> EarlierCall {
    let is_found = earlier_call.is_some_and(|(_, retry_match)| *retry_match != RetryMatch::NewCall);
    if is_found {
        EarlierCall::None(None)
    } else if remote_retry::may_be_recorded(components, request.retry) {
        Box::pin(remote_retry::find(components, request)).await
    } else if components.log.has_store() && !components.log.adoption().ended_calls().is_empty() {
        Box::pin(ended_call::find(components, request)).await
    } else {
        EarlierCall::None(None)
    }
}

/// Responds to a call with the handle of its task.
async fn reply_with_handle(components: &Components, request: CallRequest, started: StartedCall) -> Response<BoxBody> {
    let (reply, attachment, pump) = reply_parts(components, request, started);
    task_handle::reply_with_handle(components, reply, attachment, pump).await
}

/// Reads a task as the response to a request `tasks/result`.
pub(super) async fn read_task(
    components: &Components,
    context: Box<RequestContext>,
    call: classify::Call,
    stream: Arc<Stream>,
) -> Response<BoxBody> {
    let accept = context.facts.accept;
    let id = call.ids.first().cloned();
    let slice = id
        .zip(stream.slices())
        .and_then(|(id, slices)| stream.begin_slice(Names { id, progress: slices.slicing.first.progress.clone() }));
    let (Some(slice), Some(task)) = (slice.filter(|_| accept.json || accept.sse), stream.as_legacy_task()) else {
        return refusals::refuse_call(components, ErrorCode::NotAcceptable, &call);
    };
    stream.touch();
    task.take_back_requests();
    let after = task.reading_place();
    let request = trace_return(&context, &stream, "task", after);
    let attachment = stream.attach(event_log::new_attach(), after).with_slice(Some(slice)).answering(request);
    let beginning = Beginning { start: Start::After(after), has_gap: false };
    reply::read_on(components, context, call, attachment, beginning).await
}

/// Responds to a call. Head and body of its request are dropped first.
fn reply(
    components: &Components,
    request: CallRequest,
    started: StartedCall,
) -> impl Future<Output = Response<BoxBody>> {
    let (reply, attachment, pump) = reply_parts(components, request, started);
    reply::await_response(components, reply, attachment, pump)
}

/// Responds to a call without a stream. Head and body of its request are dropped first.
fn reply_directly(
    components: &Components,
    request: CallRequest,
    begun: Box<direct::BegunCall>,
) -> impl Future<Output = Response<BoxBody>> {
    let beginning = Beginning { start: Start::First, has_gap: false };
    let (reply, headers) = reply_to(components, request, beginning, false);
    direct::respond(components, reply, headers, begun)
}

fn reply_parts(components: &Components, request: CallRequest, started: StartedCall) -> (Reply, Attachment, InlineTask) {
    let StartedCall { attachment, beginning, pump, repeatable } = started;
    let may_begin = attachment.slice().is_some() && commit::may_begin(components, &request);
    let (reply, _) = reply_to(components, request, beginning, may_begin);
    (Reply { repeatable, ..reply }, attachment, pump)
}

/// Returns what the response needs of its request, and the headers of that.
fn reply_to(
    components: &Components,
    request: CallRequest,
    beginning: Beginning,
    may_begin: bool,
) -> (Reply, HeaderMap) {
    let CallRequest { context, call, accept, .. } = request;
    let empty_events = priming::empty_events(context.session.as_deref(), &context.facts, &context.parts.headers);
    let hold = large_results::hold(components, &context.parts.headers, accept, &call);
    let RequestContext { parts, session, connection, .. } = *context;
    let query = parts.uri.query().map(Box::from);
    let reply =
        Reply { call, accept, empty_events, hold, query, session, connection, beginning, may_begin, repeatable: None };
    (reply, parts.headers)
}

/// Waits behind the POSTs of the session that are held.
async fn wait_for_held_posts(components: &Components, context: &mut RequestContext) -> Result<(), ErrorCode> {
    components.log.evict_for(context.reserve())?;
    let Some(session) = &context.session else { return Ok(()) };
    session.wait_turn(components.config.limits.held_posts_per_session).await
}

/// Returns the call here that the POST retries, once the client of that call is no longer
/// connected, or after a moment. With it comes its relation to the POST. A call of an older
/// token of the caller may be a new one's match too.
async fn wait_for_earlier_call(
    components: &Components,
    CallRequest { context, call, body, retry, .. }: &CallRequest,
) -> Result<Option<(Arc<Stream>, RetryMatch)>, Unproven> {
    let own_calls = retry.fingerprint.map_or_else(Vec::new, |fingerprint| components.log.find_calls(&fingerprint));
    if retry.is_by_free_id() && !own_calls.is_empty() {
        // Any of them is matched when the call begins, or none.
        Retries::wait_for_cut(&own_calls).await;
        return Ok(None);
    }
    let matches = |stream: &&Arc<Stream>| stream.retries().compare(retry.body, retry.id_use) != RetryMatch::NewCall;
    if let Some(stream) = own_calls.iter().find(matches) {
        stream.retries().wait_for_detach().await;
        return Ok(Some((stream.clone(), stream.retries().compare_again(retry.body))));
    }
    if !own_calls.is_empty() || context.binding.subject.is_none() {
        return Ok(None);
    }
    let find = |previous: &Binding| find_call_of(components, previous, context, call, body);
    let Some(stream) = Box::pin(token_refresh::find_previous_call(components, context, call.era(), find)).await? else {
        return Ok(None);
    };
    stream.retries().wait_for_detach().await;
    let retry_match = stream.retries().compare(retry.body, retry.id_use);
    Ok(Some((stream, retry_match)))
}

/// Returns the call of `previous`, an older token of the caller, that this POST may retry.
fn find_call_of(
    components: &Components,
    previous: &Binding,
    context: &RequestContext,
    call: &classify::Call,
    body: &[u8],
) -> Option<Arc<Stream>> {
    let Retry { fingerprint, body, .. } = retry_of(context, previous, call, body);
    let stream = components.log.find_call(&fingerprint?)?;
    // The client of that call may be about to disconnect.
    let may_match = body.is_some() || !stream.delivery().has_arrived();
    if may_match { Some(stream) } else { None }
}

/// Takes out of the body what the proxy handles itself: declarations of dialects, the proxy's own
/// tasks in a subscription, and the wish for a task. Keeps the declarations of an `initialize`.
fn edit(components: &Components, request: &mut CallRequest) -> Result<(), Refusal> {
    let CallRequest { context, call, body, partial, task, initialize, .. } = request;
    if call.has_listen() {
        let edited = task_rules::edit_listen(components, call, std::mem::take(body));
        *body = edited.map_err(|undeclared| refuse_undeclared(undeclared, call))?;
    } else if call.has_initialize() {
        let (declarations, edited) = strip_declarations(components, call, std::mem::take(body));
        (*initialize, *body) = (Some(declarations), edited);
    }
    let requested = task_rules::requested(components, context.session.as_deref(), call, body);
    if let Some((requested, edited)) = requested.map_err(|unsupported| refuse_unsupported(unsupported, call))? {
        (*task, *body, *partial) = (Some(requested), edited, None);
        call.name = None;
    }
    Ok(())
}

/// Returns the declarations of an `initialize`, and its body for the upstream, without the
/// dialects that the proxy handles.
fn strip_declarations(components: &Components, call: &classify::Call, body: Bytes) -> (IssuedSession, Bytes) {
    let handled = components.config.dialects.declared;
    let declared = match call.era() {
        Era::Legacy => Declared::of_initialize(&body).intersection(handled),
        Era::Modern => Declared::default(),
    };
    let version = jsonrpc::requested_version(&body).and_then(|version| ProtocolVersion::parse(&version));
    let rules = named_rules::of_initialize(components, &body);
    let version = version.unwrap_or(ProtocolVersion::DEFAULT);
    let has_tasks = task_rules::offers_legacy(components, &version);
    let initialize = IssuedSession { version, declared, rules, has_tasks };
    let body = declared.remove_from(&body).map_or(body, Bytes::from);
    (initialize, body)
}

fn refuse(components: &Components, code: ErrorCode, request: &CallRequest) -> Refusal {
    Box::new(refusals::refuse_call(components, code, &request.call))
}

fn refuse_unproven(components: &Components, unproven: Unproven, request: &CallRequest) -> Refusal {
    match unproven {
        Unproven::Unavailable(code) => refuse(components, code, request),
        Unproven::Refused(refusal) => refusal,
    }
}

fn refuse_unsupported(_: Unsupported, call: &classify::Call) -> Refusal {
    let refusal = call.ids.first().map(tasks::legacy::unsupported).unwrap_or_default();
    Box::new(respond::json(StatusCode::OK, refusal.into()))
}

fn refuse_undeclared(_: Undeclared, call: &classify::Call) -> Refusal {
    let refusal = call.ids.first().map(tasks::missing_capability).unwrap_or_default();
    Box::new(respond::json(StatusCode::BAD_REQUEST, refusal.into()))
}
