//! The wire forms of the resumption proposals with JSON-RPC messages: [SEP-975], resumable
//! requests, and [#899], resumable streams. Resume tokens have a module of their own.
//!
//! Owned here: the names, the parsed parameters of requests, and the written messages. Absent: the
//! streams and their events (the event log), and the proposals that use headers and URLs.
//!
//! [SEP-975]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/925
//! [#899]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/899

pub mod resume_tokens;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::jsonrpc::{self, RequestId, response};

/// Capability in `initialize` of a client that understands resume policies.
const RESUMABLE_REQUESTS: &str = "resumableRequests";
/// Capability in `initialize` of a client that understands streams.
const RESUMABLE_STREAMS: &str = "streams";

/// A set of dialects: declared by a client, or spoken by the proxy.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Declared {
    /// SEP-975.
    pub resumable_requests: bool,
    /// #899.
    pub resumable_streams: bool,
}

impl Declared {
    /// All dialects.
    pub const ALL: Self = Self { resumable_requests: true, resumable_streams: true };

    /// Returns the dialects that an `initialize` declares.
    pub fn of_initialize(body: &[u8]) -> Self {
        let has = |path| jsonrpc::member(body, path).is_some_and(|value| !matches!(value, "null" | "false"));
        Self {
            resumable_requests: has(&["params", "capabilities", RESUMABLE_REQUESTS]),
            resumable_streams: has(&["params", "capabilities", RESUMABLE_STREAMS]),
        }
    }

    /// Returns an `initialize` without its declarations of these dialects, so that the client sees
    /// one policy, the proxy's. Returns `None` if it has no such declaration. Every other byte
    /// stays.
    pub fn remove_from(self, body: &[u8]) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        if self.resumable_requests {
            names.push(RESUMABLE_REQUESTS);
        }
        if self.resumable_streams {
            names.push(RESUMABLE_STREAMS);
        }
        jsonrpc::without_members(body, &["params", "capabilities"], &names)
    }

    /// Returns the dialects that are in both sets.
    pub fn intersection(self, other: Self) -> Self {
        Self {
            resumable_requests: self.resumable_requests && other.resumable_requests,
            resumable_streams: self.resumable_streams && other.resumable_streams,
        }
    }

    /// Returns true if the set is not empty.
    pub fn is_any(self) -> bool {
        self.resumable_requests || self.resumable_streams
    }
}

/// A request that the proxy handles itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// `requests/resume`
    ResumeRequest,
    /// `requests/getStatus`
    GetRequestStatus,
    /// `stream/resume`
    ResumeStream,
    /// `stream/poll`
    PollStream,
}

impl Method {
    /// Returns the method of that name, or `None` if it belongs to no dialect of `enabled`.
    pub fn parse(name: &str, enabled: Declared) -> Option<Self> {
        match name {
            "requests/resume" if enabled.resumable_requests => Some(Self::ResumeRequest),
            "requests/getStatus" if enabled.resumable_requests => Some(Self::GetRequestStatus),
            "stream/resume" if enabled.resumable_streams => Some(Self::ResumeStream),
            "stream/poll" if enabled.resumable_streams => Some(Self::PollStream),
            _ => None,
        }
    }
}

/// Parameters of such a request. A parameter that is absent or has another type is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Params {
    /// The resume token.
    pub resume_token: Option<String>,
    /// The request whose status is requested.
    pub request_id: Option<RequestId>,
    /// The stream's id.
    pub stream_id: Option<String>,
}

impl Params {
    /// Parses the parameters of a request.
    pub fn of(body: &[u8]) -> Self {
        let text = |path| jsonrpc::member(body, path).and_then(|value| serde_json::from_str(value).ok());
        Self {
            resume_token: text(&["params", "resumeToken"]),
            request_id: jsonrpc::member(body, &["params", "requestId"]).and_then(RequestId::from_json),
            stream_id: text(&["params", "streamId"]),
        }
    }
}

/// Limits for the time before a client reconnects, in whole seconds. A limit that is `None` is not
/// written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// Lower limit.
    pub min: Option<u64>,
    /// Upper limit.
    pub max: Option<u64>,
}

impl Waits {
    /// Creates limits in seconds. A `min` of zero and a `max` of never are not written. Less than a
    /// second becomes a second, because zero would have another meaning.
    pub fn new(min: Duration, max: Option<Duration>) -> Self {
        let secs = |wait: Duration| wait.as_secs().max(1);
        Self { min: if min.is_zero() { None } else { Some(secs(min)) }, max: max.map(secs) }
    }
}

/// The status of a stream for its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// True if no response is owed any more.
    pub is_completed: bool,
    /// True if a response was a JSON-RPC error.
    pub has_failed: bool,
    /// Number of unconfirmed messages, without announcements of the dialects.
    pub pending: u64,
    /// True if a server→client request is pending.
    pub awaits_input: bool,
    /// True if a pending server→client request is unconfirmed too.
    pub has_request: bool,
    /// True if the error is unconfirmed.
    pub has_error: bool,
}

/// Writes the resume policy of `request` (SEP-975).
pub fn resume_policy(request: &RequestId, token: &str, waits: Waits) -> Vec<u8> {
    let mut params = json!({ "requestId": value(request), "resumeToken": token });
    put(&mut params, "minWait", waits.min);
    put(&mut params, "maxWait", waits.max);
    notification("notifications/requests/resumePolicy", params)
}

/// Writes the announcement of the stream for `request`, or of a standalone stream if it is `None`
/// (#899).
pub fn stream_create(stream: &str, token: &str, request: Option<&RequestId>, waits: Waits) -> Vec<u8> {
    let mut interval = json!({});
    put(&mut interval, "min", waits.min);
    put(&mut interval, "max", waits.max);
    let mut params = json!({ "streamId": stream, "resumeToken": token, "resumeInterval": interval });
    if let Some(request) = request {
        params["requestId"] = value(request);
    }
    notification("notifications/stream/create", params)
}

/// Writes the end of a stream (#899).
pub fn stream_end(stream: &str) -> Vec<u8> {
    notification("notifications/stream/end", json!({ "streamId": stream }))
}

/// Writes the response to `requests/getStatus` (SEP-975).
pub fn request_status(id: &RequestId, request: &RequestId, status: Status) -> Vec<u8> {
    let word = match (status.is_completed, status.has_failed) {
        (false, _) => "processing",
        (true, false) => "completed",
        (true, true) => "failed",
    };
    let result = json!({
        "requestId": value(request),
        "status": word,
        "hasPendingMessage": status.pending > 0,
        "hasInputRequest": status.awaits_input,
    });
    response::result(id, &result)
}

/// Writes the response to `stream/poll` (#899).
pub fn stream_status(id: &RequestId, stream: &str, status: Status) -> Vec<u8> {
    let result = json!({
        "streamId": stream,
        "status": if status.is_completed { "completed" } else { "live" },
        "pendingMessages": status.pending > 0,
        "hasRequest": status.has_request,
        "hasError": status.has_error,
    });
    response::result(id, &result)
}

/// Writes the response to `stream/resume`, which follows the resumed messages (#899).
pub fn resumed(id: &RequestId) -> Vec<u8> {
    response::empty(id)
}

fn put(object: &mut Value, name: &str, number: Option<u64>) {
    if let Some(number) = number {
        object[name] = number.into();
    }
}

fn notification(method: &str, params: Value) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string().into_bytes()
}

/// Returns an id as a value. A number that the JSON library cannot represent exactly becomes text.
fn value(id: &RequestId) -> Value {
    serde_json::from_str(&id.to_json()).unwrap_or_else(|_| Value::from(id.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: fn() -> RequestId = || RequestId::Number("7".into());

    #[test]
    fn declared_dialects_are_parsed_and_removed() {
        let body =
            br#"{"id":1,"params":{"capabilities":{"sampling":{},"streams":{"a":1}, "resumableRequests":{}},"x":"y"}}"#;
        let declared = Declared::of_initialize(body);
        assert_eq!(declared, Declared { resumable_requests: true, resumable_streams: true });
        let streams = Declared { resumable_requests: false, ..declared };
        assert_eq!(
            streams.remove_from(body).unwrap(),
            br#"{"id":1,"params":{"capabilities":{"sampling":{},"resumableRequests":{}},"x":"y"}}"#
        );
        assert_eq!(
            declared.remove_from(body).unwrap(),
            br#"{"id":1,"params":{"capabilities":{"sampling":{}},"x":"y"}}"#
        );
        let none = br#"{"id":1,"params":{"capabilities":{"streams":null}}}"#;
        assert_eq!(Declared::of_initialize(none), Declared::default());
        assert_eq!(declared.remove_from(br#"{"params":{"capabilities":[]}}"#), None);
    }

    #[test]
    fn only_methods_of_enabled_dialects_are_handled() {
        let both = Declared { resumable_requests: true, resumable_streams: true };
        let requests = Declared { resumable_streams: false, ..both };
        assert_eq!(Method::parse("stream/poll", both), Some(Method::PollStream));
        assert_eq!(Method::parse("stream/poll", requests), None);
        assert_eq!(Method::parse("requests/resume", requests), Some(Method::ResumeRequest));
        assert_eq!(Method::parse("requests/resume/all", both), None);
    }

    #[test]
    fn params_of_another_type_are_none() {
        let params = Params::of(br#"{"params":{"resumeToken":"a\u0062","requestId":1.0,"streamId":3}}"#);
        let request_id = Some(RequestId::Number("1.0".into()));
        assert_eq!(params, Params { resume_token: Some("ab".into()), request_id, stream_id: None });
        assert_eq!(Params::of(b"[]"), Params::default());
    }

    #[test]
    fn waits_are_whole_seconds_and_never_zero() {
        let waits = |min, max: Option<u64>| Waits::new(Duration::from_millis(min), max.map(Duration::from_millis));
        assert_eq!(waits(0, None), Waits { min: None, max: None });
        assert_eq!(waits(500, Some(500)), Waits { min: Some(1), max: Some(1) });
        assert_eq!(waits(2000, Some(600_000)), Waits { min: Some(2), max: Some(600) });
    }

    #[test]
    fn announcements_have_the_documented_members() {
        let waits = Waits { min: Some(1), max: Some(600) };
        let policy: Value = serde_json::from_slice(&resume_policy(&ID(), "t", waits)).unwrap();
        assert_eq!(
            policy,
            json!({ "jsonrpc": "2.0", "method": "notifications/requests/resumePolicy",
                    "params": { "requestId": 7, "resumeToken": "t", "minWait": 1, "maxWait": 600 } })
        );
        let never = Waits { min: None, max: None };
        let create: Value = serde_json::from_slice(&stream_create("s", "t", None, never)).unwrap();
        assert_eq!(create["params"], json!({ "streamId": "s", "resumeToken": "t", "resumeInterval": {} }));
    }

    #[test]
    fn a_status_has_the_outcome_and_the_pending_messages() {
        let running = Status {
            is_completed: false,
            has_failed: true,
            pending: 1,
            awaits_input: true,
            has_request: false,
            has_error: false,
        };
        let text = |status| String::from_utf8(request_status(&ID(), &RequestId::String("a".into()), status)).unwrap();
        assert!(text(running).contains(r#""status":"processing""#), "an error of one request of many");
        assert!(text(Status { is_completed: true, ..running }).contains(r#""status":"failed""#));
        let done = Status { is_completed: true, has_failed: false, pending: 0, ..running };
        let done: Value = serde_json::from_str(&text(done)).unwrap();
        assert_eq!(
            done["result"],
            json!({ "requestId": "a", "status": "completed", "hasPendingMessage": false, "hasInputRequest": true })
        );
    }
}
