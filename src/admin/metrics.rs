//! Metrics of the process, and the page with all metrics.

use std::sync::Arc;

use prometheus::IntGauge;

use crate::metrics::{Error, Errors, Process, Registrar};
use crate::{log, store, upstream};

/// Metrics of the process, and the page with all metrics.
pub struct Metrics {
    pub(super) errors: Arc<Errors>,
    pub(super) store: Arc<store::Metrics>,
    pub(super) upstream: Arc<upstream::Metrics>,
    registrar: Registrar,
    process: Process,
    ready: IntGauge,
}

impl Metrics {
    /// Registers the metrics. The page will have all metrics of `registrar`, also metrics that are
    /// registered later.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(
        registrar: &Registrar,
        errors: Arc<Errors>,
        store: Arc<store::Metrics>,
        upstream: Arc<upstream::Metrics>,
    ) -> Result<Self, Error> {
        registrar.add(log::dropped())?;
        registrar.info("build_info", "Version of the process: always 1.", "version", env!("CARGO_PKG_VERSION"))?;
        Ok(Self {
            errors,
            store,
            upstream,
            registrar: registrar.clone(),
            process: Process::new()?,
            ready: registrar.gauge("ready", "1 if new calls are accepted, as /readyz reports, else 0.")?,
        })
    }

    /// Sets whether new calls are taken.
    pub fn set_ready(&self, is_ready: bool) {
        self.ready.set(i64::from(is_ready));
    }

    /// Returns the page that Prometheus reads.
    pub fn render(&self) -> Vec<u8> {
        let mut page = Vec::new();
        self.registrar.render_to(&mut page);
        self.process.render_to(&mut page);
        page
    }
}
