//! The network: pipes in memory. A cut is a pipe that is dropped with what it holds; a reader that
//! stands still fills its pipe. As with TCP, a client that leaves with unread bytes resets its
//! connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use mcp_resume::server::Accept;
use mcp_resume::upstream::{Dial, DialFuture, Wire};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc;

use super::world::World;

/// Listener whose connections are pipes that the other end pushes in.
pub(crate) struct Listener(mpsc::UnboundedReceiver<Pipe>);

/// Makes pipes to a [`Listener`].
#[derive(Clone)]
pub(crate) struct Dialer(mpsc::UnboundedSender<Pipe>, usize);

/// State of one end of a pipe, for the other end.
#[derive(Default)]
struct End {
    /// Number of bytes that this end has written and the other has not read.
    unread: AtomicUsize,
    is_gone: AtomicBool,
}

/// One end of a pipe.
pub(crate) struct Pipe {
    inner: DuplexStream,
    own: Arc<End>,
    other: Arc<End>,
    /// True if the other end may reset the connection.
    may_be_reset: bool,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.own.is_gone.store(true, Ordering::Relaxed);
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        self.other.unread.fetch_sub(read, Ordering::Relaxed);
        let has_left = read == 0 && buffer.remaining() > 0 && self.other.is_gone.load(Ordering::Relaxed);
        if has_left && self.may_be_reset && self.own.unread.load(Ordering::Relaxed) > 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        self.own.unread.fetch_add(written, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Pipes that hold `capacity` bytes in each direction.
pub(crate) fn network(capacity: usize) -> (Dialer, Listener) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Dialer(sender, capacity), Listener(receiver))
}

impl Dialer {
    /// A new pipe; refused once the listener is gone.
    pub(crate) fn connect(&self) -> io::Result<Pipe> {
        let (near, far) = duplex(self.1);
        let ends = [Arc::<End>::default(), Arc::default()];
        let far = Pipe { inner: far, own: ends[1].clone(), other: ends[0].clone(), may_be_reset: false };
        let near = Pipe { inner: near, own: ends[0].clone(), other: ends[1].clone(), may_be_reset: false };
        self.0.send(far).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(near)
    }
}

impl Listener {
    pub(crate) async fn next(&mut self) -> Option<Pipe> {
        self.0.recv().await
    }
}

impl Accept for Listener {
    type Io = Pipe;

    async fn accept(&mut self) -> io::Result<(Pipe, SocketAddr)> {
        match self.next().await {
            Some(mut pipe) => {
                pipe.may_be_reset = true;
                Ok((pipe, SocketAddr::from(([192, 0, 2, 1], 4000))))
            }
            None => std::future::pending().await,
        }
    }
}

/// The way to the upstream, which refuses connections at times.
pub(crate) struct Refusing(pub(crate) Arc<World>, pub(crate) Dialer);

impl Dial for Refusing {
    fn dial(&self, _: &http::Uri) -> DialFuture {
        let pipe = match self.0.refuses() {
            true => {
                self.0.reach("the upstream refused");
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            false => self.1.connect(),
        };
        Box::pin(async move { pipe.map(|pipe| Box::new(pipe) as Box<dyn Wire>) })
    }
}
