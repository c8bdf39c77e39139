//! The program as a host starts it, with an environment of its own.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::support::*;

/// Variables that the machine may have, and that change the way to a server.
const OF_NETWORK: [&str; 11] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
];

/// A running `connect`. It is killed when this is dropped, and its files are removed.
pub(crate) struct Process {
    home: PathBuf,
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `connect` with these arguments and variables, and with files of its own.
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::SeqCst);
        let home = std::env::temp_dir().join(format!("mcp-resume-process-{}-{number}", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
        command.arg("connect").args(arguments).env("MCP_RESUME_HOME", &home);
        for name in OF_NETWORK {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("a process");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { home, child, input, output }
    }

    /// Writes a line.
    pub(crate) async fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("stdin is open");
        input.write_all(format!("{line}\n").as_bytes()).await.expect("a pipe");
    }

    /// Returns the next line as JSON.
    pub(crate) async fn hear(&mut self) -> Value {
        let line = within("a line for the host", self.output.next_line()).await.expect("text");
        serde_json::from_str(&line.expect("stdout is open")).expect("JSON")
    }

    /// Sends `initialize`, and returns the answer.
    pub(crate) async fn initialize(&mut self) -> Value {
        self.say(&initialize(V2025_11)).await;
        self.hear().await
    }

    /// Closes stdin, and returns the exit code.
    pub(crate) async fn end(mut self) -> Option<i32> {
        self.input = None;
        within("the end", self.child.wait()).await.expect("a status").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}
