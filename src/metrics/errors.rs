//! Counters of errors, which several components observe.

use prometheus::IntCounterVec;

use super::{Error, Registrar};
use mcp_resume_protocol::error::{ErrorCode, Side};

/// Errors of one process, by code.
pub struct Errors {
    rejects: IntCounterVec,
    upstream_failures: IntCounterVec,
}

impl Errors {
    /// Registers the counters.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar) -> Result<Self, Error> {
        let every_code: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.label()).collect();
        let is_upstreams = |code: &&ErrorCode| code.side() == Side::Upstream;
        let upstream_codes: Vec<&str> = ErrorCode::ALL.iter().filter(is_upstreams).map(|code| code.label()).collect();
        Ok(Self {
            rejects: registrar.family(
                "rejects_total",
                "Requests the proxy refused or failed, by reason.",
                ("reason", &every_code),
            )?,
            upstream_failures: registrar.family(
                "upstream_failures_total",
                "Upstream calls that failed, by reason.",
                ("reason", &upstream_codes),
            )?,
        })
    }

    /// Counts a request that was refused or failed.
    pub fn observe_reject(&self, code: ErrorCode) {
        self.rejects.with_label_values(&[code.label()]).inc();
    }

    /// Counts an upstream call that failed.
    pub fn observe_upstream_failure(&self, code: ErrorCode) {
        self.upstream_failures.with_label_values(&[code.label()]).inc();
    }
}
