//! The accept loop. Generic over the transport, so that the same code serves TCP, pipes and simulated networks.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use http::{Request, Response};
use hyper::body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::connection::{Connection, Settling, watched};
use super::connection_limit::{Seats, refuse};
use super::http2;
use super::stall::Stall;
use crate::body::{BoxBody, Incoming};
use crate::clock;
use crate::metrics::Metrics;
use crate::protocol::certificate::CertificateNames;
use crate::protocol::client::Trust;
use crate::protocol::error::ErrorCode;
use crate::tls::{self, Certificates};

/// A client that takes longer to send its next head has its connection closed.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A peer that acknowledges nothing for this long is gone. Linux counts a peer that acknowledges with a closed window as well, so this is
/// longer than [`SEND_TIMEOUT`](super::stall::SEND_TIMEOUT), which ends that one.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(65);
/// After so much silence the kernel asks a peer whether it is there: one that waits for its response to begin is sent nothing
/// else, and would be taken for present for ever.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The questions are so far apart. Several fit in [`USER_TIMEOUT`]: one that is lost ends no connection.
#[cfg(target_os = "linux")]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
#[cfg(target_os = "linux")]
const KEEPALIVE_RETRIES: u32 = 10;

/// Where connections come from.
pub trait Accept: Send + 'static {
    /// One connection.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one. Cancel safe.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Io, SocketAddr)>> + Send;
}

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        find_dead_peers(&stream)?;
        Ok((stream, peer))
    }
}

fn find_dead_peers(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    #[cfg(target_os = "linux")]
    let keepalive = keepalive.with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

pub(super) async fn pause_after(error: &io::Error) {
    warn!(%error, "a connection could not be accepted");
    clock::sleep(ACCEPT_PAUSE).await;
}

/// What one listener speaks, and how far it listens.
#[derive(Clone)]
pub struct Limits {
    /// What clients may speak.
    pub protocols: Protocols,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Its connections.
    pub seats: Arc<Seats>,
    /// The proxies in front of it.
    pub trust: Trust,
}

/// What clients may speak on a listener.
#[derive(Clone)]
pub enum Protocols {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/1.1, or HTTP/2 by prior knowledge.
    Plain,
    /// Both, inside TLS.
    Tls(Arc<Certificates>),
}

impl Protocols {
    /// Whether a client understands words that come before a handshake.
    fn are_plain(&self) -> bool {
        match self {
            Protocols::Http1 | Protocols::Plain => true,
            Protocols::Tls(_) => false,
        }
    }
}

/// What the connections of a listener are told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing yet.
    None,
    /// To end after what is being answered, unless nothing was: the client's first request is then on its way.
    Leaving,
    /// To end after what is being answered.
    Stopping,
}

/// Serves every connection with `handle` until `shutdown`; then accepts no more and waits until the open ones have ended. At
/// `leaving` those on which something was asked end after its answer; new ones are accepted as before.
pub async fn serve<A, H, F>(
    mut listener: A,
    limits: Limits,
    metrics: Arc<Metrics>,
    handle: H,
    leaving: impl Future<Output = ()>,
    shutdown: impl Future<Output = ()>,
) where
    A: Accept,
    H: Handle<F>,
    F: Future<Output = Response<BoxBody>> + Send + 'static,
{
    // Every connection holds a receiver: when the last is gone, all have ended.
    let (stop, mut stopping) = watch::channel(Ending::None);
    let (mut leaving, mut shutdown) = (pin!(leaving), pin!(shutdown));
    let mut has_left = false;
    loop {
        let accepted = tokio::select! {
            // The order is fixed, so that a simulated run is the same each time.
            biased;
            () = &mut shutdown => break,
            () = &mut leaving, if !has_left => {
                has_left = true;
                let _ = stop.send(Ending::Leaving);
                // The word is not for those that come from now on.
                stopping.borrow_and_update();
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((io, peer)) => {
                // Before any handshake: one more must not cost one.
                let Some(seat) = limits.seats.take() else {
                    metrics.observe_reject(ErrorCode::TooManyConnections);
                    if let Some(seat) = limits.seats.take_refused().filter(|_| limits.protocols.are_plain()) {
                        tokio::spawn(refuse(io, seat));
                    }
                    continue;
                };
                let (metrics, handle) = (metrics.clone(), handle.clone());
                let header_bytes = limits.header_bytes;
                let (trust, stopping) = (limits.trust.clone(), stopping.clone());
                let visit = Visit { peer, scheme: "http", certificate: None, trust, header_bytes, handle, stopping };
                let protocols = limits.protocols.clone();
                tokio::spawn(async move {
                    metrics.observe_connection();
                    match protocols {
                        Protocols::Http1 => serve_http1(io, BytesMut::new(), visit).await,
                        Protocols::Plain => serve_plain(io, visit).await,
                        // Boxed, as all that a plain HTTP/1.1 connection need not have room for.
                        Protocols::Tls(certificates) => Box::pin(serve_tls(io, certificates, visit)).await,
                    }
                    metrics.observe_connection_end();
                    drop(seat);
                });
            }
            Err(error) => pause_after(&error).await,
        }
    }
    drop(listener);
    drop(stopping);
    let _ = stop.send(Ending::Stopping);
    stop.closed().await;
}

/// What answers requests.
pub trait Handle<F>: Fn(Arc<Connection>, Request<Incoming>) -> F + Clone + Send + 'static {}

impl<F, H: Fn(Arc<Connection>, Request<Incoming>) -> F + Clone + Send + 'static> Handle<F> for H {}

/// One connection, whatever it speaks.
pub(super) struct Visit<H> {
    pub(super) peer: SocketAddr,
    pub(super) scheme: &'static str,
    pub(super) certificate: Option<CertificateNames>,
    pub(super) trust: Trust,
    pub(super) header_bytes: usize,
    pub(super) handle: H,
    pub(super) stopping: watch::Receiver<Ending>,
}

impl<H> Visit<H> {
    /// Begins to serve: what answers the connection's requests, what confirms its responses, and the word to stop.
    pub(super) fn begin<F>(self) -> (impl Fn(Request<body::Incoming>) -> F, Settling, impl Future<Output = ()>)
    where
        H: Handle<F>,
    {
        let Self { peer, scheme, certificate, trust, handle, mut stopping, .. } = self;
        let connection = Arc::new(Connection::new(peer, scheme, certificate, trust));
        let settling = Settling::new(connection.receipts().clone());
        let is_new = Arc::new(AtomicBool::new(true));
        let was_new = is_new.clone();
        let answer = move |request| {
            is_new.store(false, Ordering::Relaxed);
            handle(connection.clone(), Incoming::of_request(request))
        };
        let told = async move {
            while stopping.changed().await.is_ok() {
                let ending = *stopping.borrow_and_update();
                if ending == Ending::Stopping || !was_new.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        (answer, settling, told)
    }

    /// Resolves when a connection on which nothing was asked is to end.
    async fn stopped(&mut self) {
        drop(self.stopping.wait_for(|ending| *ending == Ending::Stopping).await);
    }
}

async fn serve_tls<Io, H, F>(io: Io, certificates: Arc<Certificates>, mut visit: Visit<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handle<F>,
    F: Future<Output = Response<BoxBody>> + Send + 'static,
{
    let shaking = tokio::time::timeout(HEAD_TIMEOUT, certificates.current().accept(io));
    let shaken = tokio::select! {
        shaken = shaking => shaken,
        () = visit.stopped() => return,
    };
    drop(certificates);
    visit.scheme = "https";
    let shown = shaken.as_ref().ok().and_then(|shaken| shaken.as_ref().ok()?.get_ref().1.peer_certificates()?.first());
    visit.certificate = shown.map(|certificate| CertificateNames::of(certificate));
    match shaken {
        Ok(Ok(io)) if io.get_ref().1.alpn_protocol() == Some(tls::HTTP2) => {
            http2::serve(io, BytesMut::new(), visit).await;
        }
        // Whoever did not say what it speaks shows it.
        Ok(Ok(io)) => serve_plain(io, visit).await,
        Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
        Err(_) => debug!("TLS handshake took too long"),
    }
}

async fn serve_plain<Io, H, F>(mut io: Io, mut visit: Visit<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handle<F>,
    F: Future<Output = Response<BoxBody>> + Send + 'static,
{
    let sniffed = tokio::select! {
        sniffed = tokio::time::timeout(HEAD_TIMEOUT, http2::sniff(&mut io)) => sniffed,
        () = visit.stopped() => return,
    };
    match sniffed {
        Ok(Ok((ahead, true))) => Box::pin(http2::serve(io, ahead, visit)).await,
        Ok(Ok((ahead, false))) => serve_http1(io, ahead, visit).await,
        Ok(Err(error)) => debug!(%error, "connection ended"),
        Err(_) => debug!("no request came in time"),
    }
}

async fn serve_http1<Io, H, F>(io: Io, ahead: BytesMut, visit: Visit<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handle<F>,
    F: Future<Output = Response<BoxBody>> + Send + 'static,
{
    let header_bytes = visit.header_bytes;
    let (answer, mut settling, stop) = visit.begin();
    let mut stall = Stall::new(settling.receipts().clone());
    let (socket, watch) = watched(io, ahead);
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut hyper = pin!(
        http1::Builder::new()
            // It would take a buffer for each open response, only to see its client leave. The watch sees that without one.
            .half_close(true)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(header_bytes)
            .serve_connection(TokioIo::new(socket), service)
    );
    let mut stop = pin!(stop);
    let (mut is_stopping, mut is_stalled) = (false, false);
    let ended = poll_fn(|cx| {
        if !is_stopping && stop.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            hyper.as_mut().graceful_shutdown();
        }
        watch.before_hyper();
        if let Poll::Ready(ended) = Pin::new(&mut hyper).poll(cx) {
            return Poll::Ready(ended);
        }
        settling.poll(cx);
        if stall.poll(cx, watch.blocked_since()).is_ready() {
            info!("a connection ends whose client takes nothing");
            is_stalled = true;
            return Poll::Ready(Ok(()));
        }
        watch.poll_left(cx).map(Ok)
    })
    .await;
    match ended {
        Ok(()) if !is_stalled && !watch.is_broken() => settling.end(),
        Ok(()) => {}
        Err(error) => debug!(%error, "connection ended"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc;

    use super::*;
    use crate::body::whole;

    /// One connection, and then none.
    struct Once(Option<DuplexStream>);

    impl Accept for Once {
        type Io = DuplexStream;

        async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
            match self.0.take() {
                Some(io) => Ok((io, SocketAddr::from(([127, 0, 0, 1], 1)))),
                None => pending().await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_is_not_complete_in_time_closes_the_connection() {
        let (mut client, server) = tokio::io::duplex(1024);
        let metrics = Arc::new(Metrics::new().unwrap());
        let handle = |_: Arc<Connection>, _: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
        let limits =
            Limits { protocols: Protocols::Plain, header_bytes: 8192, seats: Seats::new(1), trust: Trust::default() };
        tokio::spawn(serve(Once(Some(server)), limits, metrics, handle, pending(), pending()));
        client.write_all(b"GET /mcp HTTP/1.1\r\nHost: a\r\n").await.unwrap();
        let began = clock::now();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!((answer, clock::now() - began), (Vec::new(), HEAD_TIMEOUT));
    }

    /// Each connection that is sent.
    struct Sent(mpsc::Receiver<DuplexStream>);

    impl Accept for Sent {
        type Io = DuplexStream;

        async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
            match self.0.recv().await {
                Some(io) => Ok((io, SocketAddr::from(([127, 0, 0, 1], 1)))),
                None => pending().await,
            }
        }
    }

    /// Asks, and reads the head of the answer.
    async fn asked(client: &mut DuplexStream) -> String {
        client.write_all(b"GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("room");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.expect("an answer"));
        }
        String::from_utf8(head).expect("ASCII")
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_ends_idle_connections_and_serves_those_that_come_then() {
        let (send, connections) = mpsc::channel(1);
        let (leave, leaving) = tokio::sync::oneshot::channel::<()>();
        let handle = |_: Arc<Connection>, _: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
        let limits =
            Limits { protocols: Protocols::Plain, header_bytes: 8192, seats: Seats::new(3), trust: Trust::default() };
        let metrics = Arc::new(Metrics::new().expect("metrics"));
        let leaving = async move { drop(leaving.await) };
        tokio::spawn(serve(Sent(connections), limits, metrics, handle, leaving, pending()));
        let (mut early, far) = duplex(1024);
        send.send(far).await.expect("it accepts");
        // Asked twice: the connection is one that stays.
        for _ in 0..2 {
            assert!(asked(&mut early).await.starts_with("HTTP/1.1 200"));
        }
        let (mut silent, far) = duplex(1024);
        send.send(far).await.expect("it accepts");
        leave.send(()).expect("it waits for that");
        assert_eq!(early.read(&mut [0]).await.expect("a pipe"), 0, "it ends");
        assert!(asked(&mut silent).await.starts_with("HTTP/1.1 200"), "its first request was on its way");
        let (mut late, far) = duplex(1024);
        send.send(far).await.expect("it accepts");
        for _ in 0..2 {
            assert!(asked(&mut late).await.starts_with("HTTP/1.1 200"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_preface_that_does_not_go_on_is_waited_for_no_longer_than_a_head() {
        for begun in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            let (mut near, far) = duplex(1024);
            let (_stop, stopping) = watch::channel(Ending::None);
            let handle = |_: Arc<Connection>, _: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
            let peer = SocketAddr::from(([127, 0, 0, 1], 1));
            let visit = Visit {
                peer,
                scheme: "http",
                certificate: None,
                trust: Trust::default(),
                header_bytes: 65_536,
                handle,
                stopping,
            };
            let begin = clock::now();
            let serving = tokio::spawn(serve_plain(far, visit));
            near.write_all(begun).await.expect("room");
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.expect("a pipe");
            serving.await.expect("no panic");
            let took = clock::now() - begin;
            assert!(answer.is_empty());
            assert!(took >= HEAD_TIMEOUT && took < HEAD_TIMEOUT + Duration::from_secs(1), "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_has_its_connection_ended() {
        const ROOM: usize = 1024;
        let (mut client, server) = tokio::io::duplex(ROOM);
        let metrics = Arc::new(Metrics::new().expect("metrics"));
        let handle =
            |_: Arc<Connection>, _: Request<Incoming>| async { Response::new(whole(Bytes::from(vec![b'x'; 100_000]))) };
        let limits =
            Limits { protocols: Protocols::Plain, header_bytes: 8192, seats: Seats::new(1), trust: Trust::default() };
        tokio::spawn(serve(Once(Some(server)), limits, metrics, handle, pending(), pending()));
        client.write_all(b"GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("room");
        // Slow is not nothing.
        let mut some = [0; ROOM];
        for _ in 0..10 {
            clock::sleep(Duration::from_secs(59)).await;
            client.read_exact(&mut some).await.expect("the answer goes on");
        }
        clock::sleep(Duration::from_secs(61)).await;
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("a pipe");
        assert!(rest.len() <= ROOM, "{} bytes", rest.len());
    }

    #[tokio::test]
    async fn the_kernel_looks_for_peers_that_vanished() {
        let mut listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let _client = TcpStream::connect(addr).await.expect("a connection");
        let (accepted, _) = Accept::accept(&mut listener).await.expect("accepted");
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().expect("an option"));
        #[cfg(target_os = "linux")]
        {
            let patience = KEEPALIVE + KEEPALIVE_INTERVAL * KEEPALIVE_RETRIES;
            assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE);
            assert_eq!(socket.tcp_keepalive_interval().expect("an option"), KEEPALIVE_INTERVAL);
            assert_eq!(socket.tcp_keepalive_retries().expect("an option"), KEEPALIVE_RETRIES);
            assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(patience));
        }
    }
}
