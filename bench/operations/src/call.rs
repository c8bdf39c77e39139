//! Whole calls through the sidecar, with its client and its server in the same process, on one
//! thread and over loopback sockets.
//!
//! Client and server take turns with the proxy, so that each run has the same wake-ups: the server
//! sends an event only once the client has the one before. Their own work is done in
//! [`poll_uncounted`], whose instructions are not counted. Neither allocates for a call, so that
//! all allocations are the proxy's. The log lines are written to nowhere.

use mcp_resume::config::Config;
use mcp_resume::log::text;
use mcp_resume::log::timestamps::Timestamps;
use mcp_resume::sidecar::Server;
use std::future::{Future, pending};
use std::io::Write as _;
use std::mem::forget;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::{Error, Result, expect, progress};

/// Room for a request or a response; all are smaller.
const ROOM: usize = 16 * 1024;
/// Lines that `serve` writes by default.
const LOG: &str = "info,fjall=warn,lsm_tree=warn";
/// ID of the first call. All IDs have the same length.
const FIRST_ID: usize = 10_000;
const SESSION: &str = "0b6f7a2e5d1c4f3a9e8d7c6b5a4f3e2d";
/// The field that every message has once.
const MESSAGE: &[u8] = br#""jsonrpc":"#;
const EVENT_STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const RESULT_END: &[u8] = br#""}]}}"#;

/// One kind of call.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Messages of the event stream, the response included; 0 for a response in JSON.
    events: usize,
    has_session: bool,
}

/// A call with a response in JSON.
pub(crate) const JSON: Kind = Kind { events: 0, has_session: false };
/// A call whose event stream has its response alone.
pub(crate) const EVENT: Kind = Kind { events: 1, has_session: false };
/// A call with three progress notifications.
pub(crate) const EVENTS: Kind = Kind { events: 4, has_session: false };
/// A call in a session whose event stream has its response alone: its delivery is proven by the
/// call after it.
pub(crate) const SESSION_EVENT: Kind = Kind { events: 1, has_session: true };

/// Makes `times` calls, one after another, on one connection.
pub(crate) fn call(times: usize, kind: Kind) -> Result<()> {
    // As `serve` writes its lines.
    let lines = tracing_subscriber::fmt().with_env_filter(LOG).with_ansi(false).with_timer(Timestamps);
    lines.with_writer(std::io::sink).fmt_fields(text::Fields::default()).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = Server::bind(Config::for_upstream(&format!("http://{}/mcp", listener.local_addr()?))?).await?;
        let address = server.local_addr();
        let (received, receiving) = watch::channel(0);
        tokio::spawn(Uncounted(Box::pin(accept(listener, kind, receiving))));
        tokio::spawn(server.run(pending()));
        Uncounted(Box::pin(client(address, times, kind, received))).await
    })?;
    forget(runtime);
    expect(done, times)
}

/// A future of the client or the server.
struct Uncounted<T>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> Future for Uncounted<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        poll_uncounted(self.0.as_mut(), cx)
    }
}

/// Polls `future`. `bench/instructions` counts nothing while a function of this name runs.
#[inline(never)]
fn poll_uncounted<T>(future: Pin<&mut (dyn Future<Output = T> + Send)>, cx: &mut Context<'_>) -> Poll<T> {
    future.poll(cx)
}

/// Makes the calls; returns the number of successful calls. `received` gets the number of messages
/// that have arrived of a call.
async fn client(address: SocketAddr, times: usize, kind: Kind, received: watch::Sender<usize>) -> Result<usize> {
    let mut io = TcpStream::connect(address).await?;
    io.set_nodelay(true)?;
    let (mut request, mut body, mut response) = (Vec::with_capacity(ROOM), Vec::with_capacity(ROOM), Buffer::new());
    let session = if kind.has_session { SESSION } else { "" };
    if kind.has_session {
        let initialize = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
        write_request(&mut request, "", initialize)?;
        io.write_all(&request).await?;
        while !response.filled().ends_with(b"}}}") {
            response.read(&mut io).await?;
        }
    }
    let (messages, end) = if kind.events == 0 { (1, RESULT_END) } else { (kind.events, LAST_CHUNK) };
    let mut done = 0;
    for id in FIRST_ID..FIRST_ID + times {
        body.clear();
        write!(
            body,
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"search","arguments":{{"query":"a few words of an ordinary length","limit":20}},"_meta":{{"progressToken":"b"}}}}}}"#
        )?;
        write_request(&mut request, session, &body)?;
        response.clear();
        received.send_replace(0);
        io.write_all(&request).await?;
        while !response.filled().ends_with(end) {
            response.read(&mut io).await?;
            if !response.filled().starts_with(b"HTTP/1.1 200 ") {
                return Err(format!("answered {}", response.filled().escape_ascii()).into());
            }
            received.send_replace(response.count(MESSAGE));
        }
        done += usize::from(response.count(MESSAGE) == messages && response.number_after(br#","id":"#)? == id);
    }
    Ok(done)
}

fn write_request(request: &mut Vec<u8>, session: &str, body: &[u8]) -> Result<()> {
    request.clear();
    request.extend_from_slice(
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nUser-Agent: an-sdk/1.0\r\nMCP-Protocol-Version: 2025-11-25\r\n",
    );
    if !session.is_empty() {
        write!(request, "Mcp-Session-Id: {session}\r\n")?;
    }
    write!(request, "Content-Length: {}\r\n\r\n", body.len())?;
    request.extend_from_slice(body);
    Ok(())
}

/// Serves every connection of the proxy.
async fn accept(listener: TcpListener, kind: Kind, received: watch::Receiver<usize>) -> Result<()> {
    let progress: Arc<[Vec<u8>]> = (1..kind.events).map(|n| chunk(&progress(n))).collect();
    loop {
        let (io, _) = listener.accept().await?;
        io.set_nodelay(true)?;
        tokio::spawn(Uncounted(Box::pin(serve(io, kind, progress.clone(), received.clone()))));
    }
}

async fn serve(
    mut io: TcpStream,
    kind: Kind,
    progress: Arc<[Vec<u8>]>,
    mut received: watch::Receiver<usize>,
) -> Result<()> {
    let (mut request, mut json, mut out) = (Buffer::new(), Vec::with_capacity(ROOM), Vec::with_capacity(ROOM));
    loop {
        request.clear();
        while !request.filled().ends_with(b"}}}") {
            request.read(&mut io).await?;
        }
        let id = request.number_after(br#""id":"#)?;
        json.clear();
        out.clear();
        if id == 0 {
            json.extend_from_slice(br#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"0"}}}"#);
            write_json(&mut out, &format!("Mcp-Session-Id: {SESSION}\r\n"), &json)?;
        } else if kind.events == 0 {
            write_result(&mut json, id, 300)?;
            write_json(&mut out, "", &json)?;
        } else {
            out.extend_from_slice(EVENT_STREAM);
            for (sent, event) in progress.iter().enumerate() {
                out.extend_from_slice(event);
                io.write_all(&out).await?;
                out.clear();
                received.wait_for(|received| *received > sent).await?;
            }
            write_result(&mut json, id, 225)?;
            write_chunk(&mut out, &json)?;
            out.extend_from_slice(LAST_CHUNK);
        }
        io.write_all(&out).await?;
    }
}

fn write_json(out: &mut Vec<u8>, headers: &str, json: &[u8]) -> Result<()> {
    write!(
        out,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n",
        json.len()
    )?;
    out.extend_from_slice(json);
    Ok(())
}

/// Writes a result of `bytes` bytes.
fn write_result(json: &mut Vec<u8>, id: usize, bytes: usize) -> Result<()> {
    write!(json, r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":""#)?;
    json.resize(bytes - RESULT_END.len(), b'x');
    json.extend_from_slice(RESULT_END);
    Ok(())
}

/// Writes a chunk with one event.
fn write_chunk(out: &mut Vec<u8>, json: &[u8]) -> Result<()> {
    const BEGIN: &[u8] = b"event: message\ndata: ";
    write!(out, "{:x}\r\n", BEGIN.len() + json.len() + 2)?;
    out.extend_from_slice(BEGIN);
    out.extend_from_slice(json);
    out.extend_from_slice(b"\n\n\r\n");
    Ok(())
}

fn chunk(json: &str) -> Vec<u8> {
    let mut out = Vec::new();
    // A `Vec` accepts every write.
    let _ = write_chunk(&mut out, json.as_bytes());
    out
}

/// The bytes of a request or a response that have arrived.
struct Buffer {
    bytes: Box<[u8; ROOM]>,
    filled: usize,
}

impl Buffer {
    fn new() -> Self {
        Self { bytes: Box::new([0; ROOM]), filled: 0 }
    }

    fn clear(&mut self) {
        self.filled = 0;
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    async fn read(&mut self, io: &mut TcpStream) -> Result<()> {
        let read = io.read(&mut self.bytes[self.filled..]).await?;
        self.filled += read;
        if read == 0 { Err(format!("ended after {}", self.filled().escape_ascii()).into()) } else { Ok(()) }
    }

    fn count(&self, pattern: &[u8]) -> usize {
        self.filled().windows(pattern.len()).filter(|window| *window == pattern).count()
    }

    /// The number after the first `key`.
    fn number_after(&self, key: &[u8]) -> Result<usize> {
        let missing = || Error::from(format!("no number in {}", self.filled().escape_ascii()));
        let at = self.filled().windows(key.len()).position(|window| window == key).ok_or_else(missing)?;
        let digits = self.filled()[at + key.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        Ok(digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
    }
}
