//! Leases of the replicas: the expired and the valid ones at the last sweep.
//!
//! [`crate::cluster`] sweeps the leases and notes the result here. A lease may have been renewed
//! since the sweep, so the lease is read again before a stream is ended for a client.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::backing::Backing;
use crate::event_log::backing::lease_health::LeaseHealth;
use crate::protocol::ids::Owner;
use crate::store::{Coordination, Error};
use crate::sync;

/// Lifetime of the list of living replicas from the store.
const SEEN_FOR: Duration = Duration::from_millis(500);

/// Leases of the replicas that share the store.
#[derive(Debug)]
pub struct Leases {
    here: Owner,
    own: Arc<LeaseHealth>,
    /// Replicas whose lease had expired at the last sweep.
    expired: Mutex<HashSet<Owner>>,
    /// True if a missing lease means that its replica is gone.
    are_known: AtomicBool,
    seen: tokio::sync::Mutex<Option<Seen>>,
}

/// List of the replicas whose lease runs, from the store.
#[derive(Debug)]
struct Seen {
    /// Time of the read, and the losses of the store before it.
    asked: Instant,
    losses: u64,
    owners: Vec<Owner>,
}

impl Leases {
    /// Creates the leases as replica `here` knows them before the first sweep.
    pub(in crate::event_log) fn new(here: Owner, backing: Option<&Arc<Backing>>) -> Self {
        let own = backing.map_or_else(Arc::default, |backing| backing.lease_health.clone());
        Self { here, own, expired: Mutex::default(), are_known: AtomicBool::new(false), seen: Default::default() }
    }

    /// Returns the lease of this replica.
    pub fn own(&self) -> &LeaseHealth {
        &self.own
    }

    /// Replaces the set of replicas whose lease has expired with the result of a sweep. Their open
    /// streams end when a client requests them here: an expired lease does not prove that a replica
    /// is dead. It may be cut off from the store and still serve its clients.
    pub fn set_expired(&self, owners: HashSet<Owner>) {
        *sync::lock(&self.expired) = owners;
    }

    /// Returns the replicas whose lease had expired at the last sweep.
    pub(in crate::event_log) fn expired(&self) -> HashSet<Owner> {
        sync::lock(&self.expired).clone()
    }

    /// Returns whether the lease of `owner` had expired at the last sweep.
    pub fn has_noted_expiry(&self, owner: Owner) -> bool {
        sync::lock(&self.expired).contains(&owner)
    }

    /// Notes whether the leases in the store show which replicas live: it was reachable for one
    /// whole lease, and has lost nothing since.
    pub fn note_known(&self, are_known: bool) {
        self.are_known.store(are_known, Ordering::Relaxed);
    }

    /// Returns whether the lease of a replica has expired. False while that is not known. Reads the
    /// store twice a second at most.
    ///
    /// # Errors
    /// If the store fails.
    pub(in crate::event_log) async fn has_expired(&self, backing: &Backing, owner: Owner) -> Result<bool, Error> {
        let Some(coordination) = &backing.coordination else { return Ok(owner != self.here) };
        let are_known =
            || self.are_known.load(Ordering::Relaxed) && backing.term().is_some() && !backing.is_recovering();
        if !are_known() {
            return Ok(false);
        }
        let runs = self.runs(&**coordination, owner).await?;
        Ok(!runs && are_known())
    }

    /// Returns whether the lease of a replica runs. One caller reads the store, and the others wait
    /// for its result.
    async fn runs(&self, coordination: &dyn Coordination, owner: Owner) -> Result<bool, Error> {
        let mut seen = self.seen.lock().await;
        let (now, losses) = (clock::now(), *coordination.possible_losses().borrow());
        let is_new = |seen: &Seen| now.saturating_duration_since(seen.asked) < SEEN_FOR && seen.losses == losses;
        if !seen.as_ref().is_some_and(is_new) {
            let owners = coordination.live_replicas().wait().await?;
            *seen = Some(Seen { asked: now, losses, owners });
        }
        Ok(seen.as_ref().is_some_and(|seen| seen.owners.contains(&owner)))
    }

    /// Returns whether the lease of `owner` had expired at the last sweep and is still expired.
    /// Reads the store only in the former case.
    ///
    /// # Errors
    /// If the store fails.
    pub(in crate::event_log) async fn is_still_expired(&self, backing: &Backing, owner: Owner) -> Result<bool, Error> {
        match &backing.coordination {
            Some(coordination) if self.has_noted_expiry(owner) => {
                Ok(coordination.expired_leases().wait().await?.contains(&owner))
            }
            Some(_) | None => Ok(false),
        }
    }
}
