//! Which POST is the retry of which call.
//!
//! Owned here: the index from a call's fingerprint to its stream, and whether a match may be used. An entry lives exactly as long as
//! its stream and holds no stream alive. Absent: the calls of other replicas (`recovery/remote_retries.rs`).

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::event_log::identity::ownership::Binding;
use crate::event_log::identity::principal::Principal;
use crate::event_log::recovery::remote_retries::Hold;
use crate::event_log::stream::Stream;
use crate::protocol::cluster::Base64;

/// How long a POST that looks like a retry waits for the first call's client to be gone.
const DETACH_WAIT: Duration = Duration::from_millis(200);

/// What makes two POSTs the same call: principal, session and body, or principal and `Idempotency-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 32]);

/// Its beginning is enough for a map that hashes it with a secret key: to find many bodies that share it is beyond anybody.
impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl Fingerprint {
    /// Of a call in a session: the body holds the request id with its type.
    pub fn of_call(binding: &Binding, query: &str, body: &[u8]) -> Self {
        Self::hash(b"call", &binding.principal, &[binding.session_text(), query], body)
    }

    /// Of an `Idempotency-Key`.
    pub fn of_key(binding: &Binding, key: &[u8]) -> Self {
        Self::hash(b"key", &binding.principal, &[binding.session_text()], key)
    }

    /// Of an `Idempotency-Key` of whom the caller's token says it speaks for; `None` where it says nothing.
    pub fn of_subject_key(binding: &Binding, key: &[u8]) -> Option<Self> {
        let subject = Principal::Known(binding.subject?.digest());
        Some(Self::hash(b"subject", &subject, &[binding.session_text()], key))
    }

    /// Of a body alone: whether a key came back with the same one.
    pub fn of_body(query: &str, body: &[u8]) -> Self {
        Self::hash(b"body", &Principal::Anonymous, &[query], body)
    }

    /// As replicas say it to each other.
    pub fn to_wire(&self) -> Base64 {
        Base64(self.0.to_vec())
    }

    /// Reads that; `None` for what is none.
    pub fn from_wire(wire: &Base64) -> Option<Self> {
        wire.0.as_slice().try_into().ok().map(Self)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn hash(kind: &[u8], principal: &Principal, places: &[&str], last: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(kind);
        match principal {
            Principal::Anonymous => hash.update([0]),
            Principal::Known(known) => {
                hash.update([1]);
                hash.update(known);
            }
            Principal::AnonymousAt(query) => {
                hash.update([2]);
                hash.update(query);
            }
        }
        for place in places {
            hash.update((place.len() as u64).to_be_bytes());
            hash.update(place);
        }
        hash.update(last);
        Self(hash.finalize().into())
    }
}

/// What the index knows of a POST.
pub enum Match {
    /// Nothing: it is a new call, and now registered.
    New(Arc<Stream>, Registration),
    /// A stream of the same fingerprint.
    Same(Arc<Stream>),
}

/// The index.
#[derive(Debug, Default)]
pub struct Retries {
    calls: DashMap<Fingerprint, Weak<Stream>>,
    /// Those that are about to be registered, once the store has said whether another replica runs them.
    registering: DashMap<Fingerprint, Arc<Mutex<()>>>,
}

/// Keeps others from registering the same call meanwhile.
#[derive(Debug)]
pub struct Registering {
    index: Arc<Retries>,
    fingerprint: Fingerprint,
    guard: OwnedMutexGuard<()>,
}

impl Drop for Registering {
    fn drop(&mut self) {
        // Whoever waits has the lock at hand, and takes it out after.
        let is_mine = |lock: &Arc<Mutex<()>>| {
            Arc::ptr_eq(lock, OwnedMutexGuard::mutex(&self.guard)) && Arc::strong_count(lock) == 2
        };
        self.index.registering.remove_if(&self.fingerprint, |_, lock| is_mine(lock));
    }
}

/// An entry of the index; dropping it removes it.
#[derive(Debug)]
pub struct Registration {
    index: Arc<Retries>,
    fingerprint: Fingerprint,
    stream: Weak<Stream>,
    hold: Option<Hold>,
}

impl Registration {
    /// With what tells other replicas of it.
    pub fn under(mut self, hold: Option<Hold>) -> Self {
        self.hold = hold;
        self
    }

    pub(super) fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }
}

impl Retries {
    /// The stream of this fingerprint.
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<Arc<Stream>> {
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
        matches: impl FnOnce(&Arc<Stream>) -> bool,
        create: impl FnOnce() -> Result<Arc<Stream>, E>,
    ) -> Result<Match, E> {
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
    pub async fn registering(self: &Arc<Self>, fingerprint: Fingerprint) -> Registering {
        // The map's guard ends before the lock is waited for.
        let lock = self.registering.entry(fingerprint).or_default().value().clone();
        let guard = lock.lock_owned().await;
        Registering { index: self.clone(), fingerprint, guard }
    }

    /// The streams of all calls.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
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

impl Drop for Registration {
    fn drop(&mut self) {
        // Whoever does not find it here does not find it there.
        drop(self.hold.take());
        // A newer call may have taken the place.
        self.index.calls.remove_if(&self.fingerprint, |_, stream| stream.ptr_eq(&self.stream));
    }
}

impl Stream {
    /// Returns whether a POST of the same fingerprint is a retry. An idempotency key makes it one for as long as the stream lives; the
    /// same request id and body do so until the answer was delivered, whether or not the first call's client is still attached: a
    /// connection that is half open counts as attached, and a request id is used once in a session. A call that ended before its bytes
    /// went upstream is none to come back to.
    pub fn may_return(&self, keyed: bool) -> bool {
        let has_arrived = self.has_arrived();
        self.look(|machine| {
            let never_ran = machine.is_sealed() && !self.is_sent();
            !machine.is_cancelled() && !never_ran && (keyed || !has_arrived)
        })
    }

    /// Waits a moment for the first call's client to leave. A retry is often faster than the end of the connection it replaces, and a
    /// takeover before the response head makes the proxy commit.
    pub async fn wait_for_detach(&self) {
        if !self.look(|machine| machine.is_delivered()) {
            // A connection that is half open stays: it is taken over.
            let _ = tokio::time::timeout(DETACH_WAIT, self.detached()).await;
        }
    }
}
