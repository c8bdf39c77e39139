//! Finished calls that a search by session must find although each is a stub.
//!
//! Owned here: the entry that such a call shares with the records of its sessions. A resume token
//! is revoked with its session, and a client response may be the second to a request of the server.
//! Invariant: the entry is in the record before the stub is in the table, and lives as long as both
//! the stream and the stub keep what the search is for. Absent: the calls that have one
//! (`stub.rs`), and the records (`sessions/finished.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::protocol::ids::StreamId;

/// A finished call in the records of its sessions. They keep no call alive.
#[derive(Debug)]
pub(in crate::event_log) struct FinishedCall {
    stream: StreamId,
    /// True once the record of the stream's own session has it.
    is_listed: AtomicBool,
}

impl FinishedCall {
    /// Bytes of the entry as a shared object, and of one reference to it.
    pub(in crate::event_log) const COST: usize = size_of::<Self>() + 3 * size_of::<usize>();

    pub(super) fn new(stream: StreamId) -> Self {
        Self { stream, is_listed: AtomicBool::new(false) }
    }

    /// Returns the stream of the call.
    pub(in crate::event_log) fn stream(&self) -> StreamId {
        self.stream
    }

    /// The record of the stream's own session has the entry.
    pub(in crate::event_log) fn set_listed(&self) {
        self.is_listed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the record of the stream's own session has the entry.
    pub(super) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Relaxed)
    }
}
