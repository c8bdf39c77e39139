//! A program behind `connect`: its start, its end, and its replacement when its files change.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::host::*;
use super::host_process::*;
use super::support::stdio::{StdioServer, StdioServers};
use super::support::*;

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mcp-resume-{}-{name}", std::process::id()));
        fs::write(&path, text).expect("a file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).expect("a file");
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Reads the list of tools.
async fn list_tools(host: &mut HostProcess, server: &mut StdioServer, names: &[&str]) {
    host.say(&request(100, "tools/list")).await;
    let list = server.expect("tools/list").await;
    server.say(reply(&list, tools(names))).await;
    assert_eq!(host.hear().await["result"], tools(names));
}

/// Answers what `connect` sends itself after a start: the comparison of the list, and its `ping`.
async fn answer_own(server: &mut StdioServer, names: &[&str]) {
    let (mut listed, mut pinged) = (false, false);
    while !listed || !pinged {
        let message = server.message().await;
        match message["method"].as_str() {
            Some("tools/list") => {
                server.say(reply(&message, tools(names))).await;
                listed = true;
            }
            Some("ping") => {
                server.say(reply(&message, json!({}))).await;
                pinged = true;
            }
            _ => panic!("{message}"),
        }
    }
}

#[tokio::test]
async fn three_changes_within_a_moment_are_one_restart() {
    let servers = StdioServers::start().await;
    let file = File::new("touched", "1");
    let (mut host, mut first) = HostProcess::open(&["--watch", file.path()], &servers).await;
    list_tools(&mut host, &mut first, &["old"]).await;
    for n in 2..5 {
        file.write(&n.to_string());
        tokio::time::sleep(Duration::from_millis(70)).await;
    }
    let mut second = servers.open_again().await;
    first.end_of_input().await;
    answer_own(&mut second, &["new"]).await;
    assert_eq!(host.hear().await["method"], "notifications/tools/list_changed");
    let third = tokio::time::timeout(Duration::from_millis(1200), servers.next()).await;
    assert!(third.is_err(), "one restart");
    host.say(&call(1)).await;
    let call = second.expect("tools/call").await;
    second.say(reply(&call, json!({"content": []}))).await;
    assert_eq!(host.hear().await["id"], 1);
}

#[tokio::test]
async fn equal_lists_of_a_changed_program_are_not_announced() {
    let servers = StdioServers::start().await;
    let file = File::new("equal", "1");
    let (mut host, mut first) = HostProcess::open(&["--watch", file.path()], &servers).await;
    list_tools(&mut host, &mut first, &["same"]).await;
    file.write("12");
    let mut second = servers.open_again().await;
    answer_own(&mut second, &["same"]).await;
    list_tools(&mut host, &mut second, &["same"]).await;
}

#[tokio::test]
async fn a_running_call_ends_before_the_program_is_replaced_and_a_new_one_waits() {
    let servers = StdioServers::start().await;
    let file = File::new("running", "1");
    let (mut host, mut first) = HostProcess::open(&["--watch", file.path()], &servers).await;
    host.say(&call(1)).await;
    let running = first.expect("tools/call").await;
    file.write("12");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    host.say(&call(2)).await;
    let started = tokio::time::timeout(Duration::from_millis(300), servers.next()).await;
    assert!(started.is_err(), "the first call has five seconds");
    first.say(reply(&running, json!({"content": [{"type": "text", "text": "first"}]}))).await;
    assert_eq!(text_of(&host.hear().await), "first");
    let mut second = servers.open_again().await;
    first.end_of_input().await;
    let ping = second.expect("ping").await;
    second.say(reply(&ping, json!({}))).await;
    let waited = second.expect("tools/call").await;
    second.say(reply(&waited, json!({"content": [{"type": "text", "text": "second"}]}))).await;
    let answer = host.hear().await;
    assert_eq!((&answer["id"], text_of(&answer)), (&json!(2), "second"));
}

#[tokio::test]
async fn a_changed_program_that_fails_is_the_error_of_calls_until_the_next_change() {
    let servers = StdioServers::start().await;
    let good = format!("exec {}", servers.command().join(" "));
    let file = File::new("fails", &good);
    let mut host = HostProcess::start(&["--watch", file.path()], &["sh".to_owned(), file.path().to_owned()]);
    let mut first = host.handshake(&servers).await;
    file.write("for n in one two three four; do echo \"$n\" >&2; done; exit 3");
    first.end_of_input().await;
    let began = Instant::now();
    host.say(&call(1)).await;
    let answer = host.hear().await;
    assert!(error_of(&answer).ends_with("\ntwo\nthree\nfour"), "{answer}");
    assert_eq!(answer["error"]["data"]["mayHaveRun"], json!(false));
    assert!(began.elapsed() < Duration::from_secs(4));
    file.write(&format!("# Better\n{good}"));
    let mut second = servers.open_again().await;
    let ping = second.expect("ping").await;
    second.say(reply(&ping, json!({}))).await;
    host.say(&call(2)).await;
    let call = second.expect("tools/call").await;
    second.say(reply(&call, json!({"content": []}))).await;
    assert_eq!(host.hear().await["id"], 2);
}

#[tokio::test]
async fn a_program_that_fails_at_first_is_opened_after_its_next_change() {
    let servers = StdioServers::start().await;
    let file = File::new("fails-first", "echo 'SyntaxError: here' >&2; exit 1");
    let mut host = HostProcess::start(&["--watch", file.path()], &["sh".to_owned(), file.path().to_owned()]);
    host.say(&initialize(V2025_11)).await;
    host.say(&call(1)).await;
    // The pending handshake, and the error of the call.
    let answers = [host.hear().await, host.hear().await];
    let of = |id: u32| answers.iter().find(|answer| answer["id"] == id).expect("an answer");
    assert!(error_of(of(1)).ends_with("\nSyntaxError: here"), "{answers:?}");
    assert_eq!(of(0)["result"]["serverInfo"]["name"], "mcp-resume");
    host.say(&initialized()).await;
    file.write(&format!("exec {}", servers.command().join(" ")));
    let mut server = servers.next().await;
    server.answer_initialize(Value::Null).await;
    server.expect("notifications/initialized").await;
    assert_eq!(host.hear().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn a_dead_program_is_started_again_at_the_next_message() {
    let servers = StdioServers::start().await;
    let (mut host, mut first) = HostProcess::open(&[], &servers).await;
    host.say(&call(1)).await;
    first.expect("tools/call").await;
    drop(first);
    let answer = host.hear().await;
    assert_eq!(answer["error"]["data"]["error"], "server_ended", "{answer}");
    assert_eq!(answer["error"]["data"]["mayHaveRun"], json!(true));
    let started = tokio::time::timeout(Duration::from_millis(200), servers.next()).await;
    assert!(started.is_err(), "nothing wants it");
    host.say(&call(2)).await;
    let mut second = servers.open_again().await;
    let call = second.expect("tools/call").await;
    second.say(reply(&call, json!({"content": []}))).await;
    assert_eq!(host.hear().await["id"], 2);
}

#[tokio::test]
async fn the_program_that_is_asked_for_its_revisions_serves_the_session() {
    let servers = StdioServers::start().await;
    let mut host = HostProcess::start(&[], &servers.command());
    let meta = json!({"io.modelcontextprotocol/protocolVersion": V2026});
    let probe = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}});
    host.say(&probe.to_string()).await;
    let mut server = servers.next().await;
    let asked = server.expect("server/discover").await;
    let error = json!({"code": -32601, "message": "Method not found"});
    server.say(json!({"jsonrpc": "2.0", "id": asked["id"], "error": error})).await;
    assert_eq!(host.hear().await["error"]["code"], -32601);
    host.say(&initialize(V2025_11)).await;
    server.answer_initialize(0).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
    host.say(&initialized()).await;
    server.expect("notifications/initialized").await;
    server.say(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).await;
    assert_eq!(host.hear().await["id"], "q");
}

#[tokio::test]
async fn a_subscription_without_a_session_outlives_its_program_and_gets_changes() {
    let servers = StdioServers::start().await;
    let file = File::new("modern", "1");
    let mut host = HostProcess::start(&["--watch", file.path()], &servers.command());
    let meta = json!({"io.modelcontextprotocol/protocolVersion": V2026});
    let answer = |request: &Value| {
        let capabilities = json!({"tools": {"listChanged": true}});
        reply(
            request,
            json!({"resultType": "complete", "supportedVersions": [V2026], "capabilities": capabilities,
            "serverInfo": {"name": "scripted", "version": "1"}, "ttlMs": 0, "cacheScope": "private"}),
        )
    };
    let acknowledged = |request: &Value| {
        let meta = json!({"io.modelcontextprotocol/subscriptionId": request["id"]});
        let params = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
        json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
    };
    let send = |id: u32, method: &str, mut params: Value| {
        params["_meta"] = meta.clone();
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    host.say(&send(1, "server/discover", json!({}))).await;
    let mut first = servers.next().await;
    // The question of `connect`, and the host's.
    for _ in 0..2 {
        let asked = first.expect("server/discover").await;
        first.say(answer(&asked)).await;
    }
    assert_eq!(host.hear().await["result"]["supportedVersions"], json!([V2026]));
    host.say(&send(2, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}))).await;
    let listen = first.expect("subscriptions/listen").await;
    first.say(acknowledged(&listen)).await;
    assert_eq!(host.hear().await["method"], "notifications/subscriptions/acknowledged");
    file.write("12");
    let mut second = servers.next().await;
    let asked = second.expect("server/discover").await;
    second.say(answer(&asked)).await;
    let listen = second.expect("subscriptions/listen").await;
    second.say(acknowledged(&listen)).await;
    let change = host.hear().await;
    assert_eq!(change["method"], "notifications/tools/list_changed", "{change}");
    assert_eq!(change["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 2);
}

#[tokio::test]
async fn text_and_stderr_of_a_program_are_on_stderr_and_never_block_it() {
    // More than a pipe holds.
    let script = r#"read -r line
echo hello
yes 'a line of stderr' | head -c 200000 >&2
echo 'behind the flood'
exec cat >/dev/null"#;
    let mut host = HostProcess::start(&[], &["sh".to_owned(), "-c".to_owned(), script.to_owned()]);
    host.say(&initialize(V2025_11)).await;
    until("all is on stderr", async || {
        let said = host.said();
        ["hello", "a line of stderr", "behind the flood"].iter().all(|line| said.contains(line))
    })
    .await;
    host.close_input();
    assert_eq!(host.end().await.code(), Some(0));
}

#[tokio::test]
async fn watched_paths_without_a_program_are_the_answer_to_initialize() {
    let upstream = Upstream::start().await;
    let watch = vec![std::env::temp_dir()];
    let mut host = Host::start(mcp_resume::connect::Options { watch, ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    assert!(error_of(&host.hear().await).contains("--watch"));
}

/// Ignores the end of its input and SIGTERM, and leaves a process behind.
const STUBBORN: &str = r#"trap '' TERM; (trap '' TERM; sleep 1000) & read -r line
printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh","version":"1"}}}'
while :; do sleep 1000; done"#;

async fn stubborn() -> HostProcess {
    let mut host = HostProcess::start(&[], &["sh".to_owned(), "-c".to_owned(), STUBBORN.to_owned()]);
    host.say(&initialize(V2025_11)).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "sh");
    host.say(&initialized()).await;
    host.say(&call(1)).await;
    host
}

async fn gone_within_four_seconds(host: &HostProcess, began: Instant) {
    until("no process is left", async || host.mark.processes().is_empty()).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test]
async fn nothing_is_left_of_a_program_whose_host_was_killed_in_mid_call() {
    let mut host = stubborn().await;
    let began = Instant::now();
    host.vanish();
    host.end().await;
    gone_within_four_seconds(&host, began).await;
}

#[tokio::test]
async fn nothing_is_left_of_a_program_whose_connect_was_killed() {
    let mut host = stubborn().await;
    let began = Instant::now();
    host.kill();
    gone_within_four_seconds(&host, began).await;
}

#[tokio::test]
async fn a_program_that_ignores_the_end_of_its_input_is_killed_after_two_seconds() {
    let script = STUBBORN.replace("read -r line", "read -r line; read -r none; ");
    let mut host = HostProcess::start(&[], &["sh".to_owned(), "-c".to_owned(), script]);
    host.say(&initialize(V2025_11)).await;
    until("it runs", async || !host.mark.leaders().is_empty()).await;
    let began = Instant::now();
    host.vanish();
    host.end().await;
    gone_within_four_seconds(&host, began).await;
}

#[tokio::test]
async fn without_a_message_no_program_is_started() {
    let servers = StdioServers::start().await;
    let mut host = HostProcess::start(&[], &servers.command());
    host.close_input();
    assert_eq!(host.end().await.code(), Some(0));
    let started = tokio::time::timeout(Duration::from_millis(100), servers.next()).await;
    assert!(started.is_err() && host.mark.processes().is_empty());
}
