//! Resync: when the store returns with data missing, each replica rewrites the streams that it
//! owns.
//!
//! A store may have lost everything, which shows as another epoch of its contents. After a
//! failover, or from an old snapshot, it may lack the last writes, which shows only as a
//! reconnection. Invariant: for one lease after either, no replica is declared dead, and no stream
//! that the store does not know is reported lost. Its owner is about to rewrite it. Absent: events
//! of a running call, whose loss the writer notices itself (`writer/recorder.rs`).

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use crate::event_log::backing::Backing;
use crate::event_log::backing::generation::StoreLoss;
use crate::event_log::replicas::kept_responses::KeptResponses;
use crate::event_log::replicas::sessions::StoredSessions;
use crate::event_log::retention::Retention;
use crate::event_log::retry_index::RetryIndex;
use crate::event_log::sessions::Sessions;
use crate::event_log::stream::Stream;
use crate::event_log::writer::recorder;
use crate::event_log::writer::stream_table::StreamTable;
use crate::protocol::ids::{StoreEpoch, StreamId};
use crate::store::Error;

/// Data of this replica that is written again after a loss.
pub struct Resync {
    pub(in crate::event_log) backing: Option<Arc<Backing>>,
    pub(in crate::event_log) streams: Arc<StreamTable>,
    pub(in crate::event_log) retention: Arc<Retention>,
    pub(in crate::event_log) retry_index: Arc<RetryIndex<Stream>>,
    pub(in crate::event_log) sessions: Arc<Sessions>,
    pub(in crate::event_log) stored_sessions: Arc<StoredSessions>,
    pub(in crate::event_log) kept_responses: Arc<KeptResponses>,
}

impl Resync {
    /// Notes the epoch of the store's contents and the number of losses. The result shows whether
    /// [`Self::verify_and_rewrite`] or [`Self::rewrite_all`] is due.
    pub fn note_generation(&self, epoch: StoreEpoch, times: u64, lease: Duration) -> StoreLoss {
        self.backing.as_ref().map_or(StoreLoss::Nothing, |backing| backing.generation.note(epoch, times, lease))
    }

    /// True for one lease after a data loss: a missing record may still be rewritten by its owner.
    pub fn is_store_recovering(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.is_recovering())
    }

    /// Rewrites everything after a total loss. Running streams rewrite themselves; sessions and
    /// finished streams follow one after the other, in the background.
    pub fn rewrite_all(self: &Arc<Self>) {
        let Some(backing) = self.backing.clone() else { return };
        let over: Vec<_> = self.written_here().filter(|stream| stream.replica().handle_store_loss()).collect();
        let resync = self.clone();
        tokio::spawn(async move {
            resync.rewrite_records().await;
            for stream in over {
                recorder::seal(&stream, &backing, || {}).await;
            }
            for id in resync.streams.unproven_stubs() {
                let Some(stream) = resync.expand_written(id) else { continue };
                if stream.replica().handle_store_loss() {
                    recorder::seal(&stream, &backing, || {}).await;
                }
                resync.retention.release(stream);
            }
        });
    }

    /// Rewrites everything but streams: a write costs no more than a check.
    async fn rewrite_records(&self) {
        for claim in self.retry_index.claims() {
            claim.rewrite();
            if let Some((stream, _)) = self.retention.expand_briefly(claim.stream()) {
                self.kept_responses.rewrite(&stream);
                self.retention.release(stream);
            }
        }
        self.sessions.handshakes().change_all();
        for (id, session) in self.sessions.registered() {
            let _ = self.stored_sessions.rewrite(&id, &session).await;
        }
    }

    /// Verifies the store after a possible partial loss. Small records are rewritten. Each stream
    /// that was written here is compared with the store, one after the other, in the background. It
    /// is rewritten if the store lacks a part.
    pub fn verify_and_rewrite(self: &Arc<Self>) {
        let Some(backing) = self.backing.clone() else { return };
        let written: Vec<_> = self.written_here().collect();
        let resync = self.clone();
        tokio::spawn(async move {
            resync.rewrite_records().await;
            // One stub at a time is a stream meanwhile.
            let stubs = resync.streams.unproven_stubs().into_iter().filter_map(|id| resync.expand_written(id));
            for stream in written.into_iter().chain(stubs) {
                if let Err(error) = verify(&stream, &backing).await {
                    // The next return of the store begins another check.
                    return debug!(%error, "a store that is back cannot be verified");
                }
                resync.retention.release(stream);
            }
        });
    }

    /// Returns the stream of a stub that was written here, for a moment.
    fn expand_written(&self, id: StreamId) -> Option<Arc<Stream>> {
        let (stream, _) = self.retention.expand_briefly(id)?;
        if stream.replica().is_restored() { None } else { Some(stream) }
    }

    /// Returns the streams in the log that were written here.
    fn written_here(&self) -> impl Iterator<Item = Arc<Stream>> {
        self.streams.all().into_iter().filter(|stream| !stream.replica().is_restored())
    }
}

/// Compares a stream with the store, and rewrites it there if something is missing.
async fn verify(stream: &Arc<Stream>, backing: &Arc<Backing>) -> Result<(), Error> {
    let Some(store_progress) = stream.replica().store_position() else { return Ok(()) };
    let stored = backing.store.load(stream.id()).wait().await?;
    if stored.is_none_or(|stored| !store_progress.is_in(&stored)) {
        info!(stream.id = %stream.id(), "the store has lost a part of a stream: the stream is rewritten");
        if stream.replica().handle_store_loss() {
            recorder::seal(stream, backing, || {}).await;
        }
    }
    Ok(())
}
