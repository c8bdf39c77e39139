//! Lease health: whether the other replicas may already have declared this one dead, and what it
//! may assume then.
//!
//! Once the lease has expired, others may have ended the streams that are open here. The store
//! knows whether they have; if it is unreachable, memory stands in for it. A process that was
//! frozen past its lease finds its connections broken at first. It must not take this for an
//! outage. The store therefore counts as unreachable only after several renewals in a row have
//! failed, which takes a few seconds. Absent: the renewal itself (`cluster/lease.rs`), and the wait
//! of a batch (the recorder).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;

/// Number of failed renewals in a row that shows an unreachable store: three seconds at the pace of
/// the replicas.
const UNREACHABLE_AFTER: u32 = 12;
/// Longest gap between two failures of one row, however slowly the store fails. A longer one means
/// that this process was frozen.
const ROW_GAP_MAX: Duration = Duration::from_secs(10);

/// State of this replica's lease. All times are of [`clock::boot`], which runs on while the process
/// is frozen.
#[derive(Debug, Default)]
pub struct LeaseHealth {
    /// End of the lease in milliseconds, or 0 without a lease.
    until: AtomicU64,
    /// Number of times that the lease was acquired after it had expired.
    leases: AtomicU64,
    /// Failed renewals in a row, and the time of the last one in milliseconds.
    failures: AtomicU32,
    failed_at: AtomicU64,
}

impl LeaseHealth {
    /// Notes a renewal: the lease runs until then.
    pub fn note(&self, until: Duration) {
        self.failures.store(0, Ordering::Relaxed);
        // A reader of this renewal has the number of leases that it belongs to.
        self.until.store(millis(until), Ordering::Release);
    }

    /// Notes that the lease was not extended: it had expired, or never ran. To be called before
    /// [`Self::note`].
    pub fn note_acquired(&self) {
        self.leases.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of times that the lease was acquired.
    pub(in crate::event_log) fn leases(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }

    /// Notes a failed renewal. To be called by one task.
    pub fn note_renewal_failed(&self) {
        let is_first = !self.has_failed_lately();
        let failures = if is_first { 0 } else { self.failures.load(Ordering::Relaxed) };
        self.failures.store(failures.saturating_add(1), Ordering::Relaxed);
        self.failed_at.store(millis(clock::boot()), Ordering::Relaxed);
    }

    /// True if this replica holds its lease, so that the others count it among the living.
    pub(in crate::event_log) fn is_held(&self) -> bool {
        self.until.load(Ordering::Acquire) > millis(clock::boot())
    }

    /// True if the lease has expired, so that others may have adopted this replica's streams.
    pub(in crate::event_log) fn is_expired(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until > 0 && until <= millis(clock::boot())
    }

    /// True if the lease has expired and it is not yet known whether the store is reachable.
    pub(in crate::event_log) fn is_in_doubt(&self) -> bool {
        let is_out_of_reach = self.failures.load(Ordering::Relaxed) >= UNREACHABLE_AFTER && self.has_failed_lately();
        self.is_expired() && !is_out_of_reach
    }

    fn has_failed_lately(&self) -> bool {
        millis(clock::boot()).saturating_sub(self.failed_at.load(Ordering::Relaxed)) < millis(ROW_GAP_MAX)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);
    const PAUSE: Duration = Duration::from_millis(250);

    async fn miss(lease_health: &LeaseHealth, times: u32) {
        for _ in 0..times {
            lease_health.note_renewal_failed();
            tokio::time::advance(PAUSE).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_recognised_by_failed_renewals() {
        let lease_health = LeaseHealth::default();
        assert!(!lease_health.is_expired() && !lease_health.is_in_doubt(), "there is no lease");
        lease_health.note(clock::boot() + LEASE);
        miss(&lease_health, 60).await;
        assert!(lease_health.is_expired() && !lease_health.is_in_doubt());
        lease_health.note(clock::boot() + LEASE);
        assert!(!lease_health.is_expired() && !lease_health.is_in_doubt());
    }

    #[tokio::test(start_paused = true)]
    async fn a_frozen_process_does_not_mistake_its_first_failures_for_an_outage() {
        let lease_health = LeaseHealth::default();
        lease_health.note(clock::boot() + LEASE);
        // Also in an outage, which may be over when the process wakes.
        for failures in [0, 100] {
            miss(&lease_health, failures).await;
            tokio::time::advance(LEASE).await;
            assert!(lease_health.is_expired() && lease_health.is_in_doubt());
            miss(&lease_health, UNREACHABLE_AFTER - 1).await;
            assert!(lease_health.is_in_doubt());
            miss(&lease_health, 1).await;
            assert!(!lease_health.is_in_doubt());
        }
    }
}
