//! What a sidecar that was started does beside serving, and how it ends.
//!
//! Of no type that says until when it runs or who asked for it: each caller would be compiled with all of it.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::Metrics;
use crate::admin::Admin;
use crate::body::Incoming;
use crate::config::Config;
use crate::ingress::Ingress;
use crate::server::listener::stopped;
use crate::server::{self, ConnectionLimit, ListenerConfig, Protocols};
use crate::tls::Certificates;
use crate::tls::reload::{Reading, reading, renew};

/// After the drain, connections get so long to end.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The least and the most connections of the admin listener: probes and a few collectors.
const ADMIN_CONNECTIONS: (usize, usize) = (16, 256);

/// Connections of the admin listener: a quarter as many as there may be of clients, so that they fit in the reserve of descriptors.
pub(super) fn admin_connections(config: &Config) -> usize {
    let (least, most) = ADMIN_CONNECTIONS;
    (config.limits.connections / 4).clamp(least, most)
}

/// Connections that there may be beside those of clients with a place: of clients that are refused, and of the listeners for probes and
/// metrics.
pub fn connections_beside(config: &Config) -> usize {
    let clients = config.limits.connections;
    let listeners = [config.admin.address, config.admin.metrics_address].into_iter().flatten().count();
    ConnectionLimit::with_refusals(clients) - clients
        + listeners * ConnectionLimit::with_refusals(admin_connections(config))
}

/// What a sidecar has beside its data listener.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) admin: Option<(TcpListener, SocketAddr)>,
    /// For metrics alone.
    pub(super) monitored: Option<(TcpListener, SocketAddr)>,
    pub(super) certificates: Option<Arc<Certificates>>,
}

/// A sidecar that serves.
pub(super) struct Running {
    ingress: Arc<Ingress>,
    /// Tells the listeners to stop.
    stop: watch::Sender<bool>,
    /// Nothing is sent: it closes when the data listener and its connections have ended.
    ended: mpsc::Receiver<()>,
    /// What goes on beside the data listener; it ends with this.
    _beside: JoinSet<()>,
}

impl Running {
    /// Begins what goes on beside the data listener, which was told of `stop` and closes `ended`.
    pub(super) fn attend(
        ingress: Arc<Ingress>,
        metrics: Metrics,
        with: Beside,
        stop: watch::Sender<bool>,
        ended: mpsc::Receiver<()>,
    ) -> Self {
        let Beside { admin, monitored, certificates } = with;
        let mut beside = JoinSet::new();
        let files = certificates.into_iter().map(reading).chain(ingress.upstream.tls_files().cloned().map(reading));
        let files: Vec<Reading> = files.collect();
        if !files.is_empty() {
            let metrics = metrics.tls.clone();
            beside.spawn(renew(files, move |side, reload| metrics.observe_reload(side, reload)));
        }
        let log = ingress.log.clone();
        beside.spawn(async move {
            tokio::join!(log.sweep(), log.keep_open(), log.keep_runs());
        });
        if let Some(replicas) = ingress.replicas.clone() {
            let ingress = ingress.clone();
            beside.spawn(async move { replicas.run(move |handed| ingress.clone().handle_forwarded(handed)).await });
        }
        for (listener, is_for_metrics) in [(admin, false), (monitored, true)] {
            if let Some((listener, _)) = listener {
                beside.spawn(run_admin(
                    listener,
                    is_for_metrics,
                    ingress.clone(),
                    metrics.clone(),
                    stopped(&stop.subscribe()),
                ));
            }
        }
        Self { ingress, stop, ended, _beside: beside }
    }

    /// Drains, accepts nothing more, and gives what still runs a while to end.
    pub(super) async fn end(mut self) {
        let drain = &self.ingress.drain;
        drain.run().await;
        // What never ends by itself.
        drain.end().await;
        info!("stopping");
        let _ = self.stop.send(true);
        if tokio::time::timeout(STOP_GRACE, self.ended.recv()).await.is_err() {
            warn!("stopped while responses were still running");
        }
        // Whatever is dropped from here on: what the store has of calls outlives this process.
        self.ingress.log.leave_runs();
        if let Some(replicas) = &self.ingress.replicas {
            replicas.leave().await;
        }
    }
}

async fn run_admin(
    listener: TcpListener,
    is_for_metrics: bool,
    ingress: Arc<Ingress>,
    metrics: Metrics,
    stopped: impl Future<Output = ()>,
) {
    let header_bytes = ingress.config.limits.header_bytes;
    let limit = ConnectionLimit::new(admin_connections(&ingress.config));
    let config = ListenerConfig {
        protocols: Protocols::Http1,
        header_bytes,
        limit,
        metrics: Some(metrics.ingress.server.clone()),
    };
    let admin = Arc::new(Admin {
        metrics: metrics.admin,
        upstream: ingress.upstream.clone(),
        log: ingress.log.clone(),
        replicas: ingress.replicas.clone(),
        drain: ingress.drain.clone(),
        hosts: ingress.config.admin.allowed_hosts.clone(),
        is_for_metrics,
    });
    let handler = move |request: Request<Incoming>| admin.clone().handle(request);
    server::serve(listener, config, handler, pending(), stopped).await;
}
