//! `connect` as a process of its own, before a program.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::host::*;
use super::support::stdio::{StdioServer, StdioServers};
use super::support::*;
use super::table::Mark;

/// A host whose server is a process.
pub(crate) struct HostProcess {
    child: Child,
    input: Option<ChildStdin>,
    lines: Option<Lines<BufReader<ChildStdout>>>,
    said: Arc<Mutex<String>>,
    pub(crate) mark: Mark,
}

impl HostProcess {
    /// Starts `connect` with these options before a program.
    pub(crate) fn start(options: &[&str], program: &[String]) -> Self {
        let mark = Mark::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
        command.arg("connect").args(options).arg("--").args(program);
        let (name, value) = mark.variable().split_once('=').expect("a variable");
        // Without a home nothing is remembered.
        command.env(name, value).env_remove("HOME").env_remove("MCP_RESUME_HOME").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut stderr = child.stderr.take().expect("a pipe");
        let said = Arc::<Mutex<String>>::default();
        let heard = said.clone();
        tokio::spawn(async move {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&chunk[..count]));
            }
        });
        Self { input: child.stdin.take(), child, lines: Some(lines), said, mark }
    }

    /// Starts `connect` before a scripted program, and opens a session.
    pub(crate) async fn open(options: &[&str], servers: &StdioServers) -> (Self, StdioServer) {
        let mut host = Self::start(options, &servers.command());
        let server = host.handshake(servers).await;
        (host, server)
    }

    /// Opens a session.
    pub(crate) async fn handshake(&mut self, servers: &StdioServers) -> StdioServer {
        self.say(&initialize(V2025_11)).await;
        let mut server = servers.next().await;
        server.answer_initialize(0).await;
        assert_eq!(self.hear().await["result"]["serverInfo"]["name"], "scripted");
        self.say(&initialized()).await;
        server.expect("notifications/initialized").await;
        server
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Writes a line.
    pub(crate) async fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("stdin is open");
        within("connect reads", input.write_all(format!("{line}\n").as_bytes())).await.expect("a pipe");
    }

    /// Returns the next line as JSON.
    pub(crate) async fn hear(&mut self) -> Value {
        let lines = self.lines.as_mut().expect("stdout is open");
        let line = within("a line for the host", lines.next_line()).await.expect("text");
        serde_json::from_str(&line.expect("stdout is open")).expect("JSON alone")
    }

    /// Returns stderr so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Closes stdin.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Closes stdin and stdout, as the end of the host does.
    pub(crate) fn vanish(&mut self) {
        (self.input, self.lines) = (None, None);
    }

    /// Kills `connect`.
    pub(crate) fn kill(&mut self) {
        self.child.start_kill().expect("it runs");
    }

    /// Waits for the end of `connect`.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        within("the end of connect", self.child.wait()).await.expect("a process")
    }
}

/// The response to a message with this result.
pub(crate) fn reply(request: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": request["id"], "result": result})
}

/// A list of tools with these names.
pub(crate) fn tools(names: &[&str]) -> Value {
    let tools: Vec<_> = names.iter().map(|name| json!({"name": name, "inputSchema": {"type": "object"}})).collect();
    json!({"tools": tools})
}
