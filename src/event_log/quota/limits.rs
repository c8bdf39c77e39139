//! Limits of a stream and of the quotas, from the configuration.

use std::time::Duration;

/// Limits of one stream's tail.
#[derive(Clone, Copy, Debug)]
pub struct TailLimits {
    /// Bytes of memory.
    pub max_bytes: usize,
    /// Events.
    pub max_events: usize,
}

/// Limits of one principal, and of all together.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLimits {
    /// Bytes of one principal.
    pub max_bytes: usize,
    /// Bytes of all principals.
    pub max_bytes_total: usize,
    /// Running calls of one principal.
    pub max_streams: usize,
    /// Running calls of one principal without a reader.
    pub max_detached: usize,
    /// Running tasks of one principal, beside its calls.
    pub max_tasks: usize,
    /// Resumes of one principal per second.
    pub resumes_per_sec: u32,
    /// Time that a stub keeps its last response. In this time a retry may match a call whose
    /// delivery is in doubt.
    pub delivered_retention: Duration,
    /// Sessions that have a record.
    pub max_sessions: usize,
}
