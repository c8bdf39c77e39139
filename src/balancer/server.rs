//! Connections of clients: accepted here, served by Pingora.
//!
//! Pingora's own server would take over the process, so this module has the accept loop and TLS.
//! Each request is run so that it can be cut ([`super::in_flight`]). Absent: the handling of a
//! request ([`super::proxy`]), and the buffer between Pingora and a socket
//! ([`super::write_buffer`]).

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::socket;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::l4::virt::VirtualSocketStream;
use pingora_core::protocols::{GetSocketDigest, SocketDigest, Stream};
use pingora_core::server::ShutdownWatch;
use pingora_proxy::HttpProxy;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::in_flight::unless_cut;
use super::metrics::Metrics;
use super::proxy::Phases;
use super::proxy_protocol;
use super::write_buffer::WriteBuffer;
use mcp_resume_protocol::client_address::Trust;
use mcp_resume_server::{Accept, ConnectionLimit};
use mcp_resume_tls::Certificates;

/// Longest TLS handshake with a client.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// Pingora's proxy. Each of its requests can be cut.
pub struct App {
    proxy: Arc<HttpProxy<Phases>>,
    options: HttpServerOptions,
    metrics: Arc<Metrics>,
}

impl App {
    /// Wraps `proxy`.
    pub fn new(proxy: HttpProxy<Phases>, metrics: Arc<Metrics>) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        Self { proxy: Arc::new(proxy), options, metrics }
    }
}

#[async_trait]
impl HttpServerApp for App {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        unless_cut(self.proxy.process_new_http(session, shutdown), &self.metrics).await.flatten()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }

    async fn http_cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}

/// A worker: everything that its connections are served with.
#[derive(Clone)]
pub struct Worker {
    /// The proxy.
    pub app: Arc<App>,
    /// Certificates of the listener, or `None` without TLS.
    pub certificates: Option<Arc<Certificates>>,
    /// Peers whose PROXY header is read, or `None` if connections have none.
    pub proxy_protocol_from: Option<Trust>,
    /// Limit of the open connections.
    pub limit: ConnectionLimit,
    /// Tracker of all connections.
    pub connections: TaskTracker,
    /// True once the balancer stops.
    pub stopping: ShutdownWatch,
    /// Metrics of the balancer.
    pub metrics: Arc<Metrics>,
}

impl Worker {
    /// Serves the connections of `incoming` until dropped; connections already accepted continue.
    pub async fn serve(self, mut incoming: impl Accept<Io = TcpStream>) {
        loop {
            let Ok((io, peer)) = incoming.accept().await else { continue };
            let Some(permit) = self.limit.try_acquire() else {
                self.metrics.observe_refused_connection();
                continue;
            };
            let worker = self.clone();
            self.connections.spawn(async move {
                worker.metrics.observe_connection(1);
                worker.serve_connection(io, peer).await;
                worker.metrics.observe_connection(-1);
                drop(permit);
            });
        }
    }

    async fn serve_connection(&self, mut io: TcpStream, peer: SocketAddr) {
        let client = match &self.proxy_protocol_from {
            Some(trust) => match proxy_protocol::read(trust, &mut io, peer).await {
                Ok(client) => client,
                Err(error) => return debug!(%error, "a connection has no valid PROXY header"),
            },
            None => peer,
        };
        let Some(stream) = self.open_stream(io, client).await else { return };
        let mut next = Some(stream);
        while let Some(stream) = next {
            next = self.app.process_new(stream, &self.stopping).await;
        }
    }

    async fn open_stream(&self, io: TcpStream, client: SocketAddr) -> Option<Stream> {
        let digest = SocketDigest::from_raw_fd(io.as_raw_fd());
        let _ = digest.peer_addr.set(Some(socket::SocketAddr::Inet(client)));
        let mut stream = L4Stream::from(VirtualSocketStream::new(Box::new(WriteBuffer::new(io))));
        stream.set_socket_digest(digest);
        let Some(certificates) = &self.certificates else { return Some(Box::new(stream)) };
        let acceptor = Acceptor::from_server_config(certificates.current().config().clone());
        match tokio::time::timeout(HANDSHAKE, acceptor.tls_handshake(stream)).await {
            Ok(Ok(stream)) => Some(Box::new(stream)),
            Ok(Err(error)) => {
                debug!(%error, "TLS handshake failed");
                None
            }
            Err(_) => None,
        }
    }
}
