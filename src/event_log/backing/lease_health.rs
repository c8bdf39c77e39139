//! Whether the other replicas still count this one as living, and what it may take for granted where they may not.
//!
//! Once the lease has lapsed others may have ended what is open here. Whether they have, the store says; and where it cannot be asked,
//! memory stands for it. A process that was frozen past its lease cannot ask either in its first moment, since its connections broke
//! meanwhile, and must not take that for an outage: so the store counts as out of reach only after as many renewals have failed, one
//! behind the other, as take a few seconds. Absent: who renews the lease (the replicas), and how long a batch waits (the recorder).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;

/// So many renewals fail in a row where the store is out of reach; at the pace of the replicas that is three seconds.
const MISSES: u32 = 12;
/// Between two of them lies less than this, however slowly the store fails to answer. After more, this process was frozen.
const ROW: Duration = Duration::from_secs(10);

/// What became of the renewals of this replica's lease. All times are of [`clock::boot`], which goes on while the process is frozen.
#[derive(Debug, Default)]
pub struct LeaseHealth {
    /// In milliseconds; 0 where nobody asks.
    until: AtomicU64,
    /// Renewals that failed in a row, and when the last one did, in milliseconds.
    misses: AtomicU32,
    missed_at: AtomicU64,
}

impl LeaseHealth {
    /// This replica counts as living until then.
    pub(in crate::event_log) fn note(&self, until: Duration) {
        self.misses.store(0, Ordering::Relaxed);
        self.until.store(millis(until), Ordering::Relaxed);
    }

    /// A renewal has failed just now. To be told by one task.
    pub(in crate::event_log) fn note_renewal_failed(&self) {
        let is_first = !self.has_missed_lately();
        let misses = if is_first { 0 } else { self.misses.load(Ordering::Relaxed) };
        self.misses.store(misses.saturating_add(1), Ordering::Relaxed);
        self.missed_at.store(millis(clock::boot()), Ordering::Relaxed);
    }

    /// The lease has lapsed: others may have taken what this replica has.
    pub(in crate::event_log) fn is_expired(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until > 0 && until <= millis(clock::boot())
    }

    /// It has lapsed, and whether the store can be reached is not known yet.
    pub(in crate::event_log) fn is_in_doubt(&self) -> bool {
        let is_out_of_reach = self.misses.load(Ordering::Relaxed) >= MISSES && self.has_missed_lately();
        self.is_expired() && !is_out_of_reach
    }

    fn has_missed_lately(&self) -> bool {
        millis(clock::boot()).saturating_sub(self.missed_at.load(Ordering::Relaxed)) < millis(ROW)
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
    async fn an_outage_is_known_by_the_renewals_that_fail_in_it() {
        let lease_health = LeaseHealth::default();
        assert!(!lease_health.is_expired() && !lease_health.is_in_doubt(), "nobody asks");
        lease_health.note(clock::boot() + LEASE);
        miss(&lease_health, 60).await;
        assert!(lease_health.is_expired() && !lease_health.is_in_doubt());
        lease_health.note(clock::boot() + LEASE);
        assert!(!lease_health.is_expired() && !lease_health.is_in_doubt());
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_frozen_does_not_take_its_first_failures_for_an_outage() {
        let lease_health = LeaseHealth::default();
        lease_health.note(clock::boot() + LEASE);
        // In an outage, too, which may be over when it wakes.
        for misses in [0, 100] {
            miss(&lease_health, misses).await;
            tokio::time::advance(LEASE).await;
            assert!(lease_health.is_expired() && lease_health.is_in_doubt());
            miss(&lease_health, MISSES - 1).await;
            assert!(lease_health.is_in_doubt());
            miss(&lease_health, 1).await;
            assert!(!lease_health.is_in_doubt());
        }
    }
}
