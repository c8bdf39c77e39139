//! Fingerprints: they identify a POST as the retry of a call.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::identity::Binding;
use crate::identity::Principal;
use crate::protocol::cluster::Base64;
use crate::protocol::dialect::resume_tokens::CallDigest;

/// Identity of a call: principal, session and body, or principal and `Idempotency-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 32]);

/// Hashes the first eight bytes alone. The map hashes them with a secret key, and to find many
/// bodies with the same beginning is infeasible.
impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl Fingerprint {
    /// Returns the fingerprint of a call in a session; the body holds the request id with its type.
    pub fn of_call(binding: &Binding, query: &str, body: &[u8]) -> Self {
        Self::hash(b"call", &binding.principal, &[binding.session_text().as_bytes(), query.as_bytes()], body)
    }

    /// Returns the fingerprint of an `Idempotency-Key`.
    pub fn of_key(binding: &Binding, key: &[u8]) -> Self {
        Self::hash(b"key", &binding.principal, &[binding.session_text().as_bytes()], key)
    }

    /// Returns the fingerprint of an `Idempotency-Key` under the subject that the caller's token
    /// claims, or `None` if it claims none.
    pub fn of_subject_key(binding: &Binding, key: &[u8]) -> Option<Self> {
        let subject = Principal::Known(binding.subject?.digest());
        Some(Self::hash(b"subject", &subject, &[binding.session_text().as_bytes()], key))
    }

    /// Returns the fingerprint of a body alone, to compare the bodies of two POSTs with one key.
    pub fn of_body(query: &str, body: &[u8]) -> Self {
        Self::hash(b"body", &Principal::Anonymous, &[query.as_bytes()], body)
    }

    /// Returns the fingerprint of a request, given by its parts: its head with the address of its
    /// client, and its body.
    pub fn of_request(principal: &Principal, parts: &[&[u8]], body: &[u8]) -> Self {
        Self::hash(b"request", principal, parts, body)
    }

    /// Returns the fingerprint of a call that may come again under another ID.
    pub fn of_try(principal: &Principal, call: &CallDigest) -> Self {
        Self::hash(b"try", principal, &[], call.as_bytes())
    }

    /// Returns the beginning of the fingerprint, where an error of a comparison is harmless.
    pub fn short(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Encodes the fingerprint for messages between replicas.
    pub fn to_wire(&self) -> Base64 {
        Base64(self.0.to_vec())
    }

    /// Decodes a fingerprint from a message, or returns `None` if it is malformed.
    pub fn from_wire(wire: &Base64) -> Option<Self> {
        wire.0.as_slice().try_into().ok().map(Self)
    }

    pub(in crate::event_log) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn hash(kind: &[u8], principal: &Principal, places: &[&[u8]], last: &[u8]) -> Self {
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
