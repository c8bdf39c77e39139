//! What lies between Pingora and a socket: what is written piece by piece is sent at once.
//!
//! Pingora writes the head and the body of a message one behind the other and flushes where somebody may wait for it. Its own listeners
//! gather what is not flushed; connections that come from elsewhere do not. Absent: deciding when to flush.

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

/// So much is gathered: a head with a short body. Every connection has it.
const GATHERED: usize = 4 * 1024;

/// Most bytes of one read, so that a piece of a request's body fits into what Pingora keeps of it. See [`super::proxy`].
pub const READ_MAX: usize = 32 * 1024;

/// A connection whose writes are gathered until they are flushed, or are too many.
#[derive(Debug)]
pub struct Gathering<S: IO>(BufWriter<S>);

impl<S: IO> Gathering<S> {
    /// Nothing is gathered yet.
    pub fn new(stream: S) -> Self {
        Self(BufWriter::with_capacity(GATHERED, stream))
    }
}

impl<S: IO> AsyncRead for Gathering<S> {
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

impl<S: IO> AsyncWrite for Gathering<S> {
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
impl<S: IO> Shutdown for Gathering<S> {
    async fn shutdown(&mut self) {
        // One that is closed because nobody reads it any more has nobody to send the rest to.
        let _ = self.0.flush().await;
        Shutdown::shutdown(self.0.get_mut()).await;
    }
}

#[async_trait]
impl<S: IO> Peek for Gathering<S> {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        self.0.get_mut().try_peek(buf).await
    }
}

impl<S: IO> UniqueID for Gathering<S> {
    fn id(&self) -> UniqueIDType {
        self.0.get_ref().id()
    }
}

impl<S: IO> Ssl for Gathering<S> {
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

impl<S: IO> GetTimingDigest for Gathering<S> {
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

impl<S: IO> GetProxyDigest for Gathering<S> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.0.get_ref().get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        self.0.get_mut().set_proxy_digest(digest);
    }
}

impl<S: IO> GetSocketDigest for Gathering<S> {
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

    /// What has come by now.
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
    async fn what_is_not_flushed_is_sent_together() {
        let (ours, mut theirs) = duplex(64 * 1024);
        let mut stream = Gathering::new(ours);
        stream.write_all(b"head ").await.unwrap();
        stream.write_all(b"body").await.unwrap();
        assert_eq!(received(&mut theirs).await, b"");
        stream.flush().await.unwrap();
        assert_eq!(received(&mut theirs).await, b"head body");
        stream.write_all(b"head ").await.unwrap();
        stream.write_all(&[b'x'; GATHERED]).await.unwrap();
        assert!(received(&mut theirs).await.starts_with(b"head "), "too much is not held back");
    }

    #[tokio::test]
    async fn what_is_closed_has_been_sent() {
        let (ours, mut theirs) = duplex(64);
        let mut stream = Gathering::new(ours);
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
