//! A host: it starts `connect` on two pipes, and writes and reads lines.

use std::time::Duration;

use mcp_resume::connect::{self, Ended, Options};
use mcp_resume::sidecar;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, duplex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::support::*;

/// Room in a pipe, as Linux has it.
const PIPE: usize = 64 * 1024;

/// A host with its server on stdio.
pub(crate) struct Host {
    input: Option<DuplexStream>,
    output: Lines<BufReader<DuplexStream>>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<Ended, sidecar::Error>>,
}

impl Host {
    /// Starts `connect` with these arguments.
    pub(crate) fn start(options: Options) -> Self {
        let (input, far_input) = duplex(PIPE);
        let (output, far_output) = duplex(PIPE);
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let stopped = async {
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            connect::serve(&options, far_input, far_output, stopped).await
        });
        let output = BufReader::new(output).lines();
        Self { input: Some(input), output, stop: Some(stop), running }
    }

    /// Starts `connect` before a server at `url`.
    pub(crate) fn before(url: &str) -> Self {
        Self::start(options(url))
    }

    /// Starts `connect` before `upstream`, and opens a session at 2025-11-25. Its GET stream is
    /// refused.
    pub(crate) async fn open(upstream: &mut Upstream) -> Self {
        let mut host = Self::before(&upstream.url());
        host.initialize(upstream).await;
        host.say(&initialized()).await;
        upstream.expect("GET").await.status(405).await;
        upstream.expect("notifications/initialized").await.status(202).await;
        host
    }

    /// Sends `initialize`, and lets `upstream` answer it.
    pub(crate) async fn initialize(&mut self, upstream: &mut Upstream) {
        self.say(&initialize(V2025_11)).await;
        upstream.expect("initialize").await.json_with(200, "mcp-session-id: s-1\r\n", handshake(V2025_11)).await;
        assert_eq!(self.hear().await["result"]["serverInfo"]["name"], "scripted");
    }

    /// Writes a line.
    pub(crate) async fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("stdin is open");
        within("connect reads", input.write_all(format!("{line}\n").as_bytes())).await.expect("a pipe");
    }

    /// Returns the next line as JSON.
    pub(crate) async fn hear(&mut self) -> Value {
        let line = within("a line for the host", self.output.next_line()).await.expect("text");
        serde_json::from_str(&line.expect("stdout is open")).expect("JSON")
    }

    /// Returns true if nothing is written for the host within `time`.
    pub(crate) async fn hears_nothing_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.output.next_line()).await.is_err()
    }

    /// Returns the reader of stdout.
    pub(crate) fn output(&mut self) -> &mut DuplexStream {
        self.output.get_mut().get_mut()
    }

    /// Closes stdin.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Stops `connect` as a signal does.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().expect("stopped once").send(());
    }

    /// Returns the lines until the end of stdout, and the end of `connect`.
    pub(crate) async fn end(mut self) -> (Vec<Value>, Ended) {
        let mut lines = Vec::new();
        while let Some(line) = within("the end of stdout", self.output.next_line()).await.expect("text") {
            lines.push(serde_json::from_str(&line).expect("JSON"));
        }
        let ended = within("the end of connect", self.running).await.expect("no panic").expect("a core");
        (lines, ended)
    }
}

pub(crate) fn options(url: &str) -> Options {
    Options { positional: vec![url.to_owned()], ..Options::default() }
}

pub(crate) fn handshake(version: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 0, "result": {
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": true}, "logging": {}},
        "serverInfo": {"name": "scripted", "version": "1"}}})
    .to_string()
}

pub(crate) fn initialized() -> String {
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned()
}

pub(crate) fn request(id: impl Into<Value>, method: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": {}}).to_string()
}

pub(crate) fn content(id: impl Into<Value>, text: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "result": {"content": [{"type": "text", "text": text}]}}).to_string()
}

pub(crate) fn cancel(id: impl Into<Value>) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id.into()}}).to_string()
}

pub(crate) fn text_of(message: &Value) -> &str {
    message["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

pub(crate) fn error_of(message: &Value) -> &str {
    message["error"]["message"].as_str().unwrap_or_default()
}
