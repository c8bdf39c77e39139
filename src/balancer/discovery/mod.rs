//! Discovery: turns the addresses, names and services of the configuration, and of a file, into
//! backends.
//!
//! Invariant: an error removes no backend. If a name cannot be resolved, or the file cannot be
//! read, its last good result stays. An empty answer after one with records is doubted: the earlier
//! records stay, and their backends are marked ([`Endpoint::is_doubtful`]). Only an answer with
//! other records, or the removal of a target, removes backends. A failure is logged once until it
//! ends. There is no other cache: every discovery queries again.
//!
//! Absent: the schedule (the caller discovers at the refresh interval, and when
//! [`Discovery::changed`] resolves), and health checks.

mod dns;
mod target_file;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::future::{Future, pending};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddr;
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::{self as load_balancing, Extensions};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use mcp_resume_base::sync;
use mcp_resume_config::{Location, Target};

pub use dns::Dns;
use target_file::TargetFile;

/// Deadline of a DNS query.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// Most concurrent DNS queries.
const LOOKUPS_AT_ONCE: usize = 64;
/// Interval between reads of the file.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Sources of targets.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Targets of the configuration.
    pub listed: Vec<Target>,
    /// A file with more targets, one a line, with `#` before comments.
    pub file: Option<PathBuf>,
}

/// Extension of every discovered [`load_balancing::Backend`]: its transport, priority and weight.
/// Pingora takes backends that differ only in their extensions for equal and keeps the old one;
/// [`Discovery::last_backends`] has the current ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// True if the backend uses TLS.
    pub is_https: bool,
    /// Name or address that its certificate must be valid for; sent as SNI.
    pub name: Arc<str>,
    /// Priority and weight for new calls.
    pub preference: PriorityAndWeight,
    /// True if the DNS no longer has records for its name: kept only as long as it passes health
    /// checks.
    pub is_doubtful: bool,
}

/// Priority and weight of a replica for new calls (RFC 2782).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityAndWeight {
    /// Rank of the priority, from 0. A replica gets new calls only if no replica of a lower number
    /// is available.
    pub priority: usize,
    /// Weight relative to the largest of the same priority, from 1 to 100.
    pub weight_percent: usize,
}

impl PriorityAndWeight {
    /// Value without SRV records.
    pub const EQUAL: Self = Self { priority: 0, weight_percent: 100 };
}

/// A DNS query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    /// Name, in lower case; complete with a final dot, else subject to the search list.
    pub name: String,
    /// Type of the records.
    pub kind: RecordKind,
}

/// A type of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A records.
    V4,
    /// AAAA records.
    V6,
    /// SRV records.
    Service,
}

/// One record of an answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    /// An address of the name.
    Address(IpAddr),
    /// A host of the service.
    Service {
        /// Priority; lower numbers are preferred.
        priority: u16,
        /// Complete name of the host, in lower case and with a final dot.
        host: String,
        /// Port of the service.
        port: u16,
        /// Weight among the hosts of one priority.
        weight: u16,
    },
}

/// A query failed. A negative answer is no failure.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// No answer within the deadline.
    #[error("no answer within {LOOKUP_TIMEOUT:?}")]
    TimedOut,
    /// Any other cause.
    #[error("{0}")]
    Failed(String),
}

/// Source of DNS answers.
pub trait Resolver: Send + Sync + 'static {
    /// Returns all records of that type, or none if they are known not to exist. Need not have a
    /// deadline.
    fn lookup(&self, query: Query) -> impl Future<Output = Result<Vec<Record>, LookupError>> + Send;
}

/// Discovery of [`Sources`]. Clones share their state.
pub struct Discovery<L = Dns> {
    listed: Arc<[Target]>,
    file: Option<Arc<TargetFile>>,
    resolver: Arc<L>,
    last: Arc<Mutex<LastDiscovery>>,
}

/// Results of the last discovery.
#[derive(Default)]
struct LastDiscovery {
    file: LastGood<Vec<Target>>,
    /// Digest of the file's contents.
    digest: Option<u64>,
    answers: Answers,
    backends: BTreeSet<load_balancing::Backend>,
}

type Answers = HashMap<Query, LastGood<Vec<Record>>>;

/// The last good value from a source, with the state of the source.
#[derive(Clone, Default)]
struct LastGood<T> {
    value: T,
    is_failing: bool,
    /// True if the last answer was empty, after one with records.
    is_doubtful: bool,
}

impl Discovery {
    /// Creates a discovery with the DNS of the system.
    pub fn new(sources: Sources) -> Self {
        Self::with_resolver(sources, Dns::default())
    }
}

impl<L: Resolver> Discovery<L> {
    /// Creates a discovery with `resolver`.
    pub fn with_resolver(sources: Sources, resolver: L) -> Self {
        let file = sources.file.map(|path| Arc::new(TargetFile::new(path)));
        Self { listed: sources.listed.into(), file, resolver: Arc::new(resolver), last: Arc::default() }
    }

    /// Resolves when the file's contents differ from those at the last discovery. Reads them about
    /// once a second, so that no way to replace a file is missed. Never resolves without a file, or
    /// while it cannot be read. Cancel safe.
    pub async fn changed(&self) {
        let Some(file) = &self.file else { return pending().await };
        loop {
            sleep(WATCH_INTERVAL).await;
            let digest = file.read().await.ok().map(|text| digest(&text));
            if digest.is_some() && digest != self.last().digest {
                return;
            }
        }
    }

    /// Discovers all backends, each address once. If several targets have an address, the first
    /// decides its transport. Cancel safe.
    pub async fn find_backends(&self) -> BTreeSet<load_balancing::Backend> {
        let mut targets = self.listed.to_vec();
        targets.extend(self.targets_of_file().await);
        let before = self.last().answers.clone();
        let mut answers = self.resolve(&before, service_queries(&targets)).await;
        answers.extend(self.resolve(&before, host_queries(&targets, &answers)).await);
        let backends = backends_of(&targets, &answers);
        let mut last = self.last();
        last.answers = answers;
        last.backends = backends.clone();
        backends
    }

    /// Returns the backends of the last discovery.
    pub fn last_backends(&self) -> BTreeSet<load_balancing::Backend> {
        self.last().backends.clone()
    }

    async fn targets_of_file(&self) -> Vec<Target> {
        let Some(file) = &self.file else { return Vec::new() };
        let text = file.read().await;
        let mut last = self.last();
        if let Ok(text) = &text {
            last.digest = Some(digest(text));
        }
        last.file.update(text.and_then(|text| target_file::parse(&text)), &file.path().display());
        last.file.value.clone()
    }

    /// Runs `queries` concurrently. A query that fails yields the answer from `before`.
    async fn resolve(&self, before: &Answers, queries: HashSet<Query>) -> Answers {
        let limit = Arc::new(Semaphore::new(LOOKUPS_AT_ONCE));
        let mut running = JoinSet::new();
        for query in queries {
            let (resolver, limit) = (self.resolver.clone(), limit.clone());
            let mut last_good = before.get(&query).cloned().unwrap_or_default();
            running.spawn(async move {
                let _permit = limit.acquire().await;
                let answer = timeout(LOOKUP_TIMEOUT, resolver.lookup(query.clone())).await;
                last_good.update_records(answer.unwrap_or(Err(LookupError::TimedOut)), &query.name);
                // Servers rotate the records in their answers.
                last_good.value.sort();
                (query, last_good)
            });
        }
        let mut answers = Answers::new();
        while let Some(answered) = running.join_next().await {
            match answered {
                Ok((query, last_good)) => _ = answers.insert(query, last_good),
                Err(error) => resume_unwind(error.into_panic()),
            }
        }
        answers
    }

    fn last(&self) -> MutexGuard<'_, LastDiscovery> {
        sync::lock(&self.last)
    }
}

#[async_trait]
impl<L: Resolver> ServiceDiscovery for Discovery<L> {
    async fn discover(&self) -> pingora_core::Result<(BTreeSet<load_balancing::Backend>, HashMap<u64, bool>)> {
        Ok((self.find_backends().await, HashMap::new()))
    }
}

impl<L> Clone for Discovery<L> {
    fn clone(&self) -> Self {
        let (listed, file) = (self.listed.clone(), self.file.clone());
        Self { listed, file, resolver: self.resolver.clone(), last: self.last.clone() }
    }
}

impl<T> LastGood<T> {
    /// Takes a new value, or keeps the last good one after an error. Logs when a failure begins and
    /// ends.
    fn update(&mut self, found: Result<T, impl Display>, source: &dyn Display) {
        let failed = match found {
            Ok(value) => {
                self.value = value;
                None
            }
            Err(error) => Some(error),
        };
        match (&failed, self.is_failing) {
            (Some(error), false) => warn!(%source, %error, "discovery of replicas fails; those known before stay"),
            (None, true) => info!(%source, "discovery of replicas works again"),
            (Some(_), true) | (None, false) => {}
        }
        self.is_failing = failed.is_some();
    }
}

impl LastGood<Vec<Record>> {
    /// Takes an answer of the DNS as [`Self::update`] does, but doubts an empty one after one with
    /// records.
    fn update_records(&mut self, found: Result<Vec<Record>, LookupError>, name: &str) {
        if found.as_ref().is_ok_and(Vec::is_empty) && !self.value.is_empty() {
            if !std::mem::replace(&mut self.is_doubtful, true) {
                warn!(
                    source = name,
                    "the DNS has no replicas any more; those known before stay while they pass health checks"
                );
            }
            self.is_failing = false;
            return;
        }
        self.is_doubtful &= found.is_err();
        self.update(found, &name);
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn service_queries(targets: &[Target]) -> HashSet<Query> {
    let service = |target: &Target| match target.location() {
        Location::Service(name) => Some(Query { name: name.clone(), kind: RecordKind::Service }),
        Location::Address(_) | Location::Name { .. } => None,
    };
    targets.iter().filter_map(service).collect()
}

fn host_queries(targets: &[Target], answers: &Answers) -> HashSet<Query> {
    let names = targets.iter().flat_map(|target| match target.location() {
        Location::Address(_) => Vec::new(),
        Location::Name { name, .. } => vec![name.clone()],
        Location::Service(name) => hosts_of(name, answers).into_iter().map(|host| host.name).collect(),
    });
    names.flat_map(|name| [RecordKind::V4, RecordKind::V6].map(|kind| Query { name: name.clone(), kind })).collect()
}

fn backends_of(targets: &[Target], answers: &Answers) -> BTreeSet<load_balancing::Backend> {
    let mut endpoints: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
    for target in targets {
        let name: Arc<str> = target.certificate_name().into();
        for FoundAddress { addr, preference, is_doubtful } in addresses(target.location(), answers) {
            let endpoint = Endpoint { is_https: target.is_https(), name: name.clone(), preference, is_doubtful };
            let known = endpoints.entry(addr).or_insert(endpoint);
            known.is_doubtful &= is_doubtful;
        }
    }
    endpoints.into_iter().map(|(addr, endpoint)| backend(addr, endpoint)).collect()
}

fn backend(addr: SocketAddr, endpoint: Endpoint) -> load_balancing::Backend {
    let mut ext = Extensions::new();
    ext.insert(endpoint);
    load_balancing::Backend { addr: PingoraAddr::Inet(addr), weight: 1, ext }
}

/// One address of a target.
struct FoundAddress {
    addr: SocketAddr,
    preference: PriorityAndWeight,
    is_doubtful: bool,
}

fn addresses(location: &Location, answers: &Answers) -> Vec<FoundAddress> {
    let (hosts, is_doubtful) = match location {
        Location::Address(addr) => {
            return vec![FoundAddress { addr: *addr, preference: PriorityAndWeight::EQUAL, is_doubtful: false }];
        }
        Location::Name { name, port } => {
            (vec![Host { name: name.clone(), port: *port, preference: PriorityAndWeight::EQUAL }], false)
        }
        Location::Service(name) => (hosts_of(name, answers), records(name, RecordKind::Service, answers).1),
    };
    let of_kind = |host: &Host, kind: RecordKind| {
        let (records, is_doubted) = records(&host.name, kind, answers);
        let ips = records.iter().filter_map(|record| match record {
            Record::Address(ip) => Some(*ip),
            Record::Service { .. } => None,
        });
        let found = |ip| FoundAddress {
            addr: SocketAddr::new(ip, host.port),
            preference: host.preference,
            is_doubtful: is_doubtful || is_doubted,
        };
        ips.map(found).collect::<Vec<_>>()
    };
    hosts.iter().flat_map(|host| [of_kind(host, RecordKind::V4), of_kind(host, RecordKind::V6)]).flatten().collect()
}

/// Returns the records for a name, and true if they are doubted.
fn records<'a>(name: &str, kind: RecordKind, answers: &'a Answers) -> (&'a [Record], bool) {
    let last_good = answers.get(&Query { name: name.to_owned(), kind });
    last_good.map_or((&[], false), |last_good| (&last_good.value, last_good.is_doubtful))
}

struct Host {
    name: String,
    port: u16,
    preference: PriorityAndWeight,
}

/// Returns the hosts of the service in the order of their priorities. A host named `.` means that
/// the service has no host.
fn hosts_of(service: &str, answers: &Answers) -> Vec<Host> {
    let mut priorities: BTreeMap<u16, Vec<(&String, u16, u16)>> = BTreeMap::new();
    for record in records(service, RecordKind::Service, answers).0 {
        if let Record::Service { priority, host, port, weight } = record
            && host != "."
        {
            priorities.entry(*priority).or_default().push((host, *port, *weight));
        }
    }
    let mut hosts = Vec::new();
    for (priority, found) in priorities.into_values().enumerate() {
        let largest = found.iter().map(|(.., weight)| *weight).max().unwrap_or(0);
        for (name, port, weight) in found {
            let preference = PriorityAndWeight { priority, weight_percent: weight_percent(weight, largest) };
            hosts.push(Host { name: name.clone(), port, preference });
        }
    }
    hosts
}

/// Returns the weight as a percentage of the largest, at least 1. If all weights are 0, as they are
/// without SRV records, all are equal.
fn weight_percent(weight: u16, largest: u16) -> usize {
    if largest == 0 { 100 } else { (usize::from(weight) * 100).div_ceil(largest.into()).max(1) }
}

#[cfg(test)]
mod tests;
