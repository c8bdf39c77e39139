//! Requests that concern tasks, as clients send them.

use super::{EXTENSION, ID_PREFIX};
use crate::era::CAPABILITIES;
use crate::ids::EventId;
use crate::jsonrpc::{self, RequestId};

/// A method of the extension, or of the older revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskMethod {
    /// `tasks/get`
    Get,
    /// `tasks/update`
    Update,
    /// `tasks/cancel`
    Cancel,
    /// `tasks/result`, which only the revision 2025-11-25 has.
    Result,
    /// `tasks/list`, which only the revision 2025-11-25 has.
    List,
}

impl TaskMethod {
    /// Returns the method of that name, or `None` for a method that does not concern tasks.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("tasks/")? {
            "get" => Some(Self::Get),
            "update" => Some(Self::Update),
            "cancel" => Some(Self::Cancel),
            "result" => Some(Self::Result),
            "list" => Some(Self::List),
            _ => None,
        }
    }
}

/// A request that concerns a task.
#[derive(Clone, Debug)]
pub struct TaskRequest {
    /// ID of the request.
    pub id: RequestId,
    /// Method.
    pub method: TaskMethod,
    /// `params.taskId`, or `None` if it is absent.
    pub task_id: Option<String>,
    /// The handle in it, unverified, or `None` if the ID is not the proxy's.
    pub handle: Option<EventId>,
}

impl TaskRequest {
    /// Parses the request in `body` with this ID and method. Returns `None` if it does not concern
    /// tasks.
    pub fn parse(id: &RequestId, method: &str, body: &[u8]) -> Option<Self> {
        let method = TaskMethod::parse(method)?;
        let task_id = task_id_of(body);
        let handle = task_id.as_deref().and_then(handle_of);
        Some(Self { id: id.clone(), method, task_id, handle })
    }

    /// Returns true if the ID of the task has the form of the proxy's own.
    pub fn is_own(&self) -> bool {
        self.task_id.as_deref().is_some_and(|id| id.starts_with(ID_PREFIX))
    }
}

/// Returns true if a request declares the extension among the capabilities of its client.
pub fn declares(body: &[u8]) -> bool {
    let declaration = jsonrpc::member(body, &["params", "_meta", CAPABILITIES, "extensions", EXTENSION]);
    declaration.is_some_and(|value| value.starts_with('{'))
}

/// Returns true if an update has an object of responses.
pub fn has_input_responses(body: &[u8]) -> bool {
    jsonrpc::member(body, &["params", "inputResponses"]).is_some_and(|responses| responses.starts_with('{'))
}

/// Returns `params.taskId` of a request, or `None` if it is absent.
pub fn task_id_of(body: &[u8]) -> Option<String> {
    jsonrpc::string_member(body, &["params", "taskId"])
}

/// Returns the handle in the ID of a task, unverified, or `None` if the ID is not the proxy's.
pub fn handle_of(task_id: &str) -> Option<EventId> {
    EventId::of_handle(task_id.strip_prefix(ID_PREFIX)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_is_an_object_in_the_request_itself() {
        let with = |declared: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"_meta":{{"{CAPABILITIES}":{{"extensions":{declared}}}}}}}}}"#
            )
        };
        assert!(declares(with(r#"{"io.modelcontextprotocol/tasks":{}}"#).as_bytes()));
        assert!(declares(with(r#"{"x":1,"io.modelcontextprotocol/tasks":{"a":1}}"#).as_bytes()));
        for other in [r#"{"io.modelcontextprotocol/tasks":null}"#, r#"{"io.modelcontextprotocol/task":{}}"#, "[]", "{}"]
        {
            assert!(!declares(with(other).as_bytes()), "{other}");
        }
        assert!(!declares(br#"{"params":{"capabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}"#));
    }

    #[test]
    fn methods_of_tasks_are_told_from_others() {
        let method = TaskMethod::parse;
        assert_eq!(
            [method("tasks/get"), method("tasks/update"), method("tasks/cancel")],
            [Some(TaskMethod::Get), Some(TaskMethod::Update), Some(TaskMethod::Cancel)]
        );
        assert_eq!([method("tasks/result"), method("tasks/list")], [Some(TaskMethod::Result), Some(TaskMethod::List)]);
        assert_eq!([method("tasks/other"), method("tools/call"), method("tasks")], [None; 3]);
    }
}
