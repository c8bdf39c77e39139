//! Readers of a sliced stream: each slice is read by a call of its own, found by a resume token.

use std::sync::Arc;

use crate::clock;
use crate::event_log::stream::Stream;
use crate::event_log::stream::partial_results::{Slice, Slices};
use crate::protocol::dialect::resume_tokens::Names;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Phase, Resume};

impl Stream {
    /// Returns the slices, or `None` if the stream is not sliced.
    pub fn slices(&self) -> Option<&Slices> {
        self.slices.as_deref()
    }

    /// Begins a slice for the call with these names, or returns `None` if the stream is not sliced.
    pub fn begin_slice(&self, names: Names) -> Option<Arc<Slice>> {
        let slices = self.slices.as_ref()?;
        let ids = std::iter::once(&names.id);
        let handle = self.with_machine(|machine| self.handles().mint(machine.policy(), ids));
        let slice = slices.begin(names, handle, clock::now());
        // The store must learn of the slice.
        self.shared.pump.notify_one();
        Some(slice)
    }

    /// Begins a slice for the first call, also if that is repeated.
    pub fn begin_first_slice(&self) -> Option<Arc<Slice>> {
        self.begin_slice(self.slices()?.slicing.first.clone())
    }

    /// Returns the upstream's id of the unsettled request that the client calls `id`: the same, or
    /// the first id if a later slice has this one. `None` if there is no such request.
    pub fn upstream_id(&self, id: &RequestId) -> Option<RequestId> {
        let due = |wanted: &RequestId| {
            self.with_machine(|machine| !machine.lifecycle().is_sealed() && machine.owed_responses().is_due(wanted))
        };
        if due(id) {
            return Some(id.clone());
        }
        let slices = self.slices.as_ref().filter(|slices| slices.has(id))?;
        Some(slices.slicing.first.id.clone()).filter(due)
    }

    /// A client resumes with the token of an interim result, and with `cursor` if it named one; all
    /// that it has is trimmed. Returns the position of its reading, or `None` if it has everything
    /// or the stream cannot be read.
    pub fn resume_slice(&self, cursor: Option<Seq>) -> Option<Seq> {
        let inner = &mut *self.shared.lock();
        let machine = &mut inner.machine;
        let cursor = cursor.filter(|cursor| *cursor <= machine.numbering().tail()).unwrap_or_default();
        let has = machine.reader().interim_cursor().max(cursor);
        let has_everything = machine.lifecycle().is_answered()
            && machine.owed_responses().last_response().is_none_or(|last| last <= has);
        let has_arrived = machine.reader().is_delivered() && !inner.delivered.is_doubted(clock::now());
        if has_arrived || has_everything || matches!(machine.lifecycle().phase(), Phase::Waiting | Phase::Passed) {
            return None;
        }
        machine.handle_resume(Resume::ByPost, Some(has), clock::now());
        inner.release_upto(has);
        inner.enforce_limits_if_paused(self.shared.bounds);
        self.shared.pump.notify_one();
        Some(inner.machine.default_cursor())
    }
}
