//! The replica that owns a request, as the request itself names it.
//!
//! A stream belongs to the replica that created it, and a session to the one whose server opened
//! it; clients send both back. Nothing here is verified: a request goes to the replica that it
//! names, and that one decides about access. Absent: the list of replicas, and requests whose owner
//! is gone.

use http::{HeaderMap, Uri};

use super::dialect::Params;
use super::dialect::resume_tokens::TokenField;
use super::headers::{SessionId, names};
use super::ids::{EventId, Owner, ParkedCall, ResumeToken};
use super::jsonrpc;
use super::stream_url;
use super::tasks;

/// Path of a sidecar's identity, for balancers.
pub const WELL_KNOWN: &str = "/.well-known/mcp-resume";
/// Separator between the owner of a session and the session id of its server.
const WRAPPED: char = '~';
/// Name of every member with a resume token. A body without it need not be parsed.
const TOKEN: &[u8] = b"resumeToken";
/// Name of the member with the ID of a task.
const TASK_ID: &[u8] = b"taskId";
/// Name of the member with the state of a call that waits for client responses.
const REQUEST_STATE: &str = "requestState";
/// Begin of the methods that concern tasks.
const TASKS: &[u8] = b"tasks/";

/// Returns the replica that a request names. The first of these counts: its `Last-Event-ID`, its
/// stream URL, the name of a task, a resume token or a task in `body`, its session. An incomplete
/// `body` names no replica.
pub fn named(headers: &HeaderMap, target: &Uri, body: &[u8]) -> Option<Owner> {
    of_head(headers, target).or_else(|| of_body(body)).or_else(|| of_session(headers))
}

/// Returns the replica that `Last-Event-ID` names, else the stream URL, else the task in
/// `Mcp-Name`.
pub fn of_head(headers: &HeaderMap, target: &Uri) -> Option<Owner> {
    let last_event_id = headers.get(names::LAST_EVENT_ID).and_then(|id| EventId::parse(id.as_bytes()));
    let by_id = last_event_id.or_else(|| stream_url::named(target)).and_then(|id| id.unverified_owner());
    by_id.or_else(|| of_task_name(headers))
}

/// Returns the replica of the task in `Mcp-Name`, which names a tool in other requests.
fn of_task_name(headers: &HeaderMap) -> Option<Owner> {
    let method = headers.get(names::MCP_METHOD)?.as_bytes();
    if !method.starts_with(TASKS) {
        return None;
    }
    tasks::owner_of(headers.get(names::MCP_NAME)?.to_str().ok()?)
}

/// Returns the replica that the first resume token in a POST's body names, else the replica of its
/// task.
pub fn of_body(body: &[u8]) -> Option<Owner> {
    of_token(body).or_else(|| of_task(body))
}

/// Returns the replica whose call waits for the responses in a POST's body. The state may also be a
/// server's own that looks like it.
pub fn of_parked_call(body: &[u8]) -> Option<Owner> {
    memchr::memmem::find(body, REQUEST_STATE.as_bytes())?;
    let state = jsonrpc::string_member(body, &["params", REQUEST_STATE])?;
    Some(ParkedCall::parse(&state)?.owner)
}

fn of_task(body: &[u8]) -> Option<Owner> {
    memchr::memmem::find(body, TASK_ID)?;
    let method = jsonrpc::string_member(body, &["method"])?;
    let task = if method.as_bytes().starts_with(TASKS) { tasks::task_id_of(body) } else { None };
    tasks::owner_of(&task?)
}

fn of_token(body: &[u8]) -> Option<Owner> {
    memchr::memmem::find(body, TOKEN)?;
    jsonrpc::find_message(body, |message| {
        let message = message.as_bytes();
        let in_call = || match TokenField::of(message, "tools/call") {
            TokenField::Token(token) => token,
            TokenField::Null | TokenField::Absent => None,
        };
        let token = Params::of(message).resume_token.or_else(in_call)?;
        ResumeToken::parse(&token)?.handle().unverified_owner()
    })
}

/// Returns the replica at the beginning of the session id in `headers`, if replicas wrap session
/// ids.
pub fn of_session(headers: &HeaderMap) -> Option<Owner> {
    of_name(&SessionId::from_headers(headers)?)
}

/// Returns the replica at the beginning of a session id.
pub fn of_name(session: &SessionId) -> Option<Owner> {
    split(session).map(|(owner, _)| owner)
}

/// Returns the session id that clients see: its owner and the server's session id. Returns `None`
/// if it would be too long for a header.
pub fn wrap(owner: Owner, session: &SessionId) -> Option<SessionId> {
    SessionId::parse(&format!("{owner}{WRAPPED}{}", session.as_str()))
}

/// Returns the owner in a session id and the server's session id, or `None` if there is no owner in
/// it.
pub fn unwrap(session: &SessionId) -> Option<(Owner, SessionId)> {
    let (owner, name) = split(session)?;
    Some((owner, SessionId::parse(name)?))
}

/// Returns the server's session id in `name`, or `None` if `name` does not begin with `owner`.
pub fn strip(owner: Owner, name: &str) -> Option<&str> {
    let (prefix, name) = name.split_once(WRAPPED)?;
    if Owner::parse(prefix) == Some(owner) && !name.is_empty() { Some(name) } else { None }
}

/// Splits a session id into owner and server's session id. An id with an owner alone is not
/// wrapped.
fn split(session: &SessionId) -> Option<(Owner, &str)> {
    let (owner, name) = session.as_str().split_once(WRAPPED)?;
    if name.is_empty() { None } else { Some((Owner::parse(owner)?, name)) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::ids::{Handle, Keyring, Secret, StoreEpoch, StreamId, StreamKind};

    fn handle(owner: u32) -> Handle {
        let keys = Keyring::new([3; 32], Vec::new());
        let stream = StreamId::from_bytes([5; 12]);
        Handle::mint(&keys, StreamKind::Request, Owner(owner), StoreEpoch(9), stream, [].iter(), false)
    }

    fn token(owner: u32) -> String {
        ResumeToken::write(&handle(owner), &Secret::from_bytes([1; 16]))
    }

    fn headers(of: &[(&'static str, String)]) -> HeaderMap {
        of.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn the_first_name_of_an_owner_counts() {
        let id = ("last-event-id", format!("{}.7", handle(1).as_str()));
        let url = format!("/mcp?a=b&mcp-stream={}", handle(2).as_str());
        let body = format!(r#"{{"id":1,"method":"requests/resume","params":{{"resumeToken":"{}"}}}}"#, token(3));
        let session = ("mcp-session-id", "00000004~s".to_owned());
        let foreign = ("last-event-id", "17".to_owned());
        let (all, none) = (vec![id, session.clone()], Vec::new());
        for (expected, headers_of, target, body) in [
            (Some(1), all, url.as_str(), body.as_str()),
            (Some(2), vec![session.clone()], &url, &body),
            (Some(2), vec![foreign.clone()], &url, ""),
            (Some(3), vec![foreign.clone(), session.clone()], "/mcp", &body),
            (Some(4), vec![foreign.clone(), session], "/mcp", "{}"),
            (None, vec![foreign], "/mcp", "{}"),
            (None, none, "/mcp", ""),
        ] {
            let target: Uri = target.parse().unwrap();
            assert_eq!(
                named(&headers(&headers_of), &target, body.as_bytes()),
                expected.map(Owner),
                "{headers_of:?} {target}"
            );
        }
    }

    #[test]
    fn a_task_is_named_by_its_header_else_by_the_body_of_its_request() {
        let task = format!("{}{}", tasks::ID_PREFIX, handle(7).as_str());
        let method = |method: &str| ("mcp-method", method.to_owned());
        let name = ("mcp-name", task.clone());
        let body =
            |method: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"taskId":"{task}"}}}}"#);
        let target: Uri = "/mcp".parse().unwrap();
        for (expected, headers_of, body) in [
            (Some(7), vec![method("tasks/get"), name.clone()], String::new()),
            (Some(7), vec![method("tasks/cancel")], body("tasks/cancel")),
            (Some(7), vec![], body("tasks/update")),
            (None, vec![method("tools/call"), name.clone()], String::new()),
            (None, vec![name], String::new()),
            (None, vec![], body("tools/call")),
            (None, vec![], body("tasks/get").replace("taskId", "task")),
        ] {
            let named = named(&headers(&headers_of), &target, body.as_bytes());
            assert_eq!(named, expected.map(Owner), "{headers_of:?} {body}");
        }
    }

    #[test]
    fn a_call_that_waits_is_named_by_the_state_in_its_parameters() {
        let state = ParkedCall::from_bytes(Owner(8), [7; 16]).to_string();
        let body = |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let named = |params: &str| of_parked_call(body(params).as_bytes());
        assert_eq!(named(&format!(r#"{{"name":"a","requestState":"{state}"}}"#)), Some(Owner(8)));
        for params in [
            format!(r#"{{"arguments":{{"requestState":"{state}"}}}}"#),
            format!(r#"{{"requestState":"{}"}}"#, &state[9..]),
            r#"{"requestState":7}"#.to_owned(),
            r#"{"requestState":"a server's own~state"}"#.to_owned(),
        ] {
            assert_eq!(named(&params), None, "{params}");
        }
    }

    #[test]
    fn a_token_is_found_at_the_place_of_each_dialect() {
        let token = token(0xfe);
        let call = |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let other = call(r#"{"name":"a"}"#);
        let arguments = call(&format!(r#"{{"name":"a","arguments":{{"resumeToken":"{token}"}}}}"#));
        let params = call(&format!(r#"{{"resumeToken":"{token}"}}"#));
        for body in [arguments.clone(), params, format!("[{other},{arguments}]")] {
            assert_eq!(of_body(body.as_bytes()), Some(Owner(0xfe)), "{body}");
            // An incomplete body names none.
            for end in 0..body.len() {
                assert_eq!(of_body(&body.as_bytes()[..end]), None);
            }
        }
        let wrong =
            [r#"{"resumeToken":3}"#, r#"{"resumeToken":"x~y"}"#, r#"{"resumeToken":null}"#, r#"["resumeToken"]"#];
        for params in wrong {
            assert_eq!(of_body(call(params).as_bytes()), None, "{params}");
        }
    }

    #[test]
    fn a_wrapped_session_is_unwrapped_and_nothing_else_is() {
        let session = SessionId::parse("a~b").unwrap();
        let wrapped = wrap(Owner(0xbad_cafe), &session).unwrap();
        assert_eq!(wrapped.as_str(), "0badcafe~a~b");
        assert_eq!(unwrap(&wrapped), Some((Owner(0xbad_cafe), session)));
        for name in ["a~b", "0badcafe", "0BADCAFE~s", "+badcafe~s", "0badcafe~", "00badcafe~s", "mr1.AAAA"] {
            assert_eq!(SessionId::parse(name).as_ref().and_then(unwrap), None, "{name}");
        }
    }
}
