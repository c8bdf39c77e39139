//! Adoption: the end of streams without a living writer, with an error for each owed response.
//!
//! Owned here: the fencing of the writer, the end that is written in its place, and the streams
//! that other replicas have adopted from this one. Invariant: of several replicas that adopt one
//! stream, the one with the last epoch ends it. Absent: the expiry of leases, which decides that a
//! writer is gone (`cluster`).

use std::sync::Arc;

use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::clock;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::backing::schema::{About, State};
use crate::event_log::backing::{Backing, STORE_RETRY_PAUSE};
use crate::event_log::ended_calls::EndedCalls;
use crate::event_log::recovery::follower::PIECE;
use crate::event_log::recovery::rebuild::rebuild;
use crate::event_log::replicas::leases::Leases;
use crate::event_log::stream::Stream;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::writer::Writer;
use crate::event_log::writer::stream_table::StreamTable;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::{Seq, StreamId};
use crate::store::{Error, Read, Stored, WriterEpoch};

/// Last event that a client has of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastEvent {
    pub(super) seq: Seq,
    /// True if the event was logged by a replica that adopted the stream.
    pub(super) is_adopted: bool,
}

/// Streams of dead writers, which end here, and streams that others have taken from this replica.
pub struct Adoption {
    context: Arc<StreamContext>,
    streams: Arc<StreamTable>,
    leases: Arc<Leases>,
    ended_calls: EndedCalls,
}

impl Adoption {
    /// Creates the adoption of streams into a table.
    pub(in crate::event_log) fn new(
        context: Arc<StreamContext>,
        streams: Arc<StreamTable>,
        leases: Arc<Leases>,
    ) -> Self {
        Self { context, streams, leases, ended_calls: EndedCalls::default() }
    }

    /// Returns the calls of an earlier process that were ended here.
    pub fn ended_calls(&self) -> &EndedCalls {
        &self.ended_calls
    }

    /// Takes the stream over from a dead writer, and ends it with an error for each owed response.
    /// Does nothing if it has ended.
    ///
    /// # Errors
    /// If the store cannot do it now. The call may be repeated; a stream that was taken over is
    /// ended as soon as the store permits.
    pub async fn adopt(self: &Arc<Self>, id: StreamId) -> Result<(), Error> {
        let Some(backing) = &self.context.backing else { return Ok(()) };
        let epoch = match backing.store.take_over(id).wait().await {
            Ok(epoch) => epoch,
            Err(Error::Gone) => return Ok(()),
            Err(error) => return Err(error),
        };
        let ended = self.end_adopted(backing, id, epoch).await;
        if ended.is_err() {
            // This replica now owns the stream: no other one will end it.
            let (adoption, backing) = (self.clone(), backing.clone());
            tokio::spawn(async move {
                loop {
                    clock::sleep(STORE_RETRY_PAUSE).await;
                    if adoption.end_adopted(&backing, id, epoch).await.is_ok() {
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
        let Some(stream) = rebuild(&self.context, &self.streams.quotas, id, &stored, stored.tail) else {
            return backing.store.expire(id).wait().await;
        };
        stream.replica().set_adopted(stored.tail);
        read_responses(backing, &stream, &stored).await?;
        let writer = Writer::new(Arc::new(stream), self.streams.clone());
        writer.update(|machine, now| machine.handle_failure(Failure::after_send(ErrorCode::OwnerDied), now)).await;
        let (metrics, stream) = (backing.metrics.clone(), writer.stream().clone());
        let caller = stream.binding().clone();
        // Other replicas may be ending it as well: the store accepts one seal.
        let ended = move || {
            info!(stream.id = %id, "a stream of a dead writer was ended");
            metrics.observe_adopted();
            stream.end_span();
        };
        writer.seal_and(ended).await;
        let call = About::decode(&stored.about).ok().and_then(|about| Fingerprint::from_wire(&about.call?));
        if let Some(call) = call {
            self.ended_calls.add(call, &caller, id);
        }
        Ok(())
    }

    /// Ends every stream that this replica left open before its restart. To be called before the
    /// first request. Returns the number of ended streams. A full store may refuse some ends: they
    /// are written later, and clients have to retry until then.
    ///
    /// # Errors
    /// If the store cannot do it.
    pub async fn recover(self: &Arc<Self>) -> Result<usize, Error> {
        let Some(backing) = &self.context.backing else { return Ok(0) };
        let left = backing.store.open_streams(self.context.identity.owner).wait().await?;
        let mut waiting = self.adopt_all(&left).await?;
        let ended = left.len() - waiting.len();
        if !waiting.is_empty() {
            warn!(streams = waiting.len(), "the store has no space for the ends of streams that were left open before");
            let adoption = self.clone();
            tokio::spawn(async move {
                while !waiting.is_empty() {
                    clock::sleep(STORE_RETRY_PAUSE).await;
                    // An open stream that is no longer listed is written by this process.
                    match adoption.adopt_all(&waiting).await {
                        Ok(still) => waiting = still,
                        Err(error) => debug!(%error, "streams that were left open before cannot be ended yet"),
                    }
                }
                info!("all streams that were left open before have ended");
            });
        }
        Ok(ended)
    }

    /// Ends these streams of dead writers. Returns the streams whose ends a full store refused.
    async fn adopt_all(self: &Arc<Self>, left: &[StreamId]) -> Result<Vec<StreamId>, Error> {
        // Each waits for the disk; together they wait once.
        const AT_ONCE: usize = 64;
        let mut full = Vec::new();
        for some in left.chunks(AT_ONCE) {
            let mut adopting = JoinSet::new();
            for id in some.iter().copied() {
                let adoption = self.clone();
                adopting.spawn(async move { (id, adoption.adopt(id).await) });
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

    /// Drops every stream that another replica has adopted. To be called once this replica's lease
    /// had expired.
    ///
    /// # Errors
    /// If the store fails. An unchecked stream may then belong to another replica; the store
    /// accepts no more of it from here.
    pub async fn drop_taken_over(&self) -> Result<(), Error> {
        let Some(backing) = &self.context.backing else { return Ok(()) };
        for stream in self.streams.open_local() {
            if is_taken_over(backing, &stream).await? {
                self.streams.leave(&stream);
            }
        }
        Ok(())
    }

    /// Returns the open streams of writers with an expired lease. Each is read here, or was
    /// requested a moment ago.
    pub fn requested_of_expired_owners(&self) -> Vec<StreamId> {
        let expired = self.leases.expired();
        if expired.is_empty() {
            return Vec::new();
        }
        // The origin can be read without the stream's lock.
        let is_requested =
            |stream: &Arc<Stream>| expired.contains(&stream.handles().owner()) && stream.replica().is_remote();
        self.streams.all().into_iter().filter(is_requested).map(|stream| stream.id()).collect()
    }
}

/// Feeds the responses behind the last state to a stream that was rebuilt without its events.
/// Events that were rewritten after an outage precede their state.
async fn read_responses(backing: &Backing, stream: &Stream, stored: &Stored) -> Result<(), Error> {
    let state = State::decode(&stored.state).unwrap_or_default();
    let mut after = state.map_or(Seq(0), |state| state.machine.upto()).max(stored.trimmed);
    while after < stored.tail && !stream.with_machine(|machine| machine.owed_responses().is_settled()) {
        match backing.store.read(stream.id(), after, PIECE).wait().await? {
            Read::Events(events) => {
                let Some((last, _)) = events.last() else { return Ok(()) };
                after = *last;
                for (seq, event) in &events {
                    stream.replica().handle_logged(*seq, event);
                }
            }
            Read::Trimmed { upto } => after = upto,
            Read::Gone => return Ok(()),
        }
    }
    Ok(())
}

/// Returns whether another replica may have adopted the stream without notice. This is so if the
/// lease has expired. It is so if a client has an event that was never written here, or another
/// replica's end of the stream.
pub(super) fn may_be_taken_over(backing: &Backing, stream: &Stream, last: LastEvent) -> bool {
    let is_strange = || stream.with_machine(|machine| machine.numbering().tail() < last.seq);
    let is_ended_elsewhere = last.is_adopted && stream.replica().adopted_after().is_none();
    let is_open = || stream.replica().is_written_here() && (backing.lease_health.is_expired() || is_strange());
    backing.coordination.is_some() && (is_ended_elsewhere || is_open())
}

/// Returns whether another replica has the stream, by the store.
pub(super) async fn is_taken_over(backing: &Backing, stream: &Arc<Stream>) -> Result<bool, Error> {
    if !stream.shared.with_store_progress(|store_progress| store_progress.is_created) {
        return Ok(false);
    }
    let epoch = stream.shared.lock().epoch;
    let stored = backing.store.load(stream.id()).wait().await?;
    Ok(stored.is_some_and(|stored| stored.epoch > epoch))
}
