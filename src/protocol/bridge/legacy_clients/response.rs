//! Messages of a server of 2026-07-28, and the messages of the revisions with sessions in their
//! place.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::{ClientFacts, tool_list};
use crate::bridge::{META, SUBSCRIPTION_ID};
use crate::jsonrpc::{self, RequestId, code, response};

/// Members of a result that only the later revision has.
const LATER: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

/// Returns the response to a request of this method as its client gets it. `is_wrapped` is true for
/// a tool whose output schema the client knows as an object around the server's. Returns `None` for
/// a message that is no response.
pub fn result_as(
    message: &[u8],
    id: &RequestId,
    method: &str,
    client: &ClientFacts,
    is_wrapped: bool,
) -> Option<Vec<u8>> {
    if jsonrpc::error_in(message).is_some() {
        return error_of(message, id);
    }
    jsonrpc::member(message, &["result"])?;
    let message = jsonrpc::without_members(message, &["result"], &LATER).unwrap_or_else(|| message.to_vec());
    let message = match method {
        "tools/list" => tool_list::edited(&message),
        "tools/call" => call_result(message, client, is_wrapped),
        "prompts/get" if !client.knows_structured_content() => {
            let mut links = Vec::new();
            if let Some(messages) = jsonrpc::member(&message, &["result", "messages"]) {
                jsonrpc::for_each_element(messages, |one| {
                    links.extend(
                        jsonrpc::member(one.as_bytes(), &["content"])
                            .and_then(|content| link_as_text(&message, content)),
                    );
                });
            }
            jsonrpc::splice(&message, links)
        }
        _ => message,
    };
    let own = jsonrpc::span(&message, jsonrpc::member(&message, &["id"])?);
    Some(jsonrpc::splice(&message, vec![(own, id.to_json())]))
}

/// Returns an error of the server as the client gets it, or `None` for another message: codes about
/// the later revision mean nothing to it.
pub fn error_of(message: &[u8], id: &RequestId) -> Option<Vec<u8>> {
    let mut error: Value = serde_json::from_str(jsonrpc::error_in(message)?).ok()?;
    let members = error.as_object_mut()?;
    let code = members.get("code").and_then(Value::as_i64).unwrap_or(code::INTERNAL_ERROR);
    if matches!(code, code::HEADER_MISMATCH | code::UNSUPPORTED_VERSION) {
        members.insert("code".to_owned(), code::INTERNAL_ERROR.into());
    }
    Some(response::error_object(id, &error))
}

/// Returns true for the error that the headers do not repeat the body: the call has not run.
pub fn is_header_mismatch(message: &[u8]) -> bool {
    jsonrpc::error_code(message) == Some(code::HEADER_MISMATCH)
}

/// Returns a notification without the ID of its subscription, or `None` for any other message.
pub fn untagged(message: &[u8]) -> Option<Vec<u8>> {
    let mut message: Map<String, Value> = serde_json::from_slice(message).ok()?;
    if let Some(params) = message.get_mut("params").and_then(Value::as_object_mut) {
        let meta = params.get_mut(META).and_then(Value::as_object_mut);
        let is_bare = meta.is_some_and(|meta| {
            meta.remove(SUBSCRIPTION_ID);
            meta.is_empty()
        });
        if is_bare {
            params.remove(META);
        }
        if params.is_empty() {
            message.remove("params");
        }
    }
    Some(Value::Object(message).to_string().into_bytes())
}

/// Writes the response to a call that failed for want of a client response: a failed result for a
/// tool, otherwise an error.
pub fn failed_call(id: &RequestId, method: &str, text: &str) -> Vec<u8> {
    if method == "tools/call" {
        let result = json!({"content": [{"type": "text", "text": text}], "isError": true});
        return response::result(id, &result);
    }
    response::error(id, code::INTERNAL_ERROR, text)
}

/// Returns the result of a tool with content that the client's revision has.
fn call_result(message: Vec<u8>, client: &ClientFacts, is_wrapped: bool) -> Vec<u8> {
    let content = jsonrpc::member(&message, &["result", "content"]);
    if !client.knows_structured_content() {
        let mut links = Vec::new();
        if let Some(content) = content {
            jsonrpc::for_each_element(content, |block| links.extend(link_as_text(&message, block)));
        }
        let message = jsonrpc::splice(&message, links);
        return jsonrpc::without_members(&message, &["result"], &["structuredContent"]).unwrap_or(message);
    }
    let Some(structured) = jsonrpc::member(&message, &["result", "structuredContent"]) else { return message };
    if structured == "null" && !is_wrapped {
        return jsonrpc::without_members(&message, &["result"], &["structuredContent"]).unwrap_or(message);
    }
    if structured.starts_with('{') && !is_wrapped {
        return message;
    }
    let mut splices = vec![(jsonrpc::span(&message, structured), format!(r#"{{"result":{structured}}}"#))];
    let mut has_text = false;
    if let Some(content) = content {
        jsonrpc::for_each_element(content, |block| has_text |= is_of_type(block, "text"));
    }
    if !has_text {
        let text = json!({"type": "text", "text": structured}).to_string();
        match content {
            Some(content) if content.starts_with('[') => {
                let rest = content[1..].trim_start();
                let comma = if rest.starts_with(']') { "" } else { "," };
                splices.push((jsonrpc::span(&message, content), format!("[{text}{comma}{rest}")));
            }
            Some(_) => {}
            None => {
                let result = jsonrpc::member(&message, &["result"]).unwrap_or_default();
                splices.extend(jsonrpc::first_members(&message, result, &format!(r#""content":[{text}]"#)));
            }
        }
    }
    jsonrpc::splice(&message, splices)
}

/// Returns the edit that replaces a link to a resource by a text with its URI. Returns `None` for
/// another block of content.
fn link_as_text(message: &[u8], block: &str) -> Option<(Range<usize>, String)> {
    if !is_of_type(block, "resource_link") {
        return None;
    }
    let uri = jsonrpc::member(block.as_bytes(), &["uri"])?;
    Some((jsonrpc::span(message, block), format!(r#"{{"type":"text","text":{uri}}}"#)))
}

fn is_of_type(block: &str, kind: &str) -> bool {
    jsonrpc::string_member(block.as_bytes(), &["type"]).is_some_and(|found| found == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::Declared;
    use crate::headers::ProtocolVersion;

    fn client(version: &str) -> ClientFacts {
        let version = ProtocolVersion::parse(version).expect("a revision");
        ClientFacts { version, info: "{}".to_owned(), declared: Declared::new(&json!({})) }
    }

    fn called(version: &str, result: Value, is_wrapped: bool) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": "b1", "result": result}).to_string();
        let id = RequestId::Number("7".into());
        let seen = result_as(message.as_bytes(), &id, "tools/call", &client(version), is_wrapped).expect("a response");
        let seen: Value = serde_json::from_slice(&seen).expect("JSON");
        assert_eq!(seen["id"], 7);
        seen["result"].clone()
    }

    #[test]
    fn members_of_the_later_revision_are_taken_out() {
        let result =
            json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "content": [], "_meta": {"a": 1}});
        assert_eq!(called("2025-11-25", result, false), json!({"content": [], "_meta": {"a": 1}}));
        assert_eq!(
            result_as(
                br#"{"jsonrpc":"2.0","method":"x"}"#,
                &RequestId::Number("7".into()),
                "x",
                &client("2025-11-25"),
                false
            ),
            None
        );
    }

    #[test]
    fn structured_content_is_an_object() {
        let text = json!({"type": "text", "text": "x"});
        let object = json!({"content": [], "structuredContent": {"a": 1}});
        assert_eq!(called("2025-11-25", object.clone(), false), object);
        let wrapped = called("2025-11-25", object, true);
        assert_eq!(
            wrapped,
            json!({"content": [{"type": "text", "text": "{\"a\":1}"}], "structuredContent": {"result": {"a": 1}}})
        );
        let array = called("2025-11-25", json!({"content": [text], "structuredContent": [1]}), false);
        assert_eq!(array, json!({"content": [text], "structuredContent": {"result": [1]}}));
        let image = json!({"type": "image", "data": "", "mimeType": "x"});
        let added = called("2025-11-25", json!({"content": [image], "structuredContent": "s"}), false);
        assert_eq!(added["content"], json!([{"type": "text", "text": "\"s\""}, image]));
        let absent = called("2025-06-18", json!({"structuredContent": 7}), false);
        assert_eq!(absent, json!({"content": [{"type": "text", "text": "7"}], "structuredContent": {"result": 7}}));
        assert_eq!(
            called("2025-06-18", json!({"content": [], "structuredContent": null}), false),
            json!({"content": []})
        );
    }

    #[test]
    fn content_of_later_revisions_becomes_text() {
        let link = json!({"type": "resource_link", "uri": "a:1", "name": "n"});
        let text = json!({"type": "text", "text": "x"});
        let seen = called("2025-03-26", json!({"content": [link, text], "structuredContent": {"a": 1}}), false);
        assert_eq!(seen, json!({"content": [{"type": "text", "text": "a:1"}, text]}));
        assert_eq!(called("2025-06-18", json!({"content": [link]}), false), json!({"content": [link]}));
        let prompt =
            json!({"jsonrpc": "2.0", "id": 1, "result": {"messages": [{"role": "user", "content": link}]}}).to_string();
        let id = RequestId::Number("7".into());
        let seen = result_as(prompt.as_bytes(), &id, "prompts/get", &client("2025-03-26"), false).expect("a response");
        let seen: Value = serde_json::from_slice(&seen).expect("JSON");
        assert_eq!(seen["result"]["messages"][0]["content"], json!({"type": "text", "text": "a:1"}));
    }

    #[test]
    fn a_notification_of_a_subscription_is_told_without_its_name() {
        let seen = |message: Value| {
            serde_json::from_slice::<Value>(&untagged(message.to_string().as_bytes()).expect("a message"))
                .expect("JSON")
        };
        let method = "notifications/resources/updated";
        let meta = json!({ SUBSCRIPTION_ID: 7 });
        let updated = json!({"jsonrpc": "2.0", "method": method, "params": {"uri": "a:1", "_meta": meta}});
        assert_eq!(seen(updated), json!({"jsonrpc": "2.0", "method": method, "params": {"uri": "a:1"}}));
        assert_eq!(seen(json!({"method": "m", "params": {"_meta": meta}})), json!({"method": "m"}));
        assert_eq!(untagged(b"[]"), None);
    }

    #[test]
    fn errors_about_the_later_revision_are_internal() {
        let id = RequestId::Number("7".into());
        for (before, after) in
            [(-32020, -32603), (-32022, -32603), (-32021, -32021), (-32602, -32602), (-32601, -32601)]
        {
            let message =
                json!({"jsonrpc": "2.0", "id": "b1", "error": {"code": before, "message": "m", "data": 1}}).to_string();
            let seen: Value =
                serde_json::from_slice(&error_of(message.as_bytes(), &id).expect("an error")).expect("JSON");
            assert_eq!(seen, json!({"jsonrpc": "2.0", "id": 7, "error": {"code": after, "message": "m", "data": 1}}));
            assert_eq!(is_header_mismatch(message.as_bytes()), before == -32020);
        }
        let both = br#"{"jsonrpc":"2.0","id":"b1","error":null,"result":{}}"#;
        let seen = result_as(both, &id, "x", &client("2025-11-25"), false).expect("a response");
        assert_eq!(serde_json::from_slice::<Value>(&seen).expect("JSON")["result"], json!({}));
        let failed: Value = serde_json::from_slice(&failed_call(&id, "tools/call", "no")).expect("JSON");
        assert_eq!(failed["result"], json!({"content": [{"type": "text", "text": "no"}], "isError": true}));
        let failed: Value = serde_json::from_slice(&failed_call(&id, "prompts/get", "no")).expect("JSON");
        assert_eq!((&failed["error"]["code"], &failed["error"]["message"]), (&json!(-32603), &json!("no")));
    }
}
