//! Mark of the messages that belong to a task: `_meta["io.modelcontextprotocol/related-task"]`.

use std::ops::Range;

use serde_json::json;

use crate::jsonrpc::{self, Message};

const RELATED: &str = "io.modelcontextprotocol/related-task";
const META: &str = "_meta";

/// Returns the messages of a body with the mark of the task: requests and notifications in their
/// parameters, results in themselves. Errors have no place for it. Returns `None` if nothing
/// changes. A mark of the server's own is replaced.
pub fn tagged(data: &[u8], task_id: &str) -> Option<Vec<u8>> {
    let body = jsonrpc::peek(data).ok()?;
    let mark = format!(r#""{RELATED}":{}"#, json!({ "taskId": task_id }));
    let texts = jsonrpc::messages(data);
    let splices: Vec<_> =
        body.messages().iter().zip(texts).filter_map(|(message, text)| insertion(data, message, text, &mark)).collect();
    if splices.is_empty() { None } else { Some(jsonrpc::splice(data, splices)) }
}

fn insertion(whole: &[u8], message: &Message, text: &str, mark: &str) -> Option<(Range<usize>, String)> {
    let bytes = text.as_bytes();
    let (object, name) = match message {
        Message::Response { is_error: true, .. } => return None,
        Message::Response { .. } => (jsonrpc::member(bytes, &["result"]), "result"),
        Message::Request { .. } | Message::Notification { .. } => (jsonrpc::member(bytes, &["params"]), "params"),
    };
    let Some(object) = object else {
        // A request or a notification without parameters.
        return jsonrpc::first_members(whole, text, &format!(r#""{name}":{{"{META}":{{{mark}}}}}"#));
    };
    match jsonrpc::member(object.as_bytes(), &[META]) {
        Some(meta) => match jsonrpc::member(meta.as_bytes(), &[RELATED]) {
            Some(own) => {
                let value = mark.split_once(':').map_or_else(String::new, |(_, value)| value.to_owned());
                Some((jsonrpc::span(whole, own), value))
            }
            None => jsonrpc::first_members(whole, meta, mark),
        },
        None => jsonrpc::first_members(whole, object, &format!(r#""{META}":{{{mark}}}"#)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_marked_in_its_place() {
        let mark = r#""io.modelcontextprotocol/related-task":{"taskId":"t"}"#;
        for (before, after) in [
            (
                r#"{"jsonrpc":"2.0","id":5,"result":{"content":[]}}"#,
                format!(r#"{{"jsonrpc":"2.0","id":5,"result":{{"_meta":{{{mark}}},"content":[]}}}}"#),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"_meta":{"a":1}}}"#,
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":1,"_meta":{{{mark},"a":1}}}}}}"#
                ),
            ),
            (
                r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#,
                format!(r#"{{"params":{{"_meta":{{{mark}}}}},"jsonrpc":"2.0","id":"q","method":"roots/list"}}"#),
            ),
            (
                r#"{"jsonrpc":"2.0","id":5,"result":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"other"}}}}"#,
                format!(r#"{{"jsonrpc":"2.0","id":5,"result":{{"_meta":{{{mark}}}}}}}"#),
            ),
        ] {
            assert_eq!(tagged(before.as_bytes(), "t").map(|it| String::from_utf8(it).expect("text")), Some(after));
        }
        for same in [r#"{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"no"}}"#, "nothing"] {
            assert_eq!(tagged(same.as_bytes(), "t"), None);
        }
    }
}
