//! Other IDs for the messages of a body, and for the requests that its cancels name. Every other
//! byte stays.

use std::borrow::Cow;
use std::ops::Range;

use super::{Message, PeekError, RequestId, cancelled_request_id, member, messages, peek, readable, span, splice};

const CANCELLED: &str = "notifications/cancelled";

/// Replaces the ID of each request and response, and the ID in each `notifications/cancelled`, by
/// the result of `renamed`. An ID stays if `renamed` returns `None`. Returns `None` if nothing
/// changes, and for a body that is no message. Walks the body once, or twice if only lenient
/// parsers read it.
pub fn rename_ids(body: &[u8], mut renamed: impl FnMut(&Message, &RequestId) -> Option<RequestId>) -> Option<Vec<u8>> {
    let mut read = Cow::Borrowed(body);
    let peeked = match peek(body) {
        Err(PeekError::NotJson) => {
            read = readable(body)?.into();
            peek(&read).ok()?
        }
        peeked => peeked.ok()?,
    };
    let mut splices = Vec::new();
    for (message, text) in peeked.messages().iter().zip(messages(&read)) {
        let (id, path): (_, &'static [&'static str]) = match message {
            Message::Request { id, .. } | Message::Response { id: Some(id), .. } => (Some(id.clone()), &["id"]),
            Message::Notification { method } if *method == CANCELLED => {
                (cancelled_request_id(text.as_bytes()), &["params", "requestId"])
            }
            Message::Notification { .. } | Message::Response { id: None, .. } => (None, &[]),
        };
        if let Some(by) = id.and_then(|id| renamed(message, &id)) {
            splices.extend(replaced(&read, text, path, &by));
        }
    }
    if splices.is_empty() { None } else { Some(splice(body, splices)) }
}

/// Returns the range of the value at `path` in `text`, a slice of `whole`, with the ID in its
/// place.
pub fn replaced(
    whole: &[u8],
    text: &str,
    path: &'static [&'static str],
    by: &RequestId,
) -> Option<(Range<usize>, String)> {
    let value = member(text.as_bytes(), path)?;
    Some((span(whole, value), by.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubled(_: &Message, id: &RequestId) -> Option<RequestId> {
        (*id == RequestId::Number("1".into())).then(|| RequestId::String("mr-1-1".into()))
    }

    fn renamed(body: &str) -> Option<String> {
        rename_ids(body.as_bytes(), doubled).map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn ids_are_replaced_and_all_other_bytes_stay() {
        for (before, after) in [
            (
                r#" {"id": 1 ,"jsonrpc":"2.0","method":"ping","params":{"id":1}}"#,
                r#" {"id": "mr-1-1" ,"jsonrpc":"2.0","method":"ping","params":{"id":1}}"#,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"id":1}}"#, r#"{"jsonrpc":"2.0","id":"mr-1-1","result":{"id":1}}"#),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"mr-1-1"}}"#,
            ),
            (
                r#"[{"jsonrpc":"2.0","id":2,"result":1}, {"jsonrpc":"2.0","id":1,"error":{}}]"#,
                r#"[{"jsonrpc":"2.0","id":2,"result":1}, {"jsonrpc":"2.0","id":"mr-1-1","error":{}}]"#,
            ),
        ] {
            assert_eq!(renamed(before).as_deref(), Some(after));
        }
    }

    #[test]
    fn other_messages_stay() {
        for body in [
            r#"{"jsonrpc":"2.0","id":"1","method":"ping"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{}}"#,
            "no message",
        ] {
            assert_eq!(renamed(body), None, "{body}");
        }
    }
}
