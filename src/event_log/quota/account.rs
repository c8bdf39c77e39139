//! Accounts: the bytes and calls of one principal, and of all together.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use crate::event_log::metrics::Metrics;
use crate::event_log::quota::eviction_queues::EvictionQueues;
use crate::event_log::quota::limits::QuotaLimits;
use crate::event_log::quota::overrun::Overrun;
use crate::event_log::quota::resume_rate::ResumeRate;
use crate::protocol::error::ErrorCode;

/// Divisor of the total: this part is reserved for principals that hold little.
const RESERVE: usize = 8;

/// Eviction for a quota.
pub(in crate::event_log) trait MakeRoom: Send + Sync {
    /// Evicts until `quota` is within its limits. Not to be called under a stream's lock.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull`.
    fn make_room(&self, quota: &Quota) -> Result<(), ErrorCode>;
}

/// Total of all quotas.
pub(in crate::event_log) struct GlobalQuota {
    pub(in crate::event_log) allowance: QuotaLimits,
    /// Metrics; their gauge of held bytes is the account itself, so that no second one can differ.
    pub(in crate::event_log) metrics: Arc<Metrics>,
    /// Quotas that hold any bytes.
    holders: AtomicUsize,
    /// Overrun of all calls, for a full process.
    pub(super) overrun: Overrun,
    /// Eviction from the streams of all quotas, once there are streams.
    pub(super) room: OnceLock<Weak<dyn MakeRoom>>,
}

impl GlobalQuota {
    pub(super) fn new(allowance: QuotaLimits, metrics: Arc<Metrics>) -> Self {
        Self { allowance, metrics, holders: AtomicUsize::new(0), overrun: Overrun::default(), room: OnceLock::new() }
    }

    /// Returns the bytes to free before principals above their fair share may hold more.
    pub(in crate::event_log) fn excess(&self) -> usize {
        self.metrics.held_bytes().saturating_sub(self.high())
    }

    fn high(&self) -> usize {
        self.allowance.max_bytes_total - self.allowance.max_bytes_total / RESERVE
    }

    /// Returns the bytes that every principal may hold in a full process.
    fn fair_share(&self) -> usize {
        self.allowance.max_bytes_total / RESERVE / self.holders.load(Ordering::Relaxed).max(1)
    }
}

/// Quota of one principal.
pub struct Quota {
    pub(super) global: Arc<GlobalQuota>,
    bytes: AtomicUsize,
    pub(super) streams: AtomicUsize,
    pub(super) detached: AtomicUsize,
    pub(super) tasks: AtomicUsize,
    /// POSTs without requests in flight to the upstream.
    pub(super) uploads: AtomicUsize,
    resume_rate: ResumeRate,
    evictable: EvictionQueues,
    /// Overrun of this quota's calls.
    pub(super) overrun: Overrun,
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota").field("bytes", &self.bytes).field("streams", &self.streams).finish_non_exhaustive()
    }
}

impl Quota {
    pub(super) fn new(global: Arc<GlobalQuota>) -> Self {
        Self {
            global,
            bytes: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            detached: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            uploads: AtomicUsize::new(0),
            resume_rate: ResumeRate::default(),
            evictable: EvictionQueues::default(),
            overrun: Overrun::default(),
        }
    }

    /// Resolves when a call has released its overrun.
    pub(in crate::event_log) async fn overrun_released(&self) {
        tokio::select! {
            () = self.overrun.freed() => {}
            () = self.global.overrun.freed() => {}
        }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of running calls.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns the number of running calls without a reader.
    pub fn detached(&self) -> usize {
        self.detached.load(Ordering::Relaxed)
    }

    /// Returns the number of running tasks.
    pub fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }

    /// Returns whether the quota must free bytes before it may hold more.
    pub fn is_exceeded(&self) -> bool {
        self.excess() > 0
    }

    /// Returns the bytes to free: the excess over its own limit, or its part of the excess over the
    /// total.
    pub(in crate::event_log) fn excess(&self) -> usize {
        self.own_excess().max(self.global_excess())
    }

    pub(in crate::event_log) fn own_excess(&self) -> usize {
        self.bytes().saturating_sub(self.global.allowance.max_bytes)
    }

    pub(in crate::event_log) fn global_excess(&self) -> usize {
        let excess = self.global.excess();
        if excess == 0 { 0 } else { excess.min(self.bytes().saturating_sub(self.global.fair_share())) }
    }

    /// Returns whether the quota holds more than its fair share of a full process.
    pub(in crate::event_log) fn exceeds_fair_share(&self) -> bool {
        self.bytes() > self.global.fair_share()
    }

    /// Admits a resume at once, if none waits and the rate allows one more. Returns whether it was
    /// admitted and counted.
    pub fn try_resume(&self) -> bool {
        self.resume_rate.try_admit(self.global.allowance.resumes_per_sec)
    }

    /// Waits until one more resume is admitted, in the order of arrival, and counts it. To drop the
    /// future gives up the place in the queue.
    pub async fn wait_for_resume(&self) {
        self.resume_rate.admit(self.global.allowance.resumes_per_sec).await;
    }

    /// Returns whether forgetting the quota would make its next resumes cheaper.
    pub(super) fn owes_time(&self, now: Instant) -> bool {
        self.resume_rate.owes_time(now)
    }

    /// Evicts until the quota is within its limits. Not to be called under a stream's lock.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull`.
    pub(super) fn make_room(&self) -> Result<(), ErrorCode> {
        match self.global.room.get().and_then(Weak::upgrade) {
            Some(room) => room.make_room(self),
            None if self.is_exceeded() => Err(ErrorCode::ShareFull),
            None => Ok(()),
        }
    }

    /// Returns the streams that may be evicted.
    pub(in crate::event_log) fn evictable(&self) -> &EvictionQueues {
        &self.evictable
    }

    /// Counts the events that a stream trimmed, and whether the stream now pauses its upstream.
    pub(in crate::event_log) fn observe_trim(&self, trimmed: u64, pauses: bool) {
        if trimmed > 0 {
            self.global.metrics.observe_trimmed(trimmed);
        }
        if pauses {
            self.global.metrics.observe_pause();
        }
    }

    pub(in crate::event_log) fn global(&self) -> &GlobalQuota {
        &self.global
    }

    /// Counts more bytes.
    pub(super) fn add(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.global.holders.fetch_add(1, Ordering::Relaxed);
        }
        self.global.metrics.observe_held(bytes);
    }

    /// Counts fewer bytes.
    pub(super) fn subtract(&self, bytes: usize) {
        if self.bytes.fetch_sub(bytes, Ordering::Relaxed) == bytes {
            self.global.holders.fetch_sub(1, Ordering::Relaxed);
        }
        self.global.metrics.observe_released(bytes);
    }
}
