//! Partial results: the decision which calls get them, and the slicing of their streams.

use std::sync::Arc;

use crate::config::ResumeTokens;
use crate::event_log::Slicing;
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::protocol::classify;
use crate::protocol::dialect::resume_tokens::{self, CALLS_TOOL, CallDigest, Form, Names, TokenField};
use crate::protocol::headers::Era;
use crate::protocol::jsonrpc;

/// A call that the configuration allows partial results for. Decided once, when the call is
/// classified.
pub(super) struct PartialResults {
    pub(super) method: String,
    /// Name of the tool, for a call of one.
    pub(super) tool: Option<String>,
}

impl PartialResults {
    /// Reads the method and the tool of a message, or returns `None` if no configuration covers it.
    pub(super) fn of(tokens: &ResumeTokens, message: &[u8]) -> Option<Self> {
        let method: String = serde_json::from_str(jsonrpc::member(message, &["method"])?).ok()?;
        if method != CALLS_TOOL {
            return if tokens.methods.contains(&method) { Some(Self { method, tool: None }) } else { None };
        }
        let tool = jsonrpc::tool_name(message).filter(|tool| tokens.tools.contains(tool))?;
        Some(Self { method, tool: Some(tool) })
    }
}

/// Configuration for the edit of the response, if the call lists the tools of a client that may
/// get partial results.
pub(super) fn edited_list(components: &Components, call: &classify::Call) -> Option<Arc<ResumeTokens>> {
    let tokens = components.config.dialects.resume_tokens.as_ref()?;
    if call.has_tool_list() && call.era() == Era::Legacy && !tokens.tools.is_empty() {
        Some(tokens.clone())
    } else {
        None
    }
}

/// Decides whether a call may get partial results, and reads its token: [`TokenField::Absent`]
/// for a call that nothing is configured for.
pub(super) fn decide(
    components: &Components,
    call: &classify::Call,
    body: &[u8],
) -> (Option<Box<PartialResults>>, TokenField) {
    let tokens = match &components.config.dialects.resume_tokens {
        Some(tokens) if call.era() == Era::Legacy => tokens,
        Some(_) | None => return (None, TokenField::Absent),
    };
    if !call.is_batch {
        let partial = PartialResults::of(tokens, body);
        let token = partial.as_ref().map_or(TokenField::Absent, |partial| TokenField::of(body, &partial.method));
        return (partial.map(Box::new), token);
    }
    // A batch gets no partial results: a token in it is refused.
    let token_of = |message: &str| {
        let message = message.as_bytes();
        PartialResults::of(tokens, message)
            .map_or(TokenField::Absent, |partial| TokenField::of(message, &partial.method))
    };
    let mut tokens = jsonrpc::messages(body).into_iter().map(token_of);
    (None, tokens.find(|token| !matches!(token, TokenField::Absent | TokenField::Null)).unwrap_or(TokenField::Absent))
}

/// Requests from the upstream the schema of a tool that may get partial results and that no
/// list has shown yet.
pub(super) async fn observe_tool(
    components: &Components,
    context: &RequestContext,
    call: &classify::Call,
    partial: Option<&PartialResults>,
) {
    let Some(tokens) = components.config.dialects.resume_tokens.as_ref() else { return };
    if let Some(PartialResults { tool: Some(tool), .. }) = partial
        && call.has_tool_call()
        && !components.upstream.observed().has_listed(tool)
    {
        let request = (&context.parts, context.connection.forwarded());
        Box::pin(components.upstream.find_tool(request, context.caller.as_ref(), tokens, tool)).await;
    }
}

/// Returns the slicing of a new call's stream. A tool that may have an `outputSchema` gets
/// none: clients refuse a result without what the schema requires, so a list must have shown
/// the tool without one.
pub(super) fn slicing(
    components: &Components,
    call: &classify::Call,
    partial: &PartialResults,
    body: &[u8],
) -> Option<Slicing> {
    let length = components.config.dialects.resume_tokens.as_ref()?.slice;
    let PartialResults { method, tool } = partial;
    if tool.as_ref().is_some_and(|tool| !components.upstream.observed().is_plain(tool)) {
        return None;
    }
    let sameness = CallDigest::of(body, method)?;
    Some(Slicing { sameness, form: Form::of(method), length, first: names_of(call, body)? })
}

/// Returns the IDs of a call, or `None` if they are longer than a slice may keep.
pub(super) fn names_of(call: &classify::Call, body: &[u8]) -> Option<Names> {
    const MAX_BYTES: usize = 256;
    let id = call.ids.first()?.clone();
    let names = Names { id, progress: resume_tokens::progress_token(body) };
    let is_short =
        [Some(&names.id), names.progress.as_ref()].into_iter().flatten().all(|name| name.text().len() <= MAX_BYTES);
    if is_short { Some(names) } else { None }
}
