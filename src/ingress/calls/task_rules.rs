//! Calls and tasks: the calls that may become tasks, and the changes to requests and responses that
//! name tasks.
//!
//! Absent: requests `tasks/*` (`ingress/tasks/`), and the moment of the promotion (the pump).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::partial_results::names_of;
use crate::clock;
use crate::config::{LegacyTasks, TaskSupport, Tasks};
use crate::event_log::Session;
use crate::ingress::components::Components;
use crate::protocol::classify::Call;
use crate::protocol::dialect::resume_tokens::{CALLS_TOOL, CallDigest, Names};
use crate::protocol::headers::{Era, ProtocolVersion};
use crate::protocol::ids::{IssuedSession, Owner};
use crate::protocol::jsonrpc;
use crate::protocol::stream::LegacyTask;
use crate::protocol::tasks::{self, TaskMethod, legacy};

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

/// Returns the terms of the call's promotion to a task, or `None` if it stays a call: its
/// request must declare the extension. `tool` is the name of its tool, if some tool has settings.
pub(super) fn terms(components: &Components, call: &Call, body: &[u8], tool: Option<&str>) -> Option<Arc<Tasks>> {
    let tasks = components.config.tasks.as_ref().filter(|_| is_of_one_tool(call) && tasks::declares(body))?;
    let tool = tool.and_then(|tool| components.config.tools.get(tool));
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
pub(super) fn admit(components: &Components, call: &Call, body: &[u8], tool: Option<&str>) -> Result<(), Undeclared> {
    let tool = tool.and_then(|tool| components.config.tools.get(tool));
    let is_required = tool.is_some_and(|tool| tool.task == Some(TaskSupport::Required));
    let has_rule = is_required && components.config.tasks.is_some() && is_of_one_tool(call);
    if has_rule && !tasks::declares(body) { Err(Undeclared) } else { Ok(()) }
}

/// Returns the task that the client of a call wants at 2025-11-25, with the call as the server
/// gets it; or `None` if it wants no task of the proxy.
///
/// # Errors
/// If the tool does not support tasks, or an ID is longer than a task can
/// keep.
pub(super) fn requested(
    components: &Components,
    session: Option<&Session>,
    call: &Call,
    body: &[u8],
) -> Result<Option<(Box<RequestedTask>, Bytes)>, Unsupported> {
    let Some(tasks) = &components.config.tasks else { return Ok(None) };
    let Some(legacy) = &tasks.legacy else { return Ok(None) };
    let is_candidate = call.has_tool_call() && call.era() == Era::Legacy && !call.is_batch;
    if !is_candidate || !offers_in(components, session, call) {
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
pub(super) fn listed(components: &Components, session: Option<&Session>, call: &Call) -> Option<Arc<LegacyTasks>> {
    let legacy = components.config.tasks.as_ref()?.legacy.as_ref()?;
    (call.has_tool_list() && offers_in(components, session, call)).then(|| legacy.clone())
}

/// Returns true if tasks of 2025-11-25 are offered in the session of a call. In a session that
/// this process has not opened, as after a restart, the server's capabilities decide.
fn offers_in(components: &Components, session: Option<&Session>, call: &Call) -> bool {
    let Some(session) = session else { return false };
    let may_have = || components.upstream.observed().may_have_legacy_tasks();
    match session.has_tasks() {
        Some(has_tasks) => has_tasks && (may_have() || !IssuedSession::is_claimed_by(session.id())),
        None => call.version.as_str() == legacy::REVISION && may_have(),
    }
}

/// Returns true if tasks of 2025-11-25 are offered to a client of this revision.
pub(super) fn offers_legacy(components: &Components, version: &ProtocolVersion) -> bool {
    let is_on = components.config.tasks.as_ref().is_some_and(|tasks| tasks.legacy.is_some());
    is_on && version.as_str() == legacy::REVISION
}

/// Returns true if the response discovers a server that the proxy makes tasks for.
pub(super) fn observes_discovery(components: &Components, call: &Call) -> bool {
    components.config.tasks.is_some() && call.is_opening() && call.era() == Era::Modern
}

/// Returns the owner that is put before the IDs of the server's own tasks, if the response to
/// this call may name one.
pub(super) fn owner_of_ids(components: &Components, call: &Call, body: &[u8]) -> Option<Owner> {
    if !components.config.replica.wrap_sessions || call.era() == Era::Legacy || call.is_batch {
        return None;
    }
    let may_name_one = (call.has_tool_call() && tasks::declares(body))
        || (call.has_listen() && tasks::names_tasks(body))
        || TaskMethod::parse(&call.method).is_some();
    may_name_one.then(|| components.log.owner())
}

/// Returns a subscription without tasks of the proxy's own, and with the server's IDs of its
/// tasks.
pub(super) fn edit_listen(components: &Components, call: &Call, body: Bytes) -> Result<Bytes, Undeclared> {
    if call.era() == Era::Legacy || call.is_batch || !tasks::names_tasks(&body) {
        return Ok(body);
    }
    let body = match &components.config.tasks {
        Some(_) if is_without_tasks(components) && !tasks::declares(&body) => return Err(Undeclared),
        Some(_) => tasks::without_own_tasks(&body).map_or(body, Bytes::from),
        None => body,
    };
    if !components.config.replica.wrap_sessions {
        return Ok(body);
    }
    Ok(tasks::unwrapped(components.log.owner(), &body).map_or(body, Bytes::from))
}

/// Returns true if the server is known to have no tasks.
fn is_without_tasks(components: &Components) -> bool {
    components.upstream.observed().discovery(clock::now()).is_some_and(|known| !known.has_tasks)
}

/// Returns true for a modern request of one tool.
fn is_of_one_tool(call: &Call) -> bool {
    call.has_tool_call() && call.era() == Era::Modern && !call.is_batch
}
