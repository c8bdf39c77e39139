//! Fingerprints: by which a POST is known as the retry of a call.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::event_log::identity::ownership::Binding;
use crate::event_log::identity::principal::Principal;
use crate::protocol::cluster::Base64;

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

    pub(in crate::event_log) fn as_bytes(&self) -> &[u8] {
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
