//! Restoring: streams of other processes, and of this one before its restart, come out of the
//! store.
//!
//! A sealed stream is read whole and lives here like any other. An open one belongs to the replica
//! that writes it; here a follower copies it (`follower.rs`). An open one whose writer is gone is
//! adopted first (`adoption.rs`). Absent: access control (as for any stream).

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use crate::clock;
use crate::config::OnUnreachable;
use crate::event_log::backing::{Backing, KEEP_UNSEALED};
use crate::event_log::recovery::adoption::{Adoption, LastEvent, is_taken_over, may_be_taken_over};
use crate::event_log::recovery::follower::{Follower, FollowerState};
use crate::event_log::recovery::rebuild::rebuild;
use crate::event_log::replicas::leases::Leases;
use crate::event_log::retention::Retention;
use crate::event_log::stream::Stream;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::writer::stream_table::{StreamEntry, StreamTable};
use crate::protocol::ids::{Owner, Seq, StreamId, Verified};
use crate::store::{Error, StoreHealth};

/// Longest wait of a client for an event in flight to the store.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two requests to a store that may be unreachable.
const DOUBT_STEP: Duration = Duration::from_millis(250);

/// Error: only the store can have the stream, and it is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be reached")]
pub struct Unreachable;

/// Restores streams from the store.
pub struct Restoration {
    context: Arc<StreamContext>,
    streams: Arc<StreamTable>,
    retention: Arc<Retention>,
    leases: Arc<Leases>,
    adoption: Arc<Adoption>,
}

impl Restoration {
    /// Creates the restoration of streams into a table.
    pub(in crate::event_log) fn new(
        context: Arc<StreamContext>,
        streams: Arc<StreamTable>,
        retention: Arc<Retention>,
        leases: Arc<Leases>,
        adoption: Arc<Adoption>,
    ) -> Self {
        Self { context, streams, retention, leases, adoption }
    }

    /// Restores the stream of an event ID from the store, unless this process has it. Checks no
    /// access. A missing stream is no error.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn restore(&self, verified: &Verified) -> Result<(), Unreachable> {
        let Some(backing) = self.context.backing.clone() else { return Ok(()) };
        let last = LastEvent { seq: verified.seq, is_adopted: verified.is_adopted };
        self.restore_stream(&backing, verified.stream, last).await
    }

    /// Restores the stream of a call of another replica, or of this one before its restart; `None`
    /// if the store has none. Checks no access.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn restore_by_id(&self, id: StreamId) -> Result<Option<Arc<Stream>>, Unreachable> {
        let Some(backing) = self.context.backing.clone() else { return Ok(None) };
        self.restore_stream(&backing, id, LastEvent::default()).await?;
        let found = self.retention.expand(id);
        Ok(found.filter(|stream| !stream.replica().has_moved()))
    }

    async fn restore_stream(&self, backing: &Arc<Backing>, id: StreamId, last: LastEvent) -> Result<(), Unreachable> {
        let seq = last.seq;
        let is_unreachable = backing.store.health() == StoreHealth::Unreachable;
        let here = self.retention.expand_unproven(id);
        if let Some(here) = here {
            if is_unreachable && backing.on_unreachable == OnUnreachable::Refuse {
                return Err(Unreachable);
            }
            // A client that read at another replica may resume here before the writer has the reply
            // of the store.
            if tokio::time::timeout(STORE_PATIENCE, here.shared.stored(seq)).await.is_err() {
                return Err(Unreachable);
            }
            if !is_unreachable {
                wait_for_follower(backing, &here, seq).await?;
            }
            if !may_be_taken_over(backing, &here, last) {
                return Ok(());
            }
            if is_taken_over_beyond_doubt(backing, &here).await? {
                self.streams.leave(&here);
            } else {
                return Ok(());
            }
        }
        // Only the store has the events that a stub lacks.
        let has_rest = |known: &StreamEntry| known.stub().is_some_and(|stub| stub.has_after(seq));
        let is_here = self.streams.entries.get(&id).is_some_and(|known| has_rest(known.value()));
        if is_unreachable {
            let stands = is_here && backing.on_unreachable == OnUnreachable::Degrade;
            return if stands { Ok(()) } else { Err(Unreachable) };
        }
        if is_here && backing.coordination.is_none() {
            // No other process has more of it.
            return Ok(());
        }
        match self.load_from_store(backing, id).await {
            Ok(()) => Ok(()),
            Err(error) => {
                warn!(stream.id = %id, %error, "a stream cannot be read from the store");
                Err(Unreachable)
            }
        }
    }

    /// Waits until the copy of another replica's stream has all events of the store.
    ///
    /// # Errors
    /// If the store fails, or is too slow.
    pub async fn refresh(&self, stream: &Stream) -> Result<(), Unreachable> {
        let Some(backing) = self.context.backing.as_ref().filter(|_| stream.replica().is_remote()) else {
            return Ok(());
        };
        let stored = backing.store.load(stream.id()).wait().await.map_err(|_| Unreachable)?;
        let Some(stored) = stored else { return Ok(()) };
        tokio::time::timeout(STORE_PATIENCE, stream.replica().caught_up_to(stored.tail)).await.map_err(|_| Unreachable)
    }

    /// Returns the writer of an event ID's stream if it may have further events. After an outage of
    /// the store, such events are neither here nor in the store. To be called after
    /// [`Self::restore`].
    pub fn may_be_ahead(&self, verified: &Verified) -> Option<(Owner, StreamId, Seq)> {
        if verified.owner == self.context.identity.owner {
            return None;
        }
        // The guard of the map is dropped before the wait for the stream's lock.
        let here = self.streams.get(verified.stream);
        let is_missing = here.is_none_or(|here| {
            !here.replica().is_written_here()
                && here.with_machine(|machine| {
                    !machine.lifecycle().is_sealed() && machine.numbering().tail() < verified.seq
                })
        });
        if is_missing { Some((verified.owner, verified.stream, verified.seq)) } else { None }
    }

    /// Returns the last event that a client may have of a stream of this process.
    pub fn written_upto(&self, id: StreamId) -> Option<Seq> {
        let known = self.streams.entries.get(&id)?;
        let stream = match known.value() {
            StreamEntry::Stream(stream) => stream.clone(),
            StreamEntry::Stub(stub) => return Some(stub.end.tail),
        };
        // The guard of the map is dropped before the wait for the stream's lock.
        drop(known);
        Some(stream.replica().last_kept())
    }

    async fn load_from_store(&self, backing: &Arc<Backing>, id: StreamId) -> Result<(), Error> {
        // Subscribed before the first look, so that no change is missed.
        let subscription = match &backing.coordination {
            Some(coordination) => Some(coordination.subscribe(id).wait().await?),
            None => None,
        };
        let Some(mut stored) = backing.store.load(id).wait().await? else { return Ok(()) };
        if !stored.sealed && self.leases.is_still_expired(backing, stored.owner).await? {
            // In a task of its own: an adopted stream is ended even if the requesting client
            // leaves.
            let adoption = self.adoption.clone();
            let adopting = tokio::spawn(async move { adoption.adopt(id).await });
            adopting.await.map_err(|error| Error::Unavailable(error.to_string()))??;
            let Some(ended) = backing.store.load(id).wait().await? else { return Ok(()) };
            stored = ended;
        }
        let Some(mut stream) = rebuild(&self.context, &self.streams.quotas, id, &stored, stored.trimmed) else {
            return Ok(());
        };
        if backing.coordination.is_none()
            && let Some(calls) = self.retention.get_calls(stream.binding())
        {
            stream.join_get_calls(calls);
        }
        let stream = Arc::new(stream);
        let mut follower = Follower::new(stream.clone(), backing.clone(), self.context.identity.owner);
        let is_over = follower.catch_up(&stored).await? == FollowerState::Sealed;
        if !is_over && subscription.is_none() {
            // The writer is dead, and a full store has not accepted the end yet.
            return Err(Error::Unavailable("the end of the stream is still to be written".into()));
        }
        // Of two concurrent restores, one is enough.
        if !self.streams.insert_first(&stream) {
            return Ok(());
        }
        stream.publish_first();
        backing.metrics.observe_restored();
        debug!(stream.id = %id, is_over, "stream restored");
        if let Some(subscription) = subscription
            && !is_over
        {
            tokio::spawn(follower.run(self.retention.clone(), subscription));
        } else if let Err(error) = self.retention.keep_restored(backing, &stream).await {
            // The stream stays readable here in any case.
            warn!(stream.id = %id, %error, "the retention of a stream that is read again could not be extended in the store");
        }
        Ok(())
    }

    /// Extends the retention of this process's open streams in the store, until dropped.
    pub async fn keep_open(&self) {
        let Some(backing) = &self.context.backing else { return std::future::pending().await };
        loop {
            clock::sleep(KEEP_UNSEALED / 6).await;
            for id in self.streams.open_local().iter().map(|stream| stream.id()) {
                if let Err(error) = backing.store.keep(id, KEEP_UNSEALED).wait().await {
                    warn!(stream.id = %id, %error, "the retention of a stream could not be extended in the store");
                }
            }
        }
    }
}

/// Waits for the follower to reach `seq`: a client that read at the writer may resume here
/// before the event has.
async fn wait_for_follower(backing: &Backing, here: &Arc<Stream>, seq: Seq) -> Result<(), Unreachable> {
    if !here.replica().is_remote() || here.replica().last_kept() >= seq {
        return Ok(());
    }
    let stored = backing.store.load(here.id()).wait().await.map_err(|_| Unreachable)?;
    if stored.is_none_or(|stored| stored.tail < seq) {
        return Ok(());
    }
    tokio::time::timeout(STORE_PATIENCE, here.replica().caught_up_to(seq)).await.map_err(|_| Unreachable)
}

/// Returns whether another replica has the stream. For some seconds after the end of this replica's
/// lease the store may be slow, or unreachable. Memory stands in for an unreachable one.
async fn is_taken_over_beyond_doubt(backing: &Backing, here: &Arc<Stream>) -> Result<bool, Unreachable> {
    let until = clock::now() + STORE_PATIENCE;
    loop {
        if let Ok(is_taken_over) = is_taken_over(backing, here).await {
            return Ok(is_taken_over);
        }
        let may_stand_in = backing.on_unreachable == OnUnreachable::Degrade;
        let is_in_doubt = backing.lease_health.is_in_doubt();
        if may_stand_in && !is_in_doubt && backing.store.health() == StoreHealth::Unreachable {
            return Ok(false);
        }
        // A client that is refused tries once more, and gives up.
        if !may_stand_in || !is_in_doubt || clock::now() >= until {
            return Err(Unreachable);
        }
        clock::sleep(DOUBT_STEP).await;
    }
}
