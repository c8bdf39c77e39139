//! What `balance` is told: the section of its own, beside those it has in common with `serve`.

use std::path::PathBuf;
use std::time::Duration;

use super::read::Reader;
use super::value::{DAY_MS, YEAR, file, key_pair, none_if_zero};
use super::{Admin, KeyPair, Limits, Listen, Log, Target};

/// Everything `balance` is told. See `config.example.toml` for the reason behind each default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancing {
    /// Where clients connect.
    pub listen: Listen,
    /// The replicas, and how they are chosen.
    pub balance: Balance,
    /// Limits of a single request, and of connections.
    pub limits: Limits,
    /// The listener for probes and metrics.
    pub admin: Admin,
    /// What is logged, and how.
    pub log: Log,
}

/// The sidecars behind a balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Where they are.
    pub replicas: Vec<Target>,
    /// A file with more of them, a line each.
    pub file: Option<PathBuf>,
    /// So often names and the file are looked up again.
    pub refresh: Duration,
    /// So often each is asked who it is and how it is.
    pub health: Duration,
    /// So long it may take to answer that.
    pub health_timeout: Duration,
    /// After so many answers that failed to come, one behind the other, it is down.
    pub unhealthy_after: usize,
    /// After so many requests that broke, one behind the other, it gets no new calls for a while.
    pub eject_after: usize,
    /// How long the first time; longer each time that follows.
    pub eject: Duration,
    /// One that has just come up gets its full part after so long.
    pub slow_start: Option<Duration>,
    /// Longest wait for a connection to one.
    pub connect_timeout: Duration,
    /// Connections from the listener's trusted proxies begin with a PROXY header.
    pub proxy_protocol: bool,
    /// Requests of one client address in a second.
    pub requests_per_sec: Option<u32>,
    /// What still runs when the balancer is asked to end gets so long.
    pub grace: Duration,
    /// Where a successor asks for the listeners.
    pub upgrade_socket: Option<PathBuf>,
    /// TLS to the sidecars.
    pub tls: BalanceTls,
}

/// TLS to the sidecars, for those that have an `https` address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalanceTls {
    /// The authorities that are believed, in a PEM file; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<KeyPair>,
    /// The name in their certificates, where it is not the one they are looked up by.
    pub name: Option<String>,
}

pub(super) fn balance(reader: &mut Reader) -> Balance {
    let identity = key_pair(reader, "balance.tls");
    let mut s = reader.section("balance.tls");
    let ca = s.text("ca", file).flatten();
    let name = s.text("name", |name| Ok((!name.is_empty()).then(|| name.to_owned()))).flatten();
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
