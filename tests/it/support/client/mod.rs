//! Downstream client with control of every byte: it can stop reading anywhere, reset, end, and send any bytes.

use crate::support::sse::{Frame, Parser};
use crate::support::wire::{Framing, Head, find};
use crate::support::within;
use serde_json::Value;
use std::io::ErrorKind;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

/// A request yet to be sent. Header names keep their spelling.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    pub(crate) fn new(method: &str, target: &str) -> Request {
        Request { method: method.to_owned(), target: target.to_owned(), headers: Vec::new(), body: None }
    }

    /// A POST to the endpoint with the headers of every SDK client.
    pub(crate) fn post(body: impl AsRef<[u8]>) -> Request {
        let mut request = Request::new("POST", "/mcp")
            .with("Content-Type", "application/json")
            .with("Accept", "application/json, text/event-stream");
        request.body = Some(body.as_ref().to_vec());
        request
    }

    /// A GET that accepts an event stream.
    pub(crate) fn get() -> Request {
        Request::new("GET", "/mcp").with("Accept", "text/event-stream")
    }

    /// Sets a header, in place of any of that name.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Request {
        self = self.without(name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a header beside any of that name.
    pub(crate) fn and(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Request {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn method(mut self, method: &str) -> Request {
        self.method = method.to_owned();
        self
    }

    /// Any method may have one.
    pub(crate) fn with_body(mut self, body: impl AsRef<[u8]>) -> Request {
        self.body = Some(body.as_ref().to_vec());
        self
    }

    pub(crate) fn target(mut self, target: &str) -> Request {
        self.target = target.to_owned();
        self
    }

    pub(crate) fn resume_from(self, id: &str) -> Request {
        self.with("Last-Event-ID", id)
    }

    /// The request as it goes over the wire.
    pub(crate) fn bytes(&self, addr: SocketAddr) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {addr}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.body());
        bytes
    }

    /// Returns the method and the target.
    pub(crate) fn line(&self) -> (&str, &str) {
        (&self.method, &self.target)
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn body(&self) -> &[u8] {
        self.body.as_deref().unwrap_or_default()
    }

    /// The id of the JSON-RPC request it carries.
    pub(crate) fn rpc_id(&self) -> Value {
        let message: Value = serde_json::from_slice(self.body()).expect("a JSON body");
        message["id"].clone()
    }

    /// Returns the head alone, without `Content-Length`.
    pub(crate) fn head_bytes(&self, addr: SocketAddr) -> Vec<u8> {
        let mut head = self.clone();
        head.body = None;
        head.bytes(addr)
    }

    /// Sends it on a connection of its own and does not wait for an answer.
    pub(crate) async fn start(&self, addr: SocketAddr) -> Client {
        let mut client = Client::connect(addr).await;
        client.send(&self.bytes(addr)).await;
        client
    }

    /// Sends it on a connection of its own and waits for the answer's head.
    pub(crate) async fn send(&self, addr: SocketAddr) -> Response {
        self.start(addr).await.response().await
    }
}

/// End of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As its framing promised.
    Complete,
    /// The connection ended before that.
    Broken,
    /// The test's own limit was reached.
    Cut,
}

/// One downstream connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    /// Read and not yet taken apart.
    input: Vec<u8>,
    /// Every byte read so far.
    read: usize,
    limit: usize,
    /// The bytes that the last `read` call brought, for tests of what is written together.
    reads: Vec<usize>,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Client {
        let stream = within("the proxy accepts", TcpStream::connect(addr)).await.expect("a connection");
        stream.set_nodelay(true).expect("an open socket");
        Client { stream, input: Vec::new(), read: 0, limit: usize::MAX, reads: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        within("the proxy reads", self.stream.write_all(bytes)).await.expect("an open socket");
    }

    /// Sends what may be refused half-way.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        within("the proxy reads or refuses", self.stream.write_all(bytes)).await
    }

    /// Sends what may be refused half-way, reading at the same time: the answer may come first.
    pub(crate) async fn send_and_read(self, bytes: &[u8]) -> (std::io::Result<()>, Result<Response, End>) {
        let mut sent = 0;
        let mut client = self;
        let both = Interest::READABLE | Interest::WRITABLE;
        while sent < bytes.len() && find(&client.input, b"\r\n\r\n").is_none() {
            let ready = within("the proxy reads or answers", client.stream.ready(both)).await;
            let ready = ready.expect("an open socket");
            if ready.is_readable() && client.take_ready().is_some() {
                break;
            }
            if ready.is_writable() {
                match client.stream.try_write(&bytes[sent..]) {
                    Ok(n) => sent += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) => return (Err(e), client.try_response().await),
                }
            }
        }
        (Ok(()), client.try_response().await)
    }

    /// Takes what can be read without waiting; says so when reading has ended.
    fn take_ready(&mut self) -> Option<End> {
        let mut piece = [0; 4096];
        match self.stream.try_read(&mut piece) {
            Ok(0) => Some(End::Broken),
            Ok(n) => {
                self.input.extend_from_slice(&piece[..n]);
                self.read += n;
                None
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => None,
            Err(_) => Some(End::Broken),
        }
    }

    /// Reads no byte beyond the first `limit` of the connection.
    pub(crate) fn stop_after(mut self, limit: usize) -> Client {
        self.limit = limit;
        self
    }

    /// Waits for the head of an answer.
    pub(crate) async fn response(self) -> Response {
        self.try_response().await.unwrap_or_else(|end| panic!("no head came: {end:?}"))
    }

    /// Reads a response, or returns the end of the connection that came before it.
    pub(crate) async fn try_response(mut self) -> Result<Response, End> {
        let head = loop {
            if let Some(head) = Head::take(&mut self.input) {
                let interim = head.first.split(' ').nth(1) == Some("100");
                if !interim {
                    break head;
                }
            }
            if let Some(end) = self.fill("the head of an answer").await {
                self.reset();
                return Err(end);
            }
        };
        let status = head.first.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {}", head.first));
        Ok(Response {
            status,
            framing: Framing::of_response(&head, status),
            head,
            client: self,
            body: Vec::new(),
            parser: Parser::default(),
            end: None,
            last_id: None,
        })
    }

    /// Waits for an interim answer; its status line.
    pub(crate) async fn interim(self) -> (String, Client) {
        let (head, client) = self.head_only().await;
        (head.first, client)
    }

    /// Waits for a head; leaves the bytes behind it unread.
    pub(crate) async fn head_only(mut self) -> (Head, Client) {
        loop {
            if let Some(head) = Head::take(&mut self.input) {
                return (head, self);
            }
            assert_eq!(self.fill("a head").await, None);
        }
    }

    /// The first `count` bytes the proxy sends.
    pub(crate) async fn bytes(mut self, count: usize) -> Vec<u8> {
        while self.input.len() < count {
            assert_eq!(self.fill("the proxy speaks").await, None);
        }
        self.input
    }

    /// Everything the proxy sends until the connection ends.
    pub(crate) async fn drain(mut self) -> Vec<u8> {
        while self.fill("the connection ends").await.is_none() {}
        self.input
    }

    /// Returns the number of bytes read.
    pub(crate) fn read(&self) -> usize {
        self.read
    }

    /// Reads once; says how reading ended when it did.
    async fn fill(&mut self, what: &str) -> Option<End> {
        let room = self.limit.saturating_sub(self.read).min(64 * 1024);
        if room == 0 {
            return Some(End::Cut);
        }
        let mut piece = vec![0; room];
        match within(what, self.stream.read(&mut piece)).await {
            Ok(0) | Err(_) => Some(End::Broken),
            Ok(n) => {
                self.input.extend_from_slice(&piece[..n]);
                self.read += n;
                self.reads.push(n);
                None
            }
        }
    }

    /// Breaks the connection with a TCP reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().expect("an open socket");
    }

    /// Ends the sending side only.
    pub(crate) async fn half_close(&mut self) {
        self.try_half_close().await.expect("an open socket");
    }

    /// Half-closes a socket that may be closed already.
    pub(crate) async fn try_half_close(&mut self) -> std::io::Result<()> {
        self.stream.shutdown().await
    }
}

/// An answer whose head has come.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: Head,
    framing: Framing,
    client: Client,
    /// Decoded and not yet handed out.
    body: Vec<u8>,
    parser: Parser,
    end: Option<End>,
    last_id: Option<String>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.get(name)
    }

    pub(crate) fn is_sse(&self) -> bool {
        self.header("content-type").is_some_and(|t| t.starts_with("text/event-stream"))
    }

    /// Asserts the head of an event stream.
    pub(crate) fn sse(self) -> Response {
        assert_eq!(self.status, 200, "{:?}", self.head);
        assert!(self.is_sse(), "{:?}", self.head);
        self
    }

    /// The `id` of the last whole frame read.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The next frame, comments included; `None` at the end.
    pub(crate) async fn any_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.parser.next() {
                if frame.id.is_some() {
                    self.last_id.clone_from(&frame.id);
                }
                return Some(frame);
            }
            if !self.more("the next frame").await {
                return None;
            }
            self.parser.push(&mut self.body);
        }
    }

    /// The next frame that is more than a comment; `None` at the end.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            let frame = self.any_frame().await?;
            if !frame.is_comment() {
                return Some(frame);
            }
        }
    }

    /// The empty first event of a stream or of a resumed connection.
    pub(crate) async fn prime(&mut self) -> Frame {
        let frame = self.frame().await.expect("a first event");
        assert!(!frame.is_event(), "not an empty event: {frame:?}");
        assert_eq!(frame.event, None, "an empty event names no type");
        assert!(frame.id.is_some(), "no id: {frame:?}");
        frame
    }

    /// The next event with data.
    pub(crate) async fn event(&mut self) -> Frame {
        loop {
            let frame = self.frame().await;
            let frame = frame.unwrap_or_else(|| panic!("the response ended: {:?}", self.end));
            if frame.is_event() {
                return frame;
            }
        }
    }

    /// All events with data to the end of the response, and how it ended.
    pub(crate) async fn events(&mut self) -> (Vec<Frame>, End) {
        let mut events = Vec::new();
        while let Some(frame) = self.frame().await {
            if frame.is_event() {
                events.push(frame);
            }
        }
        (events, self.end.expect("the body was read to its end"))
    }

    /// All frames but comments to the end of the response.
    pub(crate) async fn frames(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }

    /// The whole body, which must end as promised.
    pub(crate) async fn body(&mut self) -> Vec<u8> {
        let (body, end) = self.try_body().await;
        assert_eq!(end, End::Complete, "{}", String::from_utf8_lossy(&body));
        body
    }

    pub(crate) async fn try_body(&mut self) -> (Vec<u8>, End) {
        let mut body = Vec::new();
        while self.more("the rest of the body").await {
            body.append(&mut self.body);
        }
        body.append(&mut self.body);
        (body, self.end.expect("the body was read to its end"))
    }

    pub(crate) async fn json(&mut self) -> Value {
        let body = self.body().await;
        serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&body)))
    }

    /// Asserts that nothing but frames without data follows, and that the body ends as promised.
    pub(crate) async fn ends(&mut self) {
        let (events, end) = self.events().await;
        assert_eq!(events, vec![], "no further event");
        assert_eq!(end, End::Complete);
    }

    /// Reads some more of the body; false at its end.
    async fn more(&mut self, what: &str) -> bool {
        loop {
            let before = self.body.len();
            self.framing.decode(&mut self.client.input, &mut self.body);
            if self.body.len() > before {
                return true;
            }
            if self.framing.done() {
                self.end = Some(End::Complete);
                return false;
            }
            if let Some(end) = self.client.fill(what).await {
                let to_end = matches!(self.framing, Framing::Close) && end == End::Broken;
                self.end = Some(if to_end { End::Complete } else { end });
                return false;
            }
        }
    }

    /// Returns the number of bytes read from the connection.
    pub(crate) fn read(&self) -> usize {
        self.client.read()
    }

    /// The sizes of the reads so far.
    pub(crate) fn reads(&self) -> &[usize] {
        &self.client.reads
    }

    /// Returns the end of the response, once it has come.
    pub(crate) fn end(&self) -> Option<End> {
        self.end
    }

    /// Breaks the connection with a TCP reset.
    pub(crate) fn reset(self) {
        self.client.reset();
    }

    /// Ends the connection with a FIN.
    pub(crate) fn fin(self) {
        drop(self.client);
    }

    /// Sends bytes on the connection while the response runs.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.client.send(bytes).await;
    }

    /// Ends the sending side only.
    pub(crate) async fn half_close(&mut self) {
        self.client.half_close().await;
    }

    /// The connection, for another request; the body must have been read.
    pub(crate) fn into_client(self) -> Client {
        assert_eq!(self.end, Some(End::Complete), "the body is read first");
        self.client
    }
}
