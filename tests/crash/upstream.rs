//! The MCP server behind the proxies: it does what a call's number says, and counts.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::script::{Script, What};
use crate::wire::{Framing, Head};
use crate::world::eventually;

/// Time after which a tool continues without a response to its request: its caller is gone.
const UNANSWERED: Duration = Duration::from_secs(8);

/// Record of a tool's work for one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Number of times the tool was called.
    pub(crate) times: usize,
    /// True once the tool has sent its whole response.
    pub(crate) is_over: bool,
    /// The proxy was gone before that.
    pub(crate) is_broken: bool,
    is_answered: bool,
}

/// The server.
#[derive(Default)]
pub(crate) struct Upstream {
    runs: Mutex<HashMap<u64, Run>>,
    changed: Notify,
}

impl Upstream {
    pub(crate) async fn start() -> (Arc<Upstream>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let upstream = Arc::new(Upstream::default());
        let served = upstream.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let upstream = served.clone();
                tokio::spawn(async move { drop(upstream.converse(stream).await) });
            }
        });
        (upstream, addr)
    }

    pub(crate) fn run(&self, seed: u64) -> Run {
        self.lock().get(&seed).cloned().unwrap_or_default()
    }

    pub(crate) fn runs(&self) -> HashMap<u64, Run> {
        self.lock().clone()
    }

    /// Waits until the tool has come to an end, for no longer than `limit`.
    pub(crate) async fn ended(&self, seed: u64, limit: Duration) {
        self.wait_for(limit, || {
            let run = self.run(seed);
            run.is_over || run.is_broken
        })
        .await;
    }

    async fn wait_for(&self, limit: Duration, is_so: impl Fn() -> bool) {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if is_so() {
                    return;
                }
                changed.await;
            }
        };
        eventually(limit, waiting).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Run>> {
        self.runs.lock().expect("no holder panics")
    }

    fn note(&self, seed: u64, change: impl FnOnce(&mut Run)) {
        change(self.lock().entry(seed).or_default());
        self.changed.notify_waiters();
    }

    async fn converse(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut input = Vec::new();
        while let Some((head, body)) = read_request(&mut stream, &mut input).await? {
            if !head.first.starts_with("POST ") {
                stream.write_all(b"HTTP/1.1 405 X\r\ncontent-length: 0\r\n\r\n").await?;
                continue;
            }
            let message: Value = serde_json::from_slice(&body).unwrap_or_default();
            match message["method"].as_str() {
                Some("initialize") => self.initialize(&mut stream, &message).await?,
                Some("tools/call") => {
                    let seed = message["params"]["arguments"]["seed"].as_u64().expect("every call has a number");
                    self.note(seed, |run| run.times += 1);
                    let played = self.play(&mut stream, &Script::new(seed), &message["id"]).await;
                    self.note(seed, |run| match played {
                        Ok(()) => run.is_over = true,
                        Err(_) => run.is_broken = true,
                    });
                    played?;
                }
                Some("ping") => {
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {}}).to_string();
                    write_json(&mut stream, "", &answer).await?;
                }
                Some(_) => accept(&mut stream).await?,
                None => {
                    let seed = message["id"].as_str().and_then(|id| id.strip_prefix("q-")?.parse().ok());
                    if let Some(seed) = seed {
                        self.note(seed, |run| run.is_answered = true);
                    }
                    accept(&mut stream).await?;
                }
            }
        }
        Ok(())
    }

    async fn initialize(&self, stream: &mut TcpStream, message: &Value) -> std::io::Result<()> {
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"}}});
        // The client says whether it wants a session.
        let session = match message["params"]["clientInfo"]["name"].as_str() {
            Some(name) if name.starts_with("s-") => format!("mcp-session-id: {name}\r\n"),
            Some(_) | None => String::new(),
        };
        write_json(stream, &session, &answer.to_string()).await
    }

    async fn play(&self, stream: &mut TcpStream, script: &Script, id: &Value) -> std::io::Result<()> {
        tokio::time::sleep(script.before).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .await?;
        let mut ready = Vec::new();
        for step in &script.steps {
            if !step.after.is_zero() {
                stream.write_all(&std::mem::take(&mut ready)).await?;
                tokio::time::sleep(step.after).await;
            }
            add_event(&mut ready, &script.data(step));
            if matches!(step.what, What::Question) {
                stream.write_all(&std::mem::take(&mut ready)).await?;
                self.wait_for(UNANSWERED, || self.run(script.seed).is_answered).await;
            }
        }
        add_event(&mut ready, &script.result(id));
        ready.extend(b"0\r\n\r\n");
        stream.write_all(&ready).await
    }
}

fn add_event(out: &mut Vec<u8>, data: &str) {
    let event = format!("event: message\ndata: {data}\n\n");
    out.extend(format!("{:x}\r\n{event}\r\n", event.len()).into_bytes());
}

async fn accept(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 202 X\r\ncontent-length: 0\r\n\r\n").await
}

async fn write_json(stream: &mut TcpStream, headers: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await
}

async fn read_request(stream: &mut TcpStream, input: &mut Vec<u8>) -> std::io::Result<Option<(Head, Vec<u8>)>> {
    let head = loop {
        match Head::take(input) {
            Some(head) => break head,
            None if stream.read_buf(input).await? == 0 => return Ok(None),
            None => {}
        }
    };
    let mut framing = Framing::of_request(&head);
    let mut body = Vec::new();
    framing.decode(input, &mut body);
    while !framing.done() {
        if stream.read_buf(input).await? == 0 {
            return Ok(None);
        }
        framing.decode(input, &mut body);
    }
    Ok(Some((head, body)))
}
