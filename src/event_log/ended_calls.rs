//! Calls in sessions that an earlier process left running, and that this one has ended.
//!
//! A client whose HTTP connection broke with that process may send the same request again. It gets
//! the error of the ended call then, and the tool does not run. A client that never does may get
//! that error on the GET stream of its session. Owned here: the streams of these calls, by their
//! fingerprints and by their sessions. Absent: calls with a key, which have records of their own
//! (`replicas/claims.rs`), and stores that replicas share.

use dashmap::DashMap;

use crate::event_log::backing::fingerprint::Fingerprint;
use crate::identity::{Binding, Principal};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::StreamId;

/// Limit of the calls. A process that left more open runs their repetitions.
const CALLS_MAX: usize = 4096;

/// Calls that have ended with their process.
#[derive(Debug, Default)]
pub struct EndedCalls {
    streams: DashMap<Fingerprint, StreamId>,
    /// Calls of each session, until its client opens the GET stream.
    by_session: DashMap<(SessionId, Principal), Vec<StreamId>>,
}

impl EndedCalls {
    /// Adds a call in a session. Does nothing at the limit.
    pub(in crate::event_log) fn add(&self, call: Fingerprint, caller: &Binding, stream: StreamId) {
        if self.streams.len() >= CALLS_MAX {
            return;
        }
        self.streams.insert(call, stream);
        if let Some(session) = &caller.session {
            self.by_session.entry((session.clone(), caller.principal)).or_default().push(stream);
        }
    }

    /// Removes the calls in the caller's session from those that [`Self::take_of`] returns, and
    /// returns them. They are still found by their fingerprints.
    pub fn take_of(&self, caller: &Binding) -> Vec<StreamId> {
        let Some(session) = caller.session.as_ref().filter(|_| !self.by_session.is_empty()) else { return Vec::new() };
        let taken = self.by_session.remove(&(session.clone(), caller.principal));
        taken.map(|(_, streams)| streams).unwrap_or_default()
    }

    /// Returns true if there is no such call.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the stream of a call, or `None` if no such call has ended with its process.
    pub fn find(&self, call: &Fingerprint) -> Option<StreamId> {
        self.streams.get(call).map(|entry| *entry.value())
    }

    /// Removes a call whose client has the error.
    pub fn forget(&self, call: &Fingerprint) {
        self.streams.remove(call);
    }
}
