//! Refusals of an unknown session, as servers send them after a restart.
//!
//! The protocol specifies the status 404, but many servers use others. A tool can respond with 404
//! as well, even in the words of a refusal. Owned here: the wordings of known servers and of the
//! configuration, and the verdict on a server's response to a probe of the session. Invariant: a
//! response with a result is no refusal. Absent: the probe itself, and the consequence of a
//! refusal.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::jsonrpc::{RequestId, code, error_code};

/// Size limit of a body that can show a refusal, in bytes. The body of a larger one has no words.
pub const BODY_MAX: usize = 4096;

/// Status of a refusal by the specification.
const NOT_FOUND: u16 = 404;
/// Status of servers that refuse a request without a known session as malformed.
const BAD_REQUEST: u16 = 400;
/// ID that Python servers give to an error that concerns no request.
const NO_REQUEST: &str = "server-error";
/// Limits of the words that are proposed for a configuration, in characters.
const WORDING_MIN: usize = 4;
const WORDING_MAX: usize = 60;
/// Beginning of the session names of the proxy's own probes.
const OWN_NAMES: &str = "mcp-resume-";
/// Words that say no more than a status, or that refusals of other things have as well.
const GENERAL_WORDS: [&str; 11] = [
    "bad request",
    "error",
    "forbidden",
    "internal server error",
    "invalid",
    "missing",
    "not found",
    "session",
    "unauthorized",
    "unknown",
    "your session",
];

/// Wordings of a 404, in lower case. The wordings of a 400 count as well.
const NOT_FOUND_WORDINGS: [&str; 11] = [
    "session not found",
    "session has been terminated",
    "session terminated",
    "invalid session id",
    "session is closing",
    "not found or has expired",
    "could not find session",
    "unknown session",
    "no such session",
    "session does not exist",
    "session expired",
];
/// Wordings of a 400, in lower case.
const BAD_REQUEST_WORDINGS: [&str; 4] =
    ["no valid session id", "invalid or missing session id", "server not initialized", "unknown mcp-session-id header"];

/// A further kind of refusal, from the configuration: a status and a wording.
#[derive(Clone, PartialEq, Eq)]
pub struct RefusalPattern {
    status: u16,
    /// In lower case.
    wording: String,
}

/// A text that is no [`RefusalPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a status from 200 to 599, a blank and a wording, as in \"400 session expired\"")]
pub struct InvalidPattern;

impl FromStr for RefusalPattern {
    type Err = InvalidPattern;

    /// Parses a status from 200 to 599, a blank, and the wording that a body of this status holds,
    /// in any case of letters.
    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        let (status, wording) = text.split_once(' ').ok_or(InvalidPattern)?;
        let wording = wording.trim().to_lowercase();
        match status.parse() {
            Ok(status @ 200..=599) if !wording.is_empty() => Ok(Self { status, wording }),
            Ok(_) | Err(_) => Err(InvalidPattern),
        }
    }
}

impl fmt::Debug for RefusalPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.wording)
    }
}

/// Meaning of a response to a request that named a session, as far as the session is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The response refuses no session.
    None,
    /// A 404 in unknown words: a refusal of the session, or the response of a tool that ran.
    Possible(Words),
    /// The response refuses the session in known words, unless a tool has used them.
    Known,
}

/// Unknown words of a refusal, for a comparison with another response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Words {
    /// Text of the body. In a JSON-RPC message the ID is left out.
    Text(String),
    /// The body is larger than [`BODY_MAX`], or could not be read.
    Unread,
}

impl Refusal {
    /// Returns true unless the response certainly refuses no session.
    pub fn is_possible(&self) -> bool {
        *self != Self::None
    }

    /// Returns true for a refusal in known words.
    pub fn is_known(&self) -> bool {
        *self == Self::Known
    }
}

/// Verdict on one response to a probe of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The server has served the probe, or has refused it for another reason than its session.
    Lives,
    /// The server has refused the probe in known words.
    Dead,
    /// The server has refused probe and request alike, in unknown words.
    RefusedAlike,
    /// The response proves nothing: it is an error of the server or of a gateway.
    Undecided,
}

/// All known refusals.
#[derive(Clone, Debug, Default)]
pub struct SessionRefusals {
    configured: Vec<RefusalPattern>,
}

impl SessionRefusals {
    /// Returns the built-in refusals and the configured ones.
    pub fn new(configured: Vec<RefusalPattern>) -> Self {
        Self { configured }
    }

    /// Returns whether a response of this status can be a refusal, so that its body has to be read.
    pub fn may_have(&self, status: u16) -> bool {
        matches!(status, NOT_FOUND | BAD_REQUEST) || self.configured.iter().any(|pattern| pattern.status == status)
    }

    /// Returns whether the response to a request in a session refuses the session. `body` is `None`
    /// if the body is larger than [`BODY_MAX`] or could not be read. `ids` are the ids of the
    /// request; a GET, a DELETE, a notification and a client response have no ids.
    ///
    /// A wording is searched in the body as it was sent, and in its texts without the escapes of
    /// JSON: some servers write every character beyond ASCII, or each slash, with an escape.
    pub fn judge(&self, status: u16, body: Option<&[u8]>, ids: &[RequestId]) -> Refusal {
        if !self.may_have(status) {
            return Refusal::None;
        }
        let Some(body) = body else {
            return if status == NOT_FOUND { Refusal::Possible(Words::Unread) } else { Refusal::None };
        };
        let json = serde_json::from_slice::<Value>(body).ok();
        let texts = [raw_text(body), decoded_text(body, json.as_ref())];
        let holds = |wording: &str| texts.iter().any(|text| text.contains(wording));
        let holds_any = |wordings: &[&str]| wordings.iter().any(|wording| holds(wording));
        let subject = json.as_ref().map_or(Subject::NoRequest, |json| Subject::of(json, ids));
        let is_configured = self.configured.iter().any(|it| it.status == status && holds(&it.wording));
        let may_be_configured = match status {
            // Any other response of such a status may come from a tool that ran.
            200..=299 => is_error_without_id(body),
            _ => subject != Subject::Result,
        };
        let is_known = match (status, subject) {
            _ if is_configured && may_be_configured => true,
            (_, Subject::Result) => false,
            (NOT_FOUND, _) => holds_any(&NOT_FOUND_WORDINGS) || holds_any(&BAD_REQUEST_WORDINGS),
            (BAD_REQUEST, Subject::Error | Subject::NoRequest) => holds_any(&BAD_REQUEST_WORDINGS),
            _ => false,
        };
        match (status, subject) {
            _ if is_known => Refusal::Known,
            (NOT_FOUND, Subject::Error | Subject::NoRequest | Subject::Other) => {
                Refusal::Possible(Words::Text(words(body)))
            }
            _ => Refusal::None,
        }
    }

    /// Returns the verdict on the response to a probe with this ID, in a session with a refused
    /// request. `refused` is the refusal of that request, and `status` its status.
    pub fn verdict(
        &self,
        (status, refused): (u16, &Refusal),
        (response_status, response): (u16, Option<&[u8]>),
        id: &RequestId,
    ) -> Verdict {
        let refusal = self.judge(response_status, response, std::slice::from_ref(id));
        match refusal {
            Refusal::Known => return Verdict::Dead,
            Refusal::Possible(Words::Text(_))
                if (status, refused) == (response_status, &refusal)
                    // A server that does not have the method has looked at more than the session.
                    && response.and_then(error_code) != Some(code::METHOD_NOT_FOUND) =>
            {
                return Verdict::RefusedAlike;
            }
            Refusal::Possible(_) | Refusal::None => {}
        }
        // Another server has replaced the server that opened the session in this revision.
        if response.and_then(error_code) == Some(code::UNSUPPORTED_VERSION) {
            return Verdict::Dead;
        }
        if response_status >= 500 { Verdict::Undecided } else { Verdict::Lives }
    }
}

/// Returns the text of a body, for a comparison. The ID of a JSON-RPC message is left out.
fn words(body: &[u8]) -> String {
    if let Ok(Value::Object(mut message)) = serde_json::from_slice(body)
        && message.contains_key("jsonrpc")
    {
        message.remove("id");
        return Value::Object(message).to_string();
    }
    String::from_utf8_lossy(body).trim().to_owned()
}

/// Returns a body in lower case, as it was sent.
fn raw_text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).to_lowercase()
}

/// Returns the texts of a JSON body in lower case, a line each, without the escapes of JSON.
/// Returns an empty text for a body without escapes: its texts are in it as they are.
fn decoded_text(body: &[u8], json: Option<&Value>) -> String {
    let mut texts = Vec::new();
    if let Some(json) = json.filter(|_| body.contains(&b'\\')) {
        collect_texts(json, &mut texts);
    }
    texts.join("\n").to_lowercase()
}

/// Collects the texts of a JSON value, without the names of members.
fn collect_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(values) => values.iter().for_each(|value| collect_texts(value, texts)),
        Value::Object(members) => members.values().for_each(|value| collect_texts(value, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns words of a refusal for a [`RefusalPattern`], or `None` if the body has no words of its
/// own. They end before a digit, a control character and a markup character of a page, and have no
/// part of the probe's session name: those belong to one session or one request.
pub fn wording(body: &[u8]) -> Option<String> {
    let Ok(json) = serde_json::from_slice::<Value>(body) else {
        return wording_in([&*String::from_utf8_lossy(body)], |c| matches!(c, '<' | '>' | '{' | '}'));
    };
    let paths = ["/error/message", "/message", "/detail", "/error", "/title"];
    let usual = paths.into_iter().find_map(|path| json.pointer(path)?.as_str());
    let mut texts = Vec::new();
    match usual {
        Some(text) => texts.push(text),
        None => collect_texts(&json, &mut texts),
    }
    wording_in(texts, |_| false)
}

fn wording_in<'a>(texts: impl IntoIterator<Item = &'a str>, is_markup: impl Fn(char) -> bool) -> Option<String> {
    let texts: Vec<&str> = texts.into_iter().flat_map(without_own_names).collect();
    let ends = |c: char| c.is_control() || c.is_ascii_digit() || is_invisible(c) || is_markup(c);
    // Quoted words may belong to one session. A single word beside them says too little.
    let unquoted = longest_piece(&texts, |c| ends(c) || matches!(c, '"' | '\\'));
    let unquoted = unquoted.filter(|piece| piece.contains(|c: char| c.is_whitespace() || !c.is_ascii()));
    let longest = unquoted.or_else(|| longest_piece(&texts, ends))?;
    Some(longest.chars().take(WORDING_MAX).collect::<String>().trim_end().to_lowercase())
}

/// Returns the parts of a text between the session names of the proxy's own probes.
fn without_own_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(OWN_NAMES).enumerate().map(|(index, part)| match index {
        0 => part,
        _ => part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-'),
    })
}

/// Returns the longest piece between characters that end one: it says most. General words are none.
fn longest_piece<'a>(texts: &[&'a str], ends: impl Fn(char) -> bool) -> Option<&'a str> {
    let pieces = texts.iter().flat_map(|text| text.split(&ends));
    let pieces = pieces.map(|piece| piece.trim_matches(|c: char| !c.is_alphanumeric()));
    let own = pieces.filter(|piece| piece.len() >= WORDING_MIN && !GENERAL_WORDS.contains(&&*piece.to_lowercase()));
    own.max_by_key(|piece| piece.len())
}

/// Returns true for a character that reorders a line or has no width. It is not shown.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

/// Returns true for a JSON-RPC error that names no request.
pub fn is_error_without_id(body: &[u8]) -> bool {
    let Ok(message) = serde_json::from_slice::<Value>(body) else { return false };
    let has = |member| message.get(member).is_some_and(|value| !value.is_null());
    has("error") && !has("id") && !has("result")
}

/// The request that a body concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// The body has a result of the request.
    Result,
    /// The body has an error of the request.
    Error,
    /// The body names no request.
    NoRequest,
    /// The body names another request, or has neither a result nor an error.
    Other,
}

impl Subject {
    fn of(body: &Value, ids: &[RequestId]) -> Self {
        let messages = match body {
            Value::Array(messages) => messages.as_slice(),
            single => std::slice::from_ref(single),
        };
        let subjects: Vec<_> = messages.iter().map(|message| Self::of_message(message, ids)).collect();
        let all = [Self::Result, Self::Error, Self::Other];
        all.into_iter().find(|subject| subjects.contains(subject)).unwrap_or(Self::NoRequest)
    }

    fn of_message(message: &Value, ids: &[RequestId]) -> Self {
        // Some servers write `null` for the member that they do not mean.
        let has = |member| message.get(member).is_some_and(|value| !value.is_null());
        match message.get("id") {
            None | Some(Value::Null) => Self::NoRequest,
            Some(Value::String(id)) if id == NO_REQUEST => Self::NoRequest,
            Some(id) if !ids.iter().any(|own| is_same(own, id)) => Self::Other,
            Some(_) if has("result") => Self::Result,
            Some(_) if has("error") => Self::Error,
            Some(_) if message.get("result").is_some() => Self::Result,
            Some(_) => Self::Other,
        }
    }
}

/// Compares the IDs of a request and of a response. Some servers write 7 as 7.0 or as "7": that is
/// still the same request.
fn is_same(own: &RequestId, id: &Value) -> bool {
    let (RequestId::Number(own) | RequestId::String(own)) = own;
    let other = match id {
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    let number = |text: &str| text.trim().parse::<f64>().ok();
    **own == *other || number(own).is_some_and(|own| number(&other) == Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(status: u16, body: &str) -> bool {
        let ids = [RequestId::from_json("7").unwrap()];
        SessionRefusals::default().judge(status, Some(body.as_bytes()), &ids).is_known()
    }

    #[test]
    fn refusals_of_servers_are_recognised() {
        let bodies = [
            // TypeScript 1 and 2, supergateway 4, mcp-proxy of npm.
            (404, r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#),
            // Playwright.
            (404, "Session not found"),
            // server-everything.
            (400, r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#),
            // supergateway 3.4.3, examples of TypeScript up to 1.25.
            (
                400,
                r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}"#,
            ),
            (400, "Invalid or missing session ID"),
            // TypeScript 1 with one transport for the process.
            (
                400,
                r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}"#,
            ),
            // mcp 1.30, mcp-proxy of PyPI.
            (404, r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}"#),
            (
                404,
                r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Not Found: Session has been terminated"}}"#,
            ),
            // mcp 2.3, FastMCP 4.1, and the servers of Ruby, PHP and Kotlin.
            (404, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}"#),
            (
                404,
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found or has expired."}}"#,
            ),
            // mcp 1.22.
            (400, "Bad Request: No valid session ID provided"),
            // rmcp, Go, mcp-go.
            (404, "Not Found: Session not found"),
            (404, "session not found"),
            (404, "session is closing"),
            (404, "Invalid session ID"),
            (404, "Session terminated"),
            // C#, with the request's own ID.
            (404, r#"{"error":{"code":-32001,"message":"Session not found"},"id":7,"jsonrpc":"2.0"}"#),
            (404, r#"{"error":{"code":-32001,"message":"Session not found"},"result":null,"id":7,"jsonrpc":"2.0"}"#),
            // Java: JSON that is no JSON-RPC.
            (404, r#"{"jsonRpcError":{"code":-32603,"message":"Session not found: abc"},"stackTrace":[]}"#),
            (400, "Unknown Mcp-Session-Id header"),
            (400, "No valid session ID or not an initialize request"),
            // @mastra/mcp, with the request's own ID.
            (400, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"No valid session ID"}}"#),
        ];
        for (status, body) in bodies {
            assert!(refuses(status, body), "{status} {body}");
        }
    }

    #[test]
    fn other_answers_are_no_refusals() {
        let strangers = [
            (200, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32002,"message":"Server not initialized"}}"#),
            (
                200,
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"missing or invalid Mcp-Session-Id"}}"#,
            ),
            // The error of a tool that ran.
            (200, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"Session not found"}}"#),
            (404, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"Method not found"}}"#),
            (404, r#"{"jsonrpc":"2.0","id":7.0,"error":{"code":-32002,"message":"Resource not found"}}"#),
            (404, r#"{"jsonrpc":"2.0","id":"7","error":{"code":-32002,"message":"Resource not found"}}"#),
            (404, r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"Session not found"}]}}"#),
            (503, r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Too many open sessions"},"id":null}"#),
            (400, r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Too many open sessions"},"id":null}"#),
            (
                400,
                r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request: Server already initialized"},"id":null}"#,
            ),
            (
                400,
                r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Unsupported protocol version"},"id":null}"#,
            ),
            (400, "Mcp-Session-Id header is not supported in stateless mode"),
            (400, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"No such order"}}"#),
            (400, r#"{"jsonrpc":"2.0","id":8,"error":{"code":-32000,"message":"No valid session ID"}}"#),
            (400, "session"),
            (403, "Session not found"),
            (503, "Server is shutting down"),
            (502, "Session not found"),
        ];
        for (status, body) in strangers {
            assert!(!refuses(status, body), "{status} {body}");
        }
    }

    fn read(status: u16, body: &str) -> Refusal {
        SessionRefusals::default().judge(status, Some(body.as_bytes()), &[RequestId::from_json("7").unwrap()])
    }

    #[test]
    fn a_404_in_unknown_words_may_be_a_refusal_unless_it_has_a_result() {
        let unknown = [
            "",
            "{}",
            "[]",
            r#"{"detail":"Not Found"}"#,
            "<html>Cannot GET /mcp</html>",
            r#"{"jsonrpc":"2.0","id":7}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32002,"message":"Resource not found"}}"#,
        ];
        for body in unknown {
            assert!(matches!(read(404, body), Refusal::Possible(Words::Text(_))), "{body}");
            assert_eq!(read(400, body), Refusal::None, "{body}");
        }
        assert_eq!(read(404, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#), Refusal::None);
        let refusals = SessionRefusals::default();
        assert_eq!(refusals.judge(404, None, &[]), Refusal::Possible(Words::Unread));
        assert_eq!(refusals.judge(400, None, &[]), Refusal::None);
    }

    #[test]
    fn a_configured_refusal_counts_under_any_id() {
        let refusals = SessionRefusals::new(vec!["410 Session Expired".parse::<RefusalPattern>().unwrap()]);
        let own = r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"your SESSION expired"}}"#;
        let ids = [RequestId::from_json("7").unwrap()];
        let is_known = |body: Option<&[u8]>| refusals.judge(410, body, &ids).is_known();
        assert!(refusals.may_have(410) && is_known(Some(own.as_bytes())));
        assert!(!is_known(Some(br#"{"id":7,"result":{"text":"session expired"}}"#)), "the tool ran");
        assert!(!is_known(Some(b"gone")) && !is_known(None));
        assert!(!SessionRefusals::default().may_have(410));
    }

    #[test]
    fn a_configured_refusal_of_a_success_names_no_request() {
        let refusals = ["200 no login", "403 no login"].map(|text| text.parse::<RefusalPattern>().unwrap()).to_vec();
        let refusals = SessionRefusals::new(refusals);
        let ids = [RequestId::from_json("7").unwrap()];
        let is_known = |status, body: &str| refusals.judge(status, Some(body.as_bytes()), &ids).is_known();
        assert!(is_known(403, "No login") && !is_known(200, "No login") && !is_known(202, "No login"));
        assert!(is_known(200, r#"{"jsonrpc":"2.0","id":null,"error":{"message":"No login"}}"#));
        assert!(is_known(200, r#"{"jsonrpc":"2.0","error":{"message":"No login"}}"#));
        for body in [
            r#"{"jsonrpc":"2.0","id":7,"error":{"message":"No login"}}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":{"text":"No login"}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":null,"result":{"text":"No login"}}"#,
            r#"[{"jsonrpc":"2.0","id":null,"error":{"message":"No login"}}]"#,
        ] {
            assert!(!is_known(200, body), "{body}");
        }
    }

    #[test]
    fn wordings_are_found_behind_the_escapes_of_json() {
        let built_in = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"\u0053ession not\u0020found"}}"#;
        assert!(refuses(404, built_in));
        let refusals = SessionRefusals::new(vec!["410 sitzung ungültig/fort".parse::<RefusalPattern>().unwrap()]);
        let is_known = |body: &str| refusals.judge(410, Some(body.as_bytes()), &[]).is_known();
        assert!(is_known(r#"{"error":{"message":"Sitzung ung\u00fcltig\/fort"}}"#));
        assert!(is_known(r#"[{"error":{"message":"Sitzung ungültig\/fort"}}]"#));
        assert!(is_known("Sitzung ungültig/fort"));
        // Escapes of a body that is no JSON are its own characters.
        assert!(!is_known(r"Sitzung ung\u00fcltig\/fort"));
        assert!(!is_known(r#"{"error":{"message":"Sitzung ung\u00fcltig"}}"#));
    }

    #[test]
    fn a_pattern_is_a_status_and_a_wording() {
        assert_eq!(format!("{:?}", "400 Session expired".parse::<RefusalPattern>().unwrap()), "400 session expired");
        assert!("200 gone".parse::<RefusalPattern>().is_ok());
        for text in ["", "400", "400 ", "400  ", "100 gone", "600 gone", "gone 400", "-400 gone", "404session"] {
            assert_eq!(text.parse::<RefusalPattern>(), Err(InvalidPattern), "{text:?}");
        }
    }

    #[test]
    fn a_session_is_dead_only_by_a_refusal_of_the_question() {
        let refusals = SessionRefusals::default();
        let probe = RequestId::String("q".into());
        let verdict = |refused: (u16, &str), response: (u16, &str)| {
            let refusal = read(refused.0, refused.1);
            refusals.verdict((refused.0, &refusal), (response.0, Some(response.1.as_bytes())), &probe)
        };
        let known = (404, "Session not found");
        for refused in [known, (404, "no visitor"), (404, "")] {
            assert_eq!(verdict(refused, known), Verdict::Dead);
            assert_eq!(verdict(refused, (400, "No valid session ID")), Verdict::Dead);
            for lives in [
                (200, r#"{"jsonrpc":"2.0","id":"q","result":{}}"#),
                (200, "event: message"),
                (202, ""),
                (400, r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32601,"message":"Method not found"}}"#),
                (404, r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32601,"message":"Method not found"}}"#),
                (404, "another page"),
                (401, ""),
                (405, ""),
                (429, "slower"),
            ] {
                assert_eq!(verdict(refused, lives), Verdict::Lives, "{refused:?} {lives:?}");
            }
            assert_eq!(verdict(refused, (503, "")), Verdict::Undecided);
        }
        assert_eq!(verdict((404, "no visitor"), (404, "no visitor\n")), Verdict::RefusedAlike);
        assert_eq!(verdict((404, ""), (404, "")), Verdict::RefusedAlike);
        let error = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-1,"message":"no visitor"}}}}"#);
        assert_eq!(verdict((404, &error("7")), (404, &error("\"q\""))), Verdict::RefusedAlike);
        let lacks = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"no"}}}}"#);
        assert_eq!(verdict((404, &lacks("7")), (404, &lacks("\"q\""))), Verdict::Lives);
        let unspoken = r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32022,"message":"Unsupported protocol version"}}"#;
        assert_eq!(verdict(known, (400, unspoken)), Verdict::Dead);
        let long = refusals.verdict((404, &Refusal::Possible(Words::Unread)), (404, None), &probe);
        assert_eq!(long, Verdict::Lives, "bodies that were not read are not equal");
    }

    #[test]
    fn the_words_for_a_configuration_are_those_of_the_refusal() {
        let cases = [
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"No login for mcp-resume-check-0af3"}}"#,
                "no login for",
            ),
            (r#"{"detail":"visitor 12 is \"unknown\" here"}"#, r#"is "unknown" here"#),
            (r#"{"error":{"message":"Your \"session\" is \\gone\\"}}"#, r#"your "session" is \gone"#),
            (r#"{"error":{"message":"Sitzung ung\u00fcltig"}}"#, "sitzung ungültig"),
            (r#"{"error":{"message":"Sitzung ungültig"}}"#, "sitzung ungültig"),
            (r#"{"detail":"no place \/a\/b for it"}"#, "no place /a/b for it"),
            (r#"{"error":{"reason":"No visitor","code":7}}"#, "no visitor"),
            (r#"{"detail":"mcp-resume-check-abcdefabcdefabcd no login"}"#, "no login"),
            (r#"{"detail":"会话不存在"}"#, "会话不存在"),
            ("line\u{200b}two is gone", "two is gone"),
            (r#"{"detail":"no visitor \"x\""}"#, "no visitor"),
            ("Visitor gone.\n", "visitor gone"),
            ("<html><title>Gone away</title></html>", "gone away"),
        ];
        for (body, words) in cases {
            assert_eq!(wording(body.as_bytes()).as_deref(), Some(words), "{body}");
            let pattern: RefusalPattern = format!("403 {words}").parse().unwrap();
            assert!(SessionRefusals::new(vec![pattern]).judge(403, Some(body.as_bytes()), &[]).is_known());
        }
        for body in ["", "{}", "404", r#"{"detail":"Not Found"}"#, r#"{"error":"session"}"#, "Bad Request\n"] {
            assert_eq!(wording(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn a_batch_is_judged_by_its_messages() {
        let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"Method not found"}}"#;
        assert!(!refuses(404, &format!("[{error}]")));
        assert!(refuses(404, r#"[{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Unknown session"}}]"#));
        assert_eq!(read(404, &format!(r#"[{error},{{"jsonrpc":"2.0","id":7,"result":{{}}}}]"#)), Refusal::None);
    }
}
