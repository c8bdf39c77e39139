//! The binary from outside: its answers to a wrong or idle command line, its exit codes, its check, its demo.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
        .args(arguments)
        .env("MCP_RESUME_DELIVERY__RETRY_MS", "soon")
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it speaks UTF-8")
}

#[test]
fn a_wrong_configuration_lists_all_its_problems_and_exits_2() {
    let output = run(&["serve", "--listen", "here", "--store", "tape"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let report = text(&output.stderr);
    let problems = ["4 problems", "RETRY_MS in the", "--listen: ", "--store: ", "upstream.url: "];
    for problem in problems {
        assert!(report.contains(problem), "{problem} is not in\n{report}");
    }
}

#[test]
fn a_file_that_cannot_be_read_exits_2() {
    let output = run(&["serve", "--config", "no/such/file.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot read the configuration no/such/file.toml"));
}

#[test]
fn a_certificate_that_cannot_be_read_exits_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
        .args(["serve", "--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:0", "--admin", ""])
        .env("MCP_RESUME_LISTEN__TLS__CERT", "no/such/cert.pem")
        .env("MCP_RESUME_LISTEN__TLS__KEY", "no/such/key.pem")
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot read no/such/cert.pem: "), "{}", text(&output.stderr));
}

#[test]
fn a_wrong_command_line_exits_2() {
    for arguments in [&[][..], &["serve", "--upsteam", "x"], &["demo", "--listen", "here"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn help_says_how_values_are_found_and_exits_0() {
    let output = run(&["serve", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    for word in ["--upstream <URL>", "MCP_RESUME_DELIVERY__RETRY_MS", "config.example.toml"] {
        assert!(text(&output.stdout).contains(word), "{word}");
    }
}

/// Returns the command `serve`, in front of a server that does not exist.
fn serve(listen: &str, admin: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["serve", "--upstream", "http://127.0.0.1:9/deep/mcp", "--listen", listen, "--admin", admin]);
    command
}

const FREE: &str = "127.0.0.1:0";

#[test]
#[cfg(unix)]
fn serving_says_where_and_ends_with_0_once_it_is_asked_to() {
    for signal in ["-TERM", "-INT"] {
        let mut child =
            serve(FREE, FREE).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("its stdout is piped"));
        for (before, after) in [("listening on http://", "/deep/mcp\n"), ("admin on http://", "\n")] {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("a line");
            let address = line.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            let address: SocketAddr = address.unwrap_or(&line).parse().expect("an address between");
            TcpStream::connect(address).expect("it listens there");
        }
        let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
        assert_eq!(child.wait().expect("a status").code(), Some(0), "{signal}");
        let mut more = String::new();
        stdout.read_to_string(&mut more).expect("text");
        assert_eq!(more, "", "a line for each listener, and nothing else");
    }
}

/// A server that answers each call with an event stream which it breaks off once the client has left.
#[cfg(unix)]
fn fickle_server() -> (SocketAddr, std::sync::mpsc::Sender<()>) {
    let listener = TcpListener::bind(FREE).expect("a port");
    let address = listener.local_addr().expect("an address");
    let (has_left, left) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        'connections: for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            let mut request = Vec::new();
            while !request.ends_with(CALL.as_bytes()) {
                let mut piece = [0; 1024];
                let read = connection.read(&mut piece).expect("a request");
                if read == 0 {
                    // The peer only probed for a listener.
                    continue 'connections;
                }
                request.extend_from_slice(&piece[..read]);
            }
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n";
            connection.write_all(head).expect("the proxy reads");
            left.recv().expect("the test goes on");
        }
    });
    (address, has_left)
}

#[cfg(unix)]
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;

/// The client of a call leaves, comes back and leaves again, and then its server does: the lines that are logged of the first leave, of the
/// return, and of the end.
#[cfg(unix)]
fn lines_of_a_call(format: &str, traceparent: Option<&str>) -> [String; 3] {
    let (server, has_left) = fickle_server();
    let mut child = Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
        .args(["serve", "--upstream", &format!("http://{server}/mcp"), "--listen", FREE, "--admin", ""])
        .env("MCP_RESUME_LOG__FORMAT", format)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut announced = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut announced).expect("a line");
    let address = announced.split("http://").nth(1).and_then(|url| url.split('/').next()).expect("an address");
    let trace = traceparent.map_or(String::new(), |trace| format!("traceparent: {trace}\r\n"));
    let common = format!(
        "Host: {address}\r\n{trace}Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n\
         Mcp-Session-Id: {SESSION}\r\n"
    );
    let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", CALL.len());
    let id = reads_an_id(address, &format!("POST /mcp HTTP/1.1\r\n{common}{head}{CALL}"));
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines().map(|line| line.expect("text"));
    let mut line = |what: &str| lines.find(|line| line.contains(what)).expect("a line");
    let left = line("client disconnected");
    reads_an_id(address, &format!("GET /mcp HTTP/1.1\r\n{common}Last-Event-ID: {id}\r\n\r\n"));
    let back = line("client came back");
    line("client disconnected");
    has_left.send(()).expect("the server runs");
    let failed = line("call ended");
    child.kill().expect("it runs");
    child.wait().expect("a status");
    [left, back, failed]
}

#[cfg(unix)]
const SESSION: &str = "session-of-a-test";

/// Sends `request`, reads the beginning of an event stream, and leaves. Returns the first event's ID.
#[cfg(unix)]
fn reads_an_id(address: &str, request: &str) -> String {
    let mut client = TcpStream::connect(address).expect("it listens there");
    client.write_all(request.as_bytes()).expect("the proxy reads");
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer);
        let id = text.split_once("\nid: ").and_then(|(_, rest)| rest.split_once('\n'));
        if let Some((id, _)) = id.filter(|(_, rest)| rest.contains("retry: ")) {
            return id.to_owned();
        }
        let mut piece = [0; 1024];
        let read = client.read(&mut piece).expect("an answer");
        assert!(read > 0, "{text}");
        answer.extend_from_slice(&piece[..read]);
    }
}

#[test]
#[cfg(unix)]
fn log_lines_name_the_trace_of_their_request() {
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let good = format!("00-{trace}-b7ad6b7169203331-01");
    for line in lines_of_a_call("text", Some(&good)) {
        assert!(line.contains(&format!(" request{{trace_id={trace}}}: ")), "{line}");
    }
    for line in lines_of_a_call("json", Some(&good)) {
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(line["span"]["trace_id"], trace, "{line}");
    }
    let bad = good.replace(trace, &"0".repeat(32));
    for format in ["text", "json"] {
        for traceparent in [None, Some(bad.as_str())] {
            for line in lines_of_a_call(format, traceparent) {
                assert!(!line.contains("trace_id") && !line.contains("request{"), "{line}");
            }
        }
    }
}

#[test]
#[cfg(unix)]
fn one_search_finds_each_line_of_a_call_and_one_line_tells_what_became_of_it() {
    let lines = lines_of_a_call("json", None);
    assert!(lines.iter().all(|line| !line.contains(SESSION)), "{lines:?}");
    let fields = |text: &String| serde_json::from_str::<serde_json::Value>(text).expect("JSON")["fields"].clone();
    let lines = lines.each_ref().map(fields);
    let [left, back, ended] = &lines;
    assert!(left["session"].is_string() && left["stream.id"].is_string(), "{left}");
    for line in &lines {
        for field in ["session", "stream.id"] {
            assert_eq!(line[field], left[field], "{line}");
        }
        assert_eq!((&line["method"], &line["tool"]), (&"tools/call".into(), &"t".into()), "{line}");
    }
    assert_eq!((&left["can_resume"], &left["cursor"]), (&true.into(), &0.into()), "{left}");
    for line in [back, ended] {
        assert!(line["duration_ms"].is_u64() && line["events"].is_u64(), "{line}");
    }
    assert_eq!((&back["by"], &back["connections"]), (&"last_event_id".into(), &1.into()), "{back}");
    assert!(back["outcome"].is_null(), "it still runs: {back}");
    assert_eq!((&ended["outcome"], &ended["error"]), (&"failed".into(), &"upstream_broke".into()), "{ended}");
    assert_eq!(ended["connections"], 2, "{ended}");
    assert!(ended["attached"].is_boolean(), "its client has just left: {ended}");
}

/// Sends a request with these headers; returns the response and the warning logged about it.
#[cfg(unix)]
fn refused(command: &mut Command, listener: &str, headers: &str) -> (String, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut told = BufReader::new(child.stdout.take().expect("it is piped")).lines().map(|line| line.expect("a line"));
    let address = told.find_map(|line| Some(line.split_once(listener)?.1.split('/').next()?.to_owned()));
    let mut client = TcpStream::connect(address.expect("its address")).expect("it listens there");
    let request = format!("GET /metrics HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    client.write_all(request.as_bytes()).expect("the proxy reads");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("text");
    // It ends in order, so that every line is written.
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    let mut log = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut log).expect("text");
    child.wait().expect("a status");
    let line = log.lines().find(|line| line.contains("a request was refused"));
    assert!(line.is_some(), "no line of it in {log}");
    (answer, line.unwrap_or_default().to_owned())
}

#[test]
#[cfg(unix)]
fn a_refusal_for_a_host_or_an_origin_is_answered_and_warned_of_with_the_key_that_would_allow_it() {
    const DATA: &str = "listening on http://";
    const ADMIN: &str = "admin on http://";
    let host = ("Host: evil.example\r\n", "host_refused", "evil.example", "listen.allowed_hosts");
    let origin = (
        "Host: localhost\r\nOrigin: http://evil.example\r\n",
        "origin_refused",
        "http://evil.example",
        "listen.allowed_origins",
    );
    let mut waits = serve(FREE, FREE);
    waits.args(["--store", "redis://127.0.0.1:9"]);
    for (mut command, listener, (headers, code, name, key)) in [
        (serve(FREE, FREE), DATA, host),
        (serve(FREE, FREE), DATA, origin),
        (serve(FREE, FREE), ADMIN, host),
        (waits, ADMIN, host),
    ] {
        let (answer, line) = refused(&mut command, listener, headers);
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(line.contains("WARN") && line.contains(code), "{line}");
        for part in [name, key] {
            assert!(answer.contains(part) && line.contains(part), "{part}: {answer} {line}");
        }
    }
}

#[test]
fn a_start_says_what_it_serves_and_a_dead_upstream_is_told_once_and_when_it_is_back() {
    let address = TcpListener::bind(FREE).expect("a port").local_addr().expect("an address");
    let mut child = Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
        .args(["serve", "--upstream", &format!("http://{address}/"), "--listen", FREE, "--admin", FREE])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut told = BufReader::new(child.stderr.take().expect("it is piped")).lines().map(|line| line.expect("text"));
    let mut line = |what: &str| told.find(|line| line.contains(what)).expect("a line");
    let start = line("starting");
    let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
    for part in [version, &format!("upstream=http://{address}/"), "store=memory", "endpoint=\"/\""] {
        assert!(start.contains(part), "{part}: {start}");
    }
    let dead = line("accepts no connections yet");
    assert!(dead.contains("WARN") && dead.contains(&address.to_string()) && dead.contains("refused"), "{dead}");
    let lines = BufReader::new(child.stdout.take().expect("its stdout is piped")).lines();
    let admin =
        lines.map(|line| line.expect("text")).find_map(|line| Some(line.split_once("admin on http://")?.1.into()));
    let admin: String = admin.expect("it has an admin listener");
    assert_eq!(health(&["--admin", &admin]).status.code(), Some(1));
    let _server = TcpListener::bind(address).expect("the port is free again");
    while health(&["--admin", &admin]).status.code() != Some(0) {}
    let back = line("the MCP server accepts");
    assert!(
        back.contains("INFO") && back.contains("accepts connections") && back.contains(&address.to_string()),
        "{back}"
    );
    child.kill().expect("it runs");
    child.wait().expect("a status");
}

#[test]
fn an_address_that_is_taken_exits_1() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for (listen, admin, key) in [(address.as_str(), FREE, "listen.address"), (FREE, &address, "admin.address")] {
        let output = serve(listen, admin).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty(), "not before all is bound");
        let said = text(&output.stderr);
        assert!(said.contains(&format!("cannot listen on {address} ({key}): ")), "{said}");
        assert!(said.contains("another process listens there"), "{said}");
    }
}

fn health(arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_mcp-resume");
    Command::new(binary).arg("health").args(arguments).env_clear().output().expect("the binary runs")
}

#[test]
fn health_says_what_the_process_says_and_exits_with_it() {
    let mut child = serve(FREE, FREE).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("its stdout is piped")).lines();
    let admin =
        lines.map(|line| line.expect("text")).find_map(|line| Some(line.split_once("admin on http://")?.1.into()));
    let admin: String = admin.expect("it has an admin listener");
    let ready = health(&["--admin", &admin]);
    let live = health(&["--admin", &admin, "--live"]);
    child.kill().expect("it runs");
    child.wait().expect("a status");
    let said = "the upstream has not accepted a connection yet\n";
    assert_eq!((ready.status.code(), text(&ready.stdout)), (Some(1), said), "its server does not listen");
    assert_eq!((live.status.code(), text(&live.stdout)), (Some(0), "ok\n"));
    assert!(ready.stderr.is_empty() && live.stderr.is_empty());
}

#[test]
fn health_without_a_listener_exits_1_and_of_a_wrong_address_2() {
    let output = health(&["--admin", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no admin listener answers at 127.0.0.1:1: "), "{}", text(&output.stderr));
    for (admin, problem) in [("here", "--admin"), ("", "admin.address is empty")] {
        let output = health(&["--admin", admin]);
        assert_eq!(output.status.code(), Some(2), "{admin:?}");
        assert!(text(&output.stderr).contains(problem), "{}", text(&output.stderr));
    }
}

/// An admin listener that answers these, one connection each; says how many it had.
fn admin_answering(statuses: &'static [&'static str]) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind(FREE).expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let answering = std::thread::spawn(move || {
        for status in statuses {
            let (mut connection, _) = listener.accept().expect("a connection");
            let mut request = [0; 1024];
            let _ = connection.read(&mut request).expect("a request");
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
            connection.write_all(answer.as_bytes()).expect("it reads");
        }
    });
    (address, answering)
}

#[test]
fn health_waits_until_the_answer_is_yes_where_it_is_told_to() {
    let (admin, answering) = admin_answering(&["503 Service Unavailable", "503 Service Unavailable", "200 OK"]);
    let output = health(&["--admin", &admin, "--wait", "60"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    answering.join().expect("it was asked three times");

    let (admin, answering) = admin_answering(&["503 Service Unavailable"]);
    assert_eq!(health(&["--admin", &admin]).status.code(), Some(1));
    answering.join().expect("it was asked once");
}

#[test]
fn drain_says_in_its_help_what_it_waits_for() {
    let output = run(&["drain", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    for word in ["replica.drain_timeout_secs", "SIGTERM", "X-Drain", "Exit codes"] {
        assert!(text(&output.stdout).contains(word), "{word}");
    }
}

#[test]
fn the_demo_loses_a_call_without_the_proxy_keeps_it_with_it_and_exits_0() {
    let output = run(&["demo", "--once"]);
    let show = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{show}\n{}", text(&output.stderr));
    assert!(show.contains("✗ 3 of 10 numbers arrived, and no result"), "{show}");
    assert!(show.contains("✓ every event arrived exactly once and in order"), "{show}");
    assert_eq!(show.matches("connection reset").count(), 4, "three cuts, and the summary that names them:\n{show}");
}

fn check(arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_mcp-resume");
    Command::new(binary).arg("check").args(arguments).env_clear().output().expect("the binary runs")
}

#[test]
fn check_says_in_words_what_a_good_configuration_serves_and_exits_0() {
    let output = check(&["--config", "config.example.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let lines = ["the configuration is good", "  listens on  http://127.0.0.1:8080/mcp", "  in front of http://"];
    for line in lines {
        assert!(said.lines().any(|said| said.starts_with(line)), "{line} is not in\n{said}");
    }
}

/// A directory that goes with the test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mcp-resume-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
#[cfg(unix)]
fn check_lists_every_file_that_cannot_be_used_as_serve_would_refuse_it() {
    let folder = Folder::new("files");
    let keys = folder.put("keys", &"ab".repeat(32));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&keys, open).expect("a file of ours");
    let key = folder.put("key.pem", "-----BEGIN PRIVATE KEY-----\n");
    let config = folder.put(
        "c.toml",
        &format!(
            "[upstream]\nurl = 'http://127.0.0.1:9/mcp'\n[listen]\naddress = '{FREE}'\n[admin]\naddress = ''\n\
             [listen.tls]\ncert = '{key}'\nkey = '{key}'\n[replica]\nkey_file = '{keys}'\n\
             [store]\nkind = 'redis'\nurl = 'rediss://127.0.0.1'\n[store.tls]\nca = '/no/such/ca.pem'\n"
        ),
    );
    let output = check(&["--config", &config]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    let said = text(&output.stderr);
    for problem in ["no certificate in PEM form", "; what it holds is a private key", "chmod o=", "/no/such/ca.pem"] {
        assert!(said.contains(problem), "{problem} is not in\n{said}");
    }
    let served =
        Command::new(env!("CARGO_BIN_EXE_mcp-resume")).args(["serve", "--config", &config]).env_clear().output();
    assert_eq!(served.expect("the binary runs").status.code(), Some(2), "serve refuses it as well");
}

#[test]
fn check_treats_a_tool_that_is_not_there_as_a_wrong_command_line() {
    // The answer to every POST is that of `initialize` and `tools/list` at once.
    let listener = TcpListener::bind(FREE).expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            std::thread::spawn(move || answer_as_a_server(connection.expect("a connection")));
        }
    });
    let output = check(&["--upstream", &format!("http://{address}/mcp"), "--tool", "slwo"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--tool: the server has no tool slwo; it has slow, fast"), "{said}");
    assert!(said.contains("connecting …"), "it shows what it does: {said}");
}

fn answer_as_a_server(mut connection: TcpStream) {
    let mut request = String::new();
    let mut piece = [0; 4096];
    while !request.contains("\r\n\r\n") || (request.starts_with("POST") && !request.ends_with('}')) {
        match connection.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => request.push_str(&String::from_utf8_lossy(&piece[..read])),
        }
    }
    let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
    let id = serde_json::from_str::<serde_json::Value>(body).map_or(serde_json::Value::Null, |body| body["id"].clone());
    let result = serde_json::json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"},
        "tools": [{"name": "slow"}, {"name": "fast"}]});
    let answer = serde_json::json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    let status = if request.starts_with("POST") { "200 OK" } else { "405 Method Not Allowed" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}",
        answer.len()
    );
    let _ = connection.write_all(format!("{head}\r\n\r\n{answer}").as_bytes());
}

#[test]
fn check_lists_all_problems_of_a_configuration_as_serve_does() {
    for arguments in
        [&["check"][..], &["serve"], &["check", "--upstream", "ftp://x"], &["serve", "--upstream", "ftp://x"]]
    {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let report = text(&output.stderr);
        for problem in ["2 problems", "RETRY_MS in the", "upstream"] {
            assert!(report.contains(problem), "{arguments:?}: {problem} is not in\n{report}");
        }
    }
}

#[test]
fn check_refuses_what_it_cannot_send_without_repeating_it() {
    let url = "http://127.0.0.1:1/mcp";
    for (arguments, flag) in [
        (&["--upstream", url, "--header", "hunter2"][..], "--header: "),
        (&["--upstream", url, "--header", "Host: hunter2"], "--header: "),
        (&["--upstream", url, "--tool", "t", "--arguments", "hunter2"], "--arguments: "),
        (&["--header", "A: b"], "--upstream"),
        (&["--upstream", url, "--arguments", "{}"], "--tool"),
    ] {
        let output = check(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(flag) && !said.contains("hunter2"), "{arguments:?}: {said}");
    }
}

#[test]
fn check_without_a_server_exits_1_with_a_report_for_people_or_programs() {
    // Port 1 has no listener.
    let output = check(&["--upstream", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).starts_with("http://127.0.0.1:1/mcp: unreachable\n"), "{}", text(&output.stdout));
    let output = check(&["--upstream", "http://127.0.0.1:1", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["verdict"], &report["can_stand_in_front"]), (&"unreachable".into(), &false.into()));
}
