//! Which replica runs a call that a client may send again, here, to another one or after a restart.
//!
//! Owned here: a record in the store for each call that a retry may match elsewhere, claimed before the call goes upstream and gone with the
//! entry of the index of retries that it stands for; and what this replica tells others of the calls that it runs. Where replicas share
//! the store every such call has a record, else only one with a key. A call with a key whose caller shows a JWT has a second one, by which
//! the same caller finds it with another token. Invariants: of many that are sent one call at once, one claims it;
//! what is changed or removed is the record that was seen, never one that has taken its place; that of a call which its replica leaves
//! behind stays; that of a call which never ran goes, however often the store has to be asked. Absent: what a client is answered
//! (ingress), and the answers that outlive the process (`kept_responses.rs`).

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::event_log::EventLog;
use crate::event_log::recovery::kept_responses;
use crate::event_log::retry_index::Fingerprint;
use crate::event_log::writer::recorder::LOOK_AGAIN;
use crate::protocol::cluster::{Base64, Known};
use crate::protocol::ids::{Owner, StreamId};
use crate::random;
use crate::store::{Error, Store};
use crate::sync;

/// Another replica that asks waits so long for the head of a response, and then asks again: it may have gone, and so may its client.
const HEAD_WAIT: Duration = Duration::from_millis(500);
/// How often records are looked at that are to be kept.
const LOOK: Duration = Duration::from_secs(15);

/// A call, and where it was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
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
pub struct Elder {
    /// The call.
    pub run: Run,
    /// Its fingerprint with the token that began it.
    pub call: Fingerprint,
    /// The server had accepted that token before.
    pub is_accepted: bool,
}

/// What is written down of a call that is claimed.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// For how long its answer is kept.
    pub retention: Duration,
    /// The body of its POST, where it has a key.
    pub body: Option<Fingerprint>,
}

/// What a claim met.
#[derive(Debug)]
pub enum Claimed {
    /// Nobody has begun the call: it is to be run here.
    Here(Hold),
    /// It was begun before; and how that is written.
    Before(Run, Bytes),
    /// Nobody has begun it, and nobody was to.
    Nowhere,
    /// What is written of it cannot be read: another version's, perhaps.
    Unreadable,
}

/// The calls whose records are on their way out of the store: they are over, or never ran, whatever the store still says.
#[derive(Debug, Default)]
pub(in crate::event_log) struct Released(Mutex<HashSet<StreamId>>);

impl Released {
    fn lock(&self) -> MutexGuard<'_, HashSet<StreamId>> {
        sync::lock(&self.0)
    }

    fn contains(&self, run: StreamId) -> bool {
        self.lock().contains(&run)
    }
}

/// A record as it was written.
#[derive(Clone)]
struct Record {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The records of a call that was claimed here; dropping it removes them, unless the call was left.
pub struct Hold {
    store: Arc<dyn Store>,
    released: Arc<Released>,
    stream: StreamId,
    record: Record,
    /// That by which another token finds it. In a box: most have none.
    elder: Option<Box<Record>>,
    retention: Duration,
    kept_at: Mutex<Instant>,
    is_left: AtomicBool,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Hold {
    fn new(log: &EventLog, store: Arc<dyn Store>, key: Vec<u8>, claim: Claim) -> Self {
        let run = Run { owner: log.owner(), stream: StreamId::from_bytes(random::bytes()), body: claim.body };
        Self {
            store,
            released: log.released.clone(),
            stream: run.stream,
            record: Record { key, value: written(&run) },
            elder: None,
            retention: claim.retention,
            kept_at: Mutex::new(clock::now()),
            is_left: AtomicBool::new(false),
        }
    }

    /// However long ago that was last done: the record of a replica that dies outlives it for as long as an answer is kept.
    fn keep(&self) -> Duration {
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
    pub fn give_up_elder(&mut self) {
        self.elder = None;
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        std::iter::once(&self.record).chain(self.elder.as_deref())
    }

    pub(in crate::event_log) fn keep_if_due(&self, now: Instant) {
        let mut kept_at = sync::lock(&self.kept_at);
        if now.saturating_duration_since(*kept_at) >= self.renewal() {
            *kept_at = now;
            // Nobody waits for the answer: what is not kept now is kept the next time.
            self.records().for_each(|of| drop(self.store.hold(&of.key, &of.value, Some(self.keep()))));
        }
    }

    /// The records stay, for the time that is left to them: the call goes on to be known elsewhere, or nobody knows what became of it.
    pub(in crate::event_log) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    pub(in crate::event_log) fn write_again(&self) {
        self.records().for_each(|of| drop(self.store.claim(&of.key, &of.value, self.keep())));
    }

    /// Removes the records. Asks again for as long as the store does not confirm it and could still have one: it would say of a call that
    /// is over, or never ran, that it may have run.
    fn release(&self) {
        let records: Vec<_> = self.records().cloned().collect();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return records.iter().for_each(|of| drop(self.store.hold(&of.key, &of.value, None)));
        };
        let stream = self.stream;
        self.released.lock().insert(stream);
        let removing: Vec<_> = records.iter().map(|of| self.store.hold(&of.key, &of.value, None)).collect();
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
            clock::sleep(LOOK_AGAIN).await;
            if store.hold(&self.key, &self.value, None).wait().await.is_ok() {
                break;
            }
        }
        // A claim whose connection broke may take effect after that.
        clock::sleep(LOOK).await;
        let _ = store.hold(&self.key, &self.value, None).wait().await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A record that stays says that the call may have run, until its time is over.
        if !self.is_left.load(Ordering::Relaxed) {
            self.release();
        }
    }
}

impl EventLog {
    /// Claims a call for this replica, unless it was claimed before; with `only_looks`, looks whether it was. To be called while the call
    /// is about to be registered ([`crate::event_log::Retries::registering`]).
    ///
    /// # Errors
    /// When the store cannot be asked. Nothing is left of the claim then.
    pub async fn claim(&self, call: &Fingerprint, claim: Claim, only_looks: bool) -> Result<Claimed, Error> {
        let Some(backing) = &self.backing else { return Ok(Claimed::Nowhere) };
        let (store, key) = (backing.store.clone(), key(call));
        if only_looks {
            return Ok(store.get(&key).wait().await?.map_or(Claimed::Nowhere, before));
        }
        // There from before it is asked for: a client that leaves now takes the record with it.
        let hold = Hold::new(self, store, key, claim);
        let Record { key, value } = &hold.record;
        let claimed = hold.store.claim(key, value, hold.keep()).wait().await;
        match claimed.inspect_err(|error| backing.note_failure(error))? {
            None => Ok(Claimed::Here(hold)),
            // It was asked for twice on the way.
            Some(there) if there == *value => Ok(Claimed::Here(hold)),
            Some(there) => Ok(before(there)),
        }
    }

    /// Writes down that `hold` is of the `call` with this body of a caller with this subject, whose token the server had accepted or not,
    /// unless there is one of another token: then that, and how it is written.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn claim_for_subject(
        &self,
        hold: &mut Hold,
        subject: &Fingerprint,
        call: Fingerprint,
        body: Option<Fingerprint>,
        is_accepted: bool,
    ) -> Result<Option<(Elder, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let run = Run { owner: self.owner(), stream: hold.stream, body };
        let record = Record { key: elder_key(subject), value: written(&Elder { run, call, is_accepted }) };
        // There from before it is asked for, as the other one.
        hold.elder = Some(Box::new(record.clone()));
        loop {
            let claimed = hold.store.claim(&record.key, &record.value, hold.keep()).wait().await;
            let there = claimed.inspect_err(|error| backing.note_failure(error))?;
            let Some(there) = there.filter(|there| *there != record.value) else { return Ok(None) };
            let elder = read_elder(&there)?;
            if elder.call != call {
                return Ok(Some((elder, there)));
            }
            // An earlier one of the same token, on its way out: this one could not be claimed before.
            hold.store.hold(&record.key, &there, None).wait().await?;
        }
    }

    /// Returns the call with a key that was begun for a caller with this subject, and how that is written.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn elder(&self, subject: &Fingerprint) -> Result<Option<(Elder, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let record = backing.store.get(&elder_key(subject)).wait().await?;
        record.map(|record| Ok((read_elder(&record)?, record))).transpose()
    }

    /// Frees the place of a call that nobody comes back to any more, with any token.
    ///
    /// # Errors
    /// When the store cannot be told.
    pub async fn disclaim_elder(&self, subject: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.hold(&elder_key(subject), record, None).wait().await,
            None => Ok(()),
        }
    }

    /// Frees the place of a call whose record nobody comes back to any more.
    ///
    /// # Errors
    /// When the store cannot be told.
    pub async fn disclaim(&self, call: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.hold(&key(call), record, None).wait().await,
            None => Ok(()),
        }
    }

    /// Keeps the record of `run`, a call of another replica, for `retention` from now on, if it is still there.
    ///
    /// # Errors
    /// When the store cannot be told.
    pub async fn keep_claim(&self, call: &Fingerprint, run: &Run, retention: Duration) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.hold(&key(call), &written(run), Some(retention)).wait().await,
            None => Ok(()),
        }
    }

    /// Returns whether a call that this process claimed is over or never ran, so that its record says nothing any more.
    pub fn has_released(&self, run: StreamId) -> bool {
        self.released.contains(run)
    }

    /// Returns what this replica knows of a call that was sent again at another one, where `run` is what its record names, and `body` is
    /// there if it has a key. Waits for a word of its answer, and not for long.
    pub async fn known(&self, call: &Base64, run: Option<StreamId>, body: Option<&Base64>) -> Known {
        let Some(call) = Fingerprint::from_wire(call) else { return Known::Nothing };
        // One that was claimed a moment ago may not be registered yet.
        drop(self.retries().registering(call).await);
        let Some(stream) = self.retries().find(&call) else {
            let is_released = run.is_some_and(|run| self.has_released(run));
            return if is_released { Known::Another } else { Known::Nothing };
        };
        stream.wait_for_detach().await;
        if !stream.may_return(body.is_some()) {
            return Known::Another;
        }
        if stream.body() != body.and_then(Fingerprint::from_wire) {
            return Known::OtherBody;
        }
        stream.touch();
        match tokio::time::timeout(HEAD_WAIT, stream.head()).await {
            Ok(head) => kept_responses::known_by(stream.id(), &head),
            Err(_) => Known::Waiting,
        }
    }

    /// Leaves the records of all calls: this process ends, and others, or the next one, serve what is in the store.
    pub fn leave_runs(&self) {
        self.retries().streams().iter().for_each(|stream| stream.leave_holds());
    }

    /// Keeps the records of the calls that are known here, until dropped.
    pub async fn keep_runs(&self) {
        if !self.has_store() {
            return std::future::pending().await;
        }
        loop {
            clock::sleep(LOOK).await;
            let now = clock::now();
            self.retries().streams().iter().for_each(|stream| stream.keep_holds(now));
        }
    }
}

fn before(record: Bytes) -> Claimed {
    match serde_json::from_slice(&record) {
        Ok(run) => Claimed::Before(run, record),
        Err(_) => Claimed::Unreadable,
    }
}

fn read_elder(record: &Bytes) -> Result<Elder, Error> {
    serde_json::from_slice(record)
        .map_err(|error| Error::Unavailable(format!("the record of a call cannot be read: {error}")))
}

fn written(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record has no maps with keys that are no text")
}

fn key(call: &Fingerprint) -> Vec<u8> {
    [b"run\0", call.as_bytes()].concat()
}

fn elder_key(subject: &Fingerprint) -> Vec<u8> {
    [b"elder\0", subject.as_bytes()].concat()
}
