//! Findings of the report, derived from the facts: additions of the proxy, notes for clients,
//! warnings, open questions.
//!
//! Each list has one function: conditions with their sentences, in the order of the report. A
//! sentence is true of this version of the proxy, or was measured with the clients that it names.

use std::time::Duration;

use super::eras;
use super::facts::{
    Contact, Facts, Form, Guard, Legacy, SessionState, Standalone, ToolOutcome, UnknownSession, Watch, millis,
    printable,
};
use super::verdict::Verdict;
use crate::config::{AnswerPings, Config, HostHeader, PrincipalSource, Store, Tasks};

/// Returns the features that the proxy adds in front of the server.
pub(super) fn adds(facts: &Facts, config: &Config) -> Vec<String> {
    if facts.mcp_resume || !Verdict::of(facts).can_stand_in_front() {
        return Vec::new();
    }
    let mut lines = Lines::default();
    if facts.is_numbered() {
        lines.add("ids of its own on every event; clients no longer see or need the server's");
    } else {
        lines.add("an id on every event, and an empty event with an id at the head of every event stream");
    }
    let kept = config.streams.max_wait.map_or("until it ends".to_owned(), |wait| format!("for {}", in_words(wait)));
    lines.add(format!(
        "a call goes on when its client is gone ({kept}), and the client that comes back gets the rest, the result included"
    ));
    match config.delivery.commit_after.map(in_words) {
        _ if !has_json(facts) => {}
        None => lines.add("an answer in JSON passes as it is (commit_after_ms is 0); nothing of it can be resumed"),
        Some(after) => lines.add(format!(
            "an answer in JSON passes as it is if it comes within {after}; a later one comes as an event stream that can be \
             resumed, for callers whom the server has lately accepted"
        )),
    }
    if has_sessions(facts) {
        lines.add("the same POST again in its session finds the running call, and the tool runs once");
    }
    if facts.program.is_some() {
        let idle = config.upstream.command.as_ref().and_then(|command| command.idle).map(in_words);
        let idle = idle.map_or(String::new(), |idle| format!("after {idle} without a call, "));
        lines.add(format!(
            "a process for each session, ended with the session, {idle}and with mcp-resume, even if that is killed"
        ));
    }
    if facts.event_stream.is_some() {
        let idle = config.upstream.sse.as_ref().and_then(|server| server.idle).map(in_words);
        let idle = idle.map_or(String::new(), |idle| format!(", and after {idle} without a call"));
        lines.add(format!("an event stream at the server for each session, closed with the session{idle}"));
    }
    if config.sessions.revive && facts.event_stream.is_some() {
        lines.add("a session whose event stream has ended is opened again, on a new one, by its client's next request");
    } else if config.sessions.revive && facts.program.is_some() {
        lines.add("a session whose process has ended is opened again, at a new process, by its client's next request");
    } else if config.sessions.revive && matches!(unknown_session(facts), UnknownSession::Recognised { .. }) {
        lines.add(
            "a session that the server has forgotten, as after a restart, is opened again by its client's next request",
        );
    }
    if pings(facts) && config.upstream.answer_pings == AnswerPings::Absent {
        lines.add("the server's pings are answered where no client can, so that the session does not end by them");
    }
    if let (Some(silence), Some(keepalive)) = (fatal_silence(facts), config.upstream.keepalive)
        && keepalive < silence
    {
        lines.add(format!(
            "while a call runs, the server gets a ping after {} without a message (upstream.keepalive_secs), sooner than it ended \
             the silent session",
            in_words(keepalive)
        ));
    }
    if has_standalone(facts) {
        lines.add("the session's GET stream is kept while its client is away, and reopened if the server drops it");
    }
    if facts.modern.is_some() {
        let grace = config.streams.modern_grace.unwrap_or(config.delivery.retry * 2 + Duration::from_secs(1));
        let grace = in_words(grace);
        lines.add(format!(
            "at 2026-07-28, where to disconnect is to cancel, a call waits {grace} for its client before it is cancelled"
        ));
    }
    if let Some(line) = eras::adds(facts, config) {
        lines.add(line);
    }
    if let Some(tasks) = added_tasks(facts, config) {
        lines.add(format!(
            "a tool call that runs for {} becomes a task, where its client declares the extension: the server has no tasks",
            in_words(tasks.after)
        ));
    }
    lines.0
}

/// Returns the terms of tasks that the proxy adds, or `None` if it adds none.
fn added_tasks<'a>(facts: &Facts, config: &'a Config) -> Option<&'a Tasks> {
    let has_none = facts.modern.as_ref().is_some_and(|modern| !modern.tasks);
    config.tasks.as_deref().filter(|_| has_none)
}

/// Returns the notes for the server's clients.
pub(super) fn clients(facts: &Facts, config: &Config) -> Vec<String> {
    if !Verdict::of(facts).can_stand_in_front() {
        return Vec::new();
    }
    let (retry, outage) = (in_words(config.delivery.retry), in_words(config.delivery.retry * 2));
    let is_anonymous = facts.anonymous == Guard::Accepted;
    let mut lines = Lines::default();
    lines.add(
        "the TypeScript SDK since 1.23, the Python SDK since 1.23, FastMCP 4 and rmcp 3 come back by themselves; older \
         TypeScript and Python ones never do",
    );
    lines.add(format!(
        "TypeScript and Python try twice, {retry} apart: they survive an outage of about {outage} (delivery.retry_ms)"
    ));
    lines.add("a TypeScript client gives a request 60 s unless the application says otherwise, and being away counts");
    lines.add(
        "a Python client survives two hard cuts of one call, more where graceful ends lie between; others any number",
    );
    if has_standalone(facts) {
        lines.add(
            "a Python client survives two hard cuts of its GET stream in its life, more where graceful ends lie between",
        );
    }
    if has_json(facts) {
        lines.add("a client that is cut before the first byte of an answer has no id to resume with");
    }
    if !has_sessions(facts) {
        lines.add(
            "without a session, a POST that is sent again runs its tool again, unless it has credentials and an \
             Idempotency-Key",
        );
    }
    if is_anonymous && has_sessions(facts) {
        lines.add(
            "the stream of a caller without credentials can be read with the session's id and an event's id: keep both out \
             of logs",
        );
    }
    if is_anonymous && (!has_sessions(facts) || facts.modern.is_some()) {
        lines.add(
            "of a caller without credentials and session, an event's id is the only key to its stream: keep it out of logs",
        );
    }
    if added_tasks(facts, config).is_some() {
        lines.add(
            "a client gets tasks if it declares io.modelcontextprotocol/tasks on every request, as FastMCP 4 does with \
             fastmcp-tasks and rmcp 3 with enable_tasks(); every other one gets ordinary responses",
        );
    }
    if let Some(line) = eras::clients(facts, config).filter(|_| !facts.mcp_resume) {
        lines.add(line);
    }
    let unsliced = unsliced(facts, config);
    if !unsliced.is_empty() {
        lines.add(format!(
            "calls of {} are never answered in slices, even if [dialects.resume_tokens] names them: a tool with an \
             outputSchema has results that can only come whole",
            unsliced.join(", ")
        ));
    }
    lines.0
}

fn unknown_session(facts: &Facts) -> &UnknownSession {
    facts.legacy.as_ref().map_or(&UnknownSession::Unknown, |legacy| &legacy.unknown_session)
}

/// Returns the tools that the configuration answers in slices although their results must come
/// whole.
fn unsliced<'a>(facts: &'a Facts, config: &Config) -> Vec<&'a str> {
    let (Some(tools), Some(tokens)) = (&facts.tools, &config.dialects.resume_tokens) else { return Vec::new() };
    let structured = tools.with_output_schema.iter().map(String::as_str);
    structured.filter(|name| tokens.tools.iter().any(|tool| printable(tool) == *name)).collect()
}

/// Returns the warnings for a proxy in front of the server.
pub(super) fn warnings(facts: &Facts, config: &Config) -> Vec<String> {
    let is_useful = Verdict::of(facts).can_stand_in_front();
    let mut lines = Lines::default();
    if matches!(facts.contact, Contact::NotMcp { redirects: true, .. }) {
        lines.add("the endpoint redirects to another place, which is not followed: give the place itself");
    }
    if let Some(found) = &facts.endpoint_at {
        let origin = config.upstream.url.origin();
        lines.add(format!("an MCP endpoint answers at another path: give --upstream {origin}{found}"));
    } else if matches!(facts.contact, Contact::NotMcp { status: 404, .. }) {
        let place = if facts.event_stream.is_some() { "event stream" } else { "MCP endpoint" };
        lines.add(format!("there is nothing at this path: give the URL with the path of the server's {place}"));
    }
    if matches!(facts.contact, Contact::NotStarted { .. }) {
        lines.add(
            "the program has the variables HOME, LOGNAME, PATH, SHELL, TERM and USER, and no other of this shell: a key or a \
             path that it needs is given by upstream.env, or passed on by upstream.inherit_env",
        );
    }
    if is_useful && facts.mcp_resume {
        lines.add("what answers is an mcp-resume: clients can be given this URL; a second one in front adds nothing");
    }
    for document in facts.oauth.iter().filter(|document| document.names_upstream) {
        lines.add(format!(
            "{} names the server's own origin and is not rewritten: clients that follow it go around the proxy",
            document.path
        ));
    }
    if facts.event_stream.is_some() && is_useful {
        lines.add(
            "when the server's event stream breaks, its running calls fail at once (upstream_broke, mayHaveRun), and what the \
             server sends until the session is opened again is lost: events have no ids there",
        );
        lines.add(format!("serve it by --upstream-sse {}", facts.upstream));
    }
    for path in &facts.http_sse {
        let origin = config.upstream.url.origin();
        lines.add(format!(
            "HTTP+SSE of 2024-11-05 at {path}: its old clients pass through and cannot resume; give --upstream-sse \
             {origin}{path}, and clients of Streamable HTTP can"
        ));
    }
    if !is_useful {
        return lines.0;
    }
    match unknown_session(facts) {
        UnknownSession::Unrecognised { status, words: Some(words) } => lines.add(format!(
            "the server refuses a session that it does not know with {status}, in words that mcp-resume does not know: with this line \
             under [sessions] its clients outlive its restarts: refusals = [\"{status} {words}\"]"
        )),
        UnknownSession::Unrecognised { status: status @ 404, words: None } => lines.add(format!(
            "the server refuses a session that it does not know with {status} and without words, as a tool may: a call that finds \
             its session forgotten fails, and the next one finds a new session"
        )),
        UnknownSession::Unrecognised { status, words: None } => lines.add(format!(
            "the server refuses a session that it does not know with {status} and without words: its clients do not outlive its restarts"
        )),
        UnknownSession::Recognised { .. } | UnknownSession::Accepted | UnknownSession::Unknown => {}
    }
    warn_of_ends(facts, config, &mut lines);
    warn_of_lost_tasks(facts, config, &mut lines);
    if !facts.mcp_resume {
        eras::warnings(facts, config).into_iter().for_each(|line| lines.add(line));
    }
    match facts.foreign_host {
        Guard::Refused { .. } if config.upstream.host != HostHeader::Client => lines.add(
            "the server checks Host, but the proxy tells it the name it expects (upstream.host): the proxy's own check is \
             listen.allowed_hosts, which takes any name unless it listens on a loopback address",
        ),
        Guard::Accepted => lines.add(
            "the server does not check Host: a web page can reach it by DNS rebinding unless something in front of it does",
        ),
        Guard::Refused { .. } | Guard::Unknown => {}
    }
    if facts.foreign_origin == Guard::Accepted {
        lines.add("the server does not check Origin: any web page may call it unless something in front of it does");
    }
    lines.0
}

/// Warns of ends of sessions that the configuration does not prevent.
fn warn_of_ends(facts: &Facts, config: &Config, lines: &mut Lines) {
    if pings(facts) && config.upstream.answer_pings == AnswerPings::Never {
        lines.add(
            "the server pings, and upstream.answer_pings is \"never\": if it ends sessions of clients that do not answer, \
             their calls end with them",
        );
    }
    let Some(silence) = fatal_silence(facts) else { return };
    if config.upstream.keepalive.is_none_or(|keepalive| keepalive >= silence) {
        lines.add(format!(
            "the server ends a session after {} without a message, and with it a silent call: give upstream.keepalive_secs \
             a shorter time",
            about(millis(silence))
        ));
    }
    if !config.sessions.revive {
        lines.add(
            "the server ends sessions whose clients are silent, and sessions.revive is \"never\": most clients cannot go on \
             until they are restarted",
        );
    }
}

/// Warns of events that tasks do not survive.
fn warn_of_lost_tasks(facts: &Facts, config: &Config, lines: &mut Lines) {
    if added_tasks(facts, config).is_none() {
        return;
    }
    let rest = match config.store {
        Store::Memory => "; with the store in memory the outcomes of ended ones are lost, too",
        Store::Disk(_) | Store::Redis(_) => "",
    };
    lines.add(format!(
        "a restart or deploy of mcp-resume fails the tasks that run for longer than its drain \
         (replica.drain_timeout_secs, {}){rest}",
        in_words(config.replica.drain_timeout)
    ));
    if matches!(facts.anonymous, Guard::Refused { .. }) && config.auth.principal == PrincipalSource::Auto {
        lines.add(
            "a task belongs to the credentials of its call: a caller whose opaque token is refreshed loses its tasks, unless \
             auth.principal names it by a header that stays",
        );
    }
}

/// Returns the open questions, each with a way to settle it.
pub(super) fn unknown(facts: &Facts) -> Vec<String> {
    let mut lines = Lines::default();
    if facts.fell_silent {
        lines.add("the server stopped answering: what is not said here was not asked");
    }
    match (&facts.contact, &facts.tool) {
        // A server on a channel resumes nothing, and its calls run on.
        (Contact::Speaks, _) if facts.has_channels() => {}
        (Contact::Refused { scheme, .. }, _) => {
            let refused = if facts.with_headers { "those that were given were refused; " } else { "" };
            let header = credentials_header(scheme.as_deref());
            lines.add(format!("everything behind the credentials: {refused}{header}"));
        }
        (Contact::Speaks, None) => lines.add(
            "how a long call is answered, cut and resumed: name a tool that is safe to run, with --tool and --arguments",
        ),
        (Contact::Speaks, Some(run)) if run.outcome != ToolOutcome::Result => {
            lines.add("how a long call is cut and resumed: the tool gave no result");
        }
        (Contact::Speaks, Some(run)) if !run.numbered => lines.add(
            "whether a tool runs on when its client leaves: without ids that cannot be seen from outside; servers with \
             sessions tend to run on and lose the result, others to cancel. Behind the proxy the client does not leave",
        ),
        (Contact::Speaks, Some(_)) if facts.resumption.running.is_none() => lines.add(
            "how a running call is resumed: the tool sends nothing before its response, so it could not be cut",
        ),
        _ => {}
    }
    if matches!(facts.contact, Contact::Speaks) && has_sessions(facts) && !facts.has_channels() {
        lines.0.extend(unwatched(facts));
    }
    lines.0
}

/// Returns the question about the session that its watch leaves open.
fn unwatched(facts: &Facts) -> Option<String> {
    let Some(watch) = facts.watch else {
        return Some("whether the server pings its clients, and ends silent sessions: give --watch SECS".to_owned());
    };
    if watch.pings == 0 && !watch.ended_in_silence() {
        let tool = if facts.tool.is_none() { ", or after a call of a tool (--tool)" } else { "" };
        let (watched, silent) = (about(watch.watched_ms), about(watch.silent_ms.unwrap_or(0)));
        return Some(format!(
            "whether the server pings its clients after more than {watched}{tool}, and ends sessions that are silent for more \
             than {silent}: --watch SECS watches for up to an hour"
        ));
    }
    let is_open = watch.pings > 0 && watch.session == SessionState::Lives;
    is_open.then(|| {
        "whether the server ends a session whose client answers no ping for longer: give --watch SECS".to_owned()
    })
}

/// Returns advice on the header that a server wants which refuses requests and names this
/// authentication scheme.
fn credentials_header(scheme: Option<&str>) -> String {
    match scheme {
        Some(scheme) if scheme.eq_ignore_ascii_case("bearer") => {
            "give --header 'Authorization: Bearer TOKEN'".to_owned()
        }
        Some(scheme) if scheme.eq_ignore_ascii_case("basic") => {
            "give --header 'Authorization: Basic …', with base64 of user:password".to_owned()
        }
        Some(scheme) => format!("give --header 'Authorization: {scheme} …'"),
        None => "the server does not say which header it wants; usual are --header 'Authorization: Bearer TOKEN' and \
                 --header 'X-API-Key: KEY'"
            .to_owned(),
    }
}

/// Sentences of one list, in order.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, line: impl Into<String>) {
        self.0.push(line.into());
    }
}

/// Returns true if any response, or the tool's, was JSON.
fn has_json(facts: &Facts) -> bool {
    let forms = [
        facts.legacy.as_ref().map(|legacy| legacy.answers),
        facts.modern.as_ref().map(|modern| modern.answers),
        facts.tool.as_ref().map(|tool| tool.answers),
    ];
    forms.contains(&Some(Form::Json))
}

fn has_sessions(facts: &Facts) -> bool {
    matches!(facts.legacy, Some(Legacy { session: true, .. }))
}

/// Returns true if the server was seen to ping.
fn pings(facts: &Facts) -> bool {
    facts.watch.is_some_and(|watch| watch.pings > 0)
}

/// Returns the time without a message after which the server ended a session, at most.
fn fatal_silence(facts: &Facts) -> Option<Duration> {
    let watch = facts.watch.filter(Watch::ended_in_silence)?;
    watch.silent_ms.map(Duration::from_millis)
}

fn has_standalone(facts: &Facts) -> bool {
    matches!(facts.legacy, Some(Legacy { standalone: Standalone::Stream, .. }))
}

/// Formats a measured time: milliseconds below a second, else seconds with one digit at most.
pub(super) fn about(ms: u64) -> String {
    match (ms.saturating_add(50)) / 100 {
        0..10 => format!("{ms} ms"),
        tenths if tenths % 10 == 0 => format!("{} s", tenths / 10),
        tenths => format!("{}.{} s", tenths / 10, tenths % 10),
    }
}

/// Formats a duration in the largest unit that is exact.
pub(super) fn in_words(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 1000 != 0 => format!("{ms} ms"),
        ms if ms % 60_000 == 0 && ms > 0 => format!("{} min", ms / 60_000),
        ms => format!("{} s", ms / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::samples::*;
    use super::super::facts::{Document, Modern, ToolRun, Tools};
    use super::*;
    use crate::config::ResumeTokens;

    type List = fn(&Facts, &Config) -> Vec<String>;
    type Case = (List, fn(&mut Facts), &'static str);

    fn config() -> Config {
        Config::for_upstream("http://127.0.0.1:3000").unwrap()
    }

    fn nothing_there() -> Contact {
        Contact::NotMcp { status: 404, content_type: None, redirects: false }
    }

    fn ended() -> Watch {
        Watch { session: SessionState::Ended, stream_ended: true, ..watch() }
    }

    #[test]
    fn the_ends_of_sessions_are_set_against_the_configuration() {
        const KEPT_ALIVE: &str = "while a call runs, the server gets a ping after 3 s";
        const LONGER: &str = "the server ends a session after 5 s without a message";
        const FORGOTTEN: &str = "the server ends sessions whose clients are silent";
        const ANSWERED: &str = "the server's pings are answered";
        const UNANSWERED: &str = "the server pings, and upstream.answer_pings is";
        let pinging = Watch { pings: 2, unanswered_ms: Some(2000), ..watch() };
        let unanswered = Watch { session: SessionState::Ended, ..pinging };
        type Change = fn(&mut Config);
        let rows: [(Watch, Change, &[&str]); 9] = [
            (watch(), |_| {}, &[]),
            (ended(), |_| {}, &[LONGER]),
            (ended(), |config| config.upstream.keepalive = None, &[LONGER]),
            (ended(), |config| config.upstream.keepalive = Some(Duration::from_secs(3)), &[KEPT_ALIVE]),
            (ended(), |config| config.sessions.revive = false, &[LONGER, FORGOTTEN]),
            (pinging, |_| {}, &[ANSWERED]),
            (unanswered, |_| {}, &[ANSWERED]),
            (unanswered, |config| config.upstream.answer_pings = AnswerPings::Never, &[UNANSWERED]),
            (watch(), |config| config.upstream.answer_pings = AnswerPings::Never, &[]),
        ];
        for (watch, change, expected) in rows {
            let facts = Facts { watch: Some(watch), ..speaks() };
            let mut config = config();
            change(&mut config);
            let lines = [adds(&facts, &config), warnings(&facts, &config)].concat();
            let found: Vec<&str> = [KEPT_ALIVE, LONGER, FORGOTTEN, ANSWERED, UNANSWERED]
                .into_iter()
                .filter(|sentence| lines.iter().any(|line| line.starts_with(sentence)))
                .collect();
            let mut expected = expected.to_vec();
            expected.sort_unstable();
            let mut sorted = found.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, expected, "{watch:?}");
        }
    }

    #[test]
    fn what_a_watch_leaves_open_is_a_question() {
        let pinging = Watch { pings: 2, ping_interval_ms: Some(3000), unanswered_ms: Some(2000), ..watch() };
        let rows = [
            (None, Some("whether the server pings its clients, and ends silent sessions")),
            (
                Some(watch()),
                Some("whether the server pings its clients after more than 5 s, or after a call of a tool"),
            ),
            (Some(ended()), None),
            (Some(pinging), Some("whether the server ends a session whose client answers no ping for longer")),
            (Some(Watch { session: SessionState::Ended, ..pinging }), None),
        ];
        for (watch, question) in rows {
            let mut facts = Facts { watch, ..speaks() };
            let asks = |facts: &Facts| {
                let lines = unknown(facts).into_iter();
                lines.filter(|line| line.starts_with("whether the server")).collect::<Vec<_>>()
            };
            assert_eq!(asks(&facts), Vec::<String>::new(), "there is no session");
            legacy(&mut facts).session = true;
            let asked = asks(&facts);
            assert_eq!(asked.len(), usize::from(question.is_some()), "{asked:?}");
            assert!(asked.iter().zip(question).all(|(asked, question)| asked.starts_with(question)), "{asked:?}");
        }
    }

    #[test]
    fn a_measured_time_is_rounded() {
        for (ms, text) in [(0, "0 ms"), (949, "949 ms"), (950, "1 s"), (2949, "2.9 s"), (300_004, "300 s")] {
            assert_eq!(about(ms), text);
        }
    }

    /// The sample lacks the sentence; the change adds it once.
    #[test]
    fn each_fact_adds_its_sentence() {
        let unknown: List = |facts, _| unknown(facts);
        let rows: [Case; 27] = [
            (adds, |facts| legacy(facts).numbered = true, "ids of its own"),
            (
                adds,
                |facts| legacy(facts).answers = Form::Json,
                "an answer in JSON passes as it is if it comes within 2 s",
            ),
            (adds, |facts| legacy(facts).session = true, "the same POST again"),
            (adds, |facts| legacy(facts).standalone = Standalone::Stream, "the session's GET stream"),
            (
                adds,
                |facts| facts.modern = Some(modern()),
                "at 2026-07-28, where to disconnect is to cancel, a call waits 3 s",
            ),
            (adds, |facts| facts.modern = Some(modern()), "a tool call that runs for 20 s becomes a task"),
            (clients, |facts| facts.modern = Some(modern()), "a client gets tasks if it declares"),
            (
                warnings,
                |facts| facts.modern = Some(modern()),
                "a restart or deploy of mcp-resume fails the tasks that run for longer than its drain \
                 (replica.drain_timeout_secs, 30 s); with the store in memory the outcomes of ended ones are lost, too",
            ),
            (
                warnings,
                |facts| {
                    facts.modern = Some(modern());
                    facts.anonymous = Guard::Refused { status: 401, scheme: None };
                },
                "a task belongs to the credentials of its call",
            ),
            (
                clients,
                |facts| legacy(facts).standalone = Standalone::Stream,
                "a Python client survives two hard cuts of its GET",
            ),
            (
                clients,
                |facts| facts.tool = Some(ToolRun { answers: Form::Json, ..run() }),
                "a client that is cut before the first byte",
            ),
            (
                clients,
                |facts| legacy(facts).session = true,
                "the stream of a caller without credentials can be read with",
            ),
            (warnings, |facts| facts.oauth = vec![document(true)], "/.well-known/x names the server's own origin"),
            (warnings, |facts| facts.http_sse = vec!["/sse".to_owned()], "HTTP+SSE of 2024-11-05 at /sse"),
            (warnings, |facts| facts.foreign_host = refused(), "the server checks Host, but"),
            (warnings, |facts| facts.foreign_host = Guard::Accepted, "the server does not check Host"),
            (warnings, |facts| facts.foreign_origin = Guard::Accepted, "the server does not check Origin"),
            (
                warnings,
                |facts| facts.endpoint_at = Some("/".to_owned()),
                "an MCP endpoint answers at another path: give --upstream http://127.0.0.1:3000/",
            ),
            (warnings, |facts| facts.contact = nothing_there(), "there is nothing at this path"),
            (warnings, |facts| facts.mcp_resume = true, "what answers is an mcp-resume"),
            (
                unknown,
                |facts| facts.contact = Contact::Refused { status: 401, scheme: Some("Bearer".to_owned()) },
                "everything behind the credentials: give --header 'Authorization: Bearer TOKEN'",
            ),
            (
                unknown,
                |facts| facts.contact = Contact::Refused { status: 401, scheme: Some("Basic".to_owned()) },
                "everything behind the credentials: give --header 'Authorization: Basic …'",
            ),
            (
                unknown,
                |facts| {
                    facts.with_headers = true;
                    facts.contact = Contact::Refused { status: 403, scheme: None };
                },
                "everything behind the credentials: those that were given were refused; the server does not say",
            ),
            (unknown, |facts| facts.fell_silent = true, "the server stopped answering"),
            (
                unknown,
                |facts| facts.tool = Some(ToolRun { outcome: ToolOutcome::Error, ..run() }),
                "how a long call is cut and resumed: the tool",
            ),
            (unknown, |facts| facts.tool = Some(run()), "whether a tool runs on"),
            (unknown, |facts| facts.tool = Some(ToolRun { numbered: true, ..run() }), "how a running call is resumed"),
        ];
        for (list, change, sentence) in rows {
            let mut facts = speaks();
            let count = |facts: &Facts| list(facts, &config()).iter().filter(|line| line.starts_with(sentence)).count();
            assert_eq!(count(&facts), 0, "{sentence}");
            change(&mut facts);
            assert_eq!(count(&facts), 1, "{sentence}");
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_configuration() {
        let mut config = config();
        config.delivery.retry = Duration::from_millis(2500);
        config.delivery.commit_after = None;
        config.streams.max_wait = None;
        let mut facts = speaks();
        legacy(&mut facts).answers = Form::Json;
        facts.modern = Some(modern());
        let adds = adds(&facts, &config).join("\n");
        for part in ["(until it ends)", "nothing of it can be resumed", "waits 6 s"] {
            assert!(adds.contains(part), "{part}: {adds}");
        }
        assert!(clients(&facts, &config).join("\n").contains("2500 ms apart: they survive an outage of about 5 s"));
    }

    #[test]
    fn tasks_that_the_proxy_does_not_add_are_not_spoken_of() {
        let facts = |tasks| Facts { modern: Some(Modern { tasks, ..modern() }), ..speaks() };
        let says = |facts: &Facts, config: &Config| {
            let lists = [adds(facts, config), clients(facts, config), warnings(facts, config)];
            lists.concat().iter().filter(|line| line.contains("task")).count()
        };
        let off = Config { tasks: None, ..config() };
        assert_eq!(says(&facts(false), &config()), 3);
        assert_eq!((says(&facts(true), &config()), says(&facts(false), &off)), (0, 0));
    }

    #[test]
    fn configured_tools_that_cannot_be_sliced_are_named() {
        let mut facts = speaks();
        facts.tools = Some(Tools {
            count: 2,
            complete: true,
            names: vec!["exact".into(), "other".into()],
            with_output_schema: vec!["exact".into(), "other".into()],
        });
        let mut config = config();
        let names_tool = |config: &Config| clients(&facts, config).join("\n").contains("calls of exact are never");
        assert!(!names_tool(&config));
        let tools = ["exact", "slow"].map(str::to_owned).into();
        let tokens = ResumeTokens { slice: Duration::from_secs(30), tools, methods: Default::default() };
        config.dialects.resume_tokens = Some(std::sync::Arc::new(tokens));
        assert!(names_tool(&config));
    }

    #[test]
    fn nothing_is_promised_for_an_unusable_server() {
        for contact in [Contact::Silent, Contact::Broke, Contact::Refused { status: 401, scheme: None }] {
            let mut facts = speaks();
            facts.contact = contact;
            facts.foreign_host = Guard::Accepted;
            let config = config();
            assert_eq!(
                [adds(&facts, &config), clients(&facts, &config), warnings(&facts, &config)].concat(),
                Vec::<String>::new()
            );
        }
    }

    #[test]
    fn a_document_with_another_origin_causes_no_warning() {
        let mut facts = speaks();
        facts.oauth = vec![Document { names_upstream: false, ..document(true) }];
        assert_eq!(warnings(&facts, &config()), Vec::<String>::new());
    }

    #[test]
    fn durations_are_exact() {
        for (ms, text) in [(500, "500 ms"), (2500, "2500 ms"), (0, "0 s"), (90_000, "90 s"), (600_000, "10 min")] {
            assert_eq!(in_words(Duration::from_millis(ms)), text);
        }
    }
}
