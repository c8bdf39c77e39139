//! Number of the session records, and its limit for sessions that were opened elsewhere.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::event_log::metrics::Metrics;

/// Divisor of the limit of sessions opened here: so many records of sessions opened elsewhere may
/// exist beside the records in use. A record has up to 1.5 KiB.
const UNOPENED: usize = 4;

/// Returns the limit for sessions opened elsewhere, from the limit for those opened here.
pub(super) fn unopened_max(most: usize) -> usize {
    (most / UNOPENED).max(1)
}

/// Number of records, forgotten ones that are still used included.
pub(super) struct RecordCount {
    pub(super) unopened: AtomicUsize,
    serials: AtomicU64,
    pub(super) metrics: Arc<Metrics>,
}

impl RecordCount {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { unopened: AtomicUsize::new(0), serials: AtomicU64::new(0), metrics }
    }

    /// Returns a number that no other record has.
    pub(super) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn enter(&self, is_opened: bool) {
        self.unopened.fetch_add(usize::from(!is_opened), Ordering::Relaxed);
        self.metrics.observe_session();
    }

    pub(super) fn leave(&self, is_opened: bool) {
        self.unopened.fetch_sub(usize::from(!is_opened), Ordering::Relaxed);
        self.metrics.observe_session_end();
    }
}

impl fmt::Debug for RecordCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordCount").field("unopened", &self.unopened).finish_non_exhaustive()
    }
}
