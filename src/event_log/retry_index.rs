//! Which POST is the retry of which call.
//!
//! Owned here: the index from a call's fingerprint to its stream, and whether a match may be used. An entry lives exactly as long as
//! its stream and holds no stream alive. Absent: the calls of other replicas (`recovery/remote_retries.rs`).

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::event_log::backing::claim::ClaimGuard;
use crate::event_log::backing::fingerprint::Fingerprint;

/// What the index knows of a POST.
pub enum Match<T> {
    /// Nothing: it is a new call, and now registered.
    New(Arc<T>, Registration<T>),
    /// A stream of the same fingerprint.
    Same(Arc<T>),
}

/// The index.
#[derive(Debug)]
pub struct RetryIndex<T> {
    calls: DashMap<Fingerprint, Weak<T>>,
    /// Those that are about to be registered, once the store has said whether another replica runs them.
    registering: Arc<Locks>,
}

/// The calls that are about to be registered.
type Locks = DashMap<Fingerprint, Arc<Mutex<()>>>;

impl<T> Default for RetryIndex<T> {
    fn default() -> Self {
        Self { calls: DashMap::new(), registering: Arc::default() }
    }
}

/// Keeps others from registering the same call meanwhile.
#[derive(Debug)]
pub struct RegistrationLock {
    registering: Arc<Locks>,
    fingerprint: Fingerprint,
    guard: OwnedMutexGuard<()>,
}

impl Drop for RegistrationLock {
    fn drop(&mut self) {
        // Whoever waits has the lock at hand, and takes it out after.
        let is_mine = |lock: &Arc<Mutex<()>>| {
            Arc::ptr_eq(lock, OwnedMutexGuard::mutex(&self.guard)) && Arc::strong_count(lock) == 2
        };
        self.registering.remove_if(&self.fingerprint, |_, lock| is_mine(lock));
    }
}

/// An entry of the index; dropping it removes it.
#[derive(Debug)]
pub struct Registration<T> {
    index: Arc<RetryIndex<T>>,
    fingerprint: Fingerprint,
    stream: Weak<T>,
    hold: Option<ClaimGuard>,
}

impl<T> Registration<T> {
    /// With what tells other replicas of it.
    pub fn under(mut self, hold: Option<ClaimGuard>) -> Self {
        self.hold = hold;
        self
    }

    pub(super) fn hold(&self) -> Option<&ClaimGuard> {
        self.hold.as_ref()
    }
}

impl<T> RetryIndex<T> {
    /// The stream of this fingerprint.
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<Arc<T>> {
        self.calls.get(fingerprint).and_then(|entry| entry.value().upgrade())
    }

    /// The stream of this fingerprint, if `matches` accepts it; else registers the stream that `create` makes, in one step, so
    /// that two retries at once find the same call.
    ///
    /// # Errors
    /// That of `create`; nothing is registered then.
    pub fn find_or_register<E>(
        self: &Arc<Self>,
        fingerprint: Fingerprint,
        matches: impl FnOnce(&Arc<T>) -> bool,
        create: impl FnOnce() -> Result<Arc<T>, E>,
    ) -> Result<Match<T>, E> {
        // Outlives the entry: the last user of a stream removes its entry, which must not happen under the entry's lock.
        let mut stale = None;
        let entry = self.calls.entry(fingerprint);
        if let Entry::Occupied(found) = &entry
            && let Some(stream) = found.get().upgrade()
        {
            if matches(&stream) {
                return Ok(Match::Same(stream));
            }
            stale = Some(stream);
        }
        let stream = create()?;
        let weak = Arc::downgrade(&stream);
        drop(entry.insert(weak.clone()));
        drop(stale);
        Ok(Match::New(stream, Registration { index: self.clone(), fingerprint, stream: weak, hold: None }))
    }

    /// Waits until nobody else is about to register this call.
    pub async fn registering(self: &Arc<Self>, fingerprint: Fingerprint) -> RegistrationLock {
        // The map's guard ends before the lock is waited for.
        let lock = self.registering.entry(fingerprint).or_default().value().clone();
        let guard = lock.lock_owned().await;
        RegistrationLock { registering: self.registering.clone(), fingerprint, guard }
    }

    /// The streams of all calls.
    pub(super) fn streams(&self) -> Vec<Arc<T>> {
        self.calls.iter().filter_map(|entry| entry.value().upgrade()).collect()
    }

    /// How many calls are known.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

impl<T> Drop for Registration<T> {
    fn drop(&mut self) {
        // Whoever does not find it here does not find it there.
        drop(self.hold.take());
        // A newer call may have taken the place.
        self.index.calls.remove_if(&self.fingerprint, |_, stream| stream.ptr_eq(&self.stream));
    }
}
