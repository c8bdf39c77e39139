//! Admission of calls during a drain, and the settings of each call.

use super::request::CallRequest;
use crate::clock;
use crate::config;
use crate::ingress::components::Components;

/// True if the POST may begin a call. During a drain only requests other than tool calls may,
/// while a call of their session runs or has just ended: some clients list the tools before
/// they use a result, and lose it if the list is refused.
pub(super) fn can_admit(components: &Components, request: &CallRequest) -> bool {
    let CallRequest { context, call, .. } = request;
    let is_busy = || context.session.as_ref().is_some_and(|session| session.is_busy(clock::now()));
    !components.drain.is_refusing_calls() || (!call.has_tool_call() && !call.is_opening() && is_busy())
}

/// Returns the settings for this call.
pub(super) fn settings(components: &Components, request: &CallRequest) -> config::Call {
    components.config.call(request.tool.as_deref())
}
