//! Restoring: streams of other processes, and of this one before its restart, come out of the store.
//!
//! Owned here: how a stream is rebuilt from its records, and how an orphan is adopted and ended. A sealed stream is
//! read whole and lives here like any other. An open one belongs to the replica that writes it; here a follower copies
//! it (`follower.rs`). Absent: access control (as for any stream), and the expiry of leases (`cluster`).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::clock;
use crate::config::OnUnreachable;
use crate::event_log::backing::schema::{About, State};
use crate::event_log::backing::{Backing, KEEP_UNSEALED, STORE_RETRY_PAUSE, StoreProgress};
use crate::event_log::identity::principal::Principal;
use crate::event_log::log::EventLog;
use crate::event_log::quota::{QuotaKey, StreamReservation};
use crate::event_log::recovery::follower::{Follower, FollowerState, PIECE};
use crate::event_log::stream::Stream;
use crate::event_log::stream::remote::Restored;
use crate::event_log::writer::Writer;
use crate::event_log::writer::stream_table::StreamEntry;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::{Owner, Seq, StreamId, Verified};
use crate::store::{Error, Read, StoreHealth, Stored, WriterEpoch};

/// Time that a client waits for an event that is in flight to the store.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// Error: only the store could tell, and it cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be reached")]
pub struct Unreachable;

/// Last event that a client has of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct LastEvent {
    seq: Seq,
    /// True if the event was logged by a replica that adopted the stream.
    is_adopted: bool,
}

impl EventLog {
    /// Restores the stream of an event ID from the store, if it is there and not here. Checks no access. A missing
    /// stream is no error.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn restore(self: &Arc<Self>, verified: &Verified) -> Result<(), Unreachable> {
        let Some(backing) = self.backing.clone() else { return Ok(()) };
        let last = LastEvent { seq: verified.seq, is_adopted: verified.is_adopted };
        self.restore_stream(&backing, verified.stream, last).await
    }

    /// Restores the stream of a call of another replica, or of this one before its restart; `None` if the store has
    /// none. Checks no access.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn restore_by_id(self: &Arc<Self>, id: StreamId) -> Result<Option<Arc<Stream>>, Unreachable> {
        let Some(backing) = self.backing.clone() else { return Ok(None) };
        self.restore_stream(&backing, id, LastEvent::default()).await?;
        let found = self.streams.get(id);
        Ok(found.filter(|stream| !stream.has_moved()))
    }

    async fn restore_stream(
        self: &Arc<Self>,
        backing: &Arc<Backing>,
        id: StreamId,
        last: LastEvent,
    ) -> Result<(), Unreachable> {
        let seq = last.seq;
        let is_unreachable = backing.store.health() == StoreHealth::Unreachable;
        let here = self.streams.get(id);
        if let Some(here) = here {
            if is_unreachable && backing.on_unreachable == OnUnreachable::Refuse {
                return Err(Unreachable);
            }
            // A client that read at another replica may resume here before the store has answered the writer.
            if tokio::time::timeout(STORE_PATIENCE, here.stored(seq)).await.is_err() {
                return Err(Unreachable);
            }
            if !is_unreachable {
                self.wait_for_follower(backing, &here, seq).await?;
            }
            if !self.may_be_taken_over(backing, &here, last) {
                return Ok(());
            }
            match self.is_taken_over(backing, &here).await {
                Ok(false) => return Ok(()),
                Ok(true) => self.streams.leave(&here),
                // Memory stands in for an unreachable store.
                Err(_) if is_unreachable && !backing.lease_health.is_in_doubt() => return Ok(()),
                Err(_) => return Err(Unreachable),
            }
        }
        if is_unreachable {
            // Only the store has the events that a stub lacks.
            let has_rest = |known: &StreamEntry| matches!(known, StreamEntry::Stub(stub) if stub.has_after(seq));
            let is_here = self.streams.entries.get(&id).is_some_and(|known| has_rest(known.value()));
            let stands = is_here && backing.on_unreachable == OnUnreachable::Degrade;
            return if stands { Ok(()) } else { Err(Unreachable) };
        }
        // The store may have more of the stream than a stub here.
        match self.load_from_store(backing, id).await {
            Ok(()) => Ok(()),
            Err(error) => {
                warn!(stream.id = %id, %error, "a stream cannot be read from the store");
                Err(Unreachable)
            }
        }
    }

    /// Waits for the follower to reach `seq`: a client that read at the writer may resume here before the event has.
    async fn wait_for_follower(&self, backing: &Backing, here: &Arc<Stream>, seq: Seq) -> Result<(), Unreachable> {
        if !here.is_remote() || here.last_kept() >= seq {
            return Ok(());
        }
        let stored = backing.store.load(here.id()).wait().await.map_err(|_| Unreachable)?;
        if stored.is_none_or(|stored| stored.tail < seq) {
            return Ok(());
        }
        tokio::time::timeout(STORE_PATIENCE, here.caught_up_to(seq)).await.map_err(|_| Unreachable)
    }

    /// Returns the writer of an event ID's stream, if it may have events that are neither here nor in the store, from
    /// an outage of the store. To be called after [`Self::restore`].
    pub fn may_be_ahead(&self, verified: &Verified) -> Option<(Owner, StreamId, Seq)> {
        if verified.owner == self.identity.owner {
            return None;
        }
        // The guard of the map is dropped before the wait for the stream's lock.
        let here = self.streams.get(verified.stream);
        let is_missing = here.is_none_or(|here| {
            !here.is_written_here()
                && here.with_machine(|machine| !machine.is_sealed() && machine.tail() < verified.seq)
        });
        is_missing.then_some((verified.owner, verified.stream, verified.seq))
    }

    /// Returns the last event that a client may have of a stream of this process.
    pub fn written_upto(&self, id: StreamId) -> Option<Seq> {
        let known = self.streams.entries.get(&id)?;
        let stream = match known.value() {
            StreamEntry::Stream(stream) => stream.clone(),
            StreamEntry::Stub(stub) => return Some(stub.tail),
        };
        // The guard of the map is dropped before the wait for the stream's lock.
        drop(known);
        Some(stream.last_kept())
    }

    async fn load_from_store(self: &Arc<Self>, backing: &Arc<Backing>, id: StreamId) -> Result<(), Error> {
        // Subscribed before the first look, so that no change is missed.
        let following = match &backing.coordination {
            Some(coordination) => Some(coordination.follow(id).wait().await?),
            None => None,
        };
        let Some(mut stored) = backing.store.load(id).wait().await? else { return Ok(()) };
        if !stored.sealed && self.has_expired_lease(backing, stored.owner).await? {
            // In a task of its own: an adopted stream is ended even if the client that asked for it leaves.
            let log = self.clone();
            let adopting = tokio::spawn(async move { log.adopt(id).await });
            adopting.await.map_err(|error| Error::Unavailable(error.to_string()))??;
            let Some(ended) = backing.store.load(id).wait().await? else { return Ok(()) };
            stored = ended;
        }
        let Some(stream) = self.rebuild(backing, id, &stored, stored.trimmed) else { return Ok(()) };
        let stream = Arc::new(stream);
        let mut follower = Follower::new(stream.clone(), backing.clone(), self.identity.owner);
        let is_over = follower.catch_up(&stored).await? == FollowerState::Sealed;
        if !is_over && following.is_none() {
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
        match following {
            Some(following) if !is_over => drop(tokio::spawn(follower.run(self.clone(), following))),
            Some(_) | None => {
                // The stream stays readable here in any case.
                if let Err(error) = self.keep_restored(backing, &stream).await {
                    warn!(stream.id = %id, %error, "the store could not be told to keep a stream that is read again");
                }
            }
        }
        Ok(())
    }

    /// Starts the retention of a restored stream anew, here and in the store.
    pub(in crate::event_log) async fn keep_restored(
        &self,
        backing: &Backing,
        stream: &Arc<Stream>,
    ) -> Result<(), Error> {
        self.retain(stream);
        let retention = stream.with_machine(|machine| machine.policy().retention);
        backing.store.keep(stream.id(), retention).wait().await.inspect_err(|error| backing.note_failure(error))
    }

    /// Rebuilds a stream from its records, without events. Returns `None` if the records cannot be read.
    fn rebuild(&self, backing: &Arc<Backing>, id: StreamId, stored: &Stored, tail: Seq) -> Option<Stream> {
        let records = About::decode(&stored.about).and_then(|about| Ok((about, State::decode(&stored.state)?)));
        let (about, state) = match records {
            Ok(records) => records,
            Err(error) => {
                warn!(stream.id = %id, %error, "a stream is lost");
                return None;
            }
        };
        // Events that are missing here are not trimmed in the store.
        let store_progress = StoreProgress { is_created: true, upto: tail, trimmed: tail, ..StoreProgress::default() };
        let restored = Restored { id, about, state, epoch: stored.epoch, tail, store_progress };
        let reservation = self.reservation_of_restored(&restored.about);
        Some(Stream::restored(restored, self.identity.clone(), self.bounds, backing.clone(), reservation, clock::now()))
    }

    /// Reserves memory in the quota of the stream's principal, which may not be the caller. Never refused: the stream exists,
    /// and a client waits.
    fn reservation_of_restored(&self, about: &About) -> StreamReservation {
        let key = match (&about.binding.principal, &about.binding.session) {
            (Principal::Known(known), _) => QuotaKey::Known(*known),
            (Principal::Anonymous | Principal::AnonymousAt(_), Some(session)) => QuotaKey::Session(session.clone()),
            (Principal::Anonymous | Principal::AnonymousAt(_), None) => {
                QuotaKey::Peer(std::net::Ipv4Addr::UNSPECIFIED.into())
            }
        };
        self.quota(key).reserve_stream(0)
    }

    /// Takes the stream over from a dead writer, and ends it with an error for each owed response. Does nothing if it
    /// has ended.
    ///
    /// # Errors
    /// If the store cannot do it now. The call may be repeated; a stream that was taken over is ended as soon as the
    /// store permits.
    pub async fn adopt(self: &Arc<Self>, id: StreamId) -> Result<(), Error> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let epoch = match backing.store.take_over(id).wait().await {
            Ok(epoch) => epoch,
            Err(Error::Gone) => return Ok(()),
            Err(error) => return Err(error),
        };
        let ended = self.end_adopted(backing, id, epoch).await;
        if ended.is_err() {
            // This replica now owns the stream: no other one will end it.
            let (log, backing) = (self.clone(), backing.clone());
            tokio::spawn(async move {
                loop {
                    clock::sleep(STORE_RETRY_PAUSE).await;
                    if log.end_adopted(&backing, id, epoch).await.is_ok() {
                        return;
                    }
                }
            });
        }
        ended
    }

    async fn end_adopted(&self, backing: &Arc<Backing>, id: StreamId, epoch: WriterEpoch) -> Result<(), Error> {
        let Some(stored) = backing.store.load(id).wait().await? else { return Ok(()) };
        // A later writer ends the stream itself: two must not write under one epoch.
        if stored.sealed || stored.epoch != epoch {
            return Ok(());
        }
        // The events stay in the store.
        let Some(stream) = self.rebuild(backing, id, &stored, stored.tail) else {
            return backing.store.expire(id).wait().await;
        };
        stream.note_adopted(stored.tail);
        self.read_responses(backing, &stream, &stored).await?;
        let writer = Writer::new(Arc::new(stream), self.streams.clone());
        writer.update(|machine, now| machine.handle_failure(Failure::after_send(ErrorCode::OwnerDied), now)).await;
        let metrics = backing.metrics.clone();
        // Other replicas may be ending it as well: the store accepts one seal.
        let ended = move || {
            info!(stream.id = %id, "a stream of a dead writer was ended");
            metrics.observe_adopted();
        };
        writer.seal_and(ended).await;
        Ok(())
    }

    /// Feeds the responses behind the last state to a stream that was rebuilt without its events. Events that were
    /// rewritten after an outage precede their state.
    async fn read_responses(&self, backing: &Backing, stream: &Stream, stored: &Stored) -> Result<(), Error> {
        let state = State::decode(&stored.state).unwrap_or_default();
        let mut after = state.map_or(Seq(0), |state| state.machine.upto()).max(stored.trimmed);
        while after < stored.tail && !stream.with_machine(|machine| machine.owed_responses().is_settled()) {
            match backing.store.read(stream.id(), after, PIECE).wait().await? {
                Read::Events(events) => {
                    let Some((last, _)) = events.last() else { return Ok(()) };
                    after = *last;
                    events.iter().for_each(|(seq, event)| stream.note_logged(*seq, event));
                }
                Read::Trimmed { upto } => after = upto,
                Read::Gone => return Ok(()),
            }
        }
        Ok(())
    }

    /// Ends every stream that this replica left open before its restart. To be called before the first request.
    /// Returns how many were ended; those that a full store refuses are ended later, and clients are told to retry
    /// until then.
    ///
    /// # Errors
    /// If the store cannot do it.
    pub async fn recover(self: &Arc<Self>) -> Result<usize, Error> {
        let Some(backing) = &self.backing else { return Ok(0) };
        let left = backing.store.open_streams(self.identity.owner).wait().await?;
        let mut waiting = self.adopt_all(&left).await?;
        let ended = left.len() - waiting.len();
        if !waiting.is_empty() {
            warn!(streams = waiting.len(), "the store has no room for the ends of streams that were left open before");
            let log = self.clone();
            tokio::spawn(async move {
                while !waiting.is_empty() {
                    clock::sleep(STORE_RETRY_PAUSE).await;
                    // An open stream that is no longer listed is written by this process.
                    match log.adopt_all(&waiting).await {
                        Ok(still) => waiting = still,
                        Err(error) => debug!(%error, "streams that were left open before cannot be ended yet"),
                    }
                }
                info!("everything that was left open before has ended");
            });
        }
        Ok(ended)
    }

    /// Ends these streams of dead writers. Returns those whose ends a full store refused.
    async fn adopt_all(self: &Arc<Self>, left: &[StreamId]) -> Result<Vec<StreamId>, Error> {
        // Each waits for the disk; together they wait once.
        const AT_ONCE: usize = 64;
        let mut full = Vec::new();
        for some in left.chunks(AT_ONCE) {
            let mut adopting = JoinSet::new();
            for id in some.iter().copied() {
                let log = self.clone();
                adopting.spawn(async move { (id, log.adopt(id).await) });
            }
            for (id, adopted) in adopting.join_all().await {
                match adopted {
                    Err(Error::Full(_)) => full.push(id),
                    adopted => adopted?,
                }
            }
        }
        Ok(full)
    }

    /// Drops every stream that another replica has adopted. To be called once this replica's lease had expired.
    ///
    /// # Errors
    /// If the store cannot be asked. An unchecked stream may then be another's; the store accepts no more of it from
    /// here.
    pub async fn drop_taken_over(&self) -> Result<(), Error> {
        let Some(backing) = &self.backing else { return Ok(()) };
        for (_, stream) in self.open_local_streams() {
            if self.is_taken_over(backing, &stream).await? {
                self.streams.leave(&stream);
            }
        }
        Ok(())
    }

    /// Returns whether another replica may have adopted the stream without notice: the lease has expired, or a client
    /// has an event that was never written here, or the end that another replica wrote.
    fn may_be_taken_over(&self, backing: &Backing, stream: &Stream, last: LastEvent) -> bool {
        let is_strange = || stream.with_machine(|machine| machine.tail() < last.seq);
        let is_ended_elsewhere = last.is_adopted && stream.adopted_after().is_none();
        let is_open = || stream.is_written_here() && (backing.lease_health.is_expired() || is_strange());
        backing.coordination.is_some() && (is_ended_elsewhere || is_open())
    }

    async fn is_taken_over(&self, backing: &Backing, stream: &Arc<Stream>) -> Result<bool, Error> {
        if !stream.with_store_progress(|store_progress| store_progress.is_created) {
            return Ok(false);
        }
        let epoch = stream.lock().epoch;
        let stored = backing.store.load(stream.id()).wait().await?;
        Ok(stored.is_some_and(|stored| stored.epoch > epoch))
    }

    /// Returns the open streams that are written here.
    fn open_local_streams(&self) -> Vec<(StreamId, Arc<Stream>)> {
        let open = self.streams.all().into_iter().filter(|stream| stream.is_written_here());
        open.map(|stream| (stream.id(), stream)).collect()
    }

    /// Extends the retention of this process's open streams in the store, until dropped.
    pub async fn keep_open(&self) {
        let Some(backing) = &self.backing else { return std::future::pending().await };
        loop {
            clock::sleep(KEEP_UNSEALED / 6).await;
            for (id, _) in self.open_local_streams() {
                if let Err(error) = backing.store.keep(id, KEEP_UNSEALED).wait().await {
                    warn!(stream.id = %id, %error, "the store could not be told to keep a stream");
                }
            }
        }
    }
}
