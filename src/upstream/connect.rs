//! How a connection to the upstream is made: the only file that knows what its bytes travel on.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::event_log::BoxError;

/// After so much silence the kernel asks a peer whether it is there; one that acknowledges nothing for this long is gone.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// A peer that vanished is found after the silence and so many questions, so far apart.
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE_RETRIES: u32 = 3;

/// Opens connections in place of the kernel: the network of a simulation.
pub trait Dial: Send + Sync + 'static {
    /// A connection to the authority of `target`. Given up, by dropping the future, after the time for connecting.
    fn dial(&self, target: &Uri) -> Dialing;
}

/// A connection in the making.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send>>;

/// What carries bytes both ways. Dropping it closes it.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<W: AsyncRead + AsyncWrite + Send + Unpin> Wire for W {}

/// Makes the connections of one client.
#[derive(Clone)]
pub(super) struct Connector {
    carrier: Carrier,
    timeout: Duration,
}

#[derive(Clone)]
enum Carrier {
    Tcp(HttpConnector),
    Dialed(Arc<dyn Dial>),
}

impl Connector {
    /// By `dialer`, or else by TCP. A connection is there within `timeout` or fails.
    pub(super) fn new(dialer: Option<Arc<dyn Dial>>, timeout: Duration) -> Self {
        let carrier = dialer.map_or_else(|| Carrier::Tcp(tcp(timeout)), Carrier::Dialed);
        Self { carrier, timeout }
    }
}

fn tcp(timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.set_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(TCP_KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(TCP_KEEPALIVE));
    tcp.set_connect_timeout(Some(timeout));
    tcp
}

impl Carrier {
    async fn connect(mut self, target: Uri) -> Result<Socket, BoxError> {
        match &mut self {
            Carrier::Tcp(tcp) => Ok(Socket::Tcp(tcp.call(target).await?)),
            Carrier::Dialed(dialer) => Ok(Socket::Dialed(TokioIo::new(dialer.dial(&target).await?))),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = Socket;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Socket, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let Self { carrier, timeout } = self.clone();
        Box::pin(async move {
            let connecting = carrier.connect(target);
            let connected = tokio::time::timeout(timeout, connecting).await;
            connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        })
    }
}

/// A connection to the upstream.
pub(super) enum Socket {
    Tcp(TokioIo<TcpStream>),
    Dialed(TokioIo<Box<dyn Wire>>),
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        match self {
            Socket::Tcp(tcp) => tcp.connected(),
            Socket::Dialed(_) => Connected::new(),
        }
    }
}

/// The same call for whatever carries the bytes.
macro_rules! on_socket {
    ($socket:expr, $io:ident => $call:expr) => {
        match $socket.get_mut() {
            Socket::Tcp($io) => $call,
            Socket::Dialed($io) => $call,
        }
    };
}

impl Read for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, io => Pin::new(io).poll_read(cx, buffer))
    }
}

impl Write for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_socket!(self, io => Pin::new(io).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_socket!(self, io => Pin::new(io).poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Socket::Tcp(io) => io.is_write_vectored(),
            Socket::Dialed(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, io => Pin::new(io).poll_shutdown(cx))
    }
}
