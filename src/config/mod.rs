//! What the program believes about its surroundings, decided once at start.
//!
//! Configuration has two stages. `raw` gathers what was said: the TOML file, the environment
//! and the flags, each value with the place it came from. `build` reads every key once, by
//! way of `read` (that one call names the key, its unit, its bounds and its default), and makes
//! a [`Config`], whose types leave nothing to check again: durations are [`Duration`]s, "0 = none"
//! is an `Option`.
//!
//! Invariants: flags win over the environment, the environment over the file, the file over the
//! defaults; a key nobody reads is refused; every problem of every layer is reported at once,
//! also in a value that another layer overrides; nothing secret is in an error or in `Debug`.
//!
//! Deliberately absent: reading files, the environment or the command line (the binary hands
//! their contents in), reloading at run time, and keys of features that do not exist yet.
//! `config.example.toml` is the reference for users and is tested against this module.

mod balance;
mod build;
pub mod key_file;
mod problem;
mod raw;
mod read;
mod target;
#[cfg(test)]
mod tests;
mod url;
mod value;

pub use balance::{Balance, BalanceTls, Balancing};
pub use problem::{Origin, Problem, Problems};
pub use target::{Place, Target, TargetError};
pub use url::{UpstreamUrl, UrlError};

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::protocol::access::{AllowedHosts, AllowedOrigins};
use crate::protocol::client::Trust;
use crate::protocol::dialect::Declared;

/// Everything `serve` is told. See `config.example.toml` for the reason behind each default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where clients connect.
    pub listen: Listen,
    /// The MCP server behind us.
    pub upstream: Upstream,
    /// Lifetimes and bounds of streams.
    pub streams: Streams,
    /// How events reach clients.
    pub delivery: Delivery,
    /// Which resumption proposals are spoken beside the specification's own.
    pub dialects: Dialects,
    /// Overrides by tool name; [`Config::call`] resolves them.
    pub tools: HashMap<String, Tool>,
    /// Who a caller is.
    pub auth: Auth,
    /// Limits of a single request, and of how many there may be.
    pub limits: Limits,
    /// Where events rest.
    pub store: Store,
    /// This process among its like.
    pub replica: Replica,
    /// The listener for probes and metrics.
    pub admin: Admin,
    /// What is logged, and how.
    pub log: Log,
}

/// The data listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Port 0 takes a free port.
    pub address: SocketAddr,
    /// `None` speaks no TLS.
    pub tls: Option<ListenTls>,
    /// By which names it may be asked. Where nothing is said: those of this machine on a loopback address, else any.
    pub allowed_hosts: AllowedHosts,
    /// Whose pages it answers. Where nothing is said: those of this machine on a loopback address, else those of the host
    /// that is asked.
    pub allowed_origins: AllowedOrigins,
    /// The proxies in front whose word on the client of a request is believed.
    pub trusted_proxies: Trust,
}

/// TLS of the data listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenTls {
    /// What it proves itself by.
    pub identity: KeyPair,
    /// The authorities one of which must have signed a client's certificate, in a PEM file; `None` asks clients for none.
    pub client_ca: Option<PathBuf>,
}

/// A certificate with its key, as the PEM files they are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The certificate, and behind it those of the authorities in between.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How the MCP server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Its endpoint; the path is also ours.
    pub url: UpstreamUrl,
    /// The `Host` header it gets.
    pub host: HostHeader,
    /// Speak HTTP/2 without asking first. With TLS the two sides agree on a version in any case.
    pub http2: bool,
    /// How it is told from others, and what we prove ourselves by; means nothing without `https`.
    pub tls: UpstreamTls,
    /// Longest wait for a TCP connection.
    pub connect_timeout: Duration,
    /// How long connections have failed before the proxy is not ready.
    pub unready: Duration,
    /// Most connections to the server at once; at least 1. Follows from the limit of open files and has no key.
    pub connections: usize,
    /// Longest wait for a response's head; `None` waits for ever.
    pub header_timeout: Option<Duration>,
    /// How long an idle connection may be used again.
    pub pool_idle: Duration,
    /// Resume upstream after a hard cut too, not only after an end on purpose.
    pub resume: bool,
}

/// TLS to the upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The authorities that are believed, in a PEM file; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<KeyPair>,
}

/// The `Host` header sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostHeader {
    /// The authority of the upstream's URL.
    Upstream,
    /// What the client sent.
    Client,
    /// This value, checked to be `host` or `host:port`.
    Name(HeaderValue),
}

/// Lifetimes and bounds of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// How long a detached, unsealed stream is kept; `None` never abandons it.
    pub max_wait: Option<Duration>,
    /// How long a sealed stream stays readable. Never shorter than a `max_wait` that is set,
    /// whatever was configured: clients are told `max_wait` and may come back that late.
    pub retention: Duration,
    /// The grace of a modern (2026-07-28 and later) call whose client left; zero cancels at
    /// once, `None` means twice the `retry` last written on the stream plus one second.
    pub modern_grace: Option<Duration>,
    /// Longest an upstream call may take; `None` sets no limit.
    pub call_timeout: Option<Duration>,
    /// How long a cancelled call may still answer before it is closed.
    pub cancel_grace: Duration,
    /// How long a full stream pauses its upstream without a reader before the call fails.
    pub full_wait: Duration,
    /// How long messages after the last response owed are still logged.
    pub linger: Duration,
    /// Most events kept per stream.
    pub max_events: usize,
    /// Largest event accepted from the upstream, in bytes.
    pub max_event_bytes: usize,
    /// Most bytes kept per stream; always more than `max_event_bytes`.
    pub max_bytes: usize,
    /// Most bytes held for one principal; at least `max_bytes`.
    pub max_bytes_per_principal: usize,
    /// Most bytes held for all; at least `max_bytes_per_principal`.
    pub max_bytes_total: usize,
    /// How long a call whose answer is proven to have arrived keeps that, and how long one is a retry's whose arrival is in doubt.
    pub delivered_retention: Duration,
}

/// How events reach a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Who gets the empty first event that carries an id.
    pub prime: Prime,
    /// How long the upstream's own status is waited for before we answer 200 and a stream;
    /// `None` waits for ever.
    pub commit_after: Option<Duration>,
    /// The reconnection time told to clients; at least 1 ms.
    pub retry: Duration,
    /// Silence after which a comment is written; at least 1 s.
    pub heartbeat: Duration,
    /// How long a response is held before it is closed gracefully; `None` never closes it.
    pub max_connection: Option<Duration>,
    /// Hold responses, or close them and be polled.
    pub mode: Mode,
    /// The reconnection time told to clients in [`Mode::Poll`]; at least 1 ms.
    pub poll_retry: Duration,
    /// The `retry` told to clients that a drain sends to another replica.
    pub drain_retry: Duration,
}

/// Whose responses are primed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prime {
    /// Every client's.
    All,
    /// Those of clients that negotiated 2025-11-25 or later, where an empty event is specified.
    Since20251125,
}

/// What happens to a response after it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is held until the stream ends.
    Stream,
    /// It is closed once what is stored was written; the client polls for the rest.
    Poll,
}

/// Which resumption proposals are spoken, and what their clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialects {
    /// Those a client declares in `initialize`.
    pub declared: Declared,
    /// The least a client is asked to wait before it comes back; zero says nothing.
    pub min_wait: Duration,
    /// Every stream is told by its URL as well.
    pub stream_url: bool,
    /// Whose connections end when it is the client's turn; [`Turns::Off`] without `stream_url`.
    pub stream_url_turns: Turns,
    /// How long the server is quiet before that.
    pub input_grace: Duration,
    /// What is answered in slices; `None`: nothing.
    pub resume_tokens: Option<Arc<ResumeTokens>>,
}

/// Whose connections end while the server waits for nothing but the client's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// Those of clients that have used a stream URL, in the session or on the stream.
    Seen,
    /// Everybody's.
    All,
    /// Nobody's.
    Off,
}

/// Calls that are answered in slices, each but the last with a token for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeTokens {
    /// How long a slice is; at least 1 s.
    pub slice: Duration,
    /// The tools whose calls are.
    pub tools: HashSet<String>,
    /// The methods whose requests are.
    pub methods: HashSet<String>,
}

/// Overrides for calls of one tool; `None` leaves the general value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tool {
    /// In place of [`Streams::max_wait`]; `Some(None)` never abandons.
    pub max_wait: Option<Option<Duration>>,
    /// In place of [`Streams::call_timeout`]; `Some(None)` sets no limit.
    pub call_timeout: Option<Option<Duration>>,
    /// In place of [`Delivery::mode`].
    pub mode: Option<Mode>,
}

/// Who a stream belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// What of a request names its principal.
    pub principal: PrincipalSource,
}

/// What of a request names its principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalSource {
    /// `Authorization`, else `X-API-Key`, else anonymous.
    Auto,
    /// This header's value.
    Header(HeaderName),
    /// The value of the cookie with this name.
    Cookie(String),
    /// Nothing: every caller is anonymous.
    None,
}

/// Limits of a single request, and of how many there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, in bytes.
    pub body_bytes: usize,
    /// Largest request head, in bytes; at least 8192, the least hyper can work with.
    pub header_bytes: usize,
    /// Most connections of clients at once; at least 1.
    pub connections: usize,
    /// Most running calls of one principal; at least 1.
    pub streams_per_principal: usize,
    /// Most running calls of one principal whose client is away; at least 1.
    pub detached_calls_per_principal: usize,
    /// Resumes of one principal in a second, beyond which they wait; at least 1.
    pub resumes_per_sec: u32,
    /// Most messages of one array; at least 1.
    pub batch: usize,
    /// Most records of sessions that were opened here; at least 1.
    pub sessions: usize,
    /// Most POSTs of one session that are held for the upstream or wait behind such; at least 1.
    pub held_posts_per_session: usize,
}

/// Where events rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In memory alone.
    Memory,
    /// In a directory as well.
    Disk(DiskStore),
    /// In a Redis as well, for every replica that uses it.
    Redis(RedisStore),
}

/// The kind, and where it is; no password.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Disk(disk) => write!(f, "disk:{}", disk.path.display()),
            Self::Redis(_) => f.write_str("redis"),
        }
    }
}

/// A directory that survives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStore {
    /// The directory.
    pub path: PathBuf,
    /// When what was written is safe from a machine that loses its power.
    pub fsync: Fsync,
    /// The most it may hold.
    pub max_bytes: u64,
}

/// What an event that was read survives besides the end of the process, `kill -9` included, which nothing is lost to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// A power cut and a crash of the system: each group of calls is synced before it is answered.
    Always,
    /// The same 200 ms later, or as soon as the disk has taken a sync that was begun then. A power cut loses the calls since,
    /// the last ones first and each whole.
    Interval,
}

/// A Redis, or what speaks like one.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Where, as whom, and in which of its databases.
    pub url: String,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// Roots to believe in place of the machine's.
    pub ca: Option<PathBuf>,
    /// What we show it.
    pub identity: Option<KeyPair>,
    /// What is done without it.
    pub on_unreachable: OnUnreachable,
}

/// Masked: the URL may hold a password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// What a store that cannot be reached means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnreachable {
    /// Memory takes its place, and the store gets everything once it is back.
    Degrade,
    /// Nothing goes on until it is back.
    Refuse,
}

/// This process among its like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its stable name; `None` means host name and listen port.
    pub name: Option<String>,
    /// The keys that sign event IDs and sessions of the proxy's own; `None`: those of the store, or of this process alone.
    pub key_file: Option<PathBuf>,
    /// Clients see its name in those of its server's sessions.
    pub wrap_sessions: bool,
    /// A replica that was not heard of for so long is gone, for those that share a store with it.
    pub lease: Duration,
    /// How long new calls are still taken once the process was asked to end; `None`: by the listener, see
    /// [`Config::drain_delay`].
    pub drain_delay: Option<Duration>,
    /// How long calls may run on once the process was asked to end.
    pub drain_timeout: Duration,
}

/// The listener for probes and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// `None` opens no such listener.
    pub address: Option<SocketAddr>,
    /// Where metrics and probes are answered alone; `None` opens no such listener.
    pub metrics_address: Option<SocketAddr>,
    /// By which names it may be asked: on a loopback address those of this machine and of `listen.allowed_hosts`, else any.
    pub allowed_hosts: AllowedHosts,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The shape of a line.
    pub format: LogFormat,
    /// A directive that `tracing_subscriber::EnvFilter` was seen to accept.
    pub level: String,
}

/// The shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Values given on the command line, unchecked; each wins over every other layer.
///
/// Has no `Debug`: an upstream's URL may carry a key in its query.
#[derive(Clone, Default)]
pub struct Flags {
    /// `--upstream`, in place of `upstream.url`.
    pub upstream: Option<String>,
    /// `--listen`, in place of `listen.address`.
    pub listen: Option<String>,
    /// `--admin`, in place of `admin.address`.
    pub admin: Option<String>,
    /// `--store`, in place of `store.kind`.
    pub store: Option<String>,
}

/// What holds for one call, its tool's overrides applied.
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

/// Time during which a drain still takes new calls, where nothing else is said and others may route to the proxy.
const DRAIN_DELAY: Duration = Duration::from_secs(5);

impl Config {
    /// Returns how long a drain still takes new calls: what was said, else nothing on a loopback listener, to which no load balancer
    /// routes that would have to notice. Where nothing is said, calls have at least half of the drain after that.
    pub fn drain_delay(&self) -> Duration {
        let most = DRAIN_DELAY.min(self.replica.drain_timeout / 2);
        let by_listener = if self.listen.address.ip().is_loopback() { Duration::ZERO } else { most };
        self.replica.drain_delay.unwrap_or(by_listener)
    }

    /// Makes the configuration of `serve` from its layers.
    ///
    /// `file` is its name, for messages only, and its text. Of `env` only names that begin with
    /// `MCP_RESUME_` matter. A file that is not TOML is reported as such and its keys are not
    /// judged further; everything else that is wrong anywhere is reported together.
    pub fn load(
        file: Option<(&str, &str)>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<Config, Problems> {
        let mut raw = raw::RawConfig::default();
        if let Some((name, text)) = file {
            raw.add_file(name, text);
        }
        raw.add_environment(env);
        raw.add_flags(flags);
        build::build(raw)
    }

    /// Where a sidecar with these layers has its admin listener; see [`Config::load`]. Only what is wrong with that key is
    /// reported, so that the rest may be missing.
    pub fn admin_address(
        file: Option<(&str, &str)>,
        env: impl IntoIterator<Item = (String, String)>,
        flag: Option<String>,
    ) -> Result<Option<SocketAddr>, Problems> {
        let mut raw = raw::RawConfig::default();
        if let Some((name, text)) = file {
            raw.add_file(name, text);
        }
        raw.add_environment(env);
        raw.add_flags(Flags { admin: flag, ..Flags::default() });
        build::admin_address(raw)
    }

    /// The defaults before the server at `url`, on a free loopback port and without an admin
    /// listener.
    pub fn for_upstream(url: &str) -> Result<Config, Problems> {
        let flags = Flags {
            upstream: Some(url.to_owned()),
            listen: Some("127.0.0.1:0".to_owned()),
            admin: Some(String::new()),
            store: None,
        };
        Config::load(None, [], flags)
    }

    /// What holds for a call of `tool`, or for any other request where that is `None`.
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
    /// Makes the configuration of `balance` from its layers; as [`Config::load`].
    ///
    /// # Errors
    /// Everything that is wrong anywhere, also with what only `serve` uses; an upstream is not needed.
    pub fn load(
        file: Option<(&str, &str)>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
        replicas: &[String],
    ) -> Result<Self, Problems> {
        let mut raw = raw::RawConfig::default();
        if let Some((name, text)) = file {
            raw.add_file(name, text);
        }
        raw.add_environment(env);
        raw.add_flags(flags);
        raw.add_replicas(replicas);
        build::balancing(raw)
    }
}
