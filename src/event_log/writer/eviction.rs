//! The streams that can be found, and making room among them when a bound is reached.
//!
//! Room is made first from what is over and has arrived: from stubs, then from what precedes the end of streams that are delivered, then
//! from those streams, the oldest first in each case. They are those of the principal that is over its share, or, where the process
//! is full, of those that hold most. What else a full share gives up is the front of the stream that is being written (`stream/state.rs`).
//! Nothing that a client has yet to get is dropped for want of room, with one exception, which goes last: a stream of which all was written
//! to a connection that ended in peace may not have arrived. It goes whole, and only while no client has asked for it since.

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::quota::largest::Search;
use crate::event_log::quota::{Part, Row, Share};
use crate::event_log::writer::stream_table::Room;
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

impl Room {
    /// Room for one more call of `share`, whose request has so many bytes.
    pub(in crate::event_log) fn admit(&self, share: &Arc<Share>, request_bytes: usize) -> Result<Part, ErrorCode> {
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
    pub(in crate::event_log) fn admit_standalone(
        &self,
        share: &Arc<Share>,
        request_bytes: usize,
    ) -> Result<Part, ErrorCode> {
        self.require(share)?;
        Ok(share.take_part(request_bytes))
    }

    /// Room for whatever `share` holds already. An error says that nothing could be given up: other calls may take the room as fast as
    /// this one makes it.
    pub(in crate::event_log) fn require(&self, share: &Share) -> Result<(), ErrorCode> {
        let now = clock::now();
        if !self.make_own(share, now) {
            return Err(ErrorCode::ShareFull);
        }
        // This share may have come to hold much since it was found out who does.
        let has_room = self.make_of_total(share, now, LOOKS) || self.free_while(share, now, Share::excess_of_total);
        if has_room { Ok(()) } else { Err(ErrorCode::ProxyFull) }
    }

    /// Makes what room there is for `share`. Not to be called under a stream's lock.
    pub(in crate::event_log) fn make(&self, share: &Share) {
        let now = clock::now();
        self.make_own(share, now);
        self.make_of_total(share, now, 0);
    }

    /// Makes room within the bound of `share`; false where there is nothing left to give up.
    fn make_own(&self, share: &Share, now: Instant) -> bool {
        self.free_while(share, now, Share::own_excess)
    }

    /// Has `share` give up as long as it exceeds what it may hold; false where it does and there is nothing left.
    fn free_while(&self, share: &Share, now: Instant, excess: impl Fn(&Share) -> usize) -> bool {
        while excess(share) > 0 {
            if !self.free_some(share, now) {
                // Who took the last of it meanwhile has made the room.
                return excess(share) == 0;
            }
        }
        true
    }

    /// Makes room for `share` in the process, from whoever holds most; false where they have nothing left to give up. Once they have all been
    /// seen to, it looks `again` at so many.
    fn make_of_total(&self, share: &Share, now: Instant, again: usize) -> bool {
        let mut looks = 0;
        while share.excess_of_total() > 0 {
            let search = self.listed(now);
            let (turn, giver) = (search.turn, search.giver());
            if search.is_through() {
                if looks >= again.min(search.shares.len()) {
                    return share.excess_of_total() == 0;
                }
                looks += 1;
            }
            drop(search);
            if giver.is_none_or(|giver| !self.take_from(&giver, now)) {
                self.lock_search().pass(turn);
            } else {
                looks = 0;
            }
        }
        true
    }

    /// From whom to take, found out anew where that was a while ago.
    fn listed(&self, now: Instant) -> MutexGuard<'_, Search> {
        let mut search = self.lock_search();
        if search.is_old(now) {
            drop(search);
            let shares = self.shares.by_size();
            let shares = shares.iter().filter(|share| share.holds_much()).map(Arc::downgrade).collect();
            search = self.lock_search();
            // Another thread may have been faster.
            if search.is_old(now) {
                *search = Search { shares, turn: 0, until: Some(now + SEARCH_PAUSE) };
            }
        }
        search
    }

    /// Takes some steps, from one share; false where it has nothing left to give up.
    fn take_from(&self, share: &Share, now: Instant) -> bool {
        let whole = self.shares.whole();
        let mut wanted = whole.excess() + whole.allowance.max_bytes_total / SPARE;
        for _ in 0..STEPS {
            if wanted == 0 || !share.holds_much() {
                return true;
            }
            let before = share.bytes();
            if !self.free_some(share, now) {
                return false;
            }
            wanted = wanted.saturating_sub(before.saturating_sub(share.bytes()));
        }
        true
    }

    fn lock_search(&self) -> MutexGuard<'_, Search> {
        sync::lock(&self.search)
    }

    /// One step; false when there is none left.
    fn free_some(&self, share: &Share, now: Instant) -> bool {
        self.evict_stub(share) || self.shorten_one(share) || self.evict_one(share, now)
    }

    /// Takes from a stream of `share` that arrived what no client can be missing; false when all have been seen to.
    fn shorten_one(&self, share: &Share) -> bool {
        let Some(id) = share.next_to_shorten() else { return false };
        if let Some(stream) = self.get(id) {
            stream.shorten(KEPT_DELIVERED);
        }
        true
    }

    /// Forgets the oldest stub of `share`; false when it has none.
    fn evict_stub(&self, share: &Share) -> bool {
        while let Some(id) = share.take_proven() {
            if self.streams.remove_if(&id, |_, known| known.stream().is_none()).is_some() {
                share.whole().metrics.observe_eviction();
                return true;
            }
        }
        false
    }

    /// Forgets the stream of `share` that arrived first, else the one whose client left first; false when there is none but those that are
    /// read.
    fn evict_one(&self, share: &Share, now: Instant) -> bool {
        self.evict_first(share, Row::Delivered, now) || self.evict_first(share, Row::Parted, now)
    }

    fn evict_first(&self, share: &Share, row: Row, now: Instant) -> bool {
        // One that is read goes to the end of the row: each is looked at once.
        for _ in 0..share.row_len(row) {
            let Some((since, id)) = share.take_first(row) else { return false };
            let Some(stream) = self.get(id) else { continue };
            if stream.evict(row, since, now) {
                self.forget(&stream);
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
