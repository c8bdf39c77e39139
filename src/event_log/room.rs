//! Making room when a bound is reached, and refusing what finds none.
//!
//! Room is made first from streams that are over and have arrived, the oldest first: those of the principal that is over its
//! share, or, where the process is full, of whoever holds most. None goes before `delivered_retention`: "arrived" is what the
//! connection said, and a proxy on the way may have lost the last of it still. Until then they give up all but their end. What
//! else a full share gives up is the front of the stream that is being written (`inner.rs`). Nothing that a client has yet to
//! get is ever dropped for want of room.

use std::sync::Arc;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tracing::warn;

use super::Stream;
use super::share::{Part, Share, Shares};
use crate::clock;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::StreamId;

/// A full process that found nothing to give up is searched again so much later.
const SEARCH_PAUSE: Duration = Duration::from_millis(250);
/// What a stream that arrived keeps until its time has come: more than sockets and a proxy on the way hold, and so can lose.
const KEPT_DELIVERED: usize = 512 * 1024;
/// One search makes so much room beyond what is needed: a part of the total.
const SPARE: usize = 16;

/// The streams that can be found, and what they take.
pub(super) struct Room {
    pub(super) streams: DashMap<StreamId, Arc<Stream>>,
    pub(super) shares: Shares,
    search_after: Mutex<Option<Instant>>,
}

impl Room {
    pub(super) fn new(shares: Shares) -> Self {
        Self { streams: DashMap::new(), shares, search_after: Mutex::default() }
    }

    /// Another replica has `stream`: nobody finds it here any more, its readers end, and its pump learns of it.
    pub(super) fn leave(&self, stream: &Arc<Stream>) {
        // First out of the map: nobody is to find what is over here and goes on elsewhere.
        self.streams.remove_if(&stream.id(), |_, known| Arc::ptr_eq(known, stream));
        if stream.leave() {
            warn!(stream.id = %stream.id(), "another replica has taken the stream");
            stream.share().whole().metrics.observe_fenced();
        }
        stream.pump.notify_one();
    }

    /// Room for one more call of `share`, whose request has so many bytes.
    pub(super) fn admit(&self, share: &Arc<Share>, request_bytes: usize) -> Result<Part, ErrorCode> {
        let allowance = &share.whole().allowance;
        if share.detached() >= allowance.max_detached {
            return Err(ErrorCode::TooManyDetached);
        }
        self.require(share)?;
        // Counted before it is compared: two at once do not both get the last place.
        let mut part = share.take_part(request_bytes);
        part.set_running(true);
        if share.streams() > allowance.max_streams { Err(ErrorCode::TooManyStreams) } else { Ok(part) }
    }

    /// Room for a session's standalone stream, whose request has so many bytes. It is no call: only bytes bound it.
    pub(super) fn admit_standalone(&self, share: &Arc<Share>, request_bytes: usize) -> Result<Part, ErrorCode> {
        self.require(share)?;
        Ok(share.take_part(request_bytes))
    }

    /// Room for whatever `share` holds already.
    pub(super) fn require(&self, share: &Share) -> Result<(), ErrorCode> {
        if !share.is_over() {
            return Ok(());
        }
        self.make(share);
        if share.own_excess() > 0 {
            return Err(ErrorCode::ShareFull);
        }
        if share.is_over() { Err(ErrorCode::ProxyFull) } else { Ok(()) }
    }

    /// Makes what room there is for `share`. Not to be called under a stream's lock.
    pub(super) fn make(&self, share: &Share) {
        let now = clock::now();
        while share.own_excess() > 0 && self.free_some(share, now) {}
        if share.excess_of_total() > 0 {
            self.search(now);
        }
    }

    /// Takes from whoever holds most, in one task at a time; the others go on with what they have.
    fn search(&self, now: Instant) {
        let mut search_after = match self.search_after.try_lock() {
            Ok(search_after) => search_after,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if search_after.is_some_and(|after| now < after) {
            return;
        }
        let whole = self.shares.whole();
        let mut wanted = whole.excess() + whole.allowance.max_bytes_total / SPARE;
        for share in self.shares.by_size() {
            while wanted > 0 && share.holds_much() {
                let before = share.bytes();
                if !self.free_some(&share, now) {
                    break;
                }
                wanted = wanted.saturating_sub(before.saturating_sub(share.bytes()));
            }
        }
        *search_after = (wanted > 0).then_some(now + SEARCH_PAUSE);
    }

    /// One step; false when there is none left.
    fn free_some(&self, share: &Share, now: Instant) -> bool {
        self.evict_one(share, now) || self.shorten_one(share)
    }

    /// Takes from a stream of `share` that arrived what no client can be missing; false when all have been seen to.
    fn shorten_one(&self, share: &Share) -> bool {
        let Some(id) = share.next_to_shorten() else { return false };
        if let Some(stream) = self.streams.get(&id).map(|entry| entry.value().clone()) {
            stream.shorten(KEPT_DELIVERED);
        }
        true
    }

    /// Forgets the stream of `share` that arrived first; false when none has been kept long enough.
    fn evict_one(&self, share: &Share, now: Instant) -> bool {
        while let Some(id) = share.take_delivered(now) {
            let Some(stream) = self.streams.get(&id).map(|entry| entry.value().clone()) else { continue };
            if stream.evict(now) {
                self.streams.remove(&id);
                if stream.body().is_some() {
                    // A key finds what the store has of it.
                    stream.leave_holds();
                }
                // Its last user may be far away: no retry is to find it meanwhile.
                stream.forget_retries();
                share.whole().metrics.observe_eviction();
                return true;
            }
        }
        false
    }
}
