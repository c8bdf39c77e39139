//! The balancer: a proxy in front of sidecars, which forwards each request to the replica that it
//! belongs to.
//!
//! ```text
//! client ─► server ─► proxy (Pingora's phases) ─► selection ─► sidecar
//!                                                     ▲
//!                          discovery ─► health ─► table
//! ```
//!
//! Balancers keep no state of streams or sessions: any number of them make the same decisions, and
//! a restart loses nothing. They learn the replica at each address from the sidecars themselves
//! ([`health`]). Absent: keys, the contents of streams, and recovery of connections. A client that
//! is cut reconnects by way of another balancer, or of the successor of this one ([`upgrade`]).

mod admin;
pub mod callers;
pub mod discovery;
pub mod health;
mod home_finder;
pub mod in_flight;
pub mod metrics;
pub mod peer;
pub mod proxy;
pub mod proxy_protocol;
mod request_body;
pub mod selection;
pub mod server;
pub mod table;
pub mod upgrade;
pub mod write_buffer;

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use pingora_core::apps::ServerApp;
use pingora_limits::rate::Rate;
use pingora_proxy::HttpProxy;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use callers::Callers;
use discovery::{Discovery, Sources};
use health::{HealthChecker, Intervals};
use home_finder::HomeFinder;
use mcp_resume_base::clock;
use mcp_resume_config::Balancing;
use mcp_resume_server::listener::{self, BindError, stopped};
use mcp_resume_server::{AcceptedConnection, ConnectionLimit, distribute, start_worker};
use mcp_resume_tls::reload_task::{self, Reloader};
use mcp_resume_tls::{self as tls, Certificates};
use metrics::Metrics;
use peer::{Peers, ReplicaFiles};
use proxy::Phases;
use server::{App, Worker};
use table::{Policy, Table};
use upgrade::Predecessor;

/// Connections that may wait for one worker.
const WORKER_QUEUE: usize = 1024;
/// Wait after the last connection closed: clients that do not know of the shutdown may still
/// connect.
const LINGER: Duration = Duration::from_secs(1);

/// A balancer could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The running process does not hand over its listeners.
    #[error("balance.upgrade_socket: {0}")]
    Upgrade(#[from] upgrade::Error),
    /// A worker thread, its runtime, or a duplicate of a listener could not be created.
    #[error("cannot start a worker: {0}")]
    Thread(#[source] io::Error),
    /// Two metrics have the same name.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A balancer with bound listeners. It does not serve yet.
pub struct Balancer {
    config: Balancing,
    listener: TcpListener,
    local_addr: SocketAddr,
    admin: Option<(TcpListener, SocketAddr)>,
    certificates: Option<Arc<Certificates>>,
    predecessor: Option<Predecessor>,
    peers: Arc<Peers>,
    health: Arc<HealthChecker>,
    table: Arc<Table>,
    metrics: Arc<Metrics>,
}

impl Balancer {
    /// Binds every listener, or takes them over from the running process, and checks each replica
    /// once.
    ///
    /// # Errors
    /// If an address cannot be bound, the running process does not hand over its listeners, or the
    /// TLS files cannot be used.
    pub async fn bind(config: Balancing) -> Result<Self, Error> {
        let certificates = config.listen.tls.clone().map(Certificates::load).transpose()?.map(Arc::new);
        let (mut taken, predecessor) = match config.balance.upgrade_socket.as_deref().map(upgrade::take) {
            Some(taken) => taken?.unzip(),
            None => (None, None),
        };
        let (listener, local_addr) = take_or_bind(listener::LISTEN, config.listen.address, &mut taken)?;
        let admin = match config.admin.address {
            Some(address) => Some(take_or_bind(listener::ADMIN, address, &mut taken)?),
            None => None,
        };
        let balance = &config.balance;
        let peers = Arc::new(Peers::new(&balance.tls, balance.connect_timeout)?);
        let metrics = Arc::new(Metrics::new()?);
        let (eject_after, eject, slow_start) = (balance.eject_after, balance.eject, balance.slow_start);
        let table = Arc::new(Table::new(Policy { eject_after, eject, slow_start }));
        let sources = Sources { listed: balance.replicas.clone(), file: balance.file.clone() };
        let intervals = Intervals {
            refresh: balance.refresh,
            health: balance.health,
            timeout: balance.health_timeout,
            unhealthy_after: balance.unhealthy_after,
        };
        let discovery = Discovery::new(sources);
        let health = Arc::new(HealthChecker::new(table.clone(), metrics.clone(), discovery, peers.clone(), intervals));
        health.check_once().await;
        Ok(Self { config, listener, local_addr, admin, certificates, predecessor, peers, health, table, metrics })
    }

    /// Returns the address of the listener for clients.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the address of the admin listener, or `None` without an admin listener.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(_, address)| *address)
    }

    /// Returns the listener's certificates, or `None` if it does not use TLS.
    pub fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.certificates.as_ref()
    }

    /// Returns the authorities and the client certificate for replicas, or `None` if no files hold
    /// them.
    pub fn replica_files(&self) -> Option<&Arc<ReplicaFiles>> {
        self.peers.files()
    }

    /// Serves on `workers` threads until `shutdown` resolves or a successor has taken the
    /// listeners. Then gives the requests in flight the configured grace period to end.
    ///
    /// # Errors
    /// If a thread or its runtime cannot be created, or the listeners cannot be offered to a
    /// successor.
    pub async fn run(self, workers: usize, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let (stop, stopping) = watch::channel(false);
        let connections = TaskTracker::new();
        let workers = self.workers(workers, &connections, &stopping);
        let files = self.files();
        let Self { config, listener, admin, predecessor, health, table, metrics, .. } = self;
        let mut listeners = vec![(config.listen.address, duplicate(&listener)?)];
        if let (Some(address), Some((listener, _))) = (config.admin.address, &admin) {
            listeners.push((address, duplicate(listener)?));
        }
        let apps: Vec<_> = workers.iter().map(|worker| worker.app.clone()).collect();
        let queues = start_workers(workers)?;
        let reloading = if files.is_empty() {
            None
        } else {
            let metrics = metrics.clone();
            Some(tokio::spawn(reload_task::run(files, move |side, reload| metrics.tls().observe_reload(side, reload))))
        };
        let (close, closed) = watch::channel(false);
        let is_closed = stopped(&closed);
        let accepting = tokio::spawn(async move {
            let mut listener = listener;
            distribute(&mut listener, &queues, is_closed).await;
        });
        if let Some((listener, _)) = admin {
            let admin =
                admin::Admin { metrics, table, stopping: stopping.clone(), hosts: config.admin.allowed_hosts.clone() };
            let bounds = (config.limits.header_bytes, config.listen.idle);
            tokio::spawn(admin::serve(listener, admin, bounds, stopped(&closed)));
        }
        let checking_health = tokio::spawn(async move { health.run().await });
        let offer = match &config.balance.upgrade_socket {
            Some(path) => Some(upgrade::offer(path, listeners, predecessor).await?),
            None => None,
        };
        let successor = async {
            match offer {
                Some(offer) => offer.handed_over().await,
                None => pending().await,
            }
        };
        let is_handed_over = tokio::select! {
            () = shutdown => false,
            () = successor => true,
        };
        info!(is_handed_over, connections = connections.len(), "stopping");
        let _ = stop.send(true);
        if is_handed_over {
            // New connections belong to the successor.
            let _ = close.send(true);
        }
        if tokio::time::timeout(config.balance.grace, drained(&connections)).await.is_err() {
            warn!(connections = connections.len(), "requests in flight are cut at the end of the grace period");
        }
        let _ = close.send(true);
        for app in apps {
            app.cleanup().await;
        }
        accepting.abort();
        checking_health.abort();
        if let Some(reloading) = reloading {
            reloading.abort();
        }
        Ok(())
    }

    /// Returns a reloader for each set of TLS files that may change.
    fn files(&self) -> Vec<Reloader> {
        let listener = self.certificates.clone().map(reload_task::reloader);
        listener.into_iter().chain(self.replica_files().cloned().map(reload_task::reloader)).collect()
    }

    /// Creates the workers. Each has a proxy of its own, so that its connections to replicas stay
    /// on its thread.
    fn workers(&self, workers: usize, connections: &TaskTracker, stopping: &watch::Receiver<bool>) -> Vec<Worker> {
        let Self { config, peers, metrics, .. } = self;
        let trust = config.listen.trusted_proxies.clone();
        let rate = config.balance.requests_per_sec.map(|most| (Arc::new(Rate::new(Duration::from_secs(1))), most));
        let limit = ConnectionLimit::new(config.limits.connections);
        metrics.set_connections_max(limit.max());
        let callers = Arc::new(Callers::new(config.auth.principal.clone()));
        let worker = |_| {
            let phases = Phases {
                table: self.table.clone(),
                health: self.health.clone(),
                homes: HomeFinder::new(peers),
                callers: callers.clone(),
                peers: peers.clone(),
                trust: trust.clone(),
                rate: rate.clone(),
                metrics: metrics.clone(),
                stopping: stopping.clone(),
                selections: AtomicUsize::new(0),
            };
            let mut proxy = HttpProxy::new(phases, peers.server_conf().clone());
            proxy.handle_init_modules();
            Worker {
                app: Arc::new(App::new(proxy, metrics.clone())),
                certificates: self.certificates.clone(),
                proxy_protocol_from: if config.balance.proxy_protocol { Some(trust.clone()) } else { None },
                limit: limit.clone(),
                connections: connections.clone(),
                stopping: stopping.clone(),
                metrics: metrics.clone(),
            }
        };
        (0..workers.max(1)).map(worker).collect()
    }
}

/// Starts a thread with a runtime for each worker: a connection stays on its thread.
fn start_workers(workers: Vec<Worker>) -> Result<Vec<mpsc::Sender<AcceptedConnection>>, Error> {
    let start = |(index, worker): (usize, Worker)| {
        start_worker(index, WORKER_QUEUE, move |connections| worker.serve(connections)).map_err(Error::Thread)
    };
    workers.into_iter().enumerate().map(start).collect()
}

/// Resolves once no client has been connected for [`LINGER`].
async fn drained(connections: &TaskTracker) {
    connections.close();
    loop {
        connections.wait().await;
        clock::sleep(LINGER).await;
        if connections.is_empty() {
            return;
        }
    }
}

/// Duplicates the descriptor of a listener.
fn duplicate(listener: &TcpListener) -> Result<std::net::TcpListener, Error> {
    Ok(SockRef::from(listener).try_clone().map_err(Error::Thread)?.into())
}

fn take_or_bind(
    key: &'static str,
    address: SocketAddr,
    taken: &mut Option<upgrade::Listeners>,
) -> Result<(TcpListener, SocketAddr), Error> {
    let taken = taken.as_mut().and_then(|taken| {
        let place = taken.iter().position(|(of, _)| *of == address)?;
        Some(taken.swap_remove(place).1)
    });
    Ok(match taken {
        Some(listener) => listener::adopt(key, address, listener)?,
        None => listener::bind(key, address)?,
    })
}
