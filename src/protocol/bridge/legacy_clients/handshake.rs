//! The response to a client's `initialize`, from the server's result of `server/discover`.

use serde_json::{Map, Value, json};

use crate::bridge::client_facts::{check_size, client_info};
use crate::bridge::{Declared, LEGACY, LISTS, SERVER_INFO, TASKS};
use crate::headers::ProtocolVersion;
use crate::jsonrpc::{self, RequestId, response};

/// Facts about a client, which each of its requests repeats at the server.
#[derive(Clone, PartialEq, Debug)]
pub struct ClientFacts {
    /// Revision that the client speaks.
    pub version: ProtocolVersion,
    /// Name and version of the client, as JSON.
    pub info: String,
    /// Capabilities of the client that the server's revision has.
    pub declared: Declared,
}

impl ClientFacts {
    /// Reads the facts in an `initialize`.
    ///
    /// # Errors
    /// The reason: a member is missing, has another type, or is too large.
    pub fn of(body: &[u8]) -> Result<Self, &'static str> {
        let requested = jsonrpc::requested_version(body).ok_or("protocolVersion is missing")?;
        // The oldest revision has another transport.
        let version = match ProtocolVersion::LEGACY[1..].iter().find(|known| **known == requested) {
            Some(known) => known,
            None => LEGACY,
        };
        let declared = jsonrpc::member(body, &["params", "capabilities"]).unwrap_or("{}");
        let info = client_info(jsonrpc::member(body, &["params", "clientInfo"]))?;
        check_size(&info, declared)?;
        let mut declared: Map<String, Value> =
            serde_json::from_str(declared).map_err(|_| "capabilities is no object")?;
        declared.remove("tasks");
        if let Some(roots) = declared.get_mut("roots").and_then(Value::as_object_mut) {
            roots.remove("listChanged");
        }
        let version = ProtocolVersion::parse(version).ok_or("protocolVersion is unknown")?;
        Ok(Self { version, info, declared: Declared::new(&Value::Object(declared)) })
    }

    /// Returns true if the client knows the content of 2025-06-18: links to resources, and
    /// structured content.
    pub fn knows_structured_content(&self) -> bool {
        self.version.is_at_least("2025-06-18")
    }
}

/// Result of `server/discover`.
#[derive(Clone, PartialEq, Debug)]
pub struct Discovered {
    capabilities: Value,
    info: Value,
    instructions: Option<Value>,
}

impl Discovered {
    /// Reads a response to `server/discover`. Returns `None` for an error.
    pub fn of(message: &[u8]) -> Option<Self> {
        let result: Map<String, Value> = serde_json::from_str(jsonrpc::member(message, &["result"])?).ok()?;
        let mut capabilities = result.get("capabilities").cloned().unwrap_or_else(|| json!({}));
        if let Some(extensions) = capabilities.get_mut("extensions").and_then(Value::as_object_mut) {
            extensions.remove(TASKS);
            if extensions.is_empty()
                && let Some(members) = capabilities.as_object_mut()
            {
                members.remove("extensions");
            }
        }
        let named = result.get("_meta").and_then(|meta| meta.get(SERVER_INFO)).or_else(|| result.get("serverInfo"));
        let own = || json!({"name": "mcp-resume", "version": env!("CARGO_PKG_VERSION")});
        Some(Self {
            info: named.cloned().unwrap_or_else(own),
            instructions: result.get("instructions").cloned(),
            capabilities,
        })
    }

    /// Returns true if the server announces the change of a list or of a resource.
    pub fn announces(&self, kind: &str, what: &str) -> bool {
        self.capabilities[kind][what] == Value::Bool(true)
    }

    /// Returns the members of a filter for all lists whose changes the server announces.
    pub fn announced_lists(&self) -> Vec<&'static str> {
        let announced = LISTS.iter().filter(|(kind, _, _)| self.announces(kind, "listChanged"));
        announced.map(|(_, member, _)| *member).collect()
    }

    /// Writes the response to `initialize`.
    pub fn initialized(&self, id: &RequestId, client: &ClientFacts) -> Vec<u8> {
        let mut result = json!({
            "protocolVersion": client.version.as_str(),
            "capabilities": self.capabilities,
            "serverInfo": self.info,
        });
        if let Some(instructions) = &self.instructions {
            result["instructions"] = instructions.clone();
        }
        response::result(id, &result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, capabilities: Value) -> ClientFacts {
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "c"}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        ClientFacts::of(body.to_string().as_bytes()).expect("facts")
    }

    #[test]
    fn a_client_keeps_its_revision_and_its_capabilities_less_what_the_later_one_lacks() {
        for (requested, spoken) in [
            ("2025-03-26", "2025-03-26"),
            ("2025-11-25", "2025-11-25"),
            ("2024-11-05", LEGACY),
            ("2026-07-28", LEGACY),
            ("x", LEGACY),
        ] {
            assert_eq!(facts(requested, json!({})).version.as_str(), spoken, "{requested}");
        }
        let declared = facts(LEGACY, json!({"roots": {"listChanged": true}, "tasks": {}, "sampling": {}}));
        assert_eq!(declared.declared, Declared::new(&json!({"roots": {}, "sampling": {}})));
        assert!(ClientFacts::of(br#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#).is_err());
        assert!(!facts("2025-03-26", json!({})).knows_structured_content());
    }

    #[test]
    fn the_handshake_is_the_result_of_discovery() {
        let capabilities = json!({"tools": {"listChanged": true}, "logging": {}, "extensions": {TASKS: {}}});
        let result = json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
            "ttlMs": 0, "instructions": "i", "_meta": {SERVER_INFO: {"name": "s", "version": "1"}}});
        let message = json!({"jsonrpc": "2.0", "id": "x", "result": result}).to_string();
        let found = Discovered::of(message.as_bytes()).expect("a result");
        assert!(found.announces("tools", "listChanged") && !found.announces("resources", "subscribe"));
        assert_eq!(found.announced_lists(), ["toolsListChanged"]);
        let id = RequestId::Number("7".into());
        let initialized: Value =
            serde_json::from_slice(&found.initialized(&id, &facts("2025-06-18", json!({})))).expect("JSON");
        let expected = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": true}, "logging": {}},
            "serverInfo": {"name": "s", "version": "1"}, "instructions": "i"});
        assert_eq!(initialized, json!({"jsonrpc": "2.0", "id": 7, "result": expected}));
        assert_eq!(Discovered::of(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":""}}"#), None);
    }
}
