//! Generation of the store's contents, and whether they may be incomplete.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::clock;
use crate::protocol::ids::StoreEpoch;
use crate::sync;

/// Last seen generation of the store's contents, or `None` if the store cannot lose them while this
/// process runs.
#[derive(Debug, Default)]
pub struct Generation(Mutex<Option<Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    epoch: StoreEpoch,
    /// Number of losses that the store had reported then.
    times: u64,
    /// End of the recovery after a loss: the contents may be incomplete until then. `None` before
    /// the first loss.
    recovering_until: Option<Instant>,
}

/// Extent of a loss of the store's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLoss {
    /// No loss.
    Nothing,
    /// Some of the contents may be missing.
    Partial,
    /// All contents are gone.
    Total,
}

impl Generation {
    /// Notes the epoch of the contents and the number of losses. After a loss the store counts as
    /// recovering for one lease.
    pub(in crate::event_log) fn note(&self, epoch: StoreEpoch, times: u64, lease: Duration) -> StoreLoss {
        let mut seen = sync::lock(&self.0);
        let regained = match *seen {
            Some(seen) if seen.epoch != epoch => StoreLoss::Total,
            Some(seen) if seen.times != times => StoreLoss::Partial,
            Some(_) | None => StoreLoss::Nothing,
        };
        let recovering_until = match regained {
            StoreLoss::Nothing => seen.and_then(|seen| seen.recovering_until),
            StoreLoss::Partial | StoreLoss::Total => Some(clock::now() + lease),
        };
        *seen = Some(Seen { epoch, times, recovering_until });
        regained
    }

    /// Returns whether the contents may lack records that other replicas are rewriting.
    pub(in crate::event_log) fn is_recovering(&self, times: u64) -> bool {
        let seen = sync::lock(&self.0);
        seen.is_some_and(|seen| seen.times != times || seen.recovering_until.is_some_and(|until| clock::now() < until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn the_store_recovers_for_one_lease_after_a_loss() {
        let generation = Generation::default();
        assert!(!generation.is_recovering(0), "no generation was noted");
        assert_eq!(generation.note(StoreEpoch(1), 0, LEASE), StoreLoss::Nothing);
        assert!(!generation.is_recovering(0));
        for (epoch, times, regained) in [(StoreEpoch(1), 1, StoreLoss::Partial), (StoreEpoch(2), 2, StoreLoss::Total)] {
            assert!(generation.is_recovering(times), "before the loss was noted");
            assert_eq!(generation.note(epoch, times, LEASE), regained);
            assert_eq!(generation.note(epoch, times, LEASE), StoreLoss::Nothing);
            tokio::time::advance(LEASE - Duration::from_millis(1)).await;
            assert!(generation.is_recovering(times));
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(!generation.is_recovering(times));
        }
    }
}
