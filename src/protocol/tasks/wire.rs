//! Messages that the proxy writes for tasks.

use bytes::{Buf, Bytes};
use serde_json::{Value, json};

use super::{EXTENSION, Record, Status, TaskView};
use crate::ids::Handle;
use crate::jsonrpc::{self, RequestId, code, response};

/// Writes the handle of a task as the response to the call.
pub fn created(id: &RequestId, view: &TaskView) -> Vec<u8> {
    response::result(id, format!(r#"{{"resultType":"task",{}}}"#, members(view)))
}

/// Writes a request `tasks/get` from one replica to another.
pub fn get_request(handle: &Handle) -> Vec<u8> {
    let params = json!({"taskId": TaskView::id_of(handle)});
    json!({"jsonrpc": "2.0", "id": 0, "method": "tasks/get", "params": params}).to_string().into_bytes()
}

/// Writes the response to `tasks/get`, in pieces. `view` is the task of `record`. `outcome` is the
/// response of an ended task, by the server or the proxy. Its result is one piece, and is not
/// copied.
pub fn get_response(id: &RequestId, view: &TaskView, record: &Record, outcome: Option<&Bytes>) -> [Bytes; 3] {
    let id = id.to_json();
    let mut before = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete",{}"#, members(view));
    let mut piece = Bytes::new();
    match view.status {
        Status::InputRequired => {
            let requests = record.outstanding().map(|(key, request)| format!("{}:{request}", Value::from(key)));
            before.push_str(&format!(r#","inputRequests":{{{}}}"#, requests.collect::<Vec<_>>().join(",")));
        }
        Status::Completed => {
            if let Some(outcome) = outcome
                && let Some(result) = jsonrpc::place(outcome, &["result"])
            {
                before.push_str(r#","result":"#);
                piece = typed(outcome.slice(result), &mut before);
            }
        }
        Status::Failed => {
            if let Some(outcome) = outcome
                && let Some(error) = jsonrpc::place(outcome, &["error"])
            {
                before.push_str(r#","error":"#);
                piece = outcome.slice(error);
            }
        }
        Status::Working | Status::Cancelled => {}
    }
    [before.into(), piece, Bytes::from_static(b"}}")]
}

/// Writes the response to `tasks/update` and `tasks/cancel`. Some clients refuse any further
/// member.
pub fn acknowledgement(id: &RequestId) -> Vec<u8> {
    response::result(id, r#"{"resultType":"complete"}"#)
}

/// Writes the error for a task that is unknown, foreign or expired: one text for all, so that a
/// caller cannot distinguish them.
pub fn unknown_task(id: &RequestId) -> Vec<u8> {
    let text = "Failed to retrieve task: Task not found";
    response::error(id, code::INVALID_PARAMS, text)
}

/// Writes the error for an update without an object of responses.
pub fn missing_responses(id: &RequestId) -> Vec<u8> {
    response::error(id, code::INVALID_PARAMS, "Invalid params: inputResponses must be an object")
}

/// Writes the error for a client that has not declared the extension.
pub fn missing_capability(id: &RequestId) -> Vec<u8> {
    let data = json!({"requiredCapabilities": {"extensions": {EXTENSION: {}}}});
    response::error_with_data(Some(id), code::MISSING_CAPABILITY, "Missing required client capability", data)
}

/// Writes the error for a request whose header differs from its body.
pub fn header_mismatch(id: &RequestId, header: &str) -> Vec<u8> {
    let text = format!("Header mismatch: {header} does not match the body");
    response::error(id, code::HEADER_MISMATCH, &text)
}

fn members(view: &TaskView) -> String {
    let members =
        view.members("ttlMs", "pollIntervalMs").into_iter().map(|(name, value)| format!(r#""{name}":{value}"#));
    members.collect::<Vec<_>>().join(",")
}

/// Writes the beginning of a result, with a `resultType` if it has none, and returns the rest. Some
/// servers send no `resultType`, and some clients refuse such a result.
fn typed(mut result: Bytes, before: &mut String) -> Bytes {
    if result.starts_with(b"{") && jsonrpc::place(&result, &["resultType"]).is_none() {
        result.advance(1);
        before.push_str(r#"{"resultType":"complete""#);
        if !result.trim_ascii_start().starts_with(b"}") {
            before.push(',');
        }
    }
    result
}
