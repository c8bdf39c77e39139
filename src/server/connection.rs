//! One connection: the handler's state of it, TLS, and the choice of the HTTP version.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Instant;

use http::{Request, Response};
use hyper::body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tracing::debug;

use super::prefixed_io::PrefixedIo;
use super::{HEAD_TIMEOUT, http1, http2};
use crate::body::{BoxBody, Incoming};
use crate::clock::{self, Alarm};
use crate::protocol::certificate::CertificateNames;
use crate::tls::{self, Certificates};

/// The other end of a connection.
pub struct Peer {
    /// Address of the client, or of a proxy before it.
    pub address: SocketAddr,
    /// Scheme of the requests: `http`, or `https` over TLS.
    pub scheme: &'static str,
    /// Names in the client's certificate, if it presented one.
    pub certificate: Option<CertificateNames>,
}

/// Handles the requests of a listener.
pub trait Handler: Clone + Send + 'static {
    /// State that the requests of one connection share.
    type Connection: ConnectionState;

    /// Returns the state of a new connection.
    fn connect(&self, peer: Peer) -> Self::Connection;

    /// Handles one request of `connection`.
    fn handle(
        self,
        connection: Arc<Self::Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<BoxBody>> + Send + 'static;
}

/// Closures handle requests without state of a connection.
impl<H, F> Handler for H
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<BoxBody>> + Send + 'static,
{
    type Connection = ();

    fn connect(&self, _: Peer) {}

    fn handle(
        self,
        _: Arc<()>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<BoxBody>> + Send + 'static {
        self(request)
    }
}

/// Handler's state of one connection.
pub trait ConnectionState: Send + Sync + 'static {
    /// Next deadline of the state, or `None` if it has none. Asked after each step of the connection.
    fn next_deadline(&self) -> Option<Instant>;

    /// Called when a deadline has passed.
    fn handle_deadline(&self, now: Instant);

    /// True if another connection has taken over the response that the current task writes. A response that its client does not read is
    /// then ended early.
    fn is_taken_over(&self) -> bool;

    /// Called when an HTTP/1.1 connection has ended without an error.
    fn ended(&self);
}

impl ConnectionState for () {
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_deadline(&self, _: Instant) {}

    fn is_taken_over(&self) -> bool {
        false
    }

    fn ended(&self) {}
}

/// Signal to the connections of a listener.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// No signal yet.
    None,
    /// Ends a connection after its running requests, unless it has had none: the client's first request is then under way.
    Leaving,
    /// Ends every connection after its running requests.
    Stopping,
}

/// An accepted connection before its first request.
pub(super) struct NewConnection<H> {
    pub(super) peer: Peer,
    pub(super) header_bytes: usize,
    pub(super) handler: H,
    pub(super) ending: watch::Receiver<Ending>,
}

impl<H: Handler> NewConnection<H> {
    /// Returns the connection's requests, its deadlines, and the signal to stop.
    pub(super) fn begin(self) -> (Requests<H>, Deadlines<H::Connection>, impl Future<Output = ()>) {
        let Self { peer, handler, mut ending, .. } = self;
        let connection = Arc::new(handler.connect(peer));
        let deadlines = Deadlines { connection: connection.clone(), alarm: Alarm::new() };
        let is_new = Arc::new(AtomicBool::new(true));
        let requests = Requests { handler, connection, is_new: is_new.clone() };
        let stop = async move {
            while ending.changed().await.is_ok() {
                let signal = *ending.borrow_and_update();
                if signal == Ending::Stopping || !is_new.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        (requests, deadlines, stop)
    }

    /// Resolves when a connection without a request must end.
    async fn stopped(&mut self) {
        // A sender that is gone has stopped as well.
        let _ = self.ending.wait_for(|ending| *ending == Ending::Stopping).await;
    }
}

/// Requests of one connection, on their way to the handler.
pub(super) struct Requests<H: Handler> {
    handler: H,
    connection: Arc<H::Connection>,
    is_new: Arc<AtomicBool>,
}

impl<H: Handler> Requests<H> {
    pub(super) fn connection(&self) -> &Arc<H::Connection> {
        &self.connection
    }

    pub(super) fn handle(
        &self,
        request: Request<body::Incoming>,
    ) -> impl Future<Output = Response<BoxBody>> + Send + use<H> {
        self.is_new.store(false, Ordering::Relaxed);
        self.handler.clone().handle(self.connection.clone(), Incoming::of_request(request))
    }
}

/// Deadlines of the handler's state of one connection.
pub(super) struct Deadlines<C> {
    connection: Arc<C>,
    alarm: Alarm,
}

impl<C: ConnectionState> Deadlines<C> {
    pub(super) fn connection(&self) -> &C {
        &self.connection
    }

    /// Handles the deadlines that have passed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        loop {
            self.alarm.set(self.connection.next_deadline());
            if self.alarm.poll(cx).is_pending() {
                return;
            }
            self.connection.handle_deadline(clock::now());
        }
    }
}

/// Serves a TLS connection.
pub(super) async fn serve_tls<Io, H>(io: Io, certificates: Arc<Certificates>, mut new: NewConnection<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let handshake = tokio::time::timeout(HEAD_TIMEOUT, certificates.current().accept(io));
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = new.stopped() => return,
    };
    drop(certificates);
    new.peer.scheme = "https";
    let presented =
        accepted.as_ref().ok().and_then(|accepted| accepted.as_ref().ok()?.get_ref().1.peer_certificates()?.first());
    new.peer.certificate = presented.map(|certificate| CertificateNames::of(certificate));
    match accepted {
        Ok(Ok(io)) if io.get_ref().1.alpn_protocol() == Some(tls::HTTP2) => {
            http2::serve(PrefixedIo::new(io), new).await;
        }
        // A client without ALPN may speak either version.
        Ok(Ok(io)) => serve_plain(io, new).await,
        Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
        Err(_) => debug!("TLS handshake took too long"),
    }
}

/// Serves a connection whose HTTP version its first bytes tell.
pub(super) async fn serve_plain<Io, H>(io: Io, mut new: NewConnection<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let mut io = PrefixedIo::new(io);
    let detected = tokio::select! {
        detected = tokio::time::timeout(HEAD_TIMEOUT, http2::detect(&mut io)) => detected,
        () = new.stopped() => return,
    };
    match detected {
        Ok(Ok(true)) => Box::pin(http2::serve(io, new)).await,
        Ok(Ok(false)) => http1::serve(io, new).await,
        Ok(Err(error)) => debug!(%error, "connection ended"),
        Err(_) => debug!("no request came in time"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::body::whole;

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_preface_is_given_up_after_the_head_timeout() {
        for begun in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            let (mut near, far) = duplex(1024);
            let (_stop, ending) = watch::channel(Ending::None);
            let handler = |_: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            let peer = Peer { address, scheme: "http", certificate: None };
            let new = NewConnection { peer, header_bytes: 65_536, handler, ending };
            let begin = clock::now();
            let serving = tokio::spawn(serve_plain(far, new));
            near.write_all(begun).await.expect("room");
            let mut received = Vec::new();
            near.read_to_end(&mut received).await.expect("a pipe");
            serving.await.expect("no panic");
            let took = clock::now() - begin;
            assert!(received.is_empty());
            assert!(took >= HEAD_TIMEOUT && took < HEAD_TIMEOUT + Duration::from_secs(1), "{took:?}");
        }
    }
}
