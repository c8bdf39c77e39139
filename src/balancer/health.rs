//! Health checks: requests for the report of each replica, at an interval, and at once if a request
//! names an unknown owner.
//!
//! Discovery supplies the addresses; both run in Pingora's [`Backends`]. The results go to the
//! [`Table`]. Absent: conclusions from the results.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::{Method, StatusCode, header};
use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::Connector;
use pingora_core::protocols::l4::socket;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::RequestHeader;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{self as load_balancing, Backends};
use serde::Deserialize;
use tokio::sync::{Mutex, Notify};
use tracing::{debug, warn};

use super::discovery::{Discovery, Dns, Endpoint, PriorityAndWeight, Resolver};
use super::metrics::Metrics;
use super::peer::Peers;
use super::selection::{Condition, StoreScope};
use super::table::{Attributes, ReplicaReport, Table, Transport};
use mcp_resume_base::clock;
use mcp_resume_protocol::ids::Owner;
use mcp_resume_protocol::routing::WELL_KNOWN;

/// Path of a sidecar's report.
pub const PATH: &str = WELL_KNOWN;
/// Longest report accepted; a report has a few hundred bytes.
const REPORT_MAX: usize = 16 * 1024;
/// Least interval between the rounds for unknown owners, because any client can invent an owner.
const RECHECK_PAUSE: Duration = Duration::from_millis(200);
/// Least interval between lookups for a replica that is down: it may be up at another address.
const LOOKUP_PAUSE: Duration = Duration::from_secs(1);

/// Intervals and limits of health checks.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Interval between lookups of names.
    pub refresh: Duration,
    /// Interval between health checks.
    pub health: Duration,
    /// Deadline of one health check.
    pub timeout: Duration,
    /// Consecutive failed health checks until a replica is down.
    pub unhealthy_after: usize,
}

/// Discovery and health checks, which keep the table up to date.
pub struct HealthChecker<L = Dns> {
    table: Arc<Table>,
    metrics: Arc<Metrics>,
    discovery: Discovery<L>,
    backends: Backends,
    intervals: Intervals,
    /// Start of the last round for an unknown owner.
    last_recheck: Mutex<Option<Instant>>,
    /// Notified when a backend is down.
    backend_down: Notify,
}

impl<L: Resolver> HealthChecker<L> {
    /// Starts no check yet.
    pub fn new(
        table: Arc<Table>,
        metrics: Arc<Metrics>,
        discovery: Discovery<L>,
        peers: Arc<Peers>,
        intervals: Intervals,
    ) -> Self {
        let mut backends = Backends::new(Box::new(discovery.clone()));
        let connector = Connector::new(Some(ConnectorOptions::from_server_conf(peers.server_conf())));
        backends.set_health_check(Box::new(IdentityCheck { table: table.clone(), peers, connector, intervals }));
        let (last_recheck, backend_down) = (Mutex::new(None), Notify::new());
        Self { table, metrics, discovery, backends, intervals, last_recheck, backend_down }
    }

    /// Discovers backends and checks each, once.
    pub async fn check_once(&self) {
        self.discover().await;
        self.check().await;
    }

    /// Discovers and checks backends until dropped.
    pub async fn run(&self) {
        let discovering = async {
            loop {
                let now = clock::now();
                let missing = async {
                    clock::sleep_until(now + LOOKUP_PAUSE).await;
                    self.backend_down.notified().await;
                };
                tokio::select! {
                    biased;
                    () = self.discovery.changed() => {}
                    () = clock::sleep_until(now + self.intervals.refresh) => {}
                    () = missing => {}
                }
                self.discover().await;
            }
        };
        let checking = async {
            let mut due = clock::now() + self.intervals.health;
            loop {
                // The interval counts from the start of a round, which takes as long as its slowest
                // check.
                clock::sleep_until(due).await;
                due = clock::now() + self.intervals.health;
                self.check().await;
            }
        };
        tokio::join!(discovering, checking);
    }

    /// Checks every backend because of a request that arrived at `since`. Requests that wait at the
    /// same time share one round.
    pub async fn recheck(&self, since: Instant) {
        let mut last = self.last_recheck.lock().await;
        if let Some(began) = *last {
            if began >= since {
                return;
            }
            clock::sleep_until(began + RECHECK_PAUSE).await;
        }
        *last = Some(clock::now());
        self.metrics.observe_recheck();
        let before = self.table.never_reported();
        // The DNS may take longer than a client should wait.
        let looking = tokio::time::timeout(self.intervals.timeout, self.discover());
        let _ = tokio::join!(self.check(), looking);
        if self.table.never_reported().iter().any(|address| !before.contains(address)) {
            self.check().await;
        }
    }

    async fn discover(&self) {
        let found = self.backends.update(|_| {}).await;
        if let Err(error) = found {
            warn!(%error, "the discovery of replicas failed");
        }
        let found = self.discovery.last_backends();
        let is_up = |address: &SocketAddr| self.table.find(*address).is_some_and(|backend| backend.is_up());
        let mut kept = HashMap::new();
        for found in &found {
            if let Some(address) = inet(found)
                && (!is_doubtful(found) || is_up(address))
            {
                kept.insert(*address, attributes(found));
            }
        }
        self.table.set(&kept);
    }

    async fn check(&self) {
        self.backends.run_health_check(true).await;
        let conditions: Vec<_> = self.table.replicas().iter().map(|replica| replica.condition).collect();
        if conditions.contains(&Condition::Down) {
            self.backend_down.notify_one();
        }
        self.metrics.observe_replicas(
            &conditions,
            self.table.never_reported().len(),
            self.table.count_duplicate_owners(),
        );
    }
}

struct IdentityCheck {
    table: Arc<Table>,
    peers: Arc<Peers>,
    connector: Connector,
    intervals: Intervals,
}

#[async_trait]
impl HealthCheck for IdentityCheck {
    async fn check(&self, target: &load_balancing::Backend) -> Result<()> {
        let Some(backend) = inet(target).and_then(|address| self.table.find(*address)) else { return Ok(()) };
        let report = self.request_report(self.peers.peer_for(&backend), backend.address);
        let report = tokio::time::timeout(self.intervals.timeout, report).await;
        let report = report
            .unwrap_or_else(|_| Error::e_explain(ErrorType::ReadTimedout, "the replica sent no report in time"))
            .inspect_err(|error| backend.record_failed_check(error.to_string()))?;
        backend.record_report(report);
        Ok(())
    }

    async fn health_status_change(&self, target: &load_balancing::Backend, healthy: bool) {
        if let Some(backend) = inet(target).and_then(|address| self.table.find(*address))
            && !healthy
        {
            backend.mark_down();
        }
    }

    fn health_threshold(&self, success: bool) -> usize {
        if success { 1 } else { self.intervals.unhealthy_after }
    }
}

impl IdentityCheck {
    /// Requests a report. Each check uses a connection of its own, since it also tests whether a
    /// connection can be made.
    async fn request_report(&self, peer: HttpPeer, address: SocketAddr) -> Result<ReplicaReport> {
        let mut request = RequestHeader::build(Method::GET, PATH.as_bytes(), None)?;
        request.insert_header(header::HOST, address.to_string())?;
        let (mut session, _) = self.connector.get_http_session(&peer).await?;
        session.write_request_header(Box::new(request)).await?;
        session.finish_request_body().await?;
        session.read_response_header().await?;
        let status = session.response_header().map(|head| head.status);
        if status != Some(StatusCode::OK) {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, format!("{PATH} has the status {status:?}"));
        }
        let mut body = Vec::new();
        while let Some(piece) = session.read_response_body().await? {
            body.extend_from_slice(&piece);
            if body.len() > REPORT_MAX {
                return Error::e_explain(ErrorType::InvalidHTTPHeader, "the report is too long");
            }
        }
        session.shutdown().await;
        parse_report(&body).ok_or_else(|| Error::explain(ErrorType::InvalidHTTPHeader, "not a report of a sidecar"))
    }
}

fn inet(backend: &load_balancing::Backend) -> Option<&SocketAddr> {
    match &backend.addr {
        socket::SocketAddr::Inet(address) => Some(address),
        #[cfg(unix)]
        socket::SocketAddr::Unix(_) => None,
    }
}

fn attributes(backend: &load_balancing::Backend) -> Attributes {
    let endpoint = backend.ext.get::<Endpoint>();
    let tls_name = endpoint.filter(|endpoint| endpoint.is_https).map(|endpoint| endpoint.name.to_string());
    Attributes {
        transport: Transport { tls_name },
        preference: endpoint.map_or(PriorityAndWeight::EQUAL, |endpoint| endpoint.preference),
    }
}

fn is_doubtful(backend: &load_balancing::Backend) -> bool {
    backend.ext.get::<Endpoint>().is_some_and(|endpoint| endpoint.is_doubtful)
}

/// Wire form of a report. Unknown fields, such as fields of a later version, are ignored.
#[derive(Deserialize)]
struct ReportBody {
    service: String,
    owner: String,
    instance: String,
    ready: bool,
    draining: bool,
    store: ReportStore,
    #[serde(default)]
    bridge: bool,
}

#[derive(Deserialize)]
struct ReportStore {
    kind: String,
    shared: bool,
}

fn parse_report(body: &[u8]) -> Option<ReplicaReport> {
    let body: ReportBody = match serde_json::from_slice(body) {
        Ok(body) => body,
        Err(error) => {
            debug!(%error, "a report cannot be parsed");
            return None;
        }
    };
    if body.service != "mcp-resume" {
        return None;
    }
    let store = match (body.store.shared, body.store.kind.as_str()) {
        (true, _) => StoreScope::Shared,
        (false, "memory") => StoreScope::Process,
        (false, _) => StoreScope::Replica,
    };
    Some(ReplicaReport {
        owner: Owner::parse(&body.owner)?,
        instance: body.instance,
        is_ready: body.ready && !body.draining,
        store,
        keeps_callers: body.bridge,
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::super::discovery::{LookupError, Query, Record, RecordKind, Sources};
    use super::super::in_flight::InFlight;
    use super::super::table::Policy;
    use super::*;
    use mcp_resume_config::BalanceTls;

    const WAIT: Duration = Duration::from_secs(1);
    const UNHEALTHY_AFTER: usize = 3;

    /// A resolver with fixed answers; `None` never answers.
    #[derive(Clone, Default)]
    struct Names(Arc<std::sync::Mutex<Option<Vec<Record>>>>);

    impl Resolver for Names {
        async fn lookup(&self, query: Query) -> std::result::Result<Vec<Record>, LookupError> {
            let answer = self.0.lock().unwrap().clone();
            match answer {
                Some(records) if query.kind == RecordKind::V4 => Ok(records),
                Some(_) => Ok(Vec::new()),
                None => pending().await,
            }
        }
    }

    fn health_checker(target: Option<&str>, names: &Names) -> (Arc<HealthChecker<Names>>, Arc<Table>, Arc<Metrics>) {
        let intervals = Intervals { refresh: WAIT * 5, health: WAIT, timeout: WAIT, unhealthy_after: UNHEALTHY_AFTER };
        let table = Arc::new(Table::new(Policy { eject_after: 1, eject: WAIT, slow_start: None }));
        let metrics = Arc::new(Metrics::new().unwrap());
        let peers = Arc::new(Peers::new(&BalanceTls::default(), WAIT).unwrap());
        let listed = target.into_iter().map(|target| target.parse().unwrap()).collect();
        let discovery = Discovery::with_resolver(Sources { listed, file: None }, names.clone());
        (Arc::new(HealthChecker::new(table.clone(), metrics.clone(), discovery, peers, intervals)), table, metrics)
    }

    fn well(owner: u32) -> ReplicaReport {
        ReplicaReport {
            owner: Owner(owner),
            instance: "a".to_owned(),
            is_ready: true,
            store: StoreScope::Process,
            keeps_callers: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_replica_is_down_in_time() {
        // The kernel completes the connections, but no process accepts them.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let (health, table, _) = health_checker(Some(&format!("http://{address}")), &Names::default());
        health.discover().await;
        let backend = table.find(address).unwrap();
        backend.record_report(well(7));
        let down = InFlight::begin(&backend);
        let began = clock::now();
        let running = tokio::spawn(async move { health.run().await });
        down.down().cancelled().await;
        let took = clock::now() - began;
        assert!(took <= WAIT * UNHEALTHY_AFTER as u32 + WAIT, "{took:?}");
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_dns_delays_a_recheck_no_longer_than_the_timeout() {
        let (health, ..) = health_checker(Some("http://mcp.svc:80"), &Names::default());
        let began = clock::now();
        health.recheck(began).await;
        assert_eq!(clock::now() - began, WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_dns_answer_removes_no_replica_that_is_up() {
        let names = Names::default();
        let (health, table, _) = health_checker(Some("http://mcp.svc:80"), &names);
        let addresses = ["10.0.0.7", "10.0.0.8"].map(|ip| SocketAddr::new(ip.parse().unwrap(), 80));
        *names.0.lock().unwrap() = Some(addresses.iter().map(|address| Record::Address(address.ip())).collect());
        health.discover().await;
        for address in addresses {
            table.find(address).unwrap().record_report(well(7));
        }
        *names.0.lock().unwrap() = Some(Vec::new());
        health.discover().await;
        assert!(addresses.iter().all(|address| table.find(*address).is_some()));
        table.find(addresses[0]).unwrap().mark_down();
        for _ in 0..2 {
            health.discover().await;
            assert!(table.find(addresses[0]).is_none() && table.find(addresses[1]).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_for_unknown_owners_share_a_round() {
        let (health, _, metrics) = health_checker(None, &Names::default());
        let rounds = || String::from_utf8(metrics.render()).unwrap();
        let began = clock::now();
        for expected in 1..=3 {
            tokio::time::advance(Duration::from_millis(1)).await;
            let since = clock::now();
            let rechecks = (0..100).map(|_| {
                let health = health.clone();
                tokio::spawn(async move { health.recheck(since).await })
            });
            for recheck in rechecks.collect::<Vec<_>>() {
                recheck.await.unwrap();
            }
            assert!(rounds().contains(&format!("rounds_total {expected}\n")), "{}", rounds());
        }
        assert!(clock::now() - began >= RECHECK_PAUSE * 2, "invented owners do not set the pace");
    }

    #[test]
    fn a_report_is_parsed_and_other_bodies_are_refused() {
        let body = r#"{"service":"mcp-resume","owner":"0badcafe","instance":"00","ready":true,"draining":false,
            "store":{"kind":"redis","shared":true,"epoch":"00000001"},"openStreams":3,"later":[]}"#;
        let report = ReplicaReport {
            owner: Owner(0x0bad_cafe),
            instance: "00".to_owned(),
            is_ready: true,
            store: StoreScope::Shared,
            keeps_callers: false,
        };
        assert_eq!(parse_report(body.as_bytes()), Some(report.clone()));
        let bridge = body.replace("\"later\"", "\"bridge\":true,\"later\"");
        assert_eq!(parse_report(bridge.as_bytes()), Some(ReplicaReport { keeps_callers: true, ..report.clone() }));
        let draining = body.replace("\"draining\":false", "\"draining\":true");
        assert_eq!(parse_report(draining.as_bytes()), Some(ReplicaReport { is_ready: false, ..report }));
        for (from, to) in [("mcp-resume", "other"), ("0badcafe", "0BADCAFE"), ("\"ready\":true,", ""), ("{", "[")] {
            assert_eq!(parse_report(body.replacen(from, to, 1).as_bytes()), None, "{to}");
        }
    }
}
