//! The backends: address, transport, the replica's last report, and the outcomes of recent
//! requests.
//!
//! The replica at an address is known by its own report alone: names and addresses carry no
//! identity. This module owns the table, the passive health checks (ejection and slow start), and
//! the signal that cuts requests at a backend that goes down. Absent: active health checks
//! ([`super::health`]), and the selection ([`super::selection`]).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::discovery::PriorityAndWeight;
use super::selection::{Condition, Replica, StoreScope};
use mcp_resume_base::clock;
use mcp_resume_base::sync;
use mcp_resume_protocol::ids::Owner;

/// Most multiples of [`Policy::eject`] that an ejection lasts.
const EJECT_MOST: u32 = 10;
/// Weight of a replica that has just come up.
const FIRST_WEIGHT: f64 = 0.1;
const WEIGHT_STEPS: f64 = 10.0;

/// A replica's report on itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReport {
    /// Owner of the replica's streams and sessions.
    pub owner: Owner,
    /// Identifier of the process, which changes with each start.
    pub instance: String,
    /// True if the replica takes new calls.
    pub is_ready: bool,
    /// Scope of its store.
    pub store: StoreScope,
    /// True if the requests of one caller belong together, though they name no session.
    pub keeps_callers: bool,
}

/// Transport to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Server name for TLS, or `None` for plain TCP.
    pub tls_name: Option<String>,
}

/// Attributes of a backend that discovery supplies.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Transport to the backend.
    pub transport: Transport,
    /// Priority and weight for new calls.
    pub preference: PriorityAndWeight,
}

/// Policy for ejection and slow start.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Consecutive failures until a backend is ejected.
    pub eject_after: usize,
    /// Duration of the first ejection.
    pub eject: Duration,
    /// Time until a new replica has its full weight, or `None` without slow start.
    pub slow_start: Option<Duration>,
}

/// All backends.
pub struct Table {
    policy: Policy,
    backends: RwLock<Arc<Vec<Arc<Backend>>>>,
    /// Owners that two processes claimed at the last count.
    duplicate_owners: Mutex<Vec<Owner>>,
}

/// A backend: one address, and the replica there.
pub struct Backend {
    /// Address of the backend.
    pub address: SocketAddr,
    /// Transport to the backend.
    pub transport: Transport,
    policy: Policy,
    /// Requests in flight.
    pub(super) in_flight: AtomicUsize,
    state: Mutex<BackendState>,
}

struct BackendState {
    preference: PriorityAndWeight,
    /// The last report, of any age.
    report: Option<ReplicaReport>,
    is_up: bool,
    up_since: Instant,
    /// Cancelled when the backend goes down; replaced when it comes up.
    down: CancellationToken,
    /// Consecutive requests whose connection failed.
    transport_failures: usize,
    /// Consecutive calls that got an error response.
    error_responses: usize,
    /// Time of the last failure of either kind.
    last_failure: Option<Instant>,
    ejections: u32,
    ejected_until: Option<Instant>,
    /// Reason why the last health check brought no report, or `None` if it brought a report.
    check_failure: Option<String>,
}

impl BackendState {
    /// Returns the failures since the last success, or 0 if the last failure is older than
    /// `window`.
    fn recent_failures(&self, now: Instant, window: Duration) -> usize {
        let is_recent = self.last_failure.is_some_and(|at| now.saturating_duration_since(at) < window);
        if is_recent { self.transport_failures + self.error_responses } else { 0 }
    }
}

impl Table {
    /// Creates an empty table.
    pub fn new(policy: Policy) -> Self {
        Self { policy, backends: RwLock::default(), duplicate_owners: Mutex::default() }
    }

    /// Sets the backends to the addresses of `found`. The state of a backend that stays, with the
    /// same transport, is kept.
    pub fn set(&self, found: &HashMap<SocketAddr, Attributes>) {
        let mut backends = self.backends.write().unwrap_or_else(PoisonError::into_inner);
        let is_as_before = |backend: &&Arc<Backend>| {
            found.get(&backend.address).is_some_and(|attributes| attributes.transport == backend.transport)
        };
        let mut next: Vec<Arc<Backend>> = backends.iter().filter(is_as_before).cloned().collect();
        for (address, attributes) in found {
            if let Some(known) = next.iter().find(|backend| backend.address == *address) {
                known.lock().preference = attributes.preference;
            } else {
                info!(%address, "discovered a replica");
                next.push(Arc::new(Backend::new(*address, attributes.clone(), self.policy)));
            }
        }
        for gone in backends.iter().filter(|backend| !next.iter().any(|kept| Arc::ptr_eq(kept, backend))) {
            // Requests in flight continue: a replica that left the list may still respond.
            info!(address = %gone.address, "a replica is no longer discovered");
        }
        next.sort_by_key(|backend| backend.address);
        *backends = Arc::new(next);
    }

    /// Returns all backends.
    pub fn backends(&self) -> Arc<Vec<Arc<Backend>>> {
        self.backends.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the backend at an address.
    pub fn find(&self, address: SocketAddr) -> Option<Arc<Backend>> {
        self.backends().iter().find(|backend| backend.address == address).cloned()
    }

    /// Returns a snapshot of each backend that has ever reported.
    pub fn replicas(&self) -> Vec<Replica> {
        let now = clock::now();
        self.backends().iter().filter_map(|backend| backend.replica(now)).collect()
    }

    /// Returns true if a backend reports that the requests of one caller belong together.
    pub fn keeps_callers(&self) -> bool {
        self.backends().iter().any(|backend| backend.lock().report.as_ref().is_some_and(|report| report.keeps_callers))
    }

    /// Returns the addresses of the backends that have never reported.
    pub fn never_reported(&self) -> Vec<SocketAddr> {
        let backends = self.backends();
        backends.iter().filter(|backend| backend.lock().report.is_none()).map(|backend| backend.address).collect()
    }

    /// Returns the number of owners that two processes claim, and logs each of them once.
    pub fn count_duplicate_owners(&self) -> usize {
        let mut seen: HashMap<Owner, (String, SocketAddr)> = HashMap::new();
        let mut duplicate_owners = Vec::new();
        for backend in self.backends().iter() {
            let state = backend.lock();
            let Some(report) = &state.report else { continue };
            if !state.is_up {
                continue;
            }
            let first = seen.entry(report.owner).or_insert_with(|| (report.instance.clone(), backend.address));
            if first.0 != report.instance {
                duplicate_owners.push((report.owner, first.1, backend.address));
            }
        }
        let mut known = sync::lock(&self.duplicate_owners);
        for (owner, one, other) in duplicate_owners.iter().filter(|(owner, ..)| !known.contains(owner)) {
            error!(%owner, %one, %other, "two replicas have one name (replica.name): requests for one reach the other");
        }
        *known = duplicate_owners.iter().map(|(owner, ..)| *owner).collect();
        duplicate_owners.len()
    }
}

impl Backend {
    fn new(address: SocketAddr, attributes: Attributes, policy: Policy) -> Self {
        let Attributes { transport, preference } = attributes;
        let state = BackendState {
            preference,
            report: None,
            is_up: false,
            up_since: clock::now(),
            down: CancellationToken::new(),
            transport_failures: 0,
            error_responses: 0,
            last_failure: None,
            ejections: 0,
            ejected_until: None,
            check_failure: None,
        };
        Self { address, transport, policy, in_flight: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// Records a report, which also means that the backend is up.
    pub fn record_report(&self, report: ReplicaReport) {
        let mut state = self.lock();
        let is_new = state.report.as_ref().is_none_or(|known| known.instance != report.instance);
        if !state.is_up || is_new {
            info!(address = %self.address, owner = %report.owner, "a replica is up");
            state.up_since = clock::now();
            (state.transport_failures, state.error_responses, state.ejections, state.ejected_until) = (0, 0, 0, None);
        }
        if !state.is_up {
            state.down = CancellationToken::new();
        }
        state.is_up = true;
        state.check_failure = None;
        state.report = Some(report);
    }

    /// Records a health check that brought no report. The log has the first of failures with one
    /// reason.
    pub fn record_failed_check(&self, reason: String) {
        let mut state = self.lock();
        if state.check_failure.as_ref() != Some(&reason) {
            warn!(address = %self.address, reason, "a replica sends no report");
            state.check_failure = Some(reason);
        }
    }

    /// Marks the backend as down, and cuts its requests in flight.
    pub fn mark_down(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_up, false) {
            warn!(address = %self.address, load = self.load(), "a replica is down: its requests in flight are cut");
            state.down.cancel();
        }
    }

    /// Records a request that failed at the connection to the backend. Returns true if this ejects
    /// the backend.
    pub fn record_transport_failure(&self) -> bool {
        let mut state = self.lock();
        if !state.is_up {
            // The failure follows from the backend being down.
            return false;
        }
        state.transport_failures += 1;
        state.last_failure = Some(clock::now());
        state.transport_failures >= self.policy.eject_after && self.eject(&mut state)
    }

    /// Records a call with an error response: the replica cannot reach its server, or the server
    /// fails. Returns true if this ejects the backend.
    pub fn record_error_response(&self) -> bool {
        let mut state = self.lock();
        state.transport_failures = 0;
        state.error_responses += 1;
        state.last_failure = Some(clock::now());
        state.error_responses >= self.policy.eject_after && self.eject(&mut state)
    }

    fn eject(&self, state: &mut BackendState) -> bool {
        (state.transport_failures, state.error_responses) = (0, 0);
        state.ejections = (state.ejections + 1).min(EJECT_MOST);
        let pause = self.policy.eject * state.ejections;
        state.ejected_until = Some(clock::now() + pause);
        warn!(address = %self.address, ?pause, "a replica is ejected after failed requests: it gets no new calls for a while");
        true
    }

    /// Records a response that reveals nothing of the replica's server, such as one from its log.
    pub fn record_response(&self) {
        self.lock().transport_failures = 0;
    }

    /// Records a call with a successful response.
    pub fn record_success(&self) {
        let mut state = self.lock();
        (state.transport_failures, state.error_responses) = (0, 0);
    }

    /// Returns true if the backend passes its health checks.
    pub fn is_up(&self) -> bool {
        self.lock().is_up
    }

    /// Returns a token that is cancelled when the backend goes down.
    pub(super) fn down(&self) -> CancellationToken {
        self.lock().down.clone()
    }

    /// Returns the number of requests in flight.
    pub fn load(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns a snapshot for selection, or `None` if the backend has never reported.
    pub fn replica(&self, now: Instant) -> Option<Replica> {
        let state = self.lock();
        let report = state.report.as_ref()?;
        let condition = match (state.is_up, report.is_ready) {
            (false, _) => Condition::Down,
            (true, false) => Condition::NoNewCalls,
            (true, true) if state.ejected_until.is_some_and(|until| until > now) => Condition::Ejected,
            (true, true) => Condition::Ready,
        };
        let age = now.saturating_duration_since(state.up_since).as_secs_f64();
        // Weights grow in steps, so that replicas which came up together are equal.
        let weight_at = |whole: Duration| (age / whole.as_secs_f64() * WEIGHT_STEPS).floor() / WEIGHT_STEPS;
        let weight = self.policy.slow_start.map_or(1.0, |whole| weight_at(whole).clamp(FIRST_WEIGHT, 1.0));
        Some(Replica {
            address: self.address,
            owner: report.owner,
            condition,
            store: report.store,
            // Requests that fail at once would make a failing replica look idle, and attract more
            // of them.
            load: self.load() + state.recent_failures(now, self.policy.eject),
            weight: weight * state.preference.weight_percent as f64 / 100.0,
            priority: state.preference.priority,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BackendState> {
        sync::lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlight;

    const POLICY: Policy =
        Policy { eject_after: 3, eject: Duration::from_secs(10), slow_start: Some(Duration::from_secs(10)) };

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn report(owner: u32, instance: &str) -> ReplicaReport {
        ReplicaReport {
            owner: Owner(owner),
            instance: instance.to_owned(),
            is_ready: true,
            store: StoreScope::Process,
            keeps_callers: false,
        }
    }

    fn table(ports: &[u16]) -> Table {
        let table = Table::new(POLICY);
        set(&table, ports);
        table
    }

    fn set(table: &Table, ports: &[u16]) {
        set_as(table, ports, None, PriorityAndWeight::EQUAL);
    }

    fn set_as(table: &Table, ports: &[u16], tls: Option<&str>, preference: PriorityAndWeight) {
        let attributes = Attributes { transport: Transport { tls_name: tls.map(str::to_owned) }, preference };
        table.set(&ports.iter().map(|port| (address(*port), attributes.clone())).collect());
    }

    fn condition(backend: &Backend) -> Option<Condition> {
        backend.replica(clock::now()).map(|replica| replica.condition)
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_of_an_address_is_kept_while_it_is_discovered() {
        let table = table(&[1, 2]);
        assert!(table.replicas().is_empty(), "no replica has reported");
        assert_eq!(table.never_reported(), [address(1), address(2)]);
        let one = table.find(address(1)).unwrap();
        one.record_report(report(7, "a"));
        assert_eq!(table.never_reported(), [address(2)]);
        one.mark_down();
        assert_eq!(table.never_reported(), [address(2)], "a backend that went down has reported");
        one.record_report(report(7, "a"));
        let in_flight = InFlight::begin(&one);
        set(&table, &[1, 3]);
        assert!(Arc::ptr_eq(&table.find(address(1)).unwrap(), &one) && table.find(address(2)).is_none());
        assert_eq!(table.replicas()[0].load, 1);
        drop(in_flight);
        assert_eq!((table.replicas().len(), table.replicas()[0].load), (1, 0));
        // A change of the transport makes it another backend.
        set_as(&table, &[1], Some("a"), PriorityAndWeight::EQUAL);
        assert!(table.replicas().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn priority_and_weight_may_change() {
        let table = table(&[1]);
        let backend = table.find(address(1)).unwrap();
        backend.record_report(report(7, "a"));
        tokio::time::advance(POLICY.slow_start.unwrap()).await;
        set_as(&table, &[1], None, PriorityAndWeight { priority: 2, weight_percent: 40 });
        let [replica] = &table.replicas()[..] else { panic!("still one replica") };
        assert!(replica.priority == 2 && (replica.weight - 0.4).abs() < 0.01);
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_ejections_last_longer() {
        let table = table(&[1]);
        let backend = table.find(address(1)).unwrap();
        backend.record_report(report(7, "a"));
        for times in 1..=2 {
            assert!(!backend.record_transport_failure() && !backend.record_transport_failure());
            backend.record_response();
            assert!(!backend.record_transport_failure() && !backend.record_transport_failure());
            assert_eq!(condition(&backend), Some(Condition::Ready));
            assert!(backend.record_transport_failure());
            tokio::time::advance(POLICY.eject * times - Duration::from_millis(1)).await;
            assert_eq!(condition(&backend), Some(Condition::Ejected));
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(condition(&backend), Some(Condition::Ready));
        }
        backend.record_report(report(7, "another process"));
        assert!(
            !backend.record_transport_failure()
                && !backend.record_transport_failure()
                && backend.record_transport_failure()
        );
        tokio::time::advance(POLICY.eject).await;
        assert_eq!(condition(&backend), Some(Condition::Ready));
    }

    #[tokio::test(start_paused = true)]
    async fn error_responses_eject_and_responses_from_the_log_do_not_count() {
        let table = table(&[1]);
        let backend = table.find(address(1)).unwrap();
        backend.record_report(report(7, "a"));
        assert!(!backend.record_error_response() && !backend.record_error_response());
        backend.record_success();
        assert!(!backend.record_error_response() && !backend.record_error_response());
        backend.record_response();
        assert_eq!(condition(&backend), Some(Condition::Ready));
        assert!(backend.record_error_response());
        assert_eq!(condition(&backend), Some(Condition::Ejected));
    }

    #[tokio::test(start_paused = true)]
    async fn recent_failures_count_as_load() {
        let table = table(&[1]);
        let backend = table.find(address(1)).unwrap();
        backend.record_report(report(7, "a"));
        let load = || backend.replica(clock::now()).unwrap().load;
        let in_flight = InFlight::begin(&backend);
        backend.record_error_response();
        drop(in_flight);
        assert_eq!((backend.load(), load()), (0, 1));
        backend.record_transport_failure();
        backend.record_error_response();
        assert_eq!(load(), 2);
        backend.record_success();
        assert_eq!(load(), 0, "a success clears the failures");
        backend.record_error_response();
        tokio::time::advance(POLICY.eject).await;
        assert_eq!(load(), 0, "failures expire");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_replica_starts_with_less_than_its_weight() {
        let table = table(&[1]);
        let backend = table.find(address(1)).unwrap();
        backend.record_report(report(7, "a"));
        let weight = || backend.replica(clock::now()).unwrap().weight;
        assert!((weight() - FIRST_WEIGHT).abs() < 0.01);
        tokio::time::advance(Duration::from_secs(5)).await;
        backend.record_report(report(7, "a"));
        assert!((weight() - 0.5).abs() < 0.01);
        tokio::time::advance(Duration::from_secs(50)).await;
        assert!((weight() - 1.0).abs() < f64::EPSILON);
        backend.record_report(report(7, "b"));
        assert!((weight() - FIRST_WEIGHT).abs() < 0.01, "another process");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_at_a_backend_that_is_down_are_cut_and_no_others() {
        let table = table(&[1, 2]);
        let (one, two) = (table.find(address(1)).unwrap(), table.find(address(2)).unwrap());
        one.record_report(report(1, "a"));
        two.record_report(report(2, "b"));
        let (through_one, through_two) = (InFlight::begin(&one), InFlight::begin(&two));
        one.mark_down();
        through_one.down().cancelled().await;
        assert!(tokio::time::timeout(Duration::from_secs(60), through_two.down().cancelled()).await.is_err());
        assert_eq!(condition(&one), Some(Condition::Down), "its last report is kept");
        assert!((0..9).all(|_| !one.record_transport_failure()), "failures of a backend that is down do not count");
        one.record_report(report(1, "a"));
        assert_eq!(condition(&one), Some(Condition::Ready));
        let again = InFlight::begin(&one);
        assert!(tokio::time::timeout(Duration::from_secs(60), again.down().cancelled()).await.is_err());
    }

    #[test]
    fn two_processes_with_one_owner_are_counted() {
        let table = table(&[1, 2, 3]);
        let report_of =
            |port, owner, instance| table.find(address(port)).unwrap().record_report(report(owner, instance));
        report_of(1, 7, "a");
        report_of(2, 8, "b");
        assert_eq!(table.count_duplicate_owners(), 0);
        // One process at two addresses is allowed.
        report_of(3, 7, "a");
        assert_eq!(table.count_duplicate_owners(), 0);
        report_of(3, 7, "c");
        assert_eq!(table.count_duplicate_owners(), 1);
        table.find(address(1)).unwrap().mark_down();
        assert_eq!(table.count_duplicate_owners(), 0);
    }
}
