//! `check` before servers of several kinds: the verdict, and what it rests on.

use crate::support::{self, http_versions, *};
use mcp_resume::check::{
    self, Contact, Facts, Form, Guard, Options, Report, ResumeOutcome, Standalone, Timeouts, UnknownSession, Verdict,
};
use mcp_resume::config::{Config, HostHeader};
use serde_json::{Value, json};
use std::time::Duration;

mod contact;
mod event_stream;
mod guards;
mod resumption;
mod watch;

/// Reaction of a test's server to one request.
trait Personality: AsyncFn(&mut Memory, Call) {}

impl<T: AsyncFn(&mut Memory, Call)> Personality for T {}

/// Record of the probe, shared by the server and the test.
#[derive(Default)]
struct Memory {
    /// The JSON-RPC methods, and HTTP methods with paths, in order.
    asked: Vec<String>,
}

impl Memory {
    fn count(&self, asked: &str) -> usize {
        self.asked.iter().filter(|seen| *seen == asked).count()
    }
}

/// Options of a user without credentials.
fn options() -> Options {
    let timeouts = Timeouts { margin: SOON, watch: Duration::ZERO, ..Timeouts::default() };
    Options { timeouts, ..Options::default() }
}

/// Returns the options for a server that leaves requests unanswered.
fn waiting(limit: Duration) -> Options {
    Options { timeouts: Timeouts { response: limit, stream: limit, ..options().timeouts }, ..Options::default() }
}

fn with_tool() -> Options {
    Options { tool: Some(check::Tool { name: "slow".to_owned(), arguments: serde_json::Map::new() }), ..options() }
}

/// Probes a server of this personality.
async fn probed(options: Options, personality: impl Personality) -> (Report, Memory) {
    probed_with(options, |_| {}, personality).await
}

/// Probes a server of this personality, for a proxy with a changed configuration.
async fn probed_with(
    options: Options,
    change: impl FnOnce(&mut Config),
    personality: impl Personality,
) -> (Report, Memory) {
    let mut upstream = Upstream::start().await;
    let mut config = Config::for_upstream(&upstream.url()).expect("a usable URL");
    change(&mut config);
    let mut memory = Memory::default();
    let serving = async {
        loop {
            let call = upstream.next().await;
            let name = match &call.method[..] {
                "POST" => call.rpc_method(),
                method => format!("{method} {}", call.target),
            };
            memory.asked.push(name);
            personality(&mut memory, call).await;
        }
    };
    let report = tokio::select! {
        facts = within("the probe ends", check::probe(&config, &options)) => Report::new(facts, &config),
        () = serving => unreachable!("a server has no end"),
    };
    (report, memory)
}

fn initialized(version: &Value) -> Value {
    json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "scripted", "version": "7"}})
}

/// The result of everything that the probe may ask an old server; `None` for what it should not
/// know.
fn result_of(call: &Call) -> Option<Value> {
    if call.method != "POST" {
        return None;
    }
    let body = call.json_body();
    let result = match body["method"].as_str()? {
        "initialize" => initialized(&body["params"]["protocolVersion"]),
        "ping" => json!({}),
        "tools/list" => json!({"tools": [{"name": "slow"}, {"name": "exact", "outputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": []}),
        _ => return None,
    };
    Some(json!({"jsonrpc": "2.0", "id": body["id"], "result": result}))
}

/// Refuses what is no request that [`result_of`] knows.
async fn decline(call: Call) {
    match &call.rpc_method()[..] {
        "notifications/initialized" => call.status(202).await,
        "GET" => call.status(405).await,
        "DELETE" => call.status(200).await,
        _ => call.json(400, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#).await,
    }
}

/// A server that answers with event streams and numbers nothing.
async fn plain(call: Call, head: &str) {
    match result_of(&call) {
        Some(result) => call.sse_with(head).await.finish(result.to_string()).await,
        None => decline(call).await,
    }
}

const SESSION: &str = "mcp-session-id: s-secret\r\n";

fn id_of(call: &Call) -> u64 {
    call.json_body()["id"].as_u64().unwrap_or(0)
}

/// Reaction of a server that numbers its events to a resume.
#[derive(Clone, Copy, PartialEq)]
enum Replay {
    Whole,
    WithoutTheResponse,
    FromTheStart,
    Refused,
}

/// A server whose answers are an empty event, a progress message for `tools/call`, and the
/// response, with ids.
async fn numbering(memory: &mut Memory, call: Call, replay: Replay) {
    if call.method == "GET" && call.header("last-event-id").is_some() {
        let last = call.header("last-event-id").expect("just seen").to_owned();
        memory.asked.push("resume".to_owned());
        return replay_after(call, &last, replay).await;
    }
    let Some(result) = result_of(&call) else { return decline(call).await };
    let (id, runs) = (id_of(&call), call.rpc_method() == "tools/call");
    let sse = call.sse_with(SESSION).await;
    sse.bytes(format!("id: {id}.0\ndata:\n\n")).await;
    if runs {
        sse.event_id(&format!("{id}.1"), progress(1)).await;
        // The first run is left alone; the others are cut here.
        if id != 50 {
            return sse.closed().await;
        }
    }
    sse.event_id(&format!("{id}.2"), result.to_string()).await;
    sse.end().await;
}

async fn replay_after(call: Call, last: &str, replay: Replay) {
    let (id, seq) = last.split_once('.').expect("an id of this server's");
    let message = result(id.parse::<u64>().expect("a number"));
    if replay == Replay::Refused {
        return call.status(409).await;
    }
    let sse = call.sse().await;
    if replay == Replay::FromTheStart && seq == "1" {
        sse.event_id(last, progress(1)).await;
    }
    if replay == Replay::WithoutTheResponse && seq == "1" {
        return sse.end().await;
    }
    sse.event_id(&format!("{id}.2"), message).await;
    sse.end().await;
}

#[tokio::test]
async fn nothing_but_harmless_requests_is_sent() {
    let (_, memory) = probed(options(), async |_: &mut Memory, call: Call| plain(call, SESSION).await).await;
    let harmless = ["initialize", "notifications/initialized", "server/discover", "ping", "tools/list", "DELETE /mcp"];
    let strange: Vec<_> =
        memory.asked.iter().filter(|asked| !harmless.contains(&&asked[..]) && !asked.starts_with("GET /")).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[tokio::test]
async fn a_server_that_answers_in_json_without_sessions_is_reported() {
    let json_mode = async |_: &mut Memory, call: Call| match result_of(&call) {
        Some(result) => call.json(200, result.to_string()).await,
        None => decline(call).await,
    };
    let (report, memory) = probed(options(), json_mode).await;
    assert_eq!(report.verdict, Verdict::Unseen, "no event stream was seen, with or without ids");
    assert!(report.to_string().contains("not seen: every answer came as JSON"), "{report}");
    let legacy = report.facts.legacy.as_ref().expect("it initialized");
    assert_eq!((legacy.session, legacy.answers), (false, Form::Json));
    assert_eq!(memory.count("DELETE /mcp"), 0, "there is no session to close");
    assert!(report.adds.iter().any(|line| line.starts_with("an answer in JSON")));
}

#[tokio::test]
async fn a_server_that_speaks_the_modern_era_alone_is_known_by_its_discovery() {
    let modern = async |_: &mut Memory, call: Call| {
        let body = call.json_body();
        let meta = &body["params"]["_meta"];
        if meta["io.modelcontextprotocol/protocolVersion"] != V2026
            || call.header("mcp-protocol-version") != Some(V2026)
        {
            return decline(call).await;
        }
        assert_eq!(call.header("mcp-method"), body["method"].as_str());
        let result = match body["method"].as_str() {
            Some("server/discover") => json!({"supportedVersions": [V2026],
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "new", "version": "1"}}}),
            _ => json!({"tools": []}),
        };
        call.json(200, json!({"jsonrpc": "2.0", "id": body["id"], "result": result}).to_string()).await;
    };
    let old_requests_aside = async |memory: &mut Memory, call: Call| match &call.method[..] {
        "POST" => modern(memory, call).await,
        _ => decline(call).await,
    };
    let (report, _) = probed(options(), old_requests_aside).await;
    assert_eq!(report.verdict, Verdict::Unseen);
    assert_eq!(report.facts.legacy, None);
    assert_eq!(report.facts.modern.as_ref().expect("discovered").revisions, [V2026]);
    assert_eq!(report.facts.server.as_ref().map(|server| &server.name[..]), Some("new"));
    assert!(report.adds.iter().any(|line| line.starts_with("clients of the older revisions can use the server")));
}

#[tokio::test]
async fn a_discovery_of_older_revisions_is_no_promise_of_the_modern_era() {
    let listing = async |_: &mut Memory, call: Call| {
        if call.rpc_method() != "server/discover" {
            return plain(call, SESSION).await;
        }
        // The last is a draft of an older revision.
        let found = json!({"supportedVersions": [V2025_11, "2024-11-05", "2024-10-07"], "capabilities": {}});
        let id = id_of(&call);
        call.json(200, json!({"jsonrpc": "2.0", "id": id, "result": found}).to_string()).await;
    };
    let (report, memory) = probed(options(), listing).await;
    assert_eq!(memory.count("server/discover"), 1);
    assert!(report.facts.legacy.is_some() && report.facts.modern.is_none(), "{:?}", report.facts);
    assert!(report.adds.iter().all(|line| !line.starts_with("at 2026-07-28")), "{:?}", report.adds);
}

#[tokio::test]
async fn a_query_reaches_the_server_and_is_shown_nowhere() {
    let mut upstream = Upstream::start().await;
    let mut config = Config::for_upstream(&format!("{}?key=hunter2", upstream.url())).expect("a usable URL");
    config.upstream.host = HostHeader::Name("named.test".parse().expect("a value"));
    let options = options();
    let probing = async { Report::new(check::probe(&config, &options).await, &config) };
    let serving = async {
        loop {
            let call = upstream.next().await;
            let elsewhere = call.target.starts_with("/.well-known/") || call.target == "/sse";
            assert!(elsewhere || call.target == "/mcp?key=hunter2", "{} {}", call.method, call.target);
            let named = ["named.test", "mcp-resume-check.invalid"].contains(&call.header("host").unwrap_or_default());
            assert!(named, "{:?}", call.header("host"));
            plain(call, "").await;
        }
    };
    let report = tokio::select! {
        report = within("the probe ends", probing) => report,
        () = serving => unreachable!("a server has no end"),
    };
    assert_eq!(report.verdict, Verdict::CannotResume);
    assert!(!report.to_string().contains("hunter2"));
}

#[tokio::test]
async fn an_mcp_resume_is_recognised_and_keeps_its_warning_for_clients() {
    let (mut upstream, proxy, _) = setup().await;
    let config = Config::for_upstream(&format!("http://{}/mcp", proxy.addr)).expect("a usable URL");
    let options = options();
    let report = tokio::select! {
        facts = within("the probe ends", check::probe(&config, &options)) => Report::new(facts, &config),
        () = async {
            loop {
                let call = upstream.next().await;
                // Anything else would be the traffic past the endpoint that the proxy warns of
                // once.
                assert!(call.target == "/mcp" || call.target.starts_with("/.well-known/"), "{}", call.target);
                plain(call, SESSION).await;
            }
        } => unreachable!("a server has no end"),
    };
    assert!(report.facts.mcp_resume && report.adds.is_empty(), "{report}");
    assert!(
        report.to_string().lines().next().expect("a line").ends_with("an mcp-resume stands in front of it already")
    );
}

#[tokio::test]
async fn a_check_reports_its_progress() {
    static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let progress: fn(&str) = |what| TOLD.lock().expect("no panic").push(what.to_owned());
    let ask = Options { progress: Some(progress), ..with_tool() };
    probed(ask, async |memory: &mut Memory, call: Call| numbering(memory, call, Replay::Whole).await).await;
    let told = TOLD.lock().expect("no panic").join("\n");
    for step in ["connecting", "asking for revisions", "asking for tools", "running slow, up to 120 s", "once more"] {
        assert!(told.contains(step), "{step} is not in\n{told}");
    }
}
