//! What was found out. Plain data: no judgement, no secret, and texts of the server's only after [`printable`].

use serde::Serialize;

/// Everything that the probe found out about an upstream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// The endpoint, without its query.
    pub upstream: String,
    /// What became of the first requests.
    pub contact: Contact,
    /// What the server calls itself.
    pub server: Option<Identity>,
    /// 2025-03-26 to 2025-11-25.
    pub legacy: Option<Legacy>,
    /// 2026-07-28 and later.
    pub modern: Option<Modern>,
    /// Its tools, where they could be listed.
    pub tools: Option<Tools>,
    /// What a resume with the server's own event ids brings.
    pub resumption: Resumption,
    /// The tool that the user named, run once to its end.
    pub tool: Option<ToolRun>,
    /// What becomes of a request with a `Host` that is not the server's.
    pub foreign_host: Guard,
    /// What becomes of a request with an `Origin` that is not the server's.
    pub foreign_origin: Guard,
    /// What becomes of a POST without credentials.
    pub anonymous: Guard,
    /// OAuth documents of the origin.
    pub oauth: Vec<Document>,
    /// Whether the server stopped answering, so that not everything was asked.
    pub fell_silent: bool,
    /// Paths where HTTP+SSE of 2024-11-05 answers.
    pub http_sse: Vec<String>,
    /// Whether an mcp-resume answers there.
    pub mcp_resume: bool,
    /// Another path where an MCP endpoint answers, where the one that was asked for has none.
    pub endpoint_at: Option<String>,
    /// Whether the user gave headers.
    pub with_headers: bool,
    /// The tool that the user named, if the server has none of that name.
    pub unknown_tool: Option<String>,
}

impl Facts {
    /// Facts before anything was asked.
    pub fn unknown(upstream: String) -> Self {
        Self {
            upstream,
            contact: Contact::Silent,
            server: None,
            legacy: None,
            modern: None,
            tools: None,
            resumption: Resumption::default(),
            tool: None,
            foreign_host: Guard::Unknown,
            foreign_origin: Guard::Unknown,
            anonymous: Guard::Unknown,
            oauth: Vec::new(),
            fell_silent: false,
            http_sse: Vec::new(),
            mcp_resume: false,
            endpoint_at: None,
            with_headers: false,
            unknown_tool: None,
        }
    }

    /// Whether anything was seen that a long call of this server could be resumed by, or not: a stream of events, or the tool's answer.
    pub fn has_evidence(&self) -> bool {
        let forms =
            [self.legacy.as_ref().map(|legacy| legacy.answers), self.modern.as_ref().map(|modern| modern.answers)];
        let has_run = self.tool.as_ref().is_some_and(|run| run.outcome == ToolOutcome::Result);
        has_run || forms.contains(&Some(Form::EventStream))
    }

    /// Whether any answer had an event with an id.
    pub fn is_numbered(&self) -> bool {
        let legacy = self.legacy.as_ref().is_some_and(|legacy| legacy.numbered);
        let modern = self.modern.as_ref().is_some_and(|modern| modern.numbered);
        legacy || modern || self.tool.as_ref().is_some_and(|tool| tool.numbered)
    }
}

/// What became of the first requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Contact {
    /// No connection.
    Unreachable {
        /// The system's word for it.
        why: String,
    },
    /// A connection, but no TLS that both sides take.
    Handshake {
        /// Why not, in words.
        why: String,
    },
    /// A connection, but to something that speaks the other scheme.
    OtherScheme {
        /// The scheme that is spoken there.
        scheme: &'static str,
    },
    /// A connection, but no answer in time.
    Silent,
    /// A connection that broke before an answer.
    Broke,
    /// 401 or 403.
    Refused {
        /// Which.
        status: u16,
        /// The scheme that `WWW-Authenticate` names.
        scheme: Option<String>,
    },
    /// A JSON-RPC error.
    Declined {
        /// The status it came with.
        status: u16,
        /// Its code.
        code: i64,
    },
    /// Any other answer that is no MCP.
    NotMcp {
        /// Its status.
        status: u16,
        /// Its media type.
        content_type: Option<String>,
        /// Whether it leads to another place.
        redirects: bool,
    },
    /// MCP over Streamable HTTP.
    Speaks,
}

/// What a server calls itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its version; may be empty.
    pub version: String,
}

/// What was seen at 2025-11-25 and before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Legacy {
    /// The revisions it negotiated when asked for them, latest first.
    pub revisions: Vec<String>,
    /// Whether it assigns sessions.
    pub session: bool,
    /// How it answers `tools/list`, or `initialize` where that failed.
    pub answers: Form,
    /// Whether an event had an id.
    pub numbered: bool,
    /// Whether an answer began with an empty event that has an id.
    pub primed: bool,
    /// What a GET gets.
    pub standalone: Standalone,
}

/// What was seen at 2026-07-28.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Modern {
    /// The revisions that `server/discover` lists.
    pub revisions: Vec<String>,
    /// How it answers `tools/list`, or `server/discover` where that failed.
    pub answers: Form,
    /// Whether an event had an id.
    pub numbered: bool,
}

/// The two forms of an answer, and what is neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `text/event-stream`.
    EventStream,
    /// `application/json`.
    Json,
    /// Something else, or nothing.
    Other,
}

/// What a GET on the endpoint gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Standalone {
    /// A stream.
    Stream,
    /// Another answer: 405 where there is no such stream.
    Refused {
        /// Its status.
        status: u16,
    },
    /// No head in time: some servers hold it back until there is an event.
    NoHead,
}

/// The server's tools.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tools {
    /// How many there are.
    pub count: usize,
    /// Whether the list was read to its end.
    pub complete: bool,
    /// Their names, in the server's order.
    pub names: Vec<String>,
    /// Those with an `outputSchema`.
    pub with_output_schema: Vec<String>,
}

/// What a resume with the server's own event ids brings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Resumption {
    /// Of an answer that the server had sent whole.
    pub finished: Option<Resumed>,
    /// Of a call that was still running.
    pub running: Option<Resumed>,
    /// Of a call that was cut while it ran, after the time it takes: whether it ran on.
    pub later: Option<Resumed>,
}

/// One resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Resumed {
    /// Everything came, once, and the response last.
    Held,
    /// Messages, the response or both did not come.
    Lost {
        /// Messages that came, before the cut and after it.
        got: usize,
        /// Messages of an undisturbed run.
        of: usize,
    },
    /// A message came again.
    Repeated,
    /// The resume was answered with this status.
    Refused {
        /// Which.
        status: u16,
    },
    /// The resume was not answered at all.
    Unanswered,
}

/// One undisturbed run of the tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolRun {
    /// Its name.
    pub name: String,
    /// What came of it.
    pub outcome: ToolOutcome,
    /// How its answer came.
    pub answers: Form,
    /// Messages of the answer, the response included.
    pub messages: usize,
    /// Whether an event had an id.
    pub numbered: bool,
    /// How long it took.
    pub took_ms: u64,
}

/// What came of a run of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// A result.
    Result,
    /// A result that says it is an error, or a JSON-RPC error.
    Error,
    /// No response in time.
    NoResponse,
}

/// How a server judges a request that it has reason to refuse.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Guard {
    /// It was answered like any other.
    Accepted,
    /// It was refused.
    Refused {
        /// With this status.
        status: u16,
        /// The scheme that `WWW-Authenticate` names.
        scheme: Option<String>,
    },
    /// It was not found out.
    Unknown,
}

/// An OAuth document of the origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document {
    /// Its path.
    pub path: String,
    /// Whether it names the upstream's own origin.
    pub names_upstream: bool,
}

/// The longest text of the server's that is shown, in characters.
const MAX_TEXT: usize = 80;

/// A text of the server's, fit for a terminal: bounded, without control characters and without those that reorder a line.
pub(super) fn printable(text: &str) -> String {
    let reorders = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    text.chars().filter(|c| !c.is_control() && !reorders(*c)).take(MAX_TEXT).collect()
}

/// Facts for table tests.
#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// A server of 2025-11-25 without sessions and ids, of which nothing else is known.
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
        });
        facts.anonymous = Guard::Accepted;
        facts
    }

    pub(in crate::check) fn legacy(facts: &mut Facts) -> &mut Legacy {
        facts.legacy.as_mut().unwrap()
    }

    pub(in crate::check) fn modern() -> Modern {
        Modern { revisions: vec!["2026-07-28".to_owned()], answers: Form::EventStream, numbered: false }
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
        Document { path: "/.well-known/x".to_owned(), names_upstream }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_the_server_cannot_steer_a_terminal() {
        assert_eq!(printable("a\x1b[2Jb\r\n\u{9b}c\u{202e}d"), "a[2Jbcd");
        assert_eq!(printable(&"x".repeat(500)).len(), MAX_TEXT);
    }
}
