//! The generation of the store's contents, and whether they may be incomplete.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::clock;
use crate::protocol::ids::StoreEpoch;
use crate::sync;

/// What the store holds, as it was when somebody last looked. Nothing where it cannot lose that while this process runs.
#[derive(Debug, Default)]
pub struct Contents(Mutex<Option<Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    epoch: StoreEpoch,
    /// How often the store was regained by then.
    times: u64,
    /// It was regained, and what it has may not be complete until then.
    young_until: Option<Instant>,
}

/// What may have happened to what the store held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regained {
    /// Nothing.
    No,
    /// Something of it may be missing.
    Less,
    /// It is gone.
    Empty,
}

impl Contents {
    /// The contents are these now, and were regained so often. For one lease after they were they are young.
    pub(in crate::event_log) fn note(&self, epoch: StoreEpoch, times: u64, lease: Duration) -> Regained {
        let mut seen = sync::lock(&self.0);
        let regained = match *seen {
            Some(seen) if seen.epoch != epoch => Regained::Empty,
            Some(seen) if seen.times != times => Regained::Less,
            Some(_) | None => Regained::No,
        };
        let young_until = match regained {
            Regained::No => seen.and_then(|seen| seen.young_until),
            Regained::Less | Regained::Empty => Some(clock::now() + lease),
        };
        *seen = Some(Seen { epoch, times, young_until });
        regained
    }

    /// Whether contents that were regained so often may lack what others are bringing there.
    pub(in crate::event_log) fn are_young(&self, times: u64) -> bool {
        let seen = sync::lock(&self.0);
        seen.is_some_and(|seen| seen.times != times || seen.young_until.is_some_and(|until| clock::now() < until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn contents_are_young_for_a_lease_after_they_were_regained() {
        let contents = Contents::default();
        assert!(!contents.are_young(0), "nobody looks");
        assert_eq!(contents.note(StoreEpoch(1), 0, LEASE), Regained::No);
        assert!(!contents.are_young(0));
        for (epoch, times, regained) in [(StoreEpoch(1), 1, Regained::Less), (StoreEpoch(2), 2, Regained::Empty)] {
            assert!(contents.are_young(times), "before anybody has noted it");
            assert_eq!(contents.note(epoch, times, LEASE), regained);
            assert_eq!(contents.note(epoch, times, LEASE), Regained::No);
            tokio::time::advance(LEASE - Duration::from_millis(1)).await;
            assert!(contents.are_young(times));
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(!contents.are_young(times));
        }
    }
}
