//! What is in memory of a disk store: where each live stream stands, and how much there is.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dashmap::{DashMap, DashSet};
use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};

use super::database::{Failure, damaged};
use super::layout::{self, Place};
use crate::protocol::ids::{Seq, StreamId};
use crate::store::StoreHealth;

/// Written by the writer alone, after the database has it; read by everybody.
#[derive(Default)]
pub(super) struct Index {
    pub(super) streams: DashMap<StreamId, Place>,
    /// Streams that are there and cannot be read. Nothing else is known of them, and nothing is written to them.
    pub(super) damaged: DashSet<StreamId>,
    /// Of each record the time it ends and its size.
    pub(super) records: DashMap<Arc<[u8]>, (u64, u64)>,
    standing: AtomicU8,
}

impl Index {
    /// The stream's place, unless it has expired.
    pub(super) fn find(&self, stream: StreamId, now: u64) -> Option<Place> {
        self.streams.get(&stream).map(|place| *place).filter(|place| place.lives(now))
    }

    /// An error for a stream that cannot be read.
    pub(super) fn check(&self, stream: StreamId) -> Result<(), Failure> {
        match self.damaged.contains(&stream) {
            true => Err(damaged("events of the stream are damaged")),
            false => Ok(()),
        }
    }

    pub(super) fn health(&self) -> StoreHealth {
        match self.standing.load(Ordering::Relaxed) {
            0 => StoreHealth::Ready,
            1 => StoreHealth::Full,
            _ => StoreHealth::Unreachable,
        }
    }

    pub(super) fn stand(&self, standing: StoreHealth) {
        let standing = match standing {
            StoreHealth::Ready => 0,
            StoreHealth::Full => 1,
            StoreHealth::Unreachable => 2,
        };
        self.standing.store(standing, Ordering::Relaxed);
    }
}

/// Which events are still wanted, by the numbers of their streams. The database asks before it writes them to a new place, and
/// drops those that are not: nothing needs to be written to delete them.
#[derive(Default)]
pub(super) struct Wanted {
    /// Streams and where they are trimmed.
    trimmed: DashMap<u64, Seq>,
    /// Numbers from here on are not decided: they are wanted.
    undecided: AtomicU64,
}

impl Wanted {
    pub(super) fn keep(&self, number: u64, trimmed: Seq) {
        self.trimmed.insert(number, trimmed);
    }

    pub(super) fn forget(&self, number: u64) {
        self.trimmed.remove(&number);
    }

    /// All streams with a number below this one that are wanted were said to be.
    pub(super) fn decide(&self, below: u64) {
        self.undecided.store(below, Ordering::SeqCst);
    }

    fn wants(&self, number: u64, last: Seq) -> bool {
        // This order: a stream is kept before its number is decided.
        number >= self.undecided.load(Ordering::SeqCst)
            || self.trimmed.get(&number).is_some_and(|trimmed| last > *trimmed)
    }

    /// The numbers without a wanted stream, in spans, first and last. Streams that are made meanwhile are not in them.
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

/// [`Wanted`], as the database asks it.
pub(super) struct Sieve(pub(super) AssertUnwindSafe<Arc<Wanted>>);

impl Factory for Sieve {
    fn name(&self) -> &'static str {
        "wanted events"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Sieving(self.0.clone()))
    }
}

struct Sieving(Arc<Wanted>);

impl CompactionFilter for Sieving {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        Ok(match layout::event_of(item.key()) {
            // No older value can come to light: every key is written once.
            Some((number, last)) if !self.0.wants(number, last) => Verdict::Destroy,
            _ => Verdict::Keep,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_below_the_undecided_is_not_wanted() {
        let wanted = Wanted::default();
        assert!(wanted.wants(0, Seq(1)), "nothing is decided");
        assert_eq!(wanted.gaps(), []);
        for number in [3, 4, 8] {
            wanted.keep(number, Seq(0));
        }
        wanted.keep(5, Seq(7));
        wanted.forget(8);
        wanted.decide(10);
        assert_eq!(wanted.gaps(), [(0, 2), (6, 9)]);
        let kept =
            [(2, 1), (3, 1), (5, 7), (5, 8), (9, 1), (10, 1)].map(|(number, last)| wanted.wants(number, Seq(last)));
        assert_eq!(kept, [false, true, false, true, false, true]);
    }
}
