//! Admission of calls during a drain, and the settings of each call.

use std::sync::Arc;

use super::request::CallRequest;
use crate::clock;
use crate::config::{self, Config};
use crate::ingress::components::Components;
use crate::lifecycle::drain::Drain;
use crate::protocol::jsonrpc;

/// Decides which POSTs may begin a call, and its settings.
#[derive(Clone)]
pub(super) struct Admission {
    config: Arc<Config>,
    drain: Arc<Drain>,
}

impl Admission {
    pub(super) fn new(components: &Components) -> Self {
        Self { config: components.config.clone(), drain: components.drain.clone() }
    }

    /// True if the POST may begin a call. During a drain only requests other than tool calls may,
    /// while a call of their session runs or has just ended: some clients list the tools before
    /// they use a result, and lose it if the list is refused.
    pub(super) fn can_admit(&self, request: &CallRequest) -> bool {
        let CallRequest { context, call, .. } = request;
        let is_busy = || context.session.as_ref().is_some_and(|session| session.is_busy(clock::now()));
        !self.drain.is_refusing_calls() || (!call.has_tool_call() && !call.is_opening() && is_busy())
    }

    /// Returns the settings for this call. The name of its tool is read only if some tool has
    /// settings of its own.
    pub(super) fn settings(&self, request: &CallRequest) -> config::Call {
        let has_own = request.call.has_tool_call() && !self.config.tools.is_empty();
        let tool = if has_own { jsonrpc::tool_name(&request.body) } else { None };
        self.config.call(tool.as_deref())
    }
}
