//! `mcp-resume check`.

use super::*;

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
        (&["--watch", "5"], "--upstream"),
        (&["--upstream", url, "--watch", "3601"], "--watch"),
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

/// A server on stdio, which notes the PIDs of its processes in a file.
#[cfg(unix)]
const ON_STDIO: &str = r#"
import json, os, sys
with open(sys.argv[1], "a") as pids:
    print(os.getpid(), file=pids)
print("ready", file=sys.stderr)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    known = {
        "initialize": lambda params: {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                                      "serverInfo": {"name": "scripted", "version": "1"}},
        "tools/list": lambda params: {"tools": [{"name": "slow"}, {"name": "fast"}]},
        "ping": lambda params: {},
    }
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] in known:
        answer["result"] = known[message["method"]](message.get("params"))
    else:
        answer["error"] = {"code": -32601, "message": "not found"}
    print(json.dumps(answer), flush=True)
"#;

#[cfg(unix)]
fn check_program(flags: &[&str], command: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
        .arg("check")
        .args(flags)
        .arg("--")
        .args(command)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .expect("the binary runs")
}

#[test]
#[cfg(unix)]
fn check_starts_a_server_on_stdio_and_ends_it() {
    let folder = Folder::new("on-stdio");
    let pids = folder.0.join("pids");
    let output = check_program(&[], &["python3", "-c", ON_STDIO, pids.to_str().expect("UTF-8")]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}\n{}", text(&output.stderr));
    let lines = [
        "python3: cannot resume; will be made resumable",
        "  contact         it speaks MCP on stdio",
        "  process         answered ",
        "  server          scripted 1",
        "  initialize      2025-11-25, 2025-06-18, 2025-03-26, with sessions; ",
        "  tools           2",
        "  - a process for each session, ",
    ];
    for line in lines {
        assert!(said.lines().any(|said| said.starts_with(line)), "{line} is not in\n{said}");
    }
    assert!(!said.contains("Origin") && !said.contains("silent session"), "that is of servers on HTTP:\n{said}");
    let pids = std::fs::read_to_string(pids).expect("PIDs");
    assert!(pids.lines().count() >= 3, "a process for each revision: {pids}");
    for pid in pids.lines() {
        let process = std::path::Path::new("/proc").join(pid);
        assert!(!process.exists(), "{pid} is left");
    }
}

#[test]
#[cfg(unix)]
fn check_counts_the_text_of_one_process() {
    for (noise, count) in [("print('one')\n", "a line"), ("print('one')\nprint('two')\n", "2 lines")] {
        let output = check_program(&[], &["python3", "-c", &format!("{noise}{ON_STDIO}"), "/dev/null"]);
        let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&format!("has written {count} of text to its stdout")), "{count}: {said}");
    }
}

#[test]
#[cfg(unix)]
fn check_names_a_tool_of_a_server_on_stdio_that_is_not_there() {
    let output = check_program(&["--tool", "slwo"], &["python3", "-c", ON_STDIO, "/dev/null"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--tool: the server has no tool slwo; it has slow, fast"), "{said}");
}

#[test]
#[cfg(unix)]
fn check_says_why_a_program_does_not_start() {
    for (command, reason) in [
        (&["no-such-program", "hunter2"][..], "the program no-such-program was not found"),
        (&["sh", "-c", "echo give me a key >&2; exit 3", "hunter2"], "exit code 3"),
        (&["sh", "-c", "echo give me a key >&2; exit 3", "hunter2"], "give me a key"),
    ] {
        let output = check_program(&[], command);
        let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with(&format!("{}: does not start", command[0])), "{said}");
        assert!(said.contains(reason) && said.contains("upstream.env") && !said.contains("hunter2"), "{said}");
    }
    let output = check_program(&["--json"], &["no-such-program"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["verdict"], &report["facts"]["contact"]["kind"]),
        (&"not_started".into(), &"not_started".into())
    );
}

#[test]
#[cfg(unix)]
fn check_asks_a_url_or_a_program() {
    let output = check_program(&["--upstream", "http://127.0.0.1:1"], &["true"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
}
