//! Claims: the records of calls that a client may send again to another replica, or after a restart.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::event_log::backing::STORE_RETRY_PAUSE;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::protocol::ids::{Owner, StreamId};
use crate::random;
use crate::store::{Error, Store};
use crate::sync;

/// How often records are looked at that are to be kept.
pub(in crate::event_log) const LOOK: Duration = Duration::from_secs(15);

/// A call, and where it was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The replica.
    pub owner: Owner,
    /// What its stream is called, if it comes to one.
    pub stream: StreamId,
    /// The body of its POST, where it has a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Fingerprint>,
}

/// A call with a key, as another token of its caller finds it. Anybody can claim to be that caller: nothing of it is for one who has
/// not proven it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectClaim {
    /// The call.
    pub run: ClaimRecord,
    /// Its fingerprint with the token that began it.
    pub call: Fingerprint,
    /// The server had accepted that token before.
    pub is_accepted: bool,
}

/// What is written down of a call that is claimed.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// For how long its answer is kept.
    pub retention: Duration,
    /// The body of its POST, where it has a key.
    pub body: Option<Fingerprint>,
}

/// What a claim met.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// Nobody has begun the call: it is to be run here.
    Claimed(ClaimGuard),
    /// It was begun before; and how that is written.
    Existing(ClaimRecord, Bytes),
    /// Nobody has begun it, and nobody was to.
    Unclaimed,
    /// What is written of it cannot be read: another version's, perhaps.
    Unreadable,
}

/// The calls whose records are on their way out of the store: they are over, or never ran, whatever the store still says.
#[derive(Debug, Default)]
pub(in crate::event_log) struct ReleasedClaims(Mutex<HashSet<StreamId>>);

impl ReleasedClaims {
    fn lock(&self) -> MutexGuard<'_, HashSet<StreamId>> {
        sync::lock(&self.0)
    }

    pub(in crate::event_log) fn contains(&self, run: StreamId) -> bool {
        self.lock().contains(&run)
    }
}

/// A record as it was written.
#[derive(Clone)]
pub(in crate::event_log) struct Record {
    pub(in crate::event_log) key: Vec<u8>,
    pub(in crate::event_log) value: Vec<u8>,
}

/// The records of a call that was claimed here; dropping it removes them, unless the call was left.
pub struct ClaimGuard {
    pub(in crate::event_log) store: Arc<dyn Store>,
    released: Arc<ReleasedClaims>,
    pub(in crate::event_log) stream: StreamId,
    pub(in crate::event_log) record: Record,
    /// That by which another token finds it. In a box: most have none.
    pub(in crate::event_log) subject_record: Option<Box<Record>>,
    retention: Duration,
    kept_at: Mutex<Instant>,
    is_left: AtomicBool,
}

impl fmt::Debug for ClaimGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl ClaimGuard {
    pub(in crate::event_log) fn new(
        owner: Owner,
        released: Arc<ReleasedClaims>,
        store: Arc<dyn Store>,
        key: Vec<u8>,
        claim: ClaimRequest,
    ) -> Self {
        let run = ClaimRecord { owner, stream: StreamId::from_bytes(random::bytes()), body: claim.body };
        Self {
            store,
            released,
            stream: run.stream,
            record: Record { key, value: written(&run) },
            subject_record: None,
            retention: claim.retention,
            kept_at: Mutex::new(clock::now()),
            is_left: AtomicBool::new(false),
        }
    }

    /// However long ago that was last done: the record of a replica that dies outlives it for as long as an answer is kept.
    pub(in crate::event_log) fn keep(&self) -> Duration {
        self.retention + self.renewal() + LOOK
    }

    /// How often its time begins anew.
    fn renewal(&self) -> Duration {
        self.retention / 4
    }

    /// What the stream of the call is to be called.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// No other token finds the call: the place is another call's.
    pub fn drop_subject_claim(&mut self) {
        self.subject_record = None;
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        std::iter::once(&self.record).chain(self.subject_record.as_deref())
    }

    pub(in crate::event_log) fn extend_if_due(&self, now: Instant) {
        let mut kept_at = sync::lock(&self.kept_at);
        if now.saturating_duration_since(*kept_at) >= self.renewal() {
            *kept_at = now;
            // Nobody waits for the answer: what is not kept now is kept the next time.
            self.records().for_each(|of| drop(self.store.expire_if_equal(&of.key, &of.value, Some(self.keep()))));
        }
    }

    /// The records stay, for the time that is left to them: the call goes on to be known elsewhere, or nobody knows what became of it.
    pub(in crate::event_log) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    pub(in crate::event_log) fn rewrite(&self) {
        self.records().for_each(|of| drop(self.store.claim(&of.key, &of.value, self.keep())));
    }

    /// Removes the records. Asks again for as long as the store does not confirm it and could still have one: it would say of a call that
    /// is over, or never ran, that it may have run.
    fn release(&self) {
        let records: Vec<_> = self.records().cloned().collect();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return records.iter().for_each(|of| drop(self.store.expire_if_equal(&of.key, &of.value, None)));
        };
        let stream = self.stream;
        self.released.lock().insert(stream);
        let removing: Vec<_> = records.iter().map(|of| self.store.expire_if_equal(&of.key, &of.value, None)).collect();
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
    /// Removes it from a store that did not confirm it, and could have it until then.
    async fn remove_for_sure(&self, store: &dyn Store, until: Instant) {
        while clock::now() < until {
            clock::sleep(STORE_RETRY_PAUSE).await;
            if store.expire_if_equal(&self.key, &self.value, None).wait().await.is_ok() {
                break;
            }
        }
        // A claim whose connection broke may take effect after that.
        clock::sleep(LOOK).await;
        let _ = store.expire_if_equal(&self.key, &self.value, None).wait().await;
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        // A record that stays says that the call may have run, until its time is over.
        if !self.is_left.load(Ordering::Relaxed) {
            self.release();
        }
    }
}

pub(in crate::event_log) fn before(record: Bytes) -> ClaimOutcome {
    match serde_json::from_slice(&record) {
        Ok(run) => ClaimOutcome::Existing(run, record),
        Err(_) => ClaimOutcome::Unreadable,
    }
}

pub(in crate::event_log) fn read_subject_claim(record: &Bytes) -> Result<SubjectClaim, Error> {
    serde_json::from_slice(record)
        .map_err(|error| Error::Unavailable(format!("the record of a call cannot be read: {error}")))
}

pub(in crate::event_log) fn written(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record has no maps with keys that are no text")
}

pub(in crate::event_log) fn key(call: &Fingerprint) -> Vec<u8> {
    [b"run\0", call.as_bytes()].concat()
}

pub(in crate::event_log) fn subject_key(subject: &Fingerprint) -> Vec<u8> {
    [b"elder\0", subject.as_bytes()].concat()
}
