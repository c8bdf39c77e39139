//! Metrics of TLS.

use prometheus::IntCounterVec;

use super::{ReloadOutcome, Side};
use mcp_resume_metrics::{Error, Registrar};

/// Metrics of TLS files.
pub struct Metrics {
    reloads: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics for the files of `sides`.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar, sides: &[Side]) -> Result<Self, Error> {
        let sides: Vec<&str> = sides.iter().map(|side| side.as_str()).collect();
        Ok(Self {
            reloads: registrar.families(
                "certificate_reloads_total",
                "Changes of TLS files, by the connections they are for and the outcome.",
                [("of", &sides), ("outcome", &["taken", "refused"])],
            )?,
        })
    }

    /// Counts a reload of the files of one side, unless the files had not changed.
    pub fn observe_reload(&self, side: Side, outcome: ReloadOutcome) {
        if let Some(label) = outcome.label() {
            self.reloads.with_label_values(&[side.as_str(), label]).inc();
        }
    }
}
