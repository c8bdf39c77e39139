//! POSTs with requests: each begins a request stream, or takes over the stream of an earlier call
//! as its retry.

mod commit;
mod continuation;
mod drain_admission;
mod partial_results;
mod remote_retry;
mod reply;
mod request;
mod start;
mod task_handle;
mod task_rules;

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use self::commit::CommitRules;
use self::continuation::Continuations;
use self::drain_admission::Admission;
use self::partial_results::{PartialResults, PartialResultsPolicy};
use self::remote_retry::{EarlierCall, RemoteRetries};
use self::reply::Replies;
use self::request::{Beginning, CallRequest, Reply, Retry, retry_of};
use self::start::{CallStarter, StartedCall};
use self::task_rules::{TaskRules, Undeclared, Unsupported};
use super::components::Components;
use super::context::RequestContext;
use super::forward_to_replicas;
use super::metrics::Metrics;
use super::priming;
use super::refusals::Refusals;
use super::session_state::SessionStates;
use super::stream_finder::StreamFinder;
use super::stream_response::StreamResponder;
use super::stream_start::StreamStarter;
use super::token_refresh::{TokenRefresh, Unproven};
use super::trace::trace_return;
use crate::body::BoxBody;
use crate::config::Config;
use crate::delivery::Start;
use crate::event_log::{self, Attachment, Binding, EventLog, Retries, RetryMatch, Session, Stream};
use crate::protocol::classify;
use crate::protocol::dialect::Declared;
use crate::protocol::dialect::resume_tokens::{self, Names, TokenField};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, Era, ProtocolVersion};
use crate::protocol::ids::IssuedSession;
use crate::protocol::jsonrpc;
use crate::protocol::tasks;
use crate::server::respond;
use crate::upstream::{InlineTask, ResponseObserver};

/// Handles POSTs with requests.
pub(super) struct Calls {
    config: Arc<Config>,
    log: Arc<EventLog>,
    metrics: Arc<Metrics>,
    refusals: Refusals,
    tokens: Arc<TokenRefresh>,
    starter: Arc<StreamStarter>,
    partial: Arc<PartialResultsPolicy>,
    admission: Admission,
    remote_retries: RemoteRetries,
    call_starter: CallStarter,
    commit: CommitRules,
    replies: Arc<Replies>,
    continuations: Continuations,
    session_states: SessionStates,
    task_rules: Arc<TaskRules>,
}

impl Calls {
    pub(super) fn new(
        components: &Components,
        refusals: Refusals,
        tokens: Arc<TokenRefresh>,
        finder: Arc<StreamFinder>,
        starter: Arc<StreamStarter>,
        responder: Arc<StreamResponder>,
    ) -> Self {
        let Components { config, log, metrics, .. } = components;
        let admission = Admission::new(components);
        let commit = CommitRules::new(components);
        let partial = Arc::new(PartialResultsPolicy::new(components));
        let task_rules = Arc::new(TaskRules::new(components));
        let replies = Arc::new(Replies::new(components, refusals.clone(), responder));
        Self {
            config: config.clone(),
            log: log.clone(),
            metrics: metrics.clone(),
            admission: admission.clone(),
            remote_retries: RemoteRetries::new(components, admission.clone(), finder.clone(), tokens.clone()),
            call_starter: CallStarter::new(
                components,
                admission,
                partial.clone(),
                task_rules.clone(),
                finder.clone(),
                starter.clone(),
            ),
            continuations: Continuations::new(components, refusals.clone(), finder, replies.clone()),
            session_states: SessionStates::new(components),
            task_rules,
            refusals,
            tokens,
            starter,
            partial,
            commit,
            replies,
        }
    }

    /// Handles a POST with requests.
    pub(super) async fn handle(
        &self,
        context: Box<RequestContext>,
        call: classify::Call,
        body: Bytes,
    ) -> Response<BoxBody> {
        match self.partial.decide(&call, &body) {
            (partial, TokenField::Absent) => {
                context.connection.receipts().prove(&self.log);
                self.call(context, call, body, partial).await
            }
            (partial, token) => Box::pin(self.call_with_token(context, call, body, partial, token)).await,
        }
    }

    /// Handles a call with the field of a resume token.
    async fn call_with_token(
        &self,
        context: Box<RequestContext>,
        call: classify::Call,
        body: Bytes,
        partial: Option<Box<PartialResults>>,
        token: TokenField,
    ) -> Response<BoxBody> {
        let Some(partial) = partial else {
            return self.refusals.refuse_call(ErrorCode::NotInBatch, &call);
        };
        match token {
            TokenField::Token(token) => {
                self.continuations.handle(context, call, &partial.method, &body, token.as_deref()).await
            }
            TokenField::Absent | TokenField::Null => {
                let body = resume_tokens::without_token(&body, &partial.method).into();
                self.call(context, call, body, Some(partial)).await
            }
        }
    }

    /// Waits for the turn of the POST, and for an earlier call that it may retry, then begins a
    /// call or returns to that one.
    async fn call(
        &self,
        mut context: Box<RequestContext>,
        call: classify::Call,
        body: Bytes,
        partial: Option<Box<PartialResults>>,
    ) -> Response<BoxBody> {
        let accept = headers::accept(&context.parts.headers);
        if !accept.json && !accept.sse {
            return self.refusals.refuse_call(ErrorCode::NotAcceptable, &call);
        }
        if let Err(undeclared) = self.task_rules.admit(&call, &body) {
            return refuse_undeclared(undeclared, &call);
        }
        if let Some(session) = context.session.clone().filter(|session| session.has_held())
            && let Err(code) = Box::pin(self.wait_for_held_posts(&mut context, &session)).await
        {
            return self.refusals.refuse_call(code, &call);
        }
        let (initialize, body) = match self.edit(&call, body) {
            Ok(edited) => edited,
            Err(undeclared) => return refuse_undeclared(undeclared, &call),
        };
        let (task, body) = match self.task_rules.requested(context.session.as_deref(), &call, &body) {
            Ok(Some((task, body))) => (Some(task), body),
            Ok(None) => (None, body),
            Err(unsupported) => return refuse_unsupported(unsupported, &call),
        };
        let partial = partial.filter(|_| task.is_none());
        let retry = retry_of(&context, &context.binding, &call, &body).note_ids(context.session.as_deref(), &call);
        let earlier_call = match self.wait_for_earlier_call(&context, &call, &body, retry).await {
            Ok(earlier_call) => earlier_call,
            Err(unproven) => return self.refuse_unproven(unproven, &call),
        };
        if !context.has_remote_session() {
            self.partial.observe_tool(&context, &call, partial.as_deref()).await;
        }
        self.session_states.apply_call(&context, &call, &body);
        let observer = ResponseObserver::new(initialize, self.partial.edited_list(&call))
            .with_ids(&call.ids)
            .with_params(self.session_states.params_of(&call, &body))
            .with_task_owner(self.task_rules.owner_of_ids(&call, &body))
            .with_discovery(self.task_rules.observes_discovery(&call))
            .with_legacy_tasks(self.task_rules.listed(context.session.as_deref(), &call));
        let mut request = CallRequest { context, call, accept, body, partial, task, retry, observer };
        if self.admission.can_admit(&request) && !request.context.has_remote_session() {
            self.starter.register_session(&request.context).await;
        }
        // A call here needs no search at other replicas.
        let is_found = earlier_call.as_ref().is_some_and(|(_, retry_match)| *retry_match != RetryMatch::NewCall);
        let may_be_recorded = !is_found && self.remote_retries.may_be_recorded(retry);
        let remote_call =
            if may_be_recorded { Box::pin(self.remote_retries.find(&request)).await } else { EarlierCall::None(None) };
        let started = match remote_call {
            EarlierCall::None(_) if let Some(code) = request.context.remote_session_error() => Err(code),
            EarlierCall::None(claim) => {
                let held = request.context.take_reservation();
                self.call_starter.begin(&request, held, earlier_call, claim)
            }
            EarlierCall::Stream(stream) => Ok(self.call_starter.return_to(&request.context, &stream)),
            EarlierCall::Response(response) => {
                self.metrics.observe_retry();
                return forward_to_replicas::response_of(response);
            }
            EarlierCall::Unproven(unproven) => return self.refuse_unproven(unproven, &request.call),
            EarlierCall::Refused(failure) => return self.refusals.fail_call(failure, &request.call),
        };
        match started {
            Ok(started) if request.task.is_some() => Box::pin(self.reply_with_handle(request, started)).await,
            Ok(started) => self.reply(request, started).await,
            Err(code) => self.refusals.refuse_call(code, &request.call),
        }
    }

    /// Responds to a call with the handle of its task.
    async fn reply_with_handle(&self, request: CallRequest, started: StartedCall) -> Response<BoxBody> {
        let (reply, attachment, pump) = self.reply_parts(request, started);
        self.replies.reply_with_handle(reply, attachment, pump).await
    }

    /// Reads a task as the response to a request `tasks/result`.
    pub(super) async fn read_task(
        &self,
        context: Box<RequestContext>,
        call: classify::Call,
        stream: Arc<Stream>,
    ) -> Response<BoxBody> {
        let accept = headers::accept(&context.parts.headers);
        let id = call.ids.first().cloned();
        let slice = id
            .zip(stream.slices())
            .and_then(|(id, slices)| stream.begin_slice(Names { id, progress: slices.slicing.first.progress.clone() }));
        let (Some(slice), Some(task)) = (slice.filter(|_| accept.json || accept.sse), stream.as_legacy_task()) else {
            return self.refusals.refuse_call(ErrorCode::NotAcceptable, &call);
        };
        stream.touch();
        task.take_back_requests();
        let after = task.reading_place();
        let request = trace_return(&context, &stream, "task", after);
        let attachment = stream.attach(event_log::new_attach(), after).with_slice(Some(slice)).answering(request);
        let beginning = Beginning { start: Start::After(after), has_gap: false };
        self.replies.read_on(context, call, attachment, beginning).await
    }

    /// Responds to a call. Head and body of its request are dropped first.
    fn reply(&self, request: CallRequest, started: StartedCall) -> impl Future<Output = Response<BoxBody>> {
        let (reply, attachment, pump) = self.reply_parts(request, started);
        self.replies.reply(reply, attachment, pump)
    }

    fn reply_parts(&self, request: CallRequest, started: StartedCall) -> (Reply, Attachment, InlineTask) {
        let StartedCall { attachment, beginning, pump } = started;
        let may_begin = attachment.slice().is_some() && self.commit.may_begin(&request);
        let CallRequest { context, call, accept, .. } = request;
        let empty_events = priming::empty_events(context.session.as_deref(), &context.parts.headers);
        let RequestContext { parts, session, connection, .. } = *context;
        let query = parts.uri.query().map(Box::from);
        let reply = Reply { call, accept, empty_events, query, session, connection, beginning, may_begin };
        (reply, attachment, pump)
    }

    /// Waits behind the POSTs of the session that are held.
    async fn wait_for_held_posts(&self, context: &mut RequestContext, session: &Session) -> Result<(), ErrorCode> {
        self.log.evict_for(context.reserve())?;
        session.wait_turn(self.config.limits.held_posts_per_session).await
    }

    /// Returns the call here that the POST retries, once the client of that call is no longer
    /// connected, or after a moment. With it comes its relation to the POST. A call of an older
    /// token of the caller may be a new one's match too.
    async fn wait_for_earlier_call(
        &self,
        context: &RequestContext,
        call: &classify::Call,
        body: &[u8],
        retry: Retry,
    ) -> Result<Option<(Arc<Stream>, RetryMatch)>, Unproven> {
        let own_calls = retry.fingerprint.map_or_else(Vec::new, |fingerprint| self.log.find_calls(&fingerprint));
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
        let find = |previous: &Binding| self.find_call_of(previous, context, call, body);
        let Some(stream) = Box::pin(self.tokens.find_previous_call(context, call.era(), find)).await? else {
            return Ok(None);
        };
        stream.retries().wait_for_detach().await;
        let retry_match = stream.retries().compare(retry.body, retry.id_use);
        Ok(Some((stream, retry_match)))
    }

    /// Returns the call of `previous`, an older token of the caller, that this POST may retry.
    fn find_call_of(
        &self,
        previous: &Binding,
        context: &RequestContext,
        call: &classify::Call,
        body: &[u8],
    ) -> Option<Arc<Stream>> {
        let Retry { fingerprint, body, .. } = retry_of(context, previous, call, body);
        let stream = self.log.find_call(&fingerprint?)?;
        // The client of that call may be about to disconnect.
        let may_match = body.is_some() || !stream.delivery().has_arrived();
        if may_match { Some(stream) } else { None }
    }

    /// Returns the body of a call for the upstream, without what the proxy handles itself, and the
    /// declarations of an `initialize`.
    ///
    /// # Errors
    /// For a subscription to tasks by a client that does not declare them.
    fn edit(&self, call: &classify::Call, body: Bytes) -> Result<(Option<IssuedSession>, Bytes), Undeclared> {
        if !call.may_be_edited() {
            return Ok((None, body));
        }
        if call.has_listen() {
            return self.task_rules.edit_listen(call, body).map(|body| (None, body));
        }
        Ok(self.strip_declarations(call, body))
    }

    /// Returns the declarations of an `initialize`, and its body for the upstream, without the
    /// dialects that the proxy handles.
    fn strip_declarations(&self, call: &classify::Call, body: Bytes) -> (Option<IssuedSession>, Bytes) {
        let handled = self.config.dialects.declared;
        let declared = match call.era() {
            Era::Legacy => Declared::of_initialize(&body).intersection(handled),
            Era::Modern => Declared::default(),
        };
        let version = jsonrpc::requested_version(&body).and_then(|version| ProtocolVersion::parse(&version));
        let has_no_beats =
            self.config.delivery.progress.as_ref().is_some_and(|progress| {
                jsonrpc::client_name(&body).is_some_and(|name| progress.except.contains(&name))
            });
        let version = version.unwrap_or(ProtocolVersion::DEFAULT);
        let has_tasks = self.task_rules.offers_legacy(&version);
        let initialize = IssuedSession { version, declared, has_no_beats, has_tasks };
        let body = declared.remove_from(&body).map_or(body, Bytes::from);
        (Some(initialize), body)
    }

    fn refuse_unproven(&self, unproven: Unproven, call: &classify::Call) -> Response<BoxBody> {
        match unproven {
            Unproven::Unavailable(code) => self.refusals.refuse_call(code, call),
            Unproven::Refused(_) => unproven.into_response(&self.refusals),
        }
    }
}

fn refuse_unsupported(_: Unsupported, call: &classify::Call) -> Response<BoxBody> {
    let refusal = call.ids.first().map(tasks::legacy::unsupported).unwrap_or_default();
    respond::json(StatusCode::OK, refusal.into())
}

fn refuse_undeclared(_: Undeclared, call: &classify::Call) -> Response<BoxBody> {
    let refusal = call.ids.first().map(tasks::missing_capability).unwrap_or_default();
    respond::json(StatusCode::BAD_REQUEST, refusal.into())
}
