//! HTTP/2 as bytes: a client that opens and resets streams as fast as its socket takes them, which
//! no client library does.

use super::client::Request;
use super::within;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Why a stream is reset, or a connection ended (RFC 9113 §7).
pub(crate) const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// One downstream connection of HTTP/2. What the proxy says is read, and forgotten but for its last
/// word.
pub(crate) struct Framer {
    addr: SocketAddr,
    write: OwnedWriteHalf,
    next: u32,
    ended: JoinHandle<Option<u32>>,
}

impl Framer {
    pub(crate) async fn connect(addr: SocketAddr) -> Framer {
        let tcp = within("the proxy accepts", TcpStream::connect(addr)).await.expect("a connection");
        tcp.set_nodelay(true).expect("an open socket");
        let (read, write) = tcp.into_split();
        let mut framer = Framer { addr, write, next: 1, ended: tokio::spawn(last_word(read)) };
        let greeting = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        framer.send(&greeting).await.expect("an open socket");
        framer
    }

    /// The bytes of a request on a stream of its own, and the stream.
    pub(crate) fn open(&mut self, request: &Request) -> (Vec<u8>, u32) {
        let stream = self.next;
        self.next += 2;
        let head = frame(HEADERS, END_HEADERS, stream, &fields(request, self.addr));
        (concat(head, frame(DATA, END_STREAM, stream, request.body())), stream)
    }

    /// Sends what may be refused half-way.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        within("the proxy reads or hangs up", self.write.write_all(bytes)).await
    }

    /// Waits until the proxy has ended the connection; the reason it gave.
    pub(crate) async fn ended(self) -> Option<u32> {
        within("the proxy ends the connection", self.ended).await.expect("no panic")
    }
}

/// The end of a stream before its time.
pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(crate) fn concat(mut first: Vec<u8>, second: Vec<u8>) -> Vec<u8> {
    first.extend(second);
    first
}

/// Returns a header block of literals alone (RFC 7541 §6.2.2), which needs no table.
fn fields(request: &Request, addr: SocketAddr) -> Vec<u8> {
    let authority = addr.to_string();
    let (method, target) = request.line();
    let pseudo = [(":method", method), (":scheme", "http"), (":authority", authority.as_str()), (":path", target)];
    let mut block = Vec::new();
    for (name, value) in pseudo.into_iter().chain(request.headers()) {
        block.push(0);
        for text in [name.to_ascii_lowercase().as_str(), value] {
            assert!(text.len() < 127, "longer texts want a longer length");
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    block
}

/// Reads frames to the end of the connection; what the last GOAWAY said.
async fn last_word(mut read: OwnedReadHalf) -> Option<u32> {
    let mut said = None;
    let mut head = [0; 9];
    while read.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if read.read_exact(&mut payload).await.is_err() {
            break;
        }
        if head[3] == GOAWAY {
            said = payload[4..8].try_into().ok().map(u32::from_be_bytes);
        }
    }
    said
}
