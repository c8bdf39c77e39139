//! Progress of requests: the tokens of clients, the reports of servers, and the proxy's own
//! notifications.
//!
//! Owned here: the tokens of a body, the last progress in a server's message, the value of the next
//! notification, and its bytes. Absent: the time of a notification (`delivery/beats.rs`), and the
//! events that a server sent (`event_log/stream/progress.rs`).

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::jsonrpc::{self, Message, RequestId};

/// Limit for the text of a token, in bytes. A request with a longer one gets no notifications of
/// the proxy's own.
const MAX_TOKEN_BYTES: usize = 64;

/// Step between two notifications of the proxy's own, too small to be seen.
const STEP: f64 = 0.000_001;

/// A
/// [`progressToken`](https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/progress),
/// as the JSON text that its client wrote: a string or a number of at most 64 bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProgressToken(Box<str>);

/// The token of one request of a body.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenOfRequest {
    /// Index of the request in the body.
    pub request: usize,
    /// The token.
    pub token: ProgressToken,
}

impl ProgressToken {
    /// Takes a token that is valid JSON. Returns `None` if it is neither a string nor a number, or
    /// too long.
    pub fn of(json: &str) -> Option<Self> {
        let quotes = match json.as_bytes().first()? {
            b'"' => 2,
            b'-' | b'0'..=b'9' => 0,
            _ => return None,
        };
        if json.len() > MAX_TOKEN_BYTES + quotes { None } else { Some(Self(json.into())) }
    }

    /// Returns the token as JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// Returns true if `json` is the same token, perhaps with other escapes or another form of the
    /// number.
    fn is(&self, json: &str) -> bool {
        if *self.0 == *json {
            return true;
        }
        match (RequestId::from_json(&self.0), RequestId::from_json(json)) {
            (Some(RequestId::String(own)), Some(RequestId::String(other))) => own == other,
            (Some(RequestId::Number(own)), Some(RequestId::Number(other))) => {
                let number = |text: &str| text.parse::<f64>().ok();
                number(&own).is_some_and(|own| number(&other) == Some(own))
            }
            _ => false,
        }
    }

    /// Returns the memory of the token, in bytes.
    pub fn byte_len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the tokens of the requests of a body that [`jsonrpc::peek`] accepts, in their order.
pub fn tokens(body: &[u8]) -> Vec<TokenOfRequest> {
    if body.trim_ascii_start().first() != Some(&b'[') {
        let token = jsonrpc::progress_token(body).and_then(ProgressToken::of);
        return token.into_iter().map(|token| TokenOfRequest { request: 0, token }).collect();
    }
    let mut tokens = Vec::new();
    let mut request = 0;
    let _ = jsonrpc::for_each_message(body, |message| {
        let Ok(jsonrpc::Body::Single(Message::Request { .. })) = jsonrpc::peek(message.as_bytes()) else { return };
        if let Some(token) = jsonrpc::progress_token(message.as_bytes()).and_then(ProgressToken::of) {
            tokens.push(TokenOfRequest { request, token });
        }
        request += 1;
    });
    tokens
}

/// Progress that a server reported.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// The progress so far.
    pub value: f64,
    /// The progress at the end, or `None` if the server does not know it.
    pub total: Option<f64>,
    /// The text for the user, or `None` if absent.
    pub message: Option<String>,
}

/// Returns false if `data` holds no progress. True is no proof: [`for_each_progress`] decides.
pub fn may_have_progress(data: &[u8]) -> bool {
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("notifications/progress"));
    FINDER.find(data).is_some()
}

/// Calls `visit` with each progress in the data of an event, and with the index of its token in
/// `tokens`.
pub fn for_each_progress<'t>(
    data: &[u8],
    tokens: impl Iterator<Item = &'t ProgressToken> + Clone,
    mut visit: impl FnMut(usize, Progress),
) {
    let _ = jsonrpc::for_each_message(data, |message| {
        let Some((token, progress)) = read(message) else { return };
        for (index, _) in tokens.clone().enumerate().filter(|(_, known)| known.is(token)) {
            visit(index, progress.clone());
        }
    });
}

/// Reads a progress notification with a finite value. Clients refuse any other.
fn read(message: &str) -> Option<(&str, Progress)> {
    #[derive(Deserialize)]
    struct Notification<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        progress_token: &'a RawValue,
        #[serde(borrow)]
        progress: &'a RawValue,
        #[serde(borrow)]
        total: Option<&'a RawValue>,
        message: Option<String>,
    }
    // serde_json may be off by the last digit.
    let finite = |raw: &RawValue| raw.get().parse::<f64>().ok().filter(|value| value.is_finite());
    let Notification { method, params } = serde_json::from_str(message).ok()?;
    if method != "notifications/progress" {
        return None;
    }
    let Params { progress_token, progress, total, message } = params;
    Some((progress_token.get(), Progress { value: finite(progress)?, total: total.and_then(finite), message }))
}

/// Returns the text of a progress notification, as in "3 of 10: linking", or `None` if `message` is
/// no progress.
pub fn status_text(message: &[u8]) -> Option<String> {
    let (_, Progress { value, total, message }) = read(std::str::from_utf8(message).ok()?)?;
    let of_total = total.map_or_else(String::new, |total| format!(" of {}", number(total)));
    let text = message.map_or_else(String::new, |message| format!(": {message}"));
    Some(format!("{}{of_total}{text}", number(value)))
}

/// Returns the value of the next notification of the proxy's own. It is 0 for the first. Else it is
/// a step more than the larger of the proxy's and the server's last value. At the largest finite
/// value it stays.
pub fn next_value(own: Option<f64>, server: Option<f64>) -> f64 {
    let last = match (own, server) {
        (None, None) => return 0.0,
        (Some(last), None) | (None, Some(last)) => last,
        (Some(own), Some(server)) => own.max(server),
    };
    let next = last + STEP;
    // Beyond 2^33 a step is less than the distance of two numbers.
    if next > last { next } else { last.next_up().min(f64::MAX) }
}

/// Returns a progress notification of the proxy's own, on one line. `server` is the server's last
/// progress, `state` the text before the time in place of its message, and `running` the time since
/// the call began.
pub fn notification(
    token: &ProgressToken,
    value: f64,
    server: Option<&Progress>,
    (state, running): (&str, Duration),
) -> Vec<u8> {
    let total = server.and_then(|server| server.total).filter(|total| *total >= value);
    let total = total.map_or_else(String::new, |total| format!(r#""total":{},"#, number(total)));
    let message = match server.and_then(|server| server.message.as_deref()) {
        Some(message) => Cow::Borrowed(message),
        None => Cow::Owned(format!("{state}, {} s", running.as_secs())),
    };
    let message = serde_json::Value::from(message);
    let (token, value) = (token.as_json(), number(value));
    let params = format!(r#"{{"progressToken":{token},"progress":{value},{total}"message":{message}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#).into_bytes()
}

/// Returns a finite number as JSON, and an integer as one.
fn number(value: f64) -> String {
    /// Integers up to here are exact.
    const INTEGERS: f64 = 9_007_199_254_740_992.0;
    let magnitude = value.abs();
    if magnitude <= INTEGERS && value.fract() == 0.0 {
        format!("{}", value as i64)
    } else if (STEP..1e21).contains(&magnitude) {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(json: &str) -> ProgressToken {
        ProgressToken::of(json).unwrap()
    }

    fn progress(value: f64, total: Option<f64>, message: Option<&str>) -> Progress {
        Progress { value, total, message: message.map(str::to_owned) }
    }

    #[test]
    fn tokens_are_taken_as_they_were_written() {
        let of = |token: &str| {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","_meta":{{"progressToken":{token}}}}}}}"#
            );
            tokens(body.as_bytes()).first().map(|found| found.token.as_json().to_owned())
        };
        let long = |len: usize| format!("\"{}\"", "t".repeat(len));
        for kept in ["7", "-1", "1e3", "12345678901234567890", r#""a""#, r#""ü\u0041\"""#, &long(64), &"9".repeat(64)]
        {
            assert_eq!(of(kept).as_deref(), Some(kept));
        }
        for none in ["null", "true", "{}", "[1]", &long(65), &"9".repeat(65)] {
            assert_eq!(of(none), None, "{none}");
        }
        let without =
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"arguments":{"_meta":{"progressToken":1}}}}"#;
        assert!(tokens(without.as_bytes()).is_empty());
    }

    #[test]
    fn a_token_of_a_batch_belongs_to_its_request() {
        let request = |id: u32, token: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{{"_meta":{{"progressToken":{token}}}}}}}"#)
        };
        let notification = r#"{"jsonrpc":"2.0","method":"n","params":{"_meta":{"progressToken":9}}}"#;
        let bare = r#"{"jsonrpc":"2.0","id":5,"method":"m"}"#;
        let body = format!("[{},{notification},{bare},{}]", request(1, "\"a\""), request(2, "2"));
        let found: Vec<_> = tokens(body.as_bytes()).into_iter().map(|found| (found.request, found.token.0)).collect();
        assert_eq!(found, [(0, r#""a""#.into()), (2, "2".into())]);
    }

    fn found(data: &str, tokens: &[ProgressToken]) -> Vec<(usize, Progress)> {
        let mut found = Vec::new();
        for_each_progress(data.as_bytes(), tokens.iter(), |index, progress| found.push((index, progress)));
        assert!(found.is_empty() || may_have_progress(data.as_bytes()));
        found
    }

    #[test]
    fn the_progress_of_a_server_is_read() {
        let of = |params: &str| format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
        let tokens = [token("7"), token(r#""a""#)];
        let plain = of(r#"{"progressToken":7,"progress":3}"#);
        let full = of(r#"{"message":"m","total":10,"progress":-0.5,"progressToken":"\u0061","more":[]}"#);
        assert_eq!(found(&plain, &tokens), [(0, progress(3.0, None, None))]);
        assert_eq!(found(&full, &tokens), [(1, progress(-0.5, Some(10.0), Some("m")))]);
        assert_eq!(found(&format!("[{full}, {plain}]"), &tokens).len(), 2);
        assert_eq!(found(&of(r#"{"progressToken":7.0,"progress":1}"#), &tokens).len(), 1, "another form");
        for none in [
            r#"{"progressToken":"7","progress":1}"#,
            r#"{"progressToken":8,"progress":1}"#,
            r#"{"progressToken":7}"#,
            r#"{"progressToken":7,"progress":"1"}"#,
            r#"{"progressToken":7,"progress":1e999}"#,
        ] {
            assert_eq!(found(&of(none), &tokens), [], "{none}");
        }
        let other = plain.replace("notifications/progress", "notifications/message");
        assert_eq!(found(&other, &tokens), []);
        assert!(!may_have_progress(other.as_bytes()));
    }

    #[test]
    fn the_next_value_is_the_next_number_where_a_step_is_too_small() {
        for (own, server, next) in [
            (None, None, "0"),
            (Some(0.0), None, "0.000001"),
            (None, Some(3.0), "3.000001"),
            (Some(0.000_001), Some(0.0), "0.000002"),
            (Some(0.5), Some(7.0), "7.000001"),
            (Some(7.5), Some(7.0), "7.500001"),
            (None, Some(-5.0), "-4.999999"),
            (None, Some(-0.000_001), "0"),
            (None, Some(12_884_901_888.0), "12884901888.000002"),
            (None, Some(9_007_199_254_740_991.0), "9007199254740992"),
            (None, Some(9_007_199_254_740_992.0), "9007199254740994"),
            (None, Some(-9_007_199_254_740_992.0), "-9007199254740991"),
            (None, Some(1e300), "1.0000000000000002e300"),
            (None, Some(-1e300), "-9.999999999999999e299"),
            (None, Some(f64::MAX), "1.7976931348623157e308"),
        ] {
            assert_eq!(number(next_value(own, server)), next, "{own:?} {server:?}");
        }
    }

    #[test]
    fn a_notification_has_the_total_and_the_message_of_the_server() {
        let text = |value, server: Option<Progress>| {
            let of =
                notification(&token("7"), value, server.as_ref(), ("still running", Duration::from_millis(40_900)));
            String::from_utf8(of).unwrap()
        };
        let of = |params: &str| {
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":7,{params}}}}}"#)
        };
        assert_eq!(text(0.0, None), of(r#""progress":0,"message":"still running, 40 s""#));
        assert_eq!(
            text(2.000_001, Some(progress(2.0, Some(10.0), None))),
            of(r#""progress":2.000001,"total":10,"message":"still running, 40 s""#)
        );
        assert_eq!(
            text(2.5, Some(progress(2.0, Some(2.5), Some("a\n\"")))),
            of(r#""progress":2.5,"total":2.5,"message":"a\n\"""#)
        );
        assert_eq!(
            text(2.000_001, Some(progress(2.0, Some(2.0), Some("m")))),
            of(r#""progress":2.000001,"message":"m""#)
        );
    }

    #[test]
    fn the_page_of_added_messages_has_the_bytes() {
        let page = include_str!("../../docs/added-messages.md");
        let server = progress(5.0, Some(10.0), Some("…"));
        for (value, server) in [(0.0, None), (5.000_001, Some(&server))] {
            let line =
                String::from_utf8(notification(&token("7"), value, server, ("still running", Duration::from_secs(20))))
                    .unwrap();
            assert!(page.contains(&format!("\n{}\n", line.replace(":7,", ":…,"))), "{line}");
        }
    }

    proptest! {
        #[test]
        fn every_value_is_json_and_rises(own in prop::option::of(finite()), server in prop::option::of(finite())) {
            let next = next_value(own, server);
            for last in [own, server].into_iter().flatten() {
                prop_assert!(next > last || (last == f64::MAX && next == f64::MAX));
            }
            let text = number(next);
            prop_assert_eq!(text.parse::<f64>().unwrap(), next);
            prop_assert!(serde_json::from_str::<serde_json::Number>(&text).is_ok());
            prop_assert!(next.fract() != 0.0 || next.abs() > 9e15 || !text.contains(['.', 'e']));
        }

        #[test]
        fn arbitrary_messages_never_panic(data in ".{0,200}") {
            found(&data, &[token("1")]);
            tokens(data.as_bytes());
        }
    }

    fn finite() -> impl Strategy<Value = f64> {
        prop_oneof![prop::num::f64::ANY, -1e6..1e6f64, (-1_000i32..1_000).prop_map(f64::from)]
            .prop_filter("finite", |value| value.is_finite())
    }
}
