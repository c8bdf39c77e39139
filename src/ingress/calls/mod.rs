//! POSTs with requests: each begins a request stream, or takes over the stream of an earlier call as its retry.

mod partial_results;
mod remote_retry;
mod request;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::ORIGIN;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use tracing::Instrument;

use self::remote_retry::{EarlierCall, PendingClaim};
use self::request::{Beginning, CallRequest, PartialResults, Reply, Retry, retry_of};
use super::request_log::log_return;
use super::token_refresh::Unproven;
use super::{Ingress, RequestContext, detached, forward_to_owner, head_bytes, respond};
use crate::body::BoxBody;
use crate::clock;
use crate::config::{self, Mode};
use crate::delivery::{Follow, Kept, Passthrough, PendingResponse, Plan, Receipt, Start};
use crate::dialect;
use crate::event_log::{self, Attachment, Binding, Collected, Head, Match, Plain, Session, Spec, Stream};
use crate::protocol::classify;
use crate::protocol::dialect::resume_tokens::Renaming;
use crate::protocol::dialect::{Declared, Waits};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, Accept, Era, ProtocolVersion};
use crate::protocol::ids::{IssuedSession, Seq, StreamKind};
use crate::protocol::jsonrpc;
use crate::protocol::stream::Policy;
use crate::upstream::{self, InlineTask, Pump, ResponseObserver, Template};

/// A request's attachment to the stream of the call that it began or came back to.
struct Claimed {
    attachment: Attachment,
    beginning: Beginning,
    /// Upstream call, if this request began it.
    pump: InlineTask,
}

impl Ingress {
    pub(super) async fn call(
        self: Arc<Self>,
        mut context: Box<RequestContext>,
        call: classify::Call,
        body: Bytes,
        partial: Option<Box<PartialResults>>,
    ) -> Response<BoxBody> {
        let accept = headers::accept(&context.parts.headers);
        if !accept.json && !accept.sse {
            return self.refuse_call(ErrorCode::NotAcceptable, &call);
        }
        if let Some(session) = context.session.clone().filter(|session| session.has_held())
            && let Err(code) = Box::pin(self.wait_turn(&mut context, &session)).await
        {
            return self.refuse_call(code, &call);
        }
        if self.replicas.is_some() && context.session.as_ref().is_some_and(|session| !session.is_home()) {
            Box::pin(self.join_session(&context)).await;
        }
        let (initialize, body) = self.take_declared(&call, body);
        let retry = retry_of(&context, &context.binding, &call, &body);
        let mut earlier = retry.fingerprint.and_then(|fingerprint| self.log.retry_index().find(&fingerprint));
        let mut previous_call = None;
        if earlier.is_none() && context.binding.subject.is_some() {
            let previous = |previous: &Binding| self.find_retried_of_previous(previous, &context, &call, &body);
            match Box::pin(self.find_previous_call(&context, call.era(), previous)).await {
                Ok(found) => previous_call = found,
                Err(unproven) => return self.refuse_unproven_call(unproven, &call),
            }
            earlier = previous_call.clone();
        }
        if let Some(earlier) = earlier {
            earlier.wait_for_detach().await;
        }
        if !context.has_remote_session() {
            self.learn_tool(&context, &call, partial.as_deref()).await;
        }
        let observer = ResponseObserver::new(initialize, self.listed(&call));
        let mut request = CallRequest { context, call, accept, body, partial, retry, observer };
        let is_previous_token = previous_call.as_ref().is_some_and(|stream| stream.may_return(retry.body.is_some()));
        let earlier_call = match self.may_be_recorded(request.retry) && !is_previous_token {
            true => Box::pin(self.find_remote_call(&request)).await,
            false => EarlierCall::None(None),
        };
        // From here on the bytes count as the stream's.
        request.context.reservation = None;
        let claimed = match earlier_call {
            EarlierCall::None(_) if let Some(code) = self.remote_session_error(&request.context) => Err(code),
            EarlierCall::None(place) => self.begin(&request, previous_call, place),
            EarlierCall::Stream(stream) => Ok(self.return_to(&request.context, &stream)),
            EarlierCall::Response(response) => {
                self.metrics.observe_retry();
                return forward_to_owner::response_of(response);
            }
            EarlierCall::Unproven(unproven) => return self.refuse_unproven_call(unproven, &request.call),
            EarlierCall::Refused(failure) => {
                self.metrics.errors.observe_reject(failure.code);
                return respond::failure(failure, &request.call.ids, request.call.is_batch);
            }
        };
        match claimed {
            Ok(Claimed { attachment, beginning, pump }) => {
                // As for a commit (`may_commit`): an interim result must not replace a 401 or CORS headers of the server.
                let may_begin = attachment.slice().is_some() && self.may_begin(&request);
                let CallRequest { context, call, accept, body, partial, .. } = request;
                let RequestContext { parts, session, connection, .. } = *context;
                let query = parts.uri.query().map(Box::from);
                drop((parts, body, partial));
                let reply = Reply { call, accept, query, session, connection, beginning, may_begin };
                self.reply(reply, attachment, pump).await
            }
            Err(code) => self.refuse_call(code, &request.call),
        }
    }

    /// Waits behind the POSTs of the session that are held.
    async fn wait_turn(&self, context: &mut RequestContext, session: &Session) -> Result<(), ErrorCode> {
        self.log.evict_for(context.reserve())?;
        session.wait_turn(self.config.limits.held_posts_per_session).await
    }

    /// Registers this replica for the session, so that responses, cancels and the end of the session find its calls here. Does nothing for
    /// a session that no replica opened, since any client can invent one.
    pub(super) async fn join_session(&self, context: &RequestContext) {
        if let (Some(session), Some(id)) = (&context.session, &context.binding.session)
            && !session.is_home()
            && session.version().is_some()
            && session.joins_first()
        {
            self.log.join_session(id).await;
        }
    }

    /// Returns the declarations of an `initialize`, and its body for the upstream, without the dialects that the proxy handles.
    fn take_declared(&self, call: &classify::Call, body: Bytes) -> (Option<IssuedSession>, Bytes) {
        if !call.has_initialize {
            return (None, body);
        }
        let spoken = self.config.dialects.declared;
        let declared = match call.era() {
            Era::Legacy => Declared::of_initialize(&body).intersection(spoken),
            Era::Modern => Declared::default(),
        };
        let version = jsonrpc::requested_version(&body).and_then(|version| ProtocolVersion::parse(&version));
        let initialize = IssuedSession { version: version.unwrap_or(ProtocolVersion::DEFAULT), declared };
        let body = declared.remove_from(&body).map_or(body, Bytes::from);
        (Some(initialize), body)
    }

    /// Announces on a new stream how it may be resumed, if its session has declared interest.
    pub(super) fn announce(&self, session: Option<&Session>, stream: &Stream, among: Declared) {
        let declared = session
            .map(Session::declared)
            .unwrap_or_default()
            .intersection(among)
            .intersection(self.config.dialects.declared);
        if declared.is_any() {
            let max_wait = stream.look(|machine| machine.policy().max_wait);
            dialect::announce(stream, declared, Waits::new(self.config.dialects.min_wait, max_wait));
        }
    }

    pub(super) fn refuse_call(&self, code: ErrorCode, call: &classify::Call) -> Response<BoxBody> {
        self.metrics.errors.observe_reject(code);
        respond::failure(Failure::before_run(code), &call.ids, call.is_batch)
    }

    fn refuse_unproven_call(&self, unproven: Unproven, call: &classify::Call) -> Response<BoxBody> {
        match unproven {
            Unproven::Unavailable(code) => self.refuse_call(code, call),
            Unproven::Refused(_) => self.refuse_unproven(unproven),
        }
    }

    /// Returns the call of `previous`, an older token of the caller, that this POST may retry.
    fn find_retried_of_previous(
        &self,
        previous: &Binding,
        context: &RequestContext,
        call: &classify::Call,
        body: &[u8],
    ) -> Option<Arc<Stream>> {
        let Retry { fingerprint, body, .. } = retry_of(context, previous, call, body);
        let stream = self.log.retry_index().find(&fingerprint?)?;
        // The client of that call may be about to leave.
        let may_match = body.is_some() || !stream.has_arrived();
        may_match.then_some(stream)
    }

    /// Attaches to the call's stream, before the pump of a new one begins: a stream without a reader may be removed. `previous_call` is
    /// the call of an older token of the caller. A client that comes back to its call needs no further room.
    fn begin(
        &self,
        request: &CallRequest,
        previous_call: Option<Arc<Stream>>,
        place: Option<PendingClaim>,
    ) -> Result<Claimed, ErrorCode> {
        let Retry { fingerprint, body, .. } = request.retry;
        if let Some(stream) = previous_call.filter(|stream| stream.may_return(body.is_some())) {
            let is_same = stream.body() == body;
            return if is_same { Ok(self.return_to(&request.context, &stream)) } else { Err(ErrorCode::KeyReused) };
        }
        if !self.takes(request) {
            return self.rejoin(request);
        }
        let request_bytes = head_bytes(&request.context.parts) + request.body.len();
        let reservation = self.log.admit(&request.context.quota, request_bytes);
        let (hold, _registering) = place.map(|PendingClaim { hold, registering }| (hold, registering)).unzip();
        let create = || {
            let (spec, reservation) = (self.spec(request), reservation?);
            Ok(match &hold {
                Some(hold) => self.log.create_as(hold.stream(), spec, reservation),
                None => self.log.create(spec, reservation),
            })
        };
        let Some(fingerprint) = fingerprint else {
            return Ok(self.start(request, &create()?));
        };
        let matches = |stream: &Arc<Stream>| stream.may_return(body.is_some());
        match self.log.retry_index().find_or_register(fingerprint, matches, create)? {
            Match::New(stream, registration) => {
                stream.keep_registration(registration.under(hold));
                Ok(self.start(request, &stream))
            }
            Match::Same(stream) if stream.body() == body => Ok(self.return_to(&request.context, &stream)),
            Match::Same(_) => Err(ErrorCode::KeyReused),
        }
    }

    /// True if the POST may begin a call. During a drain only requests other than tool calls may, while a call of their session runs or
    /// has just ended: some clients list the tools before they use a result, and lose it if the list is refused.
    fn takes(&self, request: &CallRequest) -> bool {
        let CallRequest { context, call, .. } = request;
        let is_busy = || context.session.as_ref().is_some_and(|session| session.is_busy(clock::now()));
        !self.drain.is_refusing_calls() || (!call.has_tool_call && !call.is_opening && is_busy())
    }

    /// During a drain, attaches a POST to an earlier call.
    fn rejoin(&self, request: &CallRequest) -> Result<Claimed, ErrorCode> {
        let Retry { fingerprint, body, .. } = request.retry;
        let found = fingerprint.and_then(|fingerprint| self.log.retry_index().find(&fingerprint));
        match found.filter(|stream| stream.may_return(body.is_some())) {
            Some(stream) if stream.body() == body => Ok(self.return_to(&request.context, &stream)),
            Some(_) => Err(ErrorCode::KeyReused),
            None => Err(ErrorCode::Draining),
        }
    }

    /// Returns the settings for this call. The name of its tool is read only if some tool has settings of its own.
    fn limits(&self, request: &CallRequest) -> config::Call {
        let has_own = request.call.has_tool_call && !self.config.tools.is_empty();
        let tool = if has_own { jsonrpc::tool_name(&request.body) } else { None };
        self.config.call(tool.as_deref())
    }

    fn spec(&self, request: &CallRequest) -> Spec {
        let CallRequest { context, call, accept, retry, .. } = request;
        let limits = self.limits(request);
        let streams = &self.config.streams;
        let policy = Policy {
            kind: StreamKind::Request,
            era: call.era(),
            max_wait: limits.max_wait,
            modern_grace: streams.modern_grace,
            has_idempotency_key: retry.body.is_some(),
            retention: limits.retention,
            call_timeout: limits.call_timeout,
            cancel_grace: streams.cancel_grace,
            full_wait: streams.full_wait,
            linger: streams.linger,
            input_grace: self.config.dialects.input_grace,
            commit_after: self.config.delivery.commit_after.filter(|_| self.may_commit(request)),
            retry: self.config.delivery.retry,
            // Events that no client reads as a stream are never written, and must not fill it up.
            can_pause: !call.has_listen && accept.sse,
            should_resume_hard_cuts: self.upstream.resumes_hard_cuts(),
            should_refuse_requests: !accept.sse,
            should_announce_cancel: call.era() == Era::Legacy && !call.has_initialize,
        };
        Spec {
            policy,
            binding: context.binding.clone(),
            ids: call.ids.clone(),
            batch: call.is_batch,
            polls: limits.mode == Mode::Poll,
            body: retry.body,
            slicing: request.partial.as_ref().and_then(|partial| self.slicing(call, partial, &request.body)),
        }
    }

    /// True if the proxy may send a head before the upstream does. It must not hide a head that matters: a status on which a client acts,
    /// or CORS headers that a browser needs.
    fn may_commit(&self, request: &CallRequest) -> bool {
        request.accept.sse && !request.call.is_opening && self.may_begin(request)
    }

    fn may_begin(&self, CallRequest { context, .. }: &CallRequest) -> bool {
        let observed = self.upstream.observed();
        observed.has_accepted(&context.credentials, clock::now())
            && observed.cors(context.parts.headers.get(ORIGIN)).is_some()
    }

    fn start(&self, request: &CallRequest, stream: &Arc<Stream>) -> Claimed {
        let attachment = stream.attach_before_pump(event_log::new_attach(), Seq(0)).under(stream.begin_first_slice());
        let RequestContext { parts, session, connection, .. } = &*request.context;
        if let Some(session) = session {
            session.add_stream(stream);
            if request.call.era() == Era::Legacy && request.accept.sse && !request.call.is_opening {
                self.announce(Some(session), stream, Declared::ALL);
            }
        }
        let template = self.upstream.call(parts, connection.forwarded(), detached(request.body.clone()));
        let pump = self.pump(&request.context, template, request.accept, request.observer.clone(), stream);
        let beginning = Beginning { start: Start::First, has_gap: false };
        Claimed { attachment, beginning, pump }
    }

    /// Prepares the upstream call of a stream. The call begins when the returned task is polled.
    pub(super) fn pump(
        &self,
        context: &RequestContext,
        template: Template,
        accept: Accept,
        observer: ResponseObserver,
        stream: &Arc<Stream>,
    ) -> InlineTask {
        let call = upstream::Call {
            template: Arc::new(template),
            accept,
            credentials: context.credentials,
            subject: context.binding.subject,
            observer,
            max_event_bytes: self.config.streams.max_event_bytes,
        };
        let writer = self.log.writer(stream);
        let pump = Pump::begin(self.upstream.clone(), self.log.clone(), self.metrics.upstream.clone(), writer, call);
        let running = pump.run().in_current_span();
        match stream.look(|machine| machine.policy().kind) {
            StreamKind::Request => {
                let of_session = context.session.as_ref().map(Session::begin_call);
                let running = async move {
                    let _of_session = of_session;
                    running.await;
                };
                InlineTask::new(self.drain.calls().track_future(running))
            }
            // A standalone stream never ends by itself, so the drain does not wait for it.
            StreamKind::Standalone => InlineTask::new(running),
        }
    }

    /// Lets a retry take over. It continues after its `Last-Event-ID` if that names this stream, else from the first retained event.
    fn return_to(&self, context: &RequestContext, stream: &Arc<Stream>) -> Claimed {
        self.metrics.observe_retry();
        let cursor = self.cursor_in(context, stream);
        stream.note_retry(cursor);
        let first_kept = stream.look(|machine| machine.trimmed());
        let wanted = cursor.unwrap_or(Seq(0));
        let has_gap = wanted < first_kept;
        if has_gap {
            self.metrics.event_log.observe_gap();
        }
        let cursor = wanted.max(first_kept);
        log_return(stream, "retry", cursor);
        let attachment = stream.attach(event_log::new_attach(), cursor).under(stream.begin_first_slice());
        let beginning = Beginning { start: Start::After(cursor), has_gap };
        Claimed { attachment, beginning, pump: InlineTask::default() }
    }

    /// Returns the response to a call once it begins. Until then this future drives `pump`.
    pub(super) async fn reply(
        self: Arc<Self>,
        reply: Reply,
        attachment: Attachment,
        mut pump: InlineTask,
    ) -> Response<BoxBody> {
        let claim = PendingResponse::new(self.log.clone(), self.metrics.delivery.clone(), attachment);
        let mut head = pin!(poll_fn(|cx| {
            let Some(attachment) = claim.attachment() else { return Poll::Ready(Head::TakenOver) };
            if !pump.is_over() {
                attachment.look_away();
                pump.poll(cx);
            }
            if reply.accept.sse { self.poll_begin(attachment, cx) } else { poll_answer(attachment, cx) }
        }));
        let head = tokio::select! {
            biased;
            head = &mut head => Ok(head),
            () = self.drain.ended() => {
                claim.attachment().into_iter().for_each(|attachment| attachment.stream().expire(ErrorCode::Draining));
                Ok(head.await)
            }
            interim = self.slice_over(&reply, claim.attachment()) => match interim {
                Some(interim) if !reply.accept.sse => Err(interim),
                Some(_) | None => Ok(head.await),
            }
        };
        let Some((attachment, receipt)) = claim.begin() else { return self.refuse(ErrorCode::StreamLost) };
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

    /// Polls for the head of a response that may be a stream. A response that was taken over before it had a head gets an ID and an end.
    /// The stream must then exist for a client that resumes with that ID. If the upstream's response passes through, both connections get
    /// it.
    fn poll_begin(&self, attachment: &Attachment, cx: &mut Context<'_>) -> Poll<Head> {
        let head = ready!(attachment.poll_head(cx));
        if !matches!(head, Head::TakenOver) {
            return Poll::Ready(head);
        }
        if attachment.stream().commit() {
            self.log.publish_once(attachment.stream());
            return Poll::Ready(head);
        }
        attachment.poll_head_anyway(cx)
    }

    /// Returns a failure. It is kept like any response: a retry of a call that may have run gets it again until it was delivered.
    fn fail(&self, failure: Failure, reply: &Reply, claim: Option<(Attachment, Receipt)>) -> Response<BoxBody> {
        self.metrics.errors.observe_reject(failure.code);
        let body = Bytes::from(failure.to_body(&reply.call.ids, reply.call.is_batch));
        let mut response = respond::failure(failure, &[], false);
        *response.body_mut() = match claim {
            Some((attachment, receipt)) => {
                let receipts = reply.connection.receipts().clone();
                Kept::new(body, attachment, receipt, receipts).boxed_unsync()
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
        // A retry does not show that its client would come back by GET.
        let plan = self.plan(&attachment, version, reply.session.as_deref(), false);
        let has_turns = self.takes_turns(attachment.stream(), reply.session.as_deref());
        let plan = Plan { has_turns, preface: reply.beginning.has_gap.then(Vec::new), ..plan };
        let receipts = reply.connection.receipts().clone();
        let body =
            Follow::new(attachment, receipt, receipts, self.metrics.delivery.clone(), plan, reply.beginning.start);
        if head.is_none() {
            self.metrics.observe_commit();
        }
        self.respond_with(head.map(|(status, head)| (status, head.clone())), reply.query.as_deref(), body)
    }

    fn pass(&self, plain: &Plain, reply: &Reply, attachment: Attachment, receipt: Receipt) -> Response<BoxBody> {
        let body = match plain.kept_body() {
            Some(bytes) => {
                let receipts = reply.connection.receipts().clone();
                Kept::new(bytes.clone(), attachment, receipt, receipts).boxed_unsync()
            }
            None => match plain.take_passing() {
                Some(body) => Passthrough::new(body, attachment.stream(), self.metrics.delivery.clone()).boxed_unsync(),
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
        let collected = stream.collect();
        let responses = collected.as_ref().map_or(0, |collected| collected.responses);
        let others = stream.look(|machine| machine.tail().0).saturating_sub(responses as u64);
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
        headers::expose_ours(&mut headers);
        response.headers_mut().extend(headers);
        *response.body_mut() = Kept::new(body, attachment, receipt, receipts).followed_by(pieces).boxed_unsync();
        response
    }
}

/// Polls for the head of a response that begins when all results are there, for a client that takes no stream.
fn poll_answer(attachment: &Attachment, cx: &mut Context<'_>) -> Poll<Head> {
    let head = ready!(attachment.poll_head_anyway(cx));
    if matches!(head, Head::Stream(..) | Head::Committed) {
        ready!(attachment.poll_answered(cx));
    }
    Poll::Ready(head)
}
