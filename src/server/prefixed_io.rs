//! I/O with a prefix: bytes that were read before the codec reads them.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of one read ahead.
const READ_STEP: usize = 4 * 1024;

/// I/O that is read from its prefix first.
pub(super) struct PrefixedIo<Io> {
    prefix: BytesMut,
    io: Io,
}

impl<Io> PrefixedIo<Io> {
    /// Returns `io` with an empty prefix.
    pub(super) fn new(io: Io) -> Self {
        Self { prefix: BytesMut::new(), io }
    }

    /// Puts bytes back that were read from here last.
    pub(super) fn put_back(&mut self, unread: &[u8]) {
        if !unread.is_empty() {
            let mut prefix = BytesMut::with_capacity(unread.len() + self.prefix.len());
            prefix.extend_from_slice(unread);
            prefix.extend_from_slice(&self.prefix);
            self.prefix = prefix;
        }
    }

    /// Bytes that were read ahead and not yet taken.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }
}

impl<Io: AsyncRead + Unpin> PrefixedIo<Io> {
    /// Reads more bytes into the prefix. Returns their number: 0 at the end of the stream. The
    /// buffer to read into is on the stack of the poll alone, so that a connection that waits holds
    /// none.
    pub(super) fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut step = [MaybeUninit::uninit(); READ_STEP];
        let mut buffer = ReadBuf::uninit(&mut step);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        self.prefix.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for PrefixedIo<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let taken = buffer.remaining().min(self.prefix.len());
        buffer.put_slice(&self.prefix.split_to(taken));
        if self.prefix.is_empty() {
            // Frees the allocation.
            self.prefix = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for PrefixedIo<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
