//! Configuration of `balance`: a section of its own, beside sections that `serve` has as well.

use std::path::PathBuf;
use std::time::Duration;

use super::read::Reader;
use super::value::{DAY_MS, YEAR, file, key_pair, non_empty, none_if_zero};
use super::{Admin, Auth, KeyPair, Limits, Listen, Log, Target};

/// The configuration of `balance`. See `config.example.toml` for the reason behind each default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancing {
    /// The data listener.
    pub listen: Listen,
    /// The replicas, and the choice among them.
    pub balance: Balance,
    /// Identification of callers, as at the sidecars.
    pub auth: Auth,
    /// Limits of requests and connections.
    pub limits: Limits,
    /// The listener for probes and metrics.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
}

/// The sidecars behind a balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Targets that discovery resolves.
    pub replicas: Vec<Target>,
    /// A file with more targets, one a line.
    pub file: Option<PathBuf>,
    /// Interval between lookups of names and the file.
    pub refresh: Duration,
    /// Interval between health checks.
    pub health: Duration,
    /// Deadline of a health check.
    pub health_timeout: Duration,
    /// Consecutive failed health checks until a replica is down.
    pub unhealthy_after: usize,
    /// Consecutive failed requests until a replica is ejected.
    pub eject_after: usize,
    /// Duration of the first ejection; each following one is longer.
    pub eject: Duration,
    /// Time until a new replica has its full weight, or `None` without slow start.
    pub slow_start: Option<Duration>,
    /// Longest wait for a connection to a replica.
    pub connect_timeout: Duration,
    /// True if connections from the listener's trusted proxies begin with a PROXY header.
    pub proxy_protocol: bool,
    /// Limit of requests per second and client address.
    pub requests_per_sec: Option<u32>,
    /// Grace period of requests in flight at shutdown.
    pub grace: Duration,
    /// Unix socket where a successor takes over the listeners.
    pub upgrade_socket: Option<PathBuf>,
    /// TLS to the sidecars.
    pub tls: BalanceTls,
}

/// TLS to the sidecars that have an `https` address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalanceTls {
    /// PEM file with the trusted authorities, or `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<KeyPair>,
    /// Name in the sidecars' certificates, if it differs from the resolved name.
    pub name: Option<String>,
}

pub(super) fn balance(reader: &mut Reader) -> Balance {
    let identity = key_pair(reader, "balance.tls");
    let mut s = reader.section("balance.tls");
    let ca = s.text("ca", file).flatten();
    let name = s.text("name", non_empty).flatten();
    let mut s = reader.section("balance");
    Balance {
        replicas: s.list("replicas", 0).unwrap_or_default(),
        file: s.text("file", file).flatten(),
        refresh: s.secs("refresh_secs", 1..=YEAR).unwrap_or(Duration::from_secs(5)),
        health: s.millis("health_ms", 50..=DAY_MS).unwrap_or(Duration::from_secs(1)),
        health_timeout: s.millis("health_timeout_ms", 50..=DAY_MS).unwrap_or(Duration::from_secs(1)),
        unhealthy_after: s.count("unhealthy_after", 1).unwrap_or(3),
        eject_after: s.count("eject_after", 1).unwrap_or(5),
        eject: s.secs("eject_secs", 1..=YEAR).unwrap_or(Duration::from_secs(10)),
        slow_start: none_if_zero(s.secs("slow_start_secs", 0..=YEAR).unwrap_or(Duration::from_secs(10))),
        connect_timeout: s.millis("connect_timeout_ms", 1..=DAY_MS).unwrap_or(Duration::from_secs(1)),
        proxy_protocol: s.boolean("proxy_protocol").unwrap_or(false),
        requests_per_sec: s.rate_or_none("requests_per_sec"),
        grace: s.secs("grace_secs", 0..=YEAR).unwrap_or(Duration::from_secs(30)),
        upgrade_socket: s.text("upgrade_socket", file).flatten(),
        tls: BalanceTls { ca, identity, name },
    }
}
