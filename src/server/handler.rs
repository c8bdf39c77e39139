//! Interface between the server and a role: handlers of requests, and their state of one
//! connection.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body;
use tokio::sync::watch;

use crate::body::{BoxBody, Incoming};
use mcp_resume_base::clock::{self, Alarm};
use mcp_resume_protocol::certificate::CertificateNames;

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
    /// Next deadline of the state, or `None` if it has none. Called after each step of the
    /// connection.
    fn next_deadline(&self) -> Option<Instant>;

    /// Called when a deadline has passed.
    fn handle_deadline(&self, now: Instant);

    /// True if another connection has taken over the response that the current task writes. A
    /// response that its client does not read is then ended early.
    fn is_taken_over(&self) -> bool;

    /// Called when an HTTP/1.1 connection has ended without an error.
    fn ended(&self, by: ClosedBy);
}

/// Side that closed an HTTP/1.1 connection, after an end without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedBy {
    /// The client, after the socket had taken all that was written.
    Client,
    /// The server.
    Server,
}

impl ConnectionState for () {
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_deadline(&self, _: Instant) {}

    fn is_taken_over(&self) -> bool {
        false
    }

    fn ended(&self, _: ClosedBy) {}
}

/// Signal to the connections of a listener.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StopSignal {
    /// No signal yet.
    None,
    /// Ends a connection after its running requests, unless it has had none: the client's first
    /// request is then under way.
    Leaving,
    /// Ends every connection after its running requests.
    Stopping,
}

/// An accepted connection before its first request.
pub(super) struct NewConnection<H> {
    pub(super) peer: Peer,
    pub(super) header_bytes: usize,
    /// Time after which the connection is closed if it has no request.
    pub(super) idle: Duration,
    pub(super) handler: H,
    pub(super) ending: watch::Receiver<StopSignal>,
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
                if signal == StopSignal::Stopping || !is_new.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        (requests, deadlines, stop)
    }

    /// Resolves when a connection without a request must end.
    pub(super) async fn stopped(&mut self) {
        // A sender that is gone has stopped as well.
        let _ = self.ending.wait_for(|ending| *ending == StopSignal::Stopping).await;
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
