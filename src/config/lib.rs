//! The configuration of the program, decided once at start.
//!
//! Configuration has two stages. `raw` gathers the values of the TOML file, the environment and the
//! flags, each with its origin. `build` reads every key once, with a method of `read` that names
//! the key, its unit, its bounds and its default. The result is a [`Config`], whose types need no
//! further checks: durations are [`Duration`]s, and "0 = none" is an `Option`.
//!
//! Invariants: flags override the environment, the environment overrides the file, and the file
//! overrides the defaults. A key that is never read is refused. All problems of all layers are
//! reported at once, even in overridden values. No error and no `Debug` contains a secret.
//!
//! Absent: reading files, the environment or the command line (the binary passes their contents
//! in), reloading at run time, and keys of features that do not exist yet. `config.example.toml` is
//! the reference for users and is tested against this module.

mod balance;
mod bridge;
mod build;
mod command;
mod connect;
mod flags;
mod headers;
pub mod key_file;
mod otel;
mod problem;
mod public_url;
mod raw;
mod read;
mod store;
mod streams;
mod target;
mod tasks;
#[cfg(test)]
mod tests;
mod upstream;
mod url;
mod value;
mod way;

pub use balance::{Balance, BalanceTls, Balancing};
pub use bridge::{Bridge, ModernClients};
pub use command::{Command, InvalidVariable};
pub use connect::{Connect, Connecting, Repeat};
pub use flags::{ConnectFlags, Flags};
pub use headers::{ClientVariable, HeaderError, StaticHeaders};
pub use otel::{CollectorUrl, InvalidCollector, Otel};
pub use problem::{Origin, Problem, Problems};
pub use public_url::{PublicUrl, PublicUrlError, public_host};
pub use store::{DiskStore, Fsync, OnUnreachable, RedisStore, Store};
pub use target::{Location, Target, TargetError};
pub use tasks::{LegacyTasks, TaskSupport, Tasks};
pub use upstream::{AnswerPings, FurtherRoots, HostHeader, SessionCookies, SseServer, Upstream, UpstreamTls};
pub use url::{UpstreamUrl, UrlError};
pub use way::{Liveness, Proxies, Proxy, Way};

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use self::raw::RawConfig;
use mcp_resume_protocol::access::{AllowedHosts, AllowedOrigins};
use mcp_resume_protocol::client_address::Trust;
use mcp_resume_protocol::client_names::ClientNames;
use mcp_resume_protocol::dialect::Declared;
use mcp_resume_protocol::session_refusal::RefusalPattern;

/// The configuration of `serve`. See `config.example.toml` for the reason behind each default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The data listener.
    pub listen: Listen,
    /// The MCP server.
    pub upstream: Upstream,
    /// Lifetimes and limits of streams.
    pub streams: Streams,
    /// Delivery of events to clients.
    pub delivery: Delivery,
    /// Resumption proposals in use beside the specification's own.
    pub dialects: Dialects,
    /// Overrides by tool name; [`Config::call`] resolves them.
    pub tools: HashMap<String, ToolOverrides>,
    /// Identification of callers.
    pub auth: Auth,
    /// Limits of requests, connections and sessions.
    pub limits: Limits,
    /// The store of events.
    pub store: Store,
    /// This process as one of several replicas.
    pub replica: Replica,
    /// Sessions that their server has forgotten.
    pub sessions: Sessions,
    /// Bridge between the eras, or `None` if nothing is translated.
    pub bridge: Option<Bridge>,
    /// Tasks for servers that have none, or `None` if calls become no tasks.
    pub tasks: Option<Arc<Tasks>>,
    /// The listeners for probes and metrics.
    pub admin: Admin,
    /// Traces of calls, or `None` without a collector.
    pub otel: Option<Box<Otel>>,
    /// Logging.
    pub log: Log,
}

/// The data listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address to bind; port 0 takes a free port.
    pub address: SocketAddr,
    /// TLS, or `None` for plain TCP.
    pub tls: Option<ListenTls>,
    /// Host names that requests may use. By default the names of this machine on a loopback
    /// address, else any.
    pub allowed_hosts: AllowedHosts,
    /// Origins of pages that may send requests. By default the origins of this machine on a
    /// loopback address, else the origins of the requested host.
    pub allowed_origins: AllowedOrigins,
    /// Proxies in front whose statements about clients are trusted.
    pub trusted_proxies: Trust,
    /// Time after which a connection without a request is closed; at least 1 s.
    pub idle: Duration,
    /// URL that clients type for the endpoint, or `None` if the server names its own resource.
    pub public_url: Option<Arc<PublicUrl>>,
    /// File with the metadata of the resource, for a server that has none of its own.
    pub resource_metadata: Option<PathBuf>,
}

/// TLS of the data listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenTls {
    /// Certificate and key.
    pub identity: KeyPair,
    /// PEM file with the authorities for client certificates, or `None` if clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
}

/// PEM files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The certificate, followed by its intermediate authorities.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Lifetimes and limits of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Retention of a detached, unsealed stream, or `None` to never abandon it.
    pub max_wait: Option<Duration>,
    /// Retention of a sealed stream. Never shorter than a `max_wait` that is set, even if
    /// configured so: clients know `max_wait` and may return that late.
    pub retention: Duration,
    /// Grace period of a modern (2026-07-28 and later) call whose client left. Zero cancels at
    /// once; `None` means twice the last `retry` written on the stream, plus one second.
    pub modern_grace: Option<Duration>,
    /// Longest duration of an upstream call, or `None` without limit.
    pub call_timeout: Option<Duration>,
    /// Time for a cancelled call to respond before it is closed.
    pub cancel_grace: Duration,
    /// Longest pause of the upstream by a full stream without a reader; the call then fails.
    pub full_wait: Duration,
    /// Time after the last owed response while messages are still logged.
    pub linger: Duration,
    /// Most events kept per stream.
    pub max_events: usize,
    /// Largest event accepted from the upstream, or largest message of a server on a channel, in
    /// bytes.
    pub max_event_bytes: usize,
    /// Most bytes kept per stream; always more than `max_event_bytes`.
    pub max_bytes: usize,
    /// Most bytes held for one principal; at least `max_bytes`.
    pub max_bytes_per_principal: usize,
    /// Most bytes held for all principals; at least `max_bytes_per_principal`.
    pub max_bytes_total: usize,
    /// Retention of a call whose response provably arrived, and time for a retry of a call whose
    /// response may not have arrived.
    pub delivered_retention: Duration,
}

/// Delivery of events to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Clients that get an empty first event with an id.
    pub prime: Prime,
    /// Longest wait for the upstream's own status before the proxy responds with 200 and a stream,
    /// or `None` without limit.
    pub commit_after: Option<Duration>,
    /// Reconnection time sent to clients; at least 1 ms.
    pub retry: Duration,
    /// Reconnection time of a long call; at least 1 ms.
    pub retry_long: Duration,
    /// Age of a long call: 10 s. No key sets it.
    pub retry_long_after: Duration,
    /// Silence before a comment is written; at least 1 s.
    pub heartbeat: Duration,
    /// Longest time of a response before it is closed gracefully, or `None` to never close it.
    pub max_connection: Option<Duration>,
    /// Responses stay open, or are closed and polled.
    pub mode: Mode,
    /// Reconnection time sent to clients in [`Mode::Poll`]; at least 1 ms.
    pub poll_retry: Duration,
    /// The `retry` sent to clients that a drain sends to another replica.
    pub drain_retry: Duration,
    /// Progress of the proxy's own, or `None` if it is off.
    pub progress: Option<ProgressBeats>,
    /// Clients that get responses on the GET stream if they do not resume their POST.
    pub by_get: ClientNames,
    /// Further clients that count broken connections. Python's SDKs are recognised without a name.
    pub graceful_for: ClientNames,
    /// Clients of 2026-07-28 that send a call again under another ID after its connection broke.
    pub adopt_for: ClientNames,
}

/// Progress notifications that the proxy writes for a silent server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressBeats {
    /// Interval of the checks for progress of the server; at least 1 s.
    pub after: Duration,
    /// Time from the start of a call to its last; at least 1 s.
    pub max: Duration,
    /// Names of clients that get none, as they name themselves in `clientInfo`.
    pub except: ClientNames,
}

/// Clients whose responses are primed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prime {
    /// All clients.
    All,
    /// Clients that negotiated 2025-11-25 or later, which specifies empty events.
    Since20251125,
}

/// Handling of a response after it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The response stays open until the stream ends.
    Stream,
    /// The response is closed once the stored events are written; the client polls for the rest.
    Poll,
}

/// Resumption proposals in use, and the values sent to their clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialects {
    /// Proposals that a client declares in `initialize`.
    pub declared: Declared,
    /// Shortest reconnect delay of clients; zero sends none.
    pub min_wait: Duration,
    /// True if every stream is also announced by its URL.
    pub stream_url: bool,
    /// Clients whose connections end on their turn; [`Turns::Off`] without `stream_url`.
    pub stream_url_turns: Turns,
    /// Silence of the server before such an end.
    pub input_grace: Duration,
    /// Calls with partial results, or `None` without slices.
    pub resume_tokens: Option<Arc<ResumeTokens>>,
}

/// Clients whose connections end while the server waits only for client responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// Clients that have used a stream URL, in the session or on the stream.
    Seen,
    /// All clients.
    All,
    /// No client.
    Off,
}

/// Calls with results in slices, each but the last with a token for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeTokens {
    /// Length of a slice; at least 1 s.
    pub slice: Duration,
    /// Tools whose calls are sliced.
    pub tools: HashSet<String>,
    /// Methods whose requests are sliced.
    pub methods: HashSet<String>,
}

/// Overrides for calls of one tool; `None` leaves the general value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOverrides {
    /// See [`Tasks::after`].
    pub task_after: Option<Duration>,
    /// Rule for tasks of the tool.
    pub task: Option<TaskSupport>,
    /// Overrides [`Streams::max_wait`]; `Some(None)` never abandons.
    pub max_wait: Option<Option<Duration>>,
    /// Overrides [`Streams::call_timeout`]; `Some(None)` sets no limit.
    pub call_timeout: Option<Option<Duration>>,
    /// Overrides [`Delivery::mode`].
    pub mode: Option<Mode>,
}

/// Identification of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Part of a request that identifies its principal.
    pub principal: PrincipalSource,
}

/// Part of a request that identifies its principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalSource {
    /// `Authorization`, else `X-API-Key`, else anonymous.
    Auto,
    /// The value of this header.
    Header(HeaderName),
    /// The value of the cookie with this name.
    Cookie(String),
    /// The ID of the access key in an `Authorization` of AWS Signature Version 4, which signs each
    /// request anew.
    SigV4,
    /// No part: every caller is anonymous.
    None,
}

/// Limits of requests, connections and sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most running tasks of one principal, beside its calls; at least 1.
    pub tasks_per_principal: usize,
    /// Largest request body, in bytes.
    pub body_bytes: usize,
    /// Largest request head, in bytes; at least 8192, the least hyper can work with.
    pub header_bytes: usize,
    /// Most client connections at once; at least 1.
    pub connections: usize,
    /// Most running calls of one principal; at least 1.
    pub streams_per_principal: usize,
    /// Most running calls of one principal whose client is disconnected; at least 1.
    pub detached_calls_per_principal: usize,
    /// Resumes of one principal per second, beyond which they are delayed; at least 1.
    pub resumes_per_sec: u32,
    /// Most messages of a batch; at least 1.
    pub batch: usize,
    /// Most records of sessions opened at this replica; at least 1.
    pub sessions: usize,
    /// Most POSTs of one session that are held for the upstream or queued behind held ones; at
    /// least 1.
    pub held_posts_per_session: usize,
}

impl Limits {
    /// Default of [`Self::connections`].
    pub const DEFAULT_CONNECTIONS: usize = 20_480;
}

/// This process as one of several replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Stable name, or `None` for host name and listen port.
    pub name: Option<String>,
    /// File of the keys that sign event IDs and the proxy's own sessions, or `None` for keys of the
    /// store, or else of this process alone.
    pub key_file: Option<PathBuf>,
    /// True if the session ids that clients see contain the replica's name.
    pub wrap_sessions: bool,
    /// Longest silence before the replicas that share its store count a replica as gone.
    pub lease: Duration,
    /// Time for new calls at the start of a drain, or `None` to decide by the listener; see
    /// [`Config::drain_delay`].
    pub drain_delay: Option<Duration>,
    /// Time for calls to end during a drain.
    pub drain_timeout: Duration,
}

/// Sessions that their server has forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// True if they are opened again.
    pub revive: bool,
    /// Refusals of a session in addition to the refusals that the proxy knows.
    pub refusals: Vec<RefusalPattern>,
    /// Lifetime of the record of a session after its last use.
    pub keep: Duration,
    /// Rules for the one client of a process. Without a key.
    pub front: SessionFront,
}

/// The side of the clients, as far as a session that is opened again depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFront {
    /// True if there is one client, which follows its session itself. The session is opened again
    /// at any server, also while streams of it are open, and the client asks for changes of lists.
    pub takes_any_server: bool,
    /// True if changes of lists are announced that the server has not declared.
    pub announces_undeclared: bool,
}

/// The listeners for probes and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address of the admin listener, or `None` without one.
    pub address: Option<SocketAddr>,
    /// Address of a listener for metrics and probes alone, or `None` without one.
    pub metrics_address: Option<SocketAddr>,
    /// Host names that requests may use: on a loopback address the names of this machine and of
    /// `listen.allowed_hosts`, else any.
    pub allowed_hosts: AllowedHosts,
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Format of a line.
    pub format: LogFormat,
    /// A directive that `tracing_subscriber::EnvFilter` accepts.
    pub level: String,
    /// True if the log has lines of a program's stderr when its start fails.
    pub stderr_on_failure: bool,
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The settings of one call, with its tool's overrides applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// See [`Streams::max_wait`].
    pub max_wait: Option<Duration>,
    /// See [`Streams::retention`]; never shorter than this call's `max_wait`.
    pub retention: Duration,
    /// See [`Streams::call_timeout`].
    pub call_timeout: Option<Duration>,
    /// See [`Delivery::mode`].
    pub mode: Mode,
}

/// Default time for new calls at the start of a drain, if the listener can be behind a load
/// balancer.
const DRAIN_DELAY: Duration = Duration::from_secs(5);

impl Config {
    /// Returns the time for new calls at the start of a drain: the configured time, else zero on a
    /// loopback listener, which is behind no load balancer. By default, at least half of the drain
    /// remains for calls after that time.
    pub fn drain_delay(&self) -> Duration {
        let most = DRAIN_DELAY.min(self.replica.drain_timeout / 2);
        let by_listener = if self.listen.address.ip().is_loopback() { Duration::ZERO } else { most };
        self.replica.drain_delay.unwrap_or(by_listener)
    }

    /// Returns the static headers that are credentials, if any client of another machine could use
    /// them: the listener is off loopback, and no proxy in front names the callers.
    pub fn open_credentials(&self) -> Vec<HeaderName> {
        let are_callers_checked =
            !self.listen.trusted_proxies.is_empty() && matches!(self.auth.principal, PrincipalSource::Header(_));
        if self.listen.address.ip().is_loopback() || are_callers_checked {
            return Vec::new();
        }
        self.upstream.static_credentials().cloned().collect()
    }

    /// Makes the configuration of `serve` from its layers.
    ///
    /// `file` is its name, for messages only, and its text. Of `env` only names that begin with
    /// `MCP_RESUME_` matter. A file that is not TOML is reported as such, and its keys are not
    /// checked; all other problems are reported together.
    pub fn load(
        file: Option<(&str, &str)>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<Config, Problems> {
        build::build(RawConfig::of_layers(file, env, flags))
    }

    /// Returns the address of the admin listener of a sidecar with these layers; see
    /// [`Config::load`]. Reports only problems with that key, so that other keys may be missing.
    pub fn admin_address(
        file: Option<(&str, &str)>,
        env: impl IntoIterator<Item = (String, String)>,
        flag: Option<String>,
    ) -> Result<Option<SocketAddr>, Problems> {
        build::admin_address(RawConfig::of_layers(file, env, Flags { admin: flag, ..Flags::default() }))
    }

    /// Returns the defaults for the server at `url`, on a free loopback port and without an admin
    /// listener.
    pub fn for_upstream(url: &str) -> Result<Config, Problems> {
        let flags = Flags {
            upstream: Some(url.to_owned()),
            listen: Some("127.0.0.1:0".to_owned()),
            admin: Some(String::new()),
            ..Flags::default()
        };
        Config::load(None, [], flags)
    }

    /// Returns the settings for a call of `tool`, or for any other request if `None`.
    pub fn call(&self, tool: Option<&str>) -> Call {
        let tool = tool.and_then(|name| self.tools.get(name));
        let max_wait = tool.and_then(|tool| tool.max_wait).unwrap_or(self.streams.max_wait);
        Call {
            max_wait,
            retention: self.streams.retention.max(max_wait.unwrap_or_default()),
            call_timeout: tool.and_then(|tool| tool.call_timeout).unwrap_or(self.streams.call_timeout),
            mode: tool.and_then(|tool| tool.mode).unwrap_or(self.delivery.mode),
        }
    }
}

impl Balancing {
    /// Makes the configuration of `balance` from its layers; see [`Config::load`].
    ///
    /// # Errors
    /// All problems, including problems of keys that only `serve` uses. An upstream is not
    /// required.
    pub fn load(
        file: Option<(&str, &str)>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
        replicas: &[String],
    ) -> Result<Self, Problems> {
        let mut raw = RawConfig::of_layers(file, env, flags);
        raw.add_replicas(replicas);
        build::balancing(raw)
    }
}

impl Connecting {
    /// Makes the configuration of `connect` from its layers; see [`Config::load`]. Of two `files`,
    /// the second overrides the first.
    ///
    /// # Errors
    /// All problems, including problems of keys that only `serve` uses. No problem quotes a value
    /// of the command line.
    pub fn load(
        files: &[(String, String)],
        env: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
        connect: ConnectFlags,
    ) -> Result<Self, Problems> {
        let mut raw = RawConfig::of_files(files.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        raw.add_environment(env);
        raw.add_flags(flags);
        raw.add_connect_flags(connect);
        build::connecting(raw)
    }
}
