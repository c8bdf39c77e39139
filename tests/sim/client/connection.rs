//! A connection to the proxy, and what is sent on it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::network::{Dialer, Pipe};
use crate::wire::{Head, Parser, Part};
use crate::world::World;

/// Longer than any script runs with a client that reads.
pub(super) const LONGEST: Duration = Duration::from_secs(600);

/// A client's connection to the proxy.
pub(super) struct Connection {
    pub(super) pipe: Pipe,
    pub(super) parser: Parser,
    pub(super) name: String,
    /// Bytes read of the present response. They are logged at its end, without the date, which is
    /// the machine's.
    raw: Vec<u8>,
    reads: String,
}

impl Connection {
    pub(super) fn open(world: &World, dialer: &Dialer, name: String) -> Option<Self> {
        let pipe = match dialer.connect() {
            Err(_) if world.is_draining() => return None,
            connected => world.check(connected.map_err(|_| "the proxy is gone".to_owned()))?,
        };
        Some(Self { pipe, parser: Parser::default(), name, raw: Vec::new(), reads: String::new() })
    }

    /// Reuses the connection under another name.
    pub(super) fn under(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Reads at most `most` bytes. `None`: the end.
    pub(super) async fn read(&mut self, world: &World, most: usize) -> Option<usize> {
        let mut bytes = vec![0; most.min(16 * 1024)];
        let read = self.pipe.read(&mut bytes).await.unwrap_or(0);
        if read == 0 {
            return None;
        }
        self.raw.extend_from_slice(&bytes[..read]);
        self.reads.push_str(&format!("{}@{} ", read, world.elapsed().as_micros()));
        self.parser.feed(&bytes[..read]);
        Some(read)
    }

    pub(super) fn log(&mut self, world: &World) {
        let name = format!("{} {}", self.name, std::mem::take(&mut self.reads));
        let raw = std::mem::take(&mut self.raw);
        world.trace(&name, &undated(raw));
    }
}

/// The bytes without the value of `date`, however much of it there is.
fn undated(mut raw: Vec<u8>) -> Vec<u8> {
    const NAME: &[u8] = b"\r\ndate: ";
    if let Some(at) = memchr::memmem::find(&raw, NAME) {
        let value = at + NAME.len();
        let end = raw[value..].iter().position(|byte| *byte == b'\r').map_or(raw.len(), |end| value + end);
        raw[value..end].fill(b'-');
    }
    raw
}

/// Sender of a request.
#[derive(Clone, Copy)]
pub(super) struct Sender<'a> {
    pub(super) world: &'a World,
    pub(super) client: usize,
    pub(super) json_only: bool,
}

impl<'a> Sender<'a> {
    pub(super) fn of(world: &'a World, client: usize) -> Self {
        Self { world, client, json_only: false }
    }

    pub(super) fn head(&self, method: &str, more: &str) -> String {
        let client = self.client;
        let accept = if self.json_only { "application/json" } else { "application/json, text/event-stream" };
        let version = self.world.plan.clients[client].version;
        let session = self.world.sessions().shown(client).map(|name| format!("Mcp-Session-Id: {name}\r\n"));
        let session = session.unwrap_or_default();
        let speaks =
            if version == "2025-03-26" { String::new() } else { format!("MCP-Protocol-Version: {version}\r\n") };
        format!(
            "{method} /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer c{client}\r\n\
             Accept: {accept}\r\n{session}{speaks}{more}"
        )
    }

    pub(super) fn post(&self, body: &str) -> String {
        self.post_with("", body)
    }

    pub(super) fn post_with(&self, header: &str, body: &str) -> String {
        let more = format!("Content-Type: application/json\r\n{header}Content-Length: {}\r\n\r\n{body}", body.len());
        self.head("POST", &more)
    }

    pub(super) fn get(&self, id: &str) -> String {
        self.head("GET", &format!("Last-Event-ID: {id}\r\n\r\n"))
    }
}

/// Sends one request whose answer is short, on a connection of its own.
pub(super) async fn ask(world: &World, dialer: &Dialer, name: String, request: &str) -> Option<(Head, String)> {
    let mut connection = Connection::open(world, dialer, name)?;
    let exchange = async {
        connection.pipe.write_all(request.as_bytes()).await.ok()?;
        let (mut head, mut body) = (None, Vec::new());
        loop {
            match connection.parser.next() {
                Some(Part::Head(found)) => head = Some(found),
                Some(Part::Data(data)) => body.extend(data),
                Some(Part::End) => return head.map(|head| (head, String::from_utf8_lossy(&body).into_owned())),
                None => _ = connection.read(world, usize::MAX).await?,
            }
        }
    };
    let answer = timeout(LONGEST + world.jumped(), exchange).await;
    connection.log(world);
    if answer.as_ref().is_ok_and(Option::is_none) && world.is_draining() {
        return None;
    }
    let told = |()| format!("{}: no answer", connection.name);
    world.check(answer.ok().flatten().ok_or(()).map_err(told))
}
