//! A stream that is read in slices, each by a call of its own, and by tokens.

use std::sync::Arc;

use crate::clock;
use crate::event_log::backing::schema::Slicing;
use crate::event_log::stream::Stream;
use crate::event_log::stream::partial_results::Slice;
use crate::protocol::dialect::resume_tokens::Names;
use crate::protocol::ids::{AttachId, ResumeToken, Secret, Seq};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::Phase;
use crate::random;

impl Stream {
    /// How it is read in slices, if it is.
    pub fn slicing(&self) -> Option<&Slicing> {
        self.slices.as_ref().map(|slices| &slices.slicing)
    }

    /// A call that its client calls so reads it from now on, for as long as a slice is; `None` where it is not sliced.
    pub fn begin_slice(&self, names: Names) -> Option<Arc<Slice>> {
        let slices = self.slices.as_ref()?;
        let handle = self.mint(std::slice::from_ref(&names.id));
        let slice = slices.begin(names, handle, clock::now());
        // The store is to know of it.
        self.pump.notify_one();
        Some(slice)
    }

    /// The same for the first call, also where it comes again.
    pub fn begin_first_slice(&self) -> Option<Arc<Slice>> {
        self.begin_slice(self.slicing()?.first.clone())
    }

    /// The call whose event IDs have this handle; `None` where it is not sliced, or nothing is known of such a call any more.
    pub fn find_slice(&self, handle: &str) -> Option<Arc<Slice>> {
        self.slices.as_ref()?.find(handle)
    }

    /// What the upstream calls the unsettled request that the client calls `id`: the same, or the first id where a later slice has
    /// this one. `None` where it has no such request.
    pub fn upstream_id(&self, id: &RequestId) -> Option<RequestId> {
        let due =
            |wanted: &RequestId| self.look(|machine| !machine.is_sealed() && machine.owed_responses().is_due(wanted));
        if due(id) {
            return Some(id.clone());
        }
        let slices = self.slices.as_ref().filter(|slices| slices.has(id))?;
        Some(slices.slicing.first.id.clone()).filter(due)
    }

    /// A client came back with the token of an interim result, and with `cursor` where it named one: it has what either says, and
    /// that goes. Returns where it goes on; `None` where it has everything, or there is no stream to go on with.
    pub fn note_continued(&self, cursor: Option<Seq>) -> Option<Seq> {
        let inner = &mut *self.lock();
        let machine = &mut inner.machine;
        let cursor = cursor.filter(|cursor| *cursor <= machine.tail()).unwrap_or_default();
        let has = machine.reader().interim_cursor().max(cursor);
        let has_everything =
            machine.is_answered() && machine.owed_responses().last_response().is_none_or(|last| last <= has);
        let has_arrived = machine.is_delivered() && !inner.delivered.is_doubted(clock::now());
        if has_arrived || has_everything || matches!(machine.phase(), Phase::Waiting | Phase::Passed) {
            return None;
        }
        machine.handle_confirmed(Some(has), clock::now());
        inner.release_upto(has);
        inner.fit_paused(self.bounds);
        self.pump.notify_one();
        Some(inner.machine.default_cursor())
    }

    /// The connection `attach` ends with an interim result behind the event at `upto`.
    pub fn note_interim(&self, attach: AttachId, upto: Seq) {
        self.lock().machine.handle_interim(attach, upto);
    }

    /// That one has arrived; or its connection ended, so that nobody knows.
    pub fn note_interim_settled(&self, attach: AttachId, has_arrived: bool) {
        self.lock().machine.handle_interim_settled(attach, has_arrived);
    }

    /// Its resume token, made when it is first wanted. Opens the stream for its principal, so never to be logged. Not to be called
    /// under the stream's lock.
    pub fn resume_token(&self) -> String {
        let secret = self.secret.get_or_init(|| Secret::from_bytes(random::bytes()));
        ResumeToken::write(self.handle(), secret)
    }

    /// Its token's secret, where it was ever given one.
    pub(in crate::event_log) fn secret(&self) -> Option<&Secret> {
        self.secret.get()
    }
}
