//! GET and DELETE on the endpoint: resumes, the standalone stream, and the end of a session.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;

use super::metrics::{Dialect, Resumed};
use super::request_log::log_return;
use super::token_refresh::Unproven;
use super::{Ingress, RequestContext, head_bytes, respond};
use crate::body::{BoxBody, whole};
use crate::clock;
use crate::delivery::{Follow, Plan, Receipt, Start, lost_event};
use crate::event_log::{self, Attachment, Binding, Head, Session, Slice, Spec, Stream, Unreachable};
use crate::protocol::dialect::Declared;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, Accept, Era, ProtocolVersion, SessionId};
use crate::protocol::ids::{Cursor, EventId, Seq, StreamKind, Verified};
use crate::protocol::stream::{Place, Policy};
use crate::simulation::{self, Bug};
use crate::upstream::{ResponseObserver, gap_warning};

/// Time for the owner of a stream to say whether it has more than the store.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);

impl Ingress {
    /// Handles a GET with an event ID of the proxy.
    pub(super) async fn resume(self: Arc<Self>, mut context: Box<RequestContext>, id: EventId) -> Response<BoxBody> {
        if !headers::accept(&context.parts.headers).sse {
            return self.refuse(ErrorCode::NotAcceptable);
        }
        self.wait_for_resume_turn(&mut context).await;
        if id.cursor() == Cursor::End {
            return self.at_end(Dialect::LastEventId);
        }
        let found = match self.find_stream(&context, &id).await {
            Ok(found) => found,
            Err(unproven) => return self.refuse_unproven(unproven),
        };
        let placed = found.and_then(|(stream, cursor)| {
            let place = stream.look(|machine| machine.locate(cursor));
            let slice = stream.find_slice(id.handle_text());
            let is_known = slice.is_some() || stream.slicing().is_none();
            is_known.then_some((stream, cursor, slice, place))
        });
        let is_standalone = id.unverified_kind() == Some(StreamKind::Standalone);
        match placed {
            Some((stream, cursor, slice, Place::After(_))) => self.resume_at(&context, &stream, slice, cursor),
            // Later messages of its server are lost.
            Some((stream, _, _, Place::AtEnd)) if is_standalone && stream.has_ended_with_its_process() => {
                self.standalone_lost(context, Dialect::LastEventId).await
            }
            Some((_, _, _, Place::AtEnd)) if is_standalone => self.standalone(context).await,
            Some((stream, cursor, _, Place::AtEnd)) => {
                stream.note_return(Some(cursor));
                self.at_end(Dialect::LastEventId)
            }
            Some((_, _, _, Place::Lost)) | None if is_standalone => {
                self.standalone_lost(context, Dialect::LastEventId).await
            }
            Some((_, _, _, Place::Lost)) | None => {
                self.metrics.observe_resume(Dialect::LastEventId, Resumed::Lost);
                respond::stream(whole(lost_event(&id)).map_err(Into::into))
            }
        }
    }

    /// Waits for the resume rate. Stock clients try to resume about twice, so a resume above the rate waits instead of being refused. The wait
    /// comes before any look-up, so that a hostile cursor waits as long as a good one. A client that leaves gives up its place.
    pub(super) async fn wait_for_resume_turn(&self, context: &mut RequestContext) {
        if !context.quota.try_resume() {
            context.reserve();
            self.metrics.observe_delayed_resume();
            context.quota.wait_for_resume().await;
        }
    }

    /// Returns the stream of an event ID and the cursor in it, for the caller with this credential or an older one.
    pub(super) async fn find_stream(
        &self,
        context: &RequestContext,
        id: &EventId,
    ) -> Result<Option<(Arc<Stream>, Seq)>, Unproven> {
        let verified = self.log.verify(id);
        // Twice: another replica may take the stream before it is found here.
        for _ in 0..if self.log.has_store() { 2 } else { 1 } {
            self.restore(context, id, verified.as_ref()).await?;
            let found = self.log.find(verified.as_ref(), &context.binding).filter(|(stream, _)| !stream.has_moved());
            if found.is_some() {
                return Ok(found);
            }
        }
        self.find_by_previous_token(context, verified.as_ref()).await
    }

    /// Restores a stream that only the store has. A store that cannot be asked is not an empty one: the client must retry.
    pub(super) async fn restore(
        &self,
        context: &RequestContext,
        id: &EventId,
        verified: Option<&Verified>,
    ) -> Result<(), Unproven> {
        // A forged ID is not worth a question to the store.
        let Some(verified) = verified else { return Ok(()) };
        let unreachable = Unproven::Unavailable(self.owner_unreachable_error(context, id));
        match self.log.restore(verified).await {
            Ok(()) if self.is_ahead_at_owner(verified).await => Err(unreachable),
            Ok(()) => Ok(()),
            Err(Unreachable) => Err(unreachable),
        }
    }

    /// True if a live replica has the event that an ID names, and the store does not have it yet. A replica that does not respond counts
    /// as one.
    async fn is_ahead_at_owner(&self, verified: &Verified) -> bool {
        let Some(replicas) = &self.replicas else { return false };
        let Some((owner, stream, seq)) = self.log.may_be_ahead(verified) else { return false };
        let asking = replicas.requests().position_at(owner, stream);
        match tokio::time::timeout(OWNER_TIMEOUT, asking).await {
            Ok(Ok(upto)) => upto.is_some_and(|upto| seq <= upto),
            Ok(Err(_)) | Err(_) => true,
        }
    }

    pub(super) fn at_end(&self, by: Dialect) -> Response<BoxBody> {
        self.metrics.observe_resume(by, Resumed::AtEnd);
        respond::status(StatusCode::NO_CONTENT)
    }

    fn resume_at(
        &self,
        context: &RequestContext,
        stream: &Arc<Stream>,
        slice: Option<Arc<Slice>>,
        cursor: Seq,
    ) -> Response<BoxBody> {
        self.metrics.observe_resume(Dialect::LastEventId, Resumed::Served);
        let cursor = match simulation::has(Bug::TrustsWhatWasWritten) {
            true => stream.look(|machine| machine.reader().written().max(cursor)),
            false => cursor,
        };
        stream.note_return(Some(cursor));
        log_return(stream, Dialect::LastEventId.label(), cursor);
        if let Some(session) = &context.session {
            session.note_return();
        }
        let attachment = stream.attach(event_log::new_attach(), cursor).under(slice);
        let body = self.follow_again(context, attachment, Start::After(cursor), None, None);
        self.respond_with(None, context.parts.uri.query(), body)
    }

    pub(super) fn follow_again(
        &self,
        context: &RequestContext,
        attachment: Attachment,
        start: Start,
        preface: Option<Vec<u8>>,
        closing: Option<Vec<u8>>,
    ) -> Follow {
        let stream = attachment.stream().clone();
        let returning = matches!(start, Start::After(_));
        let version = self.client_version(context);
        let plan = Plan {
            preface,
            closing,
            ..self.plan(&attachment, version.as_ref(), context.session.as_deref(), returning)
        };
        let receipt = Receipt::new(self.log.clone(), stream);
        let receipts = context.connection.receipts().clone();
        Follow::new(attachment, receipt, receipts, self.metrics.delivery.clone(), plan, start)
    }

    /// Handles a GET without an event ID: attaches to the session's standalone stream, after the last event written to any connection.
    pub(super) async fn standalone(self: Arc<Self>, context: Box<RequestContext>) -> Response<BoxBody> {
        let Some(id) = context.binding.session.clone() else {
            // Without a session the stream could not be found again.
            return self.forward_read(context, Bytes::new()).await;
        };
        if let Some(session) = &context.session {
            session.wait_idle().await;
        }
        let stream = match self.find_standalone(&context, &id).await {
            Ok(stream) => stream,
            Err(unproven) => return self.refuse_unproven(unproven),
        };
        match stream {
            Some(stream) => {
                let (cursor, preface) = self.after_written(&context, &stream);
                self.join_standalone(&context, &stream, cursor, preface).await
            }
            None => self.open_standalone(&context, &id, None).await,
        }
    }

    /// Returns the cursor after the last event written to any connection, and the preface if events were dropped before they were written.
    fn after_written(&self, context: &RequestContext, stream: &Stream) -> (Seq, Option<Vec<u8>>) {
        let (written, trimmed) = stream.look(|machine| (machine.reader().written(), machine.trimmed()));
        let preface = (written < trimmed).then(|| self.gap_preface(context));
        (written.max(trimmed), preface)
    }

    /// Counts a gap of a standalone stream, and returns the preface for its client.
    fn gap_preface(&self, context: &RequestContext) -> Vec<u8> {
        self.metrics.event_log.observe_gap();
        let logs = context.session.as_ref().is_some_and(|session| session.logs());
        if logs { gap_warning() } else { Vec::new() }
    }

    /// Handles a resume whose event is gone while its session lives: continues with the oldest retained event, and tells the client of the
    /// gap.
    pub(super) async fn standalone_lost(
        self: Arc<Self>,
        context: Box<RequestContext>,
        by: Dialect,
    ) -> Response<BoxBody> {
        self.metrics.observe_resume(by, Resumed::Lost);
        let Some(id) = &context.binding.session else {
            return self.forward_read(context, Bytes::new()).await;
        };
        let preface = Some(self.gap_preface(&context));
        let stream = match self.find_standalone(&context, id).await {
            Ok(stream) => stream,
            Err(unproven) => return self.refuse_unproven(unproven),
        };
        match stream {
            Some(stream) => {
                let oldest = stream.look(|machine| machine.trimmed());
                self.join_standalone(&context, &stream, oldest, preface).await
            }
            None => self.open_standalone(&context, id, preface).await,
        }
    }

    /// Returns the session's standalone stream, which any of the caller's tokens may have opened.
    async fn find_standalone(&self, context: &RequestContext, id: &SessionId) -> Result<Option<Arc<Stream>>, Unproven> {
        match self.log.sessions().standalone(id, &context.binding.principal) {
            Some(stream) => Ok(Some(stream)),
            None => self.previous_standalone(context, id).await,
        }
    }

    async fn open_standalone(
        &self,
        context: &RequestContext,
        id: &SessionId,
        preface: Option<Vec<u8>>,
    ) -> Response<BoxBody> {
        if let Some(code) = self.remote_session_error(context) {
            return self.refuse(code);
        }
        // Requests of the server during a call may come on this stream.
        let is_busy = || context.session.as_ref().is_some_and(|session| session.is_busy(clock::now()));
        if self.drain.is_refusing_calls() && !is_busy() {
            return self.refuse(ErrorCode::Draining);
        }
        if self.replicas.is_some() {
            Box::pin(self.join_session(context)).await;
        }
        let reservation = match self.log.admit_standalone(&context.quota, head_bytes(&context.parts)) {
            Ok(reservation) => reservation,
            Err(code) => return self.refuse(code),
        };
        let spec = Spec {
            policy: self.standalone_policy(),
            binding: context.binding.clone(),
            ids: Vec::new(),
            batch: false,
            polls: false,
            body: None,
            slicing: None,
        };
        let stream = self.log.create(spec, reservation);
        if let Some(living) = self.log.sessions().set_standalone(id, &context.binding.principal, &stream) {
            let (cursor, preface) = match preface {
                Some(told) => (living.look(|machine| machine.trimmed()), Some(told)),
                None => self.after_written(context, &living),
            };
            return self.join_standalone(context, &living, cursor, preface).await;
        }
        self.announce(context.session.as_deref(), &stream, Declared { resumable_requests: false, ..Declared::ALL });
        let template = self.upstream.call(&context.parts, context.connection.forwarded(), Bytes::new());
        let attachment = stream.attach(event_log::new_attach(), Seq(0));
        // The pump outlives this request as a rule.
        drop(self.pump(context, template, Accept { json: true, sse: true }, ResponseObserver::default(), &stream));
        let head = poll_fn(|cx| attachment.poll_head(cx)).await;
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
        stream.note_return(None);
        let attachment = stream.attach(event_log::new_attach(), cursor);
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
                let body = plain.kept_body().cloned().map(whole).or_else(|| plain.take_passing());
                // Another GET has the body. This client may ask again.
                let Some(body) = body else {
                    return respond::failure(Failure::after_send(ErrorCode::UpstreamBroke), &[], false);
                };
                let mut response = Response::new(body);
                *response.status_mut() = plain.status;
                *response.headers_mut() = plain.headers.clone();
                response
            }
            Head::Failed(failure) => {
                self.metrics.errors.observe_reject(failure.code);
                respond::failure(failure, &[], false)
            }
            Head::Stream(status, head) => {
                let body = self.follow_again(context, attachment, start, preface, None);
                self.respond_with(Some((status, head.as_ref().clone())), context.parts.uri.query(), body)
            }
            // A newer GET took over before there was a head: this response ends at once.
            Head::TakenOver | Head::Committed | Head::Waiting => {
                let body = self.follow_again(context, attachment, start, preface, None);
                self.respond_with(None, context.parts.uri.query(), body)
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
            full_wait: streams.full_wait,
            linger: streams.linger,
            input_grace: self.config.dialects.input_grace,
            commit_after: None,
            retry: self.config.delivery.retry,
            can_pause: false,
            should_resume_hard_cuts: true,
            should_refuse_requests: false,
            should_announce_cancel: false,
        }
    }

    /// Handles a DELETE. The upstream decides; once it has ended the session, its streams end here. A stream that had ended before stays
    /// readable for its retention.
    pub(super) async fn delete(self: Arc<Self>, context: Box<RequestContext>, body: Bytes) -> Response<BoxBody> {
        let binding = context.binding.clone();
        let sessions = self.log.sessions();
        if context.has_issued_session() {
            let elsewhere = Box::pin(self.forward_to_all(&context)).await.unwrap_or_default();
            let refusal = elsewhere.filter(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE);
            return match refusal {
                Some(refusal) => refusal,
                None => self.end_issued(&context).await,
            };
        }
        let is_home =
            !context.has_remote_session() && context.session.as_ref().is_some_and(|session| session.is_home());
        let mut owner_unknown = None;
        if !is_home {
            match Box::pin(self.forward_session_end(&context)).await {
                Ok(Some(response)) => {
                    if response.status() != StatusCode::SERVICE_UNAVAILABLE {
                        self.log.forget_session_of(&binding).await;
                    }
                    return response;
                }
                Ok(None) => {}
                Err(unknown) => owner_unknown = Some(unknown),
            }
        }
        if let Some(code) = self.remote_session_error(&context) {
            return self.refuse(code);
        }
        let has_streams = |id: &SessionId, session: &Session| !sessions.streams(id, session).is_empty();
        let previous = match self.previous_sessions(&context, has_streams).await {
            Ok(previous) => previous,
            Err(unproven) => return self.refuse_unproven(unproven),
        };
        let template = self.upstream.pass(&context.parts, context.connection.forwarded(), body);
        let mut response = self.send_whole(&template).await;
        if let Some(owner_unknown) = owner_unknown {
            response = owner_unknown.check(&self, response);
        }
        let over = response.status().is_success() || response.status() == StatusCode::NOT_FOUND;
        if over && let Some(id) = &binding.session {
            let of_old: Vec<_> = previous.iter().flat_map(|record| sessions.streams(id, record)).collect();
            self.end_session(&binding).await;
            of_old.iter().for_each(|stream| stream.expire(ErrorCode::Abandoned));
            for record in &previous {
                drop(self.log.forget_session(id, record.principal()).await);
            }
            self.announce_session_end(&context).await;
        }
        response
    }

    /// Ends the streams of a session that its server has ended, and forgets the session.
    pub(super) async fn end_session(&self, binding: &Binding) {
        let Some(id) = &binding.session else { return };
        let session = self.log.forget_session(id, &binding.principal).await;
        let streams = session.iter().flat_map(|session| session.streams());
        let ended = streams.chain(self.log.sessions().standalone(id, &binding.principal));
        ended.for_each(|stream| stream.expire(ErrorCode::Abandoned));
    }

    /// Ends an issued session, of which the upstream knows nothing.
    async fn end_issued(&self, context: &RequestContext) -> Response<BoxBody> {
        let sessions = self.log.sessions();
        if let (Some(id), Some(session)) = (&context.binding.session, &context.session) {
            sessions.streams(id, session).iter().for_each(|stream| stream.expire(ErrorCode::Abandoned));
            drop(sessions.remove(id, &context.binding.principal));
            self.log.leave_session(id, session).await;
        }
        respond::status(StatusCode::OK)
    }

    /// Returns the protocol version of a GET: its own, else its session's.
    pub(super) fn client_version(&self, context: &RequestContext) -> Option<ProtocolVersion> {
        let session = context.session.as_deref().and_then(Session::version);
        ProtocolVersion::from_headers(&context.parts.headers).or_else(|| session.cloned())
    }
}
