//! A peek at JSON-RPC: the kind of a message, its id, its method, and a few named members.
//!
//! Payloads are skipped and never built: only requested values are allocated, and invalid UTF-8 or
//! deep nesting in a payload is no error. The bytes are forwarded unchanged.
//!
//! Deliberately absent: any validation of `params` and `result`, and any change except removed or
//! replaced members. The only messages written here are responses ([`response`]).

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

mod alike;
pub mod code;
#[cfg(test)]
pub(crate) mod counted;
mod cut;
mod defect;
mod edit;
mod handshake;
mod lenient;
mod rename;
pub mod response;
mod scan;
#[cfg(test)]
mod tests;
mod usual;
mod walk;

pub use alike::only_alike;
pub use cut::{leading_members, trailing_members};
pub use defect::{Defect, defect, notification_with_null_id};
pub use edit::{
    first_members, member, messages, parsed_member, span, splice, splice_apart, string_member, without_members,
};
pub use handshake::{InitializeParams, ServerFacts, SessionChange, session_change};
pub use lenient::{BYTE_ORDER_MARK, as_json, peek_any, peek_leniently, place, readable};
pub use rename::{rename_ids, replaced};
pub use scan::is_one_object;
use scan::scan;
use walk::{find, find_in_batch, from_slice};
pub use walk::{find_message, for_each_element, for_each_message};

/// The id of a JSON-RPC request. It keeps its type: `1` and `"1"` are two ids.
#[derive(Clone, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(not(test), derive(PartialEq))]
#[cfg_attr(
    test,
    expect(clippy::derived_hash_with_manual_eq, reason = "the comparison is the derived one, and counted")
)]
pub enum RequestId {
    /// The number as it was written, so that `1`, `1.0` and large integers stay unchanged.
    Number(Box<str>),
    /// The string, without quotes and escapes.
    String(Box<str>),
}

impl RequestId {
    /// Returns the id as JSON text.
    pub fn to_json(&self) -> String {
        match self {
            Self::Number(text) => text.to_string(),
            Self::String(text) => serde_json::Value::from(&**text).to_string(),
        }
    }

    /// Returns the id's text, without quotes and escapes.
    pub fn text(&self) -> &str {
        match self {
            Self::Number(text) | Self::String(text) => text,
        }
    }

    /// Parses a JSON number or string. Returns `None` for anything else.
    pub fn from_json(text: &str) -> Option<Self> {
        Self::from_raw(serde_json::from_str(text).ok()?)
    }

    fn from_raw(raw: &RawValue) -> Option<Self> {
        match raw.get().as_bytes().first()? {
            b'"' => Some(Self::String(string(raw)?.into())),
            b'-' | b'0'..=b'9' => Some(Self::Number(raw.get().into())),
            _ => None,
        }
    }
}

/// The name of a method. The usual ones need no memory.
pub type MethodName = Cow<'static, str>;

/// Member of `_meta` with the revision of a modern request.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// The usual methods of MCP.
const USUAL_METHODS: [&str; 12] = [
    "tools/call",
    "tools/list",
    "notifications/progress",
    "notifications/message",
    "initialize",
    "notifications/initialized",
    "notifications/cancelled",
    "ping",
    "resources/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
];

/// The members of a JSON-RPC message that the proxy uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Message with a method and an id: its sender waits for a response.
    Request {
        /// The id, which its response repeats.
        id: RequestId,
        /// The method's name.
        method: MethodName,
    },
    /// Message with a method and no id.
    Notification {
        /// The method's name.
        method: MethodName,
    },
    /// Message with a result or an error.
    Response {
        /// The id of the request, or `None` if it is null, or absent from an error.
        id: Option<RequestId>,
        /// True if the response has an `error` member.
        is_error: bool,
    },
}

/// Messages of one HTTP body, or of one SSE event's data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// One message.
    Single(Message),
    /// An array of at least one message (the 2025-03-26 revision).
    Batch(Vec<Message>),
}

impl Body {
    /// Returns the messages in their order; never empty.
    pub fn messages(&self) -> &[Message] {
        match self {
            Self::Single(message) => std::slice::from_ref(message),
            Self::Batch(messages) => messages,
        }
    }
}

/// Reason why bytes are no JSON-RPC message. In a batch, the first malformed message decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeekError {
    /// Not JSON.
    #[error("not JSON")]
    NotJson,
    /// JSON, but not a [JSON-RPC 2.0](https://www.jsonrpc.org/specification) message or a batch of
    /// at least one.
    #[error("not a JSON-RPC 2.0 message")]
    NotMessage,
    /// A member that decides the kind of the message is repeated, and parsers would read different
    /// values.
    #[error("the member {0:?} is there twice")]
    DuplicateKey(&'static str),
    /// The id is neither a string nor a number, nor the null of a response.
    #[error("the id is not a string or a number")]
    BadId,
    /// An array of more messages than the caller of [`peek_up_to`] takes.
    #[error("the array has too many messages")]
    TooLong,
}

/// Parses a message or a batch of any length. A message has `"jsonrpc": "2.0"`, and either a method
/// or one of `result` and `error`.
///
/// # Errors
/// See [`PeekError`]. Never panics, at any depth of nesting.
pub fn peek(bytes: &[u8]) -> Result<Body, PeekError> {
    peek_up_to(bytes, usize::MAX)
}

/// Parses a message or a batch of at most `longest` messages. Parsing stops at the first message
/// beyond them, so a longer array costs no more than its beginning.
///
/// # Errors
/// See [`PeekError`].
pub fn peek_up_to(bytes: &[u8], longest: usize) -> Result<Body, PeekError> {
    match usual::peek(bytes) {
        Some(usual) => Ok(Body::Single(usual.message)),
        None => parsed_up_to(bytes, longest),
    }
}

/// Messages of a request body, and what the same pass shows of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestBody {
    /// The messages.
    pub messages: Body,
    /// The [`meta_protocol_version`].
    pub version: Option<String>,
    /// Place of the text of `params.name`, or `None` if it was not seen; see [`tool_name`].
    pub name: Option<Range<usize>>,
}

/// Parses a request body as [`peek_up_to`] does, with what every call needs of it.
///
/// # Errors
/// See [`PeekError`].
pub fn peek_request(bytes: &[u8], longest: usize) -> Result<RequestBody, PeekError> {
    let (messages, may_name_version, name) = match usual::peek(bytes) {
        Some(usual) => (Body::Single(usual.message), usual.may_name_version, usual.name),
        None => (parsed_up_to(bytes, longest)?, true, None),
    };
    let version = if may_name_version { meta_protocol_version(bytes) } else { None };
    Ok(RequestBody { messages, version, name })
}

/// Parses messages of any form.
fn parsed_up_to(bytes: &[u8], longest: usize) -> Result<Body, PeekError> {
    let is_too_long = Cell::new(false);
    match from_slice(bytes, BodySeed { longest, is_too_long: &is_too_long }) {
        Some(body) => body,
        None if is_too_long.get() => Err(PeekError::TooLong),
        None if from_slice(bytes, std::marker::PhantomData::<IgnoredAny>).is_some() => Err(PeekError::NotMessage),
        None => Err(PeekError::NotJson),
    }
}

/// Returns true if [`peek`] might find a message with an id in `bytes`. Otherwise they hold a
/// notification, a response without an id, or no message. Most events are notifications, and this
/// test costs a fraction of a peek.
pub fn may_have_id(bytes: &[u8]) -> bool {
    static ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#""id""#));
    if ID.find(bytes).is_some() {
        return true;
    }
    // Most events have no escape, which costs less to see. No escape but `\u` stands for a letter.
    static ESCAPED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r"\u"));
    memchr::memchr(b'\\', bytes).is_some_and(|at| ESCAPED.find(&bytes[at..]).is_some())
}

/// Returns `params._meta["io.modelcontextprotocol/protocolVersion"]`, the revision of a modern
/// request. In a batch the first message with the member counts. Returns `None` if it is absent or
/// no string.
pub fn meta_protocol_version(bytes: &[u8]) -> Option<String> {
    const PATH: &[&str] = &["params", "_meta", META_VERSION];
    // Most requests have no such key, which a search shows at less cost than parsing. A key with
    // escapes has a backslash.
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(META_VERSION));
    if FINDER.find(bytes).is_none() && memchr::memchr(b'\\', bytes).is_none() {
        return None;
    }
    find_in_batch(bytes, PATH).and_then(string).map(Cow::into_owned)
}

/// Returns `params.requestId` of a `notifications/cancelled`: the id of the cancelled request.
pub fn cancelled_request_id(bytes: &[u8]) -> Option<RequestId> {
    find(bytes, &["params", "requestId"]).and_then(RequestId::from_raw)
}

/// Returns the ids of the requests that the notifications of a body cancel. `messages` are the
/// messages of `body`, in order.
pub fn cancelled_request_ids(messages: &[Message], body: &[u8]) -> Vec<RequestId> {
    let is_cancel =
        |message: &Message| matches!(message, Message::Notification { method } if *method == "notifications/cancelled");
    if !messages.iter().any(is_cancel) {
        return Vec::new();
    }
    match serde_json::from_slice::<Vec<&RawValue>>(body) {
        Ok(batch) => {
            let cancels = batch.iter().zip(messages).filter(|(_, message)| is_cancel(message));
            cancels.filter_map(|(raw, _)| cancelled_request_id(raw.get().as_bytes())).collect()
        }
        Err(_) => cancelled_request_id(body).into_iter().collect(),
    }
}

/// Returns `params.protocolVersion` of an `initialize`: the requested revision.
pub fn requested_version(bytes: &[u8]) -> Option<String> {
    string_member(bytes, &["params", "protocolVersion"])
}

/// Returns `params._meta.progressToken` of a request that [`peek`] accepts, as JSON text.
pub fn progress_token(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(scan(bytes, &["params", "_meta", "progressToken"])?).ok()
}

/// Returns `params.clientInfo.name` of an `initialize` that [`peek`] accepts.
pub fn client_name(bytes: &[u8]) -> Option<String> {
    text_at(bytes, &["params", "clientInfo", "name"])
}

/// Returns `params._meta["io.modelcontextprotocol/clientInfo"].name` of a modern request that
/// [`peek`] accepts.
pub fn meta_client_name(bytes: &[u8]) -> Option<String> {
    text_at(bytes, &["params", "_meta", "io.modelcontextprotocol/clientInfo", "name"])
}

fn text_at(bytes: &[u8], path: &[&str]) -> Option<String> {
    let text = str::from_utf8(scan(bytes, path)?).ok()?;
    unquoted(text).map(Cow::into_owned)
}

/// Returns `params.name` of a `tools/call` that [`peek`] accepts: the name of the tool.
pub fn tool_name(bytes: &[u8]) -> Option<String> {
    text_at(bytes, &["params", "name"])
}

/// Returns the [`tool_name`]. `place` is that of its text, if [`peek_request`] has seen it in these
/// bytes.
pub fn tool_name_at<'a>(bytes: &'a [u8], place: Option<&Range<usize>>) -> Option<Cow<'a, str>> {
    match place.and_then(|place| bytes.get(place.clone())) {
        Some(name) => str::from_utf8(name).ok().map(Cow::Borrowed),
        None => tool_name(bytes).map(Cow::Owned),
    }
}

/// Parts of the result of an `initialize` that the proxy needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Initialized {
    /// The revision that the server chose.
    pub protocol_version: String,
    /// True if the server declared the `logging` capability.
    pub logging: bool,
}

/// Parses the result of an `initialize`. Returns `None` if it names no revision, as an error does
/// not.
pub fn initialize_result(bytes: &[u8]) -> Option<Initialized> {
    let protocol_version = find(bytes, &["result", "protocolVersion"]).and_then(string)?.into_owned();
    let logging = find(bytes, &["result", "capabilities", "logging"]);
    Some(Initialized { protocol_version, logging: logging.is_some_and(|raw| raw.get() != "null") })
}

/// Returns true for a response with an `input_required` result, even a malformed one.
pub fn is_input_required(message: &[u8]) -> bool {
    member(message, &["result", "resultType"]) == Some(r#""input_required""#)
}

/// Returns the error of a response as JSON text. An error of `null` beside a result counts as
/// absent.
pub fn error_in(message: &[u8]) -> Option<&str> {
    member(message, &["error"]).filter(|error| *error != "null")
}

/// Returns the code of an error response, or `None` for a result and for an error without one.
pub fn error_code(message: &[u8]) -> Option<i64> {
    member(message, &["error", "code"])?.parse().ok()
}

/// The members that decide the kind of a message. Payloads are reduced to their presence.
#[derive(Default)]
struct Members<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    result: Option<Presence>,
    error: Option<Presence>,
    duplicate: Option<&'static str>,
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Jsonrpc,
    Id,
    Method,
    Result,
    Error,
    #[serde(other)]
    Other,
}

/// A value that is skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Null,
    Value,
}

impl<'de> Deserialize<'de> for Presence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Option::<IgnoredAny>::deserialize(deserializer)?;
        Ok(value.map_or(Self::Null, |_| Self::Value))
    }
}

impl Members<'_> {
    /// True for a message with a result. Beside an error, or a method, `null` counts as absent.
    fn has_result(&self) -> bool {
        match self.result {
            Some(Presence::Value) => true,
            Some(Presence::Null) => self.error != Some(Presence::Value) && !self.has_method(),
            None => false,
        }
    }

    /// True for a message with an error; see [`Self::has_result`].
    fn has_error(&self) -> bool {
        match self.error {
            Some(Presence::Value) => true,
            Some(Presence::Null) => self.result.is_none() && !self.has_method(),
            None => false,
        }
    }

    fn has_method(&self) -> bool {
        self.method.is_some_and(|raw| raw.get() != "null")
    }

    fn to_message(&self) -> Result<Message, PeekError> {
        if let Some(key) = self.duplicate {
            return Err(PeekError::DuplicateKey(key));
        }
        if !self.jsonrpc.is_some_and(is_version_2) {
            return Err(PeekError::NotMessage);
        }
        let method = self.method.filter(|raw| raw.get() != "null");
        match (method, self.has_result(), self.has_error()) {
            (Some(method), false, false) => {
                let method = method_name(string(method).ok_or(PeekError::NotMessage)?);
                match self.id {
                    None => Ok(Message::Notification { method }),
                    Some(raw) => {
                        let id = RequestId::from_raw(raw).ok_or(PeekError::BadId)?;
                        Ok(Message::Request { id, method })
                    }
                }
            }
            (None, result, error) if result != error => {
                let id = match self.id {
                    // An error about a request with an unreadable id may omit it.
                    None if error => None,
                    None => return Err(PeekError::NotMessage),
                    Some(raw) if raw.get() == "null" => None,
                    Some(raw) => Some(RequestId::from_raw(raw).ok_or(PeekError::BadId)?),
                };
                Ok(Message::Response { id, is_error: error })
            }
            _ => Err(PeekError::NotMessage),
        }
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Members::default();
        while let Some(key) = map.next_key()? {
            let (name, is_duplicate) = match key {
                Key::Jsonrpc => ("jsonrpc", members.jsonrpc.replace(map.next_value()?).is_some()),
                Key::Id => ("id", members.id.replace(map.next_value()?).is_some()),
                Key::Method => ("method", members.method.replace(map.next_value()?).is_some()),
                Key::Result => ("result", members.result.replace(map.next_value()?).is_some()),
                Key::Error => ("error", members.error.replace(map.next_value()?).is_some()),
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if is_duplicate {
                members.duplicate = Some(name);
            }
        }
        Ok(members)
    }
}

/// An object, or an array of at most `longest` objects. Each becomes a message as it is read; of a
/// malformed batch only the first error is kept.
struct BodySeed<'c> {
    longest: usize,
    is_too_long: &'c Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for BodySeed<'_> {
    type Value = Result<Body, PeekError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BodySeed<'_> {
    type Value = Result<Body, PeekError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message or a batch")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        MembersVisitor.visit_map(map).map(|members| members.to_message().map(Body::Single))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut messages = Ok(Vec::new());
        let mut length = 0;
        while let Some(members) = list.next_element::<Members>()? {
            length += 1;
            if length > self.longest {
                self.is_too_long.set(true);
                return Err(A::Error::custom(PeekError::TooLong));
            }
            if let Ok(all) = &mut messages {
                match members.to_message() {
                    Ok(message) => all.push(message),
                    Err(error) => messages = Err(error),
                }
            }
        }
        match messages {
            Ok(none) if none.is_empty() => Ok(Err(PeekError::NotMessage)),
            messages => Ok(messages.map(Body::Batch)),
        }
    }
}

fn method_name(name: Cow<'_, str>) -> MethodName {
    match USUAL_METHODS.into_iter().find(|usual| *usual == name) {
        Some(usual) => Cow::Borrowed(usual),
        None => Cow::Owned(name.into_owned()),
    }
}

fn is_version_2(raw: &RawValue) -> bool {
    // The usual form, without escapes.
    raw.get() == r#""2.0""# || string(raw).as_deref() == Some("2.0")
}

fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    unquoted(raw.get())
}

/// Returns the string that this JSON text is.
fn unquoted(json: &str) -> Option<Cow<'_, str>> {
    let quoted = json.strip_prefix('"')?.strip_suffix('"')?;
    // Most strings have no escapes.
    if memchr::memchr(b'\\', quoted.as_bytes()).is_none() {
        return Some(Cow::Borrowed(quoted));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}
