//! Metrics of the store, as its user observes it.

use std::time::Duration;

use prometheus::{IntCounterVec, IntGauge};

use super::Error;
use mcp_resume_metrics::{self as metrics, Histogram, Registrar};

/// Metrics of the store.
pub struct Metrics {
    append_seconds: Histogram,
    failures: IntCounterVec,
    ready: IntGauge,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar) -> Result<Self, metrics::Error> {
        Ok(Self {
            append_seconds: registrar.histogram(
                "store_append_seconds",
                "Time from a batch of events until the store has it and it may be read.",
                // From a store on the same machine to a store that is about to be given up.
                &[0.000_2, 0.001, 0.003, 0.01, 0.03, 0.1, 0.5, 2.0],
            )?,
            failures: registrar.family(
                "store_failures_total",
                "Writes that the store did not accept at once, by reason.",
                ("reason", &["full", "unreachable"]),
            )?,
            ready: registrar.gauge("store_ready", "1 if the store accepts new data, else 0.")?,
        })
    }

    /// Records the time that an append of a batch took.
    pub fn observe_append(&self, took: Duration) {
        self.append_seconds.observe(took.as_secs_f64());
    }

    /// Counts a write that failed.
    pub fn observe_failure(&self, error: &Error) {
        let reason = match error {
            Error::Full(_) => "full",
            Error::Unavailable(_) | Error::Gone => "unreachable",
        };
        self.failures.with_label_values(&[reason]).inc();
    }

    /// Sets whether the store takes new writes.
    pub fn set_ready(&self, is_ready: bool) {
        self.ready.set(i64::from(is_ready));
    }
}
