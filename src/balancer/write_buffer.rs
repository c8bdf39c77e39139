//! A write buffer between Pingora and a socket: the pieces of a message are sent together.
//!
//! Pingora writes the head and the body of a message separately, and flushes when the peer may wait
//! for them. Its own listeners buffer the writes in between; to a [`VirtualSocket`] it writes
//! without a buffer. TLS is above the buffer. Absent: the decision to flush.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};

/// Capacity of the buffer of each connection: a head with a short body.
const CAPACITY: usize = 4 * 1024;

/// Most bytes of one read, so that a piece of a request's body fits into what Pingora keeps for a
/// retry. See [`super::proxy`]. A read through TLS is shorter: TLS reads less ahead.
pub const READ_MAX: usize = 32 * 1024;

/// A socket whose writes are buffered until a flush, or until the buffer is full.
#[derive(Debug)]
pub struct WriteBuffer<S: AsyncWrite>(BufWriter<S>);

impl<S: AsyncWrite> WriteBuffer<S> {
    /// Wraps `socket` with an empty buffer.
    pub fn new(socket: S) -> Self {
        Self(BufWriter::with_capacity(CAPACITY, socket))
    }
}

impl<S> VirtualSocket for WriteBuffer<S>
where
    S: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin,
{
    /// Changes nothing: the options were set when the connection was accepted.
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WriteBuffer<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() <= READ_MAX {
            return Pin::new(self.0.get_mut()).poll_read(cx, buf);
        }
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(READ_MAX));
        let polled = Pin::new(self.0.get_mut()).poll_read(cx, &mut part);
        let read = part.filled().len();
        buf.advance(read);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBuffer<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Returns the bytes received so far.
    async fn received(theirs: &mut DuplexStream) -> Vec<u8> {
        let mut buf = vec![0; 64 * 1024];
        let came = tokio::select! {
            biased;
            came = theirs.read(&mut buf) => came.unwrap(),
            () = std::future::ready(()) => 0,
        };
        buf.truncate(came);
        buf
    }

    #[tokio::test]
    async fn writes_are_sent_together_at_a_flush() {
        let (ours, mut theirs) = duplex(64 * 1024);
        let mut stream = WriteBuffer::new(ours);
        stream.write_all(b"head ").await.unwrap();
        stream.write_all(b"body").await.unwrap();
        assert_eq!(received(&mut theirs).await, b"");
        stream.flush().await.unwrap();
        assert_eq!(received(&mut theirs).await, b"head body");
        stream.write_all(b"head ").await.unwrap();
        stream.write_all(&[b'x'; CAPACITY]).await.unwrap();
        assert!(received(&mut theirs).await.starts_with(b"head "), "a full buffer is sent");
    }

    #[tokio::test]
    async fn closing_sends_the_buffered_writes() {
        let (ours, mut theirs) = duplex(64);
        let mut stream = WriteBuffer::new(ours);
        theirs.write_all(b"request ").await.unwrap();
        let mut request = [0; 8];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(b"response").await.unwrap();
        stream.shutdown().await.unwrap();
        drop(stream);
        let mut response = String::new();
        theirs.read_to_string(&mut response).await.unwrap();
        assert_eq!((&request, response.as_str()), (b"request ", "response"));
    }
}
