//! Rounds of input: questions in a result of 2026-07-28, asked as requests of the revisions with
//! sessions.

use serde_json::{Map, Value, json};

use super::ClientFacts;
use crate::jsonrpc;

/// Most questions of one round.
const MAX_QUESTIONS: usize = 64;

/// A result that asks for input.
#[derive(Clone, PartialEq, Debug)]
pub struct InputRequired {
    /// Questions, or none for a call that is to be sent again after a while.
    pub questions: Vec<Question>,
    /// State of the server, for the request that brings the answers.
    pub state: Option<Value>,
}

/// One question.
#[derive(Clone, PartialEq, Debug)]
pub struct Question {
    /// Key of its answer.
    pub key: String,
    /// Method of the request.
    pub method: String,
    /// Parameters of the request.
    pub params: Value,
}

impl InputRequired {
    /// Returns true for a response that asks for input, well-formed or not.
    pub fn is_in(message: &[u8]) -> bool {
        jsonrpc::member(message, &["result", "resultType"]) == Some(r#""input_required""#)
    }

    /// Reads a response that asks for input. Returns `None` for another response, and for one that
    /// is malformed or asks too much.
    pub fn of(message: &[u8]) -> Option<Self> {
        if !Self::is_in(message) {
            return None;
        }
        let requests = jsonrpc::member(message, &["result", "inputRequests"]);
        let requests: Map<String, Value> = match requests {
            Some(requests) => serde_json::from_str(requests).ok()?,
            None => Map::new(),
        };
        let question = |(key, request): (String, Value)| {
            let method = request.get("method")?.as_str()?.to_owned();
            let params = request.get("params").cloned().unwrap_or_else(|| json!({}));
            Some(Question { key, method, params })
        };
        let questions: Option<Vec<_>> = requests.into_iter().take(MAX_QUESTIONS + 1).map(question).collect();
        let questions = questions.filter(|questions| questions.len() <= MAX_QUESTIONS)?;
        let state = jsonrpc::member(message, &["result", "requestState"]);
        let state = state.and_then(|state| serde_json::from_str(state).ok());
        Some(Self { questions, state })
    }
}

impl Question {
    /// Returns the reason why the client cannot be asked this, or `None` if it can.
    pub fn refused_by(&self, client: &ClientFacts) -> Option<&'static str> {
        client.declared.refuses(&self.method, &self.params).map(|(_, reason)| reason)
    }

    /// Writes the request for the client. A question for a page gets an ID of its own.
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
    fn questions_of_a_result_are_requests() {
        let requests = json!({"a": {"method": "elicitation/create", "params": {"mode": "url", "url": "u"}}, "b": {"method": "roots/list"}});
        let found = required(json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s"}))
            .expect("questions");
        assert_eq!((found.questions.len(), &found.state), (2, &Some(json!("s"))));
        let asked: Vec<Value> = found
            .questions
            .iter()
            .map(|question| serde_json::from_slice(&question.request("srv-1")).expect("JSON"))
            .collect();
        assert_eq!(
            asked[0],
            json!({"jsonrpc": "2.0", "id": "srv-1", "method": "elicitation/create",
            "params": {"mode": "url", "url": "u", "elicitationId": "srv-1"}})
        );
        assert_eq!(asked[1]["params"], json!({}));
        let version = ProtocolVersion::parse("2025-11-25").expect("a revision");
        let declared = Declared::new(&json!({"roots": {}, "elicitation": {}}));
        let client = ClientFacts { version, info: "{}".to_owned(), declared };
        let refused: Vec<_> = found.questions.iter().map(|question| question.refused_by(&client).is_some()).collect();
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
        assert!(InputRequired::is_in(br#"{"result":{"resultType":"input_required","inputRequests":7}}"#));
        let waits = required(json!({"resultType": "input_required", "requestState": "s"})).expect("a state");
        assert!(waits.questions.is_empty());
        let many: Map<String, Value> =
            (0..=MAX_QUESTIONS).map(|n| (n.to_string(), json!({"method": "roots/list"}))).collect();
        assert_eq!(required(json!({"resultType": "input_required", "inputRequests": many})), None);
    }
}
