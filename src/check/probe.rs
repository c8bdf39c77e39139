//! Asks an upstream harmless things and notes what comes back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::exchange::{Client, Cut, Failed, Listen, Observation, Request};
use super::facts::{
    Contact, Document, Facts, Form, Guard, Identity, Legacy, Modern, Resumed, Standalone, ToolOutcome, ToolRun, Tools,
    printable,
};
use super::requests::{self, LEGACY, MODERN, Requester};
use super::{Limits, Options, Tool, reach};
use crate::clock;
use crate::config::Config;
use crate::protocol::routing::WELL_KNOWN;

/// Pages of `tools/list` that are read.
const MAX_PAGES: usize = 20;
/// More tools are not counted.
const MAX_TOOLS: usize = 10_000;
/// A server that left so many requests unanswered is not waited for again.
const MAX_SILENCES: usize = 2;
/// Usual paths of MCP endpoints.
const USUAL_PATHS: [&str; 4] = ["/mcp", "/", "/api/mcp", "/v1/mcp"];
/// The path that servers of 2024-11-05 have by custom.
const OLD_PATH: &str = "/sse";
const METADATA: [&str; 3] = ["oauth-protected-resource", "oauth-authorization-server", "openid-configuration"];

/// Gathers the facts about the upstream of `config`. It takes as long as the server lets it, within the limits: some seconds
/// where it never answers, three runs of the tool at most.
pub async fn probe(config: &Config, options: &Options) -> Facts {
    let mut facts = Facts::unknown(config.upstream.url.to_string());
    facts.with_headers = !options.headers.is_empty();
    options.tell("connecting");
    if let Err(contact) = reach::reach(config).await {
        facts.contact = contact;
        return facts;
    }
    let client = match Client::new(config, options.headers.clone()) {
        Ok(client) => client,
        Err(error) => {
            facts.contact = Contact::Unreachable { why: printable(&error.to_string()) };
            return facts;
        }
    };
    let probe = Probe { client, limits: options.limits, silences: AtomicUsize::new(0), options };
    Box::pin(probe.run(config, options.tool.as_ref(), &mut facts)).await;
    if matches!(facts.contact, Contact::Broke | Contact::NotMcp { status: 400, .. })
        && let Some(contact) = reach::why_broken(config, options.limits.stream).await
    {
        facts.contact = contact;
    }
    facts
}

struct Probe<'a> {
    options: &'a Options,
    client: Client,
    limits: Limits,
    /// Requests that were not answered in time.
    silences: AtomicUsize,
}

/// A session, or what stands for one, and the answer that began it.
struct Opened {
    requester: Requester,
    answer: Observation,
}

impl Probe<'_> {
    async fn run(&self, config: &Config, tool: Option<&Tool>, facts: &mut Facts) {
        let endpoint = config.upstream.url.endpoint_path();
        self.options.tell("asking for revisions, streams and documents");
        // A sidecar would take a GET of the old path for a client's that passes it by.
        let ours_or_there = async {
            let is_ours = self.is_mcp_resume().await;
            (is_ours, !is_ours && self.is_http_sse(requests::page(OLD_PATH, true)).await)
        };
        let (legacy, modern, here, (is_ours, there)) = tokio::join!(
            self.ask(requests::initialize(1, LEGACY[0]), 1),
            self.ask(Requester::Modern.post(Some(1), "server/discover", json!({})), 1),
            self.is_http_sse(Requester::Opening.get(None)),
            ours_or_there,
        );
        facts.mcp_resume = is_ours;
        facts.http_sse.extend(here.then(|| endpoint.to_owned()));
        facts.http_sse.extend((there && endpoint != OLD_PATH).then(|| OLD_PATH.to_owned()));
        if legacy.is_ok() || modern.is_ok() {
            facts.oauth = self.oauth(config, legacy.as_ref().ok()).await;
        }
        facts.contact = contact(&legacy);

        let session = legacy.ok().and_then(opened);
        let modern = self.modern(modern, session.is_none()).await;
        if session.is_none() && modern.is_none() {
            if let Contact::NotMcp { status: 404 | 405, .. } | Contact::Declined { status: 404 | 405, .. } =
                facts.contact
            {
                facts.endpoint_at = self.find_endpoint(endpoint).await;
            }
            return;
        }
        facts.contact = Contact::Speaks;
        self.options.tell("asking for tools and what is refused");
        let answer = session.as_ref().or(modern.as_ref()).map(|opened| &opened.answer);
        facts.server = answer.and_then(identity);
        if let Some(modern) = &modern {
            self.look_modern(modern, facts).await;
        }
        if let Some(session) = &session {
            self.look_legacy(session, facts).await;
        }
        let Some(requester) = session.or(modern).map(|opened| opened.requester) else { return };
        facts.resumption.finished = self.resume_finished(&requester).await;
        self.guards(&requester, facts).await;
        if let Some(tool) = tool {
            facts.unknown_tool = unknown_tool(tool, facts.tools.as_ref());
            if facts.unknown_tool.is_none() {
                self.run_tool(&requester, tool, facts).await;
            }
        }
        self.close(requester).await;
        facts.fell_silent = self.silences.load(Ordering::Relaxed) >= MAX_SILENCES;
    }

    /// Returns true if the upstream is an mcp-resume.
    async fn is_mcp_resume(&self) -> bool {
        let document = self.client.document(requests::page(WELL_KNOWN, false), self.limits.stream).await;
        document.is_some_and(|document| document["service"] == "mcp-resume")
    }

    /// Returns the first of the usual paths, other than `asked`, where an `initialize` is answered.
    async fn find_endpoint(&self, asked: &str) -> Option<String> {
        self.options.tell("looking for the endpoint at other paths");
        for path in USUAL_PATHS.into_iter().filter(|path| *path != asked) {
            let request = Request { path: Some(path.to_owned()), ..requests::initialize(1, LEGACY[0]) };
            let Some(opened) = self.ask(request, 1).await.ok().and_then(opened) else { continue };
            if let Some(request) = opened.requester.delete() {
                let _ = self.ask_unanswered(Request { path: Some(path.to_owned()), ..request }).await;
            }
            return Some(path.to_owned());
        }
        None
    }

    /// Opens a session of the modern revision by the response to `server/discover`. A server without that method may
    /// still serve modern requests, unless older revisions explain the response.
    async fn modern(&self, discovered: Result<Observation, Failed>, alone: bool) -> Option<Opened> {
        let answer = discovered.ok()?;
        let requester = Requester::Modern;
        if answer.result().is_some_and(|result| result["supportedVersions"].is_array()) {
            return Some(Opened { requester, answer });
        }
        answer.response.as_ref().filter(|_| alone)?;
        let answer = self.ask(requester.post(Some(2), "tools/list", json!({})), 2).await.ok()?;
        answer.result().filter(|result| result["tools"].is_array())?;
        Some(Opened { requester, answer })
    }

    async fn look_modern(&self, opened: &Opened, facts: &mut Facts) {
        let (first, tools) = self.tools(&opened.requester).await;
        let heard = first.as_ref().unwrap_or(&opened.answer);
        let listed = opened.answer.result().and_then(|result| result["supportedVersions"].as_array());
        let revisions: Vec<String> = listed.into_iter().flatten().filter_map(Value::as_str).map(printable).collect();
        facts.modern = Some(Modern {
            revisions: if revisions.is_empty() { vec![MODERN.to_owned()] } else { revisions },
            answers: heard.form,
            numbered: !heard.ids.is_empty() || !opened.answer.ids.is_empty(),
        });
        facts.tools = tools;
    }

    async fn look_legacy(&self, opened: &Opened, facts: &mut Facts) {
        let Opened { requester, answer } = opened;
        let Requester::Legacy { revision, session } = requester else { return };
        // Its answer is no reason to stop: the requests after it tell more.
        let _ = self.ask_unanswered(requester.post(None, "notifications/initialized", Value::Null)).await;
        let (first, tools) = self.tools(requester).await;
        let heard = first.as_ref().unwrap_or(answer);
        let mut revisions = vec![printable(revision)];
        for asked in &LEGACY[1..] {
            if revision != asked && self.negotiates(asked).await {
                revisions.push((*asked).to_owned());
            }
        }
        facts.legacy = Some(Legacy {
            revisions,
            session: session.is_some(),
            answers: heard.form,
            numbered: !heard.ids.is_empty() || !answer.ids.is_empty(),
            primed: heard.primed || answer.primed,
            standalone: self.standalone(requester).await,
        });
        facts.tools = tools;
    }

    /// Returns true if the server accepts this revision from a client.
    async fn negotiates(&self, revision: &str) -> bool {
        let Some(opened) = self.ask(requests::initialize(1, revision), 1).await.ok().and_then(opened) else {
            return false;
        };
        let same = matches!(&opened.requester, Requester::Legacy { revision: got, .. } if got == revision);
        self.close(opened.requester).await;
        same
    }

    /// The first page as it came, and all of them.
    async fn tools(&self, requester: &Requester) -> (Option<Observation>, Option<Tools>) {
        let (mut first, mut cursor) = (None, None::<Value>);
        let mut tools = Tools { count: 0, complete: false, names: Vec::new(), with_output_schema: Vec::new() };
        for page in 0..MAX_PAGES {
            let id = 10 + page as u64;
            let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
            let Ok(heard) = self.ask(requester.post(Some(id), "tools/list", params), id).await else { break };
            let result = heard.result().cloned();
            first.get_or_insert(heard);
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
        let listed = first.as_ref().is_some_and(|first| first.result().is_some());
        (first, listed.then_some(tools))
    }

    async fn standalone(&self, requester: &Requester) -> Standalone {
        let listen = Listen { id: None, limit: self.limits.stream, cut: Cut::AfterHead };
        match self.client.ask(requester.get(None), listen).await {
            Ok(heard) if heard.status.is_success() && heard.form == Form::EventStream => Standalone::Stream,
            Ok(heard) => Standalone::Refused { status: heard.status.as_u16() },
            Err(Failed::Silent | Failed::Broke) => Standalone::NoHead,
        }
    }

    /// Leaves `tools/list` after the empty event it begins with, and asks for the rest.
    async fn resume_finished(&self, requester: &Requester) -> Option<Resumed> {
        let (id, limit) = (40, self.limits.answer);
        let listen = Listen { id: Some(id), limit, cut: Cut::AfterPrime };
        let cut = self.ask_with(requester.post(Some(id), "tools/list", json!({})), listen).await.ok()?;
        if !cut.was_cut {
            return None;
        }
        Some(self.resume(requester, id, &cut, 1, limit).await)
    }

    /// Asks for what comes after the last event of `cut`; an undisturbed run has `of` messages.
    async fn resume(&self, requester: &Requester, id: u64, cut: &Observation, of: usize, limit: Duration) -> Resumed {
        let listen = Listen { id: Some(id), limit, cut: Cut::Never };
        let last = cut.ids.last().map(|id| &id[..]);
        match self.client.ask(requester.get(last), listen).await {
            Err(Failed::Silent | Failed::Broke) => Resumed::Unanswered,
            Ok(rest) if !rest.status.is_success() => Resumed::Refused { status: rest.status.as_u16() },
            Ok(rest) if rest.repeats(cut) => Resumed::Repeated,
            Ok(rest) => match cut.messages + rest.messages {
                got if rest.response.is_some() && got >= of => Resumed::Held,
                got => Resumed::Lost { got, of },
            },
        }
    }

    async fn run_tool(&self, requester: &Requester, tool: &Tool, facts: &mut Facts) {
        self.options.tell(&format!("running {}, up to {} s", printable(&tool.name), self.limits.tool.as_secs()));
        let begun = clock::now();
        let whole = self.call(requester, tool, 50, Cut::Never).await;
        let took = clock::now() - begun;
        let Ok(whole) = whole else {
            facts.tool = Some(ToolRun::unanswered(tool, took));
            return;
        };
        facts.tool = Some(ToolRun::of(tool, &whole, took));
        if whole.response.is_none() || whole.ids.is_empty() {
            return;
        }
        let limit = took + self.limits.answer;
        self.options
            .tell(&format!("it took {} ms; running it again, to be cut and resumed while it runs", millis(took)));
        if let Some(cut) = self.call(requester, tool, 51, Cut::AfterMessage).await.ok().filter(|cut| cut.was_cut) {
            facts.resumption.running = Some(self.resume(requester, 51, &cut, whole.messages, limit).await);
        }
        self.options.tell("running it once more, to be cut and asked for after its time");
        if let Some(cut) = self.call(requester, tool, 52, Cut::AfterMessage).await.ok().filter(|cut| cut.was_cut) {
            clock::sleep(took + self.limits.margin).await;
            facts.resumption.later = Some(self.resume(requester, 52, &cut, whole.messages, self.limits.answer).await);
        }
    }

    async fn call(&self, requester: &Requester, tool: &Tool, id: u64, cut: Cut) -> Result<Observation, Failed> {
        let params = json!({ "name": tool.name, "arguments": tool.arguments, "_meta": { "progressToken": id } });
        let listen = Listen { id: Some(id), limit: self.limits.tool, cut };
        self.client.ask(requester.post(Some(id), "tools/call", params), listen).await
    }

    async fn guards(&self, requester: &Requester, facts: &mut Facts) {
        let (method, params) = match requester {
            Requester::Modern => ("server/discover", json!({})),
            Requester::Legacy { .. } | Requester::Opening => ("ping", Value::Null),
        };
        let post = |id| requester.post(Some(id), method, params.clone());
        facts.foreign_host = self.guard(Request { foreign_host: true, ..post(60) }, 60).await;
        facts.foreign_origin = self.guard(requests::from_foreign_origin(post(61)), 61).await;
        facts.anonymous = match self.client.has_headers() {
            // It is what all the others were.
            false => Guard::Accepted,
            true => self.guard(Request { anonymous: true, ..post(62) }, 62).await,
        };
    }

    async fn guard(&self, request: Request, id: u64) -> Guard {
        match self.ask(request, id).await {
            Ok(heard) if heard.status.is_success() => Guard::Accepted,
            Ok(heard) if heard.status.is_client_error() => {
                Guard::Refused { status: heard.status.as_u16(), scheme: heard.scheme }
            }
            Ok(_) | Err(_) => Guard::Unknown,
        }
    }

    async fn is_http_sse(&self, request: Request) -> bool {
        let first = self.client.first_event(request, self.limits.stream).await;
        first.is_some_and(|name| &name[..] == b"endpoint")
    }

    /// OAuth documents that there are, and a challenge that leads to one.
    async fn oauth(&self, config: &Config, first: Option<&Observation>) -> Vec<Document> {
        let url = &config.upstream.url;
        let mut found = Vec::new();
        if let Some(challenge) =
            first.and_then(|heard| heard.challenge.as_deref()).filter(|text| text.contains("resource_metadata"))
        {
            let names_upstream = names_origin(challenge, &url.origin());
            found.push(Document { path: "WWW-Authenticate".to_owned(), names_upstream });
        }
        let until = clock::now() + self.limits.answer;
        for name in METADATA {
            for suffix in [url.endpoint_path(), ""] {
                let path = format!("/.well-known/{name}{suffix}");
                let left = until.saturating_duration_since(clock::now());
                let document = self.client.document(requests::page(&path, false), left).await;
                if let Some(document) = document.filter(Value::is_object) {
                    let names_upstream = names_origin(&document.to_string(), &url.origin());
                    found.push(Document { path, names_upstream });
                }
            }
        }
        found
    }

    async fn close(&self, requester: Requester) {
        if let Some(request) = requester.delete() {
            // Servers may refuse it; the session ends by itself then.
            let _ = self.ask_unanswered(request).await;
        }
    }

    async fn ask(&self, request: Request, id: u64) -> Result<Observation, Failed> {
        self.ask_with(request, Listen { id: Some(id), limit: self.limits.answer, cut: Cut::Never }).await
    }

    async fn ask_unanswered(&self, request: Request) -> Result<Observation, Failed> {
        self.ask_with(request, Listen { id: None, limit: self.limits.answer, cut: Cut::AfterHead }).await
    }

    /// Once it has been silent too often it is asked nothing more.
    async fn ask_with(&self, request: Request, listen: Listen) -> Result<Observation, Failed> {
        if self.silences.load(Ordering::Relaxed) >= MAX_SILENCES {
            return Err(Failed::Silent);
        }
        let heard = self.client.ask(request, listen).await;
        if matches!(heard, Err(Failed::Silent)) {
            self.silences.fetch_add(1, Ordering::Relaxed);
        }
        heard
    }
}

impl ToolRun {
    fn unanswered(tool: &Tool, took: Duration) -> Self {
        Self {
            name: printable(&tool.name),
            outcome: ToolOutcome::NoResponse,
            answers: Form::Other,
            messages: 0,
            numbered: false,
            took_ms: millis(took),
        }
    }

    fn of(tool: &Tool, heard: &Observation, took: Duration) -> Self {
        let outcome = match (&heard.response, heard.result()) {
            (None, _) => ToolOutcome::NoResponse,
            (Some(_), Some(result)) if result["isError"] != json!(true) => ToolOutcome::Result,
            (Some(_), _) => ToolOutcome::Error,
        };
        let (answers, messages, numbered) = (heard.form, heard.messages, !heard.ids.is_empty());
        Self { outcome, answers, messages, numbered, ..Self::unanswered(tool, took) }
    }
}

/// The tool's name, if the server's list is whole and has no such tool.
fn unknown_tool(tool: &Tool, listed: Option<&Tools>) -> Option<String> {
    let name = printable(&tool.name);
    let is_missing = listed.is_some_and(|tools| tools.complete && !tools.names.contains(&name));
    is_missing.then_some(name)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The session that an answer to `initialize` began.
fn opened(answer: Observation) -> Option<Opened> {
    let revision = answer.result()?.get("protocolVersion")?.as_str()?.to_owned();
    Some(Opened { requester: Requester::Legacy { revision, session: answer.session.clone() }, answer })
}

/// Classifies a response to `initialize` that is no MCP.
fn contact(answer: &Result<Observation, Failed>) -> Contact {
    match answer {
        Err(Failed::Silent) => Contact::Silent,
        Err(Failed::Broke) => Contact::Broke,
        Ok(heard) => match heard.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Contact::Refused { status: heard.status.as_u16(), scheme: heard.scheme.clone() }
            }
            status => match heard.error_code() {
                Some(code) => Contact::Declined { status: status.as_u16(), code },
                None => Contact::NotMcp {
                    status: status.as_u16(),
                    content_type: heard.content_type.clone(),
                    redirects: heard.redirects,
                },
            },
        },
    }
}

fn identity(answer: &Observation) -> Option<Identity> {
    let result = answer.result()?;
    let info = [&result["serverInfo"], &result["_meta"]["io.modelcontextprotocol/serverInfo"]];
    let info = info.into_iter().find(|info| info["name"].is_string())?;
    let text = |key: &str| printable(info[key].as_str().unwrap_or_default());
    Some(Identity { name: text("name"), version: text("version") })
}

/// Returns true if a text contains a URL of this origin.
fn names_origin(text: &str, origin: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let ends =
        |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_'));
    text.match_indices(origin).any(|(at, _)| ends(&text[at + origin.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_named_whole() {
        let origin = "http://a.test:3000";
        for (text, named) in [
            (r#"{"issuer":"http://a.test:3000"}"#, true),
            ("http://A.test:3000/x", true),
            ("http://a.test:30001/x", false),
            ("http://a.test", false),
            ("https://a.test:3000", false),
        ] {
            assert_eq!(names_origin(text, origin), named, "{text}");
        }
        assert!(!names_origin("http://a.test:3000", "http://a.test"));
    }
}
