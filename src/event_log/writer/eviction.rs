//! Eviction: frees memory when a limit is reached.
//!
//! Delivered data is evicted first: streams with a proven delivery, then the front of other
//! delivered streams, then these whole streams. In each case the oldest is first. They belong to
//! the principal that exceeds its quota, or, in a full process, to the largest quotas. A full quota
//! also trims the front of the stream that is being written (`stream/backpressure.rs`). Undelivered
//! data is never evicted, with one exception, which is evicted last. A stream that was wholly
//! written to a connection may not have arrived if that connection closed gracefully. It is evicted
//! whole, and only while no client has resumed it.

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::quota::largest::LargestQuotas;
use crate::event_log::quota::{EvictionQueue, MakeRoom, Quota};
use crate::event_log::stream::Stream;
use crate::event_log::writer::stream_table::{StreamEntry, StreamTable};
use crate::protocol::error::ErrorCode;
use crate::sync;

/// Pause between two searches for the largest quotas in a full process.
const SEARCH_PAUSE: Duration = Duration::from_millis(250);
/// Bytes that a delivered stream keeps while this frees enough. Sockets and a proxy on the way
/// buffer less, and can lose no more.
const KEPT_DELIVERED: usize = 512 * 1024;
/// Steps of an eviction from one quota at a time: enough for a few calls to come, and a bounded
/// time for the thread.
const STEPS: usize = 64;
/// Divisor of the total: the memory that these steps free beyond what is needed.
const SPARE: usize = 16;
/// Quotas that a call tries once more before it is refused, after all of the largest have been
/// tried.
const RETRIES: usize = 64;

impl MakeRoom for StreamTable {
    fn make_room(&self, quota: &Quota) -> Result<(), ErrorCode> {
        self.ensure_within_limits(quota)
    }
}

impl StreamTable {
    /// Evicts until `quota` is within its limits. An error means that nothing could be evicted;
    /// other calls may take the memory as fast as this one frees it.
    pub(in crate::event_log) fn ensure_within_limits(&self, quota: &Quota) -> Result<(), ErrorCode> {
        if !quota.is_exceeded() {
            return Ok(());
        }
        let now = clock::now();
        if !self.evict_own(quota, now) {
            return Err(ErrorCode::ShareFull);
        }
        // This quota may have grown since the largest were searched.
        let has_capacity =
            self.evict_globally(quota, now, RETRIES) || self.evict_while(quota, now, Quota::global_excess);
        if has_capacity { Ok(()) } else { Err(ErrorCode::ProxyFull) }
    }

    /// Evicts for `quota` as far as possible. Not to be called under a stream's lock.
    pub(in crate::event_log) fn evict(&self, quota: &Quota) {
        let now = clock::now();
        self.evict_own(quota, now);
        self.evict_globally(quota, now, 0);
    }

    /// Evicts until `quota` is within its own limit; returns false if nothing is left to evict.
    fn evict_own(&self, quota: &Quota, now: Instant) -> bool {
        self.evict_while(quota, now, Quota::own_excess)
    }

    /// Evicts from `quota` while it has an excess; returns false if nothing is left to evict.
    fn evict_while(&self, quota: &Quota, now: Instant, excess: impl Fn(&Quota) -> usize) -> bool {
        while excess(quota) > 0 {
            if !self.evict_step(quota, now) {
                // Another thread that evicted the last of it has freed the memory.
                return excess(quota) == 0;
            }
        }
        true
    }

    /// Evicts from the largest quotas until `quota` is within the total; returns false if nothing
    /// is left to evict. Tries `again` quotas once more after all have been tried.
    fn evict_globally(&self, quota: &Quota, now: Instant, again: usize) -> bool {
        let mut retries = 0;
        while quota.global_excess() > 0 {
            let largest = self.largest_quotas(now);
            let (turn, largest_quota) = (largest.turn, largest.current());
            if largest.is_through() {
                if retries >= again.min(largest.quotas.len()) {
                    return quota.global_excess() == 0;
                }
                retries += 1;
            }
            // Not locked during the eviction.
            drop(largest);
            if largest_quota.is_none_or(|largest_quota| !self.evict_from(&largest_quota, now)) {
                self.lock_largest().pass(turn);
            } else {
                retries = 0;
            }
        }
        true
    }

    /// Returns the largest quotas, searched anew if the last search is old.
    fn largest_quotas(&self, now: Instant) -> MutexGuard<'_, LargestQuotas> {
        let mut largest = self.lock_largest();
        if largest.is_old(now) {
            // Not locked during the search.
            drop(largest);
            let quotas = self.quotas.largest_first();
            let quotas = quotas.iter().filter(|quota| quota.exceeds_fair_share()).map(Arc::downgrade).collect();
            largest = self.lock_largest();
            // Another thread may have been faster.
            if largest.is_old(now) {
                *largest = LargestQuotas { quotas, turn: 0, until: Some(now + SEARCH_PAUSE) };
            }
        }
        largest
    }

    /// Evicts in some steps from one quota; returns false if nothing is left there.
    fn evict_from(&self, quota: &Quota, now: Instant) -> bool {
        let global = self.quotas.global();
        let mut wanted = global.excess() + global.allowance.max_bytes_total / SPARE;
        for _ in 0..STEPS {
            if wanted == 0 || !quota.exceeds_fair_share() {
                return true;
            }
            let before = quota.bytes();
            if !self.evict_step(quota, now) {
                return false;
            }
            wanted = wanted.saturating_sub(before.saturating_sub(quota.bytes()));
        }
        true
    }

    fn lock_largest(&self) -> MutexGuard<'_, LargestQuotas> {
        sync::lock(&self.largest)
    }

    /// Makes one step; returns false without a further step.
    fn evict_step(&self, quota: &Quota, now: Instant) -> bool {
        self.evict_first(quota, EvictionQueue::Proven, now)
            || self.trim_one(quota)
            || self.evict_first(quota, EvictionQueue::Delivered, now)
            || self.evict_first(quota, EvictionQueue::Unconfirmed, now)
    }

    /// Trims a delivered stream of `quota` to what a client may still lack; returns false once all
    /// are trimmed.
    fn trim_one(&self, quota: &Quota) -> bool {
        let Some(id) = quota.evictable().next_to_trim() else { return false };
        let Some(mut known) = self.entries.get_mut(&id) else { return true };
        match known.value_mut() {
            StreamEntry::Stub(stub) => stub.trim_to(KEPT_DELIVERED),
            StreamEntry::Stream(stream) => {
                let stream = stream.clone();
                // The guard of the map is dropped before the wait for the stream's lock.
                drop(known);
                stream.delivery().trim_to(KEPT_DELIVERED);
            }
        }
        true
    }

    /// Returns true if the call runs on as a task, and a retry may look for it.
    fn runs_as_task(&self, call: &Stream) -> bool {
        let task = call.task().filter(|_| call.retries().may_come()).and_then(|task| self.get(task));
        task.is_some_and(|task| !task.with_machine(|machine| machine.lifecycle().is_sealed()))
    }

    /// Forgets the first stream of `queue`, whole or a stub. Returns false if each has a reader.
    fn evict_first(&self, quota: &Quota, queue: EvictionQueue, now: Instant) -> bool {
        // A stream with a reader or a running task moves to the end of the queue: each is checked
        // once.
        for _ in 0..quota.evictable().queue_len(queue) {
            let Some((since, id)) = quota.evictable().pop_first_of(queue) else { return false };
            let is_stub = |known: &StreamEntry| known.stub().is_some_and(|stub| stub.is_queued_at((queue, since)));
            if let Some((_, known)) = self.entries.remove_if(&id, |_, known| is_stub(known)) {
                if let Some(stub) = known.stub() {
                    stub.leave_claims();
                }
                quota.global().metrics.observe_eviction();
                return true;
            }
            let Some(stream) = self.get(id) else { continue };
            // A retry of a call that runs on as a task must find it, or the tool would run twice. A
            // caller has few of these.
            if stream.delivery().evict(queue, since, self.runs_as_task(&stream), now) {
                self.forget(&stream);
                // A key still finds the stream in the store.
                stream.retries().leave_claims();
                // The last user may drop the stream much later, and no retry may find it until
                // then.
                stream.retries().forget();
                quota.global().metrics.observe_eviction();
                return true;
            }
        }
        false
    }
}
