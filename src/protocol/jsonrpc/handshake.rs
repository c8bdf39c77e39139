//! Messages of the handshake that opens a session, as far as a later handshake repeats or compares
//! them.
//!
//! Owned here: the parameters that a client sent, and the facts that a server stated. Absent: the
//! exchange itself.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Size limit of the parameters of an `initialize` that can be sent again, in bytes.
const PARAMS_MAX: usize = 16 * 1024;

/// Size limit of a message that is decoded as a whole, in bytes.
const MESSAGE_MAX: usize = 2 * PARAMS_MAX;

/// Size limit of the facts that a server states, in bytes.
const FACTS_MAX: usize = 16 * 1024;

/// Kinds of lists whose changes a server may announce: the capability, and the notification.
const LISTS: [(&str, &str); 3] = [
    ("tools", "notifications/tools/list_changed"),
    ("prompts", "notifications/prompts/list_changed"),
    ("resources", "notifications/resources/list_changed"),
];

/// Parameters of an `initialize`, without `_meta`. They may hold secrets.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct InitializeParams {
    json: Box<str>,
    declares_roots: bool,
}

/// Masked.
impl fmt::Debug for InitializeParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InitializeParams").finish_non_exhaustive()
    }
}

impl InitializeParams {
    /// Takes the parameters of an `initialize` that is one message. Returns `None` for another
    /// message, and beyond 16 KiB.
    pub fn of(message: &[u8]) -> Option<Self> {
        // A tree of the message takes many times its bytes.
        if message.len() > MESSAGE_MAX {
            return None;
        }
        let mut message: Map<String, Value> = serde_json::from_slice(message).ok()?;
        let Value::Object(mut params) = message.remove("params")? else { return None };
        params.remove("_meta");
        let declares_roots = params.get("capabilities").and_then(|declared| declared.get("roots")).is_some();
        let json = Value::Object(params).to_string();
        if json.len() > PARAMS_MAX {
            return None;
        }
        Some(Self { json: json.into(), declares_roots })
    }

    /// Returns the parameters as JSON.
    pub fn as_json(&self) -> &str {
        &self.json
    }

    /// Returns true if the client has declared roots.
    pub fn declares_roots(&self) -> bool {
        self.declares_roots
    }
}

/// Facts that a server stated about itself in the result of an `initialize`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ServerFacts {
    name: Option<String>,
    capabilities: Map<String, Value>,
    size: usize,
}

impl ServerFacts {
    /// Takes the facts from the response to an `initialize`. Returns `None` beyond 16 KiB.
    pub fn of(message: &[u8]) -> Option<Self> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Response {
            result: InitializeResult,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct InitializeResult {
            server_info: Map<String, Value>,
            capabilities: Map<String, Value>,
        }
        // Instructions and the like are skipped; what is kept has a limit.
        if facts_len(message) > FACTS_MAX {
            return None;
        }
        let Response { result } = serde_json::from_slice(message).ok()?;
        let name = result.server_info.get("name").and_then(Value::as_str).map(ToOwned::to_owned);
        let size = serde_json::to_string(&result.capabilities).map_or(usize::MAX, |capabilities| capabilities.len());
        let facts = Self {
            size: size.saturating_add(name.as_ref().map_or(0, String::len)),
            name,
            capabilities: result.capabilities,
        };
        Some(facts).filter(|facts| facts.size <= FACTS_MAX)
    }

    /// Returns the size of the facts as text, in bytes.
    pub fn byte_len(&self) -> usize {
        self.size
    }

    /// Returns true if `later` states the same server with all capabilities: each is present, and
    /// no true one has become false.
    pub fn are_kept_by(&self, later: &Self) -> bool {
        self.name == later.name && has_all(&self.capabilities, &later.capabilities)
    }

    /// Returns the names of the capabilities that `later` lacks.
    pub fn missing_in(&self, later: &Self) -> Vec<&str> {
        let names = self.capabilities.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str());
        names.filter(|name| !later.has(name)).collect()
    }

    /// Returns true if the server has declared this capability.
    pub fn has(&self, capability: &str) -> bool {
        self.capabilities.get(capability).is_some_and(|declared| !declared.is_null())
    }

    /// Returns the notifications of all lists whose changes the server has declared.
    pub fn list_changes(&self) -> impl Iterator<Item = &'static str> {
        let announces = |capability: &str| {
            let declared = self.capabilities.get(capability).and_then(|declared| declared.get("listChanged"));
            declared.and_then(Value::as_bool) == Some(true)
        };
        LISTS.into_iter().filter(move |(capability, _)| announces(capability)).map(|(_, method)| method)
    }

    /// Returns the method of a list that the server has declared, or `None` if it has declared
    /// none.
    pub fn list_method(&self) -> Option<&'static str> {
        const METHODS: [(&str, &str); 3] =
            [("tools", "tools/list"), ("prompts", "prompts/list"), ("resources", "resources/list")];
        let is_declared =
            |capability: &str| self.capabilities.get(capability).is_some_and(|declared| !declared.is_null());
        METHODS.into_iter().find(|(capability, _)| is_declared(capability)).map(|(_, method)| method)
    }

    /// Returns whether the server declared `logging`.
    pub fn has_logging(&self) -> bool {
        self.capabilities.get("logging").is_some_and(|declared| !declared.is_null())
    }
}

/// Change of what a server keeps for a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionChange {
    /// The client requests log messages from this level on.
    LogLevel(String),
    /// The client subscribes to the resource with this URI.
    Subscribed(String),
    /// The client ends its subscription to the resource with this URI.
    Unsubscribed(String),
}

/// Returns the session change that a message requests, or `None` for any other message.
pub fn session_change(message: &[u8]) -> Option<SessionChange> {
    if message.len() > MESSAGE_MAX {
        return None;
    }
    let message: Value = serde_json::from_slice(message).ok()?;
    let param = |name: &str| message["params"][name].as_str().map(ToOwned::to_owned);
    match message["method"].as_str()? {
        "logging/setLevel" => param("level").map(SessionChange::LogLevel),
        "resources/subscribe" => param("uri").map(SessionChange::Subscribed),
        "resources/unsubscribe" => param("uri").map(SessionChange::Unsubscribed),
        _ => None,
    }
}

/// Returns the size of the parts of an `initialize` result that are decoded, in bytes.
fn facts_len(message: &[u8]) -> usize {
    let len = |path| super::find(message, path).map_or(0, |raw| raw.get().len());
    len(&["result", "capabilities"]) + len(&["result", "serverInfo"])
}

fn has_all(before: &Map<String, Value>, later: &Map<String, Value>) -> bool {
    before.iter().all(|(key, before)| match (before, later.get(key)) {
        (_, None) => false,
        (Value::Object(before), Some(Value::Object(later))) => has_all(before, later),
        (Value::Bool(true), Some(later)) => *later != Value::Bool(false),
        (_, Some(_)) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_kept_without_meta_up_to_their_limit() {
        let message = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"_meta":{"progressToken":1},
            "protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"1"}}}"#;
        let params = InitializeParams::of(message).unwrap();
        assert!(params.declares_roots() && !params.as_json().contains("_meta"));
        assert!(params.as_json().contains(r#""protocolVersion":"2025-11-25""#));
        let long = format!(r#"{{"params":{{"x":"{}"}}}}"#, "x".repeat(PARAMS_MAX));
        for none in ["[]", "{}", r#"{"params":[]}"#, "", long.as_str()] {
            assert_eq!(InitializeParams::of(none.as_bytes()), None);
        }
    }

    fn facts(capabilities: &str) -> ServerFacts {
        let info = r#""serverInfo":{"name":"s","version":"1"}"#;
        ServerFacts::of(format!(r#"{{"result":{{{info},"capabilities":{capabilities}}}}}"#).as_bytes()).unwrap()
    }

    #[test]
    fn a_server_keeps_its_facts_if_every_capability_is_still_there() {
        let before = facts(r#"{"tools":{"listChanged":true},"logging":{}}"#);
        assert!(before.are_kept_by(&facts(r#"{"logging":{},"prompts":{},"tools":{"listChanged":true}}"#)));
        assert!(!before.are_kept_by(&facts(r#"{"tools":{"listChanged":true}}"#)), "no logging");
        assert!(!before.are_kept_by(&facts(r#"{"tools":{"listChanged":false},"logging":{}}"#)));
        assert!(!before.are_kept_by(&facts(r#"{"tools":{},"logging":{}}"#)));
        let other = ServerFacts { name: Some("other".to_owned()), ..before.clone() };
        assert!(!before.are_kept_by(&other));
        assert!(facts(r#"{"tools":{"listChanged":false}}"#).are_kept_by(&before));
    }

    #[test]
    fn changes_of_a_session_are_recognised() {
        let change = |text: &str| session_change(text.as_bytes());
        let level = change(r#"{"method":"logging/setLevel","params":{"level":"info"}}"#);
        assert_eq!(level, Some(SessionChange::LogLevel("info".to_owned())));
        let uri = "file:///a".to_owned();
        let subscribed = change(r#"{"method":"resources/subscribe","params":{"uri":"file:///a"}}"#);
        assert_eq!(subscribed, Some(SessionChange::Subscribed(uri.clone())));
        let ended = change(r#"{"method":"resources/unsubscribe","params":{"uri":"file:///a"}}"#);
        assert_eq!(ended, Some(SessionChange::Unsubscribed(uri)));
        for none in [r#"{"method":"tools/call","params":{"uri":"a"}}"#, r#"{"method":"logging/setLevel"}"#, "[]", "x"] {
            assert_eq!(change(none), None);
        }
    }

    #[test]
    fn changes_are_announced_for_the_lists_that_were_declared() {
        let facts =
            facts(r#"{"tools":{"listChanged":true},"prompts":{},"resources":{"listChanged":true,"subscribe":true}}"#);
        let changes: Vec<_> = facts.list_changes().collect();
        assert_eq!(changes, ["notifications/tools/list_changed", "notifications/resources/list_changed"]);
        assert!(!facts.has_logging() && ServerFacts::default().list_changes().next().is_none());
    }
}
