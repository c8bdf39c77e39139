//! Tools that the user hides from the host: they are not listed, and calls of them are not sent.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::protocol::jsonrpc;

/// Names of hidden tools, in small letters, with `*` for any part.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct IgnoredTools(Vec<String>);

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
}

impl IgnoredTools {
    pub(super) fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().map(|pattern| pattern.to_lowercase()).collect())
    }

    /// Returns true if the tool is hidden.
    pub(super) fn has(&self, tool: &str) -> bool {
        let tool = tool.to_lowercase();
        self.0.iter().any(|pattern| matches(pattern.as_bytes(), tool.as_bytes()))
    }

    /// Returns the response to `tools/list` without the hidden tools.
    pub(super) fn remove_from(&self, response: Bytes) -> Bytes {
        let listed = jsonrpc::member(&response, &["result", "tools"]).filter(|_| !self.0.is_empty());
        let Some(list) = listed else { return response };
        let Ok(tools) = serde_json::from_str::<Vec<&RawValue>>(list) else { return response };
        let is_shown = |tool: &&&RawValue| {
            !serde_json::from_str::<Named<'_>>(tool.get()).is_ok_and(|Named { name }| self.has(&name))
        };
        let shown: Vec<&str> = tools.iter().filter(is_shown).map(|tool| tool.get()).collect();
        if shown.len() == tools.len() {
            return response;
        }
        let place = jsonrpc::span(&response, list);
        jsonrpc::splice(&response, vec![(place, format!("[{}]", shown.join(",")))]).into()
    }
}

/// True if `*` in the pattern can stand for parts of the name so that both are equal.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // Place behind the last `*`, and the part of the name that it covers so far.
    let mut last: Option<(usize, usize)> = None;
    while in_name < name.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            last = Some((at, in_name));
        } else if pattern.get(at) == Some(&name[in_name]) {
            (at, in_name) = (at + 1, in_name + 1);
        } else if let Some((behind, covered)) = last {
            (at, in_name) = (behind, covered + 1);
            last = Some((behind, covered + 1));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_part_without_regard_to_case() {
        for (pattern, name, is_hidden) in [
            ("delete", "Delete", true),
            ("delete", "delete_all", false),
            ("delete*", "DELETE_all", true),
            ("*all", "delete_all", true),
            ("d*e*l", "delete_all", true),
            ("d*x*l", "delete_all", false),
            ("*", "", true),
            ("", "a", false),
            ("a*b", "ab", true),
            ("a*ab", "aab", true),
        ] {
            let ignored = IgnoredTools::new(&[pattern.to_owned()]);
            assert_eq!(ignored.has(name), is_hidden, "{pattern} {name}");
        }
    }

    #[test]
    fn hidden_tools_are_taken_out_of_the_list() {
        let ignored = IgnoredTools::new(&["write*".to_owned()]);
        let list = |tools: &str| Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{tools}]}}}}"#));
        let (read, write) = (r#"{"name":"read","x":1}"#, r#"{"name":"write_all"}"#);
        assert_eq!(ignored.remove_from(list(&format!("{write},{read}"))), list(read));
        assert_eq!(ignored.remove_from(list(read)), list(read));
        let error = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"error":{}}"#);
        assert_eq!(ignored.remove_from(error.clone()), error);
        assert_eq!(IgnoredTools::default().remove_from(list(write)), list(write));
    }
}
