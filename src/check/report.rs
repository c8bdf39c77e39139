//! The report: a verdict with its reasons, for a terminal or for a program.

use std::fmt;

use serde::Serialize;

use super::advice;
use super::eras::Eras;
use super::facts::{
    Contact, Facts, Form, Guard, Program, ResumeOutcome, SessionState, Standalone, ToolOutcome, UnknownSession, Watch,
    is_busy,
};
use super::findings;
use super::verdict::Verdict;
use crate::config::Config;

/// Lines are broken before this column.
const WIDTH: usize = 110;
/// Time in milliseconds that a program is given to end by itself.
const TO_BE_ENDED_MS: u64 = 5000;
/// Column of the texts.
const LABEL: usize = 16;

/// Report on an upstream. Displays as text; serialises for `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Suitability of the server.
    pub verdict: Verdict,
    /// True if the proxy can stand in front of the server: exit code 0.
    pub can_stand_in_front: bool,
    /// Features that the proxy adds. Like the other findings, in the order of the text.
    pub adds: Vec<String>,
    /// Notes for clients.
    pub clients: Vec<String>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Facts that are unknown, with the way to find them out.
    pub unknown: Vec<String>,
    /// Facts behind the report.
    pub facts: Facts,
}

impl Report {
    /// Creates the report on these facts for a proxy with this configuration.
    pub fn new(facts: Facts, config: &Config) -> Self {
        let verdict = Verdict::of(&facts);
        let findings = advice::findings(&facts, config);
        let [adds, clients, warnings, unknown] = [0, 1, 2, 3].map(|number| findings.list(number));
        Self { verdict, can_stand_in_front: verdict.can_stand_in_front(), adds, clients, warnings, unknown, facts }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_mcp_resume = self.facts.mcp_resume && self.can_stand_in_front;
        let verdict = if is_mcp_resume { "an mcp-resume stands in front of it already" } else { self.verdict.text() };
        writeln!(f, "{}: {verdict}\n", self.facts.upstream)?;
        for (label, text) in rows(&self.facts) {
            write_wrapped(f, &format!("  {label:LABEL$}"), &text)?;
        }
        let lists = findings::headings().zip([&self.adds, &self.clients, &self.warnings, &self.unknown]);
        for (heading, lines) in lists.filter(|(_, lines)| !lines.is_empty()) {
            writeln!(f, "\n{heading}")?;
            for line in lines {
                write_wrapped(f, "  - ", line)?;
            }
        }
        Ok(())
    }
}

/// The facts as rows of label and text.
fn rows(facts: &Facts) -> Vec<(&'static str, String)> {
    let mut rows = vec![("contact", contact(facts))];
    let words = facts.refusal.as_ref().map(|refusal| refusal.text.clone()).filter(|text| !text.is_empty());
    rows.extend(words.map(|text| ("its words", text)));
    rows.extend(facts.program.and_then(|program| program_times(&program)).map(|text| ("process", text)));
    rows.extend(event_stream(facts));
    if let Some(server) = &facts.server {
        rows.push(("server", format!("{} {}", server.name, server.version).trim_end().to_owned()));
    }
    rows.extend(Eras::of(facts).map(|eras| ("clients", eras.clients().to_owned())));
    if let Some(legacy) = &facts.legacy {
        let sessions = if legacy.session { "with sessions" } else { "without sessions" };
        rows.push((
            "initialize",
            format!("{}, {sessions}; answers with {}", legacy.revisions.join(", "), form(legacy.answers)),
        ));
        // A program has no say in these.
        if facts.program.is_none() {
            rows.push(("GET stream", standalone(legacy.standalone)));
        }
        // On channels the proxy itself knows the sessions.
        let unknown = unknown_session(&legacy.unknown_session).filter(|_| !facts.has_channels());
        rows.extend(unknown.map(|text| ("dead sessions", text)));
    }
    if let Some(watch) = &facts.watch {
        rows.extend([("pings", pings(watch)), ("silent session", silent_session(watch))]);
    }
    if let Some(modern) = &facts.modern {
        let tasks = if modern.tasks { "; has tasks of its own" } else { "" };
        rows.push((
            "server/discover",
            format!("{}; answers with {}{tasks}", modern.revisions.join(", "), form(modern.answers)),
        ));
    }
    if facts.contact == Contact::Speaks && facts.program.is_none() {
        rows.push(("event ids", event_ids(facts).to_owned()));
    }
    rows.extend(resumption(facts));
    rows.extend(tools(facts));
    rows.extend(guards(facts));
    if !facts.oauth.is_empty() {
        let paths: Vec<&str> = facts.oauth.iter().map(|document| document.path.as_str()).collect();
        rows.push(("OAuth", paths.join(", ")));
    }
    rows
}

fn event_stream(facts: &Facts) -> Vec<(&'static str, String)> {
    let Some(stream) = &facts.event_stream else { return Vec::new() };
    let mut rows: Vec<_> = stream.endpoint.clone().map(|endpoint| ("endpoint", endpoint)).into_iter().collect();
    if facts.contact == Contact::Speaks {
        let ping = stream.ping_ms.map_or("no answer".to_owned(), |ms| format!("answered after {}", advice::about(ms)));
        rows.push(("ping", ping));
    }
    rows
}

fn resumption(facts: &Facts) -> impl Iterator<Item = (&'static str, String)> {
    let later = match facts.resumption.later {
        Some(ResumeOutcome::Complete) => "; the tool ran on",
        Some(ResumeOutcome::Lost { .. }) => "; the tool was cancelled, or its result was lost",
        Some(ResumeOutcome::Repeated | ResumeOutcome::Refused { .. } | ResumeOutcome::Unanswered) | None => "",
    };
    let resumes = [
        ("an ended answer", facts.resumption.finished, ""),
        ("a running call", facts.resumption.running, ""),
        ("a call that was cut, after its time", facts.resumption.later, later),
    ];
    let tried = resumes.into_iter().filter_map(|(what, outcome, then)| Some((what, outcome?, then)));
    tried.enumerate().map(|(index, (what, outcome, then))| {
        let label = if index == 0 { "resumption" } else { "" };
        (label, format!("{what}: {}{then}", resumed(outcome)))
    })
}

fn tools(facts: &Facts) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(tools) = &facts.tools {
        let least = if tools.complete { "" } else { "at least " };
        let schemas = match tools.with_output_schema.len() {
            0 => String::new(),
            count => format!(", {count} with an outputSchema, whose results can only come whole"),
        };
        rows.push(("tools", format!("{least}{}{schemas}", tools.count)));
    }
    if let Some(run) = &facts.tool {
        let outcome = match run.outcome {
            ToolOutcome::Result => "",
            ToolOutcome::Error => ", an error",
            ToolOutcome::NoResponse => ", no response",
        };
        let messages = if run.messages == 1 { "message" } else { "messages" };
        let text =
            format!("{}: {} {messages} in {} ms, {}{outcome}", run.name, run.messages, run.took_ms, form(run.answers));
        rows.push(("tool run", text));
    }
    rows
}

fn guards(facts: &Facts) -> impl Iterator<Item = (&'static str, String)> {
    let words = |guard: &Guard, accepted: &str, refused: &str| match guard {
        Guard::Accepted => Some(accepted.to_owned()),
        Guard::Refused { status, scheme: None } => Some(format!("{refused} ({status})")),
        Guard::Refused { status, scheme: Some(scheme) } => Some(format!("{refused} ({status}, {scheme})")),
        Guard::Unknown => None,
    };
    let rows = [
        ("Host", words(&facts.foreign_host, "not checked", "a foreign one is refused")),
        ("Origin", words(&facts.foreign_origin, "not checked", "a foreign one is refused")),
        ("credentials", words(&facts.anonymous, "not asked for", "asked for").filter(|_| facts.program.is_none())),
    ];
    rows.into_iter().filter_map(|(label, text)| Some((label, text?)))
}

fn contact(facts: &Facts) -> String {
    match &facts.contact {
        Contact::NotStarted { why } | Contact::NoEventStream { why } => why.clone(),
        Contact::Handshake { why } => why.clone(),
        Contact::OtherScheme { scheme } => {
            let url = facts.upstream.as_str();
            let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
            let what = if *scheme == "https" { "TLS is spoken there" } else { "no TLS is spoken there" };
            format!("{what}: give {scheme}://{rest}")
        }
        Contact::Unreachable { why } => why.clone(),
        Contact::Silent if facts.program.is_some() => "it answers nothing".to_owned(),
        Contact::Silent => "it accepts connections and answers nothing".to_owned(),
        Contact::Broke => "it accepts connections and breaks them before an answer".to_owned(),
        Contact::Refused { status, scheme: None } => format!("refused with {status}, without WWW-Authenticate"),
        Contact::Refused { status, scheme: Some(scheme) } => {
            format!("refused with {status}, WWW-Authenticate: {scheme}")
        }
        Contact::Declined { status, code, .. } if is_busy(*status) => {
            format!("it answers {status} now, with a JSON-RPC error ({code})")
        }
        Contact::NotMcp { status, content_type, .. } if is_busy(*status) => {
            format!("it answers {status} now, with {}", content_type.as_deref().unwrap_or("nothing"))
        }
        Contact::Declined { status, code, message } if message.is_empty() => {
            format!("{status} with a JSON-RPC error ({code}) to initialize")
        }
        Contact::Declined { status, code, message } => {
            format!("{status} with a JSON-RPC error to initialize: {message} ({code})")
        }
        Contact::NotMcp { status, content_type: None, .. } => format!("{status} without content"),
        Contact::NotMcp { status, content_type: Some(name), .. } => format!("{status} with {name}, no MCP in it"),
        Contact::Speaks if facts.program.is_some() => "it speaks MCP on stdio".to_owned(),
        Contact::Speaks if facts.event_stream.is_some() => "it speaks MCP over HTTP+SSE of 2024-11-05".to_owned(),
        Contact::Speaks => "it speaks MCP over Streamable HTTP".to_owned(),
    }
}

/// Describes the times of a program, or returns `None` without a response to `initialize`.
fn program_times(program: &Program) -> Option<String> {
    let answered = advice::about(program.answered_ms?);
    let ended = match program.ended_ms {
        None => String::new(),
        Some(ended) if ended < TO_BE_ENDED_MS => {
            format!(", gone {} after the end of its session", advice::about(ended))
        }
        Some(ended) => {
            format!(", ended by a signal: it was still there {} after the end of its input", advice::about(ended))
        }
    };
    Some(format!("answered {answered} after its start was asked for{ended}"))
}

fn resumed(resumed: ResumeOutcome) -> String {
    match resumed {
        ResumeOutcome::Complete => "everything came, once".to_owned(),
        ResumeOutcome::Lost { got, of } => format!("{got} of {of} messages came"),
        ResumeOutcome::Repeated => "a message came again".to_owned(),
        ResumeOutcome::Refused { status } => format!("refused ({status})"),
        ResumeOutcome::Unanswered => "not answered".to_owned(),
    }
}

fn form(form: Form) -> &'static str {
    match form {
        Form::EventStream => "event streams",
        Form::Json => "JSON",
        Form::Other => "neither JSON nor events",
    }
}

fn standalone(standalone: Standalone) -> String {
    match standalone {
        Standalone::Stream => "yes".to_owned(),
        Standalone::Refused { status: 405 } => "none (405)".to_owned(),
        Standalone::Refused { status } => format!("refused ({status})"),
        Standalone::NoHead => "unknown: no head in time".to_owned(),
    }
}

fn unknown_session(reaction: &UnknownSession) -> Option<String> {
    match reaction {
        UnknownSession::Recognised { status } => Some(format!("refused ({status}), as mcp-resume knows it")),
        UnknownSession::Unrecognised { status, words: Some(_) } => {
            Some(format!("refused ({status}), in words of its own"))
        }
        UnknownSession::Unrecognised { status, words: None } => Some(format!("refused ({status}), without words")),
        UnknownSession::Accepted => Some("not refused".to_owned()),
        UnknownSession::Unknown => None,
    }
}

fn pings(watch: &Watch) -> String {
    let time = advice::about(watch.watched_ms);
    let end = if watch.stream_ended { ", when the server ended the GET stream" } else { "" };
    match (watch.pings, watch.ping_interval_ms) {
        _ if !watch.stream => "none seen: there was no GET stream for them".to_owned(),
        (0, _) => format!("none within {time}{end}"),
        (1, _) => format!("one within {time}{end}"),
        (_, None) => format!("several within {time}{end}"),
        (_, Some(interval)) => format!("yes; one came {} after the answer to another", advice::about(interval)),
    }
}

fn silent_session(watch: &Watch) -> String {
    let Some(silent) = watch.silent_ms.map(advice::about) else {
        return "not seen: the GET stream ended before, and could not be opened again".to_owned();
    };
    match (watch.session, watch.unanswered_ms.map(advice::about)) {
        (SessionState::Ended, Some(time)) => format!("ended by the server {time} after a ping without an answer"),
        (SessionState::Lives, Some(time)) => format!("goes on {time} after a ping without an answer"),
        (SessionState::Ended, None) if watch.stream_ended => {
            format!("ended by the server after {silent} without a message")
        }
        (SessionState::Ended, None) => format!("ended by the server within {silent} without a message"),
        (SessionState::Lives, None) => format!("goes on after {silent} without a message"),
        (SessionState::Unknown, _) => format!("unknown: its ping after {silent} got no answer that tells"),
    }
}

fn event_ids(facts: &Facts) -> &'static str {
    if facts.legacy.as_ref().is_some_and(|legacy| legacy.primed) {
        "yes, the first in an empty event"
    } else if facts.is_numbered() {
        "yes"
    } else if facts.has_evidence() {
        "none"
    } else {
        "not seen: every answer came as JSON"
    }
}

/// Writes `text` after `first`. Its further lines are indented by the width of `first`.
pub(super) fn write_wrapped(f: &mut impl fmt::Write, first: &str, text: &str) -> fmt::Result {
    let indent = first.chars().count();
    let mut column = indent;
    write!(f, "{first}")?;
    for (index, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > WIDTH {
            write!(f, "\n{:indent$}{word}", "")?;
            column = indent + width;
        } else {
            let space = if index > 0 { " " } else { "" };
            write!(f, "{space}{word}")?;
            column += width + space.len();
        }
    }
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use super::super::facts::Resumption;
    use super::super::facts::samples::*;
    use super::*;

    fn report(facts: Facts) -> Report {
        Report::new(facts, &Config::for_upstream("http://127.0.0.1:3000").unwrap())
    }

    #[test]
    fn the_verdict_is_the_first_line_and_the_facts_are_a_table() {
        let mut facts = speaks();
        legacy(&mut facts).primed = true;
        legacy(&mut facts).numbered = true;
        facts.tool = Some(run());
        facts.resumption = Resumption {
            running: Some(ResumeOutcome::Lost { got: 1, of: 4 }),
            later: Some(ResumeOutcome::Complete),
            ..Resumption::default()
        };
        facts.foreign_host = refused();
        let text = report(facts).to_string();
        let expected = "\
http://127.0.0.1:3000/mcp: resumes by itself, unreliably; will be made reliable

  contact         it speaks MCP over Streamable HTTP
  server          sample 1
  clients         of the older revisions alone: it refuses 2026-07-28
  initialize      2025-11-25, without sessions; answers with event streams
  GET stream      none (405)
  event ids       yes, the first in an empty event
  resumption      a running call: 1 of 4 messages came
                  a call that was cut, after its time: everything came, once; the tool ran on
  tool run        slow: 4 messages in 1500 ms, event streams
  Host            a foreign one is refused (403)
  credentials     not asked for

mcp-resume in front of it gives
  - ids of its own";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn the_watch_is_told_with_its_time_and_no_more() {
        let pinged = Watch { pings: 2, ping_interval_ms: Some(3004), unanswered_ms: Some(1960), ..watch() };
        let [ended, unknown] = [SessionState::Ended, SessionState::Unknown];
        let rows = [
            (watch(), "none within 5 s", "goes on after 5 s without a message"),
            (
                Watch { stream: false, session: ended, ..watch() },
                "none seen: there was no GET stream for them",
                "ended by the server within 5 s without a message",
            ),
            (
                Watch { stream_ended: true, watched_ms: 2120, silent_ms: Some(2120), ..watch() },
                "none within 2.1 s, when the server ended the GET stream",
                "goes on after 2.1 s without a message",
            ),
            (
                Watch { stream_ended: true, session: ended, ..watch() },
                "none within 5 s, when the server ended the GET stream",
                "ended by the server after 5 s without a message",
            ),
            (
                Watch { pings: 1, silent_ms: Some(140), ..watch() },
                "one within 5 s",
                "goes on after 140 ms without a message",
            ),
            (pinged, "yes; one came 3 s after the answer to another", "goes on 2 s after a ping without an answer"),
            (
                Watch { unanswered_ms: Some(5012), stream_ended: true, session: ended, ..pinged },
                "yes; one came 3 s after the answer to another",
                "ended by the server 5 s after a ping without an answer",
            ),
            (
                Watch { stream_ended: true, session: ended, silent_ms: None, ..watch() },
                "none within 5 s, when the server ended the GET stream",
                "not seen: the GET stream ended before, and could not be opened again",
            ),
            (
                Watch { session: unknown, ..watch() },
                "none within 5 s",
                "unknown: its ping after 5 s got no answer that tells",
            ),
        ];
        for (watch, pings, session) in rows {
            let text = report(Facts { watch: Some(watch), ..speaks() }).to_string();
            let expected = format!("\n  pings           {pings}\n  silent session  {session}\n");
            assert!(text.contains(&expected), "{expected}{text}");
        }
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut facts = speaks();
        facts.modern = Some(modern());
        facts.tool = Some(run());
        facts.oauth = vec![document(true)];
        let text = report(facts).to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(WIDTH), "{text}");
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    }

    #[test]
    fn an_unreachable_server_has_only_a_verdict_and_a_reason() {
        let mut facts = Facts::unknown("http://127.0.0.1:3000/mcp".to_owned());
        facts.contact = Contact::Unreachable { why: "Connection refused".to_owned() };
        let expected = "http://127.0.0.1:3000/mcp: unreachable\n\n  contact         Connection refused\n";
        assert_eq!(report(facts).to_string(), expected);
    }

    #[test]
    fn a_server_on_stdio_has_the_times_of_its_process_in_place_of_dead_sessions() {
        let mut facts = speaks();
        legacy(&mut facts).unknown_session = UnknownSession::Recognised { status: 404 };
        facts.upstream = "server".to_owned();
        for (ended_ms, words) in [
            (None, ""),
            (Some(21), ", gone 21 ms after the end of its session"),
            (Some(5040), ", ended by a signal: it was still there 5 s after the end of its input"),
        ] {
            facts.program = Some(Program { answered_ms: Some(800), ended_ms, text_lines: 0 });
            let text = report(facts.clone()).to_string();
            let expected = format!(
                "server: cannot resume; will be made resumable contact it speaks MCP on stdio process answered 800 ms after its start \
                 was asked for{words} server "
            );
            // Long lines are broken.
            let on_one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(on_one_line.starts_with(&expected), "{expected}{text}");
            for row in ["dead sessions", "--tool", "\n  GET stream", "\n  event ids", "\n  credentials"] {
                assert!(!text.contains(row), "{row}: {text}");
            }
        }
    }

    #[test]
    fn a_program_that_does_not_start_says_why_and_names_its_environment() {
        let mut facts = Facts::unknown("server".to_owned());
        facts.program = Some(Program::default());
        facts.contact = Contact::NotStarted { why: "the MCP server could not be started: exit code 7".to_owned() };
        let text = report(facts).to_string();
        let expected = "server: does not start\n\n  contact         the MCP server could not be started: exit code 7\n\nto watch\n";
        assert!(text.starts_with(expected) && text.contains("upstream.env"), "{text}");
    }

    #[test]
    fn a_program_reads_the_verdict_and_every_fact() {
        let json = serde_json::to_value(report(speaks())).unwrap();
        assert_eq!(json["verdict"], "cannot_resume");
        assert_eq!(json["can_stand_in_front"], true);
        assert_eq!(json["facts"]["legacy"]["standalone"]["status"], 405);
        assert_eq!(json["facts"]["contact"]["kind"], "speaks");
    }
}
