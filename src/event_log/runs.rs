//! Which replica runs a call that a client may send again to another one.
//!
//! Owned here: a record in the shared store for each call that a retry may match, claimed before the call goes upstream and gone with the
//! entry of the index of retries that it stands for; and what this replica tells others of the calls that it runs. Invariants: of many
//! that are sent one call at once, one claims it; what is changed or removed is the record that was seen, never one that has taken its
//! place; that of a call which its replica leaves behind stays. Absent: what a client is answered
//! (ingress), and any of it where no store is shared.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::head::Head;
use super::retries::Fingerprint;
use super::{EventLog, Stream};
use crate::clock;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::{Owner, StreamId};
use crate::protocol::replica::{Base64, Handed, Known};
use crate::random;
use crate::store::{Error, Shared};

/// Another replica that asks waits so long for the head of a response, and then asks again: it may have gone, and so may its client.
const HEAD_WAIT: Duration = Duration::from_millis(500);
/// How often records are looked at that are to be kept.
const LOOK: Duration = Duration::from_secs(15);
/// An answer that is larger is not sent through the store. One that is kept for a retry is smaller, but for lists of tools.
const ANSWER_MAX: usize = 1024 * 1024;

/// A call, and where it was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The replica.
    pub owner: Owner,
    /// What its stream is called, if it comes to one.
    pub stream: StreamId,
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

/// The record of a call that was claimed here; dropping it removes that, unless the call was left.
pub struct Hold {
    shared: Arc<dyn Shared>,
    key: Vec<u8>,
    value: Vec<u8>,
    stream: StreamId,
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
    fn new(shared: Arc<dyn Shared>, key: Vec<u8>, retention: Duration) -> Self {
        let run = Run { owner: shared.owner(), stream: StreamId::from_bytes(random::bytes()) };
        let value = serde_json::to_vec(&run).expect("a record has no maps with keys that are no text");
        Self {
            shared,
            key,
            value,
            stream: run.stream,
            retention,
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

    pub(super) fn keep_if_due(&self, now: Instant) {
        let mut kept_at = self.kept_at.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(*kept_at) >= self.renewal() {
            *kept_at = now;
            // Nobody waits for the answer: what is not kept now is kept the next time.
            drop(self.shared.hold(&self.key, &self.value, Some(self.keep())));
        }
    }

    /// The record stays, for the time that is left to it: the call goes on to be known elsewhere, or nobody knows what became of it.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    pub(super) fn write_again(&self) {
        drop(self.shared.claim(&self.key, &self.value, self.keep()));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Nor for this one: a record that stays says that the call may have run, until its time is over.
        if !self.is_left.load(Ordering::Relaxed) {
            drop(self.shared.hold(&self.key, &self.value, None));
        }
    }
}

impl EventLog {
    /// Claims a call for this replica, whose answer is kept for `retention`, unless another has; with `only_looks`, looks whether any has.
    /// To be called while the call is about to be registered ([`super::Retries::registering`]), where a store is shared.
    ///
    /// # Errors
    /// When the store cannot be asked. Whether the call is claimed then is open.
    pub async fn claim(&self, call: &Fingerprint, retention: Duration, only_looks: bool) -> Result<Claimed, Error> {
        let Some(shared) = self.shared() else { return Ok(Claimed::Nowhere) };
        let key = key(call);
        if only_looks {
            return Ok(shared.get(&key).wait().await?.map_or(Claimed::Nowhere, before));
        }
        // There from before it is asked for: a client that leaves now takes the record with it.
        let hold = Hold::new(shared, key, retention);
        match hold.shared.claim(&hold.key, &hold.value, hold.keep()).wait().await? {
            None => Ok(Claimed::Here(hold)),
            // It was asked for twice on the way.
            Some(there) if there == hold.value => Ok(Claimed::Here(hold)),
            Some(there) => Ok(before(there)),
        }
    }

    /// Nobody comes back to the call of that record any more: the place is free.
    ///
    /// # Errors
    /// When the store cannot be told.
    pub async fn disclaim(&self, call: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        match self.shared() {
            Some(shared) => shared.hold(&key(call), record, None).wait().await,
            None => Ok(()),
        }
    }

    /// What this replica knows of a call that was sent again at another one, `body` where it has a key. Waits for a word of its answer,
    /// and not for long.
    pub async fn known(&self, call: &Base64, body: Option<&Base64>) -> Known {
        let Some(call) = Fingerprint::from_wire(call) else { return Known::Nothing };
        // One that was claimed a moment ago may not be registered yet.
        drop(self.retries().registering(call).await);
        let Some(stream) = self.retries().find(&call) else { return Known::Nothing };
        stream.wait_for_detach().await;
        if !stream.may_return(body.is_some()) {
            return Known::Another;
        }
        if stream.body() != body.and_then(Fingerprint::from_wire) {
            return Known::OtherBody;
        }
        stream.touch();
        match tokio::time::timeout(HEAD_WAIT, stream.head()).await {
            Ok(head) => known_by(&stream, head),
            Err(_) => Known::Waiting,
        }
    }

    /// This process ends, and its streams are other replicas' to serve.
    pub fn leave_runs(&self) {
        self.retries().streams().iter().for_each(|stream| stream.leave_holds());
    }

    /// Keeps the records of the calls that are known here, until dropped.
    pub async fn keep_runs(&self) {
        if self.shared().is_none() {
            return std::future::pending().await;
        }
        loop {
            clock::sleep_until(clock::now() + LOOK).await;
            let now = clock::now();
            self.retries().streams().iter().for_each(|stream| stream.keep_holds(now));
        }
    }
}

fn known_by(stream: &Stream, head: Head) -> Known {
    match head {
        Head::Waiting => Known::Waiting,
        Head::Stream(..) | Head::Committed | Head::TakenOver => Known::Stream(stream.id()),
        Head::Failed(failure) => Known::Failed(failure),
        Head::Plain(plain) => match plain.kept_body().filter(|body| body.len() <= ANSWER_MAX) {
            Some(body) => Known::Answer(Handed::answer(plain.status, &plain.headers, body.to_vec())),
            // As for a retry here that comes second: whoever came first has it.
            None => Known::Failed(Failure::after_send(ErrorCode::StreamLost)),
        },
    }
}

fn before(record: Bytes) -> Claimed {
    match serde_json::from_slice(&record) {
        Ok(run) => Claimed::Before(run, record),
        Err(_) => Claimed::Unreadable,
    }
}

fn key(call: &Fingerprint) -> Vec<u8> {
    [b"run\0", call.as_bytes()].concat()
}
