//! Redirects of the server: those that are followed, and those that would lead a client away.
//!
//! A client that follows a redirect to another origin goes around the proxy, often with its token.
//! Servers name themselves by several origins in their redirects: by a scheme of their own, by a
//! name of this machine, or by the public URL. Those are followed here, on the connections of the
//! configured server. Any other redirect of a call to another origin becomes an error that names
//! the origin. Absent: the choice between these ([`super::address`]).

use std::time::Duration;

use http::header::ACCEPT;
use http::{Method, Response, StatusCode};
use serde_json::json;
use tracing::warn;

use super::log_pause::LogPause;
use super::own_error::own_error;
use super::request::Template;
use super::response_body::ResponseBody;
use crate::channel;
use crate::protocol::error::{Details, ErrorCode, Failure};

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
    /// The request is sent again, to this path and query of the server's https form.
    ToHttps(String),
    /// The response would lead a call to another origin.
    Away(Away),
}

/// A redirect of a call to another origin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// Origin of the place.
    pub(super) origin: String,
    /// Status of the redirect.
    pub(super) status: StatusCode,
    /// True for another name of the server, whose own place is meant.
    pub(super) is_own: bool,
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

/// Returns the error in place of a redirect of `template` to another origin. `key` is the setting
/// with the URL of the server.
pub(super) fn refuse(template: &Template, away: &Away, key: &str) -> Response<ResponseBody> {
    let Away { origin, status, is_own } = away;
    let status = status.as_u16();
    static LOG: LogPause = LogPause::new(LOG_PAUSE);
    if LOG.may_log() {
        let remedy = if *is_own {
            "let it trust X-Forwarded-Proto and X-Forwarded-Host of the proxy, or set upstream.host = \"client\""
                .to_owned()
        } else {
            format!("give its URL as {key}")
        };
        warn!(origin, status, "the server redirects calls to another origin: {remedy}");
    }
    let details = || Details { text: "", members: vec![("origin", json!(origin))] };
    let mut response = own_error(template, Failure::before_run(ErrorCode::UpstreamRedirect), details);
    response.extensions_mut().insert(channel::Cause(format!("status {status}, a redirect to {origin}")));
    response
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
