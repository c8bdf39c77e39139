//! All metrics of a sidecar.

use std::sync::Arc;

use crate::metrics::{Error, Registrar};
use crate::{admin, channel, ingress, otel, tls};

/// All metrics of a sidecar. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    /// Metrics of the process, and the page.
    pub admin: Arc<admin::Metrics>,
    /// Metrics of TLS files.
    pub tls: Arc<tls::Metrics>,
    /// Metrics of channels to servers on stdio.
    pub channel: Arc<channel::Metrics>,
    /// Metrics of the export of traces.
    pub otel: Arc<otel::Metrics>,
    /// Metrics of the ingress and of all that is below it.
    pub ingress: Arc<ingress::Metrics>,
}

impl Metrics {
    /// Registers all metrics, each at zero.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, Error> {
        let registrar = Registrar::new("mcp_resume")?;
        let ingress = Arc::new(ingress::Metrics::new(&registrar)?);
        let repairs = ingress.repairs.clone();
        let (errors, store, upstream) =
            (ingress.errors.clone(), ingress.event_log.store.clone(), ingress.upstream.clone());
        Ok(Self {
            admin: Arc::new(admin::Metrics::new(&registrar, errors, store, upstream)?),
            tls: Arc::new(tls::Metrics::new(&registrar, &[tls::Side::Listener, tls::Side::Upstream])?),
            channel: Arc::new(channel::Metrics::new(&registrar, repairs)?),
            otel: Arc::new(otel::Metrics::new(&registrar)?),
            ingress,
        })
    }

    /// Returns the page that Prometheus reads.
    pub fn render(&self) -> Vec<u8> {
        self.admin.render()
    }
}
