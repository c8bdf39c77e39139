//! Facts about an upstream, as the probe found them: the input of verdict and report, and the data
//! of `--json`.
//!
//! An observation is what one exchange showed of one response ([`super::exchange`]); the probe
//! draws the facts from several of them. Facts are plain data: no evaluation, no secret, and texts
//! of the server's only after [`printable`].

use std::time::Duration;

use serde::Serialize;

use super::document::Document;

/// Facts that the probe found about an upstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// The endpoint, without its query.
    pub upstream: String,
    /// Outcome of the first requests.
    pub contact: Contact,
    /// Outcome of `initialize` at a server that opened no session by it, and serves 2026-07-28.
    pub unopened: Option<Contact>,
    /// Words of a refusal with 401, 403 or 421, or `None` for any other response.
    pub refusal: Option<RefusalWords>,
    /// The process of a server on stdio, or `None` for a server on HTTP.
    pub program: Option<Program>,
    /// The event stream of a server that was probed on HTTP+SSE, or `None` on another transport.
    pub event_stream: Option<EventStream>,
    /// Name and version of the server.
    pub server: Option<Identity>,
    /// 2025-03-26 to 2025-11-25.
    pub legacy: Option<Legacy>,
    /// 2026-07-28 and later.
    pub modern: Option<Modern>,
    /// Tools, if they could be listed.
    pub tools: Option<Tools>,
    /// Outcome of a resume with the server's own event IDs.
    pub resumption: Resumption,
    /// The session while its client was silent, or `None` if it was not watched.
    pub watch: Option<Watch>,
    /// The tool that the user named, run once to its end.
    pub tool: Option<ToolRun>,
    /// Reaction to a request with a foreign `Host`.
    pub foreign_host: Guard,
    /// Reaction to a request with a foreign `Origin`.
    pub foreign_origin: Guard,
    /// Reaction to a POST without credentials.
    pub anonymous: Guard,
    /// OAuth documents of the origin.
    pub oauth: Vec<Document>,
    /// The server under `listen.public_url`, or `None` without that key.
    pub public: Option<PublicResource>,
    /// True if the server stopped responding, so that some facts are unknown.
    pub fell_silent: bool,
    /// Paths with HTTP+SSE of 2024-11-05.
    pub http_sse: Vec<String>,
    /// True if the upstream is an mcp-resume.
    pub mcp_resume: bool,
    /// Another path with an MCP endpoint, or `None` if the configured path has one or no other was
    /// found.
    pub endpoint_at: Option<String>,
    /// True if the user gave headers.
    pub with_headers: bool,
    /// The tool that the user named, or `None` if the server has it or none was named.
    pub unknown_tool: Option<String>,
}

impl Facts {
    /// Creates the facts before the first request.
    pub fn unknown(upstream: String) -> Self {
        Self { upstream, ..Self::default() }
    }

    /// Records that the server speaks MCP, and how it treated `initialize` if that opened no
    /// session.
    pub(super) fn record_opening(&mut self, has_session: bool) {
        let contact = std::mem::replace(&mut self.contact, Contact::Speaks);
        self.unopened = if has_session { None } else { Some(contact) };
    }

    /// Returns true if the server was probed over channels of the proxy: the proxy then has the
    /// sessions, and responds in events.
    pub fn has_channels(&self) -> bool {
        self.program.is_some() || self.event_stream.is_some()
    }

    /// Returns true if the probe saw a stream of events or the tool's response: evidence of the
    /// resumption of long calls.
    pub fn has_evidence(&self) -> bool {
        let forms =
            [self.legacy.as_ref().map(|legacy| legacy.answers), self.modern.as_ref().map(|modern| modern.answers)];
        let has_run = self.tool.as_ref().is_some_and(|run| run.outcome == ToolOutcome::Result);
        has_run || forms.contains(&Some(Form::EventStream))
    }

    /// Returns true if any response had an event with an id.
    pub fn is_numbered(&self) -> bool {
        let legacy = self.legacy.as_ref().is_some_and(|legacy| legacy.numbered);
        let modern = self.modern.as_ref().is_some_and(|modern| modern.numbered);
        legacy || modern || self.tool.as_ref().is_some_and(|tool| tool.numbered)
    }
}

/// Outcome of the first requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Contact {
    /// No connection.
    Unreachable {
        /// Error of the system.
        why: String,
    },
    /// The program of a server on stdio was not started, or it ended or took too long before its
    /// response to `initialize`.
    NotStarted {
        /// Reason, in words, with the last lines of its stderr.
        why: String,
    },
    /// A server on HTTP+SSE opened no event stream, or took too long for it.
    NoEventStream {
        /// Reason, in words.
        why: String,
    },
    /// A connection, but no TLS that both sides accept.
    Handshake {
        /// Reason, in words.
        why: String,
    },
    /// A connection, but to a peer that speaks the other scheme.
    OtherScheme {
        /// The scheme that is spoken there.
        scheme: &'static str,
    },
    /// A connection, but no response in time.
    #[default]
    Silent,
    /// A connection that broke before a response.
    Broke,
    /// 401 or 403.
    Refused {
        /// Status code.
        status: u16,
        /// The scheme that `WWW-Authenticate` names.
        scheme: Option<String>,
    },
    /// A JSON-RPC error.
    Declined {
        /// HTTP status of its response.
        status: u16,
        /// Error code.
        code: i64,
        /// Error message, or empty.
        message: String,
    },
    /// Any other response that is no MCP.
    NotMcp {
        /// Status code.
        status: u16,
        /// Media type.
        content_type: Option<String>,
        /// Place of a redirect that is not followed: another origin, or a path of this one.
        redirects_to: Option<String>,
    },
    /// MCP, on the requested transport.
    Speaks,
}

impl Contact {
    /// Returns the status of a response that opened nothing, or `None` without one.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Contact::Refused { status, .. } | Contact::Declined { status, .. } | Contact::NotMcp { status, .. } => {
                Some(*status)
            }
            Contact::Unreachable { .. }
            | Contact::NotStarted { .. }
            | Contact::NoEventStream { .. }
            | Contact::Handshake { .. }
            | Contact::OtherScheme { .. }
            | Contact::Silent
            | Contact::Broke
            | Contact::Speaks => None,
        }
    }

    /// Returns true if the response says nothing about the server: it is limited, or away.
    pub(super) fn is_busy(&self) -> bool {
        self.status().is_some_and(is_busy)
    }
}

/// Returns true for the status of a server or gateway that may serve the same request later.
pub(super) fn is_busy(status: u16) -> bool {
    matches!(status, 429 | 502 | 503 | 504)
}

/// Words of a refused request, and the reaction to another `Host`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RefusalWords {
    /// Beginning of the body, or empty.
    pub text: String,
    /// `Host` under which the server accepts the request, or `None` if it was not tried or was
    /// refused.
    pub accepted_host: Option<String>,
}

/// The process of a server on stdio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Time from the request to start it to its response to `initialize`, or `None` without a
    /// response.
    pub answered_ms: Option<u64>,
    /// Time from the end of its last session to the end of all its processes, or `None` if no
    /// session was opened.
    pub ended_ms: Option<u64>,
    /// Lines on stdout that were no JSON-RPC messages, of the process with the most.
    pub text_lines: u64,
}

/// The event stream of a server on HTTP+SSE.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventStream {
    /// Place of the POSTs without its query, or `None` if the stream did not begin with one.
    pub endpoint: Option<String>,
    /// Time until the response to a ping, or `None` without a response.
    pub ping_ms: Option<u64>,
}

/// The server as a protected resource under `listen.public_url`, as clients of the proxy see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PublicResource {
    /// The resource that its metadata names there, or `None` without metadata.
    pub resource: Option<String>,
    /// True if that is `listen.public_url`.
    pub is_public: bool,
    /// Origin of the metadata that a challenge names, if clients do not find that at the proxy.
    pub challenge_origin: Option<String>,
    /// The token that the user gave.
    pub token: Token,
}

/// The token that the user gave, by its own claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Token {
    /// None was given.
    #[default]
    None,
    /// No audience can be read in it.
    Opaque,
    /// An audience of it is `listen.public_url`.
    ForPublicUrl,
    /// All its audiences are others.
    ForAnother {
        /// The first of them.
        audience: String,
    },
}

/// Name and version of a server, as it reports them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Identity {
    /// Name.
    pub name: String,
    /// Version; may be empty.
    pub version: String,
}

/// Facts at revision 2025-11-25 and before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Legacy {
    /// The revisions that it accepted from a client, latest first.
    pub revisions: Vec<String>,
    /// True if the server assigns sessions.
    pub session: bool,
    /// Form of the response to `tools/list`, or to `initialize` if that failed.
    pub answers: Form,
    /// True if an event had an id.
    pub numbered: bool,
    /// True if a response began with an empty event that has an id.
    pub primed: bool,
    /// Reaction to a GET.
    pub standalone: Standalone,
    /// Reaction to a session that it does not know, as one from before its restart.
    pub unknown_session: UnknownSession,
}

/// Facts at revision 2026-07-28.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Modern {
    /// The revisions that `server/discover` lists.
    pub revisions: Vec<String>,
    /// Form of the response to `tools/list`, or to `server/discover` if that failed.
    pub answers: Form,
    /// True if an event had an id.
    pub numbered: bool,
    /// True if the server has tasks of its own.
    pub tasks: bool,
}

/// Form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `text/event-stream`.
    EventStream,
    /// `application/json`.
    Json,
    /// Any other media type, or none.
    Other,
}

/// Reaction to a GET on the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Standalone {
    /// A stream.
    Stream,
    /// Another response: 405 where there is no such stream.
    Refused {
        /// Status code.
        status: u16,
    },
    /// No head in time: some servers hold it back until there is an event.
    NoHead,
}

/// Reaction of a server to a session that it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UnknownSession {
    /// A refusal that the proxy recognises: the session is gone.
    Recognised {
        /// Status code.
        status: u16,
    },
    /// Any other refusal.
    Unrecognised {
        /// Status code.
        status: u16,
        /// Words of the refusal that can be configured, or `None` if it has none.
        words: Option<String>,
    },
    /// The request was served.
    Accepted,
    /// Unknown: the server assigns no sessions, or did not respond.
    Unknown,
}

/// One session while its client was silent, after its other requests. Says nothing of a longer
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Watch {
    /// Time from the head of the session's GET stream, or else from the begin of the watch, to the
    /// end of the stream or of the watch.
    pub watched_ms: u64,
    /// True if the session's GET stream was open: without it no ping can come.
    pub stream: bool,
    /// True if the stream ended before the watch.
    pub stream_ended: bool,
    /// `ping` requests of the server in that time.
    pub pings: usize,
    /// Time from the response to the first ping to the second ping, or `None` without a second.
    pub ping_interval_ms: Option<u64>,
    /// Time from the first ping without a response to the end, or `None` if each had a response.
    pub unanswered_ms: Option<u64>,
    /// Time at the end without a message to the server, or `None` if the stream ended before the
    /// watch and could not be opened again.
    pub silent_ms: Option<u64>,
    /// The session after that.
    pub session: SessionState,
}

impl Watch {
    /// Returns true if the server ended the session and had no ping without a response: silence was
    /// the reason.
    pub(super) fn ended_in_silence(&self) -> bool {
        self.session == SessionState::Ended && self.unanswered_ms.is_none() && self.silent_ms.is_some()
    }
}

/// State of a session, as the reaction to a ping shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// The ping was served.
    Lives,
    /// The ping was refused as in a session that the server does not know.
    Ended,
    /// Any other response, or none.
    Unknown,
}

/// The server's tools.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tools {
    /// Number of tools.
    pub count: usize,
    /// True if the list was read to its end.
    pub complete: bool,
    /// Their names, in the server's order.
    pub names: Vec<String>,
    /// Names of the tools with an `outputSchema`.
    pub with_output_schema: Vec<String>,
}

/// Outcome of a resume with the server's own event IDs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Resumption {
    /// Of a response that the server had sent whole.
    pub finished: Option<ResumeOutcome>,
    /// Of a call that was still running.
    pub running: Option<ResumeOutcome>,
    /// Of a call that was cut while it ran, resumed after the time that it takes: shows whether it
    /// ran on.
    pub later: Option<ResumeOutcome>,
}

/// One resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ResumeOutcome {
    /// Every message came once, and the response last. Reported as `held`.
    #[serde(rename = "held")]
    Complete,
    /// Messages, the response or both did not come.
    Lost {
        /// Messages that came, before the cut and after it.
        got: usize,
        /// Messages of an undisturbed run.
        of: usize,
    },
    /// A message came again.
    Repeated,
    /// The resume was refused.
    Refused {
        /// Status code.
        status: u16,
    },
    /// The resume got no response.
    Unanswered,
}

/// One undisturbed run of the tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolRun {
    /// Name of the tool.
    pub name: String,
    /// Outcome of the run.
    pub outcome: ToolOutcome,
    /// Form of the response.
    pub answers: Form,
    /// Messages of the HTTP response, the JSON-RPC response included.
    pub messages: usize,
    /// True if an event had an id.
    pub numbered: bool,
    /// Duration of the run.
    pub took_ms: u64,
}

/// Outcome of a run of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// A result.
    Result,
    /// A result with `isError`, or a JSON-RPC error.
    Error,
    /// No response in time.
    NoResponse,
}

/// Reaction of a server to a request that it should refuse.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Guard {
    /// The request was accepted like any other.
    Accepted,
    /// The request was refused.
    Refused {
        /// With this status.
        status: u16,
        /// The scheme that `WWW-Authenticate` names.
        scheme: Option<String>,
    },
    /// The reaction is unknown.
    #[default]
    Unknown,
}

/// The longest name or other short text of the server's that is shown, in characters.
const MAX_TEXT: usize = 80;
/// The longest beginning of a body, or message of an error, that is shown, in characters.
pub(super) const MAX_WORDS: usize = 200;
/// The longest text of several lines, and the longest reason, that is shown, in characters.
const MAX_LINES: usize = 2000;

/// Returns a time in whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a text of the server's in a form that is safe on a terminal: bounded, without control
/// characters and without characters that reorder a line.
pub(super) fn printable(text: &str) -> String {
    printable_up_to(MAX_TEXT, text)
}

/// Returns words of the server's as [`printable`] does. They may be longer.
pub(super) fn printable_words(text: &str) -> String {
    printable_up_to(MAX_WORDS, text)
}

/// Returns a text of several lines, or a reason in the words of this program, as one line.
pub(super) fn printable_lines(text: &str) -> String {
    printable_up_to(MAX_LINES, &text.replace('\n', "; "))
}

fn printable_up_to(max: usize, text: &str) -> String {
    let reorders = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    text.chars().filter(|c| !c.is_control() && !reorders(*c)).take(max).collect()
}

/// Facts for table tests.
#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// A server of 2025-11-25 without sessions and ids. Nothing else is known.
    pub(in crate::check) fn speaks() -> Facts {
        let mut facts = Facts::unknown("http://127.0.0.1:3000/mcp".to_owned());
        facts.contact = Contact::Speaks;
        facts.server = Some(Identity { name: "sample".to_owned(), version: "1".to_owned() });
        facts.legacy = Some(Legacy {
            revisions: vec!["2025-11-25".to_owned()],
            session: false,
            answers: Form::EventStream,
            numbered: false,
            primed: false,
            standalone: Standalone::Refused { status: 405 },
            unknown_session: UnknownSession::Unknown,
        });
        facts.anonymous = Guard::Accepted;
        facts
    }

    pub(in crate::check) fn legacy(facts: &mut Facts) -> &mut Legacy {
        facts.legacy.as_mut().unwrap()
    }

    pub(in crate::check) fn modern() -> Modern {
        Modern { revisions: vec!["2026-07-28".to_owned()], answers: Form::EventStream, numbered: false, tasks: false }
    }

    /// A watch of five seconds without an event.
    pub(in crate::check) fn watch() -> Watch {
        Watch {
            watched_ms: 5001,
            stream: true,
            stream_ended: false,
            pings: 0,
            ping_interval_ms: None,
            unanswered_ms: None,
            silent_ms: Some(5001),
            session: SessionState::Lives,
        }
    }

    pub(in crate::check) fn run() -> ToolRun {
        ToolRun {
            name: "slow".to_owned(),
            outcome: ToolOutcome::Result,
            answers: Form::EventStream,
            messages: 4,
            numbered: false,
            took_ms: 1500,
        }
    }

    pub(in crate::check) fn refused() -> Guard {
        Guard::Refused { status: 403, scheme: None }
    }

    pub(in crate::check) fn document(names_upstream: bool) -> Document {
        let (path, names_upstream_as_resource) = ("/.well-known/x".to_owned(), names_upstream);
        Document { path, names_upstream, names_upstream_as_resource, ..Document::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_the_server_cannot_steer_a_terminal() {
        assert_eq!(printable("a\x1b[2Jb\r\n\u{9b}c\u{202e}d"), "a[2Jbcd");
        assert_eq!(printable(&"x".repeat(500)).len(), MAX_TEXT);
        assert_eq!(printable_words(&"x".repeat(500)).len(), MAX_WORDS);
    }
}
