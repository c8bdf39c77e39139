//! Which POST is the retry of which call.
//!
//! Owned here: the index from a call's fingerprint to its stream. An entry lives exactly as long as its stream and holds no
//! stream alive. Absent: the decision whether a match may be used, which depends on the stream's state.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Binding, Principal, Stream};

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

    /// Of a body alone: whether a key came back with the same one.
    pub fn of_body(query: &str, body: &[u8]) -> Self {
        Self::hash(b"body", &Principal::Anonymous, &[query], body)
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
}

/// An entry of the index; dropping it removes it.
#[derive(Debug)]
pub struct Registration {
    index: Arc<Retries>,
    fingerprint: Fingerprint,
    stream: Weak<Stream>,
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
        Ok(Match::New(stream, Registration { index: self.clone(), fingerprint, stream: weak }))
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
        // A newer call may have taken the place.
        self.index.calls.remove_if(&self.fingerprint, |_, stream| stream.ptr_eq(&self.stream));
    }
}
