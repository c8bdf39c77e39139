//! Tasks in `subscriptions/listen`. The proxy sends no notifications of tasks; the extension leaves
//! that to the server.

use serde_json::value::RawValue;

use super::ID_PREFIX;
use crate::jsonrpc;

const FILTER: &[&str] = &["params", "notifications"];
const TASK_IDS: &[&str] = &["params", "notifications", "taskIds"];

/// Returns true if a subscription names tasks.
pub fn names_tasks(body: &[u8]) -> bool {
    jsonrpc::member(body, TASK_IDS).is_some_and(|ids| ids != "null")
}

/// Returns a subscription without the proxy's own tasks, so that the server does not acknowledge
/// them. Returns `None` if it names no such task. Every other byte stays.
pub fn without_own_tasks(body: &[u8]) -> Option<Vec<u8>> {
    let ids = jsonrpc::member(body, TASK_IDS)?;
    let all: Vec<&RawValue> = serde_json::from_str(ids).ok()?;
    let is_own = |id: &&&RawValue| serde_json::from_str::<String>(id.get()).is_ok_and(|id| id.starts_with(ID_PREFIX));
    let others: Vec<&str> = all.iter().filter(|id| !is_own(id)).map(|id| id.get()).collect();
    if others.len() == all.len() {
        return None;
    }
    if others.is_empty() {
        return jsonrpc::without_members(body, FILTER, &["taskIds"]);
    }
    let place = jsonrpc::span(body, ids);
    Some(jsonrpc::splice(body, vec![(place, format!("[{}]", others.join(",")))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(filter: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{{"notifications":{filter}}}}}"#)
    }

    #[test]
    fn own_tasks_are_taken_out_of_a_subscription() {
        let edited = |filter: &str| {
            without_own_tasks(listen(filter).as_bytes()).map(|body| String::from_utf8(body).expect("text"))
        };
        assert_eq!(
            edited(r#"{"toolsListChanged":true,"taskIds":["mrt1.a"]}"#),
            Some(listen(r#"{"toolsListChanged":true}"#))
        );
        assert_eq!(edited(r#"{"taskIds":[ "x" ,"mrt1.a", "y"] }"#), Some(listen(r#"{"taskIds":["x","y"] }"#)));
        for other in
            [r#"{"taskIds":["x"]}"#, r#"{"taskIds":[]}"#, r#"{"taskIds":7}"#, r#"{"toolsListChanged":true}"#, "[]"]
        {
            assert_eq!(edited(other), None, "{other}");
        }
        assert!(names_tasks(listen(r#"{"taskIds":["x"]}"#).as_bytes()));
        assert!(!names_tasks(listen(r#"{"taskIds":null}"#).as_bytes()));
    }
}
