//! Quotas: the memory and calls that one principal holds, and all principals together.
//!
//! Owned here: the accounts behind every limit per principal, and the comparison with it. A stream
//! refers to the quota of its principal, so that an event costs two additions and no lookup.
//! Invariants: the bytes of a [`StreamReservation`] or a [`Reservation`] are subtracted when it is
//! dropped, so an account never drifts. Memory is counted as it is allocated, spare capacity
//! included. Absent: the admission of a new stream and eviction, which need the streams
//! (`writer/admission.rs`, `writer/eviction.rs`), and the error response for a refused request.
//!
//! **The total.** The last eighth of `max_bytes_total` is reserved for principals that hold little.
//! Once the rest is taken, a principal may hold no more than its fair share of that eighth. Beyond
//! it the principal is treated as if its own quota were full; the others are not affected. So a
//! full process evicts from the principals that filled it.

mod account;
mod eviction_queues;
mod key;
pub(in crate::event_log) mod largest;
mod limits;
mod overrun;
mod reservation;
mod resume_rate;
mod upload;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use dashmap::DashMap;

use crate::clock;
use crate::event_log::metrics::Metrics;
use crate::event_log::quota::account::GlobalQuota;

pub(in crate::event_log) use account::MakeRoom;
pub use account::Quota;
pub(in crate::event_log) use eviction_queues::EvictionQueue;
pub use key::QuotaKey;
pub use limits::{QuotaLimits, TailLimits};
pub use reservation::{Reservation, StreamReservation};
pub use upload::UploadReservation;

/// Number of quotas that begins a sweep of unused ones; the next sweep follows at twice the number
/// then in use.
const QUOTAS_MIN: usize = 1024;

/// All quotas, by their keys.
pub struct Quotas {
    global: Arc<GlobalQuota>,
    quotas: DashMap<QuotaKey, Arc<Quota>>,
    sweep_at: AtomicUsize,
}

impl Quotas {
    /// Creates an empty set of quotas.
    pub fn new(allowance: QuotaLimits, metrics: Arc<Metrics>) -> Self {
        let global = Arc::new(GlobalQuota::new(allowance, metrics));
        Self { global, quotas: DashMap::new(), sweep_at: AtomicUsize::new(QUOTAS_MIN) }
    }

    /// Returns the quota of `key`; creates it if it does not exist.
    pub fn of(&self, key: QuotaKey) -> Arc<Quota> {
        if let Some(quota) = self.quotas.get(&key) {
            return quota.clone();
        }
        if self.quotas.len() >= self.sweep_at.load(Ordering::Relaxed) {
            self.sweep(clock::now());
        }
        self.quotas.entry(key).or_insert_with(|| Arc::new(Quota::new(self.global.clone()))).clone()
    }

    /// Forgets unused quotas. Invented keys cost at most twice the quotas in use.
    pub(super) fn sweep(&self, now: Instant) {
        self.quotas.retain(|_, quota| Arc::strong_count(quota) > 1 || quota.owes_time(now));
        self.sweep_at.store(self.quotas.len().saturating_mul(2).max(QUOTAS_MIN), Ordering::Relaxed);
    }

    /// Returns the number of quotas.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.quotas.len()
    }

    /// Returns the quotas that hold any bytes, the largest first.
    pub(super) fn largest_first(&self) -> Vec<Arc<Quota>> {
        let mut quotas: Vec<(usize, Arc<Quota>)> =
            self.quotas.iter().map(|quota| (quota.bytes(), quota.value().clone())).collect();
        quotas.retain(|(bytes, _)| *bytes > 0);
        quotas.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        quotas.into_iter().map(|(_, quota)| quota).collect()
    }

    pub(super) fn global(&self) -> &GlobalQuota {
        &self.global
    }

    /// Sets the streams that free quotas. Counts once.
    pub(super) fn set_room(&self, room: Weak<dyn MakeRoom>) {
        let _ = self.global.room.set(room);
    }
}
