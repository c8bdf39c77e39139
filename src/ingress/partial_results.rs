//! Calls that are answered in slices: which they are, the same call with a token, and the end of a slice.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::call::{Beginning, Reply};
use super::metrics::{Dialect, Resumed};
use super::request_log::log_return;
use super::token_refresh::Unproven;
use super::{Ingress, RequestContext};
use crate::body::BoxBody;
use crate::clock;
use crate::config::ResumeTokens;
use crate::delivery::Start;
use crate::dialect::{self, Resumption};
use crate::event_log::{self, Attachment, Slicing};
use crate::protocol::classify;
use crate::protocol::dialect::resume_tokens::{self, CALLS_TOOL, Form, Names, Said, Sameness};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{self, Era};
use crate::protocol::jsonrpc;
use crate::protocol::stream::Phase;
use crate::upstream::Running;

/// A request that is to be answered in slices by the configuration.
struct Configured {
    method: String,
    /// The tool it calls.
    tool: Option<String>,
}

impl Ingress {
    /// What answers of this call are read and edited by, if it lists the tools of a client that may be answered in slices.
    pub(super) fn listed(&self, call: &classify::Call) -> Option<Arc<ResumeTokens>> {
        let tokens = self.config.dialects.resume_tokens.as_ref()?;
        (call.lists_tools && call.era() == Era::Legacy && !tokens.tools.is_empty()).then(|| tokens.clone())
    }

    fn configured(&self, message: &[u8]) -> Option<Configured> {
        let tokens = self.config.dialects.resume_tokens.as_ref()?;
        let method: String = serde_json::from_str(jsonrpc::member(message, &["method"])?).ok()?;
        if method != CALLS_TOOL {
            return tokens.methods.contains(&method).then_some(Configured { method, tool: None });
        }
        let tool = jsonrpc::tool_name(message).filter(|tool| tokens.tools.contains(tool))?;
        Some(Configured { method, tool: Some(tool) })
    }

    /// The token of a call; [`Said::Nothing`] for every call that nothing is configured for.
    pub(super) fn token_of(&self, call: &classify::Call, body: &[u8]) -> Said {
        if self.config.dialects.resume_tokens.is_none() || call.era() == Era::Modern {
            return Said::Nothing;
        }
        let said = |message: &str| {
            let message = message.as_bytes();
            self.configured(message).map_or(Said::Nothing, |Configured { method, .. }| Said::of(message, &method))
        };
        let said =
            jsonrpc::messages(body).into_iter().map(said).find(|said| !matches!(said, Said::Nothing | Said::Null));
        match said {
            None if !call.batch => {
                self.configured(body).map_or(Said::Nothing, |Configured { method, .. }| Said::of(body, &method))
            }
            said => said.unwrap_or(Said::Nothing),
        }
    }

    /// A call of a tool that may be answered in slices, and that no list has shown yet, lets the upstream be asked for one first.
    pub(super) async fn learn_tool(&self, context: &RequestContext, call: &classify::Call, body: &[u8]) {
        let Some(tokens) = self.config.dialects.resume_tokens.as_ref() else { return };
        if call.batch || !call.calls_tool || call.era() == Era::Modern {
            return;
        }
        let tool = self.configured(body).and_then(|configured| configured.tool);
        if let Some(tool) = tool.filter(|tool| !self.upstream.learned().knows(tool)) {
            let client = context.connection.forwarded();
            Box::pin(self.upstream.find_tool(&context.parts, client, tokens, &tool)).await;
        }
    }

    /// How the stream of a new call is sliced. A tool is none that may have an `outputSchema`: clients refuse a result without what
    /// that wants, so it must have been seen in a list.
    pub(super) fn slicing(&self, call: &classify::Call, body: &[u8]) -> Option<Slicing> {
        let length = self.config.dialects.resume_tokens.as_ref()?.slice;
        if call.batch || call.era() == Era::Modern {
            return None;
        }
        let Configured { method, tool } = self.configured(body)?;
        if tool.is_some_and(|tool| !self.upstream.learned().is_plain(&tool)) {
            return None;
        }
        let sameness = Sameness::of(body, &method)?;
        Some(Slicing { sameness, form: Form::of(&method), length, first: names(call, body)? })
    }

    /// A call that says something of a token.
    pub(super) async fn call_with_token(
        self: Arc<Self>,
        context: Box<RequestContext>,
        call: classify::Call,
        body: Bytes,
        said: Said,
    ) -> Response<BoxBody> {
        let Some(Configured { method, .. }) = self.configured(&body) else {
            return self.refuse_call(ErrorCode::NotInBatch, &call);
        };
        match said {
            Said::Token(token) => self.resume_call(context, call, &method, &body, token.as_deref()).await,
            Said::Nothing | Said::Null => {
                let body = resume_tokens::without_token(&body, &method).into();
                self.call(context, call, body).await
            }
        }
    }

    /// The same call again, to go on with: never sent on.
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
        let sameness = Sameness::of(body, method);
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
        // By which the client cancels it, and answers what it asks.
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
        self.reply(reply, attachment, Running::default()).await
    }

    /// Waits until the slice that `attachment` reads is over and its response has to begin: the interim result, or `None` where the
    /// real one is there. For ever where the stream is not sliced.
    pub(super) async fn slice_over(&self, reply: &Reply, attachment: Option<&Attachment>) -> Option<Vec<u8>> {
        let Some((attachment, slice)) = attachment.and_then(|it| Some((it, it.slice()?))) else {
            return pending().await;
        };
        clock::sleep_until(slice.ends_at()).await;
        let stream = attachment.stream();
        if !reply.may_begin && stream.look(|machine| machine.phase() == Phase::Waiting) {
            poll_fn(|cx| attachment.poll_head_anyway(cx)).await;
        }
        let is_due = stream.look(|machine| !machine.debts().is_settled());
        if !is_due || !stream.commit() {
            return None;
        }
        self.log.publish_once(stream);
        dialect::resume_tokens::interim(stream, slice).map(|interim| interim.message)
    }
}

/// What a call is called; `None` where that is longer than what is kept for every slice.
fn names(call: &classify::Call, body: &[u8]) -> Option<Names> {
    const MAX_BYTES: usize = 256;
    let id = call.ids.first()?.clone();
    let names = Names { id, progress: resume_tokens::progress_token(body) };
    let is_short =
        [Some(&names.id), names.progress.as_ref()].into_iter().flatten().all(|name| name.text().len() <= MAX_BYTES);
    is_short.then_some(names)
}
