//! Composition root: the only file that knows every module.

mod files;
mod lifecycle;
mod metrics;
mod store_setup;
mod store_wait;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tracing::info;

pub use files::check_files;
pub use lifecycle::connections_beside;
use lifecycle::{Beside, Running};
pub use metrics::Metrics;
use store_setup::Rest;

use crate::cluster::{BeginError, Replicas};
use crate::config::key_file;
use crate::config::{Config, Mode, PrincipalSource};
use crate::event_log::{Allowance, Bounds, EventLog, Principals};
use crate::ingress::{self, Ingress};
use crate::lifecycle::drain::{Drain, Times};
use crate::random;
use crate::server::listener::{self, BindError, stopped};
use crate::server::{self, Accept, ConnectionLimit, ListenerConfig, Protocols, distribute, start_worker};
use crate::store::{self, disk, redis};
use crate::tls::{self, Certificates, ClientFiles};
use crate::upstream::{Dial, Upstream};

/// Connections that may wait for one worker. Few: each holds a descriptor and is not yet counted. The kernel keeps the others.
const WORKER_QUEUE: usize = 32;
/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A worker thread or its runtime could not be had.
    #[error("cannot start a worker: {0}")]
    Thread(#[source] io::Error),
    /// The files that TLS needs cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The directory of the store cannot be used.
    #[error("the disk store cannot be opened: {0}")]
    Disk(#[from] disk::OpenError),
    /// The Redis cannot be used.
    #[error(transparent)]
    Redis(#[from] redis::OpenError),
    /// The keys cannot be used.
    #[error(transparent)]
    Keys(#[from] key_file::Error),
    /// A part of the program that opens the store has failed.
    #[error("the store could not be opened")]
    Opening,
    /// What was left open before could not be ended.
    #[error("what the store holds could not be recovered: {0}")]
    Recovery(#[from] store::Error),
    /// This process cannot be one of several.
    #[error(transparent)]
    Replica(#[from] BeginError),
    /// The metrics contradict each other.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Where the listeners of a sidecar are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// That of clients.
    pub data: SocketAddr,
    /// The admin listener, if there is one.
    pub admin: Option<SocketAddr>,
    /// The one for metrics alone, if there is one.
    pub metrics: Option<SocketAddr>,
}

/// A listener beside that of clients, and where it is.
type Monitored = Option<(TcpListener, SocketAddr)>;
/// What the data listener proves itself by.
type Proof = Option<Arc<Certificates>>;

/// The listeners, before there is anything behind them.
struct Bound {
    listener: TcpListener,
    local_addr: SocketAddr,
    admin: Monitored,
    /// For metrics alone.
    monitored: Monitored,
    certificates: Proof,
}

impl Bound {
    fn new(config: &Config) -> Result<Self, Error> {
        let certificates = config.listen.tls.clone().map(Certificates::load).transpose()?.map(Arc::new);
        let (listener, local_addr) = listener::bind(listener::LISTEN, config.listen.address)?;
        let admin = config.admin.address.map(|address| listener::bind(listener::ADMIN, address)).transpose()?;
        let monitored =
            config.admin.metrics_address.map(|address| listener::bind(listener::METRICS, address)).transpose()?;
        Ok(Self { listener, local_addr, admin, monitored, certificates })
    }

    fn addresses(&self) -> Addresses {
        let at = |listener: &Monitored| listener.as_ref().map(|(_, address)| *address);
        Addresses { data: self.local_addr, admin: at(&self.admin), metrics: at(&self.monitored) }
    }
}

/// A sidecar whose listeners are bound and which serves nothing yet.
pub struct Server {
    bound: Bound,
    ingress: Arc<Ingress>,
    metrics: Metrics,
}

impl Server {
    /// Binds every listener and puts the parts together.
    ///
    /// # Errors
    /// When an address is taken or not ours, the files that TLS needs cannot be used, or the store cannot be opened.
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let bound = Bound::new(&config)?;
        let metrics = Metrics::new()?;
        let name = config.replica.name.clone().unwrap_or_else(|| default_name(bound.local_addr));
        let rest = open(&config, &name, &metrics).await?;
        Self::put_together(bound, config, rest, metrics).await
    }

    /// The same, but a store that cannot be reached is waited for, as long as it takes. Until then new calls are refused with 503, and probes
    /// are told that the process runs and is not ready; `waits` is called before, with where that is.
    ///
    /// # Errors
    /// When it cannot start, now or later.
    pub async fn bind_and_wait(config: Config, waits: impl FnOnce(Addresses)) -> Result<Self, Error> {
        let bound = Bound::new(&config)?;
        let metrics = Metrics::new()?;
        let name = config.replica.name.clone().unwrap_or_else(|| default_name(bound.local_addr));
        let addresses = bound.addresses();
        let (bound, rest) = store_wait::open(bound, &config, &name, &metrics, move || waits(addresses)).await?;
        Self::put_together(bound, config, rest, metrics).await
    }

    async fn put_together(bound: Bound, config: Config, rest: Rest, metrics: Metrics) -> Result<Self, Error> {
        let upstream = Upstream::new(config.upstream.clone())?;
        let ingress = Arc::new(recovered(compose(config, rest, &metrics, upstream)).await?);
        Ok(Self { bound, ingress, metrics })
    }

    /// Where all listeners are.
    pub fn addresses(&self) -> Addresses {
        self.bound.addresses()
    }

    /// Where the data listener listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.bound.local_addr
    }

    /// What the data listener proves itself by, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.bound.certificates.as_ref()
    }

    /// What the upstream is believed by and shown, if it is spoken to in TLS.
    pub fn upstream_files(&self) -> Option<&Arc<ClientFiles>> {
        self.ingress.upstream.tls_files()
    }

    /// Where the admin listener listens, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.bound.addresses().admin
    }

    /// Connects to the upstream once, so that the log says whether it accepts connections.
    pub fn look_for_upstream(&self) -> impl Future<Output = ()> + use<> {
        let upstream = self.ingress.upstream.clone();
        async move {
            upstream.reachability().await;
        }
    }

    /// Serves on the caller's runtime until `shutdown` resolves; then accepts nothing more and gives what still runs a while to
    /// end.
    ///
    /// # Errors
    /// None at present; the signature is that of a program's main part.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let running = self.start();
        shutdown.await;
        running.end().await;
        Ok(())
    }

    /// The same on `workers` threads, each with a runtime and upstream connections of its own: a request stays on the thread
    /// that accepted its connection, so that no step of it waits for another thread to wake up. Ends with the process: threads
    /// whose responses do not end in time are left behind.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be had.
    pub async fn run_on_threads(self, workers: usize, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let running = self.start_on_threads(workers)?;
        shutdown.await;
        running.end().await;
        Ok(())
    }

    fn start(self) -> Running {
        let Self { bound: Bound { listener, admin, monitored, certificates, .. }, ingress, metrics } = self;
        let config = data_listener(&ingress, certificates.clone());
        start(listener, config, ingress, metrics, Beside { admin, monitored, certificates })
    }

    fn start_on_threads(self, workers: usize) -> Result<Running, Error> {
        let (stop, stopping) = watch::channel(false);
        let (serving, ended) = mpsc::channel(1);
        let mut queues = Vec::new();
        let Self { bound: Bound { listener, admin, monitored, certificates, .. }, ingress, metrics } = self;
        let config = data_listener(&ingress, certificates.clone());
        for index in 0..workers.max(1) {
            let upstream = Arc::new(ingress.upstream.with_own_connections());
            let ingress = Arc::new(Ingress { upstream, ..Ingress::clone(&ingress) });
            let (config, stopped, serving) = (config.clone(), stopped(&stopping), serving.clone());
            let serve = move |connections| async move {
                run_data(connections, ingress, config, stopped).await;
                drop(serving);
            };
            queues.push(start_worker(index, WORKER_QUEUE, serve).map_err(Error::Thread)?);
        }
        tokio::spawn(distribute(listener, queues, stopped(&stopping)));
        Ok(Running::attend(ingress, metrics, Beside { admin, monitored, certificates }, stop, ended))
    }
}

/// The same sidecar between connections that somebody else makes: over pipes on a paused clock it is what simulations run.
pub struct Sidecar {
    ingress: Arc<Ingress>,
    metrics: Metrics,
}

impl Sidecar {
    /// Puts the parts together. `config` names no listener that would be bound; the upstream is reached by `dialer`.
    ///
    /// # Errors
    /// When the metrics contradict each other, or the keys cannot be used.
    pub fn new(config: Config, dialer: Arc<dyn Dial>) -> Result<Self, Error> {
        let upstream = Upstream::with_dialer(config.upstream.clone(), dialer)?;
        let metrics = Metrics::new()?;
        let name = config.replica.name.clone().unwrap_or_else(|| default_name(config.listen.address));
        let rest = Rest::in_memory(&name, store_setup::keys(&config)?.as_ref());
        Ok(Self { ingress: Arc::new(compose(config, rest, &metrics, upstream)), metrics })
    }

    /// What it counts.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Its streams.
    pub fn log(&self) -> Arc<EventLog> {
        self.ingress.log.clone()
    }

    /// Serves what `connections` hands out, on the caller's runtime, until `shutdown` resolves; see [`Server::run`].
    pub async fn run(self, connections: impl Accept, shutdown: impl Future<Output = ()>) {
        let config = data_listener(&self.ingress, None);
        let running = start(connections, config, self.ingress, self.metrics, Beside::default());
        shutdown.await;
        running.end().await;
    }
}

/// Serves on the caller's runtime.
fn start(
    connections: impl Accept,
    config: ListenerConfig,
    ingress: Arc<Ingress>,
    metrics: Metrics,
    beside: Beside,
) -> Running {
    let (stop, stopping) = watch::channel(false);
    let (serving, ended) = mpsc::channel(1);
    let data = run_data(connections, ingress.clone(), config, stopped(&stopping));
    tokio::spawn(async move {
        data.await;
        drop(serving);
    });
    Running::attend(ingress, metrics, beside, stop, ended)
}

/// Returns the configuration of the data listener, whose threads share one connection limit.
fn data_listener(ingress: &Ingress, certificates: Option<Arc<Certificates>>) -> ListenerConfig {
    let limits = &ingress.config.limits;
    ListenerConfig {
        protocols: certificates.map_or(Protocols::Plain, Protocols::Tls),
        header_bytes: limits.header_bytes,
        limit: ConnectionLimit::new(limits.connections),
        metrics: Some(ingress.metrics.server.clone()),
    }
}

async fn run_data(
    listener: impl Accept,
    ingress: Arc<Ingress>,
    config: ListenerConfig,
    stopped: impl Future<Output = ()>,
) {
    let drain = ingress.drain.clone();
    let leaving = async move { drain.leaving().await };
    server::serve(listener, config, ingress::Handler(ingress), leaving, stopped).await;
}

fn compose(config: Config, rest: Rest, metrics: &Metrics, upstream: Upstream) -> Ingress {
    let Rest { identity, principal_key, backing } = rest;
    let upstream = if config.replica.wrap_sessions { upstream.wrapping(identity.owner) } else { upstream };
    let bounds = Bounds { max_bytes: config.streams.max_bytes, max_events: config.streams.max_events };
    let allowance = Allowance {
        max_bytes: config.streams.max_bytes_per_principal,
        max_bytes_total: config.streams.max_bytes_total,
        max_streams: config.limits.streams_per_principal,
        max_detached: config.limits.detached_calls_per_principal,
        resumes_per_sec: config.limits.resumes_per_sec,
        delivered_retention: config.streams.delivered_retention,
        max_sessions: config.limits.sessions,
    };
    let log = Arc::new(EventLog::new(identity, bounds, allowance, metrics.ingress.event_log.clone(), backing));
    // A client that was cut tries twice.
    let retry = match config.delivery.mode {
        Mode::Stream => config.delivery.retry,
        Mode::Poll => config.delivery.poll_retry,
    };
    let elsewhere = log.shared().map(|_| config.delivery.drain_retry);
    let (delay, timeout) = (config.drain_delay(), config.replica.drain_timeout);
    let times = Times { delay, timeout, patience: retry * 2 + Duration::from_secs(1) };
    Ingress {
        drain: Arc::new(Drain::new(log.clone(), times, elsewhere)),
        log,
        upstream: Arc::new(upstream),
        principals: Principals::new(config.auth.principal.clone(), principal_key),
        credentials: Principals::new(PrincipalSource::Auto, random::bytes()),
        metrics: metrics.ingress.clone(),
        replicas: None,
        instance: u64::from_be_bytes(random::bytes()),
        has_told_unprotected: Arc::default(),
        config: Arc::new(config),
    }
}

/// Opens the store. Of no type that says what is in it: each caller would be compiled with all of that.
fn open<'a>(
    config: &'a Config,
    name: &'a str,
    metrics: &'a Metrics,
) -> Pin<Box<dyn Future<Output = Result<Rest, Error>> + Send + 'a>> {
    Box::pin(Rest::open(config, name, metrics))
}

/// The same for everything that depends on it.
fn recovered(ingress: Ingress) -> Pin<Box<dyn Future<Output = Result<Ingress, Error>> + Send>> {
    Box::pin(recover(ingress))
}

/// What was left open by the process before this one is ended, before anybody can ask for it.
async fn recover(mut ingress: Ingress) -> Result<Ingress, Error> {
    let log = ingress.log.clone();
    match log.shared() {
        Some(shared) => ingress.replicas = Some(Replicas::begin(shared, log, ingress.config.replica.lease).await?),
        None => {
            let left = log.recover().await?;
            if left > 0 {
                info!(streams = left, "ended what was left open before");
            }
        }
    }
    Ok(ingress)
}

/// Host name and listen port: stable over restarts, different for two replicas of one machine.
fn default_name(local_addr: SocketAddr) -> String {
    format!("{}:{}", gethostname::gethostname().to_string_lossy(), local_addr.port())
}
