//! Metrics of an HTTP server.

use std::sync::Arc;

use mcp_resume_metrics::{Error, Errors, Registrar, Tally};

/// Metrics of HTTP servers.
pub struct Metrics {
    pub(super) errors: Arc<Errors>,
    connections: Tally,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar, errors: Arc<Errors>) -> Result<Self, Error> {
        Ok(Self { errors, connections: registrar.tally("connections", "Downstream connections.")? })
    }

    /// Counts a connection that was accepted.
    pub fn observe_connection(&self) {
        self.connections.inc();
    }

    /// Counts a connection that ended.
    pub fn observe_connection_end(&self) {
        self.connections.dec();
    }
}
