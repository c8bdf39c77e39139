//! Redirects of the server: those that are followed, and those that would lead a client away.
//!
//! A client that follows a redirect to another origin goes around the proxy, often with its token.
//! Servers behind a proxy that ends TLS send one for a slash at the end of the path, with a scheme
//! of their own. That one is followed here, on the connections of the configured server. Any other
//! redirect of a call to another origin becomes an error that names the origin. Absent: the choice
//! between these ([`super::address`]).

use std::time::Duration;

use http::header::ACCEPT;
use http::{Method, Response, StatusCode};
use serde_json::json;
use tracing::warn;

use super::log_pause::LogPause;
use super::request::Template;
use super::response_body::ResponseBody;
use crate::channel;
use crate::protocol::error::{Details, ErrorCode, Failure, Subject};
use crate::protocol::jsonrpc::{self, Message};

/// Pause between two lines of the log about redirects to another origin. Each call may meet one.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Media type in `Accept` that distinguishes a call from the request of a browser.
const SSE: &[u8] = b"text/event-stream";

/// Meaning of a response, as far as it is a redirect.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The response passes.
    None,
    /// The request is sent again, to this path and query of the server.
    To(String),
    /// The response would lead a call to this origin.
    Away(String),
}

/// Returns true for a call. The redirect of any other request, such as a browser's, passes.
pub(super) fn is_call(template: &Template) -> bool {
    let names_sse = |accept: &[u8]| accept.windows(SSE.len()).any(|part| part == SSE);
    *template.method() == Method::POST || template.lines().get(&ACCEPT).is_some_and(names_sse)
}

/// Returns true if two paths differ by slashes at their ends alone.
pub(super) fn differs_by_slash(path: &str, other: &str) -> bool {
    path != other && path.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Returns the error in place of a redirect of `template` to another origin.
pub(super) fn refuse(template: &Template, origin: &str) -> Response<ResponseBody> {
    static LOG: LogPause = LogPause::new(LOG_PAUSE);
    if LOG.may_log() {
        warn!(origin, "the server redirects calls to another origin: give its URL as upstream.url");
    }
    let body = jsonrpc::peek_any(template.body()).ok();
    let messages = body.as_ref().map(jsonrpc::Body::messages).unwrap_or_default();
    let ids = messages.iter().filter_map(|message| match message {
        Message::Request { id, .. } => Some(id),
        Message::Notification { .. } | Message::Response { .. } => None,
    });
    let (failure, subject) = (Failure::before_run(ErrorCode::UpstreamRedirect), Subject::of(messages));
    let message = |id| {
        let details = Details { text: "", members: vec![("origin", json!(origin))] };
        failure.to_message_with(id, subject, details)
    };
    let errors: Vec<Vec<u8>> = ids.map(|id| message(Some(id))).collect();
    let body = match (&errors[..], &body) {
        ([], _) => message(None),
        (errors, Some(jsonrpc::Body::Batch(_))) => [b"[".as_slice(), &errors.join(&b","[..]), b"]"].concat(),
        ([error, ..], _) => error.clone(),
    };
    channel::json(StatusCode::BAD_GATEWAY, body).map(ResponseBody::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_differ_by_a_slash_at_the_end_alone() {
        for (path, other, expected) in [
            ("/mcp", "/mcp/", true),
            ("/mcp/", "/mcp", true),
            ("/a/mcp", "/a/mcp/", true),
            ("/mcp", "/mcp", false),
            ("/mcp", "/mcp/a", false),
            ("/mcp", "/other/", false),
            ("/mcp", "//mcp", false),
        ] {
            assert_eq!(differs_by_slash(path, other), expected, "{path} {other}");
        }
    }
}
