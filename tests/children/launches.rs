//! Starts of single processes: their output beside messages, their limits, and failures that a
//! person has to understand.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

/// The message of the error that answers an `initialize`.
async fn failure(response: &mut Response) -> (u16, String) {
    let body = response.json().await;
    assert_eq!((&body["id"], &body["error"]["data"]["mayHaveRun"]), (&json!(0), &json!(false)), "{body}");
    (response.status, body["error"]["message"].as_str().expect("text").to_owned())
}

#[tokio::test]
async fn a_server_may_fill_its_stderr() {
    let adapter = Adapter::start(&format!("head -c 3000000 /dev/zero >&2; yes >&2 & {READY}; exec sed d"), &[]).await;
    adapter.open().await;
    let mark = adapter.mark;
    adapter.proxy.stop().await;
    until("they have ended", async || mark.processes().is_empty()).await;
}

#[tokio::test]
async fn a_server_has_the_limit_of_open_files_that_the_proxy_was_started_with() {
    let ready = READY.replace(r#""name":"sh""#, r#""name":"'$(ulimit -Sn)'""#);
    let by = ["sh", "-c", r#"ulimit -Sn 256; exec "$@""#, "sh"];
    let adapter = Adapter::start_by(&by, &format!("{ready}; exec sed d"), &[]).await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", adapter.proxy.pid())).expect("limits");
    let own = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    assert!(!own.contains(" 256 "), "the proxy has raised its own: {own}");
    let body = adapter.initialize().await.json().await;
    assert_eq!(body["result"]["serverInfo"]["name"], "256");
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_says_so() {
    let file = std::env::temp_dir().join(format!("mcp-resume-no-program-{}", std::process::id()));
    fs::write(&file, "#!/no/such/interpreter\n").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its mode");
    let script = file.to_str().expect("text").to_owned();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--", &script]).stderr(Stdio::null());
    command.env("MCP_RESUME_UPSTREAM__STDERR_TO_CLIENT", "true");
    let proxy = Proxy::process(command).await;
    let mut response = Request::post(initialize(V2025_11)).send(proxy.addr).await;
    let error = response.json().await["error"].take();
    assert_eq!((response.status, &error["data"]["mayHaveRun"]), (502, &json!(false)));
    assert!(error["message"].as_str().expect("text").ends_with("exit code 127"), "{error}");
    assert!(error["data"]["stderr"].as_str().expect("text").contains("cannot be executed"), "{error}");
    let _ = fs::remove_file(file);
}

#[tokio::test]
async fn a_server_that_logs_to_its_output_and_ends_says_so() {
    let adapter = Adapter::start("read -r line; echo listening; echo on port 3000; exit 1", &[]).await;
    let (status, message) = failure(&mut adapter.initialize().await).await;
    assert_eq!(status, 502);
    assert!(message.contains("exit code 1; lines of its output that were no JSON-RPC: 2 "), "{message}");
}

#[tokio::test]
async fn a_server_that_is_killed_at_its_start_says_so() {
    let adapter = Adapter::start("read -r line; kill -KILL $$", &[]).await;
    let (status, message) = failure(&mut adapter.initialize().await).await;
    assert_eq!(status, 502);
    assert!(message.contains("signal 9"), "{message}");
}

/// A server that answers once a file is there.
struct Held {
    adapter: Adapter,
    go: PathBuf,
}

impl Held {
    async fn start(name: &str, variables: &[(&str, &str)]) -> Self {
        let go = std::env::temp_dir().join(format!("mcp-resume-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&go);
        let script = format!("until [ -e {} ]; do sleep 0.05; done; {READY}; exec sed d", go.display());
        Self { adapter: Adapter::start(&script, variables).await, go }
    }

    fn release(&self) {
        fs::write(&self.go, "").expect("a file");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.go);
    }
}

#[tokio::test]
async fn a_server_that_takes_too_long_says_so_and_is_kept() {
    let held = Held::start("slow", &[("UPSTREAM__START_SECS", "2")]).await;
    let (status, message) = failure(&mut held.adapter.initialize().await).await;
    assert_eq!(status, 504);
    assert!(message.contains("within 2 s"), "{message}");
    let [first] = held.adapter.mark.until_leaders().await;
    held.release();
    held.adapter.open().await;
    assert_eq!(held.adapter.mark.until_leaders().await, [first], "the next initialize gets the same child");
}

#[tokio::test]
async fn a_server_whose_client_leaves_is_kept_for_the_next_initialize() {
    let held = Held::start("left", &[]).await;
    let Adapter { proxy, mark } = &held.adapter;
    let client = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let [first] = mark.until_leaders().await;
    client.reset();
    until("the client has left", async || metric(proxy, "mcp_resume_calls_detached").await == 1.0).await;
    let again = initialize(V2025_11).replace(r#""id":0"#, r#""id":"again""#);
    let pending = Request::post(again).start(proxy.addr).await;
    held.release();
    let mut opened = pending.response().await;
    assert_eq!((opened.status, &opened.json().await["id"]), (200, &json!("again")));
    assert!(opened.header("mcp-session-id").is_some());
    assert_eq!(mark.until_leaders().await, [first], "the child is the same");
}
