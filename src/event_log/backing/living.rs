//! Replicas whose lease runs, as the store last named them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::protocol::ids::Owner;
use crate::store::{Coordination, Error};

/// Lifetime of the list of living replicas from the store.
const SEEN_FOR: Duration = Duration::from_millis(500);

/// Replicas whose lease runs.
#[derive(Debug, Default)]
pub(in crate::event_log) struct Living {
    /// True if a missing lease means that its replica is gone.
    are_known: AtomicBool,
    seen: tokio::sync::Mutex<Option<Seen>>,
}

/// List from the store.
#[derive(Debug)]
struct Seen {
    /// Time of the read, and the losses of the store before it.
    asked: Instant,
    losses: u64,
    owners: Vec<Owner>,
}

impl Living {
    /// Notes whether a missing lease means that its replica is gone.
    pub(in crate::event_log) fn note_known(&self, are_known: bool) {
        self.are_known.store(are_known, Ordering::Relaxed);
    }

    /// Returns whether a missing lease means that its replica is gone.
    pub(in crate::event_log) fn are_known(&self) -> bool {
        self.are_known.load(Ordering::Relaxed)
    }

    /// Returns whether the lease of a replica runs. The store is read twice a second at most: one
    /// caller reads, and the others wait for its result.
    ///
    /// # Errors
    /// If the store fails.
    pub(in crate::event_log) async fn contain(
        &self,
        coordination: &dyn Coordination,
        owner: Owner,
    ) -> Result<bool, Error> {
        let mut seen = self.seen.lock().await;
        let (now, losses) = (clock::now(), *coordination.possible_losses().borrow());
        let is_new = |seen: &Seen| now.saturating_duration_since(seen.asked) < SEEN_FOR && seen.losses == losses;
        if !seen.as_ref().is_some_and(is_new) {
            let owners = coordination.live_replicas().wait().await?;
            *seen = Some(Seen { asked: now, losses, owners });
        }
        Ok(seen.as_ref().is_some_and(|seen| seen.owners.contains(&owner)))
    }
}
