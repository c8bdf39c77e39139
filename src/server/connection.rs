//! One downstream connection: hyper's, with two things added to HTTP/1.1.
//!
//! A client that leaves during a held response is noticed at once, also when it had pipelined a byte; hyper does not look while a
//! response runs. And responses that ended are confirmed once the connection has stayed open long enough. A FIN while a response runs is
//! a disconnect.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::BytesMut;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::{self, Alarm};
use crate::delivery::Receipts;
use crate::protocol::certificate::CertificateNames;
use crate::protocol::client::Trust;
use crate::sync;
use crate::upstream::Forwarded;

/// Bytes that are read ahead of hyper to see whether a FIN stands behind them.
const READ_AHEAD: usize = 64 * 1024;
const READ_STEP: usize = 4 * 1024;

/// What a connection's requests share.
pub struct Connection {
    peer: IpAddr,
    trust: Trust,
    is_behind_trusted: bool,
    is_secure: bool,
    certificate: Option<CertificateNames>,
    forwarded: Forwarded,
    receipts: Arc<Receipts>,
}

impl Connection {
    /// A connection from `peer`, which speaks `scheme` and has shown a certificate with these names. The proxies in `trust` speak for
    /// other clients: their certificates are none of a client's.
    pub fn new(peer: SocketAddr, scheme: &'static str, certificate: Option<CertificateNames>, trust: Trust) -> Self {
        let (peer, is_secure) = (peer.ip(), scheme == "https");
        let is_behind_trusted = trust.holds(peer);
        let forwarded = Forwarded::new(peer, scheme, is_behind_trusted);
        let receipts = Arc::new(if is_behind_trusted { Receipts::of_proxy() } else { Receipts::default() });
        let certificate = certificate.filter(|_| !is_behind_trusted);
        Self { peer, trust, is_behind_trusted, is_secure, certificate, forwarded, receipts }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Whether the peer is one of the trusted proxies, so that the connection may carry requests of many clients.
    pub fn is_behind_trusted(&self) -> bool {
        self.is_behind_trusted
    }

    /// The address of the client that sent a request with these headers: the peer's, or what trusted proxies say it is.
    pub fn client(&self, headers: &HeaderMap) -> IpAddr {
        if self.is_behind_trusted { self.trust.address(self.peer, headers) } else { self.peer }
    }

    /// Whether what it carries is encrypted.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// The names in the client's certificate.
    pub fn certificate(&self) -> Option<CertificateNames> {
        self.certificate
    }

    /// What the upstream is told of who is at the other end.
    pub fn forwarded(&self) -> &Forwarded {
        &self.forwarded
    }

    /// Its responses that ended and are not known to have arrived.
    pub fn receipts(&self) -> &Arc<Receipts> {
        &self.receipts
    }
}

/// The socket as hyper sees it.
pub(super) struct Watched<Io>(Arc<Mutex<Socket<Io>>>);

/// The socket as the connection's driver sees it.
pub(super) struct Watch<Io>(Arc<Mutex<Socket<Io>>>);

struct Socket<Io> {
    io: Io,
    ahead: BytesMut,
    /// hyper waits for the socket itself and will see its end.
    hyper_waits: bool,
    /// It failed, and did not just end.
    is_broken: bool,
    /// Since when it has taken nothing of what hyper writes.
    blocked_since: Option<Instant>,
}

impl<Io> Socket<Io> {
    fn note_written<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Pending => drop(self.blocked_since.get_or_insert_with(clock::now)),
            Poll::Ready(_) => self.blocked_since = None,
        }
        written
    }
}

/// Both ends of the watch. What was read of `io` before is `ahead`.
pub(super) fn watched<Io>(io: Io, ahead: BytesMut) -> (Watched<Io>, Watch<Io>) {
    let socket = Arc::new(Mutex::new(Socket { io, ahead, hyper_waits: false, is_broken: false, blocked_since: None }));
    (Watched(socket.clone()), Watch(socket))
}

impl<Io: AsyncRead + Unpin> Watch<Io> {
    /// To be called before hyper is polled.
    pub(super) fn before_hyper(&self) {
        lock(&self.0).hyper_waits = false;
    }

    /// Ready when the client has left although hyper does not look.
    pub(super) fn poll_left(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut socket = lock(&self.0);
        while !socket.hyper_waits && socket.ahead.len() < READ_AHEAD {
            let mut step = [MaybeUninit::uninit(); READ_STEP];
            let mut buffer = ReadBuf::uninit(&mut step);
            match ready!(Pin::new(&mut socket.io).poll_read(cx, &mut buffer)) {
                Ok(()) if buffer.filled().is_empty() => return Poll::Ready(()),
                Ok(()) => socket.ahead.extend_from_slice(buffer.filled()),
                Err(_) => {
                    socket.is_broken = true;
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }

    /// Since when the client has taken nothing of what is written to it.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        lock(&self.0).blocked_since
    }

    /// Whether the connection failed. hyper takes a reset between two requests for an end.
    pub(super) fn is_broken(&self) -> bool {
        lock(&self.0).is_broken
    }
}

fn lock<Io>(socket: &Mutex<Socket<Io>>) -> MutexGuard<'_, Socket<Io>> {
    sync::lock(socket)
}

impl<Io: AsyncRead + Unpin> AsyncRead for Watched<Io> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut socket = lock(&self.0);
        if socket.ahead.is_empty() {
            let read = Pin::new(&mut socket.io).poll_read(cx, buffer);
            // One that brought bytes has left no waker behind, and hyper may not ask again.
            socket.hyper_waits = read.is_pending();
            socket.is_broken |= matches!(read, Poll::Ready(Err(_)));
            return read;
        }
        let taken = buffer.remaining().min(socket.ahead.len());
        buffer.put_slice(&socket.ahead.split_to(taken));
        if socket.ahead.is_empty() {
            // What it was in goes as well.
            socket.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Watched<Io> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut socket = lock(&self.0);
        let written = Pin::new(&mut socket.io).poll_write(cx, bytes);
        socket.note_written(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut socket = lock(&self.0);
        let written = Pin::new(&mut socket.io).poll_write_vectored(cx, pieces);
        socket.note_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.0).io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = lock(&self.0);
        let flushed = Pin::new(&mut socket.io).poll_flush(cx);
        socket.note_written(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).io).poll_shutdown(cx)
    }
}

/// Confirms receipts as they settle.
pub(super) struct Settling {
    receipts: Arc<Receipts>,
    alarm: Alarm,
}

impl Settling {
    /// The connection ended, and did not break.
    pub(super) fn end(&self) {
        self.receipts.confirm_interims();
    }

    pub(super) fn new(receipts: Arc<Receipts>) -> Self {
        Self { receipts, alarm: Alarm::new() }
    }

    pub(super) fn receipts(&self) -> &Arc<Receipts> {
        &self.receipts
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        loop {
            self.alarm.set(self.receipts.next_settled());
            if self.alarm.poll(cx).is_pending() {
                return;
            }
            self.receipts.confirm_settled(clock::now());
        }
    }
}
