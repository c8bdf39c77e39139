//! Retry index: finds the call that a POST repeats.
//!
//! Owned here: the index from a call's fingerprint to its stream, generic over the latter, with look-up and registration
//! in one step. An entry lives exactly as long as its stream and does not keep the stream alive. Absent: the rule for the
//! use of a match (`stream/retries.rs`), and the calls of other replicas (`recovery/claims.rs`).

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::event_log::backing::claim::ClaimGuard;
use crate::event_log::backing::fingerprint::Fingerprint;

/// Result of a lookup with registration.
pub enum Match<T> {
    /// No match: the POST is a new call, now registered.
    New(Arc<T>, Registration<T>),
    /// A stream with the same fingerprint, which `matches` has accepted.
    Found(Arc<T>),
}

/// Index of calls that a retry may match.
#[derive(Debug)]
pub struct RetryIndex<T> {
    calls: DashMap<Fingerprint, Weak<T>>,
    /// Locks of calls that are about to be registered, once the store has said whether another replica runs them.
    registering: Arc<Locks>,
}

/// Registration locks, by fingerprint.
type Locks = DashMap<Fingerprint, Arc<Mutex<()>>>;

impl<T> Default for RetryIndex<T> {
    fn default() -> Self {
        Self { calls: DashMap::new(), registering: Arc::default() }
    }
}

/// Registration lock: no other task registers the same call meanwhile.
#[derive(Debug)]
pub struct RegistrationLock {
    registering: Arc<Locks>,
    fingerprint: Fingerprint,
    guard: OwnedMutexGuard<()>,
}

impl Drop for RegistrationLock {
    fn drop(&mut self) {
        // A waiting task already holds the lock's `Arc`, and removes the entry itself.
        let is_mine = |lock: &Arc<Mutex<()>>| {
            Arc::ptr_eq(lock, OwnedMutexGuard::mutex(&self.guard)) && Arc::strong_count(lock) == 2
        };
        self.registering.remove_if(&self.fingerprint, |_, lock| is_mine(lock));
    }
}

/// Entry of the index, removed when this is dropped.
#[derive(Debug)]
pub struct Registration<T> {
    index: Arc<RetryIndex<T>>,
    fingerprint: Fingerprint,
    stream: Weak<T>,
    claim: Option<ClaimGuard>,
}

impl<T> Registration<T> {
    /// Adds the claim that tells other replicas of the call.
    pub fn with_claim(mut self, claim: Option<ClaimGuard>) -> Self {
        self.claim = claim;
        self
    }

    pub(super) fn claim(&self) -> Option<&ClaimGuard> {
        self.claim.as_ref()
    }
}

impl<T> RetryIndex<T> {
    /// Returns the stream with this fingerprint, or `None`.
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<Arc<T>> {
        self.calls.get(fingerprint).and_then(|entry| entry.value().upgrade())
    }

    /// Returns the stream with this fingerprint if `matches` accepts it; else registers the stream that `create`
    /// makes. Both in one step, so that two concurrent retries find the same call.
    ///
    /// # Errors
    /// The error of `create`; nothing is registered then.
    pub fn find_or_register<E>(
        self: &Arc<Self>,
        fingerprint: Fingerprint,
        matches: impl FnOnce(&Arc<T>) -> bool,
        create: impl FnOnce() -> Result<Arc<T>, E>,
    ) -> Result<Match<T>, E> {
        // Outlives the entry: the last user of a stream removes its entry, which must not happen under the entry's
        // lock.
        let mut stale = None;
        let entry = self.calls.entry(fingerprint);
        if let Entry::Occupied(found) = &entry
            && let Some(stream) = found.get().upgrade()
        {
            if matches(&stream) {
                return Ok(Match::Found(stream));
            }
            stale = Some(stream);
        }
        let stream = create()?;
        let weak = Arc::downgrade(&stream);
        // The guard of the map goes first.
        drop(entry.insert(weak.clone()));
        drop(stale);
        Ok(Match::New(stream, Registration { index: self.clone(), fingerprint, stream: weak, claim: None }))
    }

    /// Waits until no other task is about to register this call, and locks its registration.
    pub async fn registering(self: &Arc<Self>, fingerprint: Fingerprint) -> RegistrationLock {
        // The guard of the map is dropped before the wait for the lock.
        let lock = self.registering.entry(fingerprint).or_default().value().clone();
        let guard = lock.lock_owned().await;
        RegistrationLock { registering: self.registering.clone(), fingerprint, guard }
    }

    /// Returns the streams of all calls.
    pub(super) fn streams(&self) -> Vec<Arc<T>> {
        self.calls.iter().filter_map(|entry| entry.value().upgrade()).collect()
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

impl<T> Drop for Registration<T> {
    fn drop(&mut self) {
        // The claim goes before the entry: a retry that misses the entry must miss the claim too.
        drop(self.claim.take());
        // A newer call may have taken the place.
        self.index.calls.remove_if(&self.fingerprint, |_, stream| stream.ptr_eq(&self.stream));
    }
}
