//! Requests of a client of the revisions with sessions, and the requests of 2026-07-28 in their
//! place.

use serde_json::{Map, Value, json};

use super::ClientFacts;
use crate::bridge::{CAPABILITIES, CLIENT_INFO, LOG_LEVEL, META, MODERN, RESOURCE_SUBSCRIPTIONS, VERSION};
use crate::jsonrpc;

/// Responses of one input round, for the request that continues the call.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Round {
    /// Responses by the keys of the input requests.
    pub responses: Map<String, Value>,
    /// State of the server, or `None` if it gave none.
    pub state: Option<Value>,
}

/// Returns a request in the form for the server: under this ID, with the envelope of its revision
/// and with any responses of a round. Returns `None` for a body that is no such request.
pub fn translated(
    body: &[u8],
    id: &str,
    client: &ClientFacts,
    log_level: Option<&str>,
    round: Option<&Round>,
) -> Option<Vec<u8>> {
    let without = |body: Vec<u8>, path, names: &[&str]| jsonrpc::without_members(&body, path, names).unwrap_or(body);
    let mut body = without(body.to_vec(), &["params"], &["task", "inputResponses", "requestState"]);
    body = without(body, &["params", META], &[VERSION, CLIENT_INFO, CAPABILITIES, LOG_LEVEL]);
    let mut envelope = Map::new();
    envelope.insert(VERSION.to_owned(), MODERN.into());
    envelope.insert(CLIENT_INFO.to_owned(), serde_json::from_str(&client.info).ok()?);
    envelope.insert(CAPABILITIES.to_owned(), serde_json::from_str(client.declared.as_json()).ok()?);
    if let Some(level) = log_level {
        envelope.insert(LOG_LEVEL.to_owned(), level.into());
    }
    let mut added = Map::new();
    if let Some(Round { responses, state }) = round {
        if !responses.is_empty() {
            added.insert("inputResponses".to_owned(), responses.clone().into());
        }
        if let Some(state) = state {
            added.insert("requestState".to_owned(), state.clone());
        }
    }
    let mut splices = vec![(jsonrpc::span(&body, jsonrpc::member(&body, &["id"])?), Value::from(id).to_string())];
    let whole = std::str::from_utf8(&body).ok()?;
    match jsonrpc::member(&body, &["params"]) {
        Some(params) if params.starts_with('{') => {
            match jsonrpc::member(&body, &["params", META]) {
                Some(meta) if meta.starts_with('{') => {
                    splices.extend(jsonrpc::first_members(&body, meta, &inner(&envelope)));
                }
                Some(_) => return None,
                None => drop(added.insert(META.to_owned(), envelope.into())),
            }
            if !added.is_empty() {
                splices.extend(jsonrpc::first_members(&body, params, &inner(&added)));
            }
        }
        Some(_) => return None,
        None => {
            added.insert(META.to_owned(), envelope.into());
            let params = format!(r#""params":{}"#, Value::Object(added));
            splices.extend(jsonrpc::first_members(&body, whole.trim(), &params));
        }
    }
    Some(jsonrpc::splice(&body, splices))
}

/// Returns the value that the name header of a request repeats: the name of a tool or a prompt, or
/// the URI of a resource.
pub fn name_header(body: &[u8], method: &str) -> Option<String> {
    let path: &[&str] = match method {
        "tools/call" | "prompts/get" => &["params", "name"],
        "resources/read" => &["params", "uri"],
        _ => return None,
    };
    jsonrpc::string_member(body, path)
}

/// Writes a request for the changes of these lists (members of the filter) and resources.
pub fn listen(id: &str, client: &ClientFacts, lists: &[&str], resources: &[String]) -> Vec<u8> {
    let mut filter: Map<String, Value> = lists.iter().map(|list| ((*list).to_owned(), true.into())).collect();
    if !resources.is_empty() {
        filter.insert(RESOURCE_SUBSCRIPTIONS.to_owned(), resources.into());
    }
    let body =
        json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": {"notifications": filter}});
    translated(body.to_string().as_bytes(), id, client, None, None).unwrap_or_default()
}

/// Returns the members of an object, as JSON without its braces.
fn inner(object: &Map<String, Value>) -> String {
    let text = Value::Object(object.clone()).to_string();
    text[1..text.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::Declared;
    use crate::headers::ProtocolVersion;

    fn client() -> ClientFacts {
        let version = ProtocolVersion::parse("2025-06-18").expect("a revision");
        let declared = Declared::new(&json!({"roots": {}}));
        ClientFacts { version, info: r#"{"name":"c","version":"1"}"#.to_owned(), declared }
    }

    fn sent(body: &Value, level: Option<&str>, round: Option<&Round>) -> Value {
        let body = translated(body.to_string().as_bytes(), "b1", &client(), level, round).expect("a request");
        serde_json::from_slice(&body).expect("JSON")
    }

    #[test]
    fn the_server_gets_a_request_of_its_own_revision() {
        let meta = json!({"progressToken": 7, "traceparent": "00-1"});
        let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "a", "task": {}, "_meta": meta}});
        let envelope =
            json!({VERSION: MODERN, CLIENT_INFO: {"name": "c", "version": "1"}, CAPABILITIES: {"roots": {}}});
        let mut expected = envelope.clone();
        expected["progressToken"] = json!(7);
        expected["traceparent"] = json!("00-1");
        expected[LOG_LEVEL] = json!("info");
        let sent_ = sent(&body, Some("info"), None);
        assert_eq!(
            sent_,
            json!({"jsonrpc": "2.0", "id": "b1", "method": "tools/call", "params": {"name": "a", "_meta": expected}})
        );
        let bare = sent(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}), None, None);
        assert_eq!(bare, json!({"jsonrpc": "2.0", "id": "b1", "method": "tools/list", "params": {"_meta": envelope}}));
        for params in [json!([]), json!({"_meta": 1})] {
            let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": params}).to_string();
            assert_eq!(translated(body.as_bytes(), "b1", &client(), None, None), None);
        }
    }

    #[test]
    fn a_round_has_its_responses_and_the_state() {
        let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "a"}});
        let round = Round {
            responses: Map::from_iter([("k".to_owned(), json!({"action": "accept"}))]),
            state: Some(json!("s")),
        };
        let params = sent(&body, None, Some(&round))["params"].clone();
        assert_eq!(
            (&params["inputResponses"], &params["requestState"]),
            (&json!({"k": {"action": "accept"}}), &json!("s"))
        );
        let params = sent(&body, None, Some(&Round::default()))["params"].clone();
        assert_eq!((params.get("inputResponses"), params.get("requestState")), (None, None));
    }

    #[test]
    fn a_subscription_and_the_name_in_a_header() {
        let body: Value =
            serde_json::from_slice(&listen("b2", &client(), &["toolsListChanged"], &["a:1".to_owned()])).expect("JSON");
        assert_eq!(
            body["params"]["notifications"],
            json!({"toolsListChanged": true, "resourceSubscriptions": ["a:1"]})
        );
        assert_eq!((&body["id"], &body["params"]["_meta"][VERSION]), (&json!("b2"), &json!(MODERN)));
        let read = br#"{"params":{"uri":"a:1","name":"n"}}"#;
        assert_eq!(name_header(read, "resources/read").as_deref(), Some("a:1"));
        assert_eq!((name_header(read, "tools/call").as_deref(), name_header(read, "tools/list")), (Some("n"), None));
    }
}
