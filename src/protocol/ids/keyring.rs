//! The keys of event IDs: who signs them, whose signature is accepted.
//!
//! Deliberately absent: where keys come from and when they change.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

/// The length of a MAC after truncation.
pub(super) const MAC_BYTES: usize = 16;

/// The label that keeps these MACs apart from any other use of the same key.
const MAC_LABEL: &[u8] = b"mcp-resume event id\0";

/// The keys that sign event IDs: HMAC-SHA256, cut to 128 bits.
#[derive(Clone)]
pub struct Keyring {
    /// Signing key first; each after its key and [`MAC_LABEL`], which are then not hashed again for every MAC.
    keys: Vec<Hmac<Sha256>>,
}

impl Keyring {
    /// Signs with `signing` and accepts it and all of `accepted`, which is how keys are rotated.
    pub fn new(signing: [u8; 32], accepted: Vec<[u8; 32]>) -> Self {
        let keys = std::iter::once(signing).chain(accepted).map(|key| {
            // HMAC pads a short key with zeros to the hash's block.
            let mut block = [0; 64];
            block[..key.len()].copy_from_slice(&key);
            let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
            mac.update(MAC_LABEL);
            mac
        });
        Self { keys: keys.collect() }
    }

    /// The MAC of `bytes` under the signing key.
    pub(super) fn sign(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        // `new` always has a signing key.
        truncated_mac(&self.keys[0], bytes)
    }

    /// Returns true if `mac` is that of `bytes` under any key. Every key is tried in every case, so the time taken
    /// reveals nothing.
    pub(super) fn accepts(&self, bytes: &[u8], mac: &[u8]) -> bool {
        let any = self.keys.iter().fold(Choice::from(0), |any, key| any | truncated_mac(key, bytes).ct_eq(mac));
        any.into()
    }
}

fn truncated_mac(key: &Hmac<Sha256>, bytes: &[u8]) -> [u8; MAC_BYTES] {
    let full = key.clone().chain_update(bytes).finalize().into_bytes();
    std::array::from_fn(|at| full[at])
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} keys)", self.keys.len())
    }
}
