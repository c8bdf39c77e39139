//! State of the database for readers: open, about to be opened again, or closed.
//!
//! Absent: writes. A database that cannot write any more stays open for readers until it is
//! replaced.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::database::Database;
use mcp_resume_base::sync;

/// Longest wait of a reader while the database is opened again.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Access {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) enum State {
    Open(Arc<Database>),
    /// Closed for a moment, until it is opened again.
    Opening,
    /// Impossible to open, or closed for good.
    #[default]
    Closed,
}

impl Access {
    /// Sets the state, and returns the database that was open before.
    pub(super) fn set(&self, state: State) -> Option<Arc<Database>> {
        let before = std::mem::replace(&mut *self.lock(), state);
        self.changed.notify_all();
        match before {
            State::Open(database) => Some(database),
            State::Opening | State::Closed => None,
        }
    }

    /// Returns the database. Blocks while it is being opened.
    pub(super) fn database(&self) -> Option<Arc<Database>> {
        let is_opening = |state: &mut State| matches!(state, State::Opening);
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, is_opening);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Open(database) => Some(database.clone()),
            State::Opening | State::Closed => None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(*self.lock(), State::Open(_))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}
