//! Requests of MCP without effects: a repetition of one changes nothing.
//!
//! Absent: the annotations of tools, which are hints of the server and no promise.

use super::jsonrpc::{self, Message};

/// Methods whose requests change nothing at the server, or leave the same state each time.
const WITHOUT_EFFECTS: [&str; 14] = [
    "completion/complete",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "tasks/get",
    "tasks/list",
    "tools/list",
];

/// Returns true if the body of a POST has requests without effects alone. A GET has no body, and no
/// effect either.
pub fn are_absent(body: &[u8]) -> bool {
    if body.is_empty() {
        return true;
    }
    let has_none = |message: &Message| match message {
        Message::Request { method, .. } => WITHOUT_EFFECTS.contains(&&**method),
        Message::Notification { .. } | Message::Response { .. } => false,
    };
    jsonrpc::peek(body).is_ok_and(|body| body.messages().iter().all(has_none))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(method: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#)
    }

    #[test]
    fn only_known_methods_have_no_effects() {
        for method in WITHOUT_EFFECTS {
            assert!(are_absent(body(method).as_bytes()), "{method}");
        }
        for method in ["tools/call", "initialize", "tasks/cancel", "acme/read", "tools/list2", ""] {
            assert!(!are_absent(body(method).as_bytes()), "{method}");
        }
        assert!(are_absent(b"") && !are_absent(b"ping") && !are_absent(b"[]"));
    }

    #[test]
    fn one_request_with_effects_gives_them_to_its_batch() {
        let (ping, call) = (body("ping"), body("tools/call"));
        assert!(are_absent(format!("[{ping},{ping}]").as_bytes()));
        assert!(!are_absent(format!("[{ping},{call}]").as_bytes()));
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;
        assert!(!are_absent(format!("[{ping},{notification}]").as_bytes()));
    }
}
