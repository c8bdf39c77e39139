//! Start of a sidecar whose Redis is unreachable: it listens, reports that it is not ready, and
//! retries until the store is open.
//!
//! Without responses on the admin listener, an orchestrator would restart the process again and
//! again, and would never start the server beside it. Invariant: a request on the data listener is
//! refused before any part of it runs. Absent: retries of permanent errors, such as a Redis of an
//! unsupported version; those end the start.
//!
//! The store itself classifies its failures. Only [`redis::OpenError::Unreachable`] is retried. It
//! follows from `breaks_connection` in `src/store/redis/failure.rs`, so a loading server or a wrong
//! password counts as unreachable as well.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::background::admin_connections;
use super::error::Error;
use super::listeners::{BoundListener, Listeners};
use super::metrics::Metrics;
use super::store_setup::StoreSetup;
use crate::admin;
use crate::backoff::Backoff;
use crate::body::Incoming;
use crate::clock;
use crate::config::Config;
use crate::protocol::error::ErrorCode;
use crate::server::listener::stopped;
use crate::server::{self, Accept, ConnectionLimit, Handler, ListenerConfig, Protocols, respond};
use crate::store::redis;
use crate::tls::Certificates;

/// Pauses between two attempts to open the store.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// Interval of log lines while the store stays unreachable.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Opens the store, and retries while it cannot be reached. `on_wait` is called once, before the
/// first retry.
pub(super) async fn open(
    listeners: Listeners,
    config: &Config,
    name: &str,
    metrics: &Metrics,
    on_wait: impl FnOnce(),
) -> Result<(Listeners, StoreSetup), Error> {
    let error = match StoreSetup::open(config, name, metrics).await {
        Ok(setup) => return Ok((listeners, setup)),
        Err(error) if is_unreachable(&error) => error,
        Err(error) => return Err(error),
    };
    warn!(%error, "the store is away: waiting for it, not ready until it is there");
    on_wait();
    let refusing = RefusingListeners::start(listeners, config, metrics);
    let (mut backoff, mut logged_at) = (BACKOFF, clock::now());
    let setup = loop {
        clock::sleep(backoff.next_pause()).await;
        match StoreSetup::open(config, name, metrics).await {
            Err(error) if is_unreachable(&error) => {
                if clock::now().saturating_duration_since(logged_at) >= LOG_INTERVAL {
                    logged_at = clock::now();
                    warn!(%error, "the store is still away");
                }
            }
            opened => break opened?,
        }
    };
    info!("the store is there");
    Ok((refusing.end().await?, setup))
}

/// Returns true if a later attempt may succeed; see the documentation of this module.
fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::Redis(redis::OpenError::Unreachable(_)))
}

/// Listeners that serve refusals and probes while there is no store.
struct RefusingListeners {
    stop: watch::Sender<bool>,
    data: Return,
    admin: Option<Return>,
    /// Listener for metrics alone. It serves nothing yet.
    metrics: Option<BoundListener>,
    certificates: Option<Arc<Certificates>>,
}

/// A listener that will be given back, and its address.
type Return = (oneshot::Receiver<TcpListener>, SocketAddr);

impl RefusingListeners {
    fn start(listeners: Listeners, config: &Config, metrics: &Metrics) -> Self {
        let Listeners { data: (listener, local_addr), admin, metrics: monitored, certificates } = listeners;
        let stop = watch::channel(false).0;
        let listener_config = |protocols, connections| ListenerConfig {
            protocols,
            header_bytes: config.limits.header_bytes,
            idle: config.listen.idle,
            limit: ConnectionLimit::new(connections),
            metrics: Some(metrics.ingress.server.clone()),
        };
        let stopped = || stopped(&stop.subscribe());

        let protocols = certificates.clone().map_or(Protocols::Plain, Protocols::Tls);
        let (data, returned) = ReturnedListener::new(listener, stop.subscribe());
        let errors = metrics.ingress.errors.clone();
        let refuse = move |_: Request<Incoming>| {
            errors.observe_reject(ErrorCode::StoreFailed);
            std::future::ready(respond::refusal(ErrorCode::StoreFailed))
        };
        spawn(data, listener_config(protocols, config.limits.connections), refuse, stopped());

        let admin = admin.map(|(listener, address)| {
            let (listener, returned) = ReturnedListener::new(listener, stop.subscribe());
            let (hosts, metrics_page) = (config.admin.allowed_hosts.clone(), metrics.admin.clone());
            let probe = move |request: Request<Incoming>| {
                std::future::ready(admin::waiting::respond(&request, &hosts, &metrics_page))
            };
            spawn(listener, listener_config(Protocols::Http1, admin_connections(config)), probe, stopped());
            (returned, address)
        });
        Self { stop, data: (returned, local_addr), admin, metrics: monitored, certificates }
    }

    /// Stops serving, and returns the listeners. Open connections end after the request in
    /// progress.
    async fn end(self) -> Result<Listeners, Error> {
        let _ = self.stop.send(true);
        let (listener, local_addr) = self.data;
        let data = (listener.await.map_err(|_| Error::Opening)?, local_addr);
        let admin = match self.admin {
            Some((listener, address)) => Some((listener.await.map_err(|_| Error::Opening)?, address)),
            None => None,
        };
        Ok(Listeners { data, admin, metrics: self.metrics, certificates: self.certificates })
    }
}

fn spawn(
    listener: ReturnedListener,
    config: ListenerConfig,
    handler: impl Handler + Sync,
    stopped: impl Future<Output = ()> + Send + 'static,
) {
    tokio::spawn(server::serve(listener, config, handler, pending(), stopped));
}

/// A listener that is given back when its accept loop has ended. It accepts nothing once `stopping`
/// holds `true`: connections that wait then belong to the next server of the listener.
struct ReturnedListener {
    listener: Option<TcpListener>,
    owner: Option<oneshot::Sender<TcpListener>>,
    stopping: watch::Receiver<bool>,
}

impl ReturnedListener {
    fn new(listener: TcpListener, stopping: watch::Receiver<bool>) -> (Self, oneshot::Receiver<TcpListener>) {
        let (owner, returned) = oneshot::channel();
        (Self { listener: Some(listener), owner: Some(owner), stopping }, returned)
    }
}

impl Accept for ReturnedListener {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        match &mut self.listener {
            Some(listener) if !*self.stopping.borrow() => Accept::accept(listener).await,
            Some(_) | None => pending().await,
        }
    }
}

impl Drop for ReturnedListener {
    fn drop(&mut self) {
        if let (Some(listener), Some(owner)) = (self.listener.take(), self.owner.take()) {
            // An owner that is gone does not want it back: it is closed.
            let _ = owner.send(listener);
        }
    }
}
