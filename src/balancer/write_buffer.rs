//! A write buffer between Pingora and a socket: the pieces of a message are sent together.
//!
//! Pingora writes the head and the body of a message separately, and flushes when the peer may wait
//! for them. Its own listeners buffer the writes in between; connections accepted by other means
//! have no buffer. Absent: the decision to flush.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::{SslDigest, TlsRef};
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, IO, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter, ReadBuf};

/// Capacity of the buffer of each connection: a head with a short body.
const CAPACITY: usize = 4 * 1024;

/// Most bytes of one read, so that a piece of a request's body fits into what Pingora keeps for a
/// retry. See [`super::proxy`].
pub const READ_MAX: usize = 32 * 1024;

/// A connection whose writes are buffered until a flush, or until the buffer is full.
#[derive(Debug)]
pub struct WriteBuffer<S: IO>(BufWriter<S>);

impl<S: IO> WriteBuffer<S> {
    /// Wraps `stream` with an empty buffer.
    pub fn new(stream: S) -> Self {
        Self(BufWriter::with_capacity(CAPACITY, stream))
    }
}

impl<S: IO> AsyncRead for WriteBuffer<S> {
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

impl<S: IO> AsyncWrite for WriteBuffer<S> {
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

#[async_trait]
impl<S: IO> Shutdown for WriteBuffer<S> {
    async fn shutdown(&mut self) {
        // The peer may be gone: then the rest reaches no reader.
        let _ = self.0.flush().await;
        Shutdown::shutdown(self.0.get_mut()).await;
    }
}

#[async_trait]
impl<S: IO> Peek for WriteBuffer<S> {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        self.0.get_mut().try_peek(buf).await
    }
}

impl<S: IO> UniqueID for WriteBuffer<S> {
    fn id(&self) -> UniqueIDType {
        self.0.get_ref().id()
    }
}

impl<S: IO> Ssl for WriteBuffer<S> {
    fn get_ssl(&self) -> Option<&TlsRef> {
        self.0.get_ref().get_ssl()
    }

    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.0.get_ref().get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.0.get_ref().selected_alpn_proto()
    }
}

impl<S: IO> GetTimingDigest for WriteBuffer<S> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.0.get_ref().get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.0.get_ref().get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.0.get_ref().get_write_pending_time()
    }
}

impl<S: IO> GetProxyDigest for WriteBuffer<S> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.0.get_ref().get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        self.0.get_mut().set_proxy_digest(digest);
    }
}

impl<S: IO> GetSocketDigest for WriteBuffer<S> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.0.get_ref().get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.0.get_mut().set_socket_digest(digest);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

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
        theirs.write_all(b"question").await.unwrap();
        let mut question = [0; 8];
        stream.read_exact(&mut question).await.unwrap();
        stream.write_all(b"answer").await.unwrap();
        Shutdown::shutdown(&mut stream).await;
        drop(stream);
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&question, answer.as_str()), (b"question", "answer"));
    }
}
