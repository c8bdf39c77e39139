//! The balancer's metrics, registered once; labels are words of fixed sets.

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::selection::Condition;
use crate::protocol::error::ErrorCode;
use crate::tls::{Reload, Side};

/// All counters of one balancer.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    failures: IntCounterVec,
    in_flight: IntGauge,
    retries: IntCounterVec,
    cuts: IntCounter,
    ejections: IntCounter,
    rechecks: IntCounter,
    replicas: IntGaugeVec,
    duplicate_owners: IntGauge,
    connections: IntGauge,
    connections_max: IntGauge,
    refused: IntCounter,
    reloads: IntCounterVec,
}

/// Why a request was sent to another replica, or to the same again.
#[derive(Clone, Copy, Debug)]
pub enum RetryReason {
    /// It could not be connected to.
    Connect,
    /// A connection that was kept open was closed before a byte of the answer.
    Stale,
    /// It was not the one that was meant.
    Misdirected,
    /// It takes no new calls.
    Closing,
    /// It cannot reach its server.
    Unreachable,
}

/// What a balancer answers itself.
const OWN_ERRORS: [ErrorCode; 6] = [
    ErrorCode::NoReplica,
    ErrorCode::ReplicaBroke,
    ErrorCode::TooManyRequests,
    ErrorCode::BadRequest,
    ErrorCode::BodyTooSlow,
    ErrorCode::BodyTooLarge,
];

/// Whose files of TLS a balancer has.
const SIDES: [Side; 2] = [Side::Listener, Side::Replicas];

/// Of a replica that has not said yet who it is.
const UNKNOWN: &str = "unknown";

const CONDITIONS: [(Condition, &str); 4] = [
    (Condition::Ready, "ready"),
    (Condition::Ejected, "ejected"),
    (Condition::Closing, "closing"),
    (Condition::Down, "down"),
];

impl Metrics {
    /// A registry with everything at zero.
    ///
    /// # Errors
    /// When two metrics have one name, which a test would show.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("mcp_resume_balancer".into()), None)?;
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let replicas = IntGaugeVec::new(Opts::new("replicas", "Replicas, by how they are."), &["condition"])?;
        registry.register(Box::new(replicas.clone()))?;
        let failures =
            counters("failures_total", "Requests that were answered with an error of the balancer's.", &["code"])?;
        let reloads = counters(
            "certificate_reloads_total",
            "Times that the files of TLS had changed, by whose they are and whether they could be used.",
            &["of", "outcome"],
        )?;
        // The first of each is a rise from something.
        OWN_ERRORS.iter().for_each(|code| drop(failures.with_label_values(&[code.label()])));
        for outcome in [Reload::Taken, Reload::Refused].iter().filter_map(|reload| reload.outcome()) {
            SIDES.iter().for_each(|side| drop(reloads.with_label_values(&[side.as_str(), outcome])));
        }
        let requests =
            counters("requests_total", "Requests, by the first digit of their answer's status.", &["status"])?;
        ["2xx", "3xx", "4xx", "5xx", "none"].iter().for_each(|class| drop(requests.with_label_values(&[class])));
        let retries = counters("sent_again_total", "Requests sent once more, nothing of which had run.", &["reason"])?;
        ["connect", "stale", "misdirected", "closing"].iter().for_each(|why| drop(retries.with_label_values(&[why])));
        Ok(Self {
            requests,
            in_flight: gauge("requests_in_flight", "Requests on their way.")?,
            retries,
            cuts: counter("cuts_total", "Answers that were cut because their replica did not answer any more.")?,
            ejections: counter("ejections_total", "Replicas that got no new calls for a while.")?,
            rechecks: counter("rounds_total", "Times that every replica was asked for an owner nobody knew.")?,
            duplicate_owners: gauge("doubled_owners", "Owners that two processes say they are.")?,
            connections: gauge("connections", "Connections of clients.")?,
            connections_max: gauge("connections_max", "Connections of clients that there may be.")?,
            refused: counter("connections_refused_total", "Connections that were one too many.")?,
            failures,
            reloads,
            replicas,
            registry,
        })
    }

    /// A request has come, or is over.
    pub fn observe_in_flight(&self, change: i64) {
        self.in_flight.add(change);
    }

    /// A request was answered with this status; 0: with none.
    pub fn observe_answer(&self, status: u16) {
        let class = match status {
            100..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            500..=599 => "5xx",
            _ => "none",
        };
        self.requests.with_label_values(&[class]).inc();
    }

    /// A request was answered with an error of the balancer's own.
    pub fn observe_failure(&self, code: ErrorCode) {
        self.failures.with_label_values(&[code.label()]).inc();
    }

    /// A request is sent once more.
    pub fn observe_retry(&self, why: RetryReason) {
        let why = match why {
            RetryReason::Connect => "connect",
            RetryReason::Stale => "stale",
            RetryReason::Misdirected => "misdirected",
            RetryReason::Closing => "closing",
            RetryReason::Unreachable => "unreachable",
        };
        self.retries.with_label_values(&[why]).inc();
    }

    /// An answer was cut.
    pub fn observe_cut(&self) {
        self.cuts.inc();
    }

    /// A replica is out.
    pub fn observe_ejection(&self) {
        self.ejections.inc();
    }

    /// All were asked.
    pub fn observe_recheck(&self) {
        self.rechecks.inc();
    }

    /// A client has connected, or has left.
    pub fn observe_connection(&self, change: i64) {
        self.connections.add(change);
    }

    /// Sets the gauge of the largest number of client connections at a time.
    pub fn set_connections_max(&self, most: usize) {
        self.connections_max.set(as_value(most));
    }

    /// A connection was closed because there is no room for it.
    pub fn observe_refused_connection(&self) {
        self.refused.inc();
    }

    /// The files of TLS were looked at.
    pub fn observe_reload(&self, side: Side, reload: Reload) {
        if let Some(outcome) = reload.outcome() {
            self.reloads.with_label_values(&[side.as_str(), outcome]).inc();
        }
    }

    /// The replicas are as `conditions`, beside so many `unknown` ones, and of so many names there are two.
    pub fn observe_replicas(&self, conditions: &[Condition], unknown: usize, duplicate_owners: usize) {
        let set = |word, count| self.replicas.with_label_values(&[word]).set(as_value(count));
        for (condition, word) in CONDITIONS {
            set(word, conditions.iter().filter(|other| **other == condition).count());
        }
        set(UNKNOWN, unknown);
        self.duplicate_owners.set(as_value(duplicate_owners));
    }

    /// The text format of Prometheus.
    pub fn render(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // A Vec takes everything.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        text
    }
}

fn as_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
