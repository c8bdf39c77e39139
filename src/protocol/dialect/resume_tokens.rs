//! The wire form of resume tokens, [#1003]: a call that takes too long is answered with a token in place of its result, and goes on
//! where the same call comes again with it.
//!
//! Owned here: what is read of such a call, when two calls are the same, the interim result, what becomes of a message of the first
//! call that another one carries on, and what `tools/list` says of it. Bytes that need not change stay.
//!
//! [#1003]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/1003

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::protocol::jsonrpc::{self, Message, RequestId};

/// The method whose arguments may hold the token as well: a model fills in those alone.
pub const CALLS_TOOL: &str = "tools/call";

const TOKEN: &str = "resumeToken";
const META: &str = "_meta";
const ARGUMENTS: &str = "arguments";
/// How long a token is good for, in seconds, in the `_meta` of an interim result.
const TTL: &str = "io.github.mcp-resume/ttl";

/// Methods of the protocol's own whose results must hold more than an interim result can, or that wait for nothing.
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

/// Whether `method` may be answered in slices by its name alone: tools are named one by one.
pub fn may_be_sliced(method: &str) -> bool {
    let is_dialect = ["requests/", "stream/", "notifications/"].iter().any(|prefix| method.starts_with(prefix));
    !method.is_empty() && !is_dialect && !WHOLE.contains(&method)
}

/// What a call says in the place of its token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// There is none.
    Nothing,
    /// Null, which is as good as none and is not for the server.
    Null,
    /// A token; `None` where it is no text.
    Token(Option<String>),
}

impl Said {
    /// Of a call of `method`.
    pub fn of(body: &[u8], method: &str) -> Self {
        let arguments = (method == CALLS_TOOL).then(|| jsonrpc::member(body, &["params", ARGUMENTS, TOKEN])).flatten();
        let given = [jsonrpc::member(body, &["params", TOKEN]), arguments];
        let mut given = given.into_iter().flatten().peekable();
        if given.peek().is_none() {
            return Self::Nothing;
        }
        match given.find(|value| *value != "null") {
            None => Self::Null,
            Some(value) => Self::Token(serde_json::from_str(value).ok()),
        }
    }
}

/// A call of `method` as the server gets it.
pub fn without_token(body: &[u8], method: &str) -> Vec<u8> {
    let without = |body: &[u8], path| jsonrpc::without_members(body, path, &[TOKEN]);
    let body = without(body, &["params"]).unwrap_or_else(|| body.to_vec());
    let edited = (method == CALLS_TOOL).then(|| without(&body, &["params", ARGUMENTS])).flatten();
    edited.unwrap_or(body)
}

/// The token under which a call wants to hear of its progress.
pub fn progress_token(body: &[u8]) -> Option<RequestId> {
    jsonrpc::member(body, &["params", META, "progressToken"]).and_then(RequestId::from_json)
}

/// What makes two calls the same: method and parameters, compared as JSON values, without tokens and `_meta`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sameness([u8; 32]);

impl Sameness {
    /// Of a call of `method`; `None` where its parameters cannot be read.
    pub fn of(body: &[u8], method: &str) -> Option<Self> {
        let place = if method == CALLS_TOOL { Place::ToolParams } else { Place::Params };
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

/// What the result of a method holds besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Form {
    /// `content`
    Content,
    /// `contents`
    Contents,
    /// `messages`
    Messages,
    /// Nothing that is known.
    Bare,
}

impl Form {
    /// That of `method`.
    pub fn of(method: &str) -> Self {
        match method {
            CALLS_TOOL => Self::Content,
            "resources/read" => Self::Contents,
            "prompts/get" => Self::Messages,
            _ => Self::Bare,
        }
    }
}

/// The answer to a call with this id that is still running: it may be continued by `token` for so many seconds.
pub fn interim_result(id: &RequestId, form: Form, token: &str, ttl: Option<u64>) -> Vec<u8> {
    let mut result = json!({ "nextResumeToken": token });
    match form {
        Form::Content => result["content"] = json!([]),
        Form::Contents => result["contents"] = json!([]),
        Form::Messages => result["messages"] = json!([]),
        Form::Bare => {}
    }
    if let Some(ttl) = ttl {
        result[META] = json!({ TTL: ttl });
    }
    super::response(id, &result)
}

/// What a client calls its request, and the progress of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The request's id.
    pub id: RequestId,
    /// The `progressToken`, where it wants to hear of its progress.
    pub progress: Option<RequestId>,
}

/// A message under other names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renaming {
    /// It says nothing of either.
    Same,
    /// The places of the names, in their order, with what stands there then. Every other byte is as it was.
    Changed(Vec<(Range<usize>, String)>),
    /// Progress of which nobody wants to hear.
    Unwanted,
}

/// What the answer to the call named `from`, and the news of it, are to a client that calls it `to`.
pub fn rename(data: &[u8], from: &Names, to: &Names) -> Renaming {
    let Ok(body) = jsonrpc::peek(data) else { return Renaming::Same };
    let mut splices = Vec::new();
    let mut unwanted = 0;
    for (message, text) in body.messages().iter().zip(jsonrpc::messages(data)) {
        match message {
            Message::Response { id: Some(id), .. } if *id == from.id && from.id != to.id => {
                splices.extend(replaced(data, text, &["id"], &to.id));
            }
            Message::Notification { method } if **method == *"notifications/progress" => {
                const PATH: &[&str] = &["params", "progressToken"];
                let token = jsonrpc::member(text.as_bytes(), PATH).and_then(RequestId::from_json);
                if token.is_none() || token != from.progress || from.progress == to.progress {
                    continue;
                }
                match &to.progress {
                    Some(progress) => splices.extend(replaced(data, text, PATH, progress)),
                    None => unwanted += 1,
                }
            }
            Message::Response { .. } | Message::Notification { .. } | Message::Request { .. } => {}
        }
    }
    match splices.is_empty() {
        true if unwanted == body.messages().len() => Renaming::Unwanted,
        true => Renaming::Same,
        false => {
            splices.sort_by_key(|(place, _)| place.start);
            Renaming::Changed(splices)
        }
    }
}

/// The cancels of `body` under other ids: each request of `renamed` is called by what stands behind it. One walk, however many there are.
pub fn rename_cancelled(body: &[u8], renamed: &HashMap<&RequestId, RequestId>) -> Option<Vec<u8>> {
    let Ok(peeked) = jsonrpc::peek(body) else { return None };
    let mut splices = Vec::new();
    for (message, text) in peeked.messages().iter().zip(jsonrpc::messages(body)) {
        let is_cancel = matches!(message, Message::Notification { method } if **method == *"notifications/cancelled");
        let from = if is_cancel { jsonrpc::cancelled_request_id(text.as_bytes()) } else { None };
        if let Some(to) = from.and_then(|from| renamed.get(&from)) {
            splices.extend(replaced(body, text, &["params", "requestId"], to));
        }
    }
    (!splices.is_empty()).then(|| jsonrpc::splice(body, splices))
}

fn replaced(whole: &[u8], text: &str, path: &'static [&'static str], by: &RequestId) -> Option<(Range<usize>, String)> {
    let value = jsonrpc::member(text.as_bytes(), path)?;
    Some((jsonrpc::span(whole, value), by.to_json()))
}

/// What an answer to `tools/list` says of the tools that are asked about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listed {
    /// Each with whether its result has a schema.
    pub tools: Vec<(String, bool)>,
    /// The answer with a `resumeToken` among the parameters of those that have no such schema, where there is one that lacks it.
    pub edited: Option<Vec<u8>>,
}

impl Listed {
    /// Of the tools that `is_ours` picks.
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
        listed.edited = (!splices.is_empty()).then(|| jsonrpc::splice(data, splices));
        listed
    }
}

/// Where the parameter is to stand in the schema of `tool`, unless it does.
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

/// Where in a call's parameters a value stands, as far as it matters.
#[derive(Clone, Copy)]
enum Place {
    Params,
    ToolParams,
    Arguments,
    Inside,
}

impl Place {
    fn of_member(self, name: &str) -> Option<Place> {
        match self {
            Place::Params | Place::ToolParams if matches!(name, TOKEN | META) => None,
            Place::ToolParams if name == ARGUMENTS => Some(Place::Arguments),
            Place::Arguments if name == TOKEN => None,
            Place::Params | Place::ToolParams | Place::Arguments | Place::Inside => Some(Place::Inside),
        }
    }
}

/// A value as bytes that are the same for equal values: members in the order of their names, numbers by their value.
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
            // A token may have been all there was.
            let is_none = matches!(place, Place::Arguments) && value == b"{}";
            let before = if is_none { members.remove(&name) } else { members.insert(name, value) };
            drop(before);
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
    fn a_token_is_read_where_it_may_stand_and_taken_out_there() {
        let both = call(r#"{ "name":"t", "arguments":{"a": 1,"resumeToken":null}, "resumeToken":"x\u0079" }"#);
        assert_eq!(Said::of(&both, CALLS_TOOL), Said::Token(Some("xy".into())));
        let arguments = call(r#"{"arguments":{"resumeToken":"z"}}"#);
        assert_eq!(Said::of(&arguments, CALLS_TOOL), Said::Token(Some("z".into())));
        assert_eq!(Said::of(&arguments, "prompts/get"), Said::Nothing, "an argument like any other");
        assert_eq!(Said::of(&call(r#"{"resumeToken":3}"#), "m"), Said::Token(None));
        assert_eq!(Said::of(&call(r#"{"resumeToken":null}"#), "m"), Said::Null);
        assert_eq!(without_token(&both, CALLS_TOOL), call(r#"{"name":"t","arguments":{"a":1}}"#));
        assert_eq!(without_token(&call("{}"), CALLS_TOOL), call("{}"));
    }

    #[test]
    fn calls_are_the_same_by_value() {
        let of = |params: &str, method| Sameness::of(&call(params), method).unwrap();
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
        let none = Sameness::of(br#"{"method":"m"}"#, "m");
        assert_eq!(none, Some(of(r#"{"resumeToken":"r"}"#, "m")));
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(500), "]".repeat(500));
        assert_eq!(Sameness::of(&call(&deep), "m"), None);
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
    fn a_cancel_goes_up_under_the_first_id() {
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
    fn a_list_says_which_tools_take_a_token() {
        let data = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[ {"name":"a","inputSchema":{"type":"object","properties":{ }}},
            {"name":"b","inputSchema":{"type":"object"}}, {"name":"c","outputSchema":{},"inputSchema":{"type":"object"}},
            {"name":"d","inputSchema":{"properties":{"x":{}}}}, {"name":"other","inputSchema":{}},
            {"name":"e","inputSchema":{"properties":{"resumeToken":{}}}}, {"name":"f"} ],"nextCursor":"n"}}"#;
        let listed = Listed::of(data.as_bytes(), |name| name != "other");
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
        assert_eq!(Listed::of(br#"{"error":{}}"#, |_| true), Listed::default());
    }

    #[test]
    fn only_what_an_interim_result_can_stand_for_is_sliced() {
        assert!(["resources/read", "prompts/get", "acme/report"].into_iter().all(may_be_sliced));
        let never = ["initialize", "tools/call", "tools/list", "requests/resume", "stream/poll", ""];
        assert!(!never.into_iter().any(may_be_sliced));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(data in any::<Vec<u8>>()) {
            let (from, to) = (names("1", Some("7")), names("2", Some("8")));
            let _ = (rename(&data, &from, &to), Listed::of(&data, |_| true), Said::of(&data, CALLS_TOOL));
            let _ = (Sameness::of(&data, CALLS_TOOL), without_token(&data, CALLS_TOOL));
        }
    }
}
