//! A store that may hold less than was written to it: what is missing there is brought there again.
//!
//! It may have lost everything, which another epoch of its contents says; or it was out of reach and came back as it was a while ago, by a
//! failover or from an old snapshot, and says nothing. Invariant: for one lease after either, nobody is taken for gone, and nothing for
//! never having been, because the store does not know it: whoever has it is about to say so. Absent: events that a running call still
//! writes, of which the writer finds out itself (the recorder).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::{debug, info};

use crate::clock;
use crate::event_log::EventLog;
use crate::event_log::stream::Stream;
use crate::event_log::writer::recorder;
use crate::event_log::writer::recorder::Backing;
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
    fn are_young(&self, times: u64) -> bool {
        let seen = sync::lock(&self.0);
        seen.is_some_and(|seen| seen.times != times || seen.young_until.is_some_and(|until| clock::now() < until))
    }
}

impl Backing {
    /// Whether what the store does not know may be there all the same: it was regained less than a lease ago.
    pub(in crate::event_log) fn is_young(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| self.contents.are_young(*shared.regained().borrow()))
    }
}

impl EventLog {
    /// The store's contents are these now, and were regained so often: whether [`Self::look_back`] or [`Self::write_back`] is due.
    pub fn note_contents(&self, epoch: StoreEpoch, times: u64, lease: Duration) -> Regained {
        self.backing.as_ref().map_or(Regained::No, |backing| backing.contents.note(epoch, times, lease))
    }

    /// Whether what the store does not know may be there all the same: it was regained less than a lease ago.
    pub fn has_young_contents(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.is_young())
    }

    /// The store has lost what it had: what lives here, or was written here and is still remembered, is brought there again. Streams that
    /// run see to it themselves; sessions, and streams that are over, follow one after the other, behind.
    pub fn write_back(self: &Arc<Self>) {
        let Some(backing) = self.backing.clone() else { return };
        let over: Vec<_> = self.written_here().filter(|stream| stream.note_unrecorded()).collect();
        let log = self.clone();
        tokio::spawn(async move {
            log.write_small().await;
            for stream in over {
                recorder::seal(&stream, &backing, || {}).await;
            }
        });
    }

    /// Everything but streams: to write it again costs no more than to look whether it is there.
    async fn write_small(&self) {
        for stream in self.retries.streams() {
            stream.write_holds();
            self.write_answer(&stream);
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
    pub fn look_back(self: &Arc<Self>) {
        let Some(backing) = self.backing.clone() else { return };
        let written: Vec<_> = self.written_here().collect();
        let log = self.clone();
        tokio::spawn(async move {
            log.write_small().await;
            for stream in written {
                let Some(recorded) = stream.recorded_there() else { continue };
                match backing.store.load(stream.id()).wait().await {
                    Ok(Some(stored)) if recorded.is_in(&stored) => {}
                    Ok(_) => {
                        info!(stream.id = %stream.id(), "the store has lost something of a stream: it is brought there again");
                        if stream.note_unrecorded() {
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
        self.room.all().into_iter().filter(|stream| !stream.is_mirror())
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
