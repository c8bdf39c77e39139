//! Calls with partial results: the decision which calls get them, the same call again with a token, and the end of a slice.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::request::{Beginning, PartialResults, Reply};
use crate::body::BoxBody;
use crate::clock;
use crate::config::ResumeTokens;
use crate::delivery::Start;
use crate::dialect::{self, Resumption};
use crate::event_log::{self, Attachment, Slicing};
use crate::ingress::metrics::{Dialect, Resumed};
use crate::ingress::request_log::log_return;
use crate::ingress::token_refresh::Unproven;
use crate::ingress::{Ingress, RequestContext};
use crate::protocol::classify;
use crate::protocol::dialect::resume_tokens::{self, CallDigest, Form, Names, TokenField};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, Era};
use crate::protocol::jsonrpc;
use crate::protocol::stream::Phase;
use crate::upstream::InlineTask;

impl Ingress {
    /// Configuration by which the response to this call is read and edited, if it lists the tools of a client that may get partial results.
    pub(in crate::ingress) fn listed(&self, call: &classify::Call) -> Option<Arc<ResumeTokens>> {
        let tokens = self.config.dialects.resume_tokens.as_ref()?;
        if call.has_tool_list && call.era() == Era::Legacy && !tokens.tools.is_empty() {
            Some(tokens.clone())
        } else {
            None
        }
    }

    /// Decides whether a call may get partial results, and reads its token: [`TokenField::Absent`] for a call that nothing is configured for.
    pub(in crate::ingress) fn partial_results(
        &self,
        call: &classify::Call,
        body: &[u8],
    ) -> (Option<Box<PartialResults>>, TokenField) {
        let tokens = match &self.config.dialects.resume_tokens {
            Some(tokens) if call.era() == Era::Legacy => tokens,
            Some(_) | None => return (None, TokenField::Absent),
        };
        if !call.is_batch {
            let partial = PartialResults::of(tokens, body);
            let said = partial.as_ref().map_or(TokenField::Absent, |partial| TokenField::of(body, &partial.method));
            return (partial.map(Box::new), said);
        }
        // A batch gets no partial results: a token in it is refused.
        let said = |message: &str| {
            let message = message.as_bytes();
            PartialResults::of(tokens, message)
                .map_or(TokenField::Absent, |partial| TokenField::of(message, &partial.method))
        };
        let mut said = jsonrpc::messages(body).into_iter().map(said);
        (None, said.find(|said| !matches!(said, TokenField::Absent | TokenField::Null)).unwrap_or(TokenField::Absent))
    }

    /// Asks the upstream for the schema of a tool that may get partial results and that no list has shown yet.
    pub(in crate::ingress) async fn learn_tool(
        &self,
        context: &RequestContext,
        call: &classify::Call,
        partial: Option<&PartialResults>,
    ) {
        let Some(tokens) = self.config.dialects.resume_tokens.as_ref() else { return };
        if let Some(PartialResults { tool: Some(tool), .. }) = partial
            && call.has_tool_call
            && !self.upstream.observed().has_listed(tool)
        {
            let client = context.connection.forwarded();
            Box::pin(self.upstream.find_tool(&context.parts, client, tokens, tool)).await;
        }
    }

    /// Returns the slicing of a new call's stream. A tool that may have an `outputSchema` gets none: clients refuse a result without what
    /// the schema requires, so a list must have shown the tool without one.
    pub(in crate::ingress) fn slicing(
        &self,
        call: &classify::Call,
        partial: &PartialResults,
        body: &[u8],
    ) -> Option<Slicing> {
        let length = self.config.dialects.resume_tokens.as_ref()?.slice;
        let PartialResults { method, tool } = partial;
        if tool.as_ref().is_some_and(|tool| !self.upstream.observed().is_plain(tool)) {
            return None;
        }
        let sameness = CallDigest::of(body, method)?;
        Some(Slicing { sameness, form: Form::of(method), length, first: names(call, body)? })
    }

    /// Handles a call with a token.
    pub(in crate::ingress) async fn call_with_token(
        self: Arc<Self>,
        context: Box<RequestContext>,
        call: classify::Call,
        body: Bytes,
        partial: Option<Box<PartialResults>>,
        said: TokenField,
    ) -> Response<BoxBody> {
        let Some(partial) = partial else {
            return self.refuse_call(ErrorCode::NotInBatch, &call);
        };
        match said {
            TokenField::Token(token) => self.resume_call(context, call, &partial.method, &body, token.as_deref()).await,
            TokenField::Absent | TokenField::Null => {
                let body = resume_tokens::without_token(&body, &partial.method).into();
                self.call(context, call, body, Some(partial)).await
            }
        }
    }

    /// Continues a call that comes again with its token. It is never sent upstream.
    async fn resume_call(
        self: Arc<Self>,
        mut context: Box<RequestContext>,
        call: classify::Call,
        method: &str,
        body: &[u8],
        token: Option<&str>,
    ) -> Response<BoxBody> {
        let accept = headers::accept(&context.parts.headers);
        if !accept.json && !accept.sse {
            return self.refuse_call(ErrorCode::NotAcceptable, &call);
        }
        let Some(names) = names(&call, body) else { return self.refuse_call(ErrorCode::BadRequest, &call) };
        self.wait_for_resume_turn(&mut context).await;
        let sameness = CallDigest::of(body, method);
        let found = match self.find_by_token(&context, token).await {
            Ok(found) => found,
            Err(Unproven::Unavailable(code)) => return self.refuse_call(code, &call),
            Err(unproven) => return self.refuse_unproven(unproven),
        };
        let resumption = found.and_then(|stream| {
            let cursor = self.cursor_in(&context, &stream);
            dialect::resume_tokens::resume(stream, sameness, names, cursor)
        });
        let Some(Resumption { stream, after, has_gap, slice, .. }) = resumption else {
            self.metrics.observe_resume(Dialect::ResumeTokens, Resumed::Lost);
            return self.refuse_call(ErrorCode::TokenRefused, &call);
        };
        self.metrics.observe_resume(Dialect::ResumeTokens, Resumed::Served);
        log_return(&stream, Dialect::ResumeTokens.label(), after);
        if has_gap {
            self.metrics.event_log.observe_gap();
        }
        // By the session the client cancels the call and answers its requests.
        if let Some(session) = &context.session {
            session.join_stream(&stream);
        }
        let attachment = stream.attach(event_log::new_attach(), after).under(slice);
        let beginning = Beginning { start: Start::After(after), has_gap };
        context.reservation = None;
        let RequestContext { parts, session, connection, .. } = *context;
        let query = parts.uri.query().map(Box::from);
        drop(parts);
        let reply = Reply { call, accept, query, session, connection, beginning, may_begin: true };
        self.reply(reply, attachment, InlineTask::default()).await
    }

    /// Waits until the slice that `attachment` reads is over and its response must begin. Returns the interim result, or `None` if the
    /// final one is there. Never resolves for a stream without slices.
    pub(in crate::ingress) async fn slice_over(
        &self,
        reply: &Reply,
        attachment: Option<&Attachment>,
    ) -> Option<Vec<u8>> {
        let Some((attachment, slice)) = attachment.and_then(|it| Some((it, it.slice()?))) else {
            return pending().await;
        };
        clock::sleep_until(slice.ends_at()).await;
        let stream = attachment.stream();
        if !reply.may_begin && stream.look(|machine| machine.phase() == Phase::Waiting) {
            poll_fn(|cx| attachment.poll_head_anyway(cx)).await;
        }
        let is_due = stream.look(|machine| !machine.owed_responses().is_settled());
        if !is_due || !stream.commit() {
            return None;
        }
        self.log.publish_once(stream);
        dialect::resume_tokens::interim(stream, slice).map(|interim| interim.message)
    }
}

/// Returns the IDs of a call, or `None` if they are longer than a slice may keep.
fn names(call: &classify::Call, body: &[u8]) -> Option<Names> {
    const MAX_BYTES: usize = 256;
    let id = call.ids.first()?.clone();
    let names = Names { id, progress: resume_tokens::progress_token(body) };
    let is_short =
        [Some(&names.id), names.progress.as_ref()].into_iter().flatten().all(|name| name.text().len() <= MAX_BYTES);
    is_short.then_some(names)
}
