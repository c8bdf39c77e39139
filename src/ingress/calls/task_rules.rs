//! Calls and tasks: the calls that may become tasks, and the changes to requests and responses that
//! name tasks.
//!
//! Absent: requests `tasks/*` (`ingress/tasks/`), and the moment of the promotion (the pump).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::partial_results::names_of;
use crate::clock;
use crate::config::{Config, LegacyTasks, TaskSupport, Tasks};
use crate::event_log::{EventLog, Session};
use crate::ingress::components::Components;
use crate::protocol::classify::Call;
use crate::protocol::dialect::resume_tokens::{CALLS_TOOL, CallDigest, Names};
use crate::protocol::headers::{Era, ProtocolVersion};
use crate::protocol::ids::{IssuedSession, Owner};
use crate::protocol::jsonrpc;
use crate::protocol::stream::LegacyTask;
use crate::protocol::tasks::{self, TaskMethod, legacy};
use crate::upstream::Upstream;

/// Rules for the calls of one upstream.
pub(super) struct TaskRules {
    config: Arc<Config>,
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    /// True if some tool must be called by clients that declare tasks.
    has_required: bool,
}

/// A call that is to be a task by the client's request, at 2025-11-25.
pub(super) struct RequestedTask {
    pub(super) terms: LegacyTask,
    /// Names of the call at the server.
    pub(super) names: Names,
    pub(super) digest: CallDigest,
    /// Longest time without a request. Then the task is abandoned.
    pub(super) max_wait: Duration,
    /// Time that its outcome is kept.
    pub(super) retention: Duration,
}

/// Error: the tool does not support tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsupported;

/// Refusal of a client that does not declare tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undeclared;

impl TaskRules {
    pub(super) fn new(components: &Components) -> Self {
        let Components { config, log, upstream, .. } = components;
        let has_required =
            config.tasks.is_some() && config.tools.values().any(|tool| tool.task == Some(TaskSupport::Required));
        Self { config: config.clone(), log: log.clone(), upstream: upstream.clone(), has_required }
    }

    /// Returns the terms of the call's promotion to a task, or `None` if it stays a call: its
    /// request must declare the extension.
    pub(super) fn terms(&self, call: &Call, body: &[u8]) -> Option<Arc<Tasks>> {
        let tasks = self.config.tasks.as_ref().filter(|_| is_of_one_tool(call) && tasks::declares(body))?;
        let tool = if self.config.tools.is_empty() { None } else { jsonrpc::tool_name(body) };
        let tool = tool.and_then(|tool| self.config.tools.get(&tool));
        if tool.is_some_and(|tool| tool.task == Some(TaskSupport::Never)) {
            return None;
        }
        match tool.and_then(|tool| tool.task_after) {
            Some(after) => Some(Arc::new(Tasks { after, ..(**tasks).clone() })),
            None => Some(tasks.clone()),
        }
    }

    /// Refuses the call of a tool that only clients with tasks may call, by a client that does not
    /// declare them.
    pub(super) fn admit(&self, call: &Call, body: &[u8]) -> Result<(), Undeclared> {
        if !self.has_required || !is_of_one_tool(call) || tasks::declares(body) {
            return Ok(());
        }
        let tool = jsonrpc::tool_name(body).and_then(|tool| self.config.tools.get(&tool));
        let is_required = tool.is_some_and(|tool| tool.task == Some(TaskSupport::Required));
        if is_required { Err(Undeclared) } else { Ok(()) }
    }

    /// Returns the task that the client of a call wants at 2025-11-25, with the call as the server
    /// gets it; or `None` if it wants no task of the proxy.
    ///
    /// # Errors
    /// If the tool does not support tasks, or an ID is longer than a task can
    /// keep.
    pub(super) fn requested(
        &self,
        session: Option<&Session>,
        call: &Call,
        body: &[u8],
    ) -> Result<Option<(Box<RequestedTask>, Bytes)>, Unsupported> {
        let Some(tasks) = &self.config.tasks else { return Ok(None) };
        let Some(legacy) = &tasks.legacy else { return Ok(None) };
        let is_candidate = call.has_tool_call() && call.era() == Era::Legacy && !call.is_batch;
        if !is_candidate || !self.offers_in(session, call) {
            return Ok(None);
        }
        let Some(params) = legacy::task_params(body) else { return Ok(None) };
        if !jsonrpc::tool_name(body).is_some_and(|tool| legacy.has(&tool)) {
            return Err(Unsupported);
        }
        let body = legacy::without_task(body).map_or_else(|| Bytes::copy_from_slice(body), Bytes::from);
        let longest = u64::try_from(legacy.max_wait.as_millis()).unwrap_or(u64::MAX);
        let terms = LegacyTask { created_ms: clock::wall_ms(), ttl_ms: params.ttl_ms.map(|ttl| ttl.min(longest)) };
        let (Some(names), Some(digest)) = (names_of(call, &body), CallDigest::of(&body, CALLS_TOOL)) else {
            return Err(Unsupported);
        };
        let retention = tasks.retention;
        Ok(Some((Box::new(RequestedTask { terms, names, digest, max_wait: legacy.max_wait, retention }), body)))
    }

    /// Returns the tasks of 2025-11-25 that a list of tools offers, or `None` if it offers none.
    pub(super) fn listed(&self, session: Option<&Session>, call: &Call) -> Option<Arc<LegacyTasks>> {
        let legacy = self.config.tasks.as_ref()?.legacy.as_ref()?;
        (call.has_tool_list() && self.offers_in(session, call)).then(|| legacy.clone())
    }

    /// Returns true if tasks of 2025-11-25 are offered in the session of a call. In a session that
    /// this process has not opened, as after a restart, the server's capabilities decide.
    fn offers_in(&self, session: Option<&Session>, call: &Call) -> bool {
        let Some(session) = session else { return false };
        let may_have = || self.upstream.observed().may_have_legacy_tasks();
        match session.has_tasks() {
            Some(has_tasks) => has_tasks && (may_have() || !IssuedSession::is_claimed_by(session.id())),
            None => call.version.as_str() == legacy::REVISION && may_have(),
        }
    }

    /// Returns true if tasks of 2025-11-25 are offered to a client of this revision.
    pub(super) fn offers_legacy(&self, version: &ProtocolVersion) -> bool {
        let is_on = self.config.tasks.as_ref().is_some_and(|tasks| tasks.legacy.is_some());
        is_on && version.as_str() == legacy::REVISION
    }

    /// Returns true if the response discovers a server that the proxy makes tasks for.
    pub(super) fn observes_discovery(&self, call: &Call) -> bool {
        self.config.tasks.is_some() && call.is_opening() && call.era() == Era::Modern
    }

    /// Returns the owner that is put before the IDs of the server's own tasks, if the response to
    /// this call may name one.
    pub(super) fn owner_of_ids(&self, call: &Call, body: &[u8]) -> Option<Owner> {
        if !self.config.replica.wrap_sessions || call.era() == Era::Legacy || call.is_batch {
            return None;
        }
        let may_name_one = (call.has_tool_call() && tasks::declares(body))
            || (call.has_listen() && tasks::names_tasks(body))
            || TaskMethod::parse(&call.method).is_some();
        may_name_one.then(|| self.log.owner())
    }

    /// Returns a subscription without tasks of the proxy's own, and with the server's IDs of its
    /// tasks.
    pub(super) fn edit_listen(&self, call: &Call, body: Bytes) -> Result<Bytes, Undeclared> {
        if call.era() == Era::Legacy || call.is_batch || !tasks::names_tasks(&body) {
            return Ok(body);
        }
        let body = match &self.config.tasks {
            Some(_) if self.is_without_tasks() && !tasks::declares(&body) => return Err(Undeclared),
            Some(_) => tasks::without_own_tasks(&body).map_or(body, Bytes::from),
            None => body,
        };
        if !self.config.replica.wrap_sessions {
            return Ok(body);
        }
        Ok(tasks::unwrapped(self.log.owner(), &body).map_or(body, Bytes::from))
    }

    /// Returns true if the server is known to have no tasks.
    fn is_without_tasks(&self) -> bool {
        self.upstream.observed().discovery(clock::now()).is_some_and(|known| !known.has_tasks)
    }
}

/// Returns true for a modern request of one tool.
fn is_of_one_tool(call: &Call) -> bool {
    call.has_tool_call() && call.era() == Era::Modern && !call.is_batch
}
