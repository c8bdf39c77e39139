//! Parameters of a call that requests a task.

use crate::jsonrpc;

const TASK: &str = "task";

/// The object `params.task` of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskParams {
    /// Requested lifetime in milliseconds, or `None` if the client does not limit it.
    pub ttl_ms: Option<u64>,
}

/// Parses `params.task` of a call. Returns `None` if it is not an object.
pub fn task_params(body: &[u8]) -> Option<TaskParams> {
    let task = jsonrpc::member(body, &["params", TASK])?;
    task.starts_with('{').then(|| TaskParams { ttl_ms: jsonrpc::member(task.as_bytes(), &["ttl"]).and_then(whole_ms) })
}

/// Returns the call without `params.task`, for a server that has no tasks.
pub fn without_task(body: &[u8]) -> Option<Vec<u8>> {
    jsonrpc::without_members(body, &["params"], &[TASK])
}

/// Reads a positive number of milliseconds, which some clients write with a fraction.
fn whole_ms(json: &str) -> Option<u64> {
    let number: f64 = serde_json::from_str(json).ok()?;
    // The cast saturates.
    (number >= 1.0).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_parameters_are_an_object_with_or_without_a_lifetime() {
        let with = |task: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"a","task":{task}}}}}"#)
        };
        let of = |task: &str| task_params(with(task).as_bytes());
        assert_eq!(of("{}"), Some(TaskParams { ttl_ms: None }));
        assert_eq!(of(r#"{"ttl":60000}"#), Some(TaskParams { ttl_ms: Some(60_000) }));
        assert_eq!(of(r#"{"ttl":1500.5}"#), Some(TaskParams { ttl_ms: Some(1500) }));
        for none in [r#"{"ttl":null}"#, r#"{"ttl":0}"#, r#"{"ttl":-5}"#, r#"{"ttl":"60"}"#] {
            assert_eq!(of(none), Some(TaskParams { ttl_ms: None }), "{none}");
        }
        for other in ["null", "1", "[]", r#""task""#] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(
            task_params(
                br#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a","arguments":{"task":{}}}}"#
            ),
            None
        );
        let without = without_task(with("{}").as_bytes()).expect("an edit");
        assert_eq!(without, br#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a"}}"#);
    }
}
