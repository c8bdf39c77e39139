//! The store behind the log, and the progress of each stream in it.
//!
//! Owned here: the handle of the store, the state of this replica towards it ([`lease_health`],
//! [`generation`]), and the records and claims in it. Absent: the writer and its batches
//! (`writer/recorder.rs`).

pub(in crate::event_log) mod claim;
pub(in crate::event_log) mod fingerprint;
pub(in crate::event_log) mod generation;
pub(in crate::event_log) mod lease_health;
mod released_claims;
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
use crate::event_log::backing::released_claims::ReleasedClaims;
use crate::event_log::backing::schema::StateDigest;
use crate::event_log::metrics::Metrics;
use crate::protocol::ids::{Seq, StoreEpoch};
use crate::protocol::stream::Batch;
use crate::store::{Coordination, Error, Pending, Store, Stored, WriterEpoch};

/// Retention of an unsealed stream in the store after its writer was last seen. Adoption by another
/// replica happens far earlier; this only frees streams that none adopts.
pub(in crate::event_log) const KEEP_UNSEALED: Duration = Duration::from_secs(6 * 3600);
/// Pause between two attempts at an unreachable store.
pub(in crate::event_log) const STORE_RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Events that are trimmed here but not yet in the store: each trim is a call.
const TRIM_STEP: u64 = 256;

/// The store behind a log, and the policy for its use.
#[derive(Clone)]
pub struct Backing {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Coordination of the replicas that share the store, or `None` if it is not shared.
    pub coordination: Option<Arc<dyn Coordination>>,
    /// Policy for an unreachable store.
    pub on_unreachable: OnUnreachable,
    /// Lease health of this replica.
    pub lease_health: Arc<LeaseHealth>,
    /// Generation of the store's contents.
    pub generation: Arc<Generation>,
    /// Notifies of a new local reader that may displace one at another replica.
    pub displacing: Arc<Notify>,
    /// Calls whose claims are being removed.
    pub released: Arc<ReleasedClaims>,
    /// Metrics for failures of the store.
    pub metrics: Arc<Metrics>,
}

impl Backing {
    /// Returns the epoch of the store's contents, or `None` if they cannot be lost while this
    /// process runs.
    pub(in crate::event_log) fn epoch(&self) -> Option<StoreEpoch> {
        self.coordination.as_ref().map(|coordination| coordination.epoch())
    }

    /// Returns the term of this replica. `None` if other replicas may have declared it dead, or if
    /// the store is not shared.
    pub(in crate::event_log) fn term(&self) -> Option<Term> {
        let coordination = self.coordination.as_ref()?;
        if !self.lease_health.is_held() {
            return None;
        }
        Some(Term::new(*coordination.possible_losses().borrow(), &self.lease_health))
    }

    /// Returns the present term of homes, to be read before the store. `None` if no result of the
    /// store counts: other replicas may count this one as gone, or the store may have lost their
    /// writes.
    pub(in crate::event_log) fn home_term(&self) -> Option<HomeTerm> {
        if self.coordination.is_none() {
            // Nothing changes in a store that is not shared.
            return Some(HomeTerm(None));
        }
        self.term().filter(|_| !self.is_recovering()).map(|term| HomeTerm(Some(term)))
    }

    /// Returns whether an operation that failed with `error` waits for the store.
    pub(in crate::event_log) fn should_wait(&self, error: &Error) -> bool {
        self.on_unreachable == OnUnreachable::Refuse && matches!(error, Error::Unavailable(_))
    }

    /// Counts a write that the store refused.
    pub(in crate::event_log) fn note_failure(&self, error: &Error) {
        self.metrics.store.observe_failure(error);
    }

    /// Makes a change that belongs to no stream; retries while the store is to be waited for.
    /// `what` names the change in the log. Returns whether the change was made.
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

    /// True for one lease after a data loss: a missing record may still be rewritten by its owner.
    pub(in crate::event_log) fn is_recovering(&self) -> bool {
        self.coordination
            .as_ref()
            .is_some_and(|coordination| self.generation.is_recovering(*coordination.possible_losses().borrow()))
    }
}

/// A period while this replica holds its lease and the store loses nothing. The other replicas'
/// knowledge of this one stays valid until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::event_log) struct Term {
    losses: u64,
    leases: u64,
}

impl Term {
    pub(in crate::event_log) fn new(losses: u64, lease_health: &LeaseHealth) -> Self {
        Self { losses, leases: lease_health.leases() }
    }
}

/// Time that the home of a session counts, as it was read from the store: one term, or all time for
/// a store that is not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeTerm(Option<Term>);

/// Progress of one stream in the store.
#[derive(Debug, Default)]
pub(in crate::event_log) struct StoreProgress {
    /// True if the stream has a record there.
    pub(in crate::event_log) is_created: bool,
    /// True if the stream is sealed there: nothing more is in flight.
    pub(in crate::event_log) is_sealed: bool,
    /// Last event there.
    pub(in crate::event_log) upto: Seq,
    /// Last event that was trimmed there.
    pub(in crate::event_log) trimmed: Seq,
    /// Digest of the last state written.
    pub(in crate::event_log) digest: StateDigest,
    /// True if the store lacks events that it could not take when they arrived.
    pub(in crate::event_log) is_behind: bool,
    /// True if some of those are trimmed here as well: the rest of the stream stays in memory.
    pub(in crate::event_log) is_memory_only: bool,
}

/// Part of a stream that the store was known to have.
#[derive(Clone, Copy, Debug)]
pub(in crate::event_log) struct StorePosition {
    upto: Seq,
    is_sealed: bool,
    epoch: WriterEpoch,
}

impl StorePosition {
    /// Returns whether the store has at least this much, or a later writer has the stream.
    pub(in crate::event_log) fn is_in(self, stored: &Stored) -> bool {
        stored.epoch > self.epoch || (stored.tail >= self.upto && stored.sealed >= self.is_sealed)
    }
}

impl StoreProgress {
    /// Returns the part that the store is known to have, under this writer's epoch. Returns `None`
    /// if the store has no part, or the stream stays in memory.
    pub(in crate::event_log) fn position(&self, epoch: WriterEpoch) -> Option<StorePosition> {
        if !self.is_created || self.is_memory_only {
            return None;
        }
        Some(StorePosition { upto: self.upto, is_sealed: self.is_sealed, epoch })
    }

    /// Notes that the store has the events up to `upto`, and the state with this digest if one was
    /// written. Returns whether it may trim the events up to `trimmed`, if that is worth a call.
    pub(in crate::event_log) fn note_appended(&mut self, upto: Seq, digest: Option<StateDigest>, trimmed: Seq) -> bool {
        self.upto = self.upto.max(upto);
        if let Some(digest) = digest {
            self.digest = digest;
        }
        let is_due = trimmed.0 >= self.trimmed.0 + TRIM_STEP;
        if is_due {
            self.trimmed = trimmed;
        }
        is_due
    }

    /// Returns whether the store has nothing of the stream, and could have all of it.
    pub(in crate::event_log) fn is_new(&self) -> bool {
        !self.is_created && !self.is_behind && !self.is_memory_only
    }

    /// Returns whether the store has everything up to `after`, so that the next event can follow.
    pub(in crate::event_log) fn is_level_with(&self, after: Seq) -> bool {
        self.is_created && !self.is_behind && self.upto == after
    }
}

/// A batch on its way to the store, with the state after it if that is worth writing. No reader has
/// it.
#[derive(Debug, Default)]
pub(in crate::event_log) struct Staged {
    pub(in crate::event_log) batch: Batch,
    pub(in crate::event_log) state: Option<StagedState>,
}

/// State of a stream as it is written to the store.
#[derive(Debug)]
pub(in crate::event_log) struct StagedState {
    pub(in crate::event_log) digest: StateDigest,
    pub(in crate::event_log) encoded: Bytes,
}

/// A batch that readers may have: the store has it, or memory holds it in place of the store. The
/// recorder alone makes one.
#[derive(Debug)]
pub(in crate::event_log) struct Persisted {
    pub(in crate::event_log) batch: Batch,
}

/// Another writer has the stream, and nothing of this one will be in it again.
#[derive(Clone, Copy, Debug)]
pub(in crate::event_log) struct Fenced;
