//! The store behind the log, and what it has of a stream.

pub(in crate::event_log) mod claim;
pub(in crate::event_log) mod fingerprint;
pub(in crate::event_log) mod generation;
pub(in crate::event_log) mod lease_health;
pub(in crate::event_log) mod reader_table;
pub(in crate::event_log) mod schema;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tracing::warn;

use crate::clock;
use crate::config::OnUnreachable;
use crate::event_log::backing::generation::Generation;
use crate::event_log::backing::lease_health::LeaseHealth;
use crate::event_log::backing::schema::StateMarks;
use crate::event_log::metrics::Metrics;
use crate::protocol::ids::{Seq, StoreEpoch};
use crate::protocol::stream::Batch;
use crate::store::{Coordination, Error, Pending, Store, Stored, WriterEpoch};

/// An unsealed stream stays in its store for so long after its writer was last heard of. Whoever takes up a stream whose writer is
/// gone comes far earlier; this frees what nobody takes up.
pub(in crate::event_log) const KEEP_UNSEALED: Duration = Duration::from_secs(6 * 3600);
/// How often a store that cannot be reached is looked at again.
pub(in crate::event_log) const STORE_RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The store behind a log, and how it is used.
#[derive(Clone)]
pub struct Backing {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The same, where other replicas use it too.
    pub shared: Option<Arc<dyn Coordination>>,
    /// What is done without it.
    pub on_unreachable: OnUnreachable,
    /// Whether this replica counts as living for the others.
    pub lease_health: Arc<LeaseHealth>,
    /// Whether what it holds may be incomplete.
    pub generation: Arc<Generation>,
    /// Told of a new reader here where one at another replica may have to end.
    pub displacing: Arc<Notify>,
    /// Where its failures are counted.
    pub metrics: Arc<Metrics>,
}

impl Backing {
    /// The contents of the store now, where they may become others while this process runs.
    pub(in crate::event_log) fn epoch(&self) -> Option<StoreEpoch> {
        self.shared.as_ref().map(|shared| shared.epoch())
    }

    /// Whether what failed with `error` waits until the store is back.
    pub(in crate::event_log) fn should_wait(&self, error: &Error) -> bool {
        self.on_unreachable == OnUnreachable::Refuse && matches!(error, Error::Unavailable(_))
    }

    /// Counts a write that the store could not take.
    pub(in crate::event_log) fn note_failure(&self, error: &Error) {
        self.metrics.store.observe_failure(error);
    }

    /// Makes a change that belongs to no stream, for as long as the store is to be waited for. `what` it could not do otherwise. Says
    /// whether it is made.
    pub(in crate::event_log) async fn retry_until_available<T>(
        &self,
        change: impl Fn() -> Pending<Result<T, Error>>,
        what: &str,
    ) -> bool {
        let mut has_warned = false;
        while let Err(error) = change().wait().await {
            let waits = self.should_wait(&error);
            self.note_failure(&error);
            if !std::mem::replace(&mut has_warned, true) {
                warn!(%error, waits, "the store could not {what}");
            }
            if !waits {
                return false;
            }
            clock::sleep(STORE_RETRY_PAUSE).await;
        }
        true
    }

    /// Whether what the store does not know may be there all the same: it was regained less than a lease ago.
    pub(in crate::event_log) fn is_recovering(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| self.generation.is_recovering(*shared.possible_losses().borrow()))
    }
}

/// What the store has of one stream.
#[derive(Debug, Default)]
pub(in crate::event_log) struct StoreProgress {
    /// There is a record.
    pub(in crate::event_log) is_created: bool,
    /// Its end is there as well: nothing more is on its way.
    pub(in crate::event_log) is_sealed: bool,
    /// The last event that is there.
    pub(in crate::event_log) upto: Seq,
    /// The last event that was dropped there.
    pub(in crate::event_log) trimmed: Seq,
    /// What the last state said.
    pub(in crate::event_log) marks: StateMarks,
    /// Events are missing there, because the store could not take them when they came.
    pub(in crate::event_log) is_behind: bool,
    /// Some of those are gone here as well: the rest of the stream stays in memory.
    pub(in crate::event_log) is_memory_only: bool,
}

/// How much of a stream the store was known to have.
#[derive(Clone, Copy, Debug)]
pub(in crate::event_log) struct StorePosition {
    upto: Seq,
    is_sealed: bool,
    epoch: WriterEpoch,
}

impl StorePosition {
    /// Whether the store has that much, or another writer has the stream.
    pub(in crate::event_log) fn is_in(self, stored: &Stored) -> bool {
        stored.epoch > self.epoch || (stored.tail >= self.upto && stored.sealed >= self.is_sealed)
    }
}

impl StoreProgress {
    /// What the store is known to have, under this writer's epoch; `None` where that is nothing, or no more of the stream goes there.
    pub(in crate::event_log) fn position(&self, epoch: WriterEpoch) -> Option<StorePosition> {
        let is_there = self.is_created && !self.is_memory_only;
        is_there.then_some(StorePosition { upto: self.upto, is_sealed: self.is_sealed, epoch })
    }

    /// Whether the store has everything up to `after`, so that what is next can follow.
    pub(in crate::event_log) fn is_level_with(&self, after: Seq) -> bool {
        self.is_created && !self.is_behind && self.upto == after
    }
}

/// A batch on its way into the store, with the state that it brings about where that is worth writing.
#[derive(Debug, Default)]
pub(in crate::event_log) struct Staged {
    pub(in crate::event_log) batch: Batch,
    pub(in crate::event_log) state: Option<(StateMarks, Bytes)>,
}

/// What became of a batch, or of a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::event_log) enum PersistOutcome {
    /// It is there: the store has it, or memory stands for the store.
    Persisted,
    /// Another writer has the stream. Nothing of this one will ever be in it again.
    Fenced,
}
