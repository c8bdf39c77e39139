//! Name of a call in logs and on the status page: its method, and the tool of a `tools/call`.
//!
//! Both are text of the client, cut to a limit. Absent: arguments, which may be secret.

use super::jsonrpc::{self, Body, Message};

/// Limit for a name. Longer ones are cut.
const MAX_CHARS: usize = 64;

/// The method of a call, and its tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallName {
    /// The method, or `batch` for an array.
    pub method: Box<str>,
    /// The tool of a `tools/call`, or `None` for another method.
    pub tool: Option<Box<str>>,
}

impl CallName {
    /// Reads the name from the body of a POST. Returns `None` for a body without a request.
    pub fn of(body: &[u8]) -> Option<Self> {
        match jsonrpc::peek(body).ok()? {
            Body::Batch(_) => Some(Self { method: "batch".into(), tool: None }),
            Body::Single(Message::Request { method, .. }) => {
                let tool = if &*method == "tools/call" { jsonrpc::tool_name(body) } else { None };
                Some(Self { method: short(&method), tool: tool.as_deref().map(short) })
            }
            Body::Single(Message::Notification { .. } | Message::Response { .. }) => None,
        }
    }

    /// Returns the size of the name, in bytes.
    pub fn byte_len(&self) -> usize {
        self.method.len() + self.tool.as_ref().map_or(0, |tool| tool.len())
    }
}

fn short(name: &str) -> Box<str> {
    name.chars().take(MAX_CHARS).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_by_its_method_and_its_tool() {
        let named = |body: &str| CallName::of(body.as_bytes()).map(|name| (name.method, name.tool));
        let call =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{"name":"x"}}}"#;
        assert_eq!(named(call), Some(("tools/call".into(), Some("slow".into()))));
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"greet"}}"#;
        assert_eq!(named(list), Some(("prompts/get".into(), None)));
        assert_eq!(named(&format!("[{list}]")), Some(("batch".into(), None)));
        assert_eq!(named(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#), None);
        assert_eq!(named(""), None);
        let long = call.replace("slow", &"ü".repeat(1000));
        assert_eq!(named(&long).unwrap().1, Some("ü".repeat(MAX_CHARS).into()));
    }
}
