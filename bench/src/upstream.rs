//! The scripted upstream: a fast MCP server, whose one tool follows its arguments.
//!
//! The server cannot resume: its events have no ids, a `GET` is 405, and a client that leaves has
//! cancelled. Its only state is the next session id and the counts of its tool's runs and events,
//! which `GET /runs` returns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::Result;
use crate::acks::Windows;
use crate::payload::{now_nanos, progress_head, write_answer, write_progress};
use crate::script::{Call, Mode, Script};
use crate::wire::Conn;

const EVENT_STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Connections that may wait to be accepted: after a cut ten thousand clients reconnect at once.
const BACKLOG: u32 = 16 * 1024;
/// Bytes of one read of a request; requests are small.
const READ_SIZE: usize = 4 * 1024;
const MS: u64 = 1_000_000;
/// Bytes of a result without padding, for small numbers.
const EMPTY_ANSWER: usize = 85;
/// Bytes of one write while a stream is filled.
const FILLING: usize = 64 * 1024;

/// Serves on two free ports of 127.0.0.1 and prints them on stdout; runs until it is killed.
pub(crate) async fn run() -> Result<()> {
    let mcp = listen()?;
    let acks = listen()?;
    let ready = serde_json::json!({
        "url": format!("http://{}/mcp", mcp.local_addr()?),
        "acks": acks.local_addr()?.to_string(),
    });
    println!("{ready}");
    serve(mcp, acks).await
}

/// Serves MCP on one port and acknowledgements on the other; runs until it is dropped.
pub(crate) async fn serve(mcp: TcpListener, acks: TcpListener) -> Result<()> {
    let windows = Windows::default();
    tokio::spawn(windows.clone().serve(acks));
    let server = Arc::new(Server { windows, ..Server::default() });
    loop {
        let (io, _) = mcp.accept().await?;
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            // Here a disconnect is the normal end of a connection.
            let _ = server.serve(Conn::new(io, READ_SIZE)?).await;
            Ok::<_, crate::Error>(())
        });
    }
}

/// A free port of 127.0.0.1.
pub(crate) fn listen() -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    Ok(socket.listen(BACKLOG)?)
}

#[derive(Default)]
struct Server {
    windows: Windows,
    sessions: AtomicU64,
    /// Runs of the tool with events, and those of them whose response was sent.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Events written, with or without a reader.
    events: AtomicU64,
}

impl Server {
    async fn serve(&self, mut conn: Conn) -> Result<()> {
        let mut body = Vec::new();
        while let Some(head) = conn.request().await? {
            body.clear();
            conn.rest(&mut body).await?;
            match (head.method.as_str(), head.path.as_str()) {
                ("POST", "/mcp") => self.post(&mut conn, &body).await?,
                ("DELETE", "/mcp") => conn.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?,
                ("GET", "/runs") => self.runs(&mut conn).await?,
                ("GET", "/.well-known/mcp-resume") => self.report(&mut conn).await?,
                (_, "/mcp") => conn.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n").await?,
                _ => conn.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await?,
            }
        }
        Ok(())
    }

    async fn post(&self, conn: &mut Conn, body: &[u8]) -> Result<()> {
        let call: Call = serde_json::from_slice(body)?;
        let Some(id) = call.id else {
            return conn.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").await;
        };
        if call.method == "initialize" {
            return self.initialize(conn, id).await;
        }
        let script = call.params.arguments;
        let head = progress_head(&call.params.meta.progress_token.to_string());
        match script.mode {
            Mode::Json => {
                let mut json = Vec::with_capacity(256 + script.bytes);
                write_answer(&mut json, id, 0, script.bytes);
                reply(conn, "", &json).await
            }
            Mode::Idle => self.idle(conn, id, &head, &script).await,
            Mode::Events | Mode::Short => {
                self.begun.fetch_add(1, Ordering::Relaxed);
                let outcome = match script.mode {
                    Mode::Short => self.short(conn, id, &head, &script).await,
                    _ => self.events(conn, id, &head, &script).await,
                };
                self.windows.close(script.ack);
                self.ended.fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed);
                outcome
            }
        }
    }

    async fn initialize(&self, conn: &mut Conn, id: u64) -> Result<()> {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed);
        let json = serde_json::json!({"jsonrpc": "2.0", "id": id, "result": {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bench", "version": "0"}}});
        reply(conn, &format!("Mcp-Session-Id: bench-{session}\r\n"), json.to_string().as_bytes()).await
    }

    async fn runs(&self, conn: &mut Conn) -> Result<()> {
        let [begun, ended, events] =
            [&self.begun, &self.ended, &self.events].map(|count| count.load(Ordering::Relaxed));
        let runs = serde_json::json!({ "begun": begun, "ended": ended, "events": events });
        reply(conn, "", runs.to_string().as_bytes()).await
    }

    /// A sidecar's report about itself, so that a balancer accepts this server as one.
    async fn report(&self, conn: &mut Conn) -> Result<()> {
        let own = format!("{:08x}", std::process::id());
        let report = serde_json::json!({
            "service": "mcp-resume", "owner": own, "instance": own, "ready": true, "draining": false,
            "store": {"kind": "memory", "shared": false, "epoch": "00000000"}, "openStreams": 0});
        reply(conn, "", report.to_string().as_bytes()).await
    }

    async fn events(&self, conn: &mut Conn, id: u64, head: &[u8], script: &Script) -> Result<()> {
        conn.write(EVENT_STREAM).await?;
        self.fill(conn, head, script).await?;
        let mut pace = self.pace(script);
        let end = match script.duration_ms {
            0 => u64::MAX,
            ms => now_nanos() + ms * MS,
        };
        let mut out = Vec::with_capacity(script.gather + 2 * script.bytes + 256);
        let mut event = Vec::with_capacity(script.bytes + 64);
        let (mut sent, mut written) = (script.filled, script.filled);
        while script.events == 0 || sent < script.filled + script.events {
            if !pace.next().await || now_nanos() >= end {
                break;
            }
            sent += 1;
            event.clear();
            write_progress(&mut event, head, sent, now_nanos(), script.bytes);
            chunk(&mut out, &event);
            if out.len() >= script.gather {
                conn.write(&out).await?;
                out.clear();
                self.events.fetch_add(sent - written, Ordering::Relaxed);
                written = sent;
            }
        }
        self.events.fetch_add(sent - written, Ordering::Relaxed);
        answer(conn, out, id, sent, 0).await
    }

    /// The head and all events without a pause; the head is written with the first event.
    async fn short(&self, conn: &mut Conn, id: u64, head: &[u8], script: &Script) -> Result<()> {
        let mut out = EVENT_STREAM.to_vec();
        let mut event = Vec::with_capacity(script.bytes + 64);
        for seq in 1..=script.events {
            event.clear();
            write_progress(&mut event, head, seq, now_nanos(), script.bytes);
            chunk(&mut out, &event);
            conn.write(&out).await?;
            out.clear();
        }
        self.events.fetch_add(script.events, Ordering::Relaxed);
        answer(conn, out, id, script.events, script.bytes.saturating_sub(EMPTY_ANSWER)).await
    }

    /// The head, the initial events, and silence.
    async fn idle(&self, conn: &mut Conn, id: u64, head: &[u8], script: &Script) -> Result<()> {
        conn.write(EVENT_STREAM).await?;
        self.fill(conn, head, script).await?;
        if timeout(Duration::from_millis(script.duration_ms), conn.closed()).await.is_ok() {
            return Err("the peer left".into());
        }
        answer(conn, Vec::new(), id, script.filled, 0).await
    }

    /// Writes the script's initial events.
    async fn fill(&self, conn: &mut Conn, head: &[u8], script: &Script) -> Result<()> {
        let (mut out, mut event) = (Vec::new(), Vec::new());
        for seq in 1..=script.filled {
            event.clear();
            write_progress(&mut event, head, seq, now_nanos(), script.bytes);
            chunk(&mut out, &event);
            if out.len() >= FILLING || seq == script.filled {
                conn.write(&out).await?;
                out.clear();
            }
        }
        self.events.fetch_add(script.filled, Ordering::Relaxed);
        Ok(())
    }

    fn pace(&self, script: &Script) -> Pace {
        match (script.ack, script.interval_ms) {
            (0, 0) => Pace::AtOnce,
            (0, ms) => {
                let mut ticks = interval(Duration::from_millis(ms));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                Pace::Ticks(ticks)
            }
            (key, _) => Pace::Acks(self.windows.open(key)),
        }
    }
}

/// The condition for the next event.
enum Pace {
    AtOnce,
    Ticks(Interval),
    Acks(Arc<Semaphore>),
}

impl Pace {
    /// Waits until the next event is due; `false` if there will be none.
    async fn next(&mut self) -> bool {
        match self {
            Self::AtOnce => true,
            Self::Ticks(ticks) => {
                ticks.tick().await;
                true
            }
            Self::Acks(window) => window.acquire().await.map(|permit| permit.forget()).is_ok(),
        }
    }
}

/// Ends a stream of `sent` events with its response and `pad` bytes of padding, behind the rest in
/// `out`.
async fn answer(conn: &mut Conn, mut out: Vec<u8>, id: u64, sent: u64, pad: usize) -> Result<()> {
    let mut answer = Vec::new();
    write_answer(&mut answer, id, sent, pad);
    chunk(&mut out, &answer);
    out.extend_from_slice(LAST_CHUNK);
    conn.write(&out).await
}

async fn reply(conn: &mut Conn, headers: &str, json: &[u8]) -> Result<()> {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n", json.len());
    conn.write(&[head.as_bytes(), json].concat()).await
}

/// Appends one SSE event as one chunk of the chunked coding.
fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    const OPEN: &[u8] = b"event: message\ndata: ";
    let size = format!("{:x}\r\n", OPEN.len() + data.len() + 2);
    for part in [size.as_bytes(), OPEN, data, b"\n\n\r\n"] {
        out.extend_from_slice(part);
    }
}
