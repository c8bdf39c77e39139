//! The keys of event IDs: one signs, and all are accepted.
//!
//! Deliberately absent: the origin of keys, and their rotation.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

/// Length of a truncated MAC.
pub(super) const MAC_BYTES: usize = 16;

/// The label that separates these MACs from other uses of the same key.
const MAC_LABEL: &[u8] = b"mcp-resume event id\0";

/// The keys of event IDs, for HMAC-SHA256 truncated to 128 bits.
#[derive(Clone)]
pub struct Keyring {
    /// The keys, the signing key first. Each has hashed the key and [`MAC_LABEL`] already. This
    /// saves the work for every MAC.
    keys: Vec<Hmac<Sha256>>,
}

impl Keyring {
    /// Creates a keyring that signs with `signing`, and accepts it and all of `accepted`, so that
    /// keys can be rotated.
    pub fn new(signing: [u8; 32], accepted: Vec<[u8; 32]>) -> Self {
        let keys = std::iter::once(signing).chain(accepted).map(|key| {
            // HMAC pads a short key with zeros to the block size of the hash.
            let mut block = [0; 64];
            block[..key.len()].copy_from_slice(&key);
            let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
            mac.update(MAC_LABEL);
            mac
        });
        Self { keys: keys.collect() }
    }

    /// Returns the MAC of `bytes` under the signing key.
    pub(super) fn sign(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        // `new` always has a signing key.
        truncated_mac(&self.keys[0], bytes)
    }

    /// Returns true if `mac` is the MAC of `bytes` under any key. Every key is always tried, so the
    /// time reveals nothing.
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
