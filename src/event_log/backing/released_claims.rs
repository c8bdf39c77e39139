//! Released claims: calls that have ended or never ran, while the store still has their records.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::protocol::ids::StreamId;
use crate::sync;

/// Calls whose records are being removed from the store.
#[derive(Debug, Default)]
pub struct ReleasedClaims(Mutex<HashSet<StreamId>>);

impl ReleasedClaims {
    pub(in crate::event_log) fn contains(&self, stream: StreamId) -> bool {
        sync::lock(&self.0).contains(&stream)
    }

    pub(super) fn insert(&self, stream: StreamId) {
        sync::lock(&self.0).insert(stream);
    }

    pub(super) fn remove(&self, stream: StreamId) {
        sync::lock(&self.0).remove(&stream);
    }
}
