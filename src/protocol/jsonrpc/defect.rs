//! The defect of a body that is no JSON-RPC message, for the text of its refusal.
//!
//! Invariant: the text names members of JSON-RPC alone, and holds no byte of the body. Absent: the
//! decision that a body is refused ([`super::peek`]).

use std::marker::PhantomData;

use super::walk::{for_each_message, from_slice};
use super::{Members, Message, RequestId, is_version_2, method_name, string};

/// Beginning of the names of notifications.
const NOTIFICATION: &str = "notifications/";

/// Defect of a body that is JSON, but no JSON-RPC message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// Readable ID of the only message, if it can be a request.
    pub id: Option<RequestId>,
    /// Name of the wrong member, with its fault.
    pub text: String,
}

/// Returns the defect of a body that [`super::peek`] refuses as no message. Returns `None` if it is
/// a message, or no JSON.
pub fn defect(body: &[u8]) -> Option<Defect> {
    match body.trim_ascii_start().first()? {
        b'{' => {
            let members = read(body)?;
            let is_response = members.result.is_some() || members.error.is_some();
            let id = if is_response || members.duplicate == Some("id") { None } else { members.id };
            Some(Defect { id: id.and_then(RequestId::from_raw), text: fault_of(&members)? })
        }
        b'[' => {
            let (mut at, mut found) = (0, None);
            let is_json = for_each_message(body, |message| {
                at += 1;
                if found.is_none() {
                    let text = match read(message.as_bytes()) {
                        Some(members) => fault_of(&members),
                        None => Some("it is no object".to_owned()),
                    };
                    found = text.map(|text| format!("message {at} of the array: {text}"));
                }
            });
            let text = if at == 0 { Some("the array is empty".to_owned()) } else { found };
            if is_json { Some(Defect { id: None, text: text? }) } else { None }
        }
        _ => Some(Defect { id: None, text: "the body is no object".to_owned() }),
    }
}

fn read(message: &[u8]) -> Option<Members<'_>> {
    from_slice(message, PhantomData::<Members<'_>>)
}

/// Returns the fault of a message, or `None` for a valid one.
fn fault_of(members: &Members<'_>) -> Option<String> {
    members.to_message().err()?;
    let has_outcome = members.result.is_some() || members.error.is_some();
    let fault = match (members.method, members.id) {
        _ if members.duplicate.is_some() => format!("`{}` is there twice", members.duplicate?),
        _ if members.jsonrpc.is_none() => "`jsonrpc` is missing".to_owned(),
        _ if !members.jsonrpc.is_some_and(is_version_2) => "`jsonrpc` is not \"2.0\"".to_owned(),
        (None, _) if !has_outcome => "`method` is missing".to_owned(),
        (Some(method), _) if !has_outcome && string(method).is_none() => "`method` is no string".to_owned(),
        (Some(_), _) if has_outcome && members.has_method() => "`method` is beside `result` or `error`".to_owned(),
        _ if members.has_result() && members.has_error() => "`result` is beside `error`".to_owned(),
        (_, None) => "`id` is missing".to_owned(),
        (_, Some(id)) if id.get() == "null" => "`id` is null".to_owned(),
        (_, Some(_)) => "`id` is neither a string nor a number".to_owned(),
    };
    Some(fault)
}

/// Returns the notification in a body whose `id` is null, or `None` for any other body. Some
/// clients write such an ID, and servers on HTTP read the notification.
pub fn notification_with_null_id(body: &[u8]) -> Option<Message> {
    let members = read(body)?;
    let is_nameless = members.duplicate.is_none() && members.id.is_some_and(|id| id.get() == "null");
    let has_outcome = members.result.is_some() || members.error.is_some();
    let method = members.method.and_then(string).filter(|method| method.starts_with(NOTIFICATION))?;
    let is_notification = is_nameless && !has_outcome && members.jsonrpc.is_some_and(is_version_2);
    if is_notification { Some(Message::Notification { method: method_name(method) }) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::peek;

    #[test]
    fn the_text_names_the_wrong_member() {
        for (body, id, text) in [
            (r#"{"id":7,"method":"tools/list"}"#, Some("7"), "`jsonrpc` is missing"),
            (r#"{"id":"a","method":"x","jsonrpc":"1.0"}"#, Some("\"a\""), "`jsonrpc` is not \"2.0\""),
            (r#"{"jsonrpc":2.0,"id":7,"method":"x"}"#, Some("7"), "`jsonrpc` is not \"2.0\""),
            (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, None, "`id` is null"),
            (r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, None, "`id` is neither a string nor a number"),
            (r#"{"jsonrpc":"2.0","id":true,"method":"x"}"#, None, "`id` is neither a string nor a number"),
            (r#"{"jsonrpc":"2.0","id":7}"#, Some("7"), "`method` is missing"),
            (r#"{"jsonrpc":"2.0"}"#, None, "`method` is missing"),
            (r#"{}"#, None, "`jsonrpc` is missing"),
            (r#"{"jsonrpc":"2.0","id":7,"method":1}"#, Some("7"), "`method` is no string"),
            (r#"{"jsonrpc":"2.0","id":7,"method":null}"#, Some("7"), "`method` is no string"),
            (r#"{"jsonrpc":"2.0","id":7,"id":8,"method":"x"}"#, None, "`id` is there twice"),
            (r#"{"jsonrpc":"2.0","id":7,"method":"x","method":"y"}"#, Some("7"), "`method` is there twice"),
            (r#"{"jsonrpc":"2.0","id":7,"method":"x","result":{}}"#, None, "`method` is beside `result` or `error`"),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{}}"#, None, "`result` is beside `error`"),
            (r#"{"jsonrpc":"2.0","result":{}}"#, None, "`id` is missing"),
            (r#"{"jsonrpc":"2.0","id":[],"result":{}}"#, None, "`id` is neither a string nor a number"),
            ("[]", None, "the array is empty"),
            ("[1]", None, "message 1 of the array: it is no object"),
            (
                r#"[{"jsonrpc":"2.0","id":1,"method":"x"},{"id":2,"method":"x"}]"#,
                None,
                "message 2 of the array: `jsonrpc` is missing",
            ),
            ("null", None, "the body is no object"),
            (" \"x\"", None, "the body is no object"),
        ] {
            assert!(peek(body.as_bytes()).is_err(), "{body}");
            let found = defect(body.as_bytes()).expect(body);
            assert_eq!((found.id.map(|id| id.to_json()).as_deref(), &*found.text), (id, text), "{body}");
        }
    }

    #[test]
    fn a_message_has_no_defect_and_text_that_is_no_json_has_none_either() {
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#,
            r#"{"jsonrpc":"2.0","id":1"#,
            r#"[{"jsonrpc":"2.0","id":1}"#,
            "{]",
            "",
        ] {
            assert_eq!(defect(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn only_a_notification_may_have_an_id_of_null() {
        let read = |body: &str| notification_with_null_id(body.as_bytes()).is_some();
        assert!(read(r#"{"jsonrpc":"2.0","method":"notifications/initialized","id":null}"#));
        assert!(read(r#"{"id" : null,"jsonrpc":"2.0","method":"notifications/x","params":{"id":1}}"#));
        for body in [
            r#"{"jsonrpc":"2.0","method":"tools/list","id":null}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized","id":1}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/x","id":null,"id":null}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/x","id":null,"result":{}}"#,
            r#"{"method":"notifications/x","id":null}"#,
            r#"[{"jsonrpc":"2.0","method":"notifications/x","id":null}]"#,
        ] {
            assert!(!read(body), "{body}");
        }
    }
}
