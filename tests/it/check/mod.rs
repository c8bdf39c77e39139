//! `check` before servers of several kinds: the verdict, and what it rests on.

use crate::support::{self, http_versions, *};
use mcp_resume::check::{
    self, Contact, Facts, Form, Guard, Limits, Options, Report, ResumeOutcome, Standalone, Verdict,
};
use mcp_resume::config::{Config, HostHeader};
use serde_json::{Value, json};
use std::time::Duration;

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
    Options { limits: Limits { margin: SOON, ..Limits::default() }, ..Options::default() }
}

/// Returns the options for a server that leaves requests unanswered.
fn waiting(limit: Duration) -> Options {
    Options { limits: Limits { response: limit, stream: limit, ..options().limits }, ..Options::default() }
}

fn with_tool() -> Options {
    Options { tool: Some(check::Tool { name: "slow".to_owned(), arguments: serde_json::Map::new() }), ..options() }
}

/// Probes a server of this personality.
async fn probed(options: Options, personality: impl Personality) -> (Report, Memory) {
    let mut upstream = Upstream::start().await;
    let config = Config::for_upstream(&upstream.url()).expect("a usable URL");
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

/// The result of everything that the probe may ask an old server; `None` for what it should not know.
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

#[tokio::test]
async fn a_server_without_ids_cannot_resume() {
    let (report, memory) = probed(options(), async |_: &mut Memory, call: Call| plain(call, SESSION).await).await;
    assert_eq!(report.verdict, Verdict::CannotResume);
    let Facts { legacy, server, tools, .. } = &report.facts;
    let legacy = legacy.as_ref().expect("it initialized");
    assert_eq!(legacy.revisions, ["2025-11-25", "2025-06-18", "2025-03-26"]);
    assert!(legacy.session && !legacy.numbered && !legacy.primed);
    assert_eq!((legacy.answers, legacy.standalone), (Form::EventStream, Standalone::Refused { status: 405 }));
    assert_eq!(server.as_ref().map(|server| &server.name[..]), Some("scripted"));
    let tools = tools.as_ref().expect("it listed them");
    assert_eq!((tools.count, &tools.with_output_schema[..]), (2, &["exact".to_owned()][..]));
    assert_eq!(memory.count("DELETE /mcp"), 3, "every session that was opened is closed: {:?}", memory.asked);
    assert!(!report.to_string().contains("s-secret"));
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
async fn a_server_that_answers_in_json_without_sessions_is_told_so() {
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
}

/// Reaction of a server that numbers its events to a resume.
#[derive(Clone, Copy, PartialEq)]
enum Replay {
    Whole,
    WithoutTheResponse,
    FromTheStart,
    Refused,
}

/// A server whose answers are an empty event, a progress message for `tools/call`, and the response, with ids.
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
async fn a_server_that_resumes_is_tried_after_its_answer_within_a_call_and_later() {
    let faithful = async |memory: &mut Memory, call: Call| numbering(memory, call, Replay::Whole).await;
    let (report, memory) = probed(with_tool(), faithful).await;
    assert_eq!(report.verdict, Verdict::Resumes);
    let resumption = &report.facts.resumption;
    let held = Some(ResumeOutcome::Held);
    assert_eq!((resumption.finished, resumption.running, resumption.later), (held, held, held));
    assert_eq!((memory.count("resume"), memory.count("tools/call")), (3, 3));
    assert!(report.facts.legacy.as_ref().expect("it initialized").primed);
    let run = report.facts.tool.as_ref().expect("it ran");
    assert_eq!((run.messages, run.numbered), (2, true));
}

#[tokio::test]
async fn a_server_that_loses_or_repeats_resumes_unreliably() {
    for (replay, outcome) in [
        (Replay::WithoutTheResponse, ResumeOutcome::Lost { got: 1, of: 2 }),
        (Replay::FromTheStart, ResumeOutcome::Repeated),
        (Replay::Refused, ResumeOutcome::Refused { status: 409 }),
    ] {
        let unfaithful = async |memory: &mut Memory, call: Call| numbering(memory, call, replay).await;
        let (report, _) = probed(with_tool(), unfaithful).await;
        assert_eq!(report.verdict, Verdict::ResumesUnreliably);
        assert_eq!(report.facts.resumption.running, Some(outcome));
        assert!(report.can_stand_in_front);
    }
}

#[tokio::test]
async fn a_resume_that_is_never_answered_ends() {
    let mute = async |memory: &mut Memory, call: Call| match call.header("last-event-id") {
        Some(_) => memory.asked.push("resume".to_owned()),
        None => numbering(memory, call, Replay::Whole).await,
    };
    let (report, _) = probed(waiting(LATER), mute).await;
    assert_eq!(report.facts.resumption.finished, Some(ResumeOutcome::Unanswered));
    assert_eq!(report.verdict, Verdict::ResumesUnreliably);
}

#[tokio::test]
async fn a_tool_that_fails_is_run_once() {
    let failing = async |_: &mut Memory, call: Call| match &call.rpc_method()[..] {
        "tools/call" => {
            let id = id_of(&call);
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "no such tool"}});
            call.json(200, error.to_string()).await;
        }
        _ => plain(call, "").await,
    };
    let (report, memory) = probed(with_tool(), failing).await;
    assert_eq!(memory.count("tools/call"), 1);
    assert!(report.unknown.iter().any(|line| line.contains("the tool gave no result")), "{:?}", report.unknown);
}

#[tokio::test]
async fn a_foreign_host_and_a_foreign_origin_are_tried() {
    let strict = async |_: &mut Memory, call: Call| {
        let own = call.header("host").is_some_and(|host| host.starts_with("127.0.0.1"));
        match (own, call.header("origin")) {
            (false, _) => call.status(421).await,
            (true, Some(_)) => call.status(403).await,
            (true, None) => plain(call, SESSION).await,
        }
    };
    let (report, _) = probed(options(), strict).await;
    assert_eq!(report.facts.foreign_host, Guard::Refused { status: 421, scheme: None });
    assert_eq!(report.facts.foreign_origin, Guard::Refused { status: 403, scheme: None });
    let (report, _) = probed(options(), async |_: &mut Memory, call: Call| plain(call, "").await).await;
    assert_eq!((report.facts.foreign_host, report.facts.foreign_origin), (Guard::Accepted, Guard::Accepted));
}

async fn guarded(_: &mut Memory, call: Call) {
    match call.header("authorization") {
        Some("Bearer hidden") => plain(call, SESSION).await,
        _ => call.status_with(401, "www-authenticate: Bearer error=\"invalid_token\"\r\n").await,
    }
}

#[tokio::test]
async fn a_server_that_wants_credentials_says_so_and_shows_itself_to_those_who_have_them() {
    let (report, _) = probed(options(), guarded).await;
    assert_eq!(report.verdict, Verdict::WantsCredentials);
    assert!(!report.can_stand_in_front);

    let headers = check::parse_headers(&["Authorization: Bearer hidden".to_owned()]).expect("a header");
    let (report, _) = probed(Options { headers, ..options() }, guarded).await;
    assert_eq!(report.verdict, Verdict::CannotResume);
    assert_eq!(report.facts.anonymous, Guard::Refused { status: 401, scheme: Some("Bearer".to_owned()) });
    let json = serde_json::to_string(&report).expect("a report");
    assert!(!report.to_string().contains("hidden") && !json.contains("hidden"));
}

#[tokio::test]
async fn oauth_documents_that_name_the_upstream_are_warned_of() {
    let documented = async |_: &mut Memory, call: Call| {
        let origin = format!("http://{}", call.header("host").unwrap_or_default());
        match &call.target[..] {
            "/.well-known/oauth-protected-resource/mcp" => {
                call.json(200, json!({"resource": format!("{origin}/mcp")}).to_string()).await;
            }
            "/.well-known/oauth-authorization-server" => call.json(200, r#"{"issuer":"https://id.test"}"#).await,
            path if path.starts_with("/.well-known/") => call.json(404, "{}").await,
            _ => plain(call, "").await,
        }
    };
    let (report, _) = probed(options(), documented).await;
    let found: Vec<_> = report.facts.oauth.iter().map(|found| (&found.path[..], found.names_upstream)).collect();
    let expected =
        [("/.well-known/oauth-protected-resource/mcp", true), ("/.well-known/oauth-authorization-server", false)];
    assert_eq!(found, expected);
    assert_eq!(report.warnings.iter().filter(|line| line.contains("not rewritten")).count(), 1);
}

#[tokio::test]
async fn http_sse_of_2024_is_told_from_streamable_http() {
    let old = async |_: &mut Memory, call: Call| match (&call.method[..], &call.target[..]) {
        ("GET", "/sse") => call.sse().await.bytes("event: endpoint\ndata: /messages?s=1\n\n").await,
        _ => call.json(404, "{}").await,
    };
    let (report, _) = probed(options(), old).await;
    assert_eq!(report.verdict, Verdict::HttpSseOnly);
    assert_eq!(report.facts.http_sse, ["/sse"]);
}

#[tokio::test]
async fn a_web_page_is_no_mcp() {
    let page = async |_: &mut Memory, call: Call| {
        call.whole("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<p>\n").await;
    };
    let (report, _) = probed(options(), page).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
    let content_type = Some("text/html".to_owned());
    assert_eq!(report.facts.contact, Contact::NotMcp { status: 200, content_type, redirects: false });
}

#[tokio::test]
async fn bytes_that_are_no_http_are_no_mcp() {
    let garbage = async |_: &mut Memory, call: Call| {
        call.write("SSH-2.0-x\r\n").await;
        call.fin().await;
    };
    let (report, _) = probed(options(), garbage).await;
    assert_eq!((report.verdict, &report.facts.contact), (Verdict::NoMcp, &Contact::Broke));
}

#[tokio::test]
async fn a_body_that_is_no_mcp_in_the_right_clothes_is_no_mcp() {
    for body in [
        "{",
        "[]",
        "7",
        "{\"a\":1}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}",
    ] {
        let (report, _) = probed(options(), async |_: &mut Memory, call: Call| call.json(200, body).await).await;
        assert_eq!(report.verdict, Verdict::NoMcp, "{body}");
    }
    let noise = async |_: &mut Memory, call: Call| call.sse().await.finish("not JSON").await;
    let (report, _) = probed(options(), noise).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
}

#[tokio::test]
async fn a_server_that_declines_every_opening_is_quoted_by_its_code() {
    let (report, _) = probed(options(), async |_: &mut Memory, call: Call| decline(call).await).await;
    assert_eq!(report.verdict, Verdict::Declines);
    assert_eq!(report.facts.contact, Contact::Declined { status: 400, code: -32600 });
}

#[tokio::test]
async fn a_server_that_never_answers_ends_in_a_verdict() {
    let (report, _) = probed(waiting(SOON), async |_: &mut Memory, _: Call| {}).await;
    assert_eq!(report.verdict, Verdict::DoesNotAnswer);
    assert!(!report.can_stand_in_front);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_not_waited_for_again_and_again() {
    let tired = async |_: &mut Memory, call: Call| {
        if matches!(&call.rpc_method()[..], "initialize" | "server/discover") {
            plain(call, SESSION).await;
        }
    };
    let (report, memory) = probed(waiting(LATER), tired).await;
    assert_eq!(report.verdict, Verdict::CannotResume);
    assert!(report.facts.fell_silent);
    assert!(memory.count("ping") == 0, "{:?}", memory.asked);
}

#[tokio::test]
async fn the_systems_error_is_shown_where_no_server_listens() {
    let mut upstream = Upstream::start().await;
    let config = Config::for_upstream(&upstream.url()).expect("a usable URL");
    upstream.refuse().await;
    let report = Report::new(check::probe(&config, &options()).await, &config);
    assert_eq!(report.verdict, Verdict::Unreachable);
    let Contact::Unreachable { why } = &report.facts.contact else { panic!("{:?}", report.facts.contact) };
    assert!(why.contains("refused"), "{why}");
}

#[tokio::test]
async fn a_redirect_is_followed_within_the_origin_and_nowhere_else() {
    let moved = async |_: &mut Memory, call: Call| match &call.target[..] {
        "/mcp" if call.method == "POST" => call.status_with(307, "location: /mcp/\r\n").await,
        _ => plain(call, "").await,
    };
    let (report, _) = probed(options(), moved).await;
    assert_eq!(report.verdict, Verdict::CannotResume);

    let elsewhere = Upstream::start().await;
    let location = format!("location: {}\r\n", elsewhere.url());
    let away = async |_: &mut Memory, call: Call| call.status_with(307, &location).await;
    let (report, _) = probed(options(), away).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
    assert!(report.warnings.iter().any(|line| line.contains("redirects to another place")), "{:?}", report.warnings);
    assert_eq!(elsewhere.connections(), 0);
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
async fn an_endless_answer_is_left() {
    let endless = async |_: &mut Memory, call: Call| {
        if call.method != "POST" {
            return decline(call).await;
        }
        let sse = call.sse().await;
        while !sse.is_closed() {
            sse.bytes(format!(": {}\n\n", "x".repeat(64 * 1024))).await;
            tokio::task::yield_now().await;
        }
    };
    let options = Options { limits: Limits { response: Duration::from_secs(3600), ..options().limits }, ..options() };
    let (report, _) = probed(options, endless).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
}

/// Starts a listener that answers every request as HTTP/1.1 without TLS.
async fn plain_http() -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let mut bytes = [0; 1024];
            let _ = tcp.read(&mut bytes).await;
            let _ = tcp.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await;
        }
    });
    address
}

async fn report_of(url: &str, change: impl FnOnce(&mut Config)) -> Report {
    let mut config = Config::for_upstream(url).expect("a usable URL");
    change(&mut config);
    Report::new(within("the probe ends", check::probe(&config, &options())).await, &config)
}

#[tokio::test]
async fn a_wrong_scheme_is_named_with_the_right_one() {
    let address = plain_http().await;
    let pki = support::pki::Pki::new();
    let report = report_of(&format!("https://{address}/mcp"), |config| config.upstream.tls.ca = Some(pki.ca())).await;
    assert_eq!(
        (report.verdict, &report.facts.contact),
        (Verdict::OtherScheme, &Contact::OtherScheme { scheme: "http" })
    );
    assert!(report.to_string().contains(&format!("give http://{address}/mcp")), "{report}");

    let server = http_versions::TestServer::start(http_versions::HttpVersion::Http1Tls, &pki).await;
    let report = report_of(&server.url().replace("https:", "http:"), |_| {}).await;
    assert_eq!(report.facts.contact, Contact::OtherScheme { scheme: "https" });
    assert!(report.to_string().contains("TLS is spoken there: give https://"), "{report}");
    assert!(!report.can_stand_in_front);
}

#[tokio::test]
async fn a_failed_handshake_is_explained_in_words() {
    let (pki, other) = (support::pki::Pki::new(), support::pki::Pki::new());
    let server = http_versions::TestServer::start(http_versions::HttpVersion::Http1Tls, &pki).await;
    let report = report_of(&server.url(), |config| config.upstream.tls.ca = Some(other.ca())).await;
    assert_eq!(report.verdict, Verdict::NoTls);
    assert!(report.to_string().contains("the certificate is not signed by the authority"), "{report}");

    // In TLS 1.3 the server refuses a client without a certificate when the client's handshake is over.
    let server = http_versions::TestServer::start_asking(http_versions::HttpVersion::Http1Tls, &pki, true).await;
    let report = report_of(&server.url(), |config| config.upstream.tls.ca = Some(pki.ca())).await;
    assert_eq!(report.verdict, Verdict::NoTls, "{report}");
    assert!(report.to_string().contains("wants a client certificate"), "{report}");
}

#[tokio::test]
async fn an_endpoint_at_another_path_is_found_and_its_session_closed() {
    let elsewhere = async |memory: &mut Memory, call: Call| match (&call.method[..], &call.target[..]) {
        ("POST", "/api/mcp") => plain(call, SESSION).await,
        ("DELETE", "/api/mcp") => call.status(200).await,
        _ => {
            memory.asked.push("elsewhere".to_owned());
            call.status(404).await;
        }
    };
    let (report, memory) = probed(options(), elsewhere).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
    assert_eq!(report.facts.endpoint_at.as_deref(), Some("/api/mcp"));
    assert!(report.warnings.iter().any(|line| line.ends_with("/api/mcp")), "{:?}", report.warnings);
    assert_eq!(memory.count("DELETE /api/mcp"), 1);

    let (report, _) = probed(options(), async |_: &mut Memory, call: Call| call.status(404).await).await;
    assert_eq!(report.facts.endpoint_at, None);
    assert!(report.warnings.iter().any(|line| line.contains("nothing at this path")), "{:?}", report.warnings);
}

#[tokio::test]
async fn a_tool_that_the_server_does_not_list_is_not_run() {
    let tool = Some(check::Tool { name: "slwo".to_owned(), arguments: serde_json::Map::new() });
    let ask = Options { tool, ..options() };
    let (report, memory) = probed(ask, async |_: &mut Memory, call: Call| plain(call, "").await).await;
    assert_eq!(report.facts.unknown_tool.as_deref(), Some("slwo"));
    assert_eq!(report.facts.tools.expect("it listed them").names, ["slow", "exact"]);
    assert_eq!(memory.count("tools/call"), 0);
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
                // Anything else would be the traffic past the endpoint that the proxy warns of once.
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
async fn a_check_tells_what_it_does() {
    static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let progress: fn(&str) = |what| TOLD.lock().expect("no panic").push(what.to_owned());
    let ask = Options { progress: Some(progress), ..with_tool() };
    probed(ask, async |memory: &mut Memory, call: Call| numbering(memory, call, Replay::Whole).await).await;
    let told = TOLD.lock().expect("no panic").join("\n");
    for step in ["connecting", "asking for revisions", "asking for tools", "running slow, up to 120 s", "once more"] {
        assert!(told.contains(step), "{step} is not in\n{told}");
    }
}
