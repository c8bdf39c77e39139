//! A call whose client asks for a task.

use crate::jsonrpc;

const TASK: &str = "task";

/// Wish of a client that its call be a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Lifetime that the client asks for, in milliseconds, or `None` if it asks for none.
    pub ttl_ms: Option<u64>,
}

/// Returns the wish in `params.task` of a call, or `None` if there is no such object.
pub fn wish(body: &[u8]) -> Option<Wish> {
    let task = jsonrpc::member(body, &["params", TASK])?;
    task.starts_with('{').then(|| Wish { ttl_ms: jsonrpc::member(task.as_bytes(), &["ttl"]).and_then(whole_ms) })
}

/// Returns the call without the wish, for a server that has no tasks.
pub fn without_wish(body: &[u8]) -> Option<Vec<u8>> {
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
    fn a_wish_is_an_object_with_a_lifetime_or_without() {
        let with = |task: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"a","task":{task}}}}}"#)
        };
        let of = |task: &str| wish(with(task).as_bytes());
        assert_eq!(of("{}"), Some(Wish { ttl_ms: None }));
        assert_eq!(of(r#"{"ttl":60000}"#), Some(Wish { ttl_ms: Some(60_000) }));
        assert_eq!(of(r#"{"ttl":1500.5}"#), Some(Wish { ttl_ms: Some(1500) }));
        for none in [r#"{"ttl":null}"#, r#"{"ttl":0}"#, r#"{"ttl":-5}"#, r#"{"ttl":"60"}"#] {
            assert_eq!(of(none), Some(Wish { ttl_ms: None }), "{none}");
        }
        for other in ["null", "1", "[]", r#""task""#] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(
            wish(br#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a","arguments":{"task":{}}}}"#),
            None
        );
        let without = without_wish(with("{}").as_bytes()).expect("an edit");
        assert_eq!(without, br#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a"}}"#);
    }
}
