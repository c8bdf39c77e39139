//! Accept loop of a listener. It is generic over the transport, so that the same code serves TCP,
//! pipes and simulated networks.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::warn;

use super::connection::{serve_plain, serve_tls};
use super::connection_limit::{ConnectionLimit, refuse};
use super::handler::{Handler, NewConnection, Peer, StopSignal};
use super::http1;
use super::listener::BACKLOG;
use super::metrics::Metrics;
use super::prefixed_io::PrefixedIo;
use mcp_resume_base::clock;
use mcp_resume_protocol::error::ErrorCode;
use mcp_resume_tls::Certificates;

/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest time that a peer may acknowledge nothing; it is then gone. Linux counts a peer that
/// acknowledges with a closed window as well. So this is longer than
/// [`SEND_TIMEOUT`](super::SEND_TIMEOUT), which ends the response to such a peer.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(65);
/// Silence before the kernel probes a peer. A client that waits for its response to begin is sent
/// nothing else, and would count as present for ever.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Interval of the probes. Several fit in [`USER_TIMEOUT`]: a lost one ends no connection.
#[cfg(target_os = "linux")]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
#[cfg(target_os = "linux")]
const KEEPALIVE_RETRIES: u32 = 10;

/// Source of connections.
pub trait Accept: Send + 'static {
    /// Transport of a connection.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Returns the next connection. Cancel safe.
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

/// Configuration of a listener.
#[derive(Clone)]
pub struct ListenerConfig {
    /// Protocols that clients may speak.
    pub protocols: Protocols,
    /// Limit of the bytes of a request's head.
    pub header_bytes: usize,
    /// Time after which a connection without a request is closed.
    pub idle: Duration,
    /// Limit of the open connections.
    pub limit: ConnectionLimit,
    /// Metrics that count the connections, or `None` if they are not counted.
    pub metrics: Option<Arc<Metrics>>,
}

/// Protocols that clients may speak on a listener.
#[derive(Clone)]
pub enum Protocols {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/1.1, or HTTP/2 by prior knowledge.
    Plain,
    /// HTTP/1.1 or HTTP/2 over TLS.
    Tls(Arc<Certificates>),
}

impl Protocols {
    /// True if a client understands a response before any handshake.
    fn are_plain(&self) -> bool {
        match self {
            Protocols::Http1 | Protocols::Plain => true,
            Protocols::Tls(_) => false,
        }
    }
}

/// Serves every connection with `handler` until `shutdown`, then accepts the connections that still
/// wait in the backlog, and waits until all have ended. At `leaving` it ends, after their running
/// requests, the connections that have had one. Connections are accepted as before. A request that
/// has arrived is served before its connection ends.
pub async fn serve<A: Accept, H: Handler>(
    mut listener: A,
    config: ListenerConfig,
    handler: H,
    leaving: impl Future<Output = ()>,
    shutdown: impl Future<Output = ()>,
) {
    // Every connection holds a receiver: when the last is gone, all have ended.
    let (end, mut ending) = watch::channel(StopSignal::None);
    let (mut leaving, mut shutdown) = (pin!(leaving), pin!(shutdown));
    let mut has_left = false;
    loop {
        let accepted = tokio::select! {
            // The order is fixed, so that a simulated run is the same each time.
            biased;
            () = &mut shutdown => break,
            () = &mut leaving, if !has_left => {
                has_left = true;
                let _ = end.send(StopSignal::Leaving);
                // The signal does not concern later connections.
                ending.borrow_and_update();
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((io, address)) => accept(io, address, &config, &handler, &ending),
            Err(error) => pause_after(&error).await,
        }
    }
    for _ in 0..BACKLOG {
        let Some((io, address)) = next_waiting(&mut listener).await else { break };
        accept(io, address, &config, &handler, &ending);
    }
    drop(listener);
    drop(ending);
    let _ = end.send(StopSignal::Stopping);
    end.closed().await;
}

/// Returns a connection that waits to be accepted, or `None` without one. The close of a listener
/// resets the connections in its backlog, with the requests on them.
pub(super) async fn next_waiting<A: Accept>(listener: &mut A) -> Option<(A::Io, SocketAddr)> {
    // The runtime notices such connections, and permits further ones, when this task yields.
    tokio::task::yield_now().await;
    match poll_fn(|cx| Poll::Ready(pin!(listener.accept()).poll(cx))).await {
        Poll::Ready(Ok(accepted)) => Some(accepted),
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}

/// Serves one accepted connection in a task of its own, or refuses it.
fn accept<Io, H>(
    io: Io,
    address: SocketAddr,
    config: &ListenerConfig,
    handler: &H,
    ending: &watch::Receiver<StopSignal>,
) where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let ListenerConfig { protocols, header_bytes, idle, limit, metrics } = config;
    // Before any handshake, so that a refusal costs none.
    let Some(permit) = limit.try_acquire() else {
        if let Some(metrics) = metrics {
            metrics.errors.observe_reject(ErrorCode::TooManyConnections);
        }
        if let Some(permit) = limit.try_acquire_refusal()
            && protocols.are_plain()
        {
            tokio::spawn(refuse(io, permit));
        }
        return;
    };
    let peer = Peer { address, scheme: "http", certificate: None };
    let (header_bytes, idle, handler, ending) = (*header_bytes, *idle, handler.clone(), ending.clone());
    let new = NewConnection { peer, header_bytes, idle, handler, ending };
    let (protocols, metrics) = (protocols.clone(), metrics.clone());
    tokio::spawn(async move {
        if let Some(metrics) = &metrics {
            metrics.observe_connection();
        }
        match protocols {
            Protocols::Http1 => http1::serve(PrefixedIo::new(io), new).await,
            Protocols::Plain => serve_plain(io, new).await,
            // Boxed, so that a plain HTTP/1.1 connection reserves no room for it.
            Protocols::Tls(certificates) => Box::pin(serve_tls(io, certificates, new)).await,
        }
        if let Some(metrics) = &metrics {
            metrics.observe_connection_end();
        }
        drop(permit);
    });
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bytes::Bytes;
    use http::{Request, Response};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc;

    use super::*;
    use crate::HEAD_TIMEOUT;
    use crate::body::{Incoming, whole};

    fn config(connections: usize) -> ListenerConfig {
        let limit = ConnectionLimit::new(connections);
        ListenerConfig { protocols: Protocols::Plain, header_bytes: 8192, idle: HEAD_TIMEOUT, limit, metrics: None }
    }

    /// Source of one connection.
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
        let handler = |_: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
        let config = config(1);
        tokio::spawn(serve(Once(Some(server)), config, handler, pending(), pending()));
        client.write_all(b"GET /mcp HTTP/1.1\r\nHost: a\r\n").await.unwrap();
        let began = clock::now();
        let mut response = Vec::new();
        client.read_to_end(&mut response).await.unwrap();
        assert_eq!((response, clock::now() - began), (Vec::new(), HEAD_TIMEOUT));
    }

    /// Source of the connections that a test sends.
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

    /// Sends a request, and returns the head of its response.
    async fn asked(client: &mut DuplexStream) -> String {
        ask(client).await;
        head(client).await
    }

    async fn ask(client: &mut DuplexStream) {
        client.write_all(b"GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("room");
    }

    async fn head(client: &mut DuplexStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.expect("a response"));
        }
        String::from_utf8(head).expect("ASCII")
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_ends_idle_connections_and_serves_later_ones() {
        let (send, connections) = mpsc::channel(1);
        let (leave, leaving) = tokio::sync::oneshot::channel::<()>();
        let handler = |_: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
        let config = config(3);
        let leaving = async move {
            let _ = leaving.await;
        };
        tokio::spawn(serve(Sent(connections), config, handler, leaving, pending()));
        let (mut early, far) = duplex(1024);
        send.send(far).await.expect("it accepts");
        // Two requests, so that the connection is a kept one.
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
    async fn connections_that_wait_to_be_accepted_are_served_before_the_end() {
        let (send, connections) = mpsc::channel(2);
        let handler = |_: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
        let mut clients = Vec::new();
        for _ in 0..2 {
            let (mut client, far) = duplex(1024);
            ask(&mut client).await;
            send.send(far).await.expect("room");
            clients.push(client);
        }
        let serving = tokio::spawn(serve(Sent(connections), config(2), handler, pending(), async {}));
        for client in &mut clients {
            assert!(head(client).await.starts_with("HTTP/1.1 200"));
            assert_eq!(client.read(&mut [0]).await.expect("a pipe"), 0, "it ends");
        }
        serving.await.expect("it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_has_its_connection_ended() {
        const ROOM: usize = 1024;
        let (mut client, server) = tokio::io::duplex(ROOM);
        let handler = |_: Request<Incoming>| async { Response::new(whole(Bytes::from(vec![b'x'; 100_000]))) };
        let config = config(1);
        tokio::spawn(serve(Once(Some(server)), config, handler, pending(), pending()));
        client.write_all(b"GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("room");
        // A slow client takes something.
        let mut some = [0; ROOM];
        for _ in 0..10 {
            clock::sleep(Duration::from_secs(59)).await;
            client.read_exact(&mut some).await.expect("the response goes on");
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
            let detection_time = KEEPALIVE + KEEPALIVE_INTERVAL * KEEPALIVE_RETRIES;
            assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE);
            assert_eq!(socket.tcp_keepalive_interval().expect("an option"), KEEPALIVE_INTERVAL);
            assert_eq!(socket.tcp_keepalive_retries().expect("an option"), KEEPALIVE_RETRIES);
            assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(detection_time));
        }
    }
}
