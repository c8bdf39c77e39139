//! Identity of this replica.

use crate::protocol::ids::{Keyring, Owner, StoreEpoch};

/// Identity of this replica and of its store's contents, part of every event ID.
pub struct Identity {
    /// The replica.
    pub owner: Owner,
    /// Epoch of the store's contents at the start.
    pub epoch: StoreEpoch,
    /// Keys that sign and verify event IDs.
    pub keys: Keyring,
}
