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

use super::open_sockets::OpenSocket;
use super::proxy;
use super::reach::{Reach, Reachability};
use super::resolver::Resolver;
use super::tls_faults::TlsFaults;
use crate::body::BoxError;
use crate::clock;
use crate::config::{self, Liveness, UpstreamUrl, Way};
use crate::tls::{self, ClientFiles};

/// Time until addresses of the other family are tried as well ([RFC 8305 §5]).
///
/// [RFC 8305 §5]: https://www.rfc-editor.org/rfc/rfc8305#section-5
const OTHER_FAMILY_AFTER: Duration = Duration::from_millis(250);

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
    /// Proxy on the way to the origin.
    proxy: Option<Arc<config::Proxy>>,
    liveness: Liveness,
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
        let proxy = match transport {
            Transport::Tcp | Transport::Tls(_) => proxy::of(&config.way, &origin).cloned().map(Arc::new),
            Transport::Dialed(_) => None,
        };
        let transport = match transport {
            Transport::Tcp => TransportConnector::Tcp(tcp(timeout, &config.way)),
            Transport::Tls(files) => {
                let host = origin.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(host).map_err(|_| tls::Error::Name)?;
                TransportConnector::Tls(
                    tcp(timeout, &config.way),
                    Box::new(Tls { files, name, is_http2: Arc::default() }),
                )
            }
            Transport::Dialed(dialer) => TransportConnector::Dialed(dialer),
        };
        let permits = Arc::new(Semaphore::new(config.connections.min(Semaphore::MAX_PERMITS)));
        let (liveness, tls_faults) = (config.way.liveness, Arc::new(TlsFaults::new()));
        Ok(Self { origin, proxy, liveness, transport, timeout, permits, reach, tls_faults })
    }

    /// Returns the proxy that gets requests in absolute form, or `None` if none does.
    pub(super) fn http_proxy(&self) -> Option<&config::Proxy> {
        self.proxy.as_deref().filter(|_| self.tls_files().is_none())
    }

    /// Returns the detection of dead connections.
    pub(super) fn liveness(&self) -> &Liveness {
        &self.liveness
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

fn tcp(timeout: Duration, way: &Way) -> HttpConnector<Resolver> {
    let mut tcp = HttpConnector::new_with_resolver(Resolver::new(way.ipv4_only));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_happy_eyeballs_timeout(Some(OTHER_FAMILY_AFTER));
    tcp.set_keepalive(Some(way.liveness.idle));
    tcp.set_keepalive_interval(Some(way.liveness.interval));
    tcp.set_keepalive_retries(Some(way.liveness.retries));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(way.liveness.user_timeout));
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
        let open = match &connection {
            RawConnection::Tcp(tcp) if self.liveness.probes_after_sleep => OpenSocket::enter(tcp, self.liveness),
            RawConnection::Tcp(_) | RawConnection::Dialed(_) => None,
        };
        let stream = self.transport.handshake(connection, left, &self.tls_faults).await?;
        self.reach.record_usable();
        let is_proxied = self.http_proxy().is_some();
        Ok(Socket { stream, is_proxied, _open: open, _permit: permit })
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
        let connection = within(self.timeout, self.open_on_the_way()).await;
        match &connection {
            Ok(_) => self.reach.record_accepted(),
            Err(error) => self.reach.record_failed(began, &**error),
        }
        connection
    }
}

impl Connector {
    /// Opens a connection to the origin, or to its proxy. In front of TLS, the proxy opens a
    /// tunnel.
    async fn open_on_the_way(&self) -> Result<RawConnection, BoxError> {
        let Some(proxy) = &self.proxy else { return self.transport.clone().open(self.origin.clone()).await };
        let mut connection = self.transport.clone().open(proxy::place(proxy)).await?;
        if let (RawConnection::Tcp(tcp), None) = (&mut connection, self.http_proxy()) {
            proxy::tunnel(tcp, proxy, &self.origin).await?;
        }
        Ok(connection)
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
    /// True if a proxy takes the requests.
    is_proxied: bool,
    // Behind the stream, which it outlives for a moment.
    _open: Option<OpenSocket>,
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
            SocketStream::Tcp(tcp) => tcp.connected().proxy(self.is_proxied),
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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use socket2::SockRef;
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn connections_have_the_liveness_of_their_way() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        for (liveness, expected) in [(Liveness::default(), (30, 6, 60)), (Liveness::of_strangers(), (15, 3, 30))] {
            let mut config = Config::for_upstream(&url).unwrap().upstream;
            config.way.liveness = liveness;
            let connection = Connector::new(Transport::Tcp, &config).unwrap().open().await.unwrap();
            let RawConnection::Tcp(tcp) = connection else { panic!("no TCP") };
            let socket = SockRef::from(&tcp);
            let user_timeout = socket.tcp_user_timeout().unwrap().unwrap();
            let idle = socket.tcp_keepalive_time().unwrap();
            let found = (idle.as_secs(), socket.tcp_keepalive_retries().unwrap(), user_timeout.as_secs());
            assert_eq!(found, expected);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
        }
    }
}
