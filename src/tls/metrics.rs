//! Metrics of TLS.

use prometheus::IntCounterVec;

use super::{Reload, Side};
use crate::metrics::{Error, Registrar};

/// Metrics of TLS files.
pub struct Metrics {
    reloads: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar) -> Result<Self, Error> {
        Ok(Self {
            reloads: registrar.families(
                "certificate_reloads_total",
                "Times that the files of TLS had changed, by whose they are and whether they could be used.",
                [("of", &["listener", "upstream"]), ("outcome", &["taken", "refused"])],
            )?,
        })
    }

    /// Counts a reload of the files of one side, unless the files had not changed.
    pub fn observe_reload(&self, side: Side, reload: Reload) {
        if let Some(outcome) = reload.outcome() {
            self.reloads.with_label_values(&[side.as_str(), outcome]).inc();
        }
    }
}
