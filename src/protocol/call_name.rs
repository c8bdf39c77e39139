//! Name of a call in logs and on the status page: its method, and the tool of a `tools/call`.
//!
//! Both are text of the client, cut to a limit. Absent: arguments, which may be secret.

use std::borrow::Cow;
use std::ops::Range;

use super::jsonrpc::{self, MethodName};

/// Limit for a name. Longer ones are cut.
const MAX_CHARS: usize = 64;

/// Source of a call's name, beside its body.
#[derive(Clone, Debug)]
pub struct NameSource {
    /// The method, or `batch` for an array.
    pub method: MethodName,
    /// The place of the text of `params.name`, if it was seen; see [`jsonrpc::tool_name_at`].
    pub tool: Option<Range<usize>>,
}

/// The method of a call, and its tool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallName {
    /// The method, or `batch` for an array.
    pub method: MethodName,
    /// The tool of a `tools/call`, or `None` for another method.
    pub tool: Option<Box<str>>,
}

impl CallName {
    /// Returns the name of a call with this body.
    pub fn of(NameSource { method, tool }: &NameSource, body: &[u8]) -> Self {
        let tool = if *method == "tools/call" { jsonrpc::tool_name_at(body, tool.as_ref()) } else { None };
        let method = match cut(method) {
            Some(cut) => Cow::Owned(cut.to_owned()),
            None => method.clone(),
        };
        Self { method, tool: tool.map(|tool| cut(&tool).unwrap_or(&tool).into()) }
    }

    /// Returns the memory of the name beside the value itself, in bytes.
    pub fn byte_len(&self) -> usize {
        let method = match &self.method {
            Cow::Borrowed(_) => 0,
            Cow::Owned(method) => method.len(),
        };
        method + self.tool.as_ref().map_or(0, |tool| tool.len())
    }
}

/// Returns the beginning of a name that is too long.
fn cut(name: &str) -> Option<&str> {
    name.char_indices().nth(MAX_CHARS).map(|(end, _)| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_by_its_method_and_its_tool() {
        let call =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{"name":"x"}}}"#;
        let named = |method: &'static str, body: &str| {
            let source = NameSource { method: method.into(), tool: None };
            let CallName { method, tool } = CallName::of(&source, body.as_bytes());
            (method.into_owned(), tool.map(String::from))
        };
        assert_eq!(named("tools/call", call), ("tools/call".into(), Some("slow".into())));
        assert_eq!(named("prompts/get", call), ("prompts/get".into(), None));
        assert_eq!(named("batch", &format!("[{call}]")), ("batch".into(), None));
        for (length, kept) in [(MAX_CHARS, MAX_CHARS), (MAX_CHARS + 1, MAX_CHARS), (1000, MAX_CHARS)] {
            let long = call.replace("slow", &"ü".repeat(length));
            assert_eq!(named("tools/call", &long).1, Some("ü".repeat(kept)));
            let source = NameSource { method: "m".repeat(length).into(), tool: None };
            assert_eq!(CallName::of(&source, b"").method, "m".repeat(kept));
        }
    }
}
