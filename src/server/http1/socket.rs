//! The socket of an HTTP/1.1 connection, shared by hyper and the task that drives it.
//!
//! hyper does not read while a response runs, so it misses a client that leaves meanwhile, in
//! particular after a pipelined byte. The task reads ahead instead, up to a bound. A FIN while a
//! response runs is a disconnect.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::prefixed_io::PrefixedIo;
use mcp_resume_base::clock;
use mcp_resume_base::sync;

/// Bytes that are read ahead of hyper in search of a FIN behind them.
const READ_AHEAD: usize = 64 * 1024;

/// hyper's handle of the socket.
pub(super) struct HyperSocket<Io>(Arc<Mutex<Socket<Io>>>);

/// The connection task's handle of the socket.
pub(super) struct SocketWatch<Io>(Arc<Mutex<Socket<Io>>>);

struct Socket<Io> {
    io: PrefixedIo<Io>,
    /// True if hyper waits for the socket itself, and so notices its end.
    is_awaited: bool,
    /// True if the socket failed, rather than ended.
    is_broken: bool,
    /// True if hyper has read the end of the client's bytes.
    is_at_end: bool,
    /// Time since the socket last accepted bytes of hyper's.
    blocked_since: Option<Instant>,
}

impl<Io> Socket<Io> {
    fn observe_write<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Pending => {
                self.blocked_since.get_or_insert_with(clock::now);
            }
            Poll::Ready(_) => self.blocked_since = None,
        }
        // To end a connection that its client has closed may fail, and shows nothing.
        if let Poll::Ready(Err(_)) = written {
            self.is_broken = true;
        }
        written
    }
}

/// Returns both handles of `io`.
pub(super) fn share<Io>(io: PrefixedIo<Io>) -> (HyperSocket<Io>, SocketWatch<Io>) {
    let socket =
        Arc::new(Mutex::new(Socket { io, is_awaited: false, is_broken: false, is_at_end: false, blocked_since: None }));
    (HyperSocket(socket.clone()), SocketWatch(socket))
}

impl<Io: AsyncRead + Unpin> SocketWatch<Io> {
    /// Must be called before each poll of hyper.
    pub(super) fn before_hyper(&self) {
        sync::lock(&self.0).is_awaited = false;
    }

    /// Ready if the client has left and hyper does not read the socket.
    pub(super) fn poll_left(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut socket = sync::lock(&self.0);
        while !socket.is_awaited && socket.io.prefix().len() < READ_AHEAD {
            match ready!(socket.io.poll_read_ahead(cx)) {
                Ok(0) => return Poll::Ready(()),
                Ok(_) => {}
                Err(_) => {
                    socket.is_broken = true;
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }

    /// True if hyper waits for bytes of the client, and the client has taken all that was written.
    pub(super) fn is_at_rest(&self) -> bool {
        let socket = sync::lock(&self.0);
        socket.is_awaited && socket.blocked_since.is_none()
    }

    /// Returns the I/O behind both handles, whose next bytes are `unread`. `None` if hyper's handle
    /// is still in use. The bytes are copied, and the buffer of `unread`, which may be far larger,
    /// is dropped.
    pub(super) fn into_io(self, unread: Bytes) -> Option<PrefixedIo<Io>> {
        let mut io = Arc::into_inner(self.0)?.into_inner().unwrap_or_else(PoisonError::into_inner).io;
        io.put_back(&unread);
        Some(io)
    }

    /// Time since which the client takes nothing of the written bytes, or `None` if it takes them.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        sync::lock(&self.0).blocked_since
    }

    /// True if the client has closed the connection while hyper waited for its next request, and
    /// has taken all that was written.
    pub(super) fn was_closed(&self) -> bool {
        let socket = sync::lock(&self.0);
        socket.is_at_end && socket.blocked_since.is_none()
    }

    /// True if the connection failed. hyper treats a reset between two requests as an end.
    pub(super) fn is_broken(&self) -> bool {
        sync::lock(&self.0).is_broken
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for HyperSocket<Io> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut socket = sync::lock(&self.0);
        let (filled, room) = (buffer.filled().len(), buffer.remaining());
        let read = match Pin::new(&mut socket.io).poll_read(cx, buffer) {
            Poll::Ready(Err(error)) if is_plain_end(&error) => Poll::Ready(Ok(())),
            read => read,
        };
        // A read that is ready has left no waker behind, and hyper may not read again.
        socket.is_awaited = read.is_pending();
        socket.is_broken |= matches!(read, Poll::Ready(Err(_)));
        socket.is_at_end |= matches!(read, Poll::Ready(Ok(()))) && room > 0 && buffer.filled().len() == filled;
        read
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for HyperSocket<Io> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut socket = sync::lock(&self.0);
        let written = Pin::new(&mut socket.io).poll_write(cx, bytes);
        socket.observe_write(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut socket = sync::lock(&self.0);
        let written = Pin::new(&mut socket.io).poll_write_vectored(cx, slices);
        socket.observe_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        sync::lock(&self.0).io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = sync::lock(&self.0);
        let flushed = Pin::new(&mut socket.io).poll_flush(cx);
        socket.observe_write(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut sync::lock(&self.0).io).poll_shutdown(cx)
    }
}

/// Returns true for the end of a TLS connection without a `close_notify`. Many clients close so,
/// and the lengths in HTTP show what is cut off.
pub(super) fn is_plain_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}
