//! Replicas whose lease had expired at the last sweep, and the streams that they own.
//!
//! [`crate::cluster`] sweeps the leases and notes the result here, with the renewals of this
//! replica's own lease. A lease may have been renewed since the sweep, so the lease is read again
//! before a stream is ended for a client.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::event_log::backing::Backing;
use crate::event_log::log::EventLog;
use crate::event_log::stream::Stream;
use crate::protocol::ids::{Owner, StreamId};
use crate::store::Error;
use crate::sync;

impl EventLog {
    /// Notes that the lease of this replica was renewed until that time of
    /// [`clock::boot`](crate::clock::boot).
    pub fn note_lease_renewed(&self, until: Duration) {
        if let Some(backing) = &self.backing {
            backing.lease_health.note(until);
        }
    }

    /// Notes that the lease of this replica was acquired anew, before the renewal itself is noted:
    /// other replicas may have counted this one as dead meanwhile.
    pub fn note_lease_acquired(&self) {
        if let Some(backing) = &self.backing {
            backing.lease_health.note_acquired();
        }
    }

    /// Notes that a renewal of this replica's lease failed.
    pub fn note_renewal_failed(&self) {
        if let Some(backing) = &self.backing {
            backing.lease_health.note_renewal_failed();
        }
    }

    /// Replaces the set of replicas whose lease has expired with the result of a sweep. Their open
    /// streams end when a client requests them here: an expired lease does not prove that a replica
    /// is dead. It may be cut off from the store and still serve its clients.
    pub fn set_expired_owners(&self, owners: HashSet<Owner>) {
        *sync::lock(&self.expired_owners) = owners;
    }

    /// Returns whether the lease of `owner` had expired at the last sweep.
    pub fn has_noted_expiry(&self, owner: Owner) -> bool {
        sync::lock(&self.expired_owners).contains(&owner)
    }

    /// Notes whether the leases in the store show which replicas live: it was reachable for one
    /// whole lease, and has lost nothing since.
    pub fn note_leases_known(&self, are_known: bool) {
        self.living.note_known(are_known);
    }

    /// Returns whether the lease of a replica has expired. False while that is not known. Reads the
    /// store twice a second at most.
    pub(in crate::event_log) async fn has_expired(&self, backing: &Backing, owner: Owner) -> Result<bool, Error> {
        let Some(coordination) = &backing.coordination else { return Ok(owner != self.owner()) };
        let are_known = || self.living.are_known() && backing.term().is_some() && !backing.is_recovering();
        if !are_known() {
            return Ok(false);
        }
        let is_live = self.living.contain(&**coordination, owner).await?;
        Ok(!is_live && are_known())
    }

    /// Returns the open streams that are read here, or were requested a moment ago, and whose
    /// writer's lease has expired.
    pub fn requested_of_expired_owners(&self) -> Vec<StreamId> {
        let expired = sync::lock(&self.expired_owners).clone();
        if expired.is_empty() {
            return Vec::new();
        }
        // The origin can be read without the stream's lock.
        let is_requested =
            |stream: &Arc<Stream>| expired.contains(&stream.handles().owner()) && stream.replica().is_remote();
        self.streams.all().into_iter().filter(is_requested).map(|stream| stream.id()).collect()
    }

    /// Returns whether the lease of `owner` had expired at the last sweep and is still expired.
    /// Reads the store only in the former case.
    pub(in crate::event_log) async fn is_still_expired(&self, backing: &Backing, owner: Owner) -> Result<bool, Error> {
        match &backing.coordination {
            Some(coordination) if self.has_noted_expiry(owner) => {
                Ok(coordination.expired_leases().wait().await?.contains(&owner))
            }
            Some(_) | None => Ok(false),
        }
    }
}
