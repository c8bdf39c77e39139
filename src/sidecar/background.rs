//! Background tasks of a running sidecar, and its end.
//!
//! No type here is generic over the listener or the shutdown signal, so that the tasks are compiled
//! once.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::listeners::BoundListener;
use super::metrics::Metrics;
use crate::admin::Admin;
use crate::body::Incoming;
use crate::config::Config;
use crate::ingress::{self, Components};
use crate::server::listener::stopped;
use crate::server::{self, ConnectionLimit, ListenerConfig, Protocols};
use crate::tls::Certificates;
use crate::tls::reload_task::{self, Reloader};

/// Time that connections get to end after the drain.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Least and largest number of connections of the admin listener: probes and a few collectors.
const ADMIN_CONNECTIONS: (usize, usize) = (16, 256);

/// Returns the connection limit of the admin listener: a quarter of that for clients, so that the
/// reserve of descriptors covers it.
pub(super) fn admin_connections(config: &Config) -> usize {
    let (least, most) = ADMIN_CONNECTIONS;
    (config.limits.connections / 4).clamp(least, most)
}

/// Returns the largest number of connections that are not of admitted clients: of refused clients,
/// probes and collectors of metrics.
pub fn connections_beside(config: &Config) -> usize {
    let clients = config.limits.connections;
    let listeners = [config.admin.address, config.admin.metrics_address].into_iter().flatten().count();
    ConnectionLimit::with_refusals(clients) - clients
        + listeners * ConnectionLimit::with_refusals(admin_connections(config))
}

/// Listeners and certificates for the background tasks.
#[derive(Default)]
pub(super) struct Auxiliary {
    pub(super) admin: Option<BoundListener>,
    /// Listener for metrics alone.
    pub(super) metrics: Option<BoundListener>,
    /// Certificates of the data listener.
    pub(super) certificates: Option<Arc<Certificates>>,
}

/// A running sidecar.
pub(super) struct Lifecycle {
    components: Components,
    /// Signal for all listeners to stop.
    stop: watch::Sender<bool>,
    /// Channel that carries nothing, and closes when the data listener and its connections have
    /// ended.
    data_ended: mpsc::Receiver<()>,
    /// Background tasks; they are aborted when this is dropped.
    _tasks: JoinSet<()>,
}

impl Lifecycle {
    /// Starts the background tasks. The data listener already runs: it ends at `stop`, and then
    /// closes `data_ended`.
    pub(super) fn start(
        components: Components,
        metrics: Metrics,
        auxiliary: Auxiliary,
        stop: watch::Sender<bool>,
        data_ended: mpsc::Receiver<()>,
    ) -> Self {
        let Auxiliary { admin, metrics: monitored, certificates } = auxiliary;
        let mut tasks = JoinSet::new();
        let mut reloaders: Vec<Reloader> = Vec::new();
        reloaders.extend(certificates.map(reload_task::reloader));
        reloaders.extend(components.upstream.server().tls_files().cloned().map(reload_task::reloader));
        if !reloaders.is_empty() {
            let metrics = metrics.tls.clone();
            tasks.spawn(reload_task::run(reloaders, move |side, reload| metrics.observe_reload(side, reload)));
        }
        let log = components.log.clone();
        tasks.spawn(async move {
            tokio::join!(
                log.retention().sweep(),
                log.restoration().keep_open(),
                log.stored_sessions().keep_registrations(),
                log.homes().keep_saved(),
                log.claims().keep()
            );
        });
        if let Some(limit) = components.config.upstream.keepalive {
            let log = components.log.clone();
            tasks.spawn(async move { log.sessions().keep_alive(limit).await });
        }
        if let Some(replicas) = components.replicas.clone() {
            let shared = Arc::new(components.clone());
            let handle = move |message| ingress::handle_forwarded(shared.clone(), message);
            tasks.spawn(async move { replicas.run(handle).await });
        }
        for (listener, is_metrics_only) in [(admin, false), (monitored, true)] {
            if let Some((listener, _)) = listener {
                let stopped = stopped(&stop.subscribe());
                tasks.spawn(serve_admin(listener, is_metrics_only, components.clone(), metrics.clone(), stopped));
            }
        }
        Self { components, stop, data_ended, _tasks: tasks }
    }

    /// Drains, stops all listeners, and gives running responses a grace period.
    pub(super) async fn end(mut self) {
        let drain = &self.components.drain;
        drain.run().await;
        // Standalone streams do not end by themselves.
        drain.end().await;
        info!("stopping");
        let _ = self.stop.send(true);
        if tokio::time::timeout(STOP_GRACE, self.data_ended.recv()).await.is_err() {
            warn!("stopped while responses were still running");
        }
        self.components.upstream.end().await;
        if tokio::time::timeout(STOP_GRACE, self.components.log.homes().flush()).await.is_err() {
            warn!("stopped before the store had all records of sessions");
        }
        // From here on, dropped calls keep their claims: the store's records of them outlive this
        // process.
        self.components.log.claims().leave_all();
        if let Some(replicas) = &self.components.replicas {
            replicas.leave().await;
        }
        if let Some(traces) = self.components.log.traces().cloned() {
            // Fails if the process ends already.
            let _ = tokio::task::spawn_blocking(move || traces.end()).await;
        }
    }
}

async fn serve_admin(
    listener: TcpListener,
    is_metrics_only: bool,
    components: Components,
    metrics: Metrics,
    stopped: impl Future<Output = ()>,
) {
    let config = ListenerConfig {
        protocols: Protocols::Http1,
        header_bytes: components.config.limits.header_bytes,
        idle: components.config.listen.idle,
        limit: ConnectionLimit::new(admin_connections(&components.config)),
        metrics: Some(metrics.ingress.server.clone()),
    };
    let admin = Arc::new(Admin {
        metrics: metrics.admin,
        upstream: components.upstream.clone(),
        log: components.log.clone(),
        replicas: components.replicas.clone(),
        drain: components.drain.clone(),
        hosts: components.config.admin.allowed_hosts.clone(),
        is_metrics_only,
    });
    let handler = move |request: Request<Incoming>| admin.clone().handle(request);
    server::serve(listener, config, handler, pending(), stopped).await;
}
