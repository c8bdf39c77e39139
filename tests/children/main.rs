//! Processes of servers on stdio: the binary starts real ones, and the process table shows what is
//! left of them.
//!
//! The servers are scripts of the shell that misbehave in one way each. A variable in their
//! environment marks them, and all that they start.

#![cfg(target_os = "linux")]
// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]
// The tests wait for processes; they do not move their time.
#![allow(clippy::disallowed_methods)]
// Some of the support is for other tests.
#![allow(dead_code, unused_imports)]

mod ends;
mod launches;
mod many;
mod orphans;
mod starts;
#[path = "../it/support/mod.rs"]
mod support;
mod table;

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use tokio::process::Command;

use support::*;
use table::Mark;

/// The proxy runs as a process of its own.
const WORKERS: Option<usize> = None;

/// Reads the first line, and answers the `initialize` of a client, whose ID is 0.
const READY: &str = r#"read -r line; printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh","version":"1"}}}'"#;

/// A proxy before a script.
struct Adapter {
    proxy: Proxy,
    mark: Mark,
}

impl Adapter {
    /// Starts a proxy before a server that runs `script` in a shell. The variables configure the
    /// proxy.
    async fn start(script: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_by(&[], script, variables).await
    }

    /// Does as `start`, with words before the command line of the proxy.
    async fn start_by(before: &[&str], script: &str, variables: &[(&str, &str)]) -> Self {
        let mark = Mark::new();
        let mut words = before.to_vec();
        words.extend([env!("CARGO_BIN_EXE_mcp-resume"), "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        words.extend(["--", "sh", "-c", script]);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stderr(Stdio::null());
        command.env("MCP_RESUME_UPSTREAM__ENV", json!([mark.variable()]).to_string());
        for (name, value) in variables {
            command.env(format!("MCP_RESUME_{name}"), value);
        }
        Self { proxy: Proxy::process(command).await, mark }
    }

    /// Sends an `initialize`.
    async fn initialize(&self) -> Response {
        Request::post(initialize(V2025_11)).send(self.proxy.addr).await
    }

    /// Opens a session. Its server gets a second line.
    async fn open(&self) -> Session {
        let response = self.initialize().await;
        assert_eq!(response.status, 200);
        let id = response.header("mcp-session-id").expect("a session").to_owned();
        let session = Session::opened_elsewhere(V2025_11, &id, None);
        let ready = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert_eq!(ready.send(self.proxy.addr).await.status, 202);
        session
    }

    /// Waits until no process of the servers runs.
    async fn all_gone(&self) {
        until("the processes of the servers are gone", async || self.mark.processes().is_empty()).await;
    }

    /// The guard of the proxy's children.
    fn guard(&self) -> u32 {
        let guards = table::children_of(self.proxy.pid(), "__guard");
        let [guard] = guards[..] else { panic!("one guard in {guards:?}") };
        guard
    }
}
