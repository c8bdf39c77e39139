//! `mcp-resume serve`: its output and its end.

use socket2::{Domain, Socket, Type};

use super::*;

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

#[test]
#[cfg(unix)]
fn connections_that_wait_to_be_accepted_are_served_before_the_end() {
    let mut child = serve(FREE, "").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
    let address = line.split("http://").nth(1).and_then(|url| url.split('/').next()).expect("an address");
    let id = child.id().to_string();
    let signal = |name: &str| {
        let kill = Command::new("kill").args([name, &id]).status();
        assert!(kill.expect("kill runs").success());
    };
    signal("-STOP");
    let clients: Vec<TcpStream> = std::iter::repeat_with(|| {
        let mut client = TcpStream::connect(address).expect("it listens");
        let request = b"GET /.well-known/mcp-resume HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        client.write_all(request).expect("room");
        client
    })
    .take(200)
    .collect();
    signal("-TERM");
    signal("-CONT");
    for mut client in clients {
        let mut response = String::new();
        client.read_to_string(&mut response).expect("text");
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    }
    assert_eq!(child.wait().expect("a status").code(), Some(0));
}

/// A server that answers each call with an event stream which it breaks off once the client has
/// left.
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

/// The client of a call leaves, comes back and leaves again, and then its server does: the lines
/// that are logged of the first leave, of the return, and of the end.
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

/// Sends `request`, reads the beginning of an event stream, and leaves. Returns the first event's
/// ID.
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
fn one_search_finds_each_line_of_a_call_and_one_line_has_its_outcome() {
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
fn the_log_names_the_upstream_at_the_start_and_its_end_and_return_once() {
    // Bound and not listening: connections are refused, and no other program is given the port.
    let server = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    server.bind(&FREE.parse::<SocketAddr>().expect("an address").into()).expect("a port");
    let address = server.local_addr().expect("an address").as_socket().expect("of IP");
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
    server.listen(16).expect("a listener");
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
