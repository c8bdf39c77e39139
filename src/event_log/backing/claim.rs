//! Claims: records of calls that a client may send again to another replica, or after a restart.
//!
//! Owned here: the records' form and keys, and the guard that writes, extends and removes them.
//! Absent: lookups and decisions (`recovery/claims.rs`).

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::clock;
use crate::event_log::backing::STORE_RETRY_PAUSE;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::protocol::ids::{Owner, StreamId};
use crate::random;
use crate::store::{Error, Pending, Store};
use crate::sync;

/// Interval at which claims are checked for extension.
pub(in crate::event_log) const CHECK_EVERY: Duration = Duration::from_secs(15);

/// Record of a claim: a call and the replica that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// Replica that runs the call.
    pub owner: Owner,
    /// Id of its stream, if it becomes one.
    pub stream: StreamId,
    /// Fingerprint of the POST body, if the call has a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Fingerprint>,
}

/// Record by which the same caller finds a call with a key under another token. The caller's
/// identity is only claimed here: nothing of the call is revealed before it is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectClaim {
    /// Record of the call.
    pub run: ClaimRecord,
    /// Fingerprint of the call under the token that began it.
    pub call: Fingerprint,
    /// True if the server had accepted that token before.
    pub is_accepted: bool,
}

/// Contents of a new claim.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// Retention of the response.
    pub retention: Duration,
    /// Fingerprint of the POST body, if the call has a key.
    pub body: Option<Fingerprint>,
}

/// Outcome of a claim.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// No replica has begun the call: it runs here.
    Claimed(ClaimGuard),
    /// The call was begun before; with the bytes of its record.
    Existing(ClaimRecord, Bytes),
    /// The call was not begun, and no claim was wanted.
    Unclaimed,
    /// The record cannot be read, perhaps because another version wrote it.
    Unreadable,
}

/// Calls whose records are being removed from the store. The calls are over or never ran, even if
/// the store still has their records.
#[derive(Debug, Default)]
pub struct ReleasedClaims(Mutex<HashSet<StreamId>>);

impl ReleasedClaims {
    fn lock(&self) -> MutexGuard<'_, HashSet<StreamId>> {
        sync::lock(&self.0)
    }

    pub(in crate::event_log) fn contains(&self, stream: StreamId) -> bool {
        self.lock().contains(&stream)
    }
}

/// A record as written.
#[derive(Clone)]
pub(in crate::event_log) struct Record {
    pub(in crate::event_log) key: Vec<u8>,
    pub(in crate::event_log) value: Vec<u8>,
}

/// Guard of the records of a call that was claimed here. To drop it removes them, unless they were
/// left behind.
///
/// The record of the call is made anew for each use: a finished call keeps its guard much longer
/// than it needs the record.
pub struct ClaimGuard {
    pub(in crate::event_log) store: Arc<dyn Store>,
    released: Arc<ReleasedClaims>,
    call: Fingerprint,
    pub(in crate::event_log) stream: StreamId,
    owner: Owner,
    /// See [`ClaimRequest::body`]. Boxed: most calls have none.
    body: Option<Box<Fingerprint>>,
    /// Record for the caller's other tokens, or `None`. Boxed: most calls have none.
    pub(in crate::event_log) subject_record: Option<Box<Record>>,
    retention: Duration,
    state: Mutex<GuardState>,
    /// True once the store has confirmed the record of the call.
    is_confirmed: AtomicBool,
}

/// State of a guard.
struct GuardState {
    /// Time of the last extension.
    kept_at: Instant,
    /// True once the records were left behind or removed. The guard changes nothing in the store
    /// from then on.
    is_over: bool,
}

impl fmt::Debug for ClaimGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimGuard").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl ClaimGuard {
    pub(in crate::event_log) fn new(
        owner: Owner,
        released: Arc<ReleasedClaims>,
        store: Arc<dyn Store>,
        call: Fingerprint,
        claim: ClaimRequest,
    ) -> Self {
        Self::for_stream(StreamId::from_bytes(random::bytes()), owner, released, store, call, claim)
    }

    /// Returns the guard of a claim for a call whose stream exists. Nothing is written.
    pub(in crate::event_log) fn for_stream(
        stream: StreamId,
        owner: Owner,
        released: Arc<ReleasedClaims>,
        store: Arc<dyn Store>,
        call: Fingerprint,
        claim: ClaimRequest,
    ) -> Self {
        Self {
            store,
            released,
            call,
            stream,
            owner,
            body: claim.body.map(Box::new),
            subject_record: None,
            retention: claim.retention,
            state: Mutex::new(GuardState { kept_at: clock::now(), is_over: false }),
            is_confirmed: AtomicBool::new(false),
        }
    }

    /// Returns the bytes of the guard as a shared object.
    pub(in crate::event_log) fn byte_len(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |_| size_of::<Fingerprint>());
        let subject = self
            .subject_record
            .as_ref()
            .map_or(0, |record| size_of::<Record>() + record.key.len() + record.value.len());
        // Two counters come with it.
        size_of::<Self>() + 2 * size_of::<usize>() + body + subject
    }

    /// Returns the record of the call.
    pub(in crate::event_log) fn record(&self) -> Record {
        let claim_record = ClaimRecord { owner: self.owner, stream: self.stream, body: self.body.as_deref().copied() };
        Record { key: key(&self.call), value: encode(&claim_record) }
    }

    /// Returns whether a client may name the call by an `Idempotency-Key`.
    pub(in crate::event_log) fn has_key(&self) -> bool {
        self.body.is_some()
    }

    /// Returns the lifetime of a record after an extension. The record of a replica that dies
    /// outlives it by the retention of a response.
    pub(in crate::event_log) fn keep(&self) -> Duration {
        self.retention + self.renewal() + CHECK_EVERY
    }

    /// Returns the interval between extensions.
    fn renewal(&self) -> Duration {
        self.retention / 4
    }

    /// Returns the id for the stream of the call.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Drops the record for other tokens, because its place is another call's.
    pub fn drop_subject_claim(&mut self) {
        self.subject_record = None;
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        std::iter::once(self.record()).chain(self.subject_record.as_deref().cloned())
    }

    /// Extends the records if that is due and the guard still has them.
    pub(in crate::event_log) fn extend_if_due(&self, now: Instant) {
        let mut state = sync::lock(&self.state);
        if !state.is_over && now.saturating_duration_since(state.kept_at) >= self.renewal() {
            state.kept_at = now;
            for record in self.records() {
                // A failure needs no handling: the next round extends the record.
                let _ = self.store.expire_if_equal(&record.key, &record.value, Some(self.keep()));
            }
        }
    }

    /// Leaves the records in the store for the rest of their lifetime: the call stays known to
    /// other replicas, or its outcome is unknown.
    pub(in crate::event_log) fn leave(&self) {
        sync::lock(&self.state).is_over = true;
    }

    /// Writes the records again after a loss in the store, unless the guard no longer has them.
    pub(in crate::event_log) fn rewrite(&self) {
        // Locked meanwhile: no record is written after its removal.
        let state = sync::lock(&self.state);
        if state.is_over {
            return;
        }
        for record in self.records() {
            // Not awaited: an extension or the next resync follows a failure.
            let _ = self.store.claim(&record.key, &record.value, self.keep());
        }
    }

    /// Writes the record of the call. Repeated without harm.
    pub(in crate::event_log) fn write(self: &Arc<Self>) -> ClaimWrite {
        let Record { key, value } = self.record();
        let claimed = self.store.claim(&key, &value, self.keep());
        ClaimWrite { guard: self.clone(), value, claimed }
    }

    /// Notes that the store has the record of the call.
    pub(in crate::event_log) fn note_confirmed(&self) {
        self.is_confirmed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the store has confirmed the record of the call.
    pub(in crate::event_log) fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::Relaxed)
    }

    /// Removes the records, unless they were left behind or removed before. Retries until the store
    /// confirms it or the record has expired there: a record that stays would report a finished
    /// call, or one that never ran, as possibly run.
    pub(in crate::event_log) fn release(&self) {
        // Locked meanwhile; see `rewrite`.
        let mut state = sync::lock(&self.state);
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        let records: Vec<_> = self.records().collect();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            for record in &records {
                // No task can wait for the result: a record that stays expires.
                let _ = self.store.expire_if_equal(&record.key, &record.value, None);
            }
            return;
        };
        let stream = self.stream;
        self.released.lock().insert(stream);
        let removing: Vec<_> =
            records.iter().map(|record| self.store.expire_if_equal(&record.key, &record.value, None)).collect();
        let (store, released, until) = (self.store.clone(), self.released.clone(), clock::now() + self.keep());
        runtime.spawn(async move {
            for (record, removing) in records.iter().zip(removing) {
                if removing.wait().await.is_err() {
                    record.remove_for_sure(&*store, until).await;
                }
            }
            released.lock().remove(&stream);
        });
    }
}

impl Record {
    /// Removes the record from a store that did not confirm it; gives up at `until`.
    async fn remove_for_sure(&self, store: &dyn Store, until: Instant) {
        while clock::now() < until {
            clock::sleep(STORE_RETRY_PAUSE).await;
            if store.expire_if_equal(&self.key, &self.value, None).wait().await.is_ok() {
                break;
            }
        }
        // A claim whose connection broke may take effect later.
        clock::sleep(CHECK_EVERY).await;
        let _ = store.expire_if_equal(&self.key, &self.value, None).wait().await;
    }
}

/// A claim that was sent to the store.
pub(in crate::event_log) struct ClaimWrite {
    guard: Arc<ClaimGuard>,
    value: Vec<u8>,
    claimed: Pending<Result<Option<Bytes>, Error>>,
}

impl ClaimWrite {
    /// Waits until the store has the claim.
    ///
    /// # Errors
    /// If the store has not confirmed it.
    pub(in crate::event_log) async fn wait(self) -> Result<(), Error> {
        if self.claimed.wait().await?.is_some_and(|there| there != self.value) {
            warn!(stream.id = %self.guard.stream, "another replica has claimed a call that runs here");
        }
        self.guard.note_confirmed();
        Ok(())
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        // A record that stays says that the call may have run, until the record expires.
        self.release();
    }
}

pub(in crate::event_log) fn existing(record: Bytes) -> ClaimOutcome {
    match serde_json::from_slice(&record) {
        Ok(claim) => ClaimOutcome::Existing(claim, record),
        Err(_) => ClaimOutcome::Unreadable,
    }
}

pub(in crate::event_log) fn read_subject_claim(record: &Bytes) -> Result<SubjectClaim, Error> {
    serde_json::from_slice(record)
        .map_err(|error| Error::Unavailable(format!("the record of a call cannot be read: {error}")))
}

pub(in crate::event_log) fn encode(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record has no maps with keys that are no text")
}

pub(in crate::event_log) fn key(call: &Fingerprint) -> Vec<u8> {
    [b"run\0", call.as_bytes()].concat()
}

pub(in crate::event_log) fn subject_key(subject: &Fingerprint) -> Vec<u8> {
    [b"elder\0", subject.as_bytes()].concat()
}
