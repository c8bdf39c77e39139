//! Messages that the proxy writes for tasks.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::state::{Record, Status};
use super::{EXTENSION, ID_PREFIX};
use crate::ids::Handle;
use crate::jsonrpc::{self, RequestId, code, response};

/// A task at one moment, as its client sees it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Handle of the task's stream.
    pub handle: &'a Handle,
    /// State.
    pub record: &'a Record,
    /// Time by the wall clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// Retention of a running task without a poll.
    pub max_wait: Duration,
    /// Retention of an outcome.
    pub retention: Duration,
}

impl View<'_> {
    /// Writes the members that every form of a task has.
    fn members(&self) -> String {
        let Self { handle, record, now_ms, max_wait, retention } = *self;
        let mut members =
            format!(r#""taskId":"{ID_PREFIX}{}","status":"{}""#, handle.as_str(), record.status().as_str());
        if let Some(text) = record.text() {
            members.push_str(r#","statusMessage":"#);
            members.push_str(&Value::from(text).to_string());
        }
        let (created, updated) = (timestamp(record.created_ms()), timestamp(record.updated_ms()));
        let ttl = record.lifetime_ms(now_ms, max_wait, retention);
        members.push_str(&format!(r#","createdAt":"{created}","lastUpdatedAt":"{updated}","ttlMs":{ttl}"#));
        if matches!(record.status(), Status::Working | Status::InputRequired) {
            // A client that keeps the interval must not count as gone.
            let interval = record.poll_interval(now_ms).min(max_wait / 2).as_millis();
            members.push_str(&format!(r#","pollIntervalMs":{interval}"#));
        }
        members
    }
}

/// Writes the handle of a task as the response to the call.
pub fn created(id: &RequestId, view: &View<'_>) -> Vec<u8> {
    response::result(id, &format!(r#"{{"resultType":"task",{}}}"#, view.members()))
}

/// Writes a request `tasks/get` from one replica to another.
pub fn get_request(handle: &Handle) -> Vec<u8> {
    let params = json!({"taskId": format!("{ID_PREFIX}{}", handle.as_str())});
    json!({"jsonrpc": "2.0", "id": 0, "method": "tasks/get", "params": params}).to_string().into_bytes()
}

/// Writes the response to `tasks/get`, in pieces. `outcome` is the response of the server, or the
/// error of the proxy, to a task that has ended: its result is one piece, and is not copied.
pub fn get_response(id: &RequestId, view: &View<'_>, outcome: Option<&Bytes>) -> [Bytes; 3] {
    let id = id.to_json();
    let mut before = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete",{}"#, view.members());
    let mut piece = Bytes::new();
    match view.record.status() {
        Status::InputRequired => {
            let requests = view.record.outstanding().map(|(key, request)| format!("{}:{request}", Value::from(key)));
            before.push_str(&format!(r#","inputRequests":{{{}}}"#, requests.collect::<Vec<_>>().join(",")));
        }
        Status::Completed => {
            if let Some(outcome) = outcome
                && let Some(result) = jsonrpc::member(outcome, &["result"])
            {
                before.push_str(r#","result":"#);
                let rest = typed(result, &mut before);
                piece = outcome.slice_ref(rest.as_bytes());
            }
        }
        Status::Failed => {
            if let Some(outcome) = outcome
                && let Some(error) = jsonrpc::member(outcome, &["error"])
            {
                before.push_str(r#","error":"#);
                piece = outcome.slice_ref(error.as_bytes());
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

/// Writes the error for a method that the revision has removed.
pub fn method_not_found(id: &RequestId) -> Vec<u8> {
    response::error(id, code::METHOD_NOT_FOUND, "Method not found")
}

/// Writes the beginning of a result that has no `resultType`, with one, and returns the rest: some
/// servers send none, and some clients refuse a result without.
fn typed<'a>(result: &'a str, before: &mut String) -> &'a str {
    let has_type = jsonrpc::member(result.as_bytes(), &["resultType"]).is_some();
    match result.strip_prefix('{') {
        Some(rest) if !has_type => {
            before.push_str(r#"{"resultType":"complete""#);
            if !rest.trim_start().starts_with('}') {
                before.push(',');
            }
            rest
        }
        _ => result,
    }
}

/// Returns a time as RFC 3339 has it, in whole milliseconds.
pub(super) fn timestamp(unix_ms: u64) -> String {
    let nanoseconds = i128::from(unix_ms) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(&Rfc3339).unwrap_or_default()
}
