//! Composition root: the only file that knows every module.

mod rest;

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime;
#[cfg(unix)]
use tokio::signal::unix;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use rest::Rest;

use crate::admin::Admin;
use crate::clock;
use crate::config::{Config, Mode, PrincipalSource};
use crate::event_log::{Allowance, Bounds, EventLog, Principals};
use crate::ingress::{self, Accept, Ingress, Limits, Protocols, Seats, hand_out};
use crate::metrics::Metrics;
use crate::random;
use crate::replicas::{BeginError, Replicas};
use crate::shutdown::Drain;
use crate::store::{self, disk, redis};
use crate::tls::{self, Certificates, ClientFiles, Files, Reload, Side, Source};
use crate::upstream::{Dial, Upstream};

/// Connections that wait for one worker.
const HANDED_MAX: usize = 1024;
/// After the drain, connections get so long to end.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// So often the files of TLS are looked at.
const RENEWAL: Duration = Duration::from_secs(5);

/// Connections of the admin listener: probes and a few collectors.
const ADMIN_CONNECTIONS: usize = 256;
/// Connections that wait to be accepted: all clients of a load balancer that was restarted come at once.
const BACKLOG: u32 = 4096;

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
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

/// A sidecar whose listeners are bound and which serves nothing yet.
pub struct Server {
    listener: TcpListener,
    local_addr: SocketAddr,
    admin: Option<(TcpListener, SocketAddr)>,
    ingress: Arc<Ingress>,
    certificates: Option<Arc<Certificates>>,
}

impl Server {
    /// Binds every listener and puts the parts together.
    ///
    /// # Errors
    /// When an address is taken or not ours, or the files that TLS needs cannot be used.
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let certificates = config.listen.tls.clone().map(Certificates::load).transpose()?.map(Arc::new);
        let (listener, local_addr) = bind(config.listen.address)?;
        let admin = match config.admin.address {
            Some(address) => Some(bind(address)?),
            None => None,
        };
        let upstream = Upstream::new(config.upstream.clone())?;
        let metrics = Arc::new(Metrics::new()?);
        let name = config.replica.name.clone().unwrap_or_else(|| default_name(local_addr));
        let ingress = Arc::new(put_together(config, name, metrics, upstream).await?);
        Ok(Self { listener, local_addr, admin, ingress, certificates })
    }

    /// Where the data listener listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What the data listener proves itself by, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.certificates.as_ref()
    }

    /// What the upstream is believed by and shown, if it is spoken to in TLS.
    pub fn upstream_files(&self) -> Option<&Arc<ClientFiles>> {
        self.ingress.upstream.tls_files()
    }

    /// Where the admin listener listens, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(_, address)| *address)
    }

    /// Serves on the caller's runtime until `shutdown` resolves; then accepts nothing more and gives what still runs a while to
    /// end.
    ///
    /// # Errors
    /// None at present; the signature is that of a program's main part.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let (stop, stopping) = watch::channel(false);
        let limits = data_limits(&self.ingress, self.certificates.clone());
        let data = tokio::spawn(run_data(self.listener, self.ingress.clone(), limits, stopped(&stopping)));
        let ended = async move { drop(data.await) };
        attend(self.admin, self.ingress, self.certificates, stop, ended, shutdown).await;
        Ok(())
    }

    /// The same on `workers` threads, each with a runtime and upstream connections of its own: a request stays on the thread
    /// that accepted its connection, so that no step of it waits for another thread to wake up. Ends with the process: threads
    /// whose responses do not end in time are left behind.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be had.
    pub async fn run_on_threads(self, workers: usize, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let (stop, stopping) = watch::channel(false);
        let (running, mut ended) = mpsc::channel::<()>(1);
        let mut handed = Vec::new();
        let limits = data_limits(&self.ingress, self.certificates.clone());
        for worker in 0..workers.max(1) {
            let (hand, connections) = mpsc::channel(HANDED_MAX);
            handed.push(hand);
            let upstream = Arc::new(self.ingress.upstream.with_own_connections());
            let ingress = Arc::new(Ingress { upstream, ..Ingress::clone(&self.ingress) });
            let (limits, stopped, running) = (limits.clone(), stopped(&stopping), running.clone());
            let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
            let work = move || {
                runtime.block_on(run_data(connections, ingress, limits, stopped));
                drop(running);
            };
            thread::Builder::new().name(format!("worker-{worker}")).spawn(work).map_err(Error::Thread)?;
        }
        drop(running);
        tokio::spawn(hand_out(self.listener, handed, stopped(&stopping)));
        // Nothing is sent: the channel closes when the last worker is done.
        let ended = async move { while ended.recv().await.is_some() {} };
        attend(self.admin, self.ingress, self.certificates, stop, ended, shutdown).await;
        Ok(())
    }
}

/// The same sidecar between connections that somebody else makes: over pipes on a paused clock it is what simulations run.
pub struct Sidecar {
    ingress: Arc<Ingress>,
}

impl Sidecar {
    /// Puts the parts together. `config` names no listener that would be bound; the upstream is reached by `dialer`.
    ///
    /// # Errors
    /// When the metrics contradict each other.
    pub fn new(config: Config, dialer: Arc<dyn Dial>) -> Result<Self, Error> {
        let upstream = Upstream::with_dialer(config.upstream.clone(), dialer)?;
        let metrics = Arc::new(Metrics::new()?);
        let name = config.replica.name.clone().unwrap_or_else(|| default_name(config.listen.address));
        Ok(Self { ingress: Arc::new(compose(config, Rest::in_memory(&name), metrics, upstream)) })
    }

    /// What it counts.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.ingress.metrics.clone()
    }

    /// Its streams.
    pub fn log(&self) -> Arc<EventLog> {
        self.ingress.log.clone()
    }

    /// Serves what `connections` hands out, on the caller's runtime, until `shutdown` resolves; see [`Server::run`].
    pub async fn run(self, connections: impl Accept, shutdown: impl Future<Output = ()>) {
        let (stop, stopping) = watch::channel(false);
        let limits = data_limits(&self.ingress, None);
        let data = tokio::spawn(run_data(connections, self.ingress.clone(), limits, stopped(&stopping)));
        attend(None, self.ingress, None, stop, async move { drop(data.await) }, shutdown).await;
    }
}

/// What goes on beside the data listener, and the end of it all.
async fn attend(
    admin: Option<(TcpListener, SocketAddr)>,
    ingress: Arc<Ingress>,
    certificates: Option<Arc<Certificates>>,
    stop: watch::Sender<bool>,
    ended: impl Future<Output = ()>,
    shutdown: impl Future<Output = ()>,
) {
    let (log, drain) = (ingress.log.clone(), ingress.drain.clone());
    let files = certificates.into_iter().map(reading).chain(ingress.upstream.tls_files().cloned().map(reading));
    let files: Vec<Reading> = files.collect();
    let renewing = (!files.is_empty()).then(|| tokio::spawn(renew(files, ingress.metrics.clone())));
    let sweeping = tokio::spawn(async move { tokio::join!(log.sweep(), log.keep_open()) });
    let replicas = ingress.replicas.clone();
    let living = replicas.clone().map(|replicas| live(replicas, ingress.clone()));
    let admin = tokio::spawn(run_admin(admin.map(|(listener, _)| listener), ingress, stopped(&stop.subscribe())));
    shutdown.await;
    drain.run().await;
    // What never ends by itself.
    drain.end().await;
    info!("stopping");
    let _ = stop.send(true);
    if tokio::time::timeout(STOP_GRACE, ended).await.is_err() {
        warn!("stopped while responses were still running");
    }
    if let Some(replicas) = replicas {
        replicas.leave().await;
    }
    living.inspect(JoinHandle::abort);
    admin.abort();
    sweeping.abort();
    renewing.inspect(JoinHandle::abort);
}

/// Among others that share the store. Not part of what is generic above, which each caller compiles anew.
fn live(replicas: Arc<Replicas>, ingress: Arc<Ingress>) -> JoinHandle<()> {
    tokio::spawn(async move { replicas.run(move |handed| ingress.clone().take_handed(handed)).await })
}

/// Reads some files again.
type Reading = Arc<dyn Fn() -> (Side, Reload) + Send + Sync>;

fn reading<S>(files: Arc<Files<S>>) -> Reading
where
    S: Source + Send + Sync + 'static,
    S::Made: Send,
{
    Arc::new(move || (S::SIDE, files.reload()))
}

/// Looks for new certificates every now and then, and when told to by SIGHUP.
async fn renew(files: Vec<Reading>, metrics: Arc<Metrics>) {
    #[cfg(unix)]
    let mut hangups = unix::signal(unix::SignalKind::hangup()).ok();
    loop {
        let next = clock::sleep_until(clock::now() + RENEWAL);
        #[cfg(unix)]
        match &mut hangups {
            Some(hangups) => tokio::select! {
                () = next => {}
                _ = hangups.recv() => {}
            },
            None => next.await,
        }
        #[cfg(not(unix))]
        next.await;
        for read in &files {
            let read = read.clone();
            if let Ok((side, reload)) = tokio::task::spawn_blocking(move || read()).await {
                metrics.observe_reload(side, reload);
            }
        }
    }
}

/// All threads share the places.
fn data_limits(ingress: &Ingress, certificates: Option<Arc<Certificates>>) -> Limits {
    let limits = &ingress.config.limits;
    let protocols = certificates.map_or(Protocols::Plain, Protocols::Tls);
    Limits { protocols, header_bytes: limits.header_bytes, seats: Seats::new(limits.connections) }
}

async fn run_data(listener: impl Accept, ingress: Arc<Ingress>, limits: Limits, stopped: impl Future<Output = ()>) {
    let (metrics, drain) = (ingress.metrics.clone(), ingress.drain.clone());
    let leaving = async move { drain.leaving().await };
    // hyper keeps room for the handler's future as long as the connection lives: a box keeps it small.
    let handle = move |connection, request| Box::pin(ingress.clone().handle(connection, request));
    ingress::serve(listener, limits, metrics, handle, leaving, stopped).await;
}

async fn run_admin(listener: Option<TcpListener>, ingress: Arc<Ingress>, stopped: impl Future<Output = ()>) {
    let Some(listener) = listener else { return };
    let header_bytes = ingress.config.limits.header_bytes;
    let limits = Limits { protocols: Protocols::Http1, header_bytes, seats: Seats::new(ADMIN_CONNECTIONS) };
    let metrics = ingress.metrics.clone();
    let admin = Arc::new(Admin {
        metrics: metrics.clone(),
        upstream: ingress.upstream.clone(),
        log: ingress.log.clone(),
        replicas: ingress.replicas.clone(),
        drain: ingress.drain.clone(),
        hosts: ingress.config.admin.allowed_hosts.clone(),
    });
    let handle = move |_, request| admin.clone().handle(request);
    ingress::serve(listener, limits, metrics, handle, pending(), stopped).await;
}

fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Bind { address, source };
    let listener = listen(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A port that a server has just left is not taken; elsewhere the option means something else.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn stopped(stopping: &watch::Receiver<bool>) -> impl Future<Output = ()> + Send + 'static {
    let mut stopping = stopping.clone();
    // A sender that is gone has stopped as well.
    async move { drop(stopping.wait_for(|stopping| *stopping).await) }
}

fn compose(config: Config, rest: Rest, metrics: Arc<Metrics>, upstream: Upstream) -> Ingress {
    let Rest { identity, principal_key, backing } = rest;
    let bounds = Bounds { max_bytes: config.streams.max_bytes, max_events: config.streams.max_events };
    let allowance = Allowance {
        max_bytes: config.streams.max_bytes_per_principal,
        max_bytes_total: config.streams.max_bytes_total,
        max_streams: config.limits.streams_per_principal,
        max_detached: config.limits.detached_calls_per_principal,
        resumes_per_sec: config.limits.resumes_per_sec,
        delivered_retention: config.streams.delivered_retention,
    };
    let log = Arc::new(EventLog::new(identity, bounds, allowance, metrics.clone(), backing));
    // A client that was cut tries twice.
    let retry = match config.delivery.mode {
        Mode::Stream => config.delivery.retry,
        Mode::Poll => config.delivery.poll_retry,
    };
    let elsewhere = log.shared().map(|_| config.delivery.drain_retry);
    let patience = retry * 2 + Duration::from_secs(1);
    Ingress {
        drain: Arc::new(Drain::new(log.clone(), config.replica.drain_timeout, patience, elsewhere)),
        log,
        upstream: Arc::new(upstream),
        principals: Principals::new(config.auth.principal.clone(), principal_key),
        credentials: Principals::new(PrincipalSource::Auto, random::bytes()),
        metrics,
        replicas: None,
        config: Arc::new(config),
    }
}

/// Opens the store and makes everything that depends on it. Of no type that says what is in it: each caller would be compiled with all of
/// that.
fn put_together(
    config: Config,
    name: String,
    metrics: Arc<Metrics>,
    upstream: Upstream,
) -> Pin<Box<dyn Future<Output = Result<Ingress, Error>> + Send>> {
    Box::pin(async move {
        let rest = Rest::open(&config, &name, &metrics).await?;
        recover(compose(config, rest, metrics, upstream)).await
    })
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
