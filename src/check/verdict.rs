//! The verdict: one line about an upstream, a pure function of the facts.

use serde::Serialize;

use super::facts::{Contact, Facts, ResumeOutcome};

/// Suitability of an upstream for this proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No connection.
    Unreachable,
    /// The program of a server on stdio does not start.
    NotStarted,
    /// A connection, but no TLS.
    NoTls,
    /// A connection, but http where https was meant, or the reverse.
    OtherScheme,
    /// A connection, but no response.
    DoesNotAnswer,
    /// 401 or 403 to every request; nothing else is known.
    WantsCredentials,
    /// The server refuses the name in the URL, and accepts `localhost`.
    WantsHost,
    /// HTTP+SSE of 2024-11-05 alone.
    HttpSseOnly,
    /// No HTTP+SSE where the user expects it.
    NoHttpSse,
    /// The upstream knows JSON-RPC, but accepts no opening of the probe.
    Declines,
    /// The server or its gateway answers that it cannot serve now; nothing else is known.
    Unavailable,
    /// An HTTP server of another kind.
    NoMcp,
    /// All responses were JSON: the probe saw no stream that could be resumed.
    Unseen,
    /// Events have no ids.
    CannotResume,
    /// Events have ids, but a resume loses or repeats messages.
    ResumesUnreliably,
    /// Events have ids; no stream could be cut.
    Untried,
    /// Every tried resume succeeded.
    Resumes,
}

impl Verdict {
    /// The verdict on these facts.
    pub fn of(facts: &Facts) -> Self {
        match facts.contact {
            Contact::Unreachable { .. } => Verdict::Unreachable,
            Contact::NotStarted { .. } => Verdict::NotStarted,
            Contact::NoEventStream { .. } => Verdict::NoHttpSse,
            Contact::Broke | Contact::NotMcp { .. } if facts.event_stream.is_some() => Verdict::NoHttpSse,
            Contact::Handshake { .. } => Verdict::NoTls,
            Contact::OtherScheme { .. } => Verdict::OtherScheme,
            _ if facts.contact.is_busy() => Verdict::Unavailable,
            Contact::Silent | Contact::Broke | Contact::Declined { .. } | Contact::NotMcp { .. }
                if !facts.http_sse.is_empty() =>
            {
                Verdict::HttpSseOnly
            }
            Contact::Silent => Verdict::DoesNotAnswer,
            Contact::Refused { .. } | Contact::Declined { .. } | Contact::NotMcp { .. }
                if facts.refusal.as_ref().is_some_and(|refusal| refusal.accepted_host.is_some()) =>
            {
                Verdict::WantsHost
            }
            Contact::Refused { .. } => Verdict::WantsCredentials,
            Contact::Declined { .. } => Verdict::Declines,
            Contact::NotMcp { status: 500, .. } => Verdict::Unavailable,
            Contact::Broke | Contact::NotMcp { .. } => Verdict::NoMcp,
            Contact::Speaks if !facts.is_numbered() && !facts.has_evidence() => Verdict::Unseen,
            Contact::Speaks if !facts.is_numbered() => Verdict::CannotResume,
            Contact::Speaks => Self::of_resumption(facts),
        }
    }

    fn of_resumption(facts: &Facts) -> Self {
        let resumption = &facts.resumption;
        let tried: Vec<ResumeOutcome> =
            [resumption.finished, resumption.running, resumption.later].into_iter().flatten().collect();
        if tried.is_empty() {
            Verdict::Untried
        } else if tried.iter().all(|resumed| *resumed == ResumeOutcome::Complete) {
            Verdict::Resumes
        } else {
            Verdict::ResumesUnreliably
        }
    }

    /// Returns true if the proxy can usefully stand in front of the upstream. False if that is
    /// unknown.
    pub fn can_stand_in_front(self) -> bool {
        matches!(
            self,
            Verdict::Unseen | Verdict::CannotResume | Verdict::ResumesUnreliably | Verdict::Untried | Verdict::Resumes
        )
    }

    /// One line for people.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Unreachable => "unreachable",
            Verdict::NotStarted => "does not start",
            Verdict::NoTls => "cannot be reached in TLS",
            Verdict::OtherScheme => "does not speak the scheme of this URL",
            Verdict::DoesNotAnswer => "does not answer",
            Verdict::WantsHost => "refuses the name in the URL; nothing more could be found out",
            Verdict::WantsCredentials => "wants credentials; nothing more could be found out",
            Verdict::HttpSseOnly => "does not speak Streamable HTTP, only HTTP+SSE of 2024-11-05",
            Verdict::NoHttpSse => "does not speak HTTP+SSE",
            Verdict::Declines => "takes neither initialize nor server/discover",
            Verdict::Unavailable => "does not serve now; nothing more could be found out",
            Verdict::NoMcp => "does not speak Streamable HTTP",
            Verdict::Unseen => {
                "answered in JSON only, so that nothing was seen of how it resumes; its long calls will be made resumable"
            }
            Verdict::CannotResume => "cannot resume; will be made resumable",
            Verdict::ResumesUnreliably => "resumes by itself, unreliably; will be made reliable",
            Verdict::Untried => "numbers its events, but whether it resumes could not be tried; will be made resumable",
            Verdict::Resumes => "resumes by itself, as far as it was tried; will not depend on that",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::samples::*;
    use super::super::facts::{EventStream, Form, Resumption, ToolRun};
    use super::*;

    type Case = (&'static str, fn(&mut Facts), Verdict, bool);

    fn numbered(
        facts: &mut Facts,
        finished: Option<ResumeOutcome>,
        running: Option<ResumeOutcome>,
        later: Option<ResumeOutcome>,
    ) {
        legacy(facts).numbered = true;
        facts.resumption = Resumption { finished, running, later };
    }

    fn not_mcp() -> Contact {
        Contact::NotMcp { status: 200, content_type: Some("text/html".to_owned()), redirects_to: None }
    }

    #[test]
    fn the_facts_decide_the_verdict() {
        use ResumeOutcome::{Complete, Lost, Refused, Repeated, Unanswered};
        const LOST: ResumeOutcome = Lost { got: 1, of: 2 };
        let rows: [Case; 29] = [
            ("no ids", |_| {}, Verdict::CannotResume, true),
            ("JSON", |facts| legacy(facts).answers = Form::Json, Verdict::Unseen, true),
            (
                "a tool that answers in JSON",
                |facts| {
                    legacy(facts).answers = Form::Json;
                    facts.tool = Some(ToolRun { answers: Form::Json, ..run() });
                },
                Verdict::CannotResume,
                true,
            ),
            (
                "no start",
                |facts| facts.contact = Contact::NotStarted { why: "exit code 1".to_owned() },
                Verdict::NotStarted,
                false,
            ),
            (
                "no event stream",
                |facts| facts.contact = Contact::NoEventStream { why: "status 404".to_owned() },
                Verdict::NoHttpSse,
                false,
            ),
            (
                "a page in place of an event stream",
                |facts| (facts.contact, facts.event_stream) = (not_mcp(), Some(EventStream::default())),
                Verdict::NoHttpSse,
                false,
            ),
            ("no TLS", |facts| facts.contact = Contact::Handshake { why: "expired".to_owned() }, Verdict::NoTls, false),
            (
                "the other scheme",
                |facts| facts.contact = Contact::OtherScheme { scheme: "http" },
                Verdict::OtherScheme,
                false,
            ),
            (
                "modern alone",
                |facts| (facts.legacy, facts.modern) = (None, Some(modern())),
                Verdict::CannotResume,
                true,
            ),
            ("ids", |facts| legacy(facts).numbered = true, Verdict::Untried, true),
            ("the tool's ids", |facts| facts.tool = Some(ToolRun { numbered: true, ..run() }), Verdict::Untried, true),
            (
                "all complete",
                |facts| numbered(facts, Some(Complete), Some(Complete), Some(Complete)),
                Verdict::Resumes,
                true,
            ),
            ("one complete", |facts| numbered(facts, Some(Complete), None, None), Verdict::Resumes, true),
            (
                "lost",
                |facts| numbered(facts, Some(Complete), Some(LOST), Some(Complete)),
                Verdict::ResumesUnreliably,
                true,
            ),
            ("repeated", |facts| numbered(facts, None, Some(Repeated), None), Verdict::ResumesUnreliably, true),
            (
                "refused",
                |facts| numbered(facts, Some(Refused { status: 409 }), None, None),
                Verdict::ResumesUnreliably,
                true,
            ),
            ("unanswered", |facts| numbered(facts, None, None, Some(Unanswered)), Verdict::ResumesUnreliably, true),
            (
                "no listener",
                |facts| facts.contact = Contact::Unreachable { why: "refused".to_owned() },
                Verdict::Unreachable,
                false,
            ),
            ("silence", |facts| facts.contact = Contact::Silent, Verdict::DoesNotAnswer, false),
            ("a break", |facts| facts.contact = Contact::Broke, Verdict::NoMcp, false),
            ("a page", |facts| facts.contact = not_mcp(), Verdict::NoMcp, false),
            (
                "an error",
                |facts| facts.contact = Contact::Declined { status: 400, code: -32000, message: String::new() },
                Verdict::Declines,
                false,
            ),
            (
                "429",
                |facts| facts.contact = Contact::NotMcp { status: 429, content_type: None, redirects_to: None },
                Verdict::Unavailable,
                false,
            ),
            (
                "503 beside an old path",
                |facts| {
                    facts.contact = Contact::Declined { status: 503, code: -32000, message: String::new() };
                    facts.http_sse = vec!["/sse".to_owned()];
                },
                Verdict::Unavailable,
                false,
            ),
            (
                "500",
                |facts| facts.contact = Contact::NotMcp { status: 500, content_type: None, redirects_to: None },
                Verdict::Unavailable,
                false,
            ),
            (
                "401",
                |facts| facts.contact = Contact::Refused { status: 401, scheme: None },
                Verdict::WantsCredentials,
                false,
            ),
            (
                "old",
                |facts| (facts.contact, facts.http_sse) = (not_mcp(), vec!["/sse".to_owned()]),
                Verdict::HttpSseOnly,
                false,
            ),
            (
                "old beside 401",
                |facts| {
                    facts.contact = Contact::Refused { status: 401, scheme: None };
                    facts.http_sse = vec!["/sse".to_owned()];
                },
                Verdict::WantsCredentials,
                false,
            ),
            ("old and new", |facts| facts.http_sse = vec!["/sse".to_owned()], Verdict::CannotResume, true),
        ];
        for (name, change, verdict, can) in rows {
            let mut facts = speaks();
            change(&mut facts);
            assert_eq!(Verdict::of(&facts), verdict, "{name}");
            assert_eq!(verdict.can_stand_in_front(), can, "{name}");
        }
    }
}
