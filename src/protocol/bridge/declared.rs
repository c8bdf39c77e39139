//! Capabilities of a client: the server requests that it accepts.

use serde_json::Value;

use crate::jsonrpc::code;

/// Capabilities that a client declares, of either era.
#[derive(Clone, PartialEq, Debug)]
pub struct Declared(String);

impl Declared {
    /// Takes the capabilities that a client declares.
    pub fn new(capabilities: &Value) -> Self {
        Self(capabilities.to_string())
    }

    /// Returns the capabilities as JSON.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// Returns code and text of the error for a server request that the client does not accept.
    /// Returns `None` if it does.
    pub fn refuses(&self, method: &str, params: &Value) -> Option<(i64, &'static str)> {
        let (kind, modes) = match method {
            "elicitation/create" => ("elicitation", Some(params.get("mode").and_then(Value::as_str).unwrap_or("form"))),
            "sampling/createMessage" => ("sampling", None),
            "roots/list" => ("roots", None),
            _ => return Some((code::METHOD_NOT_FOUND, "the client knows no such request")),
        };
        let declared: Value = serde_json::from_str(&self.0).unwrap_or_default();
        let Some(declared) = declared.get(kind).and_then(Value::as_object) else {
            return Some((code::METHOD_NOT_FOUND, "the client has not declared this capability"));
        };
        match modes {
            // An empty object stands for forms.
            Some("form") if declared.is_empty() || declared.contains_key("form") => None,
            Some(mode) if declared.contains_key(mode) => None,
            Some(_) => Some((code::INVALID_PARAMS, "the client has not declared this mode of elicitation")),
            None if kind == "sampling" && params.get("tools").is_some() && !declared.contains_key("tools") => {
                Some((code::INVALID_PARAMS, "the client has not declared tools in sampling"))
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_client_is_asked_what_it_declared() {
        let declared = |value: Value| Declared::new(&value);
        let refuses = |capabilities: Value, method, params: Value| {
            declared(capabilities).refuses(method, &params).map(|(code, _)| code)
        };
        let form = json!({"mode": "form"});
        assert_eq!(refuses(json!({"elicitation": {}}), "elicitation/create", json!({})), None);
        assert_eq!(refuses(json!({"elicitation": {"form": {}}}), "elicitation/create", form.clone()), None);
        assert_eq!(refuses(json!({"elicitation": {"url": {}}}), "elicitation/create", form.clone()), Some(-32602));
        assert_eq!(refuses(json!({"elicitation": {}}), "elicitation/create", json!({"mode": "url"})), Some(-32602));
        assert_eq!(refuses(json!({}), "elicitation/create", form), Some(-32601));
        assert_eq!(refuses(json!({"sampling": {}}), "sampling/createMessage", json!({"tools": []})), Some(-32602));
        assert_eq!(refuses(json!({"roots": {}}), "roots/list", json!({})), None);
        assert_eq!(refuses(json!({"tasks": {}}), "tasks/get", json!({})), Some(-32601));
    }
}
