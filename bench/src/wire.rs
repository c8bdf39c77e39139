//! One HTTP/1.1 connection, read and written by hand, for both ends of a measurement.
//!
//! A general HTTP library's work per piece of a body (a channel, a task switch, a flush) would cost
//! more here than the measured subject. This reads up to 64 KiB per system call and decodes all of
//! it in place. Deliberately absent: pipelining, `Expect`, HTTP/2, TLS.

use bytes::{Buf, BytesMut};
use memchr::memchr;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Result;

/// Largest size of a head, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Largest number of headers in a head.
const MAX_HEADERS: usize = 64;

/// A connection, and its position in the current body.
pub(crate) struct Conn {
    io: TcpStream,
    buf: BytesMut,
    body: Body,
    read_size: usize,
    reads: u64,
}

/// The parts of a request's head that the scripted upstream uses.
pub(crate) struct RequestHead {
    pub(crate) method: String,
    pub(crate) path: String,
}

/// The parts of a response's head that the load tool checks.
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) session: Option<String>,
    pub(crate) event_stream: bool,
}

/// Position of the next byte of the body.
#[derive(Clone, Copy)]
enum Body {
    Done,
    Length(u64),
    UntilEof,
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
}

impl Conn {
    /// Connects to `addr`; reads up to `read_size` bytes at a time.
    pub(crate) async fn connect(addr: SocketAddr, read_size: usize) -> Result<Self> {
        Self::new(TcpStream::connect(addr).await?, read_size)
    }

    /// Takes an accepted connection; reads up to `read_size` bytes at a time.
    pub(crate) fn new(io: TcpStream, read_size: usize) -> Result<Self> {
        io.set_nodelay(true)?;
        Ok(Self { io, buf: BytesMut::new(), body: Body::Done, read_size, reads: 0 })
    }

    /// A new connection to `addr` if the peer has closed this one, on which no response is due.
    pub(crate) async fn unless_open(&self, addr: SocketAddr) -> Result<Option<Self>> {
        match self.io.try_read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            _ => Ok(Some(Self::connect(addr, self.read_size).await?)),
        }
    }

    /// Writes all of `bytes`, in one system call if the socket takes them.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.io.write_all(bytes).await?)
    }

    /// Number of reads of the socket that returned bytes.
    pub(crate) fn reads(&self) -> u64 {
        self.reads
    }

    /// Resets the connection (RST, not FIN) and drops it.
    pub(crate) fn cut(self) -> Result<()> {
        Ok(self.io.set_zero_linger()?)
    }

    /// Returns once the peer has closed; bytes that it sends before that are kept.
    pub(crate) async fn closed(&mut self) {
        while matches!(self.fill().await, Ok(n) if n > 0) {}
    }

    /// The next request's head, or `None` when the peer closed between requests.
    pub(crate) async fn request(&mut self) -> Result<Option<RequestHead>> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut parsed = httparse::Request::new(&mut headers);
            if let httparse::Status::Complete(length) = parsed.parse(&self.buf)? {
                let head = RequestHead {
                    method: parsed.method.unwrap_or_default().to_owned(),
                    path: parsed.path.unwrap_or_default().to_owned(),
                };
                self.body = framing(parsed.headers, Body::Done)?;
                self.buf.advance(length);
                return Ok(Some(head));
            }
            let between_requests = self.buf.is_empty();
            if self.fill_head().await? == 0 {
                return if between_requests { Ok(None) } else { Err("the peer closed within a request's head".into()) };
            }
        }
    }

    /// The next response's head.
    pub(crate) async fn response(&mut self) -> Result<ResponseHead> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut parsed = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(length) = parsed.parse(&self.buf)? {
                let status = parsed.code.unwrap_or_default();
                let head = ResponseHead {
                    status,
                    session: header(parsed.headers, "mcp-session-id").map(str::to_owned),
                    event_stream: header(parsed.headers, "content-type")
                        .is_some_and(|t| t.starts_with("text/event-stream")),
                };
                self.body = match status {
                    204 | 304 => Body::Done,
                    _ => framing(parsed.headers, Body::UntilEof)?,
                };
                self.buf.advance(length);
                return Ok(head);
            }
            if self.fill_head().await? == 0 {
                return Err("the peer closed before a response's head was complete".into());
            }
        }
    }

    /// Appends the available bytes of the body to `out`, waiting for some; `false` once the body
    /// has ended.
    pub(crate) async fn more(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let before = out.len();
        if self.decode(out)? {
            return Ok(false);
        }
        while out.len() == before {
            if self.fill().await? == 0 {
                return match self.body {
                    Body::UntilEof => Ok(false),
                    _ => Err("the peer closed within a body".into()),
                };
            }
            if self.decode(out)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Appends the whole rest of the body to `out`.
    pub(crate) async fn rest(&mut self, out: &mut Vec<u8>) -> Result<()> {
        while self.more(out).await? {}
        Ok(())
    }

    async fn fill(&mut self) -> Result<usize> {
        self.buf.reserve(self.read_size);
        let read = self.io.read_buf(&mut self.buf).await?;
        self.reads += u64::from(read > 0);
        Ok(read)
    }

    async fn fill_head(&mut self) -> Result<usize> {
        if self.buf.len() > MAX_HEAD {
            return Err("a head is too long".into());
        }
        self.fill().await
    }

    /// Moves the buffered bytes of the body to `out`; `true` once the body has ended.
    fn decode(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        loop {
            self.body = match self.body {
                Body::Done => return Ok(true),
                Body::UntilEof => {
                    out.extend_from_slice(&self.buf);
                    self.buf.clear();
                    return Ok(false);
                }
                Body::Length(left) => match self.take(left, out) {
                    0 => Body::Done,
                    left => {
                        self.body = Body::Length(left);
                        return Ok(false);
                    }
                },
                Body::Chunk(left) => match self.take(left, out) {
                    0 => Body::ChunkEnd,
                    left => {
                        self.body = Body::Chunk(left);
                        return Ok(false);
                    }
                },
                Body::ChunkSize | Body::ChunkEnd | Body::Trailer => {
                    let Some(end) = memchr(b'\n', &self.buf) else {
                        return Ok(false);
                    };
                    let next = after_line(self.body, self.buf[..end].trim_ascii_end())?;
                    self.buf.advance(end + 1);
                    next
                }
            };
        }
    }

    /// Moves up to `left` buffered bytes to `out`; returns the number of missing ones.
    fn take(&mut self, left: u64, out: &mut Vec<u8>) -> u64 {
        let here = self.buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        out.extend_from_slice(&self.buf[..here]);
        self.buf.advance(here);
        left - here as u64
    }
}

/// The next element after `line`, a line of the chunked coding.
fn after_line(at: Body, line: &[u8]) -> Result<Body> {
    match at {
        Body::ChunkSize => {
            let digits = line.split(|b| *b == b';').next().unwrap_or_default();
            let size = u64::from_str_radix(std::str::from_utf8(digits)?.trim(), 16)?;
            Ok(if size == 0 { Body::Trailer } else { Body::Chunk(size) })
        }
        Body::ChunkEnd if line.is_empty() => Ok(Body::ChunkSize),
        Body::ChunkEnd => Err("a chunk is longer than its size says".into()),
        Body::Trailer if line.is_empty() => Ok(Body::Done),
        other => Ok(other),
    }
}

fn framing(headers: &[httparse::Header<'_>], otherwise: Body) -> Result<Body> {
    if header(headers, "transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        return Ok(Body::ChunkSize);
    }
    Ok(match header(headers, "content-length") {
        Some(length) => Body::Length(length.parse()?),
        None => otherwise,
    })
}

fn header<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|h| h.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(found.value).ok()
}
