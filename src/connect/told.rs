//! The server as the host was told, and as it is.
//!
//! They differ if the host was answered before the far side was there, or if another server has
//! come into the session. The session goes on: methods that are gone are answered here. Absent:
//! changes of lists, which the core compares.

use bytes::Bytes;
use tracing::warn;

use super::input::HostRequest;
use super::pipe::{LIST_CHANGES, Pipe};
use super::waiting::list_of;
use crate::protocol::jsonrpc::{self, ServerFacts, response};
use crate::sync;

impl Pipe {
    /// Notes the answer that the host gets to its `initialize`, and returns it. Before a watched
    /// program it declares changes of lists, which follow from a reload.
    pub(super) fn tell(&self, answer: Bytes) -> Bytes {
        *sync::lock(&self.facts.told) = ServerFacts::of(&answer);
        if self.program.is_watched() { with_list_changes(answer) } else { answer }
    }

    /// Notes the handshake of the far side.
    pub(super) fn note_opened(&self, handshake: &[u8]) {
        *sync::lock(&self.facts.opened) = ServerFacts::of(handshake);
    }

    /// Says on stderr in what the far side is less than the host was told by `answer`.
    pub(super) fn compare(&self, answer: &[u8], handshake: &[u8]) {
        let revision = |message| jsonrpc::string_member(message, &["result", "protocolVersion"]);
        let (told, is) = (revision(answer), revision(handshake));
        let (before, now) = (ServerFacts::of(answer), ServerFacts::of(handshake));
        let without = match (&before, &now) {
            (Some(before), Some(now)) => before.missing_in(now).join(", "),
            _ => String::new(),
        };
        if told != is || !without.is_empty() {
            warn!(revision = is, told, without, "the server is not as the host was told: the session goes on");
        }
    }

    /// Returns the answer to a request for what the server has not, though the host was told so.
    pub(super) fn gone(&self, request: &HostRequest) -> Option<Bytes> {
        let capability = capability_of(&request.method).filter(|_| request.revision.is_none())?;
        let is_told = sync::lock(&self.facts.told).as_ref().is_some_and(|told| told.has(capability));
        let has = |server: &ServerFacts| server.has(capability);
        let is_there = match self.far.replacement() {
            Some(replacement) => has(&replacement.server),
            None => sync::lock(&self.facts.opened).as_ref().is_none_or(has),
        };
        if !is_told || is_there {
            return None;
        }
        Some(match list_of(&request.method) {
            Some(member) => response::result(&request.id, format_args!(r#"{{"{member}":[]}}"#)).into(),
            None => response::method_not_found(&request.id).into(),
        })
    }
}

/// Returns the capability that a method belongs to, or `None` for any other method.
fn capability_of(method: &str) -> Option<&'static str> {
    Some(match method {
        "logging/setLevel" => "logging",
        "completion/complete" => "completions",
        method => match method.split('/').next()? {
            "tools" => "tools",
            "prompts" => "prompts",
            "resources" => "resources",
            "tasks" => "tasks",
            _ => return None,
        },
    })
}

/// Returns the answer to `initialize` with changes of all lists that it declares.
fn with_list_changes(answer: Bytes) -> Bytes {
    let declared = LIST_CHANGES.into_iter().filter_map(|(place, _)| {
        let member = jsonrpc::member(&answer, place)?;
        let mut capability: serde_json::Map<String, serde_json::Value> = serde_json::from_str(member).ok()?;
        capability.insert("listChanged".to_owned(), true.into());
        Some((jsonrpc::span(&answer, member), serde_json::Value::from(capability).to_string()))
    });
    let declared: Vec<_> = declared.collect();
    jsonrpc::splice(&answer, declared).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_program_declares_changes_of_its_lists() {
        let answer = br#"{"id":0,"result":{"capabilities":{"tools":{"listChanged":false},"logging":{},"prompts":{}}}}"#;
        let told = with_list_changes(Bytes::from_static(answer));
        let changes = r#"{"listChanged":true}"#;
        let expected = format!(
            r#"{{"id":0,"result":{{"capabilities":{{"tools":{changes},"logging":{{}},"prompts":{changes}}}}}}}"#
        );
        assert_eq!(String::from_utf8_lossy(&told), expected);
    }

    #[test]
    fn methods_belong_to_capabilities() {
        for (method, capability) in [
            ("tools/call", Some("tools")),
            ("resources/templates/list", Some("resources")),
            ("completion/complete", Some("completions")),
            ("logging/setLevel", Some("logging")),
            ("ping", None),
            ("acme/tools", None),
        ] {
            assert_eq!(capability_of(method), capability, "{method}");
        }
    }
}
