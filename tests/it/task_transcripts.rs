//! The exchanges of docs/tasks-wire.md, made again and compared with the page.
//!
//! IDs and times differ from run to run, so both have names on the page. Left out are the headers
//! of one connection.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mcp_resume::config::Tasks;

use crate::support::*;

/// Variable with which the page is written anew.
const RECORD: &str = "RECORD_TASK_TRANSCRIPTS";
/// Metadata of each request. The page has them once.
const META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"client","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;
const PLAIN_META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"client","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;
/// Time without a poll, as the default.
const MAX_WAIT: Duration = Duration::from_secs(86_400);
const AFTER: Duration = Duration::from_secs(20);
const NOT_SHOWN: &[&str] = &["host", "content-length", "transfer-encoding", "date", "connection"];

/// One exchange after the other, as text.
#[derive(Default)]
struct Transcript {
    text: String,
    /// Random parts of IDs, each with its name on the page.
    names: Vec<(String, String)>,
    has_meta: bool,
}

impl Transcript {
    /// Writes the request under a title.
    fn request(&mut self, title: &str, request: &Request) {
        let (method, target) = request.line();
        let _ = writeln!(self.text, "{title}\n\n```http\n{method} {target} HTTP/1.1");
        self.headers(request.headers());
        let body = String::from_utf8(request.body().to_vec()).expect("text");
        let body = if std::mem::replace(&mut self.has_meta, true) { body.replace(META, "META") } else { body };
        let _ = writeln!(self.text, "\n{}\n", self.named(&body));
    }

    fn head(&mut self, response: &Response) {
        // The stream's URL has the handle of its event IDs.
        if let Some((_, rest)) = response.header("link").and_then(|link| link.split_once("mcp-stream=")) {
            self.stream(rest.split('>').next().unwrap_or_default());
        }
        let _ = writeln!(self.text, "{}", response.head.first);
        self.headers(response.head.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.text.push('\n');
    }

    fn headers<'a>(&mut self, headers: impl Iterator<Item = (&'a str, &'a str)>) {
        for (name, value) in headers.filter(|(name, _)| !NOT_SHOWN.contains(&name.to_lowercase().as_str())) {
            let _ = writeln!(self.text, "{name}: {}", self.named(value));
        }
    }

    fn frame(&mut self, frame: &Frame) {
        if let Some((handle, _)) = frame.id.as_deref().and_then(|id| id.split_once('.')) {
            self.stream(handle);
        }
        let raw = String::from_utf8(frame.raw.clone()).expect("text");
        let lines: Vec<&str> = raw.trim_end().lines().map(str::trim_end).collect();
        let _ = writeln!(self.text, "{}\n", self.named(&lines.join("\n")));
    }

    /// Writes the rest of a response.
    async fn rest(&mut self, mut response: Response) {
        if response.is_sse() {
            for frame in response.frames().await {
                self.frame(&frame);
            }
        } else {
            let body = String::from_utf8(response.body().await).expect("text");
            let _ = writeln!(self.text, "{}\n", self.named(&body));
        }
        self.text.truncate(self.text.trim_end().len());
        self.text.push_str("\n```\n\n");
    }

    /// Makes an exchange whose response needs nothing of the server.
    async fn exchange(&mut self, title: &str, request: &Request, proxy: &Proxy) {
        self.request(title, request);
        let response = request.send(proxy.addr).await;
        self.head(&response);
        self.rest(response).await;
    }

    fn stream(&mut self, handle: &str) {
        let streams = self.names.iter().filter(|(_, name)| name.starts_with("STREAM")).count();
        self.name(handle, &format!("STREAM-{}", streams + 1));
    }

    fn name(&mut self, random: &str, name: &str) {
        if !self.names.iter().any(|(known, _)| known == random) {
            self.names.push((random.to_owned(), name.to_owned()));
        }
    }

    /// Returns the text with names in place of what differs.
    fn named(&self, text: &str) -> String {
        let named = self.names.iter().fold(text.to_owned(), |text, (random, name)| text.replace(random, name));
        let named = replaced(&named, "\"createdAt\":\"", |c| c == '"', |_| "TIME".to_owned());
        let named = replaced(&named, "\"lastUpdatedAt\":\"", |c| c == '"', |_| "TIME".to_owned());
        replaced(
            &named,
            "\"ttlMs\":",
            |c| !c.is_ascii_digit(),
            |found| {
                let age = found.parse::<u128>().ok().and_then(|ms| ms.checked_sub(MAX_WAIT.as_millis()));
                // The age of the task is part of it.
                if age.is_some_and(|ms| ms < 60_000) { MAX_WAIT.as_millis().to_string() } else { found.to_owned() }
            },
        )
    }
}

/// Returns the text with other values between each `before` and the first character after it that
/// is an `end`.
fn replaced(text: &str, before: &str, end: fn(char) -> bool, value: impl Fn(&str) -> String) -> String {
    let mut pieces = text.split(before);
    let mut made = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (found, rest) = piece.split_at(piece.find(end).unwrap_or(piece.len()));
        made.extend([before, &value(found), rest]);
    }
    made
}

fn request(id: u32, method: &str, name: Option<&str>, params: &str, meta: &str) -> Request {
    let separator = if params.is_empty() { "" } else { "," };
    let params = format!(r#"{{{params}{separator}"_meta":{meta}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
    let request = Request::post(body).with("MCP-Protocol-Version", V2026).with("Mcp-Method", method);
    match name {
        Some(name) => request.with("Mcp-Name", name),
        None => request,
    }
}

fn of_task(id: u32, method: &str, task: &str, more: &str) -> Request {
    request(id, method, Some(task), &format!(r#""taskId":"{task}"{more}"#), META)
}

/// A poll that may be held, or, with `json`, one of a client that is answered at once.
fn get(id: u32, task: &str, json: bool) -> Request {
    let poll = of_task(id, "tasks/get", task, "");
    if json { poll.with("Accept", "application/json") } else { poll }
}

async fn stage() -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let terms = Tasks { after: AFTER, hold: Some(6 * LIMIT), max_wait: MAX_WAIT, retention: MAX_WAIT, legacy: None };
    let proxy = Proxy::start(&upstream, |config| config.tasks = Some(Arc::new(terms))).await;
    (upstream, proxy)
}

async fn discover(transcript: &mut Transcript, upstream: &mut Upstream, proxy: &Proxy) {
    let discover = request(1, "server/discover", None, "", META);
    transcript
        .request("The client sends `server/discover`. The server has no tasks; mcp-resume offers them.", &discover);
    let asked = discover.start(proxy.addr).await;
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}}"#;
    upstream.expect("server/discover").await.json(200, answer).await;
    let response = asked.response().await;
    transcript.head(&response);
    transcript.rest(response).await;
}

/// Has a call become a task. Returns the server's side of it, and the task's ID.
async fn promote(transcript: &mut Transcript, title: &str, upstream: &mut Upstream, proxy: &Proxy) -> (Sse, String) {
    let meta = format!(r#"{},"progressToken":7}}"#, META.strip_suffix('}').expect("an object"));
    let call = request(2, "tools/call", Some("build"), r#""name":"build","arguments":{"target":"all"}"#, &meta);
    let shown = String::from_utf8(call.body().to_vec()).expect("text").replace(&meta, r#"{…META,"progressToken":7}"#);
    transcript.request(title, &call.clone().with_body(shown));
    let pending = call.start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await.sse();
    transcript.head(&response);
    transcript.frame(&response.prime().await);
    sse.event(progress(1, "compiling")).await;
    transcript.frame(&response.event().await);
    pass(AFTER).await;
    let handle = response.event().await;
    let task = handle.json()["result"]["taskId"].as_str().expect("a task").to_owned();
    transcript.name(task.strip_prefix("mrt1.").expect("a task of the proxy's"), "TASK");
    transcript.frame(&handle);
    transcript.rest(response).await;
    (sse, task)
}

fn progress(step: u32, what: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":7,"progress":{step},"total":3,"message":"{what}"}}}}"#
    )
}

/// Begins a poll that is held, and writes its request and the head of its response.
async fn hold(transcript: &mut Transcript, title: &str, poll: &Request, proxy: &Proxy) -> Response {
    transcript.request(title, poll);
    let response = poll.send(proxy.addr).await.sse();
    transcript.head(&response);
    response
}

async fn completes() -> String {
    let (mut upstream, proxy) = stage().await;
    let mut transcript = Transcript::default();
    discover(&mut transcript, &mut upstream, &proxy).await;
    let title = "A call. Its stream has the server's progress. After `tasks.after_ms` its response is the handle, and the stream ends. The call continues at the server.";
    let (sse, task) = promote(&mut transcript, title, &mut upstream, &proxy).await;
    let title = "A poll by a client that accepts JSON alone gets its response at once.";
    transcript.exchange(title, &get(3, &task, true), &proxy).await;
    let title = "A poll by a client that accepts event streams is held. Here the call ends meanwhile, and the response to the poll has the result. A client that is cut before returns with `Last-Event-ID: STREAM-2.0`.";
    let held = hold(&mut transcript, title, &get(4, &task, false), &proxy).await;
    sse.finish(r#"{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"built all"}],"isError":false}}"#)
        .await;
    transcript.rest(held).await;
    transcript.text
}

async fn asks() -> String {
    let (mut upstream, proxy) = stage().await;
    let mut transcript = Transcript { has_meta: true, ..Transcript::default() };
    discover(&mut Transcript::default(), &mut upstream, &proxy).await;
    let (sse, task) = promote(&mut Transcript::default(), "", &mut upstream, &proxy).await;
    transcript.name(task.strip_prefix("mrt1.").expect("a task of the proxy's"), "TASK");
    let title = "The server ends its response with a server request. The poll that is held has it.";
    let held = hold(&mut transcript, title, &get(3, &task, false), &proxy).await;
    sse.finish(r#"{"jsonrpc":"2.0","id":2,"result":{"resultType":"input_required","requestState":"S","inputRequests":{"ok":{"method":"elicitation/create","params":{"mode":"form","message":"Overwrite?","requestedSchema":{"type":"object","properties":{"ok":{"type":"boolean"}}}}}}}}"#).await;
    transcript.rest(held).await;
    let answers = r#","inputResponses":{"1-ok":{"action":"accept","content":{"ok":true}}}"#;
    let title = "The client response. mcp-resume now calls the server again, with the client response and the server's `requestState`.";
    transcript.exchange(title, &of_task(4, "tasks/update", &task, answers), &proxy).await;
    let again = upstream.expect("tools/call").await;
    let body = again.json_body();
    assert_eq!(body["params"]["requestState"], "S");
    let held = hold(&mut transcript, "The next poll.", &get(5, &task, false), &proxy).await;
    let end = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{"resultType":"complete","content":[{{"type":"text","text":"built all"}}]}}}}"#,
        body["id"]
    );
    again.json(200, end).await;
    transcript.rest(held).await;
    transcript.text
}

async fn cancels() -> String {
    let (mut upstream, proxy) = stage().await;
    let mut transcript = Transcript { has_meta: true, ..Transcript::default() };
    discover(&mut Transcript::default(), &mut upstream, &proxy).await;
    let (sse, task) = promote(&mut Transcript::default(), "", &mut upstream, &proxy).await;
    transcript.name(task.strip_prefix("mrt1.").expect("a task of the proxy's"), "TASK");
    let title = "The cancel. The call at the server is closed.";
    transcript.exchange(title, &of_task(3, "tasks/cancel", &task, ""), &proxy).await;
    sse.closed().await;
    let second = of_task(3, "tasks/cancel", &task, "").send(proxy.addr).await.json().await;
    assert_eq!(second, serde_json::json!({"jsonrpc": "2.0", "id": 3, "result": {"resultType": "complete"}}));
    let title = "The state from then on. A second cancel has the same response as the first.";
    transcript.exchange(title, &get(4, &task, false), &proxy).await;
    transcript.text
}

async fn refused() -> String {
    let (mut upstream, proxy) = stage().await;
    let mut transcript = Transcript { has_meta: true, ..Transcript::default() };
    discover(&mut Transcript::default(), &mut upstream, &proxy).await;
    let (_sse, task) = promote(&mut Transcript::default(), "", &mut upstream, &proxy).await;
    transcript.name(task.strip_prefix("mrt1.").expect("a task of the proxy's"), "TASK");
    let undeclared = request(3, "tasks/get", Some(&task), &format!(r#""taskId":"{task}""#), PLAIN_META);
    transcript.exchange("A poll that does not declare the extension.", &undeclared, &proxy).await;
    let title =
        "A poll of a task that is unknown, expired, or another caller's: the response is the same in all cases.";
    transcript.exchange(title, &get(4, "mrt1.unknown", false), &proxy).await;
    transcript.text
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tasks-wire.md")
}

/// Returns the lines that differ, with three lines around each.
fn difference(written: &str, made: &str) -> String {
    let (written, made): (Vec<&str>, Vec<&str>) = (written.lines().collect(), made.lines().collect());
    // Most lines that the ends of both have in common, from each pair of lines on.
    let mut common = vec![vec![0; made.len() + 1]; written.len() + 1];
    for (i, j) in (0..written.len()).rev().flat_map(|i| (0..made.len()).rev().map(move |j| (i, j))) {
        let both = if written[i] == made[j] { common[i + 1][j + 1] + 1 } else { 0 };
        common[i][j] = both.max(common[i + 1][j]).max(common[i][j + 1]);
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < written.len() || j < made.len() {
        if i < written.len() && j < made.len() && written[i] == made[j] {
            lines.push((' ', written[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == made.len() || (i < written.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', written[i]));
            i += 1;
        } else {
            lines.push(('+', made[j]));
            j += 1;
        }
    }
    let is_near = |at: usize| lines[at.saturating_sub(3)..lines.len().min(at + 4)].iter().any(|(sign, _)| *sign != ' ');
    let shown = lines.iter().enumerate().filter(|(at, _)| is_near(*at));
    shown.map(|(_, (sign, line))| format!("{sign} {line}\n")).collect()
}

#[tokio::test]
async fn the_page_has_the_exchanges_as_they_are_on_the_wire() {
    let made = [
        ("completes", completes().await),
        ("asks", asks().await),
        ("cancels", cancels().await),
        ("refused", refused().await),
    ];
    let written = std::fs::read_to_string(page()).expect("the page");
    let mut recorded = written.clone();
    for (name, transcript) in made {
        let (begin, end) = (format!("<!-- recorded: {name} -->\n\n"), "<!-- end -->");
        let at = recorded.find(&begin).unwrap_or_else(|| panic!("docs/tasks-wire.md has no {begin}")) + begin.len();
        let len = recorded[at..].find(end).expect("an end");
        recorded.replace_range(at..at + len, &transcript);
    }
    if std::env::var_os(RECORD).is_some() {
        std::fs::write(page(), &recorded).expect("the page is written");
    } else if recorded != written {
        panic!(
            "docs/tasks-wire.md (-) differs from the wire (+):\n{}To write it anew: {RECORD}=1 cargo test --test it task_transcripts",
            difference(&written, &recorded)
        );
    }
}

#[test]
fn a_difference_is_shown_with_the_lines_around_it() {
    let shown = difference("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl", "a\nb\nc\nd\nX\nY\nf\ng\nh\ni\nj\nk\nl\nm");
    assert_eq!(shown, "  b\n  c\n  d\n- e\n+ X\n+ Y\n  f\n  g\n  h\n  j\n  k\n  l\n+ m\n");
    assert_eq!(difference("a\nb", "a\nb"), "");
}

#[test]
fn ids_and_times_have_names() {
    let mut transcript = Transcript::default();
    transcript.name("xyz", "TASK");
    let text = r#"{"taskId":"mrt1.xyz","createdAt":"2026-08-01T10:00:00.000Z","ttlMs":86400017}"#;
    let named = r#"{"taskId":"mrt1.TASK","createdAt":"TIME","ttlMs":86400000}"#;
    assert_eq!(transcript.named(text), named);
    let other = r#"{"ttlMs":3600000,"x":1}"#;
    assert_eq!(transcript.named(other), other);
}
