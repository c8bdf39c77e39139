//! Readers of a sliced stream: each slice is read by a call of its own, found by a resume token.

use std::sync::Arc;

use crate::clock;
use crate::event_log::backing::schema::Slicing;
use crate::event_log::stream::Stream;
use crate::event_log::stream::partial_results::Slice;
use crate::protocol::dialect::resume_tokens::Names;
use crate::protocol::ids::{AttachId, ResumeToken, Secret, Seq};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Phase, Resume};
use crate::random;

impl Stream {
    /// Returns the description of the slices, or `None` if the stream is not sliced.
    pub fn slicing(&self) -> Option<&Slicing> {
        self.slices.as_ref().map(|slices| &slices.slicing)
    }

    /// Begins a slice for the call with these names, or returns `None` if the stream is not sliced.
    pub fn begin_slice(&self, names: Names) -> Option<Arc<Slice>> {
        let slices = self.slices.as_ref()?;
        let handle = self.mint(std::slice::from_ref(&names.id));
        let slice = slices.begin(names, handle, clock::now());
        // The store must learn of the slice.
        self.pump.notify_one();
        Some(slice)
    }

    /// Begins a slice for the first call, also if that is repeated.
    pub fn begin_first_slice(&self) -> Option<Arc<Slice>> {
        self.begin_slice(self.slicing()?.first.clone())
    }

    /// Returns the slice whose event IDs have this handle, or `None` if the stream is not sliced or
    /// no longer knows the call.
    pub fn find_slice(&self, handle: &str) -> Option<Arc<Slice>> {
        self.slices.as_ref()?.find(handle)
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

    /// Notes a client that resumed with the token of an interim result, and with `cursor` if it
    /// named one; all that it has is trimmed. Returns the position from which it reads on, or
    /// `None` if it has everything or there is no stream to read.
    pub fn note_continued(&self, cursor: Option<Seq>) -> Option<Seq> {
        let inner = &mut *self.lock();
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
        inner.enforce_limits_if_paused(self.bounds);
        self.pump.notify_one();
        Some(inner.machine.default_cursor())
    }

    /// Notes that the connection `attach` ends with an interim result after the event at `upto`.
    pub fn note_interim(&self, attach: AttachId, upto: Seq) {
        self.lock().machine.handle_interim(attach, upto);
    }

    /// Notes that the interim result has arrived, or that its connection ended and the delivery is
    /// unknown.
    pub fn note_interim_settled(&self, attach: AttachId, has_arrived: bool) {
        self.lock().machine.reader_mut().ack_interim(attach, has_arrived);
    }

    /// Returns the resume token, made at its first use. The token opens the stream for its
    /// principal, so it must not be logged. Not to be called under the stream's lock.
    pub fn resume_token(&self) -> String {
        let secret = self.secret.get_or_init(|| Secret::from_bytes(random::bytes()));
        ResumeToken::write(self.handle(), secret)
    }

    /// Returns the secret of the resume token, or `None` if none was made.
    pub(in crate::event_log) fn secret(&self) -> Option<&Secret> {
        self.secret.get()
    }
}
