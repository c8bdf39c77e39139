//! The replicas as they are known now: where they are, who they say they are, how they are, and what is on its way through them.
//!
//! Who is where is learned from the replicas' own word alone, so that names and addresses mean nothing. Owned here: the one table of
//! it, what requests that broke mean, and the cut of what runs through a replica that does not answer any more. Absent: asking
//! ([`super::health`]), and choosing ([`super::selection`]).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::discovery::PriorityAndWeight;
use super::in_flight::InFlight;
use super::selection::{Condition, Replica};
use crate::clock;
use crate::protocol::ids::Owner;
use crate::sync;

/// One that is ejected again and again is out for at most so many times as long as the first time.
const EJECT_MOST: u32 = 10;
/// The part of the load that a replica begins with when it comes up.
const FIRST_WEIGHT: f64 = 0.1;
const WEIGHT_STEPS: f64 = 10.0;

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Who it is.
    pub owner: Owner,
    /// Which process of that name.
    pub instance: String,
    /// It takes new calls.
    pub is_ready: bool,
    /// Others have its store.
    pub is_shared: bool,
    /// Its store outlives it.
    pub is_durable: bool,
}

/// How a replica is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// In TLS, as this name.
    pub tls_name: Option<String>,
}

/// What is known of a replica that has not said anything.
#[derive(Clone, Debug)]
pub struct Listed {
    /// How it is spoken to.
    pub transport: Transport,
    /// What it is to get.
    pub preference: PriorityAndWeight,
}

/// When a replica counts as broken, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Requests that broke, one behind the other.
    pub eject_after: usize,
    /// How long it is out the first time.
    pub eject: Duration,
    /// How long one that is new has less than its part.
    pub slow_start: Option<Duration>,
}

/// All replicas.
pub struct Table {
    policy: Policy,
    backends: RwLock<Arc<Vec<Arc<Backend>>>>,
    /// Owners that two processes say they are.
    duplicate_owners: Mutex<Vec<Owner>>,
}

/// One address.
pub struct Backend {
    /// Where it is.
    pub address: SocketAddr,
    /// How it is spoken to.
    pub transport: Transport,
    policy: Policy,
    /// Requests in flight.
    pub(super) in_flight: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    preference: PriorityAndWeight,
    /// What it said last, however long ago.
    report: Option<Report>,
    is_up: bool,
    up_since: Instant,
    /// Cancelled when it goes down; another one when it comes up.
    down: CancellationToken,
    /// Requests that broke, in a row.
    transport_failures: usize,
    /// Requests that were answered with a failure, in a row.
    error_responses: usize,
    /// When the last of either did.
    last_failure: Option<Instant>,
    ejections: u32,
    ejected_until: Option<Instant>,
}

impl State {
    /// Returns the requests that broke or failed since the last good one, unless that was longer ago than `window`.
    fn recent_failures(&self, now: Instant, window: Duration) -> usize {
        let is_recent = self.last_failure.is_some_and(|at| now.saturating_duration_since(at) < window);
        if is_recent { self.transport_failures + self.error_responses } else { 0 }
    }
}

impl Table {
    /// Nobody yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, backends: RwLock::default(), duplicate_owners: Mutex::default() }
    }

    /// These addresses and no others; what is known of those that stay is kept.
    pub fn set(&self, found: &HashMap<SocketAddr, Listed>) {
        let mut backends = self.backends.write().unwrap_or_else(PoisonError::into_inner);
        let is_as_before = |backend: &&Arc<Backend>| {
            found.get(&backend.address).is_some_and(|listed| listed.transport == backend.transport)
        };
        let mut next: Vec<Arc<Backend>> = backends.iter().filter(is_as_before).cloned().collect();
        for (address, listed) in found {
            if let Some(known) = next.iter().find(|backend| backend.address == *address) {
                known.lock().preference = listed.preference;
            } else {
                info!(%address, "found a replica");
                next.push(Arc::new(Backend::new(*address, listed.clone(), self.policy)));
            }
        }
        for gone in backends.iter().filter(|backend| !next.iter().any(|kept| Arc::ptr_eq(kept, backend))) {
            // What runs through it goes on: an address that left the list may still be answering.
            info!(address = %gone.address, "a replica has left the list");
        }
        next.sort_by_key(|backend| backend.address);
        *backends = Arc::new(next);
    }

    /// Every address.
    pub fn backends(&self) -> Arc<Vec<Arc<Backend>>> {
        self.backends.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one at an address.
    pub fn find(&self, address: SocketAddr) -> Option<Arc<Backend>> {
        self.backends().iter().find(|backend| backend.address == address).cloned()
    }

    /// All that have ever said who they are.
    pub fn replicas(&self) -> Vec<Replica> {
        let now = clock::now();
        self.backends().iter().filter_map(|backend| backend.replica(now)).collect()
    }

    /// Where one is expected that has never said who it is.
    pub fn unknown(&self) -> Vec<SocketAddr> {
        let backends = self.backends();
        backends.iter().filter(|backend| backend.lock().report.is_none()).map(|backend| backend.address).collect()
    }

    /// Says once of each owner that two processes are it, and how many such there are.
    pub fn count_duplicate_owners(&self) -> usize {
        let mut seen: HashMap<Owner, (String, SocketAddr)> = HashMap::new();
        let mut duplicate_owners = Vec::new();
        for backend in self.backends().iter() {
            let state = backend.lock();
            let Some(report) = state.report.as_ref().filter(|_| state.is_up) else { continue };
            let first = seen.entry(report.owner).or_insert_with(|| (report.instance.clone(), backend.address));
            if first.0 != report.instance {
                duplicate_owners.push((report.owner, first.1, backend.address));
            }
        }
        let mut known = sync::lock(&self.duplicate_owners);
        for (owner, one, other) in duplicate_owners.iter().filter(|(owner, ..)| !known.contains(owner)) {
            error!(%owner, %one, %other, "two replicas have one name (replica.name): what one has is asked of the other");
        }
        *known = duplicate_owners.iter().map(|(owner, ..)| *owner).collect();
        duplicate_owners.len()
    }
}

impl Backend {
    fn new(address: SocketAddr, listed: Listed, policy: Policy) -> Self {
        let Listed { transport, preference } = listed;
        let state = State {
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
        };
        Self { address, transport, policy, in_flight: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// It has said who and how it is.
    pub fn record_report(&self, report: Report) {
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
        state.report = Some(report);
    }

    /// It does not answer any more: what runs through it waits no longer.
    pub fn mark_down(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_up, false) {
            warn!(address = %self.address, load = self.load(), "a replica does not answer: what runs through it is ended");
            state.down.cancel();
        }
    }

    /// A request to it broke, and this was nobody else's fault. True if it is out from now on.
    pub fn record_transport_failure(&self) -> bool {
        let mut state = self.lock();
        if !state.is_up {
            // Which is known, and why it broke.
            return false;
        }
        state.transport_failures += 1;
        state.last_failure = Some(clock::now());
        state.transport_failures >= self.policy.eject_after && self.eject(&mut state)
    }

    /// Notes that it answered a call with a failure: it cannot reach its server, or that cannot answer. Returns whether it is
    /// ejected from now on.
    pub fn record_error_response(&self) -> bool {
        let mut state = self.lock();
        state.transport_failures = 0;
        state.error_responses += 1;
        state.last_failure = Some(clock::now());
        state.error_responses >= self.policy.eject_after && self.eject(&mut state)
    }

    fn eject(&self, state: &mut State) -> bool {
        (state.transport_failures, state.error_responses) = (0, 0);
        state.ejections = (state.ejections + 1).min(EJECT_MOST);
        let pause = self.policy.eject * state.ejections;
        state.ejected_until = Some(clock::now() + pause);
        warn!(address = %self.address, ?pause, "requests to a replica broke or failed: it gets no new calls for a while");
        true
    }

    /// It answered a request that says nothing of its server: it may have answered from its log.
    pub fn record_response(&self) {
        self.lock().transport_failures = 0;
    }

    /// It answered a call without a failure.
    pub fn record_success(&self) {
        let mut state = self.lock();
        (state.transport_failures, state.error_responses) = (0, 0);
    }

    /// Returns whether it answers the questions who it is.
    pub fn is_up(&self) -> bool {
        self.lock().is_up
    }

    /// A request goes through it.
    pub fn begin_request(self: &Arc<Self>) -> InFlight {
        InFlight::new(self.clone(), self.lock().down.clone())
    }

    /// Requests on their way through it.
    pub fn load(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// As it is to be chosen by; `None` while it has not said who it is.
    pub fn replica(&self, now: Instant) -> Option<Replica> {
        let state = self.lock();
        let report = state.report.as_ref()?;
        let condition = match (state.is_up, report.is_ready) {
            (false, _) => Condition::Down,
            (true, false) => Condition::Closing,
            (true, true) if state.ejected_until.is_some_and(|until| until > now) => Condition::Ejected,
            (true, true) => Condition::Ready,
        };
        let age = now.saturating_duration_since(state.up_since).as_secs_f64();
        // In steps, so that those who came together are equals.
        let weight_at = |whole: Duration| (age / whole.as_secs_f64() * WEIGHT_STEPS).floor() / WEIGHT_STEPS;
        let weight = self.policy.slow_start.map_or(1.0, |whole| weight_at(whole).clamp(FIRST_WEIGHT, 1.0));
        Some(Replica {
            address: self.address,
            owner: report.owner,
            condition,
            is_shared: report.is_shared,
            is_durable: report.is_durable,
            // A request that fails at once would look like little load, and draw the next.
            load: self.load() + state.recent_failures(now, self.policy.eject),
            weight: weight * state.preference.weight_percent as f64 / 100.0,
            priority: state.preference.priority,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy =
        Policy { eject_after: 3, eject: Duration::from_secs(10), slow_start: Some(Duration::from_secs(10)) };

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn report(owner: u32, instance: &str) -> Report {
        let (is_ready, is_shared, is_durable) = (true, false, false);
        Report { owner: Owner(owner), instance: instance.to_owned(), is_ready, is_shared, is_durable }
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
        let listed = Listed { transport: Transport { tls_name: tls.map(str::to_owned) }, preference };
        table.set(&ports.iter().map(|port| (address(*port), listed.clone())).collect());
    }

    fn condition(backend: &Backend) -> Option<Condition> {
        backend.replica(clock::now()).map(|replica| replica.condition)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_of_an_address_stays_with_it() {
        let table = table(&[1, 2]);
        assert!(table.replicas().is_empty(), "nobody has said who it is");
        assert_eq!(table.unknown(), [address(1), address(2)]);
        let one = table.find(address(1)).unwrap();
        one.record_report(report(7, "a"));
        assert_eq!(table.unknown(), [address(2)]);
        one.mark_down();
        assert_eq!(table.unknown(), [address(2)], "one that went down is known");
        one.record_report(report(7, "a"));
        let in_flight = one.begin_request();
        set(&table, &[1, 3]);
        assert!(Arc::ptr_eq(&table.find(address(1)).unwrap(), &one) && table.find(address(2)).is_none());
        assert_eq!(table.replicas()[0].load, 1);
        drop(in_flight);
        assert_eq!((table.replicas().len(), table.replicas()[0].load), (1, 0));
        // Another way to the same address is another replica.
        set_as(&table, &[1], Some("a"), PriorityAndWeight::EQUAL);
        assert!(table.replicas().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_replica_is_to_get_may_change() {
        let table = table(&[1]);
        let backend = table.find(address(1)).unwrap();
        backend.record_report(report(7, "a"));
        tokio::time::advance(POLICY.slow_start.unwrap()).await;
        set_as(&table, &[1], None, PriorityAndWeight { priority: 2, weight_percent: 40 });
        let [replica] = &table.replicas()[..] else { panic!("it is the same") };
        assert!(replica.priority == 2 && (replica.weight - 0.4).abs() < 0.01);
    }

    #[tokio::test(start_paused = true)]
    async fn what_breaks_again_and_again_is_out_for_longer_each_time() {
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
    async fn what_answers_with_failures_is_out_as_well_and_answers_from_its_log_change_nothing() {
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
    async fn a_request_that_failed_at_once_is_no_little_load() {
        let table = table(&[1]);
        let backend = table.find(address(1)).unwrap();
        backend.record_report(report(7, "a"));
        let load = || backend.replica(clock::now()).unwrap().load;
        let in_flight = backend.begin_request();
        backend.record_error_response();
        drop(in_flight);
        assert_eq!((backend.load(), load()), (0, 1));
        backend.record_transport_failure();
        backend.record_error_response();
        assert_eq!(load(), 2);
        backend.record_success();
        assert_eq!(load(), 0, "one that serves again is as good as any");
        backend.record_error_response();
        tokio::time::advance(POLICY.eject).await;
        assert_eq!(load(), 0, "it is tried again after a while");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_new_has_less_than_its_part() {
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
    async fn what_runs_through_one_that_is_down_is_cut_and_nothing_else() {
        let table = table(&[1, 2]);
        let (one, two) = (table.find(address(1)).unwrap(), table.find(address(2)).unwrap());
        one.record_report(report(1, "a"));
        two.record_report(report(2, "b"));
        let (through_one, through_two) = (one.begin_request(), two.begin_request());
        one.mark_down();
        through_one.down().cancelled().await;
        assert!(tokio::time::timeout(Duration::from_secs(60), through_two.down().cancelled()).await.is_err());
        assert_eq!(condition(&one), Some(Condition::Down), "who it was is remembered");
        assert!((0..9).all(|_| !one.record_transport_failure()), "what breaks then says nothing new");
        one.record_report(report(1, "a"));
        assert_eq!(condition(&one), Some(Condition::Ready));
        let again = one.begin_request();
        assert!(tokio::time::timeout(Duration::from_secs(60), again.down().cancelled()).await.is_err());
    }

    #[test]
    fn two_processes_of_one_name_are_found() {
        let table = table(&[1, 2, 3]);
        let report_of =
            |port, owner, instance| table.find(address(port)).unwrap().record_report(report(owner, instance));
        report_of(1, 7, "a");
        report_of(2, 8, "b");
        assert_eq!(table.count_duplicate_owners(), 0);
        // The same process by another address is no mistake.
        report_of(3, 7, "a");
        assert_eq!(table.count_duplicate_owners(), 0);
        report_of(3, 7, "c");
        assert_eq!(table.count_duplicate_owners(), 1);
        table.find(address(1)).unwrap().mark_down();
        assert_eq!(table.count_duplicate_owners(), 0);
    }
}
