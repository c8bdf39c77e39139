//! Messages that the proxy writes for tasks of 2025-11-25.

use serde_json::{Map, Value, json};

use crate::jsonrpc::{RequestId, code, response};
use crate::tasks::{Status, TaskView};

/// Writes the handle of a task as the response to the call.
pub fn created(id: &RequestId, view: &TaskView) -> Vec<u8> {
    response::result(id, json!({ "task": task(view) }))
}

/// Writes the response to `tasks/get` and `tasks/cancel`.
pub fn got(id: &RequestId, view: &TaskView) -> Vec<u8> {
    response::result(id, task(view))
}

/// Writes the notification of a change.
pub fn status_changed(view: &TaskView) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task(view)}).to_string().into_bytes()
}

/// Writes the error for the cancel of an ended task.
pub fn cannot_cancel(id: &RequestId, status: Status) -> Vec<u8> {
    let text = format!("Cannot cancel task: already in terminal status '{}'", status.as_str());
    response::error(id, code::INVALID_PARAMS, &text)
}

/// Writes the response to the call of a task that its client has cancelled.
pub fn cancelled(id: &RequestId) -> Vec<u8> {
    response::error(id, code::INTERNAL_ERROR, "The task was cancelled")
}

/// Writes the cancel of a server request of a task that the client has cancelled.
pub fn withdrawn(request: &RequestId) -> Vec<u8> {
    let id = request.to_json();
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the task was cancelled"}}}}"#)
        .into_bytes()
}

/// Writes the error for a tool that does not support tasks.
pub fn unsupported(id: &RequestId) -> Vec<u8> {
    let text = "The tool does not support task-augmented execution (tasks.legacy_tools does not name it)";
    response::error(id, code::METHOD_NOT_FOUND, text)
}

fn task(view: &TaskView) -> Value {
    let members = view.members("ttl", "pollInterval").into_iter().map(|(name, value)| (name.to_owned(), value));
    Value::Object(Map::from_iter(members))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_task_is_nested_in_the_handle_and_flat_elsewhere() {
        let view = TaskView {
            task_id: "mrt1.x".into(),
            status: Status::Working,
            text: Some("3 of 10".into()),
            created_ms: 1_000,
            updated_ms: 2_000,
            ttl_ms: None,
            poll_interval: Duration::from_secs(1),
        };
        let task = json!({"taskId": "mrt1.x", "status": "working", "statusMessage": "3 of 10", "createdAt": "1970-01-01T00:00:01Z",
            "lastUpdatedAt": "1970-01-01T00:00:02Z", "ttl": null, "pollInterval": 1000});
        let parsed = |message: Vec<u8>| serde_json::from_slice::<Value>(&message).expect("JSON");
        let id = RequestId::Number("5".into());
        assert_eq!(parsed(created(&id, &view)), json!({"jsonrpc": "2.0", "id": 5, "result": {"task": task}}));
        assert_eq!(parsed(got(&id, &view)), json!({"jsonrpc": "2.0", "id": 5, "result": task}));
        let ended = TaskView { status: Status::Failed, text: None, ttl_ms: Some(60_000), ..view };
        let notification = parsed(status_changed(&ended));
        assert_eq!(notification["method"], "notifications/tasks/status");
        assert_eq!(notification["params"]["ttl"], 60_000);
        assert_eq!(notification["params"].get("pollInterval"), None);
        assert_eq!(parsed(cannot_cancel(&id, Status::Completed))["error"]["code"], -32602);
    }
}
