//! Index of the revived sessions, by their names at the server.
//!
//! Invariant: its lock is a leaf. No method calls a function of its caller or returns a guard. So
//! no lock of this index is held while another table or a record is used.

use dashmap::DashMap;

use crate::protocol::headers::SessionId;

/// Clients' names of revived sessions, by their names at the server.
#[derive(Debug, Default)]
pub(super) struct Renamed(DashMap<SessionId, SessionId>);

impl Renamed {
    /// Gives a session the name `name` at the server.
    pub(super) fn insert(&self, name: SessionId, session: SessionId) {
        self.0.insert(name, session);
    }

    /// Gives a session the name `name` at the server, unless another has it.
    pub(super) fn insert_if_free(&self, name: SessionId, session: SessionId) {
        self.0.entry(name).or_insert(session);
    }

    /// Returns the client's name of the session that the server knows as `name`.
    pub(super) fn session(&self, name: &SessionId) -> Option<SessionId> {
        self.0.get(name).map(|entry| entry.value().clone())
    }

    /// Returns every name with its session.
    pub(super) fn all(&self) -> Vec<(SessionId, SessionId)> {
        self.0.iter().map(|entry| (entry.key().clone(), entry.value().clone())).collect()
    }

    /// Takes a name from `session`, if it has it still.
    pub(super) fn release(&self, name: &SessionId, session: &SessionId) {
        self.0.remove_if(name, |_, holder| holder == session);
    }

    /// Takes a name from the session that has it, unless that is `keeper`. Returns the session that
    /// had it.
    pub(super) fn take_from_other(&self, name: &SessionId, keeper: Option<&SessionId>) -> Option<SessionId> {
        self.0.remove_if(name, |_, holder| Some(holder) != keeper).map(|(_, holder)| holder)
    }
}
