//! Composition root of the sidecar: builds its parts from the configuration, and serves.

mod background;
mod error;
mod files;
mod listeners;
mod metrics;
mod sse;
#[cfg(unix)]
mod stdio;
mod store_setup;
mod store_wait;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

pub use background::connections_beside;
use background::{Auxiliary, Lifecycle};
pub use error::Error;
pub use files::check_files;
pub use listeners::Addresses;
use listeners::Listeners;
pub use metrics::Metrics;
use store_setup::StoreSetup;

use crate::channel::Channels;
use crate::cluster::Replicas;
use crate::config::{Config, HeaderError, Mode, PrincipalSource, public_host};
use crate::event_log::{EventLog, Principals, QuotaLimits, TailLimits};
use crate::ingress::{self, Components, LocalClient};
use crate::lifecycle::drain::{Drain, Times};
use crate::otel::Traces;
use crate::protocol::ids::Owner;
use crate::random;
use crate::server::listener::stopped;
use crate::server::{
    self, Accept, ConnectionLimit, ListenerConfig, Protocols, distribute, distribute_waiting, start_worker,
};
use crate::tls::{Certificates, ClientFiles};
use crate::upstream::{BridgeSettings, Dial, PublicName, Server as McpServer, SessionRules, Upstream};

/// Connections that may wait for one worker. Few: each holds a descriptor and is not yet counted.
/// The kernel keeps the others.
const WORKER_QUEUE: usize = 32;
/// Longest wait of a call for client responses where calls are kept for ever.
const LONGEST_INPUT_WAIT: Duration = Duration::from_secs(86_400);

/// A sidecar with bound listeners. It does not serve yet.
pub struct Server {
    listeners: Listeners,
    components: Components,
    metrics: Metrics,
}

impl Server {
    /// Binds all listeners, opens the store, and composes the sidecar.
    ///
    /// # Errors
    /// If a listener cannot be bound, the TLS files cannot be used, or the store cannot be opened.
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let listeners = Listeners::bind(&config)?;
        let metrics = Metrics::new()?;
        let setup = StoreSetup::open(&config, &replica_name(&config, listeners.data.1), &metrics).await?;
        Self::assemble(listeners, config, setup, metrics).await
    }

    /// Does as [`Server::bind`], but waits without limit for a store that cannot be reached. Until
    /// the store is open, new calls are refused with 503, and probes show a process that runs and
    /// is not ready. `on_wait` is called with the addresses before the wait.
    ///
    /// # Errors
    /// If the sidecar cannot start, now or after the wait.
    pub async fn bind_and_wait(config: Config, on_wait: impl FnOnce(Addresses)) -> Result<Self, Error> {
        let listeners = Listeners::bind(&config)?;
        let metrics = Metrics::new()?;
        let name = replica_name(&config, listeners.data.1);
        let addresses = listeners.addresses();
        let (listeners, setup) =
            store_wait::open(listeners, &config, &name, &metrics, move || on_wait(addresses)).await?;
        Self::assemble(listeners, config, setup, metrics).await
    }

    async fn assemble(
        listeners: Listeners,
        mut config: Config,
        setup: StoreSetup,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        load_headers(&mut config)?;
        warn_of_open_credentials(&config);
        warn_of_public_server(&config);
        let server = mcp_server(&config, setup.identity.owner, &metrics)?;
        let traces = match &config.otel {
            Some(otel) => Some(Traces::start(otel, replica_name(&config, listeners.data.1), metrics.otel.clone())?),
            None => None,
        };
        let components = recover(compose(config, setup, &metrics, server, traces)?).await?;
        Ok(Self { listeners, components, metrics })
    }

    /// Returns the addresses of all listeners.
    pub fn addresses(&self) -> Addresses {
        self.listeners.addresses()
    }

    /// Returns the address for clients.
    pub fn local_addr(&self) -> SocketAddr {
        self.listeners.data.1
    }

    /// Returns the certificates of the data listener, or `None` if it speaks plain HTTP.
    pub fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.listeners.certificates.as_ref()
    }

    /// Returns the TLS files for the upstream, or `None` if it is spoken to without TLS.
    pub fn upstream_files(&self) -> Option<&Arc<ClientFiles>> {
        self.components.upstream.server().tls_files()
    }

    /// Returns the address of the admin listener, or `None` without it.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.addresses().admin
    }

    /// Connects to the upstream once, so that the log says whether it accepts connections.
    pub fn look_for_upstream(&self) -> impl Future<Output = ()> + use<> {
        let upstream = self.components.upstream.clone();
        async move {
            upstream.server().reachability().await;
        }
    }

    /// Serves on the caller's runtime until `shutdown` resolves. Then drains, accepts nothing more,
    /// and gives running responses a grace period.
    ///
    /// # Errors
    /// None at present. A program's main part has this signature.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let lifecycle = self.start();
        shutdown.await;
        lifecycle.end().await;
        Ok(())
    }

    /// Does as [`Server::run`] on `workers` threads, each with a runtime and upstream connections
    /// of its own. A request stays on the thread that accepted its connection, so that no step of
    /// it waits for another thread to wake up. Threads whose responses do not end in time are left
    /// behind, and end with the process.
    ///
    /// # Errors
    /// If a thread or its runtime cannot be created.
    pub async fn run_on_threads(self, workers: usize, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let lifecycle = self.start_on_threads(workers)?;
        shutdown.await;
        lifecycle.end().await;
        Ok(())
    }

    fn start(self) -> Lifecycle {
        let Self { listeners: Listeners { data: (listener, _), admin, metrics: monitored, certificates }, .. } = self;
        let config = data_listener(&self.components, certificates.clone());
        let auxiliary = Auxiliary { admin, metrics: monitored, certificates };
        start(listener, config, self.components, self.metrics, auxiliary)
    }

    fn start_on_threads(self, workers: usize) -> Result<Lifecycle, Error> {
        let Self { listeners, components, metrics } = self;
        let Listeners { data: (listener, _), admin, metrics: monitored, certificates } = listeners;
        let (stop, stopping) = watch::channel(false);
        // The workers stop once they have the last connection.
        let (close, closing) = watch::channel(false);
        let (serving, ended) = mpsc::channel(1);
        let mut queues = Vec::new();
        let config = data_listener(&components, certificates.clone());
        for index in 0..workers.max(1) {
            let upstream = Arc::new(components.upstream.with_own_connections());
            let components = Components { upstream, ..components.clone() };
            let (config, stopped, serving) = (config.clone(), stopped(&closing), serving.clone());
            let mut stopping = stopping.clone();
            let serve = move |connections| async move {
                serve_data(connections, components, config, stopped).await;
                drop(serving);
                // The pipes of channels are used on this runtime, and channels end after all
                // responses: the end of the lifecycle is theirs.
                while stopping.changed().await.is_ok() {}
            };
            queues.push(start_worker(index, WORKER_QUEUE, serve).map_err(Error::Thread)?);
        }
        tokio::spawn(async move {
            let mut listener = listener;
            distribute(&mut listener, &queues, stopped(&stopping)).await;
            distribute_waiting(&mut listener, &queues).await;
            let _ = close.send(true);
        });
        let auxiliary = Auxiliary { admin, metrics: monitored, certificates };
        Ok(Lifecycle::start(components, metrics, auxiliary, stop, ended))
    }
}

/// A sidecar without listeners: the caller makes its connections. Simulations run it over pipes on
/// a paused clock.
pub struct Sidecar {
    components: Components,
    metrics: Metrics,
}

impl Sidecar {
    /// Composes a sidecar with the memory store. The listeners of `config` are not bound; `dialer`
    /// connects to the upstream.
    ///
    /// # Errors
    /// If two metrics have the same name, or the key file cannot be used.
    pub fn new(mut config: Config, dialer: Arc<dyn Dial>) -> Result<Self, Error> {
        load_headers(&mut config)?;
        let server = McpServer::with_dialer(config.upstream.clone(), dialer)?;
        let metrics = Metrics::new()?;
        let name = replica_name(&config, config.listen.address);
        let setup = StoreSetup::in_memory(&name, store_setup::load_keys(&config)?.as_ref());
        Ok(Self { components: compose(config, setup, &metrics, server, None)?, metrics })
    }

    /// Returns all metrics.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Returns the event log.
    pub fn log(&self) -> Arc<EventLog> {
        self.components.log.clone()
    }

    /// Serves `connections` on the caller's runtime until `shutdown` resolves; see [`Server::run`].
    pub async fn run(self, connections: impl Accept, shutdown: impl Future<Output = ()>) {
        let config = data_listener(&self.components, None);
        let lifecycle = start(connections, config, self.components, self.metrics, Auxiliary::default());
        shutdown.await;
        lifecycle.end().await;
    }
}

/// A sidecar whose only client is in this process. It has no listeners, and its store is memory.
pub struct Local {
    client: LocalClient,
    _lifecycle: Lifecycle,
}

impl Local {
    /// Starts the sidecar on the caller's runtime. Its listeners are not bound. Dropped, it ends
    /// its background tasks, and no call.
    ///
    /// # Errors
    /// If a file or variable that the configuration names cannot be used.
    pub fn start(mut config: Config) -> Result<Self, Error> {
        load_headers(&mut config)?;
        let metrics = Metrics::new()?;
        let setup = StoreSetup::in_memory(&replica_name(&config, config.listen.address), None);
        let server = mcp_server(&config, setup.identity.owner, &metrics)?;
        let components = compose(config, setup, &metrics, server, None)?;
        let (stop, _) = watch::channel(false);
        let (_, ended) = mpsc::channel(1);
        let client = LocalClient::new(components.clone());
        let lifecycle = Lifecycle::start(components, metrics, Auxiliary::default(), stop, ended);
        Ok(Self { client, _lifecycle: lifecycle })
    }

    /// Returns the client.
    pub fn client(&self) -> &LocalClient {
        &self.client
    }

    /// Ends the calls and sessions of the bridge, and the processes of the server.
    pub async fn end(self) {
        self.client.components().upstream.end().await;
    }
}

/// Creates the server by its transport.
fn mcp_server(config: &Config, owner: Owner, metrics: &Metrics) -> Result<McpServer, Error> {
    let mut server = McpServer::new(config.upstream.clone())?;
    // Elsewhere the configuration is refused.
    #[cfg(unix)]
    if let Some(command) = &config.upstream.command {
        server = server.with_channels(stdio::channels(config, command, metrics)?);
    }
    if let Some(at) = &config.upstream.sse {
        server = server.with_channels(sse::channels(config, at, &metrics.channel)?);
    }
    if let Some(at) = &config.upstream.recognisable {
        server = server.with_recognition(sse::recognition(config, at, owner, &metrics.channel));
    }
    Ok(server)
}

/// Starts to serve on the caller's runtime.
fn start(
    connections: impl Accept,
    config: ListenerConfig,
    components: Components,
    metrics: Metrics,
    auxiliary: Auxiliary,
) -> Lifecycle {
    let (stop, stopping) = watch::channel(false);
    let (serving, ended) = mpsc::channel(1);
    let data = serve_data(connections, components.clone(), config, stopped(&stopping));
    tokio::spawn(async move {
        data.await;
        drop(serving);
    });
    Lifecycle::start(components, metrics, auxiliary, stop, ended)
}

/// Returns the configuration of the data listener, whose threads share one connection limit.
fn data_listener(components: &Components, certificates: Option<Arc<Certificates>>) -> ListenerConfig {
    let limits = &components.config.limits;
    ListenerConfig {
        protocols: certificates.map_or(Protocols::Plain, Protocols::Tls),
        header_bytes: limits.header_bytes,
        idle: components.config.listen.idle,
        limit: ConnectionLimit::new(limits.connections),
        metrics: Some(components.metrics.server.clone()),
    }
}

async fn serve_data(
    listener: impl Accept,
    components: Components,
    config: ListenerConfig,
    stopped: impl Future<Output = ()>,
) {
    let drain = components.drain.clone();
    let handler = ingress::Handler(Arc::new(components));
    let leaving = async move { drain.leaving().await };
    server::serve(listener, config, handler, leaving, stopped).await;
}

fn compose(
    config: Config,
    setup: StoreSetup,
    metrics: &Metrics,
    server: McpServer,
    traces: Option<Arc<Traces>>,
) -> Result<Components, Error> {
    let StoreSetup { identity, principal_key, backing } = setup;
    // A channel belongs to this process alone, so the names of its sessions say so.
    let is_wrapped = config.replica.wrap_sessions || config.upstream.is_channel();
    let owner = if is_wrapped { Some(identity.owner) } else { None };
    let bounds = TailLimits { max_bytes: config.streams.max_bytes, max_events: config.streams.max_events };
    let allowance = QuotaLimits {
        max_bytes: config.streams.max_bytes_per_principal,
        max_bytes_total: config.streams.max_bytes_total,
        max_streams: config.limits.streams_per_principal,
        max_detached: config.limits.detached_calls_per_principal,
        max_tasks: config.limits.tasks_per_principal,
        resumes_per_sec: config.limits.resumes_per_sec,
        delivered_retention: config.streams.delivered_retention,
        max_sessions: config.limits.sessions,
    };
    let log = EventLog::new(identity, bounds, allowance, metrics.ingress.event_log.clone(), backing, traces);
    let log = Arc::new(log);
    let bridge = config.bridge.as_ref().map(|bridge| BridgeSettings {
        config: bridge.clone(),
        max_wait: config.streams.max_wait.unwrap_or(LONGEST_INPUT_WAIT),
        task_wait: config.tasks.as_ref().map(|tasks| tasks.max_wait),
        input_grace: config.dialects.input_grace,
        connect_wait: config.upstream.wait,
        is_loopback: config.listen.address.ip().is_loopback(),
        max_event_bytes: config.streams.max_event_bytes,
        owner: log.owner(),
    });
    let handshakes = log.sessions().handshakes().clone();
    let sessions = SessionRules { owner, config: &config.sessions, handshakes };
    let public = config.listen.public_url.as_ref();
    let upstream = Upstream::new(server.with_public_url(public), sessions, bridge);
    let retry = match config.delivery.mode {
        Mode::Stream => config.delivery.retry,
        Mode::Poll => config.delivery.poll_retry,
    };
    let reconnect_elsewhere = log.coordination().map(|_| config.delivery.drain_retry);
    let times = Times {
        delay: config.drain_delay(),
        timeout: config.replica.drain_timeout,
        // A client whose connection broke tries twice.
        resume_wait: retry * 2 + Duration::from_secs(1),
    };
    Ok(Components {
        drain: Arc::new(Drain::new(log.clone(), times, reconnect_elsewhere)),
        log,
        upstream: Arc::new(upstream),
        principals: principals(&config, config.auth.principal.clone(), principal_key),
        credentials: principals(&config, PrincipalSource::Auto, random::bytes()),
        metrics: metrics.ingress.clone(),
        replicas: None,
        instance: u64::from_be_bytes(random::bytes()),
        public_name: public.map(|public| PublicName::of(public)),
        resource_document: ingress::read_document(&config.listen)?,
        promises: Arc::new(ingress::Promises::new(&config)),
        has_warned_unprotected: Arc::default(),
        config: Arc::new(config),
    })
}

/// Returns a resolver of callers, for which headers that become variables are credentials.
fn principals(config: &Config, source: PrincipalSource, key: [u8; 32]) -> Principals {
    let variables = config.upstream.command.iter().flat_map(|command| &command.env_from_headers);
    Principals::new(source, key).with_variables(variables.map(|variable| variable.header.clone()))
}

/// Reads the values of the static headers that are in variables and files.
///
/// # Errors
/// The first value that cannot be used.
pub fn load_headers(config: &mut Config) -> Result<(), Error> {
    let first = |errors: Vec<HeaderError>| errors.into_iter().next();
    match config.upstream.headers.load().map_err(first) {
        Ok(headers) => config.upstream.headers = headers,
        Err(error) => return error.map_or(Ok(()), |error| Err(error.into())),
    }
    Ok(())
}

/// Warns of credentials that each client of another machine uses.
fn warn_of_open_credentials(config: &Config) {
    let names = config.open_credentials();
    if !names.is_empty() {
        let headers = names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
        warn!(
            headers,
            "each client that reaches this listener uses the credentials of upstream.headers: put a proxy in front \
             that checks callers, and name it in listen.trusted_proxies and auth.principal"
        );
    }
}

/// Warns of a public URL before a server that others may operate.
fn warn_of_public_server(config: &Config) {
    let Some(public) = &config.listen.public_url else { return };
    if let Some(host) = public_host(&config.upstream.url).filter(|_| !config.upstream.is_channel()) {
        warn!(
            host,
            public_url = %public,
            "tokens for listen.public_url reach a server with a public name: give public_url only for a server of your own"
        );
    }
}

/// Ends the streams that an earlier process left open, before a request can reach them, and joins
/// the other replicas. Boxed, so that the callers' futures do not contain the futures of the
/// stores.
fn recover(mut components: Components) -> Pin<Box<dyn Future<Output = Result<Components, Error>> + Send>> {
    Box::pin(async move {
        let log = components.log.clone();
        match log.coordination() {
            Some(coordination) => {
                let lease = components.config.replica.lease;
                components.replicas = Some(Replicas::begin(coordination, log, lease).await?);
            }
            None => {
                let left = log.adoption().recover().await?;
                if left > 0 {
                    info!(streams = left, "ended the streams that an earlier process left open");
                }
            }
        }
        Ok(components)
    })
}

/// Returns the configured name of this replica. The default, host name and listen port, is stable
/// over restarts and differs between two replicas on one machine.
fn replica_name(config: &Config, local_addr: SocketAddr) -> String {
    let default = || format!("{}:{}", gethostname::gethostname().to_string_lossy(), local_addr.port());
    config.replica.name.clone().unwrap_or_else(default)
}

/// Creates the channels to the configured server on stdio or HTTP+SSE, without a server yet, or
/// returns `None` for another.
///
/// # Errors
/// If the guard of the processes cannot be started.
pub fn channels(config: &Config) -> Result<Option<Arc<Channels>>, Error> {
    if let Some(server) = &config.upstream.sse {
        return Ok(Some(sse::channels(config, server, &Metrics::new()?.channel)?));
    }
    let Some(command) = &config.upstream.command else { return Ok(None) };
    Ok(Some(stdio::channels(config, command, &Metrics::new()?)?))
}
