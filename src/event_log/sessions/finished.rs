//! Finished calls in the record of a session: the stubs that a search by session must find.
//!
//! Absent: the calls that have an entry (`stream/finished_call.rs`), and the streams of the entries
//! (`log/finished.rs`).

use std::sync::{Arc, Weak};

use crate::event_log::identity::binding::Binding;
use crate::event_log::identity::principal::Principal;
use crate::event_log::sessions::{STREAMS_MIN, Session, Sessions, State};
use crate::event_log::stream::finished_call::FinishedCall;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::StreamId;

/// Finished calls of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct FinishedCalls {
    calls: Vec<Weak<FinishedCall>>,
    /// Number of calls that causes the next pruning of dead ones.
    prune_at: usize,
}

impl FinishedCalls {
    fn add(&mut self, call: &Arc<FinishedCall>) {
        if self.calls.len() >= self.prune_at {
            self.prune();
        }
        self.calls.push(Arc::downgrade(call));
    }

    fn has(&self, call: &Arc<FinishedCall>) -> bool {
        self.calls.iter().any(|known| known.as_ptr() == Arc::as_ptr(call))
    }

    /// Drops the references to dead calls; the next pruning follows at twice the number of live
    /// ones.
    fn prune(&mut self) {
        self.calls.retain(|call| call.strong_count() > 0);
        self.prune_at = (self.calls.len() * 2).max(STREAMS_MIN);
    }
}

impl State {
    /// Returns whether there is any finished call that is live. Drops references to dead ones.
    pub(super) fn has_finished(&mut self) -> bool {
        self.finished.prune();
        self.finished.calls.shrink_to(STREAMS_MIN);
        !self.finished.calls.is_empty()
    }
}

impl Session {
    /// Adds a finished call.
    pub(in crate::event_log) fn add_finished(&self, call: &Arc<FinishedCall>) {
        self.lock().finished.add(call);
    }

    /// Adds the finished call of a stream that joins the session, unless the session has it: each
    /// return of its client may make another stream of its stub.
    pub(super) fn join_finished(&self, call: &Arc<FinishedCall>) {
        let finished = &mut self.lock().finished;
        if !finished.has(call) {
            finished.add(call);
        }
    }

    /// Returns the finished calls that a search by session must find.
    pub(in crate::event_log) fn finished(&self) -> Vec<StreamId> {
        self.lock().finished.calls.iter().filter_map(Weak::upgrade).map(|call| call.stream()).collect()
    }

    /// Returns whether there is any finished call that a search by session must find.
    pub fn has_finished(&self) -> bool {
        self.lock().has_finished()
    }
}

impl Sessions {
    /// Adds a finished call to the record of its session. Returns false without a record.
    pub(in crate::event_log) fn list_finished(&self, binding: &Binding, call: &Arc<FinishedCall>) -> bool {
        let Some(id) = &binding.session else { return false };
        let session = self.sessions.get(&(id.clone(), binding.principal)).map(|entry| entry.value().clone());
        session.inspect(|session| session.add_finished(call)).is_some()
    }

    /// Returns the finished calls of a session under these principals that a search by session must
    /// find.
    pub(in crate::event_log) fn finished_of(&self, id: &SessionId, principals: &[Principal]) -> Vec<StreamId> {
        let of = |principal: &Principal| {
            let session = self.sessions.get(&(id.clone(), *principal)).map(|entry| entry.value().clone());
            session.map_or_else(Vec::new, |session| session.finished())
        };
        principals.iter().flat_map(of).collect()
    }
}
