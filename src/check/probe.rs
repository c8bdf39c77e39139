//! The probe: sends harmless requests to an upstream, and draws the facts from the observations of
//! their responses.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::exchange::{Client, Cut, ExchangeError, Observation, Request, is_refusal, localhost_of};
use super::facts::{
    Contact, Facts, Form, Guard, Identity, Legacy, Modern, RefusalWords, ResumeOutcome, ToolOutcome, ToolRun, Tools,
    UnknownSession, is_busy, millis, printable, printable_lines, printable_words,
};
use super::requests::{self, LEGACY, MODERN, Requester};
use super::state::Probe;
use super::watch::SessionStream;
use super::{Options, Tool, reach};
use crate::clock;
use crate::config::Config;
use crate::protocol::era::era_of;
use crate::protocol::headers::Era;
use crate::protocol::routing::WELL_KNOWN;
use crate::protocol::tasks;

/// Pages of `tools/list` that are read.
const MAX_PAGES: usize = 20;
/// Limit of the tools that are read; the page that passes it is the last.
const MAX_TOOLS: usize = 10_000;
/// Usual paths of MCP endpoints.
const USUAL_PATHS: [&str; 4] = ["/mcp", "/", "/api/mcp", "/v1/mcp"];
/// Customary path of servers of 2024-11-05.
const OLD_PATH: &str = "/sse";

/// Gathers the facts about a server on HTTP. Takes some seconds if it never responds, and three
/// runs of the tool at most.
pub(super) async fn probe(config: &Config, options: &Options) -> Facts {
    let mut facts = Facts::unknown(config.upstream.url.to_string());
    facts.with_headers = !options.headers.is_empty();
    options.report_progress("connecting");
    if let Err(contact) = reach::reach(config).await {
        facts.contact = contact;
        return facts;
    }
    let client = match Client::new(config, options.headers.clone(), None) {
        Ok(client) => client,
        Err(error) => {
            facts.contact = Contact::Unreachable { why: printable_lines(&error.to_string()) };
            return facts;
        }
    };
    let probe = Probe::new(config, options, client);
    Box::pin(probe.run(config, &mut facts)).await;
    if matches!(facts.contact, Contact::Broke | Contact::NotMcp { status: 400, .. })
        && let Some(contact) = reach::tls_fault(config, options.timeouts.stream).await
    {
        facts.contact = contact;
    }
    facts
}

/// A session, or the modern revision without one, and the response that opened it.
pub(super) struct Session {
    requester: Requester,
    response: Observation,
}

impl Probe<'_> {
    async fn run(&self, config: &Config, facts: &mut Facts) {
        let endpoint = config.upstream.url.endpoint_path();
        self.options.report_progress("asking for revisions, streams and documents");
        // A sidecar would count a GET of the old path as a client's unprotected request.
        let old_path = async {
            let is_mcp_resume = self.is_mcp_resume().await;
            (is_mcp_resume, !is_mcp_resume && self.is_http_sse(requests::page(OLD_PATH, true)).await)
        };
        let (legacy, modern, has_sse_here, (is_mcp_resume, has_old_path)) = tokio::join!(
            self.request(requests::initialize(LEGACY[0])),
            self.request(Requester::Modern.post(Some(1), "server/discover", json!({}))),
            self.is_http_sse(Requester::Opening.get(None)),
            old_path,
        );
        facts.mcp_resume = is_mcp_resume;
        if has_sse_here {
            facts.http_sse.push(endpoint.to_owned());
        }
        if has_old_path && endpoint != OLD_PATH {
            facts.http_sse.push(OLD_PATH.to_owned());
        }
        if legacy.is_ok() || modern.is_ok() {
            facts.oauth = self.oauth(config, legacy.as_ref().ok()).await;
            facts.public = self.public_resource(legacy.as_ref().ok()).await;
        }
        facts.contact = contact(&legacy);
        facts.refusal = self.refusal(config, legacy.as_ref().ok()).await;

        let session = legacy.ok().and_then(session_from);
        let modern = modern_session(modern);
        if session.is_none() && modern.is_none() {
            if let Contact::NotMcp { status: 404 | 405, .. } | Contact::Declined { status: 404 | 405, .. } =
                facts.contact
            {
                facts.endpoint_at = self.find_endpoint(endpoint).await;
            }
            return;
        }
        facts.record_opening(session.is_some());
        self.options.report_progress("asking for tools and what is refused");
        Box::pin(self.examine(session, modern, facts)).await;
    }

    /// Returns the words of a refusal by status, after an attempt under the name `localhost`: some
    /// servers serve no other name.
    async fn refusal(&self, config: &Config, refused: Option<&Observation>) -> Option<RefusalWords> {
        let refused = refused.filter(|response| is_refusal(response.status))?;
        let mut words = RefusalWords { text: refused.words.clone(), accepted_host: None };
        if !config.upstream.url.authority().host().eq_ignore_ascii_case("localhost") {
            let request = Request { is_for_localhost: true, ..requests::initialize(LEGACY[0]) };
            let session = self.request(request).await.ok().and_then(session_from);
            let host = localhost_of(config);
            words.accepted_host = session.and_then(|_| Some(host.to_str().ok()?.to_owned()));
        }
        Some(words)
    }

    /// Draws the facts from further requests in the sessions that were opened, and ends them if
    /// that is wanted.
    pub(super) async fn examine(&self, session: Option<Session>, modern: Option<Session>, facts: &mut Facts) {
        let first = session.as_ref().or(modern.as_ref()).map(|session| &session.response);
        facts.server = first.and_then(identity);
        if let Some(modern) = &modern {
            self.examine_modern(modern, facts).await;
        }
        let mut stream = SessionStream::default();
        if let Some(session) = &session {
            stream = self.examine_legacy(session, facts).await;
        }
        let Some(requester) = session.or(modern).map(|session| session.requester) else { return };
        let trying = Box::pin(self.try_requests(&requester, facts));
        self.while_listening(&requester, &mut stream, trying).await;
        if let Some(unknown_session) = facts.legacy.as_ref().map(|legacy| legacy.unknown_session.clone()) {
            // Last, since the session may end.
            facts.watch = self.watch(&requester, stream, unknown_session).await;
        }
        self.close(requester).await;
        facts.fell_silent = self.has_fallen_silent();
    }

    /// Tries what needs a session, or the modern revision: resumes, protections, the tool.
    async fn try_requests(&self, requester: &Requester, facts: &mut Facts) {
        if facts.has_channels() {
            // A process cannot distinguish callers.
            let is_accepted = facts.program.is_some() || !self.client.has_headers();
            facts.anonymous = if is_accepted { Guard::Accepted } else { Guard::Unknown };
        } else {
            facts.resumption.finished = self.resume_finished(requester).await;
            self.guards(requester, facts).await;
        }
        if let Some(tool) = &self.options.tool {
            facts.unknown_tool = unknown_tool(tool, facts.tools.as_ref());
            if facts.unknown_tool.is_none() {
                self.run_tool(requester, tool, facts).await;
            }
        }
    }

    /// Returns true if the upstream is an mcp-resume.
    async fn is_mcp_resume(&self) -> bool {
        let document = self.client.document(requests::page(WELL_KNOWN, false), self.timeouts.stream).await;
        document.is_some_and(|document| document["service"] == "mcp-resume")
    }

    /// Sends a ping in a session. Returns the time until the response, or `None` without one.
    pub(super) async fn ping_time(&self, session: &Session) -> Option<u64> {
        let (id, begun) = (2, clock::now());
        let response = self.request(session.requester.post(Some(id), "ping", Value::Null)).await.ok()?;
        response.result().map(|_| millis(clock::now() - begun))
    }

    /// Returns the first of the usual paths, other than `configured`, where `initialize` succeeds.
    async fn find_endpoint(&self, configured: &str) -> Option<String> {
        self.options.report_progress("looking for the endpoint at other paths");
        for path in USUAL_PATHS.into_iter().filter(|path| *path != configured) {
            let request = Request { path: Some(path.to_owned()), ..requests::initialize(LEGACY[0]) };
            let Some(session) = self.request(request).await.ok().and_then(session_from) else { continue };
            if let Some(request) = session.requester.delete().filter(|_| self.options.end_sessions) {
                let _ = self.request_until(Request { path: Some(path.to_owned()), ..request }, Cut::AfterHead).await;
            }
            return Some(path.to_owned());
        }
        None
    }

    async fn examine_modern(&self, session: &Session, facts: &mut Facts) {
        let (first, tools) = self.tools(&session.requester).await;
        let response = first.as_ref().unwrap_or(&session.response);
        let listed = session.response.result().and_then(|result| result["supportedVersions"].as_array());
        let revisions: Vec<String> = listed.into_iter().flatten().filter_map(Value::as_str).map(printable).collect();
        facts.modern = Some(Modern {
            revisions: if revisions.is_empty() { vec![MODERN.to_owned()] } else { revisions },
            answers: response.form,
            numbered: !response.ids.is_empty() || !session.response.ids.is_empty(),
            tasks: session
                .response
                .result()
                .is_some_and(|result| result["capabilities"]["extensions"].get(tasks::EXTENSION).is_some()),
        });
        facts.tools = tools;
    }

    /// Returns the GET stream of the session, which is open if the server has one.
    async fn examine_legacy(&self, session: &Session, facts: &mut Facts) -> SessionStream {
        let Session { requester, response: opening } = session;
        let Requester::Legacy { revision, session } = requester else { return SessionStream::default() };
        // Its failure is no reason to stop: the next requests show more.
        let _ =
            self.request_until(requester.post(None, "notifications/initialized", Value::Null), Cut::AfterHead).await;
        let (first, tools) = self.tools(requester).await;
        let response = first.as_ref().unwrap_or(opening);
        let mut revisions = vec![printable(revision)];
        for other in &LEGACY[1..] {
            if revision != other && self.can_negotiate(other).await {
                revisions.push((*other).to_owned());
            }
        }
        let (standalone, stream) = self.open_stream(requester).await;
        facts.legacy = Some(Legacy {
            revisions,
            session: session.is_some(),
            answers: response.form,
            numbered: !response.ids.is_empty() || !opening.ids.is_empty(),
            primed: response.is_primed || opening.is_primed,
            standalone,
            unknown_session: self.unknown_session(requester).await,
        });
        facts.tools = tools;
        stream
    }

    /// Returns true if the server accepts this revision from a client.
    async fn can_negotiate(&self, revision: &str) -> bool {
        let Some(session) = self.request(requests::initialize(revision)).await.ok().and_then(session_from) else {
            return false;
        };
        let is_same = matches!(&session.requester, Requester::Legacy { revision: got, .. } if got == revision);
        self.close(session.requester).await;
        is_same
    }

    /// Returns the response with the first page, and the tools of all pages.
    async fn tools(&self, requester: &Requester) -> (Option<Observation>, Option<Tools>) {
        let (mut first, mut cursor) = (None, None::<Value>);
        let mut tools = Tools { count: 0, complete: false, names: Vec::new(), with_output_schema: Vec::new() };
        for page in 0..MAX_PAGES {
            let id = 10 + page as u64;
            let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
            let Ok(response) = self.request(requester.post(Some(id), "tools/list", params)).await else { break };
            let result = response.result().cloned();
            first.get_or_insert(response);
            let Some(result) = result else { break };
            for tool in result["tools"].as_array().into_iter().flatten() {
                tools.count += 1;
                let name = printable(tool["name"].as_str().unwrap_or_default());
                if tool["outputSchema"].is_object() {
                    tools.with_output_schema.push(name.clone());
                }
                tools.names.push(name);
            }
            cursor = result.get("nextCursor").filter(|cursor| cursor.is_string()).cloned();
            tools.complete = cursor.is_none();
            if tools.complete || tools.count > MAX_TOOLS {
                break;
            }
        }
        if first.as_ref().is_some_and(|first| first.result().is_some()) { (first, Some(tools)) } else { (first, None) }
    }

    /// Sends a ping in a session that the server has not opened.
    async fn unknown_session(&self, requester: &Requester) -> UnknownSession {
        match requester.in_unknown_session() {
            Some(stranger) => self.ping(&stranger, 30).await,
            None => UnknownSession::Unknown,
        }
    }

    /// Cuts `tools/list` after its empty first event, and resumes it.
    async fn resume_finished(&self, requester: &Requester) -> Option<ResumeOutcome> {
        let id = 40;
        let list = requester.post(Some(id), "tools/list", json!({}));
        let cut = self.request_until(list, Cut::AfterPrime).await.ok().filter(|cut| cut.was_cut)?;
        Some(self.resume(requester, id, &cut, 1, self.timeouts.response).await)
    }

    /// Resumes after the last event of `cut`. An undisturbed run has `of` messages.
    async fn resume(
        &self,
        requester: &Requester,
        id: u64,
        cut: &Observation,
        of: usize,
        timeout: Duration,
    ) -> ResumeOutcome {
        let get = Request { id: Some(id), ..requester.get(cut.ids.last().map(|id| &id[..])) };
        match self.client.exchange(get, timeout, Cut::Never).await {
            Err(ExchangeError::TimedOut | ExchangeError::Broken) => ResumeOutcome::Unanswered,
            Ok(rest) if !rest.status.is_success() => ResumeOutcome::Refused { status: rest.status.as_u16() },
            Ok(rest) if rest.has_repeats(cut) => ResumeOutcome::Repeated,
            Ok(rest) => match cut.messages + rest.messages {
                got if rest.response.is_some() && got >= of => ResumeOutcome::Complete,
                got => ResumeOutcome::Lost { got, of },
            },
        }
    }

    async fn run_tool(&self, requester: &Requester, tool: &Tool, facts: &mut Facts) {
        self.options.report_progress(&format!(
            "running {}, up to {} s",
            printable(&tool.name),
            self.timeouts.tool.as_secs()
        ));
        let begun = clock::now();
        let whole = self.call(requester, tool, 50, Cut::Never).await;
        let took = clock::now() - begun;
        let Ok(whole) = whole else {
            facts.tool = Some(ToolRun::without_response(tool, took));
            return;
        };
        facts.tool = Some(ToolRun::of(tool, &whole, took));
        if whole.response.is_none() || whole.ids.is_empty() {
            return;
        }
        let timeout = took + self.timeouts.response;
        self.options.report_progress(&format!(
            "it took {} ms; running it again, to be cut and resumed while it runs",
            millis(took)
        ));
        if let Some(cut) = self.call(requester, tool, 51, Cut::AfterMessage).await.ok().filter(|cut| cut.was_cut) {
            facts.resumption.running = Some(self.resume(requester, 51, &cut, whole.messages, timeout).await);
        }
        self.options.report_progress("running it once more, to be cut and asked for after its time");
        if let Some(cut) = self.call(requester, tool, 52, Cut::AfterMessage).await.ok().filter(|cut| cut.was_cut) {
            clock::sleep(took + self.timeouts.margin).await;
            facts.resumption.later =
                Some(self.resume(requester, 52, &cut, whole.messages, self.timeouts.response).await);
        }
    }

    async fn call(&self, requester: &Requester, tool: &Tool, id: u64, cut: Cut) -> Result<Observation, ExchangeError> {
        let params = json!({ "name": tool.name, "arguments": tool.arguments, "_meta": { "progressToken": id } });
        self.client.exchange(requester.post(Some(id), "tools/call", params), self.timeouts.tool, cut).await
    }

    async fn guards(&self, requester: &Requester, facts: &mut Facts) {
        let (method, params) = match requester {
            Requester::Modern => ("server/discover", json!({})),
            Requester::Legacy { .. } | Requester::Opening => ("ping", Value::Null),
        };
        let post = |id| requester.post(Some(id), method, params.clone());
        facts.foreign_host = self.guard(Request { has_foreign_host: true, ..post(60) }).await;
        facts.foreign_origin = self.guard(requests::from_foreign_origin(post(61))).await;
        if !self.client.has_headers() {
            // All earlier requests were anonymous.
            facts.anonymous = Guard::Accepted;
            return;
        }
        let response = self.request(Request { is_anonymous: true, ..post(62) }).await;
        if let (Some(public), Ok(refused)) = (&mut facts.public, &response) {
            public.challenge_origin = self.foreign_challenge(refused);
        }
        facts.anonymous = reaction(response);
    }

    async fn guard(&self, request: Request) -> Guard {
        reaction(self.request(request).await)
    }

    async fn is_http_sse(&self, request: Request) -> bool {
        let first = self.client.first_event(request, self.timeouts.stream).await;
        first.is_some_and(|event| event.name == b"endpoint"[..])
    }

    async fn close(&self, requester: Requester) {
        let is_ended = self.options.end_sessions || self.options.channels.is_some();
        if let Some(request) = requester.delete().filter(|_| is_ended) {
            // A server may refuse it; the session then expires.
            let _ = self.request_until(request, Cut::AfterHead).await;
        }
    }
}

impl ToolRun {
    fn without_response(tool: &Tool, took: Duration) -> Self {
        Self {
            name: printable(&tool.name),
            outcome: ToolOutcome::NoResponse,
            answers: Form::Other,
            messages: 0,
            numbered: false,
            took_ms: millis(took),
        }
    }

    fn of(tool: &Tool, response: &Observation, took: Duration) -> Self {
        let outcome = match (&response.response, response.result()) {
            (None, _) => ToolOutcome::NoResponse,
            (Some(_), Some(result)) if result["isError"] != json!(true) => ToolOutcome::Result,
            (Some(_), _) => ToolOutcome::Error,
        };
        let (answers, messages, numbered) = (response.form, response.messages, !response.ids.is_empty());
        Self { outcome, answers, messages, numbered, ..Self::without_response(tool, took) }
    }
}

/// Returns the tool's name if the server's list is complete and lacks it.
fn unknown_tool(tool: &Tool, listed: Option<&Tools>) -> Option<String> {
    let name = printable(&tool.name);
    let is_missing = listed.is_some_and(|tools| tools.complete && !tools.names.contains(&name));
    if is_missing { Some(name) } else { None }
}

/// Classifies the reaction to a request that the server should refuse.
fn reaction(response: Result<Observation, ExchangeError>) -> Guard {
    match response {
        Ok(response) if response.status.is_success() => Guard::Accepted,
        Ok(response) if response.status.is_client_error() && !is_busy(response.status.as_u16()) => {
            Guard::Refused { status: response.status.as_u16(), scheme: response.scheme }
        }
        Ok(_) | Err(_) => Guard::Unknown,
    }
}

/// Returns the session of the modern revision that the response to `server/discover` shows, as
/// `serve` reads it, or `None` for a server of older revisions.
pub(super) fn modern_session(discovered: Result<Observation, ExchangeError>) -> Option<Session> {
    let response = discovered.ok()?;
    let text = response.result().and(response.response.as_ref()).map(Value::to_string);
    let is_modern = era_of(text.as_deref().map(str::as_bytes)) == Era::Modern;
    is_modern.then_some(Session { requester: Requester::Modern, response })
}

/// Returns the session that a response to `initialize` opened, or `None` if it failed.
pub(super) fn session_from(response: Observation) -> Option<Session> {
    let revision = response.result()?.get("protocolVersion")?.as_str()?.to_owned();
    Some(Session { requester: Requester::Legacy { revision, session: response.session.clone() }, response })
}

/// Classifies a response to `initialize` that is no MCP.
pub(super) fn contact(response: &Result<Observation, ExchangeError>) -> Contact {
    match response {
        Err(ExchangeError::TimedOut) => Contact::Silent,
        Err(ExchangeError::Broken) => Contact::Broke,
        Ok(response) => match response.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Contact::Refused { status: response.status.as_u16(), scheme: response.scheme.clone() }
            }
            status => match response.error_code() {
                Some(code) => {
                    let message = printable_words(response.error_message());
                    Contact::Declined { status: status.as_u16(), code, message }
                }
                None => Contact::NotMcp {
                    status: status.as_u16(),
                    content_type: response.content_type.clone(),
                    redirects_to: response.redirects_to.clone(),
                },
            },
        },
    }
}

fn identity(response: &Observation) -> Option<Identity> {
    let result = response.result()?;
    let info = [&result["serverInfo"], &result["_meta"]["io.modelcontextprotocol/serverInfo"]];
    let info = info.into_iter().find(|info| info["name"].is_string())?;
    let text = |key: &str| printable(info[key].as_str().unwrap_or_default());
    Some(Identity { name: text("name"), version: text("version") })
}
