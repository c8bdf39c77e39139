//! The JSON peek and the finders, and the routing of a POST. Input: a body.
//!
//! They are compared with a parser that builds the values. That parser refuses more than the peek
//! does (invalid UTF-8, deep nesting, numbers out of range), so its refusals do not count.

use mcp_resume::protocol::classify::{self, Route};
use mcp_resume::protocol::dialect::Declared;
use mcp_resume::protocol::headers::ProtocolVersion;
use mcp_resume::protocol::jsonrpc::{
    Body, Message, PeekError, RequestId, cancelled_request_id, code, initialize_result, meta_protocol_version, peek,
    response, tool_name, without_members,
};
use mcp_resume::protocol::progress;
use serde_json::Value;

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let peeked = peek(bytes);
    if let Ok(body) = &peeked {
        assert!(!body.messages().is_empty());
        body.messages().iter().for_each(means_the_same_alone);
    }
    routes(bytes, peeked.as_ref());
    addresses(bytes);
    if peeked.is_ok() {
        let tokens: Vec<_> = progress::tokens(bytes).into_iter().map(|found| found.token).collect();
        progress::for_each_progress(bytes, tokens.iter(), |index, found| {
            assert!(index < tokens.len() && found.value.is_finite())
        });
    }
    let mut found = Found {
        version: meta_protocol_version(bytes),
        cancelled: cancelled_request_id(bytes),
        tool: tool_name(bytes),
        initialized: initialize_result(bytes).map(|said| (said.protocol_version, said.logging)),
    };
    // The name by which serde_json passes raw values to itself; its own values cannot hold it.
    let is_its_own = bytes.windows(11).any(|window| window == b"$serde_json");
    match serde_json::from_slice::<Value>(bytes) {
        Ok(value) if !is_its_own => {
            agrees(&value, &peeked);
            if let Some(RequestId::Number(text)) = &mut found.cancelled {
                *text = plain_number(text);
            }
            assert_eq!(found, Found::model(&value));
            loses_only_what_is_named(bytes, value);
        }
        Ok(_) | Err(_) => {}
    }
}

/// The named member is removed, and all other members keep their meaning.
fn loses_only_what_is_named(bytes: &[u8], mut value: Value) {
    let edited = without_members(bytes, &["params", "capabilities"], &["streams", ""]);
    let object = value.pointer_mut("/params/capabilities").and_then(Value::as_object_mut);
    let taken = object.is_some_and(|object| {
        let named = ["streams", ""].map(|name| object.remove(name).is_some());
        named.contains(&true)
    });
    assert_eq!(edited.is_some(), taken);
    if let Some(edited) = edited {
        assert_eq!(serde_json::from_slice::<Value>(&edited).expect("JSON"), value);
    }
}

/// The few members that the peek reads make a message with the same meaning.
fn means_the_same_alone(message: &Message) {
    let quoted = |text: &str| Value::from(text).to_string();
    let text = match message {
        Message::Request { id, method } => {
            assert_eq!(RequestId::from_json(&id.to_json()).as_ref(), Some(id));
            format!(r#"{{"jsonrpc":"2.0","id":{},"method":{}}}"#, id.to_json(), quoted(method))
        }
        Message::Notification { method } => format!(r#"{{"jsonrpc":"2.0","method":{}}}"#, quoted(method)),
        Message::Response { id, is_error } => {
            let id = id.as_ref().map_or("null".to_owned(), RequestId::to_json);
            let member = if *is_error { "error" } else { "result" };
            format!(r#"{{"jsonrpc":"2.0","{member}":{{}},"id":{id}}}"#)
        }
    };
    assert_eq!(peek(text.as_bytes()), Ok(Body::Single(message.clone())), "{text}");
}

fn agrees(value: &Value, peeked: &Result<Body, PeekError>) {
    assert_ne!(*peeked, Err(PeekError::NotJson));
    match (value, peeked) {
        (Value::Array(list), Ok(Body::Batch(messages))) => {
            assert_eq!(list.len(), messages.len());
            list.iter().zip(messages).for_each(|(value, message)| is_like(value, Ok(message)));
        }
        (Value::Array(list), Err(error)) => {
            let all_good = !list.is_empty() && list.iter().all(|value| is_message(value).is_some());
            assert!(!all_good || matches!(error, PeekError::DuplicateKey(_)), "{error}");
        }
        (value, Ok(Body::Single(message))) => is_like(value, Ok(message)),
        (value, Err(error)) => is_like(value, Err(*error)),
        (value, Ok(body)) => panic!("{value} is not {body:?}"),
    }
}

/// The peek refuses a repeated member; here its last value counts.
fn is_like(value: &Value, message: Result<&Message, PeekError>) {
    match message {
        Err(PeekError::DuplicateKey(key)) => assert!(value.get(key).is_some()),
        Err(error) => assert!(is_message(value).is_none(), "{error}"),
        Ok(message) => assert_eq!(is_message(value), Some(with_plain_number(message))),
    }
}

fn is_message(value: &Value) -> Option<Message> {
    let has = |key| value.get(key).is_some();
    if value.get("jsonrpc")? != "2.0" {
        return None;
    }
    let id = match value.get("id") {
        None => None,
        Some(Value::Null) => Some(None),
        Some(id) => Some(Some(request_id(id)?)),
    };
    match (value.get("method"), has("result"), has("error")) {
        (Some(Value::String(method)), false, false) => match id {
            None => Some(Message::Notification { method: method.clone().into() }),
            Some(id) => Some(Message::Request { id: id?, method: method.clone().into() }),
        },
        (None, true, false) => Some(Message::Response { id: id?, is_error: false }),
        (None, false, true) => Some(Message::Response { id: id.flatten(), is_error: true }),
        _ => None,
    }
}

fn request_id(value: &Value) -> Option<RequestId> {
    match value {
        Value::Number(number) => Some(RequestId::Number(number.to_string().into())),
        Value::String(text) => Some(RequestId::String(text.as_str().into())),
        _ => None,
    }
}

/// The message with a numeric id in the values' only form for it: the peek keeps the original
/// notation.
fn with_plain_number(message: &Message) -> Message {
    let mut message = message.clone();
    let (Message::Request { id, .. } | Message::Response { id: Some(id), .. }) = &mut message else {
        return message;
    };
    if let RequestId::Number(text) = id {
        *text = plain_number(text);
    }
    message
}

fn plain_number(text: &str) -> Box<str> {
    let value: Value = serde_json::from_str(text).expect("the values were built");
    value.to_string().into()
}

#[derive(Debug, PartialEq)]
struct Found {
    version: Option<String>,
    cancelled: Option<RequestId>,
    tool: Option<String>,
    initialized: Option<(String, bool)>,
}

impl Found {
    fn model(value: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let in_params = |value: &Value, key| value.get("params")?.get(key).cloned();
        let version = |value: &Value| in_params(value, "_meta")?.get(META_VERSION).cloned();
        let version = match value {
            Value::Array(list) => list.iter().find_map(version),
            value => version(value),
        };
        let result = value.get("result");
        let logging = result.and_then(|result| result.get("capabilities")?.get("logging"));
        Self {
            version: version.as_ref().and_then(text),
            cancelled: in_params(value, "requestId").as_ref().and_then(request_id),
            tool: in_params(value, "name").as_ref().and_then(text),
            initialized: result
                .and_then(|result| text(result.get("protocolVersion")?))
                .map(|version| (version, logging.is_some_and(|logging| !logging.is_null()))),
        }
    }
}

/// A POST of this body is a call if it has requests, unless it contradicts its head.
fn routes(body: &[u8], peeked: Result<&Body, &PeekError>) {
    for version in [None, ProtocolVersion::parse("2026-07-28")] {
        let route = classify::post(version.as_ref(), body, None, Declared::default(), usize::MAX);
        let Ok(body) = peeked else {
            assert!(matches!(route, Route::Refuse(_)));
            continue;
        };
        let requests = body.messages().iter().filter(|message| matches!(message, Message::Request { .. })).count();
        match route {
            Route::Call(call) => assert_eq!(call.ids.len(), requests),
            Route::ClientResponses(messages) => assert_eq!((messages.as_slice(), requests), (body.messages(), 0)),
            Route::Forward => assert_ne!(requests, 0),
            route => panic!("{route:?}"),
        }
    }
}

/// An error under another id is an error message, and so is one of the proxy's own.
fn addresses(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for id in [RequestId::String(text.as_ref().into()), RequestId::Number("-1.50e3".into())] {
        let is_error = Ok(Body::Single(Message::Response { id: Some(id.clone()), is_error: true }));
        let ours = response::error(&id, code::CALL_GIVEN_UP, &text);
        assert_eq!(peek(&ours), is_error);
        assert!(!ours.contains(&b'\n'));
        if let Some(message) = response::readdressed(bytes, &id) {
            assert_eq!(peek(&message), is_error);
        }
    }
}
