//! The wire forms of the resumption proposals whose messages are JSON-RPC: [SEP-975], resumable requests, and [#899], resumable
//! streams; those of resume tokens in a module of their own.
//!
//! Owned here: the names, what is read of a request, what is written. Absent: which stream is meant and what it holds (the event
//! log), and the proposals that speak by headers and URLs.
//!
//! [SEP-975]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/925
//! [#899]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/899

pub mod resume_tokens;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::jsonrpc::{self, RequestId};

/// What a client declares in `initialize` to get resume policies.
const RESUMABLE_REQUESTS: &str = "resumableRequests";
/// What a client declares in `initialize` to get streams.
const RESUMABLE_STREAMS: &str = "streams";

/// The dialects a client has declared, or a proxy speaks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Declared {
    /// SEP-975.
    pub resumable_requests: bool,
    /// #899.
    pub resumable_streams: bool,
}

impl Declared {
    /// All of them.
    pub const ALL: Self = Self { resumable_requests: true, resumable_streams: true };

    /// What an `initialize` declares.
    pub fn of_initialize(body: &[u8]) -> Self {
        let has = |path| jsonrpc::member(body, path).is_some_and(|value| !matches!(value, "null" | "false"));
        Self {
            resumable_requests: has(&["params", "capabilities", RESUMABLE_REQUESTS]),
            resumable_streams: has(&["params", "capabilities", RESUMABLE_STREAMS]),
        }
    }

    /// An `initialize` without what it declares of these: the client shall see one policy, and that is the proxy's. `None` where
    /// there is nothing to take out; every other byte stays.
    pub fn taken_out_of(self, body: &[u8]) -> Option<Vec<u8>> {
        let names: Vec<&str> =
            [(self.resumable_requests, RESUMABLE_REQUESTS), (self.resumable_streams, RESUMABLE_STREAMS)]
                .into_iter()
                .filter_map(|(is_ours, name)| is_ours.then_some(name))
                .collect();
        jsonrpc::without_members(body, &["params", "capabilities"], &names)
    }

    /// Those of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            resumable_requests: self.resumable_requests && other.resumable_requests,
            resumable_streams: self.resumable_streams && other.resumable_streams,
        }
    }

    /// Whether there is any.
    pub fn is_any(self) -> bool {
        self.resumable_requests || self.resumable_streams
    }
}

/// A request that the proxy answers itself.
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
    /// The method of that name, if it belongs to a dialect of `spoken`.
    pub fn parse(name: &str, spoken: Declared) -> Option<Self> {
        match name {
            "requests/resume" => Some(Self::ResumeRequest).filter(|_| spoken.resumable_requests),
            "requests/getStatus" => Some(Self::GetRequestStatus).filter(|_| spoken.resumable_requests),
            "stream/resume" => Some(Self::ResumeStream).filter(|_| spoken.resumable_streams),
            "stream/poll" => Some(Self::PollStream).filter(|_| spoken.resumable_streams),
            _ => None,
        }
    }
}

/// What such a request names; what it lacks or has in another type is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Params {
    /// The token that the proxy gave.
    pub resume_token: Option<String>,
    /// The request whose status is wanted.
    pub request_id: Option<RequestId>,
    /// The stream.
    pub stream_id: Option<String>,
}

impl Params {
    /// Of this request.
    pub fn of(body: &[u8]) -> Self {
        let text = |path| jsonrpc::member(body, path).and_then(|value| serde_json::from_str(value).ok());
        Self {
            resume_token: text(&["params", "resumeToken"]),
            request_id: jsonrpc::member(body, &["params", "requestId"]).and_then(RequestId::from_json),
            stream_id: text(&["params", "streamId"]),
        }
    }
}

/// How long a client may wait before it comes back, in whole seconds; what is `None` is not said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// At least.
    pub min: Option<u64>,
    /// At most.
    pub max: Option<u64>,
}

impl Waits {
    /// `min` of zero and `max` of never are not said. Less than a second is a second: zero would mean something else.
    pub fn new(min: Duration, max: Option<Duration>) -> Self {
        let secs = |wait: Duration| wait.as_secs().max(1);
        Self { min: Some(min).filter(|min| !min.is_zero()).map(secs), max: max.map(secs) }
    }
}

/// Where a stream stands, for one who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// No response is owed any more.
    pub is_completed: bool,
    /// A response was a JSON-RPC error.
    pub has_failed: bool,
    /// Messages that were not confirmed; announcements of the dialects' own are none.
    pub pending: u64,
    /// A request of the server's waits for its answer.
    pub awaits_input: bool,
    /// One of those was not confirmed either.
    pub has_request: bool,
    /// The error was not confirmed.
    pub has_error: bool,
}

/// SEP-975: how `request` may be resumed.
pub fn resume_policy(request: &RequestId, token: &str, waits: Waits) -> Vec<u8> {
    let mut params = json!({ "requestId": value(request), "resumeToken": token });
    put(&mut params, "minWait", waits.min);
    put(&mut params, "maxWait", waits.max);
    notification("notifications/requests/resumePolicy", params)
}

/// #899: how the stream that answers `request` (`None`: that answers none) may be resumed.
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

/// #899: nothing more comes on the stream.
pub fn stream_end(stream: &str) -> Vec<u8> {
    notification("notifications/stream/end", json!({ "streamId": stream }))
}

/// SEP-975: the answer to `requests/getStatus` with this id.
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
    response(id, &result)
}

/// #899: the answer to `stream/poll` with this id.
pub fn stream_status(id: &RequestId, stream: &str, status: Status) -> Vec<u8> {
    let result = json!({
        "streamId": stream,
        "status": if status.is_completed { "completed" } else { "live" },
        "pendingMessages": status.pending > 0,
        "hasRequest": status.has_request,
        "hasError": status.has_error,
    });
    response(id, &result)
}

/// #899: the answer to `stream/resume` itself, behind all that was resumed.
pub fn resumed(id: &RequestId) -> Vec<u8> {
    response(id, &json!({}))
}

fn put(object: &mut Value, name: &str, number: Option<u64>) {
    if let Some(number) = number {
        object[name] = number.into();
    }
}

fn notification(method: &str, params: Value) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string().into_bytes()
}

/// The id byte for byte as its client wrote it.
fn response(id: &RequestId, result: &Value) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.to_json()).into_bytes()
}

/// A number too large for JSON in this library would be another one.
fn value(id: &RequestId) -> Value {
    serde_json::from_str(&id.to_json()).unwrap_or_else(|_| Value::from(id.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: fn() -> RequestId = || RequestId::Number("7".into());

    #[test]
    fn what_a_client_declares_is_read_and_taken_out() {
        let body =
            br#"{"id":1,"params":{"capabilities":{"sampling":{},"streams":{"a":1}, "resumableRequests":{}},"x":"y"}}"#;
        let declared = Declared::of_initialize(body);
        assert_eq!(declared, Declared { resumable_requests: true, resumable_streams: true });
        let streams = Declared { resumable_requests: false, ..declared };
        assert_eq!(
            streams.taken_out_of(body).unwrap(),
            br#"{"id":1,"params":{"capabilities":{"sampling":{},"resumableRequests":{}},"x":"y"}}"#
        );
        assert_eq!(
            declared.taken_out_of(body).unwrap(),
            br#"{"id":1,"params":{"capabilities":{"sampling":{}},"x":"y"}}"#
        );
        let none = br#"{"id":1,"params":{"capabilities":{"streams":null}}}"#;
        assert_eq!(Declared::of_initialize(none), Declared::default());
        assert_eq!(declared.taken_out_of(br#"{"params":{"capabilities":[]}}"#), None);
    }

    #[test]
    fn only_methods_of_spoken_dialects_are_ours() {
        let both = Declared { resumable_requests: true, resumable_streams: true };
        let requests = Declared { resumable_streams: false, ..both };
        assert_eq!(Method::parse("stream/poll", both), Some(Method::PollStream));
        assert_eq!(Method::parse("stream/poll", requests), None);
        assert_eq!(Method::parse("requests/resume", requests), Some(Method::ResumeRequest));
        assert_eq!(Method::parse("requests/resume/all", both), None);
    }

    #[test]
    fn params_of_another_type_are_not_there() {
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
    fn announcements_name_what_the_documents_want() {
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
    fn a_status_says_how_it_ended_and_what_is_left() {
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
