//! Findings about a server: the conditions of each.
//!
//! The order of the report, and the sentences, are in the table of [`Findings`].

use std::time::Duration;

use super::eras;
use super::facts::{
    Contact, Facts, Form, Guard, SessionState, Standalone, ToolOutcome, UnknownSession, Watch, millis, printable,
};
use super::findings::Findings;
use super::oauth;
use super::stdio_hosts;
use super::verdict::Verdict;
use crate::config::{AnswerPings, Config, HostHeader, PrincipalSource, Store, Tasks};

/// Words of servers with one session for the whole process, in lower case.
const ONE_SESSION: &str = "already initialized";

/// Returns the findings about a server, for a proxy with this configuration.
pub(super) fn findings(facts: &Facts, config: &Config) -> Findings {
    let mut found = Findings::default();
    find_places(facts, config, &mut found);
    if Verdict::of(facts).can_stand_in_front() {
        if !facts.mcp_resume {
            find_additions(facts, config, &mut found);
            eras::find(facts, config, &mut found);
        }
        find_limits_of_clients(facts, config, &mut found);
        find_limits_of_tasks(facts, config, &mut found);
        find_risks(facts, config, &mut found);
    }
    find_unknown(facts, &mut found);
    found
}

/// Finds the endpoints to use in place of the configured one, or beside it.
fn find_places(facts: &Facts, config: &Config, found: &mut Findings) {
    let origin = config.upstream.url.origin();
    match &facts.contact {
        Contact::NotMcp { status, redirects_to: Some(place), .. } => found.add("redirect", &[status, place]),
        Contact::Declined { message, .. } if message.to_lowercase().contains(ONE_SESSION) => {
            found.add("one-session", &[]);
        }
        _ => {}
    }
    if let Some(path) = &facts.endpoint_at {
        found.add("other-path", &[&origin, path]);
    } else if matches!(facts.contact, Contact::NotMcp { status: 404, .. }) {
        let place = if facts.event_stream.is_some() { "event stream" } else { "MCP endpoint" };
        found.add("wrong-path", &[&place]);
    }
    if let Some(host) = facts.refusal.as_ref().and_then(|refusal| refusal.accepted_host.as_ref()) {
        found.add("localhost", &[host]);
    }
    if let Some(lines) = facts.program.map(|program| program.text_lines).filter(|lines| *lines > 0) {
        found.add("stdout-text", &[&if lines == 1 { "a line".to_owned() } else { format!("{lines} lines") }]);
    }
    found.add_if(matches!(facts.contact, Contact::NotStarted { .. }), "environment");
    oauth::find(facts, config, found);
    for path in &facts.http_sse {
        found.add("http-sse", &[path, &origin, path]);
    }
}

/// Finds the features that the proxy adds.
fn find_additions(facts: &Facts, config: &Config, found: &mut Findings) {
    found.add(if facts.is_numbered() { "own-ids" } else { "ids" }, &[]);
    let wait = config.streams.max_wait.map_or("until it ends".to_owned(), |wait| format!("for {}", in_words(wait)));
    found.add("kept-calls", &[&wait]);
    match config.delivery.commit_after {
        _ if !has_json(facts) => {}
        None => found.add("json", &[]),
        Some(after) => found.add("late-json", &[&in_words(after)]),
    }
    found.add_if(has_sessions(facts), "repeated-posts");
    if facts.program.is_some() {
        let idle = config.upstream.command.as_ref().and_then(|command| command.idle).map(in_words);
        found.add("processes", &[&idle.map_or(String::new(), |idle| format!("after {idle} without a call, "))]);
    }
    if facts.event_stream.is_some() {
        let idle = config.upstream.sse.as_ref().and_then(|server| server.idle).map(in_words);
        found.add("event-streams", &[&idle.map_or(String::new(), |idle| format!(", and after {idle} without a call"))]);
    }
    if config.sessions.revive && facts.event_stream.is_some() {
        found.add("revived-stream", &[]);
    } else if config.sessions.revive && facts.program.is_some() {
        found.add("revived-process", &[]);
    } else if matches!(unknown_session(facts), UnknownSession::Recognised { .. }) {
        found.add_if(config.sessions.revive, "revived-session");
    }
    found.add_if(pings(facts) && config.upstream.answer_pings == AnswerPings::Absent, "answered-pings");
    if let (Some(silence), Some(keepalive)) = (fatal_silence(facts), config.upstream.keepalive)
        && keepalive < silence
    {
        found.add("keepalive", &[&in_words(keepalive)]);
    }
    found.add_if(has_standalone(facts), "kept-stream");
    if facts.modern.is_some() {
        found.add("grace", &[&grace(config)]);
    }
    if let Some(tasks) = added_tasks(facts, config) {
        found.add("tasks", &[&in_words(tasks.after)]);
    }
}

/// Describes the time that a call of 2026-07-28 waits for its client: by default two tries at the
/// last `retry`.
fn grace(config: &Config) -> String {
    let (retry, long) = (config.delivery.retry, config.delivery.retry_long);
    let of = |retry: Duration| in_words(retry * 2 + Duration::from_secs(1));
    match config.streams.modern_grace {
        Some(grace) => in_words(grace),
        None if long > retry => {
            format!("{} (once it has run for {}, {})", of(retry), in_words(config.delivery.retry_long_after), of(long))
        }
        None => of(retry),
    }
}

/// Returns the terms of tasks that the proxy adds, or `None` if it adds none.
fn added_tasks<'a>(facts: &Facts, config: &'a Config) -> Option<&'a Tasks> {
    let has_none = facts.modern.as_ref().is_some_and(|modern| !modern.tasks);
    config.tasks.as_deref().filter(|_| has_none)
}

/// Finds the limits of the server's clients.
fn find_limits_of_clients(facts: &Facts, config: &Config, found: &mut Findings) {
    let (is_anonymous, has_sessions) = (facts.anonymous == Guard::Accepted, has_sessions(facts));
    found.add("resuming-clients", &[]);
    let (retry, long) = (config.delivery.retry, config.delivery.retry_long);
    let later = format!("; in a call that has run for {}", in_words(config.delivery.retry_long_after));
    let later = format!("{later}, of about {} (delivery.retry_long_ms)", in_words(long * 2));
    let later = if long > retry { later } else { String::new() };
    found.add("attempts", &[&in_words(retry), &in_words(retry * 2), &later]);
    found.add("client-timeout", &[]);
    found.add("hard-cuts", &[]);
    found.add_if(has_standalone(facts), "hard-cuts-of-stream");
    found.add_if(has_json(facts), "cut-before-first-byte");
    found.add_if(!has_sessions, "repeated-tools");
    found.add_if(is_anonymous && has_sessions, "session-as-key");
    found.add_if(is_anonymous && (!has_sessions || facts.modern.is_some()), "event-id-as-key");
    let unsliced = unsliced(facts, config);
    if !unsliced.is_empty() {
        found.add("unsliced-tools", &[&unsliced.join(", ")]);
    }
    found.add("stdio-hosts", &[&stdio_hosts::command(config)]);
}

fn unknown_session(facts: &Facts) -> &UnknownSession {
    facts.legacy.as_ref().map_or(&UnknownSession::Unknown, |legacy| &legacy.unknown_session)
}

/// Returns the tools with partial results in the configuration that can only have whole results.
fn unsliced<'a>(facts: &'a Facts, config: &Config) -> Vec<&'a str> {
    let (Some(tools), Some(tokens)) = (&facts.tools, &config.dialects.resume_tokens) else { return Vec::new() };
    let structured = tools.with_output_schema.iter().map(String::as_str);
    structured.filter(|name| tokens.tools.iter().any(|tool| printable(tool) == *name)).collect()
}

/// Finds the losses and attacks that the configuration does not prevent.
fn find_risks(facts: &Facts, config: &Config, found: &mut Findings) {
    found.add_if(facts.mcp_resume, "mcp-resume");
    if facts.event_stream.is_some() {
        found.add("broken-stream", &[]);
        found.add("serve-http-sse", &[&facts.upstream]);
    }
    match unknown_session(facts) {
        UnknownSession::Unrecognised { status, words: Some(words) } => {
            found.add("unknown-words", &[status, status, &in_toml(words)]);
        }
        UnknownSession::Unrecognised { status: status @ 404, words: None } => found.add("no-words-404", &[status]),
        UnknownSession::Unrecognised { status, words: None } => found.add("no-words", &[status]),
        UnknownSession::Recognised { .. } | UnknownSession::Accepted | UnknownSession::Unknown => {}
    }
    found.add_if(pings(facts) && config.upstream.answer_pings == AnswerPings::Never, "unanswered-pings");
    if let Some(silence) = fatal_silence(facts) {
        if config.upstream.keepalive.is_none_or(|keepalive| keepalive >= silence) {
            found.add("fatal-silence", &[&about(millis(silence))]);
        }
        found.add_if(!config.sessions.revive, "no-revival");
    }
    let is_host_checked = matches!(facts.foreign_host, Guard::Refused { .. });
    found.add_if(is_host_checked && config.upstream.host != HostHeader::Client, "checked-host");
    found.add_if(facts.foreign_host == Guard::Accepted, "unchecked-host");
    found.add_if(facts.foreign_origin == Guard::Accepted, "unchecked-origin");
}

/// Finds the terms of tasks, and the events that tasks do not survive.
fn find_limits_of_tasks(facts: &Facts, config: &Config, found: &mut Findings) {
    if added_tasks(facts, config).is_none() {
        return;
    }
    found.add("declared-tasks", &[]);
    let rest = match config.store {
        Store::Memory => "; with the store in memory the outcomes of ended ones are lost, too",
        Store::Disk(_) | Store::Redis(_) => "",
    };
    found.add("drained-tasks", &[&in_words(config.replica.drain_timeout), &rest]);
    let has_credentials = matches!(facts.anonymous, Guard::Refused { .. });
    found.add_if(has_credentials && config.auth.principal == PrincipalSource::Auto, "tasks-of-tokens");
}

/// Finds the facts that are unknown, each with the way to find it out.
fn find_unknown(facts: &Facts, found: &mut Findings) {
    found.add_if(facts.fell_silent, "silence");
    if let Some(status) = facts.contact.status().filter(|_| Verdict::of(facts) == Verdict::Unavailable) {
        found.add("busy", &[&status]);
    }
    match (&facts.contact, &facts.tool) {
        // A server on a channel resumes nothing, and its calls run on.
        (Contact::Speaks, _) if facts.has_channels() => return,
        (Contact::Speaks, None) => found.add("no-tool", &[]),
        (Contact::Speaks, Some(run)) if run.outcome != ToolOutcome::Result => found.add("no-result", &[]),
        (Contact::Speaks, Some(run)) if !run.numbered => found.add("no-ids", &[]),
        (Contact::Speaks, Some(_)) => found.add_if(facts.resumption.running.is_none(), "no-cut"),
        (Contact::Refused { .. }, _) if Verdict::of(facts) == Verdict::WantsHost => return,
        (Contact::Refused { scheme, .. }, _) => {
            let refused = if facts.with_headers { "those that were given were refused; " } else { "" };
            let code = match scheme.as_deref() {
                None => "no-scheme",
                Some(scheme) if scheme.eq_ignore_ascii_case("bearer") => "bearer",
                Some(scheme) if scheme.eq_ignore_ascii_case("basic") => "basic",
                Some(_) => "scheme",
            };
            return found.add(code, &[&refused, &scheme.as_deref().unwrap_or_default()]);
        }
        _ => return,
    }
    if has_sessions(facts) {
        find_unwatched(facts, found);
    }
}

/// Finds the facts about the session that its watch does not show.
fn find_unwatched(facts: &Facts, found: &mut Findings) {
    let Some(watch) = facts.watch else { return found.add("no-watch", &[]) };
    if watch.pings == 0 && !watch.ended_in_silence() {
        let tool = if facts.tool.is_none() { ", or after a call of a tool (--tool)" } else { "" };
        let (watched, silent) = (about(watch.watched_ms), about(watch.silent_ms.unwrap_or(0)));
        found.add("longer-watch", &[&watched, &tool, &silent]);
    }
    found.add_if(watch.pings > 0 && watch.session == SessionState::Lives, "longer-silence");
}

/// Returns a text as it is written between the quotation marks of a TOML string.
fn in_toml(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#)
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
    facts.legacy.as_ref().is_some_and(|legacy| legacy.session)
}

/// Returns true if the server was seen to ping.
fn pings(facts: &Facts) -> bool {
    facts.watch.is_some_and(|watch| watch.pings > 0)
}

/// Returns the longest time without a message that a session can have survived.
fn fatal_silence(facts: &Facts) -> Option<Duration> {
    let watch = facts.watch.filter(Watch::ended_in_silence)?;
    watch.silent_ms.map(Duration::from_millis)
}

fn has_standalone(facts: &Facts) -> bool {
    facts.legacy.as_ref().is_some_and(|legacy| legacy.standalone == Standalone::Stream)
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
    use super::super::facts::{Modern, ToolRun, Tools};
    use super::*;
    use crate::config::ResumeTokens;

    type List = fn(&Facts, &Config) -> Vec<String>;
    type Case = (List, fn(&mut Facts), &'static str);

    fn config() -> Config {
        Config::for_upstream("http://127.0.0.1:3000").unwrap()
    }

    fn adds(facts: &Facts, config: &Config) -> Vec<String> {
        findings(facts, config).list(0)
    }

    fn clients(facts: &Facts, config: &Config) -> Vec<String> {
        findings(facts, config).list(1)
    }

    fn warnings(facts: &Facts, config: &Config) -> Vec<String> {
        findings(facts, config).list(2)
    }

    fn unknown(facts: &Facts) -> Vec<String> {
        findings(facts, &config()).list(3)
    }

    fn nothing_there() -> Contact {
        Contact::NotMcp { status: 404, content_type: None, redirects_to: None }
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
                "a break of a session's GET stream counts like one of a call",
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
        for part in ["(until it ends)", "nothing of it can be resumed", "waits 6 s (once it has run for 10 s, 11 s)"] {
            assert!(adds.contains(part), "{part}: {adds}");
        }
        assert!(clients(&facts, &config).join("\n").contains("2500 ms apart: they survive an outage of about 5 s (delivery.retry_ms); in a call that has run for 10 s, of about 10 s"));
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
        facts.oauth = vec![document(false)];
        assert_eq!(warnings(&facts, &config()), Vec::<String>::new());
    }

    #[test]
    fn durations_are_exact() {
        for (ms, text) in [(500, "500 ms"), (2500, "2500 ms"), (0, "0 s"), (90_000, "90 s"), (600_000, "10 min")] {
            assert_eq!(in_words(Duration::from_millis(ms)), text);
        }
    }
}
