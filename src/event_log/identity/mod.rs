//! Identities: of this replica, of callers, and of the owners of streams.

pub(in crate::event_log) mod ownership;
pub(in crate::event_log) mod principal;

use crate::protocol::ids::{Keyring, Owner, StoreEpoch};

/// What names this replica and its store's contents in every event ID.
pub struct Identity {
    /// The replica.
    pub owner: Owner,
    /// The contents of its store when it began.
    pub epoch: StoreEpoch,
    /// Signs event IDs, and accepts them.
    pub keys: Keyring,
}
