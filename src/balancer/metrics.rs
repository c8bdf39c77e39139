//! The balancer's metrics, registered once. Labels have fixed sets of values.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts};

use super::selection::Condition;
use mcp_resume_metrics::{Counter, Error, Registrar};
use mcp_resume_protocol::error::ErrorCode;
use mcp_resume_tls::{self as tls, Side};

/// Metrics of one balancer.
pub struct Metrics {
    registrar: Registrar,
    requests: IntCounterVec,
    failures: IntCounterVec,
    in_flight: IntGauge,
    retries: IntCounterVec,
    cuts: Counter,
    ejections: Counter,
    rechecks: Counter,
    replicas: IntGaugeVec,
    duplicate_owners: IntGauge,
    connections: IntGauge,
    connections_max: IntGauge,
    refused: Counter,
    tls: tls::Metrics,
}

/// Reason for a retry, at the same or another replica.
#[derive(Clone, Copy, Debug)]
pub enum RetryReason {
    /// The replica could not be connected to.
    Connect,
    /// A kept-alive connection was closed before the first byte of a response.
    Stale,
    /// The replica is not the owner.
    Misdirected,
    /// The replica takes no new calls.
    NoNewCalls,
    /// The replica cannot reach its server.
    Unreachable,
}

impl RetryReason {
    const ALL: [Self; 5] = [Self::Connect, Self::Stale, Self::Misdirected, Self::NoNewCalls, Self::Unreachable];

    fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Stale => "stale",
            Self::Misdirected => "misdirected",
            Self::NoNewCalls => "closing",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Errors that a balancer itself responds with.
const OWN_ERRORS: [ErrorCode; 6] = [
    ErrorCode::NoReplica,
    ErrorCode::ReplicaBroke,
    ErrorCode::TooManyRequests,
    ErrorCode::BadRequest,
    ErrorCode::BodyTooSlow,
    ErrorCode::BodyTooLarge,
];

/// Label of a replica that has never reported.
const NEVER_REPORTED: &str = "unknown";

const CONDITIONS: [(Condition, &str); 4] = [
    (Condition::Ready, "ready"),
    (Condition::Ejected, "ejected"),
    (Condition::NoNewCalls, "closing"),
    (Condition::Down, "down"),
];

impl Metrics {
    /// Creates a registry with all metrics at zero.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, Error> {
        let registrar = Registrar::new("mcp_resume_balancer")?;
        let own_errors = OWN_ERRORS.map(ErrorCode::label);
        let retry_reasons = RetryReason::ALL.map(RetryReason::label);
        let replicas = IntGaugeVec::new(Opts::new("replicas", "Replicas, by condition."), &["condition"])?;
        registrar.add(replicas.clone())?;
        Ok(Self {
            requests: registrar.family(
                "requests_total",
                "Requests, by the first digit of their response's status.",
                ("status", &["2xx", "3xx", "4xx", "5xx", "none"]),
            )?,
            failures: registrar.family(
                "failures_total",
                "Requests that got an error response of the balancer's own.",
                ("code", &own_errors),
            )?,
            in_flight: registrar.gauge("requests_in_flight", "Requests in flight.")?,
            retries: registrar.family(
                "sent_again_total",
                "Retries of requests of which nothing had run.",
                ("reason", &retry_reasons),
            )?,
            cuts: registrar.counter("cuts_total", "Responses that were cut because their replica went down.")?,
            ejections: registrar
                .counter("ejections_total", "Ejections of replicas, which then get no new calls for a while.")?,
            rechecks: registrar.counter("rounds_total", "Rounds of health checks for an unknown owner.")?,
            replicas,
            duplicate_owners: registrar.gauge("doubled_owners", "Owners that two processes claim.")?,
            connections: registrar.gauge("connections", "Client connections.")?,
            connections_max: registrar.gauge("connections_max", "Limit of client connections.")?,
            refused: registrar.counter("connections_refused_total", "Client connections closed at the limit.")?,
            tls: tls::Metrics::new(&registrar, &[Side::Listener, Side::Replicas])?,
            registrar,
        })
    }

    /// Adds `change` to the requests in flight.
    pub fn observe_in_flight(&self, change: i64) {
        self.in_flight.add(change);
    }

    /// Counts a response with this status, or a request without a response if it is 0.
    pub fn observe_response(&self, status: u16) {
        let class = match status {
            100..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            500..=599 => "5xx",
            _ => "none",
        };
        self.requests.with_label_values(&[class]).inc();
    }

    /// Counts an error response of the balancer's own.
    pub fn observe_failure(&self, code: ErrorCode) {
        self.failures.with_label_values(&[code.label()]).inc();
    }

    /// Counts a retry.
    pub fn observe_retry(&self, reason: RetryReason) {
        self.retries.with_label_values(&[reason.label()]).inc();
    }

    /// Counts a response that was cut.
    pub fn observe_cut(&self) {
        self.cuts.inc();
    }

    /// Counts an ejection.
    pub fn observe_ejection(&self) {
        self.ejections.inc();
    }

    /// Counts a round of health checks for an unknown owner.
    pub fn observe_recheck(&self) {
        self.rechecks.inc();
    }

    /// Adds `change` to the client connections.
    pub fn observe_connection(&self, change: i64) {
        self.connections.add(change);
    }

    /// Sets the limit of client connections.
    pub fn set_connections_max(&self, most: usize) {
        self.connections_max.set(as_value(most));
    }

    /// Counts a connection closed at the limit.
    pub fn observe_refused_connection(&self) {
        self.refused.inc();
    }

    /// Returns the metrics of TLS files.
    pub fn tls(&self) -> &tls::Metrics {
        &self.tls
    }

    /// Sets three numbers: replicas in each of `conditions`, replicas that never reported, and
    /// owners that two processes claim.
    pub fn observe_replicas(&self, conditions: &[Condition], never_reported: usize, duplicate_owners: usize) {
        let set = |word, count| self.replicas.with_label_values(&[word]).set(as_value(count));
        for (condition, word) in CONDITIONS {
            set(word, conditions.iter().filter(|other| **other == condition).count());
        }
        set(NEVER_REPORTED, never_reported);
        self.duplicate_owners.set(as_value(duplicate_owners));
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn render(&self) -> Vec<u8> {
        let mut page = Vec::new();
        self.registrar.render_to(&mut page);
        page
    }
}

fn as_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_for_a_retry_is_on_the_page_before_it_is_counted() {
        let page = String::from_utf8(Metrics::new().unwrap().render()).unwrap();
        for reason in RetryReason::ALL {
            let sample = format!("mcp_resume_balancer_sent_again_total{{reason=\"{}\"}} 0\n", reason.label());
            assert!(page.contains(&sample), "{sample}{page}");
        }
    }

    #[test]
    fn a_retry_counts_under_its_reason() {
        let metrics = Metrics::new().unwrap();
        metrics.observe_retry(RetryReason::Unreachable);
        let page = String::from_utf8(metrics.render()).unwrap();
        assert!(page.contains("mcp_resume_balancer_sent_again_total{reason=\"unreachable\"} 1\n"), "{page}");
    }
}
