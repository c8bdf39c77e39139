//! Finished calls in the record of a session: the stubs that a search by session must find.
//!
//! Absent: the calls that have an entry (`stream/finished_call.rs`), and the streams of the entries
//! (`retention/finished.rs`).

use std::sync::Arc;

use crate::event_log::sessions::{Session, Sessions};
use crate::event_log::stream::finished_call::FinishedCall;
use crate::identity::Binding;
use crate::identity::Principal;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::StreamId;

impl Session {
    /// Adds a finished call.
    pub(in crate::event_log) fn add_finished(&self, call: &Arc<FinishedCall>) {
        self.lock().finished.add(call);
    }

    /// Adds the finished call of a stream that joins the session, unless the session has it. Each
    /// return of its client may make another stream of its stub.
    pub(super) fn join_finished(&self, call: &Arc<FinishedCall>) {
        let finished = &mut self.lock().finished;
        if !finished.has(call) {
            finished.add(call);
        }
    }

    /// Returns the finished calls that a search by session must find.
    pub(in crate::event_log) fn finished(&self) -> Vec<StreamId> {
        self.lock().finished.streams()
    }

    /// Returns whether there is any finished call that a search by session must find.
    pub fn has_finished(&self) -> bool {
        self.lock().finished.has_any()
    }
}

impl Sessions {
    /// Adds a finished call to the record of its session. Returns false without a record.
    pub(in crate::event_log) fn list_finished(&self, binding: &Binding, call: &Arc<FinishedCall>) -> bool {
        let Some(id) = &binding.session else { return false };
        self.get(id, &binding.principal).inspect(|session| session.add_finished(call)).is_some()
    }

    /// Returns the finished calls of a session under these principals that a search by session must
    /// find.
    pub(in crate::event_log) fn finished_of(&self, id: &SessionId, principals: &[Principal]) -> Vec<StreamId> {
        let records = principals.iter().filter_map(|principal| self.get(id, principal));
        records.flat_map(|session| session.finished()).collect()
    }
}
