//! HTTP/1.1 as a client speaks it that expects everything to break.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::sse::{Frame, Parser};
use crate::wire::{Framing, Head};

/// Bytes of one read.
const PIECE: usize = 64 * 1024;

/// A request, less the address.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The port has no listener: nothing was sent.
    Refused,
    /// The connection broke before there was a head.
    Broken,
    /// Nothing came for as long as was to be waited.
    Silent,
}

/// Next part of a body.
#[derive(Debug)]
pub(crate) enum Next {
    Frame(Frame),
    /// The body came to the end it had announced.
    End,
    Broken,
    Silent,
}

/// A response whose head is there.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: Head,
    /// Address of the process that answered.
    pub(crate) from: SocketAddr,
    framing: Framing,
    stream: TcpStream,
    input: Vec<u8>,
    body: Vec<u8>,
    parser: Parser,
}

impl Request {
    pub(crate) fn new(method: &'static str, path: &str) -> Request {
        Request { method, path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn post(body: &Value) -> Request {
        let mut request = Request::new("POST", "/mcp")
            .with("Content-Type", "application/json")
            .with("Accept", "application/json, text/event-stream");
        request.body = body.to_string().into_bytes();
        request
    }

    pub(crate) fn resume(id: &str) -> Request {
        Request::new("GET", "/mcp").with("Accept", "text/event-stream").with("Last-Event-ID", id)
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Request {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Sends it on a connection of its own and waits for the head, for no longer than `patience`.
    pub(crate) async fn send(&self, to: SocketAddr, patience: Duration) -> Result<Response, Failed> {
        let sending = async {
            let mut stream = TcpStream::connect(to).await.map_err(|_| Failed::Refused)?;
            let _ = stream.set_nodelay(true);
            let mut bytes = format!("{} {} HTTP/1.1\r\nHost: {to}\r\n", self.method, self.path);
            for (name, value) in &self.headers {
                bytes += &format!("{name}: {value}\r\n");
            }
            bytes += &format!("Content-Length: {}\r\n\r\n", self.body.len());
            let mut bytes = bytes.into_bytes();
            bytes.extend(&self.body);
            // What a server says that did not want all of it counts.
            let _ = stream.write_all(&bytes).await;
            let mut input = Vec::with_capacity(PIECE);
            let head = loop {
                match Head::take(&mut input) {
                    Some(head) => break head,
                    None => match stream.read_buf(&mut input).await {
                        Ok(0) | Err(_) => return Err(Failed::Broken),
                        Ok(_) => {}
                    },
                }
            };
            let status = head.first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
            let framing = Framing::of_response(&head, status);
            let (body, parser) = (Vec::new(), Parser::default());
            Ok(Response { status, head, from: to, framing, stream, input, body, parser })
        };
        tokio::time::timeout(patience, sending).await.unwrap_or(Err(Failed::Silent))
    }
}

impl Response {
    pub(crate) fn is_sse(&self) -> bool {
        self.head.lists("content-type", "text/event-stream")
    }

    /// The next block of an event stream.
    pub(crate) async fn next(&mut self, silence: Duration) -> Next {
        loop {
            self.parser.push(&mut self.body);
            if let Some(frame) = self.parser.next() {
                return Next::Frame(frame);
            }
            match self.read(silence).await {
                None => {}
                Some(end) => return end,
            }
        }
    }

    /// All of the body; `None` if it broke.
    pub(crate) async fn whole(mut self, silence: Duration) -> Option<Vec<u8>> {
        loop {
            match self.read(silence).await {
                None => {}
                Some(Next::End) => return Some(self.body),
                Some(_) => return None,
            }
        }
    }

    /// Reads once. `Some` where there is nothing more.
    async fn read(&mut self, silence: Duration) -> Option<Next> {
        let before = self.body.len();
        self.framing.decode(&mut self.input, &mut self.body);
        if self.body.len() > before {
            return None;
        }
        if self.framing.done() {
            return Some(Next::End);
        }
        // In large pieces: each is looked through from its event's beginning.
        self.input.reserve(PIECE);
        match tokio::time::timeout(silence, self.stream.read_buf(&mut self.input)).await {
            Err(_) => Some(Next::Silent),
            Ok(Ok(0) | Err(_)) => Some(Next::Broken),
            Ok(Ok(_)) => None,
        }
    }
}
