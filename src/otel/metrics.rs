//! Metrics of the export of traces.

use prometheus::IntCounterVec;

use crate::metrics::{Error, Registrar};

/// Metrics of the export.
#[derive(Debug)]
pub struct Metrics {
    spans: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar) -> Result<Self, Error> {
        Ok(Self {
            spans: registrar.family(
                "otel_spans_total",
                "Spans that have ended, by their way: exported to the collector, failed there, or dropped before.",
                ("outcome", &["exported", "failed", "dropped"]),
            )?,
        })
    }

    pub(super) fn observe_batch(&self, exported: usize, failed: usize) {
        self.spans.with_label_values(&["exported"]).inc_by(exported as u64);
        self.spans.with_label_values(&["failed"]).inc_by(failed as u64);
    }

    pub(super) fn observe_dropped(&self) {
        self.spans.with_label_values(&["dropped"]).inc();
    }
}
