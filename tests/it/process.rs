//! The process as an operator sees it: probes, metrics, the end.

use crate::support::*;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use mcp_resume::admin::ask::{self, Probe, ProbeResult};
use mcp_resume::protocol::ids::Owner;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn observed() -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    (upstream, proxy)
}

async fn page(proxy: &Proxy, path: &str) -> (u16, String) {
    let admin = proxy.admin.expect("an admin listener");
    let mut response = Request::new("GET", path).send(admin).await;
    let body = response.body().await;
    (response.status, String::from_utf8(body).expect("text"))
}

/// The sum of all samples whose name contains `name`.
fn sum(metrics: &str, name: &str) -> f64 {
    let samples: Vec<f64> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter(|line| line.split(['{', ' ']).next().is_some_and(|n| n.contains(name)))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    samples.iter().sum()
}

#[tokio::test]
async fn it_says_that_it_lives_and_when_it_is_ready() {
    let (mut upstream, proxy) = observed().await;
    assert_eq!(page(&proxy, "/livez").await.0, 200);
    assert_eq!(page(&proxy, "/healthz").await, page(&proxy, "/livez").await);
    Session::open(&proxy, &mut upstream, V2025_11).await;
    assert_eq!(page(&proxy, "/readyz").await.0, 200);
    assert_eq!(page(&proxy, "/nothing").await.0, 404);
}

#[tokio::test]
async fn it_is_not_ready_before_its_upstream_was_there_once() {
    let mut upstream = Upstream::start().await;
    upstream.refuse().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    assert_eq!(page(&proxy, "/readyz").await.0, 503);
    assert_eq!(page(&proxy, "/healthz").await.0, 200);
}

/// The file that a process logs to, removed with this.
struct LogFile(std::path::PathBuf);

impl Drop for LogFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn the_end_and_return_of_a_server_are_in_probes_and_log() {
    let mut upstream = Upstream::start().await;
    let log = LogFile(std::env::temp_dir().join(format!("mcp-resume-reach-{}.log", std::process::id())));
    let mut command = command(&upstream);
    command.env("MCP_RESUME_UPSTREAM__UNREADY_SECS", "0");
    command.stderr(std::fs::File::create(&log.0).expect("a log file"));
    let proxy = Proxy::process(command).await;
    assert_eq!(page(&proxy, "/readyz").await, (200, "ready\n".to_owned()));
    upstream.refuse().await;
    until("it is not ready", async || page(&proxy, "/readyz").await.0 == 503).await;
    assert_eq!(page(&proxy, "/readyz").await.1, "the upstream accepts no connections\n");
    upstream.listen_again().await;
    until("it is ready", async || page(&proxy, "/readyz").await.0 == 200).await;
    proxy.stop().await;
    let said = std::fs::read_to_string(&log.0).expect("a log");
    let lines: Vec<_> = said.lines().filter(|line| line.contains("the MCP server accepts")).collect();
    let [_there, lost, back] = lines[..] else { panic!("{said}") };
    let address = format!("upstream.addr=\"{}\"", upstream.addr());
    assert!(lost.contains("WARN") && lost.contains(&address) && lost.contains("Connection refused"), "{lost}");
    assert!(back.contains("INFO") && back.contains(&address), "{back}");
}

#[tokio::test]
async fn a_health_check_gets_the_balancers_own_response() {
    let (mut upstream, proxy) = observed().await;
    let admin = proxy.admin.expect("an admin listener");
    Session::open(&proxy, &mut upstream, V2025_11).await;
    let health = ask::health(admin, Probe::Ready).await.expect("an answer");
    assert_eq!(health, ProbeResult { is_good: true, text: "ready".to_owned() });
    ask::drain(admin).await.expect("drained");
    let health = ask::health(admin, Probe::Ready).await.expect("an answer");
    assert_eq!(health, ProbeResult { is_good: false, text: "draining".to_owned() });
    assert!(ask::health(admin, Probe::Live).await.expect("an answer").is_good, "it drains, and runs");
}

#[tokio::test]
async fn a_listener_of_another_kind_is_not_taken_for_healthy() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let other = async {
        let (mut connection, _) = listener.accept().await.expect("the probe");
        let mut head = [0; 1024];
        let _ = connection.read(&mut head).await.expect("its head");
        connection.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.expect("it reads");
        connection
    };
    let (answer, _connection) = tokio::join!(ask::health(address, Probe::Ready), other);
    let error = answer.expect_err("no admin listener says that");
    assert_eq!(error.to_string(), format!("{address} answers 404 Not Found: is that the admin listener?"));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_says_nothing_is_not_waited_for() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let error = ask::health(address, Probe::Live).await.expect_err("no listener accepts");
    assert_eq!(error.to_string(), format!("{address} gives no answer to a probe"));
}

#[tokio::test]
async fn a_resume_and_its_outcome_show_in_the_metrics() {
    let (mut upstream, proxy) = observed().await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let before = page(&proxy, "/metrics").await;
    assert_eq!(before.0, 200);
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    session.resume(&place.forged().at(0)).send(proxy.addr).await;
    let after = page(&proxy, "/metrics").await;
    let resumes = |(_, text): &(u16, String)| sum(text, "resumes");
    assert_eq!(resumes(&after) - resumes(&before), 2.0, "{}", after.1);
    for outcome in ["lost", "served"] {
        let sample = format!("mcp_resume_resumes_total{{dialect=\"last_event_id\",outcome=\"{outcome}\"}} 1\n");
        assert!(after.1.contains(&sample), "{}", after.1);
    }
    for secret in [place.handle.as_str(), session.id.as_str()] {
        assert!(!after.1.contains(secret), "{secret} in the metrics");
    }
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn the_delay_of_a_live_event_is_measured_and_a_replay_is_not() {
    let (mut upstream, proxy) = observed().await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    // The reader waits at the tail.
    settle(&proxy, &mut upstream).await;
    sse.event(progress(1)).await;
    response.event().await;
    let measured = |(_, text): (u16, String)| sum(&text, "live_event_seconds_count");
    assert_eq!(measured(page(&proxy, "/metrics").await), 1.0);
    response.reset();
    until("it has left", async || metric(&proxy, "mcp_resume_streams_attached").await == 0.0).await;
    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.events().await.0.len(), 2);
    assert_eq!(measured(page(&proxy, "/metrics").await), 1.0);
}

#[tokio::test]
async fn delivered_events_are_counted_one_by_one() {
    let (mut upstream, proxy) = observed().await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let delivered = |(_, text): (u16, String)| sum(&text, "delivered_events_total");
    assert_eq!(delivered(page(&proxy, "/metrics").await), 0.0, "a prime is no event");
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.bytes((1..=9).map(|n| format!("data: {}\n\n", progress(n))).collect::<String>()).await;
    sse.finish(result(1)).await;
    // In one piece, or nearly: all of it was there before the client.
    settle(&proxy, &mut upstream).await;
    for times in [10.0, 20.0] {
        let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        assert_eq!(back.events().await.0.len(), 10);
        assert_eq!(delivered(page(&proxy, "/metrics").await), times);
    }
}

#[tokio::test]
async fn the_log_holds_no_secret_at_any_level() {
    let mut upstream = Upstream::start().await;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trace.log");
    let proxy = Proxy::binary(&upstream, &path).await;
    let session =
        Session::open_as(&proxy, &mut upstream, V2025_11, "secret-session", Some("Bearer secret-token")).await;
    let post = |body: String| {
        session
            .post(body)
            .target("/mcp?key=secret-query")
            .with("X-API-Key", "secret-key")
            .with("Cookie", "a=secret-cookie")
    };
    let secret =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"secret-payload"}}"#;

    // A call, a cut, a resume, a retry under a key.
    let request = post(call_tool("secret-id", "told-tool")).with("Idempotency-Key", "secret-idempotency");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event_id("secret-upstream-id", secret).await;
    let place = EventId::of(response.event().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.event().await;
    let url = format!("/mcp?key=secret-query&mcp-stream={}", place.handle);
    let mut by_url = session.get().target(&url).send(proxy.addr).await.sse();
    by_url.event().await;
    let mut again = request.send(proxy.addr).await.sse();
    again.event().await;
    sse.finish(result("secret-id")).await;
    again.event().await;
    again.ends().await;
    // What is refused: a lost cursor, one that is not ours, a bad body, a key used again.
    for (request, status) in [
        (session.resume(&place.forged().at(1)), 200),
        (session.resume("secret cursor"), 400),
        (session.get().target("/mcp?mcp-stream=secret-handle"), 400),
        (post("secret-garbage".to_owned()), 400),
        (post(call("secret-other")).with("Idempotency-Key", "secret-idempotency"), 422),
    ] {
        assert_eq!(request.send(proxy.addr).await.status, status);
    }
    // What passes through.
    let pending = post("secret-form".to_owned()).target("/told-path?code=secret-code").start(proxy.addr).await;
    upstream.next().await.json_with(401, "www-authenticate: Bearer secret-realm\r\n", "secret-page").await;
    assert_eq!(pending.response().await.status, 401);
    // Failures of the upstream: before a head, in mid-stream, no JSON-RPC, no listener.
    let pending = post(call("secret-2")).start(proxy.addr).await;
    upstream.expect("tools/call").await.reset().await;
    assert_eq!(pending.response().await.status, 502);
    let (sse, mut response) = begin(&proxy, &mut upstream, &post(call("secret-3"))).await;
    sse.bytes("data: secret-garbage\n\n").await;
    sse.reset().await;
    response.events().await;
    upstream.refuse().await;
    let pending = post(call("secret-4")).start(proxy.addr).await;
    assert_eq!(pending.response().await.status, 502);
    proxy.stop().await;

    let log = std::fs::read_to_string(&path).expect("a log");
    for line in ["TRACE", "DEBUG", "client disconnected", "told-tool", "stopping"] {
        assert!(log.contains(line), "no {line:?} in\n{log}");
    }
    let mac = &place.handle[place.handle.len() - 20..];
    for secret in ["secret", place.handle.as_str(), mac, &place.forged().handle] {
        let told: Vec<&str> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(told.is_empty(), "{secret}: {told:#?}");
    }
}

/// A server without TLS may wait for a request while the proxy waits for its side of the handshake.
#[tokio::test]
async fn a_server_that_leaves_the_handshake_unanswered_is_named_in_the_log() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("handshake.log");
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream"]);
    command.arg(format!("https://{}/mcp", silent.local_addr().expect("an address")));
    command.env("MCP_RESUME_UPSTREAM__CONNECT_TIMEOUT_MS", "300").env("MCP_RESUME_UPSTREAM__WAIT_SECS", "0");
    command.stderr(std::fs::File::create(&path).expect("a log file"));
    let proxy = Proxy::process(command).await;
    for id in 1..=3 {
        assert_eq!(Request::post(call(id)).send(proxy.addr).await.status, 504);
    }
    proxy.stop().await;
    let log = std::fs::read_to_string(&path).expect("a log");
    let told = log.lines().filter(|line| line.contains("WARN") && line.contains("leaves the TLS handshake")).count();
    assert!(told == 1 && log.contains("http://"), "once in ten seconds: {log}");
}

/// A server with TLS closes the connection of a request that begins with no handshake.
#[tokio::test]
async fn a_server_that_closes_connections_without_http_is_named_in_the_log() {
    for has_responded in [false, true] {
        let mut upstream = Upstream::start().await;
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("no-http-{has_responded}.log"));
        let mut command = command(&upstream);
        command.stderr(std::fs::File::create(&path).expect("a log file"));
        let proxy = Proxy::process(command).await;
        if has_responded {
            let pending = Request::post(call(1)).start(proxy.addr).await;
            upstream.expect("tools/call").await.json(200, result(1)).await;
            assert_eq!(pending.response().await.status, 200);
        }
        for id in 2..=4 {
            let pending = Request::post(call(id)).start(proxy.addr).await;
            upstream.expect("tools/call").await.reset().await;
            assert_eq!(pending.response().await.status, 502);
        }
        proxy.stop().await;
        let log = std::fs::read_to_string(&path).expect("a log");
        let is_told = |line: &&str| line.contains("WARN") && line.contains("give upstream.url with https://");
        assert_eq!(log.lines().filter(is_told).count(), usize::from(!has_responded), "{log}");
    }
}

#[tokio::test]
async fn the_log_has_each_request_and_resume_once_and_unprotected_traffic_the_first_time() {
    let mut upstream = Upstream::start().await;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lines.log");
    let mut command = command(&upstream);
    command.env("MCP_RESUME_LOG__LEVEL", "debug").env("MCP_RESUME_LOG__FORMAT", "json");
    command.stderr(std::fs::File::create(&path).expect("a log file"));
    let proxy = Proxy::process(command).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call_tool(1, "told"))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(progress(1)).await;
    response.event().await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    let mut back = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    back.prime().await;
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    for path in ["/sse", "/deep"] {
        let pending = Request::get().target(path).with("MCP-Protocol-Version", V2025_11).start(proxy.addr).await;
        upstream.next().await.status(404).await;
        assert_eq!(pending.response().await.status, 404);
    }
    proxy.stop().await;

    let log = std::fs::read_to_string(&path).expect("a log");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told = |what: &str| {
        let of_what =
            |line: &&Value| line["fields"]["message"].as_str().is_some_and(|message| message.starts_with(what));
        lines.iter().filter(of_what).map(|line| (line["level"].clone(), line["fields"].clone())).collect::<Vec<_>>()
    };
    let once = |what: &str, level: &str, fields: Value| {
        let told = told(what);
        assert_eq!(told.len(), 1, "{what}: {told:?}");
        assert_eq!(told[0].0, level, "{what}");
        for (field, value) in fields.as_object().expect("fields") {
            assert_eq!(told[0].1[field], *value, "{field} of {:?}", told[0].1);
        }
    };
    let call = json!({"method": "tools/call", "tool": "told"});
    let with = |more: Value| {
        let mut fields = call.clone();
        fields.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        fields
    };
    once("client disconnected", "INFO", json!({"cursor": 1, "can_resume": true}));
    once("client came back", "INFO", with(json!({"by": "last_event_id", "cursor": 1, "events": 1})));
    once("call ended", "INFO", with(json!({"events": 2, "connections": 2, "outcome": "completed", "attached": true})));
    once("MCP traffic passes unprotected", "WARN", json!({"path": "/sse", "endpoint": "/mcp", "streams": false}));
    let requests = told("request");
    for (method, path, status, times) in
        [("POST", "/mcp", 200, 2), ("POST", "/mcp", 202, 1), ("GET", "/mcp", 200, 1), ("GET", "another", 404, 2)]
    {
        let is_it = |fields: &Value| fields["method"] == method && fields["path"] == path && fields["status"] == status;
        let found = requests.iter().filter(|(level, fields)| level == "DEBUG" && is_it(fields)).count();
        assert_eq!(found, times, "{method} {path} {status}: {requests:#?}");
    }
    assert!(requests.iter().all(|(_, fields)| fields["duration_ms"].is_u64()), "{requests:#?}");
}

/// The reader of stderr has fallen behind: most of a mebibyte waits behind a full pipe when the
/// process is asked to end.
#[tokio::test]
async fn the_end_waits_for_a_reader_that_takes_the_last_lines() {
    const READ_FIRST: usize = 256 * 1024;
    let upstream = Upstream::start().await;
    let (mut stderr, writer) = std::io::pipe().expect("a pipe");
    let mut command = command(&upstream);
    command.env("MCP_RESUME_LOG__LEVEL", "trace").stderr(writer);
    let proxy = Proxy::process(command).await;
    upstream.answer_all();
    while metric(&proxy, "mcp_resume_log_lines_dropped_total").await == 0.0 {
        for _ in 0..50 {
            Request::new("GET", "/other").send(proxy.addr).await;
        }
    }
    let mut idle = Request::new("GET", "/other").send(proxy.addr).await;
    idle.body().await;
    let idle = idle.into_client();
    // Room for what is said from here on.
    stderr.read_exact(&mut vec![0; READ_FIRST]).expect("lines");
    proxy.signal("TERM").await;
    idle.drain().await;
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).expect("text");
    let told: Vec<&str> = rest.lines().filter(|line| line.contains("stopping")).collect();
    assert_eq!(told.len(), 1, "{} bytes, the last: {:?}", rest.len(), rest.lines().last());
    proxy.stop().await;
}

/// Returns the replica that a balancer reads from an event ID.
pub(crate) fn owner(id: &EventId) -> Owner {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(&id.handle).expect("base64");
    Owner(u32::from_be_bytes(bytes[2..6].try_into().expect("four bytes")))
}

#[tokio::test]
async fn event_ids_name_the_replica_by_its_name_or_else_by_host_and_port() {
    let mut upstream = Upstream::start().await;
    let mut owners = Vec::new();
    for name in [Some("a"), Some("b"), None, None] {
        let proxy = Proxy::start(&upstream, |c| c.replica.name = name.map(str::to_owned)).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
        let place = EventId::of(response.prime().await.id());
        let host = gethostname::gethostname().into_string().expect("a host name in UTF-8");
        let expected = name.map_or_else(|| format!("{host}:{}", proxy.addr.port()), str::to_owned);
        assert_eq!(owner(&place), Owner::from_name(&expected), "{expected}");
        owners.push(owner(&place).0);
        sse.finish(result(1)).await;
    }
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners.len(), 4, "each its own");
}

#[tokio::test]
async fn asked_to_stop_it_stops() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    response.events().await;
    proxy.stop().await;
}

#[tokio::test]
async fn running_calls_end_normally_after_a_request_to_stop() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    let stopped = proxy.ask_to_stop();
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    stopped.await;
}

#[tokio::test]
async fn a_large_answer_that_is_cut_shows_in_the_metrics() {
    let (mut upstream, proxy) = observed().await;
    let left = "mcp_resume_disconnects_total{can_resume=\"no\"}";
    let broke = "mcp_resume_upstream_failures_total{reason=\"upstream_broke\"}";
    let large = "x".repeat(100_000);
    for head in ["content-length: 100000\r\n\r\n", "transfer-encoding: chunked\r\n\r\n186a0\r\n"] {
        let pending = Request::post(call(1)).start(proxy.addr).await;
        let end = if head.contains("chunked") { "\r\n0\r\n\r\n" } else { "" };
        let whole = format!("HTTP/1.1 200 X\r\ncontent-type: application/json\r\n{head}{large}{end}");
        upstream.next().await.whole(whole).await;
        assert_eq!(pending.response().await.body().await.len(), 100_000);
    }
    assert_eq!((metric(&proxy, left).await, metric(&proxy, broke).await), (0.0, 0.0));

    let half = format!("HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n{large}");
    let pending = Request::post(call(2)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write(&half).await;
    pending.response().await.reset();
    upstream_call.closed().await;
    assert_eq!((metric(&proxy, left).await, metric(&proxy, broke).await), (1.0, 0.0));

    let pending = Request::post(call(3)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write(&half).await;
    let mut response = pending.response().await;
    upstream_call.reset().await;
    assert_eq!(response.try_body().await.1, End::Broken);
    assert_eq!((metric(&proxy, left).await, metric(&proxy, broke).await), (1.0, 1.0));
}
