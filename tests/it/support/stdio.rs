//! Servers on stdio, each a process whose stdin and stdout are the test's.

use std::collections::HashMap;
use std::path::Path;

use mcp_resume::config::{Command, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{Proxy, Request, Session, V2025_11, within};

/// The place to which the processes connect.
pub(crate) struct StdioServers {
    listener: TcpListener,
}

/// A process that runs.
pub(crate) struct StdioServer {
    pub(crate) pid: u32,
    pub(crate) environment: HashMap<String, String>,
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
    /// IDs of the pings that a test did not expect.
    pings: Vec<Value>,
}

impl StdioServers {
    pub(crate) async fn start() -> Self {
        Self { listener: TcpListener::bind(("127.0.0.1", 0)).await.expect("a port") }
    }

    /// The command of a server.
    pub(crate) fn command(&self) -> Vec<String> {
        let relay = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/stdio_relay.py");
        let port = self.listener.local_addr().expect("bound").port();
        ["python3", relay.to_str().expect("text"), &port.to_string()].map(str::to_owned).into()
    }

    /// A proxy before such servers.
    pub(crate) async fn proxy(&self, change: impl FnOnce(&mut Command)) -> Proxy {
        self.proxy_with(|config| change(config.upstream.command.as_mut().expect("a command"))).await
    }

    pub(crate) async fn proxy_with(&self, change: impl FnOnce(&mut Config)) -> Proxy {
        let line = self.command();
        Proxy::to_url("http://localhost", |config| {
            let flags = mcp_resume::config::Flags { command: line, ..Default::default() };
            config.upstream = Config::load(None, [], flags).expect("a configuration").upstream;
            let command = config.upstream.command.as_mut().expect("a command");
            command.own_binary = Some(env!("CARGO_BIN_EXE_mcp-resume").into());
            change(config);
        })
        .await
    }

    /// The next process that is started.
    pub(crate) async fn next(&self) -> StdioServer {
        let (peer, _) = within("a server on stdio", self.listener.accept()).await.expect("a connection");
        let (reader, writer) = peer.into_split();
        let mut lines = BufReader::new(reader).lines();
        let first = within("its pid", lines.next_line()).await.expect("text").expect("a line");
        let first: Value = serde_json::from_str(&first).expect("JSON");
        let pid = first["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a pid");
        let environment = serde_json::from_value(first["environment"].clone()).expect("texts");
        StdioServer { pid, environment, lines, writer, pings: Vec::new() }
    }

    /// The next process, which opens again the session of the request that waits.
    pub(crate) async fn open_again(&self) -> StdioServer {
        let mut server = self.next().await;
        server.answer_initialize(Value::Null).await;
        server.expect("notifications/initialized").await;
        server
    }

    /// Opens a session at a server of its own.
    pub(crate) async fn open(&self, proxy: &Proxy) -> (StdioServer, Session) {
        let pending = Request::post(super::initialize(V2025_11)).start(proxy.addr).await;
        let mut server = self.next().await;
        server.answer_initialize(0).await;
        let mut response = pending.response().await;
        assert_eq!((response.status, response.json().await["id"].clone()), (200, json!(0)));
        let id = response.header("mcp-session-id").expect("a session").to_owned();
        let session = Session::opened_elsewhere(V2025_11, &id, None);
        let ready = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).send(proxy.addr).await;
        assert_eq!(ready.status, 202);
        server.expect("notifications/initialized").await;
        (server, session)
    }
}

impl StdioServer {
    /// The next line of the proxy.
    pub(crate) async fn line(&mut self) -> String {
        within("a line", self.lines.next_line()).await.expect("text").expect("no end of input")
    }

    /// The next line of the proxy, or `None` at the end of its input, however long it takes.
    pub(crate) async fn next_line(&mut self) -> std::io::Result<Option<String>> {
        self.lines.next_line().await
    }

    pub(crate) async fn message(&mut self) -> Value {
        serde_json::from_str(&self.line().await).expect("JSON")
    }

    /// The next message, which has this method.
    pub(crate) async fn expect(&mut self, method: &str) -> Value {
        let mut message = self.message().await;
        // On a machine with much work a ping may show whether the server is up, and is cancelled
        // then.
        loop {
            if message["method"] == "ping" && method != "ping" {
                self.pings.push(message["id"].take());
            } else if message["method"] != "notifications/cancelled"
                || !self.pings.contains(&message["params"]["requestId"])
            {
                break;
            }
            message = self.message().await;
        }
        assert_eq!(message["method"], method, "{message}");
        message
    }

    /// Waits for the end of its input. On a machine with much work a ping may come before, and is
    /// cancelled then.
    pub(crate) async fn end_of_input(&mut self) {
        while let Some(line) = within("the end of its input", self.lines.next_line()).await.expect("text") {
            let message: Value = serde_json::from_str(&line).expect("JSON");
            let method = message["method"].as_str();
            assert!(matches!(method, Some("ping" | "notifications/cancelled")), "{message}");
        }
    }

    pub(crate) async fn say(&mut self, message: impl ToString) {
        self.write(format!("{}\n", message.to_string()).as_bytes()).await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.expect("it reads");
    }

    /// Answers the `initialize` that comes next. `id` is 0 for a client's own.
    pub(crate) async fn answer_initialize(&mut self, id: impl Into<Value>) {
        let message = self.expect("initialize").await;
        let expected: Value = id.into();
        if !expected.is_null() {
            assert_eq!(message["id"], expected);
        }
        let result = json!({"protocolVersion": V2025_11, "capabilities": {"tools": {}}, "serverInfo": {"name": "scripted", "version": "1"}});
        self.say(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).await;
    }

    /// Ends the process with exit code 3.
    pub(crate) async fn exit(self) {
        drop(self);
    }

    /// True while the process is there, and no zombie.
    pub(crate) fn is_running(pid: u32) -> bool {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        !status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
    }
}
