//! The result of `server/discover`, as far as it concerns tasks.

use std::time::Duration;

use super::EXTENSION;
use crate::jsonrpc;

/// Minimum validity of a result.
const LEAST_TTL: Duration = Duration::from_secs(300);

/// Facts from a result of `server/discover`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discovery {
    /// True if the server has tasks of its own.
    pub has_tasks: bool,
    /// Validity of the result: the server's own, but at least five minutes.
    pub ttl: Duration,
}

impl Discovery {
    /// Reads a response to `server/discover`. Returns `None` for an error and for another result.
    pub fn of(message: &[u8]) -> Option<Self> {
        jsonrpc::member(message, &["result", "supportedVersions"])?;
        let has_tasks = jsonrpc::member(message, &["result", "capabilities", "extensions", EXTENSION])
            .is_some_and(|value| value != "null");
        let ttl = jsonrpc::member(message, &["result", "ttlMs"]).and_then(|ttl| ttl.parse().ok());
        Some(Self { has_tasks, ttl: ttl.map_or(LEAST_TTL, Duration::from_millis).max(LEAST_TTL) })
    }
}

/// Returns a result of `server/discover` with the extension, exactly `{}`, among the server's.
/// Returns `None` if it is already present, or the message is no such result. Every other byte
/// stays.
pub fn with_extension(message: &[u8]) -> Option<Vec<u8>> {
    if Discovery::of(message)?.has_tasks {
        return None;
    }
    let extension = format!(r#""{EXTENSION}":{{}}"#);
    let extensions = jsonrpc::member(message, &["result", "capabilities", "extensions"]);
    let (object, text) = match (extensions, jsonrpc::member(message, &["result", "capabilities"])) {
        (Some(extensions), _) => (extensions, extension),
        (None, Some(capabilities)) => (capabilities, format!(r#""extensions":{{{extension}}}"#)),
        (None, None) => {
            (jsonrpc::member(message, &["result"])?, format!(r#""capabilities":{{"extensions":{{{extension}}}}}"#))
        }
    };
    let members = object.strip_prefix('{')?;
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    let at = jsonrpc::span(message, object).start + 1;
    Some(jsonrpc::splice(message, vec![(at..at, format!("{text}{comma}"))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(members: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"supportedVersions":["2026-07-28"]{members}}}}}"#)
    }

    fn edited(members: &str) -> Option<String> {
        with_extension(result(members).as_bytes()).map(|edited| String::from_utf8(edited).expect("text"))
    }

    #[test]
    fn the_extension_is_added_where_it_is_missing() {
        let tasks = r#""io.modelcontextprotocol/tasks":{}"#;
        for (before, after) in [
            (
                r#","capabilities":{"tools":{}}"#,
                format!(r#","capabilities":{{"extensions":{{{tasks}}},"tools":{{}}}}"#),
            ),
            (r#","capabilities":{ }"#, format!(r#","capabilities":{{"extensions":{{{tasks}}} }}"#)),
            (
                r#","capabilities":{"extensions":{"a":{}}}"#,
                format!(r#","capabilities":{{"extensions":{{{tasks},"a":{{}}}}}}"#),
            ),
            (r#","capabilities":{"extensions":{}}"#, format!(r#","capabilities":{{"extensions":{{{tasks}}}}}"#)),
        ] {
            assert_eq!(edited(before), Some(result(&after)), "{before}");
        }
        let without = edited("").expect("an edit");
        let capabilities = jsonrpc::member(without.as_bytes(), &["result", "capabilities"]);
        assert_eq!(capabilities, Some(&*format!(r#"{{"extensions":{{{tasks}}}}}"#)));
        assert_eq!(edited(&format!(r#","capabilities":{{"extensions":{{{tasks}}}}}"#)), None, "it is there");
        for other in [r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#, r#"{"result":{}}"#, "[]"] {
            assert_eq!(with_extension(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_result_is_valid_as_long_as_the_server_says_and_at_least_five_minutes() {
        let of = |members: &str| Discovery::of(result(members).as_bytes()).expect("a result");
        assert_eq!(of(""), Discovery { has_tasks: false, ttl: LEAST_TTL });
        assert_eq!(of(r#","ttlMs":0"#).ttl, LEAST_TTL);
        assert_eq!(of(r#","ttlMs":3600000"#).ttl, Duration::from_secs(3600));
        assert!(of(r#","capabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#).has_tasks);
    }
}
