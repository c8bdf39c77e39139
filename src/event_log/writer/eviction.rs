//! The streams that can be found, and making room among them when a bound is reached.
//!
//! StreamTable is made first from what is over and has arrived: from stubs, then from what precedes the end of streams that are delivered, then
//! from those streams, the oldest first in each case. They are those of the principal that is over its share, or, where the process
//! is full, of those that hold most. What else a full share gives up is the front of the stream that is being written (`stream/state.rs`).
//! Nothing that a client has yet to get is dropped for want of room, with one exception, which goes last: a stream of which all was written
//! to a connection that ended in peace may not have arrived. It goes whole, and only while no client has asked for it since.

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::quota::largest::LargestQuotas;
use crate::event_log::quota::{EvictionQueue, Quota, StreamReservation};
use crate::event_log::writer::stream_table::StreamTable;
use crate::protocol::error::ErrorCode;
use crate::sync;

/// Where the process is full, whose shares are the largest is found out again so much later.
const SEARCH_PAUSE: Duration = Duration::from_millis(250);
/// What a stream that arrived keeps for as long as that makes room enough: more than sockets and a proxy on the way hold, and so can lose.
const KEPT_DELIVERED: usize = 512 * 1024;
/// A search takes so many steps from one share at a time, so that it makes room for a few calls to come and keeps its thread for no longer
/// than that.
const STEPS: usize = 64;
/// Within these steps it makes no more room beyond what is needed than this part of the total.
const SPARE: usize = 16;
/// Once all of the largest shares have given what they had, a call that is to be refused looks at so many of them once more.
const LOOKS: usize = 64;

impl StreamTable {
    /// StreamTable for one more call of `share`, whose request has so many bytes.
    pub(in crate::event_log) fn admit(
        &self,
        quota: &Arc<Quota>,
        request_bytes: usize,
    ) -> Result<StreamReservation, ErrorCode> {
        let allowance = &quota.global().allowance;
        if quota.detached() >= allowance.max_detached {
            return Err(ErrorCode::TooManyDetached);
        }
        self.ensure_within_limits(quota)?;
        // Counted before it is compared: two at once do not both get the last place.
        let mut reservation = quota.reserve_stream(request_bytes);
        reservation.set_running(true);
        if quota.streams() > allowance.max_streams { Err(ErrorCode::TooManyStreams) } else { Ok(reservation) }
    }

    /// StreamTable for a session's standalone stream, whose request has so many bytes. It is no call: only bytes bound it.
    pub(in crate::event_log) fn admit_standalone(
        &self,
        quota: &Arc<Quota>,
        request_bytes: usize,
    ) -> Result<StreamReservation, ErrorCode> {
        self.ensure_within_limits(quota)?;
        Ok(quota.reserve_stream(request_bytes))
    }

    /// StreamTable for whatever `share` holds already. An error says that nothing could be given up: other calls may take the room as fast as
    /// this one makes it.
    pub(in crate::event_log) fn ensure_within_limits(&self, quota: &Quota) -> Result<(), ErrorCode> {
        let now = clock::now();
        if !self.evict_own(quota, now) {
            return Err(ErrorCode::ShareFull);
        }
        // This share may have come to hold much since it was found out who does.
        let has_capacity = self.evict_globally(quota, now, LOOKS) || self.evict_while(quota, now, Quota::global_excess);
        if has_capacity { Ok(()) } else { Err(ErrorCode::ProxyFull) }
    }

    /// Makes what room there is for `share`. Not to be called under a stream's lock.
    pub(in crate::event_log) fn evict(&self, quota: &Quota) {
        let now = clock::now();
        self.evict_own(quota, now);
        self.evict_globally(quota, now, 0);
    }

    /// Makes room within the bound of `share`; false where there is nothing left to give up.
    fn evict_own(&self, quota: &Quota, now: Instant) -> bool {
        self.evict_while(quota, now, Quota::own_excess)
    }

    /// Has `share` give up as long as it exceeds what it may hold; false where it does and there is nothing left.
    fn evict_while(&self, quota: &Quota, now: Instant, excess: impl Fn(&Quota) -> usize) -> bool {
        while excess(quota) > 0 {
            if !self.evict_step(quota, now) {
                // Who took the last of it meanwhile has made the room.
                return excess(quota) == 0;
            }
        }
        true
    }

    /// Makes room for `share` in the process, from whoever holds most; false where they have nothing left to give up. Once they have all been
    /// seen to, it looks `again` at so many.
    fn evict_globally(&self, quota: &Quota, now: Instant, again: usize) -> bool {
        let mut looks = 0;
        while quota.global_excess() > 0 {
            let largest = self.largest_quotas(now);
            let (turn, largest_quota) = (largest.turn, largest.current());
            if largest.is_through() {
                if looks >= again.min(largest.quotas.len()) {
                    return quota.global_excess() == 0;
                }
                looks += 1;
            }
            drop(largest);
            if largest_quota.is_none_or(|largest_quota| !self.evict_from(&largest_quota, now)) {
                self.lock_largest().pass(turn);
            } else {
                looks = 0;
            }
        }
        true
    }

    /// From whom to take, found out anew where that was a while ago.
    fn largest_quotas(&self, now: Instant) -> MutexGuard<'_, LargestQuotas> {
        let mut largest = self.lock_largest();
        if largest.is_old(now) {
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

    /// Takes some steps, from one share; false where it has nothing left to give up.
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

    /// One step; false when there is none left.
    fn evict_step(&self, quota: &Quota, now: Instant) -> bool {
        self.evict_stub(quota) || self.trim_one(quota) || self.evict_one_stream(quota, now)
    }

    /// Takes from a stream of `share` that arrived what no client can be missing; false when all have been seen to.
    fn trim_one(&self, quota: &Quota) -> bool {
        let Some(id) = quota.next_to_trim() else { return false };
        if let Some(stream) = self.get(id) {
            stream.trim_to(KEPT_DELIVERED);
        }
        true
    }

    /// Forgets the oldest stub of `share`; false when it has none.
    fn evict_stub(&self, quota: &Quota) -> bool {
        while let Some(id) = quota.pop_stub() {
            if self.entries.remove_if(&id, |_, known| known.stream().is_none()).is_some() {
                quota.global().metrics.observe_eviction();
                return true;
            }
        }
        false
    }

    /// Forgets the stream of `share` that arrived first, else the one whose client left first; false when there is none but those that are
    /// read.
    fn evict_one_stream(&self, quota: &Quota, now: Instant) -> bool {
        self.evict_first(quota, EvictionQueue::Delivered, now)
            || self.evict_first(quota, EvictionQueue::Unconfirmed, now)
    }

    fn evict_first(&self, quota: &Quota, row: EvictionQueue, now: Instant) -> bool {
        // One that is read goes to the end of the row: each is looked at once.
        for _ in 0..quota.queue_len(row) {
            let Some((since, id)) = quota.pop_first_of(row) else { return false };
            let Some(stream) = self.get(id) else { continue };
            if stream.evict(row, since, now) {
                self.forget(&stream);
                if stream.body().is_some() {
                    // A key finds what the store has of it.
                    stream.leave_claims();
                }
                // Its last user may be far away: no retry is to find it meanwhile.
                stream.forget_retries();
                quota.global().metrics.observe_eviction();
                return true;
            }
        }
        false
    }
}
