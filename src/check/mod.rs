//! `mcp-resume check`: a summary of the configuration, and a report on the server behind it.
//!
//! A probe ([`probe`]) sends harmless requests, observes each response, and draws [`Facts`] from
//! the observations; it evaluates nothing. [`Verdict`] and [`Report`] are functions of the facts
//! and the configuration, so a table test covers the sentences of the report. [`summary`] describes
//! the configuration.
//!
//! Invariants: every wait and every size is bounded, so a probe ends against any server. It sends
//! nothing but `initialize`, `ping`, responses to pings, `tools/list`, `server/discover`, GETs, TLS
//! handshakes and the tool that the user named. Opened sessions are ended if the user says so or
//! the server is on stdio or HTTP+SSE, and else left to expire: a server with one session for its
//! whole process opens none after that. The facts hold no credential, session ID or query, and no
//! control character of the server's reaches a terminal.
//!
//! Deliberately absent: a proxy. The probe talks to the server as `serve` would, through
//! [`crate::upstream`], but the report promises the proxy's behaviour and does not try it.

mod advice;
mod document;
mod eras;
mod event_stream;
mod exchange;
mod facts;
mod findings;
mod oauth;
mod probe;
mod program;
mod reach;
mod report;
mod requests;
mod resource_probe;
mod state;
mod stdio_hosts;
pub mod summary;
mod verdict;
mod watch;

pub use document::Document;
pub use facts::*;
pub use report::Report;
pub use verdict::Verdict;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::channel::{Channels, Variables};
use crate::config::{ClientVariable, Config};

/// Gathers the facts about the upstream of `config`. Takes some seconds if the server never
/// responds, and three runs of the tool at most; a server on stdio takes its time to start, once
/// for each revision.
pub async fn probe(config: &Config, options: &Options) -> Facts {
    match (&options.channels, &config.upstream.sse) {
        (Some(channels), Some(server)) => Box::pin(event_stream::probe(config, options, channels, server)).await,
        (Some(channels), None) => Box::pin(program::probe(config, options, channels)).await,
        (None, _) => Box::pin(probe::probe(config, options)).await,
    }
}

/// Returns true if the server at the configured URL is on HTTP+SSE alone, so that it can be probed
/// as such.
pub fn is_http_sse_alone(facts: &Facts, config: &Config) -> bool {
    let is_here = facts.http_sse.iter().any(|path| path == config.upstream.url.endpoint_path());
    is_here && Verdict::of(facts) == Verdict::HttpSseOnly
}

/// Options of a probe beside the configuration.
#[derive(Clone, Default)]
pub struct Options {
    /// Channels to a server on stdio or HTTP+SSE, in place of the configured URL. The probe ends
    /// them.
    pub channels: Option<Arc<Channels>>,
    /// Sent with every request; values are marked sensitive.
    pub headers: HeaderMap,
    /// A tool that is safe to run and takes a while: it is run up to three times, and cut off.
    pub tool: Option<Tool>,
    /// True if the sessions that the probe opens are ended with DELETE.
    pub end_sessions: bool,
    /// Timeouts of the probe.
    pub timeouts: Timeouts,
    /// Called with a description of each step.
    pub progress: Option<fn(&str)>,
}

impl Options {
    fn report_progress(&self, step: &str) {
        if let Some(progress) = self.progress {
            progress(step);
        }
    }
}

/// The tool that the user allows the probe to run.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// Arguments of the tool.
    pub arguments: Map<String, Value>,
}

/// Timeouts of the probe.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the whole response to one request.
    pub response: Duration,
    /// For the head of a stream without events yet.
    pub stream: Duration,
    /// For one run of the tool.
    pub tool: Duration,
    /// Time beyond a call's duration before a call that was cut is resumed.
    pub margin: Duration,
    /// Duration of the watch of a session; zero for none.
    pub watch: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let [response, stream, tool, margin, watch] = [5, 2, 120, 1, 5].map(Duration::from_secs);
        Self { response, stream, tool, margin, watch }
    }
}

/// Headers that the probe sets itself. The user may not give them.
const OWN_HEADERS: [&str; 13] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// Parses headers of a command line, `Name: value`.
///
/// # Errors
/// One line about the first invalid header. It quotes no value.
pub fn parse_headers(lines: &[String]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("must be 'Name: value'")?;
        let name: HeaderName = name.trim().parse().map_err(|_| "must be 'Name: value'; this name is none")?;
        if OWN_HEADERS.contains(&name.as_str()) {
            return Err(format!("{name} is not to be given; the check sets it itself"));
        }
        let value = HeaderValue::from_str(value.trim());
        let mut value = value.map_err(|_| format!("the value of {name} cannot be sent"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// Checks that headers become variables of a program, which gets no others.
///
/// # Errors
/// One line about the first header that does not. It quotes no value.
pub fn check_program_headers(headers: &HeaderMap, variables: &[ClientVariable]) -> Result<(), String> {
    if let Some(name) = headers.keys().find(|name| !variables.iter().any(|variable| variable.header == **name)) {
        return Err(format!("{name} does not reach a program: name it in upstream.env_from_headers"));
    }
    Variables::of(variables, headers).map(drop).map_err(|unusable| unusable.to_string())
}

/// Parses a tool's arguments of a command line.
///
/// # Errors
/// One line, if they are no JSON object. It quotes nothing.
pub fn parse_arguments(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|_| "must be a JSON object, such as '{\"seconds\": 5}'".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(line: &str) -> Result<HeaderMap, String> {
        parse_headers(&[line.to_owned()])
    }

    #[test]
    fn a_header_is_a_name_and_a_value() {
        let headers = headers("Authorization:  Bearer a:b ").unwrap();
        assert_eq!(headers["authorization"], "Bearer a:b");
        assert!(!format!("{headers:?}").contains("Bearer"));
    }

    #[test]
    fn the_error_of_an_invalid_header_hides_its_value() {
        for line in ["hunter2", ": hunter2", "a b: hunter2", "Host: hunter2", "X-Key: hunter2\u{7f}"] {
            let error = headers(line).unwrap_err();
            assert!(!error.contains("hunter2"), "{line}: {error}");
        }
    }

    #[test]
    fn a_program_gets_the_headers_that_become_variables() {
        let variables = [ClientVariable { variable: "TOKEN".to_owned(), header: HeaderName::from_static("x-token") }];
        let check = |line: &str| check_program_headers(&headers(line).unwrap(), &variables);
        assert_eq!(check("X-Token: hunter2"), Ok(()));
        assert_eq!(check_program_headers(&HeaderMap::new(), &[]), Ok(()));
        for line in ["Authorization: hunter2", "X-Token: () { hunter2; }"] {
            let error = check(line).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn arguments_are_a_json_object() {
        assert_eq!(parse_arguments(r#"{"n": 1}"#).unwrap()["n"], 1);
        for text in ["", "[]", "1", "{"] {
            assert!(parse_arguments(text).is_err(), "{text}");
        }
    }
}
