//! Errors in the setup of traces.

use crate::tls;

/// Error at the start of the export.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The authorities cannot be used.
    #[error("otel: {0}")]
    Tls(#[from] tls::Error),
    /// The exporter refuses the configuration.
    #[error("otel.endpoint: {0}")]
    Exporter(String),
}
