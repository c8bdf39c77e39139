//! IDs of a server's own tasks behind a balancer: they have the owner before them, as the IDs of
//! sessions have.
//!
//! Such an ID names no replica by itself, and nothing else in a request for it does. Every other
//! byte of a message stays.

use serde_json::Value;

use super::ID_PREFIX;
use super::request::{handle_of, task_id_of};
use crate::ids::Owner;
use crate::jsonrpc::{self, Message};

/// Separator between the owner and the ID of the server.
const WRAPPED: char = '~';
const IN_RESULT: &[&str] = &["result", "taskId"];
const IN_PARAMS: &[&str] = &["params", "taskId"];
const IN_FILTER: &[&str] = &["params", "notifications", "taskIds"];

/// Returns the owner that the ID of a task names. The proxy's own ID names it in its handle. A
/// server's ID has it before it.
pub fn owner_of(task_id: &str) -> Option<Owner> {
    if task_id.starts_with(ID_PREFIX) {
        return handle_of(task_id)?.unverified_owner();
    }
    Owner::parse(task_id.split_once(WRAPPED)?.0)
}

/// Returns a message of the server with `owner` before the ID of the task that it names: in a
/// result, or in `notifications/tasks`. Returns `None` if it names none.
pub fn wrapped(owner: Owner, message: &[u8]) -> Option<Vec<u8>> {
    let jsonrpc::Body::Single(peeked) = jsonrpc::peek(message).ok()? else { return None };
    let path = match &peeked {
        Message::Response { is_error: false, .. } => IN_RESULT,
        Message::Notification { method } if method == "notifications/tasks" => IN_PARAMS,
        Message::Response { .. } | Message::Notification { .. } | Message::Request { .. } => return None,
    };
    let raw = jsonrpc::member(message, path)?;
    let id: String = serde_json::from_str(raw).ok()?;
    let place = jsonrpc::span(message, raw);
    Some(jsonrpc::splice(message, vec![(place, Value::from(format!("{owner}{WRAPPED}{id}")).to_string())]))
}

/// Returns the ID of the server, or `None` if `task_id` does not begin with `owner`.
pub fn unwrapped_id(owner: Owner, task_id: &str) -> Option<&str> {
    let (prefix, id) = task_id.split_once(WRAPPED)?;
    if Owner::parse(prefix) == Some(owner) { Some(id) } else { None }
}

/// Returns a request of a client with the server's own task IDs, or `None` if it names no task of
/// `owner`.
pub fn unwrapped(owner: Owner, body: &[u8]) -> Option<Vec<u8>> {
    let mut splices = Vec::new();
    if let Some(id) = task_id_of(body)
        && let Some(own) = unwrapped_id(owner, &id)
        && let Some(raw) = jsonrpc::member(body, IN_PARAMS)
    {
        splices.push((jsonrpc::span(body, raw), Value::from(own).to_string()));
    }
    if let Some(raw) = jsonrpc::member(body, IN_FILTER)
        && let Ok(ids) = serde_json::from_str::<Vec<String>>(raw)
        && ids.iter().any(|id| unwrapped_id(owner, id).is_some())
    {
        let own: Vec<&str> = ids.iter().map(|id| unwrapped_id(owner, id).unwrap_or(id)).collect();
        splices.push((jsonrpc::span(body, raw), Value::from(own).to_string()));
    }
    if splices.is_empty() { None } else { Some(jsonrpc::splice(body, splices)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner(0xab);

    #[test]
    fn a_name_has_the_owner_before_it_at_the_client_alone() {
        let text = |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8(bytes).expect("text"));
        let result = |id: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"resultType":"task","taskId":"{id}", "x":{{"taskId":"y"}}}}}}"#
            )
        };
        assert_eq!(text(wrapped(OWNER, result("t").as_bytes())), Some(result("000000ab~t")));
        let notification =
            |id: &str| format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{{"taskId":"{id}"}}}}"#);
        assert_eq!(text(wrapped(OWNER, notification("t").as_bytes())), Some(notification("000000ab~t")));
        for other in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#.to_owned(),
            notification("t").replace("/tasks", "/other"),
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}"#.to_owned(),
        ] {
            assert_eq!(wrapped(OWNER, other.as_bytes()), None, "{other}");
        }
        let request = |id: &str, listed: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"taskId":"{id}","notifications":{{"taskIds":{listed}}}}}}}"#
            )
        };
        assert_eq!(
            text(unwrapped(OWNER, request("000000ab~t", r#"["000000ab~u","v"]"#).as_bytes())),
            Some(request("t", r#"["u","v"]"#))
        );
        assert_eq!(unwrapped(OWNER, request("000000ac~t", r#"["v"]"#).as_bytes()), None);
        assert_eq!(owner_of("000000ab~t"), Some(OWNER));
        assert_eq!(owner_of("t"), None);
    }
}
