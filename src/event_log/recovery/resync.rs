//! A store that may hold less than was written to it: what is missing there is brought there again.
//!
//! It may have lost everything, which another epoch of its contents says; or it was out of reach and came back as it was a while ago, by a
//! failover or from an old snapshot, and says nothing. Invariant: for one lease after either, nobody is taken for gone, and nothing for
//! never having been, because the store does not know it: whoever has it is about to say so. Absent: events that a running call still
//! writes, of which the writer finds out itself (the recorder).

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use crate::event_log::backing::generation::StoreLoss;
use crate::event_log::log::EventLog;
use crate::event_log::stream::Stream;
use crate::event_log::writer::recorder;
use crate::protocol::ids::StoreEpoch;

impl EventLog {
    /// The store's contents are these now, and were regained so often: whether [`Self::verify_and_rewrite`] or [`Self::rewrite_all`] is due.
    pub fn note_generation(&self, epoch: StoreEpoch, times: u64, lease: Duration) -> StoreLoss {
        self.backing.as_ref().map_or(StoreLoss::Nothing, |backing| backing.generation.note(epoch, times, lease))
    }

    /// Whether what the store does not know may be there all the same: it was regained less than a lease ago.
    pub fn is_store_recovering(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.is_recovering())
    }

    /// The store has lost what it had: what lives here, or was written here and is still remembered, is brought there again. Streams that
    /// run see to it themselves; sessions, and streams that are over, follow one after the other, behind.
    pub fn rewrite_all(self: &Arc<Self>) {
        let Some(backing) = self.backing.clone() else { return };
        let over: Vec<_> = self.written_here().filter(|stream| stream.note_store_loss()).collect();
        let log = self.clone();
        tokio::spawn(async move {
            log.rewrite_records().await;
            for stream in over {
                recorder::seal(&stream, &backing, || {}).await;
            }
        });
    }

    /// Everything but streams: to write it again costs no more than to look whether it is there.
    async fn rewrite_records(&self) {
        for stream in self.retry_index.streams() {
            stream.rewrite_claims();
            self.rewrite_response(&stream);
        }
        for (id, session) in self.sessions.of_here() {
            match session.opened() {
                Some(opened) if session.is_home() => self.save_session(&id, session.principal(), opened).await,
                Some(_) | None => self.join_session(&id).await,
            }
        }
    }

    /// The store was out of reach, and may have come back without what it took last: what is small is written again, and each stream that
    /// was written here is looked for, one after the other, behind, and brought there again if something of it is missing.
    pub fn verify_and_rewrite(self: &Arc<Self>) {
        let Some(backing) = self.backing.clone() else { return };
        let written: Vec<_> = self.written_here().collect();
        let log = self.clone();
        tokio::spawn(async move {
            log.rewrite_records().await;
            for stream in written {
                let Some(store_progress) = stream.store_position() else { continue };
                match backing.store.load(stream.id()).wait().await {
                    Ok(Some(stored)) if store_progress.is_in(&stored) => {}
                    Ok(_) => {
                        info!(stream.id = %stream.id(), "the store has lost something of a stream: it is brought there again");
                        if stream.note_store_loss() {
                            recorder::seal(&stream, &backing, || {}).await;
                        }
                    }
                    // Once it is back it is looked at again.
                    Err(error) => return debug!(%error, "a store that is back cannot be looked at"),
                }
            }
        });
    }

    /// The streams that can be found, and that no other replica wrote.
    fn written_here(&self) -> impl Iterator<Item = Arc<Stream>> {
        self.streams.all().into_iter().filter(|stream| !stream.is_follower())
    }
}
