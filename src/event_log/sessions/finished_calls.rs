//! Finished calls of one session. Forgotten calls leave the list.

use std::sync::{Arc, Weak};

use crate::event_log::stream::finished_call::FinishedCall;
use crate::protocol::ids::StreamId;

/// Number of a session's streams below which no search for ended ones takes place.
pub(super) const STREAMS_MIN: usize = 4;

/// Finished calls of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct FinishedCalls {
    calls: Vec<Weak<FinishedCall>>,
    /// Number of calls that causes the next pruning of dead ones.
    prune_at: usize,
}

impl FinishedCalls {
    pub(super) fn add(&mut self, call: &Arc<FinishedCall>) {
        if self.calls.len() >= self.prune_at {
            self.prune();
        }
        self.calls.push(Arc::downgrade(call));
    }

    pub(super) fn has(&self, call: &Arc<FinishedCall>) -> bool {
        self.calls.iter().any(|known| known.as_ptr() == Arc::as_ptr(call))
    }

    /// Drops the references to dead calls; the next pruning follows at twice the number of live
    /// ones.
    fn prune(&mut self) {
        self.calls.retain(|call| call.strong_count() > 0);
        self.prune_at = (self.calls.len() * 2).max(STREAMS_MIN);
    }

    /// Returns whether there is any call that is live. Drops references to dead ones.
    pub(super) fn has_any(&mut self) -> bool {
        self.prune();
        self.calls.shrink_to(STREAMS_MIN);
        !self.calls.is_empty()
    }

    /// Returns the streams of the live calls.
    pub(super) fn streams(&self) -> Vec<StreamId> {
        self.calls.iter().filter_map(Weak::upgrade).map(|call| call.stream()).collect()
    }
}
