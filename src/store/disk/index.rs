//! Index in memory: the metadata of each live stream, and the size of each record.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dashmap::{DashMap, DashSet};
use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};

use super::failure::{Failure, damaged};
use super::layout::{self, StreamMeta};
use crate::StoreHealth;
use mcp_resume_protocol::ids::{Seq, StreamId};

/// Written by the writer alone, after the commit; read by all.
#[derive(Default)]
pub(super) struct Index {
    pub(super) streams: DashMap<StreamId, StreamMeta>,
    /// Streams that exist and cannot be read. Nothing else is known of them, and nothing is written
    /// to them.
    pub(super) damaged: DashSet<StreamId>,
    /// Expiry and size of each record.
    pub(super) records: DashMap<Arc<[u8]>, (u64, u64)>,
    health: AtomicU8,
}

impl Index {
    /// Returns the metadata of the stream, or `None` if it has expired.
    pub(super) fn find(&self, stream: StreamId, now: u64) -> Option<StreamMeta> {
        self.streams.get(&stream).map(|meta| *meta).filter(|meta| meta.lives(now))
    }

    /// Returns an error if the stream cannot be read.
    pub(super) fn check(&self, stream: StreamId) -> Result<(), Failure> {
        if self.damaged.contains(&stream) { Err(damaged("events of the stream are damaged")) } else { Ok(()) }
    }

    pub(super) fn health(&self) -> StoreHealth {
        match self.health.load(Ordering::Relaxed) {
            0 => StoreHealth::Ready,
            1 => StoreHealth::Full,
            _ => StoreHealth::Unreachable,
        }
    }

    pub(super) fn set_health(&self, health: StoreHealth) {
        let health = match health {
            StoreHealth::Ready => 0,
            StoreHealth::Full => 1,
            StoreHealth::Unreachable => 2,
        };
        self.health.store(health, Ordering::Relaxed);
    }
}

/// Live events, by stream number. During a compaction the database checks each event here, and
/// drops an event that is not live. Its deletion needs no write.
#[derive(Default)]
pub(super) struct LiveEvents {
    /// Live streams, and the last trimmed event of each.
    trimmed: DashMap<u64, Seq>,
    /// Numbers from here on are undecided and count as live.
    undecided: AtomicU64,
}

impl LiveEvents {
    pub(super) fn keep(&self, number: u64, trimmed: Seq) {
        self.trimmed.insert(number, trimmed);
    }

    pub(super) fn forget(&self, number: u64) {
        self.trimmed.remove(&number);
    }

    /// Declares the set complete for all numbers below this one. A number that was not kept is
    /// obsolete.
    pub(super) fn decide(&self, below: u64) {
        self.undecided.store(below, Ordering::SeqCst);
    }

    fn is_live(&self, number: u64, last: Seq) -> bool {
        // The order matters: a stream is kept before its number is decided.
        number >= self.undecided.load(Ordering::SeqCst)
            || self.trimmed.get(&number).is_some_and(|trimmed| last > *trimmed)
    }

    /// Returns the ranges of numbers without a live stream, as first and last. Streams created
    /// meanwhile are not in them.
    pub(super) fn gaps(&self) -> Vec<(u64, u64)> {
        let undecided = self.undecided.load(Ordering::SeqCst);
        let mut numbers: Vec<u64> = self.trimmed.iter().map(|entry| *entry.key()).collect();
        numbers.retain(|&number| number < undecided);
        numbers.push(undecided);
        numbers.sort_unstable();
        let before = std::iter::once(0).chain(numbers.iter().map(|number| number + 1));
        before.zip(&numbers).filter(|(first, end)| first < end).map(|(first, end)| (first, end - 1)).collect()
    }
}

/// [`LiveEvents`] as a compaction filter of the database.
pub(super) struct ObsoleteFilterFactory(pub(super) AssertUnwindSafe<Arc<LiveEvents>>);

impl Factory for ObsoleteFilterFactory {
    fn name(&self) -> &'static str {
        "wanted events"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(ObsoleteFilter(self.0.clone()))
    }
}

struct ObsoleteFilter(Arc<LiveEvents>);

impl CompactionFilter for ObsoleteFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        Ok(match layout::event_of(item.key()) {
            // No older value can reappear: every key is written once.
            Some((number, last)) if !self.0.is_live(number, last) => Verdict::Destroy,
            _ => Verdict::Keep,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_below_the_undecided_is_not_wanted() {
        let live_events = LiveEvents::default();
        assert!(live_events.is_live(0, Seq(1)), "nothing is decided");
        assert_eq!(live_events.gaps(), []);
        for number in [3, 4, 8] {
            live_events.keep(number, Seq(0));
        }
        live_events.keep(5, Seq(7));
        live_events.forget(8);
        live_events.decide(10);
        assert_eq!(live_events.gaps(), [(0, 2), (6, 9)]);
        let kept = [(2, 1), (3, 1), (5, 7), (5, 8), (9, 1), (10, 1)]
            .map(|(number, last)| live_events.is_live(number, Seq(last)));
        assert_eq!(kept, [false, true, false, true, false, true]);
    }
}
