//! Rounds of input: input requests in a result of 2026-07-28, and the server requests of the
//! revisions with sessions in their place.

use serde_json::{Map, Value, json};

use super::ClientFacts;
use crate::jsonrpc;

/// Maximum number of requests in one round.
const MAX_REQUESTS: usize = 64;

/// An `input_required` result.
#[derive(Clone, PartialEq, Debug)]
pub struct InputRequired {
    /// Input requests. Empty for a call to be sent again after a pause.
    pub requests: Vec<InputRequest>,
    /// State of the server, for the request with the responses.
    pub state: Option<Value>,
}

/// One input request.
#[derive(Clone, PartialEq, Debug)]
pub struct InputRequest {
    /// Key of its response.
    pub key: String,
    /// Method of the request.
    pub method: String,
    /// Parameters of the request.
    pub params: Value,
}

impl InputRequired {
    /// Parses an `input_required` result. Returns `None` for any other response, a malformed
    /// result, or too many requests.
    pub fn of(message: &[u8]) -> Option<Self> {
        if !jsonrpc::is_input_required(message) {
            return None;
        }
        let requests = jsonrpc::member(message, &["result", "inputRequests"]);
        let requests: Map<String, Value> = match requests {
            Some(requests) => serde_json::from_str(requests).ok()?,
            None => Map::new(),
        };
        let input = |(key, request): (String, Value)| {
            let method = request.get("method")?.as_str()?.to_owned();
            let params = request.get("params").cloned().unwrap_or_else(|| json!({}));
            Some(InputRequest { key, method, params })
        };
        let requests: Option<Vec<_>> = requests.into_iter().take(MAX_REQUESTS + 1).map(input).collect();
        let requests = requests.filter(|requests| requests.len() <= MAX_REQUESTS)?;
        let state = jsonrpc::member(message, &["result", "requestState"]);
        let state = state.and_then(|state| serde_json::from_str(state).ok());
        Some(Self { requests, state })
    }
}

impl InputRequest {
    /// Returns the reason why the client does not accept this request, or `None` if it does.
    pub fn refused_by(&self, client: &ClientFacts) -> Option<&'static str> {
        client.declared.refuses(&self.method, &self.params).map(|(_, reason)| reason)
    }

    /// Writes the request for the client. An elicitation in URL mode gets an ID.
    pub fn request(&self, id: &str) -> Vec<u8> {
        let mut params = self.params.clone();
        if params["mode"] == "url"
            && let Some(members) = params.as_object_mut()
        {
            members.entry("elicitationId").or_insert_with(|| id.into());
        }
        json!({"jsonrpc": "2.0", "id": id, "method": self.method, "params": params}).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::Declared;
    use crate::headers::ProtocolVersion;

    fn required(result: Value) -> Option<InputRequired> {
        InputRequired::of(json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string().as_bytes())
    }

    #[test]
    fn input_requests_of_a_result_become_server_requests() {
        let requests = json!({"a": {"method": "elicitation/create", "params": {"mode": "url", "url": "u"}}, "b": {"method": "roots/list"}});
        let found = required(json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s"}))
            .expect("requests");
        assert_eq!((found.requests.len(), &found.state), (2, &Some(json!("s"))));
        let sent: Vec<Value> =
            found.requests.iter().map(|input| serde_json::from_slice(&input.request("srv-1")).expect("JSON")).collect();
        assert_eq!(
            sent[0],
            json!({"jsonrpc": "2.0", "id": "srv-1", "method": "elicitation/create",
            "params": {"mode": "url", "url": "u", "elicitationId": "srv-1"}})
        );
        assert_eq!(sent[1]["params"], json!({}));
        let version = ProtocolVersion::parse("2025-11-25").expect("a revision");
        let declared = Declared::new(&json!({"roots": {}, "elicitation": {}}));
        let client = ClientFacts { version, info: "{}".to_owned(), declared };
        let refused: Vec<_> = found.requests.iter().map(|input| input.refused_by(&client).is_some()).collect();
        assert_eq!(refused, [true, false]);
    }

    #[test]
    fn another_result_asks_nothing() {
        for result in [
            json!({"resultType": "complete"}),
            json!({}),
            json!({"resultType": "input_required", "inputRequests": {"a": {}}}),
            json!({"resultType": "input_required", "inputRequests": 7}),
        ] {
            assert_eq!(required(result.clone()), None, "{result}");
        }
        assert!(jsonrpc::is_input_required(br#"{"result":{"resultType":"input_required","inputRequests":7}}"#));
        let waits = required(json!({"resultType": "input_required", "requestState": "s"})).expect("a state");
        assert!(waits.requests.is_empty());
        let many: Map<String, Value> =
            (0..=MAX_REQUESTS).map(|n| (n.to_string(), json!({"method": "roots/list"}))).collect();
        assert_eq!(required(json!({"resultType": "input_required", "inputRequests": many})), None);
    }
}
