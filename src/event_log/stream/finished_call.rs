//! Finished calls that a search by session must find although each is a stub.
//!
//! Owned here: the entry that such a call shares with the records of its sessions, and the rule for
//! the calls that have one. A resume token is revoked with its session, and a client response may
//! be the second to a request of the server. Invariant: the entry is in the record before the stub
//! is in the table, and lives as long as both the stream and the stub keep what the search is for.
//! Absent: the records (`sessions/finished.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::event_log::stream::Stream;
use crate::protocol::ids::StreamId;
use crate::protocol::stream::End;

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

    /// Returns the stream of the call.
    pub(in crate::event_log) fn stream(&self) -> StreamId {
        self.stream
    }

    /// The record of the stream's own session has the entry.
    pub(in crate::event_log) fn set_listed(&self) {
        self.is_listed.store(true, Ordering::Relaxed);
    }
}

impl Stream {
    /// Returns the entry of the call for the records of sessions.
    pub(in crate::event_log) fn finished_call(&self) -> &Arc<FinishedCall> {
        self.finished_call
            .get_or_init(|| Arc::new(FinishedCall { stream: self.id(), is_listed: AtomicBool::new(false) }))
    }

    /// Returns the entry if the record of the stream's session is to have it before the stream,
    /// which has this `end`, becomes a stub; `None` if it has it already, or if no search by
    /// session needs the stub.
    pub(in crate::event_log) fn unlisted_call(&self, end: &End) -> Option<&Arc<FinishedCall>> {
        let is_searched =
            self.binding().session.is_some() && (end.has_server_requests || self.handles().secret().is_some());
        if !is_searched {
            return None;
        }
        let call = self.finished_call();
        if call.is_listed.load(Ordering::Relaxed) { None } else { Some(call) }
    }
}
