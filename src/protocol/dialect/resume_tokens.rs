//! The wire form of resume tokens, [#1003]. A call that takes too long gets an interim result with
//! a token. It continues when the client repeats the call with the token.
//!
//! Owned here: the token of a call, the equality of calls, the interim result, and the parameter in
//! `tools/list`. Further the renaming of messages of the first call for the call that continues it.
//! Bytes that need not change stay.
//!
//! [#1003]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/1003

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::jsonrpc::{self, Message, RequestId, response};

/// The method whose arguments may hold the token too, because a model fills in only those.
pub const CALLS_TOOL: &str = "tools/call";

const TOKEN: &str = "resumeToken";
const META: &str = "_meta";
const ARGUMENTS: &str = "arguments";
/// Member with the validity of a token in seconds, in the `_meta` of an interim result.
const TTL: &str = "io.github.mcp-resume/ttl";

/// Methods of the protocol that never get an interim result: their results need more members, or
/// they do not wait.
const WHOLE: [&str; 14] = [
    "initialize",
    "ping",
    "completion/complete",
    "logging/setLevel",
    "prompts/list",
    "resources/list",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "roots/list",
    "server/discover",
    "subscriptions/listen",
    "tools/call",
    "tools/list",
];

/// Returns true if calls of `method` may have partial results by its name alone. Tools are
/// configured one by one.
pub fn may_be_sliced(method: &str) -> bool {
    let is_dialect = ["requests/", "stream/", "notifications/"].iter().any(|prefix| method.starts_with(prefix));
    !method.is_empty() && !is_dialect && !WHOLE.contains(&method)
}

/// The field of a call that may hold a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenField {
    /// No field.
    Absent,
    /// Null, which counts as no token and is not sent to the server.
    Null,
    /// A token, or `None` if the value is not text.
    Token(Option<String>),
}

impl TokenField {
    /// Parses the field of a call of `method`.
    pub fn of(body: &[u8], method: &str) -> Self {
        let arguments = if method == CALLS_TOOL { jsonrpc::member(body, &["params", ARGUMENTS, TOKEN]) } else { None };
        let given = [jsonrpc::member(body, &["params", TOKEN]), arguments];
        let mut given = given.into_iter().flatten().peekable();
        if given.peek().is_none() {
            return Self::Absent;
        }
        match given.find(|value| *value != "null") {
            None => Self::Null,
            Some(value) => Self::Token(serde_json::from_str(value).ok()),
        }
    }
}

/// Returns a call of `method` without tokens, for the server.
pub fn without_token(body: &[u8], method: &str) -> Vec<u8> {
    let without = |body: &[u8], path| jsonrpc::without_members(body, path, &[TOKEN]);
    let body = without(body, &["params"]).unwrap_or_else(|| body.to_vec());
    let edited = if method == CALLS_TOOL { without(&body, &["params", ARGUMENTS]) } else { None };
    edited.unwrap_or(body)
}

/// Returns the `progressToken` of a call.
pub fn progress_token(body: &[u8]) -> Option<RequestId> {
    jsonrpc::member(body, &["params", META, "progressToken"]).and_then(RequestId::from_json)
}

/// Digest of a call's method and parameters. Parameters are compared as JSON values, without tokens
/// and `_meta`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallDigest([u8; 32]);

impl CallDigest {
    /// Returns the digest of a call of `method`, or `None` if its parameters cannot be parsed.
    pub fn of(body: &[u8], method: &str) -> Option<Self> {
        Self::at(if method == CALLS_TOOL { Place::ToolParams } else { Place::Params }, body, method)
    }

    /// Returns the digest of a call for a client that sends it again under other names: its method
    /// and all parameters but the `progressToken` and the trace in `_meta`. Returns `None` if they
    /// cannot be parsed.
    pub fn of_try(body: &[u8]) -> Option<Self> {
        let method: String = serde_json::from_str(jsonrpc::member(body, &["method"])?).ok()?;
        Self::at(Place::TryParams, body, &method)
    }

    /// Returns the bytes of the digest.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn at(place: Place, body: &[u8], method: &str) -> Option<Self> {
        let params = match jsonrpc::member(body, &["params"]) {
            Some(params) => {
                let mut json = serde_json::Deserializer::from_str(params);
                Canonical(place).deserialize(&mut json).ok()?
            }
            None => b"{}".to_vec(),
        };
        let mut hash = Sha256::new();
        hash.update((method.len() as u64).to_be_bytes());
        hash.update(method);
        hash.update(params);
        Some(Self(hash.finalize().into()))
    }
}

/// The required member of a method's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Form {
    /// `content`
    Content,
    /// `contents`
    Contents,
    /// `messages`
    Messages,
    /// No known member.
    Bare,
    /// No interim result: each slice is a request `tasks/result`, or a call that is sent again
    /// under another ID.
    Task,
}

impl Form {
    /// Returns the form of `method`.
    pub fn of(method: &str) -> Self {
        match method {
            CALLS_TOOL => Self::Content,
            "resources/read" => Self::Contents,
            "prompts/get" => Self::Messages,
            _ => Self::Bare,
        }
    }
}

/// Writes the interim result of a running call: it may be continued with `token` for `ttl` seconds.
pub fn interim_result(id: &RequestId, form: Form, token: &str, ttl: Option<u64>) -> Vec<u8> {
    let mut result = json!({ "nextResumeToken": token });
    match form {
        Form::Content => result["content"] = json!([]),
        Form::Contents => result["contents"] = json!([]),
        Form::Messages => result["messages"] = json!([]),
        Form::Bare | Form::Task => {}
    }
    if let Some(ttl) = ttl {
        result[META] = json!({ TTL: ttl });
    }
    response::result(id, &result)
}

/// The names that a client gave to its request and its progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The request's id.
    pub id: RequestId,
    /// The `progressToken`, or `None` if the client wants no progress.
    pub progress: Option<RequestId>,
}

/// The result of renaming a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renaming {
    /// The message holds neither name.
    Same,
    /// The ranges of the names, in order, with their replacements. Every other byte stays.
    Changed(Vec<(Range<usize>, String)>),
    /// Progress that the client does not want.
    Unwanted,
}

/// Renames the response to the call `from`, and its progress, for a client whose call has the names
/// `to`.
pub fn rename(data: &[u8], from: &Names, to: &Names) -> Renaming {
    let Ok(body) = jsonrpc::peek(data) else { return Renaming::Same };
    let mut splices = Vec::new();
    let mut unwanted = 0;
    for (message, text) in body.messages().iter().zip(jsonrpc::messages(data)) {
        match message {
            Message::Response { id: Some(id), .. } if *id == from.id && from.id != to.id => {
                splices.extend(jsonrpc::replaced(data, text, &["id"], &to.id));
            }
            Message::Notification { method } if *method == "notifications/progress" => {
                const PATH: &[&str] = &["params", "progressToken"];
                let token = jsonrpc::member(text.as_bytes(), PATH).and_then(RequestId::from_json);
                if token.is_none() || token != from.progress || from.progress == to.progress {
                    continue;
                }
                match &to.progress {
                    Some(progress) => splices.extend(jsonrpc::replaced(data, text, PATH, progress)),
                    None => unwanted += 1,
                }
            }
            Message::Response { .. } | Message::Notification { .. } | Message::Request { .. } => {}
        }
    }
    if !splices.is_empty() {
        splices.sort_by_key(|(range, _)| range.start);
        Renaming::Changed(splices)
    } else if unwanted == body.messages().len() {
        Renaming::Unwanted
    } else {
        Renaming::Same
    }
}

/// Renames the cancelled requests in `body` by `renamed`. Returns `None` if nothing changes. Walks
/// the body once.
pub fn rename_cancelled(body: &[u8], renamed: &HashMap<&RequestId, RequestId>) -> Option<Vec<u8>> {
    jsonrpc::rename_ids(body, |message, id| match message {
        Message::Notification { .. } => renamed.get(id).cloned(),
        Message::Request { .. } | Message::Response { .. } => None,
    })
}

/// The configured tools in a response to `tools/list`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToolList {
    /// The tools by name, each with true if its result has a schema.
    pub tools: Vec<(String, bool)>,
    /// The response with a `resumeToken` parameter for each tool without a result schema, or `None`
    /// if no tool lacks it.
    pub edited: Option<Vec<u8>>,
}

impl ToolList {
    /// Parses a response, for the tools that `is_ours` selects.
    pub fn of(data: &[u8], is_ours: impl Fn(&str) -> bool) -> Self {
        let mut listed = Self::default();
        let mut splices = Vec::new();
        let is_json = jsonrpc::for_each_message(data, |message| {
            let Some(tools) = jsonrpc::member(message.as_bytes(), &["result", "tools"]) else { return };
            jsonrpc::for_each_element(tools, |tool| {
                let name = jsonrpc::member(tool.as_bytes(), &["name"]).and_then(|name| serde_json::from_str(name).ok());
                let Some(name) = name.filter(|name: &String| is_ours(name)) else { return };
                let schema = jsonrpc::member(tool.as_bytes(), &["outputSchema"]);
                let is_structured = schema.is_some_and(|schema| schema != "null");
                if !is_structured {
                    splices.extend(declared(data, tool));
                }
                listed.tools.push((name, is_structured));
            });
        });
        if !is_json {
            return Self::default();
        }
        if !splices.is_empty() {
            listed.edited = Some(jsonrpc::splice(data, splices));
        }
        listed
    }
}

/// Returns the insertion of the parameter into the schema of `tool`, or `None` if the schema has
/// it.
fn declared(whole: &[u8], tool: &str) -> Option<(Range<usize>, String)> {
    let description =
        "To go on with a call that was answered with a nextResumeToken: that token. Leave it out otherwise.";
    let parameter = format!(r#""{TOKEN}":{}"#, json!({ "type": "string", "description": description }));
    let schema = jsonrpc::member(tool.as_bytes(), &["inputSchema"])?;
    let (object, text) = match jsonrpc::member(schema.as_bytes(), &["properties"]) {
        Some(properties) if jsonrpc::member(properties.as_bytes(), &[TOKEN]).is_some() => return None,
        Some(properties) => (properties, parameter),
        None => (schema, format!(r#""properties":{{{parameter}}}"#)),
    };
    let members = object.strip_prefix('{')?;
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    let at = jsonrpc::span(whole, object).start + 1;
    Some((at..at, format!("{text}{comma}")))
}

/// The place of a value in a call's parameters, as far as the digest depends on it.
#[derive(Clone, Copy)]
enum Place {
    Params,
    ToolParams,
    Arguments,
    /// Parameters of which all count but the names that one try of the call has.
    TryParams,
    TryMeta,
    Inside,
}

impl Place {
    fn of_member(self, name: &str) -> Option<Place> {
        match self {
            Place::Params | Place::ToolParams if matches!(name, TOKEN | META) => None,
            Place::ToolParams if name == ARGUMENTS => Some(Place::Arguments),
            Place::Arguments if name == TOKEN => None,
            Place::TryParams if name == META => Some(Place::TryMeta),
            Place::TryMeta if matches!(name, "progressToken" | "traceparent" | "tracestate" | "baggage") => None,
            Place::Params
            | Place::ToolParams
            | Place::Arguments
            | Place::TryParams
            | Place::TryMeta
            | Place::Inside => Some(Place::Inside),
        }
    }
}

/// Canonical bytes of a value, the same for equal values: members are ordered by name, and numbers
/// written by value.
struct Canonical(Place);

impl<'de> DeserializeSeed<'de> for Canonical {
    type Value = Vec<u8>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Canonical {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Vec<u8>, E> {
        Ok(b"null".to_vec())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Vec<u8>, E> {
        Ok(value.to_string().into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Vec<u8>, E> {
        Ok(value.to_string().into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Vec<u8>, E> {
        Ok(value.to_string().into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Vec<u8>, E> {
        // A whole number is the same with and without its point; the zero has no sign then.
        Ok((value + 0.0).to_string().into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Vec<u8>, E> {
        Ok(Value::from(value).to_string().into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = b"[".to_vec();
        while let Some(element) = list.next_element_seed(Canonical(Place::Inside))? {
            bytes.extend(element);
            bytes.push(b',');
        }
        bytes.push(b']');
        Ok(bytes)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<u8>, A::Error> {
        let mut members = std::collections::BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let Some(place) = self.0.of_member(&name) else {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            };
            let value = map.next_value_seed(Canonical(place))?;
            // Arguments that held a token alone count as no arguments.
            if matches!(place, Place::Arguments) && value == b"{}" {
                members.remove(&name);
            } else {
                members.insert(name, value);
            }
        }
        let mut bytes = b"{".to_vec();
        for (name, value) in members {
            bytes.extend(Value::from(name).to_string().into_bytes());
            bytes.push(b':');
            bytes.extend(value);
            bytes.push(b',');
        }
        bytes.push(b'}');
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(params: &str) -> Vec<u8> {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#).into_bytes()
    }

    fn number(text: &str) -> RequestId {
        RequestId::Number(text.into())
    }

    fn names(id: &str, progress: Option<&str>) -> Names {
        Names { id: number(id), progress: progress.map(number) }
    }

    fn text(data: &str, renaming: Renaming) -> String {
        match renaming {
            Renaming::Changed(splices) => {
                let whole = jsonrpc::splice(data.as_bytes(), splices.clone());
                let (first, behind) = jsonrpc::splice_apart(data.to_owned().into(), splices);
                assert_eq!([&[first], &behind[..]].concat().concat(), whole);
                String::from_utf8(whole).unwrap()
            }
            Renaming::Same => "same".to_owned(),
            Renaming::Unwanted => "unwanted".to_owned(),
        }
    }

    #[test]
    fn a_token_is_parsed_and_removed_at_its_places() {
        let both = call(r#"{ "name":"t", "arguments":{"a": 1,"resumeToken":null}, "resumeToken":"x\u0079" }"#);
        assert_eq!(TokenField::of(&both, CALLS_TOOL), TokenField::Token(Some("xy".into())));
        let arguments = call(r#"{"arguments":{"resumeToken":"z"}}"#);
        assert_eq!(TokenField::of(&arguments, CALLS_TOOL), TokenField::Token(Some("z".into())));
        assert_eq!(TokenField::of(&arguments, "prompts/get"), TokenField::Absent, "an argument like any other");
        assert_eq!(TokenField::of(&call(r#"{"resumeToken":3}"#), "m"), TokenField::Token(None));
        assert_eq!(TokenField::of(&call(r#"{"resumeToken":null}"#), "m"), TokenField::Null);
        assert_eq!(without_token(&both, CALLS_TOOL), call(r#"{"name":"t","arguments":{"a":1}}"#));
        assert_eq!(without_token(&call("{}"), CALLS_TOOL), call("{}"));
    }

    #[test]
    fn tries_of_one_call_differ_in_their_names_alone() {
        let of = |params: &str| CallDigest::of_try(&call(params)).unwrap();
        let first = of(r#"{"name":"t","arguments":{"a":1},"_meta":{"progressToken":1,"x":2}}"#);
        for same in [
            r#"{"name":"t","arguments":{"a":1},"_meta":{"progressToken":"b","x":2}}"#,
            r#"{ "_meta":{"x":2.0}, "arguments":{"a":1}, "name":"t" }"#,
            r#"{"name":"t","arguments":{"a":1},"_meta":{"x":2,"traceparent":"1","tracestate":"2","baggage":"3"}}"#,
        ] {
            assert_eq!(of(same), first, "{same}");
        }
        for other in [
            r#"{"name":"u","arguments":{"a":1},"_meta":{"x":2}}"#,
            r#"{"name":"t","arguments":{"a":2},"_meta":{"x":2}}"#,
            r#"{"name":"t","arguments":{"a":1,"resumeToken":"r"},"_meta":{"x":2}}"#,
            r#"{"name":"t","arguments":{"a":1,"_meta":{"progressToken":1}},"_meta":{"x":2}}"#,
            r#"{"name":"t","arguments":{"a":1},"resumeToken":"r","_meta":{"x":2}}"#,
            r#"{"name":"t","arguments":{"a":1},"_meta":{"x":3}}"#,
            r#"{"name":"t","arguments":{"a":1}}"#,
            r#"{"name":"t","arguments":{"a":1},"progressToken":1,"_meta":{"x":2}}"#,
        ] {
            assert_ne!(of(other), first, "{other}");
        }
        let method = |method: &str| CallDigest::of_try(format!(r#"{{"method":"{method}"}}"#).as_bytes()).unwrap();
        assert_ne!(method("a"), method("b"));
        assert_eq!(CallDigest::of_try(br#"{"params":{}}"#), None);
    }

    #[test]
    fn calls_are_compared_by_value() {
        let of = |params: &str, method| CallDigest::of(&call(params), method).unwrap();
        let first = of(r#"{"name":"t","arguments":{"a":1,"b":[1.0,"x"]}}"#, CALLS_TOOL);
        let again = r#"{"_meta":{"progressToken":2},"arguments":{"b":[1,"\u0078"],"resumeToken":"r","a":1e0},
                        "resumeToken":"r","name":"t"}"#;
        assert_eq!(of(again, CALLS_TOOL), first);
        assert_ne!(of(again, "m"), first);
        for other in [
            r#"{"name":"t","arguments":{"a":2,"b":[1,"x"]}}"#,
            r#"{"name":"t","arguments":{"a":1,"b":["x",1]}}"#,
            r#"{"name":"t","arguments":{"a":"1","b":[1,"x"]}}"#,
            r#"{"name":"t","arguments":{"a":1,"b":[1,"x"],"_meta":{}}}"#,
            r#"{"name":"t","arguments":{"b":[1,"x"]}}"#,
            r#"{"name":"u","arguments":{"a":1,"b":[1,"x"]}}"#,
        ] {
            assert_ne!(of(other, CALLS_TOOL), first, "{other}");
        }
        assert_eq!(
            of(r#"{"name":"t"}"#, CALLS_TOOL),
            of(r#"{"name":"t","arguments":{"resumeToken":"r"}}"#, CALLS_TOOL)
        );
        let none = CallDigest::of(br#"{"method":"m"}"#, "m");
        assert_eq!(none, Some(of(r#"{"resumeToken":"r"}"#, "m")));
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(500), "]".repeat(500));
        assert_eq!(CallDigest::of(&call(&deep), "m"), None);
    }

    #[test]
    fn an_interim_result_looks_like_the_result() {
        let of = |form, ttl| {
            let message = interim_result(&number("7"), form, "t", ttl);
            serde_json::from_slice::<Value>(&message).unwrap()["result"].clone()
        };
        let tool = json!({ "content": [], "nextResumeToken": "t", "_meta": { "io.github.mcp-resume/ttl": 600 } });
        assert_eq!(of(Form::of(CALLS_TOOL), Some(600)), tool);
        assert_eq!(of(Form::of("resources/read"), None), json!({ "contents": [], "nextResumeToken": "t" }));
        assert_eq!(of(Form::of("prompts/get"), None), json!({ "messages": [], "nextResumeToken": "t" }));
        assert_eq!(of(Form::of("x/y"), None), json!({ "nextResumeToken": "t" }));
    }

    #[test]
    fn messages_of_the_first_call_are_renamed_and_nothing_else() {
        let (from, to) = (names("1", Some("7")), names("2", Some("8")));
        let text = |data: &str| text(data, rename(data.as_bytes(), &from, &to));
        let result = |id| format!(r#"{{ "result": {{"id":1,"x": [ 1 ]}}, "id" : {id}, "jsonrpc":"2.0"}}"#);
        assert_eq!(text(&result("1")), result("2"));
        assert_eq!(text(&result("3")), "same");
        let progress = |token| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress": 1.0,"progressToken":{token}}}}}"#
            )
        };
        assert_eq!(text(&progress("7")), progress("8"));
        assert_eq!(text(&progress("\"7\"")), "same", "another one");
        assert_eq!(
            text(&format!("[{}, {}]", progress("7"), result("1"))),
            format!("[{}, {}]", progress("8"), result("2"))
        );
        let asked = r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#;
        assert_eq!(text(asked), "same", "the server's own id");
        assert_eq!(text("no json"), "same");
        let silent = names("2", None);
        assert_eq!(rename(progress("7").as_bytes(), &from, &silent), Renaming::Unwanted);
        assert_eq!(rename(result("1").as_bytes(), &names("1", None), &names("1", Some("8"))), Renaming::Same);
    }

    #[test]
    fn a_cancel_is_renamed_to_the_first_id() {
        let cancel =
            |id| format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{ "requestId":{id} }}}}"#);
        let (one, two) = (number("1"), number("2"));
        let first = HashMap::from([(&two, one)]);
        let renamed = |body: &str| rename_cancelled(body.as_bytes(), &first);
        assert_eq!(renamed(&cancel("2")), Some(cancel("1").into_bytes()));
        assert_eq!(renamed(&cancel("3")), None);
        let both = format!("[{},{}]", cancel("3"), cancel("2"));
        assert_eq!(renamed(&both), Some(format!("[{},{}]", cancel("3"), cancel("1")).into_bytes()));
    }

    #[test]
    fn a_tool_list_is_parsed_and_edited() {
        let data = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[ {"name":"a","inputSchema":{"type":"object","properties":{ }}},
            {"name":"b","inputSchema":{"type":"object"}}, {"name":"c","outputSchema":{},"inputSchema":{"type":"object"}},
            {"name":"d","inputSchema":{"properties":{"x":{}}}}, {"name":"other","inputSchema":{}},
            {"name":"e","inputSchema":{"properties":{"resumeToken":{}}}}, {"name":"f"} ],"nextCursor":"n"}}"#;
        let listed = ToolList::of(data.as_bytes(), |name| name != "other");
        let structured: Vec<_> = listed.tools.iter().map(|(name, has)| (name.as_str(), *has)).collect();
        assert_eq!(structured, [("a", false), ("b", false), ("c", true), ("d", false), ("e", false), ("f", false)]);
        let edited = String::from_utf8(listed.edited.unwrap()).unwrap();
        let tools = serde_json::from_str::<Value>(&edited).unwrap()["result"]["tools"].clone();
        let has = |index: usize| tools[index]["inputSchema"]["properties"]["resumeToken"]["type"] == "string";
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(has), [true, true, false, true, false, false, false]);
        let description = tools[0]["inputSchema"]["properties"]["resumeToken"].to_string();
        let parameter = format!(r#""resumeToken":{description}"#);
        let back = edited
            .replace(&format!("{{{parameter} }}"), "{ }")
            .replace(&format!(r#""properties":{{{parameter}}},"#), "")
            .replace(&format!("{parameter},"), "");
        assert_eq!(back, data, "every other byte stays");
        assert_eq!(ToolList::of(br#"{"error":{}}"#, |_| true), ToolList::default());
    }

    #[test]
    fn only_methods_with_interim_results_are_sliced() {
        assert!(["resources/read", "prompts/get", "acme/report"].into_iter().all(may_be_sliced));
        let never = ["initialize", "tools/call", "tools/list", "requests/resume", "stream/poll", ""];
        assert!(!never.into_iter().any(may_be_sliced));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(data in any::<Vec<u8>>()) {
            let (from, to) = (names("1", Some("7")), names("2", Some("8")));
            let _ = (rename(&data, &from, &to), ToolList::of(&data, |_| true), TokenField::of(&data, CALLS_TOOL));
            let _ = (CallDigest::of(&data, CALLS_TOOL), without_token(&data, CALLS_TOOL));
        }
    }
}
