//! Messages of a server of 2025-11-25, and the messages of 2026-07-28 in their place.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::bridge::SERVER_INFO;
use crate::jsonrpc::{self, RequestId, code, response};

/// Codes that the later revision has given a meaning.
const SPECIFIED: std::ops::RangeInclusive<i64> = -32099..=-32020;

/// Maximum number of elicitations in the data of one error.
const MAX_ELICITATIONS: usize = 16;

/// Hints for caches in a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListHints {
    /// The result has none.
    Absent,
    /// Not to be kept, and the caller's alone.
    Uncached,
}

/// Returns the response to a request in the form for its client. It has the client's ID. A result
/// has its type, and an error has a code of the later revision. Returns `None` for a message that
/// is no response.
pub fn result_as(message: &[u8], id: &RequestId, server_info: Option<&Value>, hints: ListHints) -> Option<Vec<u8>> {
    if let Some(error) = jsonrpc::error_in(message) {
        return Some(modern_error(id, &serde_json::from_str(error).ok()?));
    }
    let result = jsonrpc::member(message, &["result"])?;
    let mut splices = vec![(jsonrpc::span(message, jsonrpc::member(message, &["id"])?), id.to_json())];
    if result.starts_with('{') {
        let has = |name| jsonrpc::member(result.as_bytes(), name).is_some();
        let mut added = Vec::new();
        if !has(&["resultType"]) {
            added.push(r#""resultType":"complete""#.to_owned());
        }
        if hints == ListHints::Uncached && !has(&["ttlMs"]) {
            added.push(r#""ttlMs":0"#.to_owned());
        }
        if hints == ListHints::Uncached && !has(&["cacheScope"]) {
            added.push(r#""cacheScope":"private""#.to_owned());
        }
        if let Some(info) = server_info {
            let info = format!(r#""{SERVER_INFO}":{info}"#);
            match jsonrpc::member(result.as_bytes(), &["_meta"]) {
                Some(meta) if jsonrpc::member(meta.as_bytes(), &[SERVER_INFO]).is_some() => {}
                Some(meta) => splices.extend(jsonrpc::first_members(message, meta, &info)),
                None => added.push(format!(r#""_meta":{{{info}}}"#)),
            }
        }
        if !added.is_empty() {
            splices.extend(jsonrpc::first_members(message, result, &added.join(",")));
        }
        if let Some(tools) = jsonrpc::member(result.as_bytes(), &["tools"]) {
            jsonrpc::for_each_element(tools, |tool| {
                let edited = jsonrpc::without_members(tool.as_bytes(), &[], &["execution"]);
                let edited = edited.and_then(|edited| String::from_utf8(edited).ok());
                splices.extend(edited.map(|edited| (jsonrpc::span(message, tool), edited)));
            });
        }
    }
    Some(jsonrpc::splice(message, splices))
}

/// Writes an error of the server with a code that means the same at the later revision.
pub fn modern_error(id: &RequestId, error: &Value) -> Vec<u8> {
    let code = match error.get("code").and_then(Value::as_i64).unwrap_or(code::INTERNAL_ERROR) {
        code::RESOURCE_NOT_FOUND => code::INVALID_PARAMS,
        code if SPECIFIED.contains(&code) => code::INTERNAL_ERROR,
        code => code,
    };
    let mut error = error.clone();
    if let Some(members) = error.as_object_mut() {
        members.insert("code".to_owned(), code.into());
    }
    response::error_object(id, &error)
}

/// Elicitations in URL mode that a failed call requires first.
#[derive(Clone, PartialEq, Debug)]
pub struct UrlElicitations {
    /// IDs that the server reports as complete.
    pub ids: Vec<String>,
    /// Parameters of each elicitation, as clients of 2026-07-28 get them.
    pub params: Vec<Value>,
}

impl UrlElicitations {
    /// Parses the error of a call. Returns `None` for any other response.
    pub fn of(message: &[u8]) -> Option<Self> {
        if jsonrpc::error_code(message) != Some(code::URL_ELICITATION_REQUIRED) {
            return None;
        }
        let elicitations = jsonrpc::member(message, &["error", "data", "elicitations"])?;
        let mut elicitations: Vec<Map<String, Value>> = serde_json::from_str(elicitations).ok()?;
        if elicitations.is_empty() || elicitations.len() > MAX_ELICITATIONS {
            return None;
        }
        let id_of = |params: &mut Map<String, Value>| match params.remove("elicitationId") {
            Some(Value::String(id)) => Some(id),
            Some(_) | None => None,
        };
        let ids = elicitations.iter_mut().filter_map(id_of).collect();
        Some(Self { ids, params: elicitations.into_iter().map(Value::from).collect() })
    }
}

/// Writes the error for a request that requires URL elicitation if the client has not declared it.
pub fn url_elicitation_missing(id: &RequestId) -> Vec<u8> {
    let data = json!({"requiredCapabilities": {"elicitation": {"url": {}}}});
    let text = "Missing required client capability: elicitation.url";
    response::error_with_data(Some(id), code::MISSING_CAPABILITY, text, data)
}

/// Writes the error for a call or a subscription that cannot wait, because too many do.
pub fn too_many_waiting(id: &RequestId) -> Vec<u8> {
    response::error(id, code::INTERNAL_ERROR, "too many requests of this session wait")
}

/// Returns the status of a response that is one JSON message.
pub fn status_of(message: &[u8]) -> StatusCode {
    match jsonrpc::error_code(message) {
        Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(code::MISSING_CAPABILITY) => StatusCode::BAD_REQUEST,
        Some(_) | None => StatusCode::OK,
    }
}

/// Returns the response to `server/discover` from the result of `initialize`, or `None` for any
/// other message.
pub fn discovered(initialized: &[u8], id: &RequestId) -> Option<Vec<u8>> {
    let result: Map<String, Value> = serde_json::from_str(jsonrpc::member(initialized, &["result"])?).ok()?;
    let mut capabilities = result.get("capabilities").cloned().unwrap_or_else(|| json!({}));
    if let Some(members) = capabilities.as_object_mut() {
        members.remove("tasks");
    }
    let mut found = json!({
        "resultType": "complete",
        "supportedVersions": [super::MODERN],
        "capabilities": capabilities,
        "ttlMs": 0,
        "cacheScope": "private",
    });
    if let Some(instructions) = result.get("instructions") {
        found["instructions"] = instructions.clone();
    }
    if let Some(info) = result.get("serverInfo") {
        found["_meta"] = json!({ SERVER_INFO: info });
    }
    Some(response::result(id, &found))
}

/// Returns a progress notification under the client's own token, which is JSON. Returns `None` if
/// the notification has another token than `own`.
pub fn progress_as(message: &[u8], own: &str, client: &str) -> Option<Vec<u8>> {
    let token = jsonrpc::member(message, &["params", "progressToken"])?;
    let is_own = serde_json::from_str::<String>(token).is_ok_and(|token| token == own);
    is_own.then(|| jsonrpc::splice(message, vec![(jsonrpc::span(message, token), client.to_owned())]))
}

/// Returns method and parameters of a server request, for an input round.
pub fn input_request_of(message: &[u8]) -> Option<(String, Value)> {
    let method = jsonrpc::string_member(message, &["method"])?;
    let params = jsonrpc::member(message, &["params"]).and_then(|params| serde_json::from_str(params).ok());
    let mut params: Value = params.unwrap_or_else(|| json!({}));
    if let Some(members) = params.as_object_mut() {
        for name in ["task", "elicitationId"] {
            members.remove(name);
        }
    }
    Some((method, params))
}

/// Writes an `input_required` result. Each input request has a key, a method and parameters.
pub fn input_required<'a>(
    id: &RequestId,
    inputs: impl Iterator<Item = (&'a str, &'a str, &'a Value)>,
    state: &str,
) -> Vec<u8> {
    let requests: Map<String, Value> =
        inputs.map(|(key, method, params)| (key.to_owned(), json!({"method": method, "params": params}))).collect();
    let result = json!({"resultType": "input_required", "inputRequests": requests, "requestState": state});
    response::result(id, &result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> RequestId {
        RequestId::Number("7".into())
    }

    fn parsed(message: Vec<u8>) -> Value {
        serde_json::from_slice(&message).expect("JSON")
    }

    #[test]
    fn a_result_gains_its_type_and_the_name_of_its_server() {
        let info = json!({"name": "s", "version": "1"});
        let message = br#"{"jsonrpc":"2.0","id":"b1","result":{"content":[],"_meta":{"a":1}}}"#;
        let result = parsed(result_as(message, &id(), Some(&info), ListHints::Absent).expect("a result"));
        let expected = json!({"content": [], "resultType": "complete", "_meta": {"a": 1, SERVER_INFO: info}});
        assert_eq!(result, json!({"jsonrpc": "2.0", "id": 7, "result": expected}));
        let message =
            br#"{"jsonrpc":"2.0","id":"b1","result":{"tools":[{"name":"a","execution":{"taskSupport":"optional"}}]}}"#;
        let list = parsed(result_as(message, &id(), None, ListHints::Uncached).expect("a result"));
        let expected = json!({"tools": [{"name": "a"}], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
        assert_eq!(list["result"], expected);
        assert_eq!(result_as(br#"{"jsonrpc":"2.0","method":"x"}"#, &id(), None, ListHints::Absent), None);
    }

    #[test]
    fn errors_have_codes_of_the_later_revision() {
        for (before, after) in
            [(-32002, -32602), (-32601, -32601), (-32021, -32603), (-32099, -32603), (-1, -1), (-32000, -32000)]
        {
            let message =
                format!(r#"{{"jsonrpc":"2.0","id":"b1","error":{{"code":{before},"message":"m","data":1}}}}"#);
            let error = parsed(result_as(message.as_bytes(), &id(), None, ListHints::Absent).expect("an error"));
            assert_eq!(error["error"], json!({"code": after, "message": "m", "data": 1}));
        }
        assert_eq!(status_of(&response::method_not_found(&id())), StatusCode::NOT_FOUND);
    }

    #[test]
    fn discovery_is_the_result_of_the_handshake() {
        let message = br#"{"jsonrpc":"2.0","id":"b0","result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{}},"serverInfo":{"name":"s"},"instructions":"i"}}"#;
        let found = parsed(discovered(message, &id()).expect("a result"));
        assert_eq!(
            found["result"],
            json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0,
                "cacheScope": "private", "instructions": "i", "_meta": {SERVER_INFO: {"name": "s"}}})
        );
        assert_eq!(discovered(br#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#, &id()), None);
    }

    #[test]
    fn an_error_can_require_elicitations() {
        let error = |code: i64, elicitations: Value| {
            let error = json!({"code": code, "message": "m", "data": {"elicitations": elicitations}});
            UrlElicitations::of(json!({"jsonrpc": "2.0", "id": "b1", "error": error}).to_string().as_bytes())
        };
        let elicitation = json!({"mode": "url", "elicitationId": "e1", "url": "https://x", "message": "m"});
        let expected = json!({"mode": "url", "url": "https://x", "message": "m"});
        let found = UrlElicitations { ids: vec!["e1".to_owned()], params: vec![expected] };
        assert_eq!(error(-32042, json!([elicitation])), Some(found));
        for (code, elicitations) in [
            (-32041, json!([elicitation])),
            (-32042, json!([])),
            (-32042, json!({})),
            (-32042, json!(vec![elicitation.clone(); 17])),
        ] {
            assert_eq!(error(code, elicitations), None);
        }
        let missing = parsed(url_elicitation_missing(&id()));
        assert_eq!(
            (&missing["error"]["code"], &missing["error"]["data"]["requiredCapabilities"]),
            (&json!(-32021), &json!({"elicitation": {"url": {}}}))
        );
    }

    #[test]
    fn progress_and_server_requests_are_renamed() {
        let progress =
            br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"b1","progress":1}}"#;
        let renamed = progress_as(progress, "b1", "7").expect("progress");
        assert_eq!(parsed(renamed)["params"], json!({"progressToken": 7, "progress": 1}));
        assert_eq!(progress_as(progress, "b2", "7"), None);
        let request = br#"{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","task":{},"url":"u"}}"#;
        let (method, params) = input_request_of(request).expect("a request");
        assert_eq!((method.as_str(), &params), ("elicitation/create", &json!({"mode": "url", "url": "u"})));
        let sent = parsed(input_required(&id(), [("q1", method.as_str(), &params)].into_iter(), "s"));
        assert_eq!(sent["result"]["inputRequests"]["q1"], json!({"method": "elicitation/create", "params": params}));
        assert_eq!(
            (&sent["result"]["resultType"], &sent["result"]["requestState"]),
            (&json!("input_required"), &json!("s"))
        );
    }
}
