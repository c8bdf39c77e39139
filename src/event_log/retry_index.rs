//! Retry index: finds the call that a POST repeats.
//!
//! Owned here: the index from a call's fingerprint to its stream, generic over the latter, with
//! look-up and registration in one step. An entry lives exactly as long as its stream and does not
//! keep the stream alive. A stream that is a stub has its id here alone, and the caller of a
//! look-up expands it. Absent: the rule for the use of a match (`stream/retries.rs`), and the calls
//! of other replicas (`replicas/claims.rs`).

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::event_log::backing::claim::ClaimGuard;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::protocol::ids::StreamId;

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
    calls: DashMap<Fingerprint, Calls<T>>,
    /// Claims, by the streams of the calls. A stream may be a stub.
    claims: DashMap<StreamId, Arc<ClaimGuard>>,
    /// Locks of calls that are about to be registered, once the store has said whether another
    /// replica runs them.
    registering: Arc<Locks>,
}

/// Limit of the calls with one fingerprint. Beyond it the oldest is forgotten, so that its retry is
/// a new call.
const EQUAL_CALLS_MAX: usize = 16;

/// The calls with one fingerprint, the oldest first. There are several only where request IDs are
/// free.
#[derive(Debug)]
enum Calls<T> {
    One(Call<T>),
    /// Two or more. Boxed, because nearly all are one.
    #[expect(clippy::box_collection, reason = "a `Vec` would make each entry larger")]
    Equal(Box<Vec<Call<T>>>),
}

impl<T> Calls<T> {
    fn as_slice(&self) -> &[Call<T>] {
        match self {
            Self::One(call) => std::slice::from_ref(call),
            Self::Equal(calls) => calls,
        }
    }

    fn get_mut(&mut self, id: StreamId) -> Option<&mut Call<T>> {
        let calls = match self {
            Self::One(call) => std::slice::from_mut(call),
            Self::Equal(calls) => calls.as_mut_slice(),
        };
        calls.iter_mut().find(|call| call.id == id)
    }

    /// Adds a call beside the others.
    fn push(&mut self, call: Call<T>) {
        match self {
            Self::Equal(calls) => {
                if calls.len() == EQUAL_CALLS_MAX {
                    calls.remove(0);
                }
                calls.push(call);
            }
            Self::One(_) => {
                let Self::One(first) = std::mem::replace(self, Self::Equal(Box::default())) else { return };
                *self = Self::Equal(Box::new(vec![first, call]));
            }
        }
    }

    /// Removes a call. Returns true if no call is left.
    fn remove(&mut self, id: StreamId) -> bool {
        match self {
            Self::One(call) => call.id == id,
            Self::Equal(calls) => {
                calls.retain(|call| call.id != id);
                calls.is_empty()
            }
        }
    }
}

/// A call that a retry may match. Another object may stand for its stream later, under the same id.
#[derive(Debug)]
struct Call<T> {
    id: StreamId,
    stream: Weak<T>,
}

impl<T> Call<T> {
    fn find(&self, expand: &impl Fn(StreamId) -> Option<Arc<T>>) -> Option<Arc<T>> {
        self.stream.upgrade().or_else(|| expand(self.id))
    }
}

/// Registration locks, by fingerprint.
type Locks = DashMap<Fingerprint, Arc<Mutex<()>>>;

impl<T> Default for RetryIndex<T> {
    fn default() -> Self {
        Self { calls: DashMap::new(), claims: DashMap::new(), registering: Arc::default() }
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
    id: StreamId,
    /// True if the client has used its request ID for other calls, so that an equal request may be
    /// a call of its own.
    has_free_id: bool,
    /// Claim by which other replicas find the call, or `None` for a call without a key, or while
    /// the store was unreachable. Shared with the index, which finds it for a stub as well.
    claim: Option<Arc<ClaimGuard>>,
}

/// Upper bound of the bytes of an `Entry` in a map: the table has seven entries for sixteen places
/// just after it has grown, and a control byte for each place.
const fn entry_cost<Entry>() -> usize {
    (size_of::<Entry>() + 1) * 16 / 7
}

impl<T> Registration<T> {
    /// Adds the claim of the call, if it has one.
    pub fn with_claim(mut self, claim: Option<Arc<ClaimGuard>>) -> Self {
        if let Some(guard) = &claim {
            self.index.claims.insert(self.id, guard.clone());
        }
        self.claim = claim;
        self
    }

    /// Returns the claim, or `None` if the call has none.
    pub(super) fn claim(&self) -> Option<&Arc<ClaimGuard>> {
        self.claim.as_ref()
    }

    /// Returns the bytes of the registration and of its entries of the index, at most.
    pub(super) fn byte_len(&self) -> usize {
        let claim = self.claim().map_or(0, |claim| claim.byte_len() + entry_cost::<(StreamId, Arc<ClaimGuard>)>());
        size_of::<Self>() + entry_cost::<(Fingerprint, Calls<T>)>() + claim
    }

    /// Returns the fingerprint of the call.
    pub(super) fn call(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns true if an equal request may be a call of its own.
    pub(super) fn has_free_id(&self) -> bool {
        self.has_free_id
    }
}

impl<T> RetryIndex<T> {
    /// Returns the streams with this fingerprint, the oldest first. `expand` makes one of its stub.
    pub(super) fn find(&self, fingerprint: &Fingerprint, expand: impl Fn(StreamId) -> Option<Arc<T>>) -> Vec<Arc<T>> {
        self.calls.get(fingerprint).map_or_else(Vec::new, |calls| find_all(&calls, &expand))
    }

    /// Returns the first stream with this fingerprint that `matches` accepts; else registers the
    /// stream that `create` makes, under its id. With `keeps_others` it is registered beside the
    /// others, else in their place. All in one step, so that two concurrent retries find the same
    /// call.
    ///
    /// # Errors
    /// The error of `create`; nothing is registered then.
    pub(super) fn find_or_register<E>(
        self: &Arc<Self>,
        fingerprint: Fingerprint,
        keeps_others: bool,
        expand: impl Fn(StreamId) -> Option<Arc<T>>,
        mut matches: impl FnMut(&Arc<T>) -> bool,
        create: impl FnOnce() -> Result<(StreamId, Arc<T>), E>,
    ) -> Result<Match<T>, E> {
        // Outlives the entry: the last user of a stream removes its entry, which must not happen
        // under the entry's lock.
        let known;
        let entry = self.calls.entry(fingerprint);
        if let Entry::Occupied(found) = &entry {
            known = find_all(found.get(), &expand);
            if let Some(stream) = known.iter().find(|stream| matches(stream)) {
                return Ok(Match::Found(stream.clone()));
            }
        }
        let (id, stream) = create()?;
        let call = Call { id, stream: Arc::downgrade(&stream) };
        match entry {
            Entry::Occupied(mut calls) if keeps_others => calls.get_mut().push(call),
            // The guard of the map goes first.
            entry => drop(entry.insert(Calls::One(call))),
        }
        let index = self.clone();
        Ok(Match::New(stream, Registration { index, fingerprint, id, has_free_id: keeps_others, claim: None }))
    }

    /// Takes the first call with this fingerprint whose stream `matches` accepts out of the index:
    /// of two equal requests at once, one alone gets it.
    pub(super) fn take(&self, fingerprint: &Fingerprint, matches: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        // Outlives the entry, as in `find_or_register`.
        let known = self.find(fingerprint, |_| None);
        let mut taken = None;
        self.calls.remove_if_mut(fingerprint, |_, calls| {
            let found = calls.as_slice().iter().find_map(|call| {
                let stream = call.stream.upgrade().filter(|stream| matches(stream))?;
                Some((call.id, stream))
            });
            let Some((id, stream)) = found else { return false };
            taken = Some(stream);
            calls.remove(id)
        });
        drop(known);
        taken
    }

    /// Releases the memory of the stream `id`, which is a stub from now on. Not to be called under
    /// an entry of the stream table.
    pub(super) fn release_stream(&self, fingerprint: &Fingerprint, id: StreamId) {
        if let Some(mut calls) = self.calls.get_mut(fingerprint)
            && let Some(call) = calls.get_mut(id)
            && call.stream.strong_count() == 0
        {
            call.stream = Weak::new();
        }
    }

    /// Waits until no other task is about to register this call, and locks its registration.
    pub async fn registering(self: &Arc<Self>, fingerprint: Fingerprint) -> RegistrationLock {
        // The guard of the map is dropped before the wait for the lock.
        let lock = self.registering.entry(fingerprint).or_default().value().clone();
        let guard = lock.lock_owned().await;
        RegistrationLock { registering: self.registering.clone(), fingerprint, guard }
    }

    /// Returns the claims of all calls, stubs included.
    pub(super) fn claims(&self) -> Vec<Arc<ClaimGuard>> {
        self.claims.iter().map(|entry| entry.value().clone()).collect()
    }

    /// Returns the number of different calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

fn find_all<T>(calls: &Calls<T>, expand: &impl Fn(StreamId) -> Option<Arc<T>>) -> Vec<Arc<T>> {
    calls.as_slice().iter().filter_map(|call| call.find(expand)).collect()
}

impl<T> Drop for Registration<T> {
    fn drop(&mut self) {
        // The claim goes before the entry: a retry that misses the entry must miss the claim too.
        if let Some(claim) = &self.claim {
            self.index.claims.remove_if(&self.id, |_, known| Arc::ptr_eq(known, claim));
            // Others may still have it, to extend it.
            claim.release();
        }
        // A newer call may have taken the place.
        self.index.calls.remove_if_mut(&self.fingerprint, |_, calls| calls.remove(self.id));
    }
}
