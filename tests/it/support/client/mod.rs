//! Downstream client with control of every byte: it can stop reading anywhere, reset, end, and send
//! any bytes.

mod request;
mod response;

pub(crate) use request::Request;
pub(crate) use response::Response;

use crate::support::wire::{Head, find};
use crate::support::within;
use std::io::ErrorKind;
#[cfg(target_os = "linux")]
use std::net::IpAddr;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
#[cfg(target_os = "linux")]
use tokio::net::TcpSocket;
use tokio::net::TcpStream;

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
        Client::over(stream)
    }

    /// Connects from another address of this machine.
    #[cfg(target_os = "linux")]
    pub(crate) async fn connect_from(from: IpAddr, addr: SocketAddr) -> Client {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("an address of this machine");
        Client::over(within("the proxy accepts", socket.connect(addr)).await.expect("a connection"))
    }

    fn over(stream: TcpStream) -> Client {
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
        Ok(Response::new(self, head, status))
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
