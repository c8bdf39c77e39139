//! Requests of a client of 2026-07-28, and the requests of 2025-11-25 in their place.

use serde_json::{Map, Value, json};

use crate::bridge::client_facts::{check_size, client_info};
use crate::bridge::{CAPABILITIES, CLIENT_INFO, Declared, LOG_LEVEL, LogLevel, META, TASKS, VERSION};
use crate::jsonrpc::{self, RequestId, code, response};

/// Method of a request, as the bridge treats it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `server/discover`, with a response from the result of `initialize`.
    Discover,
    /// A list, whose result has hints for caches.
    List,
    /// A call that may require input: `tools/call`, `prompts/get`.
    Call,
    /// `resources/read`, whose result has hints for caches too.
    Read,
    /// Another request that means the same in both eras.
    Plain,
    /// `subscriptions/listen`.
    Listen,
    /// A method that the revision does not have.
    Unknown,
}

impl Kind {
    /// Returns the kind of a method.
    pub fn of(method: &str) -> Self {
        match method {
            "server/discover" => Self::Discover,
            "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => Self::List,
            "tools/call" | "prompts/get" => Self::Call,
            "resources/read" => Self::Read,
            "subscriptions/listen" => Self::Listen,
            "initialize" | "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
                Self::Unknown
            }
            method if method.starts_with("tasks/") => Self::Unknown,
            _ => Self::Plain,
        }
    }

    /// Returns true if the server may request input within the call.
    pub fn may_request_input(self) -> bool {
        matches!(self, Self::Call | Self::Read)
    }
}

/// Members of `_meta` that each request of 2026-07-28 has.
#[derive(Clone, PartialEq, Debug)]
pub struct Envelope {
    /// Capabilities of the client, less tasks.
    pub declared: Declared,
    /// Name and version of the client, as JSON.
    pub client_info: String,
    /// Least level of the log messages that the client wants for this request, or `None` if it
    /// wants none.
    pub log_level: Option<LogLevel>,
}

impl Envelope {
    /// Reads the envelope of a request.
    ///
    /// # Errors
    /// The reason: a member is missing, has another type, or is too large.
    pub fn of(body: &[u8]) -> Result<Self, &'static str> {
        if jsonrpc::member(body, &["params", META]).is_none_or(|meta| !meta.starts_with('{')) {
            return Err("_meta is missing");
        }
        let member = |path| jsonrpc::member(body, path).filter(|value| *value != "null");
        if member(&["params", META, VERSION]).is_none_or(|version| !version.starts_with('"')) {
            return Err("io.modelcontextprotocol/protocolVersion is missing in _meta");
        }
        const NO_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities is missing in _meta";
        let declared = member(&["params", META, CAPABILITIES]).ok_or(NO_CAPABILITIES)?;
        let client_info = client_info(member(&["params", META, CLIENT_INFO]))?;
        check_size(&client_info, declared)?;
        let declared: Map<String, Value> = serde_json::from_str(declared).map_err(|_| NO_CAPABILITIES)?;
        let log_level = jsonrpc::string_member(body, &["params", META, LOG_LEVEL]);
        Ok(Self {
            declared: capabilities(declared),
            client_info,
            log_level: log_level.as_deref().and_then(LogLevel::of),
        })
    }
}

/// Returns capabilities of 2026-07-28 in the form of 2025-11-25, without tasks, which the proxy has
/// itself.
fn capabilities(mut kept: Map<String, Value>) -> Declared {
    kept.remove("tasks");
    if let Some(extensions) = kept.get_mut("extensions").and_then(Value::as_object_mut) {
        extensions.remove(TASKS);
        if extensions.is_empty() {
            kept.remove("extensions");
        }
    }
    if let Some(roots) = kept.get_mut("roots").and_then(Value::as_object_mut) {
        roots.insert("listChanged".to_owned(), true.into());
    }
    Declared::new(&Value::Object(kept))
}

/// Writes the request that opens a session for this client.
pub fn initialize(id: &str, envelope: &Envelope) -> Vec<u8> {
    let (version, declared, client) = (super::LEGACY, envelope.declared.as_json(), &envelope.client_info);
    let params = format!(r#"{{"protocolVersion":"{version}","capabilities":{declared},"clientInfo":{client}}}"#);
    let id = Value::from(id);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{params}}}"#).into_bytes()
}

/// Writes the notification that completes the handshake.
pub fn initialized() -> Vec<u8> {
    br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_vec()
}

/// Writes the notification of changed roots.
pub fn roots_changed() -> Vec<u8> {
    br#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#.to_vec()
}

/// Writes the client response to a server request.
pub fn client_response(id: &RequestId, result: &Value) -> Vec<u8> {
    response::result(id, result)
}

/// Writes the client response for a client that has left: a cancelled elicitation, or an error.
pub fn abandoned_response(id: &RequestId, method: &str) -> Vec<u8> {
    if method == "elicitation/create" {
        return client_response(id, &json!({"action": "cancel"}));
    }
    response::error(id, code::INTERNAL_ERROR, "the client has given up the call")
}

/// Returns a request in the form for the server: under this ID and this progress token, without the
/// envelope and other members of the later revision. The progress token is left out where the
/// client wants no progress. Returns `None` for a body that is no such request.
pub fn translated(body: &[u8], id: &str, progress_token: &str) -> Option<Vec<u8>> {
    let own = [VERSION, CLIENT_INFO, CAPABILITIES, LOG_LEVEL];
    let without = |body: Vec<u8>, path, names: &[&str]| jsonrpc::without_members(&body, path, names).unwrap_or(body);
    let mut body = without(body.to_vec(), &["params"], &["inputResponses", "requestState", "task"]);
    body = without(body, &["params", META], &own);
    if jsonrpc::member(&body, &["params", META])
        .is_some_and(|meta| meta.bytes().all(|byte| b"{} \t\r\n".contains(&byte)))
    {
        body = without(body, &["params"], &[META]);
    }
    let mut splices = vec![(jsonrpc::span(&body, jsonrpc::member(&body, &["id"])?), Value::from(id).to_string())];
    if let Some(token) = jsonrpc::member(&body, &["params", META, "progressToken"]) {
        splices.push((jsonrpc::span(&body, token), Value::from(progress_token).to_string()));
    }
    Some(jsonrpc::splice(&body, splices))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(meta: Value, params: Value) -> Vec<u8> {
        let mut params = params;
        params[META] = json!({VERSION: "2026-07-28", CLIENT_INFO: {"name": "c", "version": "1"}, CAPABILITIES: {"elicitation": {"form": {}}}});
        for (name, value) in meta.as_object().expect("an object") {
            params[META][name] = value.clone();
        }
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string().into_bytes()
    }

    #[test]
    fn the_server_gets_a_request_of_its_own_revision() {
        let body = request(
            json!({"progressToken": 7, "traceparent": "00-1", LOG_LEVEL: "info"}),
            json!({"name": "a", "arguments": {"task": 1}, "inputResponses": {}, "requestState": "x", "task": {}}),
        );
        let sent: Value = serde_json::from_slice(&translated(&body, "b1", "b1").expect("a request")).expect("JSON");
        let params =
            json!({"name": "a", "arguments": {"task": 1}, "_meta": {"progressToken": "b1", "traceparent": "00-1"}});
        assert_eq!(sent, json!({"jsonrpc": "2.0", "id": "b1", "method": "tools/call", "params": params}));
        let bare = translated(&request(json!({}), json!({"name": "a"})), "b2", "b2").expect("a request");
        assert_eq!(serde_json::from_slice::<Value>(&bare).expect("JSON")["params"], json!({"name": "a"}));
    }

    #[test]
    fn capabilities_pass_without_tasks() {
        let body = request(
            json!({CAPABILITIES: {"roots": {}, "sampling": {"tools": {}}, "extensions": {TASKS: {}, "a/b": {}}}, LOG_LEVEL: "error"}),
            json!({}),
        );
        let envelope = Envelope::of(&body).expect("an envelope");
        let kept = json!({"roots": {"listChanged": true}, "sampling": {"tools": {}}, "extensions": {"a/b": {}}});
        let declared: Value = serde_json::from_str(envelope.declared.as_json()).expect("JSON");
        assert_eq!((declared, envelope.log_level), (kept, LogLevel::of("error")));
        for (missing, name) in [(json!({VERSION: null}), VERSION), (json!({CAPABILITIES: 1}), CAPABILITIES)] {
            let refused = Envelope::of(&request(missing, json!({})));
            assert!(refused.is_err_and(|reason| reason.starts_with(name)));
        }
        assert_eq!(Envelope::of(br#"{"jsonrpc":"2.0","id":1,"method":"x"}"#), Err("_meta is missing"));
    }

    #[test]
    fn a_server_request_of_an_abandoned_call_gets_a_response() {
        let id = RequestId::Number("3".into());
        let sent = |method| serde_json::from_slice::<Value>(&abandoned_response(&id, method)).expect("JSON");
        assert_eq!(sent("elicitation/create")["result"], json!({"action": "cancel"}));
        assert_eq!(sent("sampling/createMessage")["error"]["code"], -32603);
    }
}
