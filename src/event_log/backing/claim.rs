//! Claims: records of calls with an `Idempotency-Key`. By them a retry at another replica or after
//! a restart finds its call.
//!
//! Owned here: the form and the keys of the records, and the guard that extends and removes them.
//! Absent: lookups and decisions (`replicas/claims.rs`).

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::event_log::backing::STORE_RETRY_PAUSE;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::backing::released_claims::ReleasedClaims;
use crate::protocol::ids::{Owner, StreamId};
use crate::random;
use crate::store::{Error, Store};
use crate::sync;

/// Interval of the checks for claims to extend.
pub(in crate::event_log) const CHECK_EVERY: Duration = Duration::from_secs(15);

/// Record of a claim: a call and the replica that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// Replica that runs the call.
    pub owner: Owner,
    /// ID of its stream, if the response is one.
    pub stream: StreamId,
    /// Fingerprint of the POST body.
    pub body: Fingerprint,
}

/// Record of a call for the same caller under another token. The identity of the caller is only
/// claimed: nothing of the call is revealed before it is proven.
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
    /// Fingerprint of the POST body.
    pub body: Fingerprint,
}

/// Outcome of a claim.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// No replica has begun the call: this one runs it.
    Claimed(ClaimGuard),
    /// An earlier claim of the call, with the bytes of its record.
    Existing(ClaimRecord, Bytes),
    /// The call has no claim, and none was requested.
    Unclaimed,
    /// The record cannot be read, perhaps because another version wrote it.
    Unreadable,
}

/// A record as written.
#[derive(Clone)]
pub(in crate::event_log) struct Record {
    pub(in crate::event_log) key: Vec<u8>,
    pub(in crate::event_log) value: Vec<u8>,
}

/// Guard of the records of a call that this replica has claimed. Dropping it removes them, unless
/// they were left behind.
///
/// The record of the call is encoded for each use: a finished call keeps its guard much longer than
/// it needs the record.
pub struct ClaimGuard {
    pub(in crate::event_log) store: Arc<dyn Store>,
    released: Arc<ReleasedClaims>,
    call: Fingerprint,
    pub(in crate::event_log) stream: StreamId,
    owner: Owner,
    body: Fingerprint,
    /// Record for the caller's other tokens, or `None`. Boxed: most calls have none.
    pub(in crate::event_log) subject_record: Option<Box<Record>>,
    retention: Duration,
    state: Mutex<GuardState>,
}

/// State of a guard.
struct GuardState {
    /// Time of the last extension.
    kept_at: Instant,
    /// True once the records were left behind or removed. The guard makes no further change in the
    /// store.
    is_closed: bool,
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
        Self {
            store,
            released,
            call,
            stream: StreamId::from_bytes(random::bytes()),
            owner,
            body: claim.body,
            subject_record: None,
            retention: claim.retention,
            state: Mutex::new(GuardState { kept_at: clock::now(), is_closed: false }),
        }
    }

    /// Returns the bytes of the guard as a shared object.
    pub(in crate::event_log) fn byte_len(&self) -> usize {
        let subject = self
            .subject_record
            .as_ref()
            .map_or(0, |record| size_of::<Record>() + record.key.len() + record.value.len());
        // An `Arc` adds two counters.
        size_of::<Self>() + 2 * size_of::<usize>() + subject
    }

    fn run(&self) -> ClaimRecord {
        ClaimRecord { owner: self.owner, stream: self.stream, body: self.body }
    }

    /// Returns the record of the call.
    pub(in crate::event_log) fn record(&self) -> Record {
        Record { key: key(&self.call), value: encode(&self.run()) }
    }

    /// Returns the record of the call for the caller's other tokens. `is_accepted` is true if the
    /// server had accepted the present one.
    pub(in crate::event_log) fn subject_claim(&self, is_accepted: bool) -> SubjectClaim {
        SubjectClaim { run: self.run(), call: self.call, is_accepted }
    }

    /// Returns the lifetime of a record after an extension. The record outlives a replica that dies
    /// by the retention of a response, at least.
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

    /// Drops the record for other tokens, because another call has its place in the store.
    pub fn drop_subject_claim(&mut self) {
        self.subject_record = None;
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        std::iter::once(self.record()).chain(self.subject_record.as_deref().cloned())
    }

    /// Extends the records if that is due and the guard still has them.
    pub(in crate::event_log) fn extend_if_due(&self, now: Instant) {
        let mut state = sync::lock(&self.state);
        if !state.is_closed && now.saturating_duration_since(state.kept_at) >= self.renewal() {
            state.kept_at = now;
            for record in self.records() {
                // A failure needs no handling: the next round extends the record.
                let _ = self.store.expire_if_equal(&record.key, &record.value, Some(self.keep()));
            }
        }
    }

    /// Leaves the records in the store for the rest of their lifetime: other replicas still find
    /// the call.
    pub(in crate::event_log) fn leave(&self) {
        sync::lock(&self.state).is_closed = true;
    }

    /// Writes the records again after a loss in the store, unless they were left or removed.
    pub(in crate::event_log) fn rewrite(&self) {
        // Locked meanwhile: no record is written after its removal.
        let state = sync::lock(&self.state);
        if state.is_closed {
            return;
        }
        for record in self.records() {
            // Not awaited: an extension or the next resync follows a failure.
            let _ = self.store.claim(&record.key, &record.value, self.keep());
        }
    }

    /// Removes the records, unless they were left behind or removed before. Retries until the store
    /// confirms the removal or the records have expired: a remaining record would report a call
    /// that never ran as possibly run.
    pub(in crate::event_log) fn release(&self) {
        // Locked meanwhile; see `rewrite`.
        let mut state = sync::lock(&self.state);
        if std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        let records: Vec<_> = self.records().collect();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            for record in &records {
                // No task can wait for the result: a remaining record expires.
                let _ = self.store.expire_if_equal(&record.key, &record.value, None);
            }
            return;
        };
        let stream = self.stream;
        self.released.insert(stream);
        let removing: Vec<_> =
            records.iter().map(|record| self.store.expire_if_equal(&record.key, &record.value, None)).collect();
        let (store, released, until) = (self.store.clone(), self.released.clone(), clock::now() + self.keep());
        runtime.spawn(async move {
            for (record, removing) in records.iter().zip(removing) {
                if removing.wait().await.is_err() {
                    record.remove_for_sure(&*store, until).await;
                }
            }
            released.remove(stream);
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
        // A claim that was sent on a broken connection may take effect later.
        clock::sleep(CHECK_EVERY).await;
        let _ = store.expire_if_equal(&self.key, &self.value, None).wait().await;
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
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
