//! Advice that follows from the facts: additions of the proxy, notes for clients, warnings, open questions.
//!
//! Each has one function, a flat table of conditions and sentences. A sentence is true of this version of the proxy, or
//! was measured with the clients that it names.

use std::time::Duration;

use super::facts::{Contact, Facts, Form, Guard, Legacy, Resumed, Standalone, ToolOutcome, printable};
use super::verdict::Verdict;
use crate::config::{Config, HostHeader};

/// A sentence, and whether it is to be said.
type Row = (bool, String);

/// Returns the features that the proxy adds in front of the server.
pub(super) fn adds(facts: &Facts, config: &Config) -> Vec<String> {
    if facts.mcp_resume || !Verdict::of(facts).can_stand_in_front() {
        return Vec::new();
    }
    let kept = config.streams.max_wait.map_or("until it ends".to_owned(), |wait| format!("for {}", words(wait)));
    let commit = config.delivery.commit_after;
    let grace = config.streams.modern_grace.unwrap_or(config.delivery.retry * 2 + Duration::from_secs(1));
    said([
        (
            !facts.is_numbered(),
            "an id on every event, and an empty event with an id at the head of every event stream".to_owned(),
        ),
        (
            facts.is_numbered(),
            "ids of its own on every event; clients no longer see or need the server's".to_owned(),
        ),
        (
            true,
            format!(
                "a call goes on when its client is gone ({kept}), and the client that comes back gets the rest, the result \
                 included"
            ),
        ),
        (
            answers_json(facts),
            commit.map_or(
                "an answer in JSON passes as it is (commit_after_ms is 0); nothing of it can be resumed".to_owned(),
                |after| {
                    format!(
                        "an answer in JSON passes as it is if it comes within {}; a later one comes as an event stream that \
                         can be resumed, for callers whom the server has accepted before",
                        words(after)
                    )
                },
            ),
        ),
        (
            has_sessions(facts),
            "the same POST again in its session finds the running call, and the tool runs once".to_owned(),
        ),
        (
            has_standalone(facts),
            "the session's GET stream is kept while its client is away, and reopened if the server drops it".to_owned(),
        ),
        (
            facts.modern.is_some(),
            format!(
                "at 2026-07-28, where to disconnect is to cancel, a call waits {} for its client before it is cancelled",
                words(grace)
            ),
        ),
    ])
}

/// Returns the notes for the server's clients.
pub(super) fn clients(facts: &Facts, config: &Config) -> Vec<String> {
    if !Verdict::of(facts).can_stand_in_front() {
        return Vec::new();
    }
    let retry = config.delivery.retry;
    let is_anonymous = facts.anonymous == Guard::Accepted;
    said([
        (
            true,
            "the TypeScript SDK since 1.23, the Python SDK since 1.23, FastMCP 4 and rmcp 3 come back by themselves; older \
             TypeScript and Python ones never do"
                .to_owned(),
        ),
        (
            true,
            format!(
                "TypeScript and Python try twice, {} apart: they survive an outage of about {} (delivery.retry_ms)",
                words(retry),
                words(retry * 2)
            ),
        ),
        (
            true,
            "a TypeScript client gives a request 60 s unless the application says otherwise, and being away counts"
                .to_owned(),
        ),
        (
            true,
            "a Python client survives two hard cuts of one call, more where graceful ends lie between; others any number"
                .to_owned(),
        ),
        (
            has_standalone(facts),
            "a Python client survives two hard cuts of its GET stream in its life, more where graceful ends lie between"
                .to_owned(),
        ),
        (
            answers_json(facts),
            "a client that is cut before the first byte of an answer has no id to resume with".to_owned(),
        ),
        (
            facts.contact == Contact::Speaks && !has_sessions(facts),
            "without a session, a POST that is sent again runs its tool again, unless it has credentials and an \
             Idempotency-Key"
                .to_owned(),
        ),
        (
            is_anonymous && has_sessions(facts),
            "the stream of a caller without credentials can be read with the session's id and an event's id: keep both \
             out of logs"
                .to_owned(),
        ),
        (
            is_anonymous && (!has_sessions(facts) || facts.modern.is_some()),
            "of a caller without credentials and session, an event's id is the only key to its stream: keep it out of logs"
                .to_owned(),
        ),
        (
            !unsliced(facts, config).is_empty(),
            format!(
                "calls of {} are never answered in slices, even if [dialects.resume_tokens] names them: a tool with an \
                 outputSchema has results that can only come whole",
                unsliced(facts, config).join(", ")
            ),
        ),
    ])
}

/// The tools that are to be answered in slices and cannot be.
fn unsliced<'a>(facts: &'a Facts, config: &Config) -> Vec<&'a str> {
    let (Some(tools), Some(tokens)) = (&facts.tools, &config.dialects.resume_tokens) else { return Vec::new() };
    let structured = tools.with_output_schema.iter().map(String::as_str);
    structured.filter(|name| tokens.tools.iter().any(|tool| printable(tool) == *name)).collect()
}

/// Returns the warnings for a proxy in front of the server.
pub(super) fn warnings(facts: &Facts, config: &Config) -> Vec<String> {
    let useful = Verdict::of(facts).can_stand_in_front();
    let is_checked = matches!(facts.foreign_host, Guard::Refused { .. });
    let redirected = matches!(facts.contact, Contact::NotMcp { redirects: true, .. });
    let is_missing = matches!(facts.contact, Contact::NotMcp { status: 404, .. });
    let origin = config.upstream.url.origin();
    let found = facts.endpoint_at.as_deref().unwrap_or_default();
    let mut rows = vec![
        (
            redirected,
            "the endpoint redirects to another place, which is not followed: give the place itself".to_owned(),
        ),
        (!found.is_empty(), format!("an MCP endpoint answers at another path: give --upstream {origin}{found}")),
        (
            is_missing && found.is_empty(),
            "there is nothing at this path: give the URL with the path of the server's MCP endpoint".to_owned(),
        ),
        (
            useful && facts.mcp_resume,
            "what answers is an mcp-resume: clients can be given this URL; a second one in front adds nothing"
                .to_owned(),
        ),
    ];
    rows.extend(facts.oauth.iter().map(|document| {
        let path = &document.path;
        let told = "names the server's own origin and is not rewritten: clients that follow it go around the proxy";
        (document.names_upstream, format!("{path} {told}"))
    }));
    rows.extend(
        facts.http_sse.iter().map(|path| {
            (true, format!("HTTP+SSE of 2024-11-05 at {path} passes through as it is and cannot be resumed"))
        }),
    );
    rows.extend([
        (
            useful && is_checked && config.upstream.host != HostHeader::Client,
            "the server checks Host, but the proxy tells it the name it expects (upstream.host): the proxy's own check is \
             listen.allowed_hosts, which takes any name unless it listens on a loopback address"
                .to_owned(),
        ),
        (
            useful && facts.foreign_host == Guard::Accepted,
            "the server does not check Host: a web page can reach it by DNS rebinding unless something in front of it does"
                .to_owned(),
        ),
        (
            useful && facts.foreign_origin == Guard::Accepted,
            "the server does not check Origin: any web page may call it unless something in front of it does".to_owned(),
        ),
    ]);
    said(rows)
}

/// Returns the open questions, each with a way to settle it.
pub(super) fn unknown(facts: &Facts) -> Vec<String> {
    let speaks = facts.contact == Contact::Speaks;
    let run = facts.tool.as_ref();
    let has_result = run.is_some_and(|run| run.outcome == ToolOutcome::Result);
    let is_numbered = run.is_some_and(|run| run.numbered);
    said([
        (facts.fell_silent, "the server stopped answering: what is not said here was not asked".to_owned()),
        (matches!(facts.contact, Contact::Refused { .. }), credentials(facts)),
        (
            speaks && run.is_none(),
            "how a long call is answered, cut and resumed: name a tool that is safe to run, with --tool and --arguments"
                .to_owned(),
        ),
        (
            speaks && run.is_some() && !has_result,
            "how a long call is cut and resumed: the tool gave no result".to_owned(),
        ),
        (
            speaks && has_result && !is_numbered,
            "whether a tool runs on when its client leaves: without ids that cannot be seen from outside; servers with \
             sessions tend to run on and lose the result, others to cancel. Behind the proxy the client does not leave"
                .to_owned(),
        ),
        (
            speaks && has_result && is_numbered && facts.resumption.running.is_none(),
            "how a running call is resumed: the tool sends nothing before its response, so it could not be cut".to_owned(),
        ),
    ])
}

/// Returns the header that a server which refuses should be sent.
fn credentials(facts: &Facts) -> String {
    let scheme = match &facts.contact {
        Contact::Refused { scheme, .. } => scheme.as_deref(),
        _ => None,
    };
    let header = match scheme {
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
    };
    let refused = if facts.with_headers { "those that were given were refused; " } else { "" };
    format!("everything behind the credentials: {refused}{header}")
}

fn said(rows: impl IntoIterator<Item = Row>) -> Vec<String> {
    rows.into_iter().filter_map(|(holds, line)| holds.then_some(line)).collect()
}

/// Returns true if responses, or the tool's, came as JSON.
fn answers_json(facts: &Facts) -> bool {
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

fn has_standalone(facts: &Facts) -> bool {
    matches!(facts.legacy, Some(Legacy { standalone: Standalone::Stream, .. }))
}

/// A resume in words.
pub(super) fn resumed(resumed: Resumed) -> String {
    match resumed {
        Resumed::Held => "everything came, once".to_owned(),
        Resumed::Lost { got, of } => format!("{got} of {of} messages came"),
        Resumed::Repeated => "a message came again".to_owned(),
        Resumed::Refused { status } => format!("refused ({status})"),
        Resumed::Unanswered => "not answered".to_owned(),
    }
}

/// A time in words, in the largest unit that says it exactly.
pub(super) fn words(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 1000 != 0 => format!("{ms} ms"),
        ms if ms % 60_000 == 0 && ms > 0 => format!("{} min", ms / 60_000),
        ms => format!("{} s", ms / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::samples::*;
    use super::super::facts::{Document, ToolRun, Tools};
    use super::*;
    use crate::config::ResumeTokens;

    type Told = fn(&Facts, &Config) -> Vec<String>;
    type Case = (Told, fn(&mut Facts), &'static str);

    fn config() -> Config {
        Config::for_upstream("http://127.0.0.1:3000").unwrap()
    }

    fn nothing_there() -> Contact {
        Contact::NotMcp { status: 404, content_type: None, redirects: false }
    }

    /// Each change brings exactly the sentence that begins so, and the sample is without it.
    #[test]
    fn a_fact_brings_its_sentence() {
        let unknown: Told = |facts, _| unknown(facts);
        let rows: [Case; 23] = [
            (adds, |facts| legacy(facts).numbered = true, "ids of its own"),
            (
                adds,
                |facts| legacy(facts).answers = Form::Json,
                "an answer in JSON passes as it is if it comes within 500 ms",
            ),
            (adds, |facts| legacy(facts).session = true, "the same POST again"),
            (adds, |facts| legacy(facts).standalone = Standalone::Stream, "the session's GET stream"),
            (
                adds,
                |facts| facts.modern = Some(modern()),
                "at 2026-07-28, where to disconnect is to cancel, a call waits 3 s",
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
        for (told, change, sentence) in rows {
            let mut facts = speaks();
            let says = |facts: &Facts| told(facts, &config()).iter().filter(|line| line.starts_with(sentence)).count();
            assert_eq!(says(&facts), 0, "{sentence}");
            change(&mut facts);
            assert_eq!(says(&facts), 1, "{sentence}");
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
    fn tools_that_cannot_be_sliced_are_named_where_they_were_to_be() {
        let mut facts = speaks();
        facts.tools = Some(Tools {
            count: 2,
            complete: true,
            names: vec!["exact".into(), "other".into()],
            with_output_schema: vec!["exact".into(), "other".into()],
        });
        let mut config = config();
        let says = |config: &Config| clients(&facts, config).join("\n").contains("calls of exact are never");
        assert!(!says(&config));
        let tools = ["exact", "slow"].map(str::to_owned).into();
        let tokens = ResumeTokens { slice: Duration::from_secs(30), tools, methods: Default::default() };
        config.dialects.resume_tokens = Some(std::sync::Arc::new(tokens));
        assert!(says(&config));
    }

    #[test]
    fn of_a_server_that_it_cannot_help_nothing_is_promised() {
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
    fn a_document_that_names_another_origin_is_no_reason_to_warn() {
        let mut facts = speaks();
        facts.oauth = vec![Document { names_upstream: false, ..document(true) }];
        assert_eq!(warnings(&facts, &config()), Vec::<String>::new());
    }

    #[test]
    fn times_are_said_exactly() {
        for (ms, text) in [(500, "500 ms"), (2500, "2500 ms"), (0, "0 s"), (90_000, "90 s"), (600_000, "10 min")] {
            assert_eq!(words(Duration::from_millis(ms)), text);
        }
    }
}
