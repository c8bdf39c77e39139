//! Connections to the server: over TCP, TLS or a test's dialer, and the limit of open ones. Only
//! this file knows their transport.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;

use super::reach::{Reach, Reachability};
use super::resolver::Resolver;
use super::tls_faults::TlsFaults;
use crate::body::BoxError;
use crate::clock;
use crate::config::{self, UpstreamUrl};
use crate::tls::{self, ClientFiles};

/// Silence before the kernel sends the first keep-alive probe.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Interval of the keep-alive probes. A dead peer is detected after [`TCP_KEEPALIVE`] and
/// [`TCP_KEEPALIVE_RETRIES`] intervals.
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE_RETRIES: u32 = 6;
/// Limit for unacknowledged data. After it the server counts as lost. Linux counts a server that
/// does not read a request as well; the limit equals nginx's (`proxy_send_timeout`).
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Dialer that opens connections in place of the kernel: the network of a simulation.
pub trait Dial: Send + Sync + 'static {
    /// Opens a connection to the authority of `target`. The caller drops the future after the
    /// connect timeout.
    fn dial(&self, target: &Uri) -> DialFuture;
}

/// Future of a connection.
pub type DialFuture = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send>>;

/// Byte stream in both directions. Dropping it closes it.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<W: AsyncRead + AsyncWrite + Send + Unpin> Wire for W {}

/// Transport of the connections.
#[derive(Clone)]
pub(super) enum Transport {
    Tcp,
    /// TLS over TCP.
    Tls(Arc<ClientFiles>),
    Dialed(Arc<dyn Dial>),
}

impl Transport {
    /// TLS as it was configured.
    pub(super) fn tls(config: &config::UpstreamTls) -> Result<Self, tls::Error> {
        Ok(Transport::Tls(Arc::new(ClientFiles::load(config.clone())?)))
    }
}

/// Connector of one client. All connections lead to one origin, independent of the authority that a
/// request names.
#[derive(Clone)]
pub(super) struct Connector {
    origin: Uri,
    transport: TransportConnector,
    timeout: Duration,
    /// One permit for each connection up to the limit.
    permits: Arc<Semaphore>,
    pub(super) reach: Arc<Reach>,
    pub(super) tls_faults: Arc<TlsFaults>,
}

/// Error of a call that waited at the connection limit in vain.
#[derive(Debug, thiserror::Error)]
#[error("there are as many connections to the server as the limit of open files allows")]
pub(super) struct TooMany;

#[derive(Clone)]
enum TransportConnector {
    Tcp(HttpConnector<Resolver>),
    Tls(HttpConnector<Resolver>, Box<Tls>),
    Dialed(Arc<dyn Dial>),
}

#[derive(Clone)]
struct Tls {
    files: Arc<ClientFiles>,
    name: ServerName<'static>,
    /// True if the last handshake of any connection agreed on HTTP/2.
    is_http2: Arc<AtomicBool>,
}

impl Connector {
    /// Creates a connector to the origin of the configured server.
    pub(super) fn new(transport: Transport, config: &config::Upstream) -> Result<Self, tls::Error> {
        let (origin, timeout) = (origin(&config.url), config.connect_timeout);
        let reach = Arc::new(Reach::new(config.url.authority().to_string(), config.unready));
        let transport = match transport {
            Transport::Tcp => TransportConnector::Tcp(tcp(timeout)),
            Transport::Tls(files) => {
                let host = origin.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(host).map_err(|_| tls::Error::Name)?;
                TransportConnector::Tls(tcp(timeout), Box::new(Tls { files, name, is_http2: Arc::default() }))
            }
            Transport::Dialed(dialer) => TransportConnector::Dialed(dialer),
        };
        let permits = Arc::new(Semaphore::new(config.connections.min(Semaphore::MAX_PERMITS)));
        Ok(Self { origin, transport, timeout, permits, reach, tls_faults: Arc::new(TlsFaults::new()) })
    }

    /// Returns the TLS files, or `None` without TLS.
    pub(super) fn tls_files(&self) -> Option<&Arc<ClientFiles>> {
        match &self.transport {
            TransportConnector::Tls(_, tls) => Some(&tls.files),
            TransportConnector::Tcp(_) | TransportConnector::Dialed(_) => None,
        }
    }
}

fn origin(url: &UpstreamUrl) -> Uri {
    let parts = Uri::builder().scheme(url.scheme()).authority(url.authority().clone()).path_and_query("/");
    parts.build().expect("the parts were taken from a URL")
}

fn tcp(timeout: Duration) -> HttpConnector<Resolver> {
    let mut tcp = HttpConnector::new_with_resolver(Resolver::new());
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.set_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(TCP_KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
    tcp.set_connect_timeout(Some(timeout));
    tcp
}

impl TransportConnector {
    /// Opens a connection without TLS.
    async fn open(mut self, target: Uri) -> Result<RawConnection, BoxError> {
        match &mut self {
            TransportConnector::Tcp(tcp) | TransportConnector::Tls(tcp, _) => {
                Ok(RawConnection::Tcp(tcp.call(target).await?.into_inner()))
            }
            TransportConnector::Dialed(dialer) => Ok(RawConnection::Dialed(dialer.dial(&target).await?)),
        }
    }

    /// Performs the TLS handshake on an open connection, if the transport is TLS, for `limit` at
    /// most.
    async fn handshake(
        &self,
        connection: RawConnection,
        limit: Duration,
        faults: &TlsFaults,
    ) -> Result<SocketStream, BoxError> {
        match (self, connection) {
            (TransportConnector::Tls(_, tls), RawConnection::Tcp(tcp)) => {
                let shaking = TlsConnector::from(tls.files.current()).connect(tls.name.clone(), tcp);
                let Ok(shaken) = tokio::time::timeout(limit, shaking).await else {
                    faults.report_silent();
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                };
                let stream = shaken.inspect_err(|error| faults.report_failed(error))?;
                let stream = SocketStream::Tls(Box::new(stream));
                tls.is_http2.store(stream.is_http2(), Ordering::Relaxed);
                Ok(stream)
            }
            (_, RawConnection::Tcp(tcp)) => Ok(SocketStream::Tcp(tcp)),
            (_, RawConnection::Dialed(wire)) => Ok(SocketStream::Dialed(wire)),
        }
    }
}

/// Open connection before any TLS handshake.
pub(super) enum RawConnection {
    Tcp(TcpStream),
    Dialed(Box<dyn Wire>),
}

impl Connector {
    /// Returns true if the server chose HTTP/2 in the last handshake. The next may differ: a server
    /// may be replaced, or be several.
    pub(super) fn is_http2(&self) -> bool {
        match &self.transport {
            TransportConnector::Tls(_, tls) => tls.is_http2.load(Ordering::Relaxed),
            TransportConnector::Tcp(_) | TransportConnector::Dialed(_) => false,
        }
    }

    /// Returns the longest time until a connection is ready: the wait for a permit, and the
    /// connection attempt.
    pub(super) fn ready_timeout(&self) -> Duration {
        self.timeout * 2
    }

    /// Returns a connection to the origin. At the connection limit it waits until another
    /// connection ends.
    ///
    /// # Errors
    /// [`TooMany`] if no connection ended within the connect timeout; otherwise an error of TCP or
    /// TLS.
    pub(super) async fn connect(&self) -> Result<Socket, BoxError> {
        let permit = tokio::time::timeout(self.timeout, self.permits.clone().acquire_owned()).await;
        let permit = permit.map_err(|_| TooMany)??;
        let began = clock::now();
        let connection = self.open().await?;
        let left = self.timeout.saturating_sub(clock::now().saturating_duration_since(began));
        let stream = self.transport.handshake(connection, left, &self.tls_faults).await?;
        self.reach.record_usable();
        Ok(Socket { stream, _permit: permit })
    }

    /// Returns the reachability of the server, after a connection attempt if the last check is old
    /// enough.
    pub(super) async fn reachability(&self) -> Reachability {
        let connector = self.clone();
        let check = |known| async move {
            // The first connection tests TLS as well. After that, a handshake a second would be a
            // burden.
            match known {
                Reachability::Unknown => _ = connector.connect().await,
                Reachability::Accepting | Reachability::Lost => _ = connector.open().await,
            }
        };
        self.reach.check(check).await
    }

    /// Opens a connection without TLS, and records the outcome for readiness.
    pub(super) async fn open(&self) -> Result<RawConnection, BoxError> {
        let began = clock::now();
        let connection = within(self.timeout, self.transport.clone().open(self.origin.clone())).await;
        match &connection {
            Ok(_) => self.reach.record_accepted(),
            Err(error) => self.reach.record_failed(began, &**error),
        }
        connection
    }
}

async fn within<T>(time: Duration, connecting: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    tokio::time::timeout(time, connecting)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

/// For hyper's client.
impl Service<Uri> for Connector {
    type Response = TokioIo<Socket>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Socket>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}

/// Connection to the upstream, with its permit.
pub(super) struct Socket {
    stream: SocketStream,
    _permit: OwnedSemaphorePermit,
}

enum SocketStream {
    Tcp(TcpStream),
    // Boxed: connections without TLS do not pay for its size.
    Tls(Box<TlsStream<TcpStream>>),
    Dialed(Box<dyn Wire>),
}

impl Socket {
    /// Returns true if the TLS handshake agreed on HTTP/2; false without TLS.
    pub(super) fn is_http2(&self) -> bool {
        self.stream.is_http2()
    }
}

impl SocketStream {
    fn is_http2(&self) -> bool {
        match self {
            SocketStream::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(tls::HTTP2),
            SocketStream::Tcp(_) | SocketStream::Dialed(_) => false,
        }
    }
}

/// Announces the end of a TLS connection, if that can be done at once: to the server an unannounced
/// end is a cut. Sends nothing else: data that was not written as a whole counts as unsent.
impl Drop for SocketStream {
    fn drop(&mut self) {
        if let SocketStream::Tls(tls) = self
            && !tls.get_ref().1.wants_write()
        {
            let _ = Pin::new(tls).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        match &self.stream {
            SocketStream::Tcp(tcp) => tcp.connected(),
            SocketStream::Tls(tls) if self.is_http2() => tls.get_ref().0.connected().negotiated_h2(),
            SocketStream::Tls(tls) => tls.get_ref().0.connected(),
            SocketStream::Dialed(_) => Connected::new(),
        }
    }
}

/// Makes the same call on the stream of any transport.
macro_rules! on_socket {
    ($socket:expr, $io:ident => $call:expr) => {
        match &mut $socket.get_mut().stream {
            SocketStream::Tcp($io) => $call,
            SocketStream::Tls($io) => $call,
            SocketStream::Dialed($io) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, io => Pin::new(io).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Socket {
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
        match &self.stream {
            SocketStream::Tcp(io) => io.is_write_vectored(),
            SocketStream::Tls(io) => io.is_write_vectored(),
            SocketStream::Dialed(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, io => Pin::new(io).poll_shutdown(cx))
    }
}
