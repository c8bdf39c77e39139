//! The database as readers find it: open, about to be opened again, or closed.
//!
//! Absent: who writes. A database that cannot write any more stays open for readers until it is replaced.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::database::Database;
use crate::sync;

/// Readers wait so long at most while the database is opened again.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Access {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) enum State {
    Open(Arc<Database>),
    /// For a moment.
    Opening,
    /// Not to be opened, or closed for good.
    #[default]
    Closed,
}

impl Access {
    /// Returns the database that was open before.
    pub(super) fn set(&self, state: State) -> Option<Arc<Database>> {
        let before = std::mem::replace(&mut *self.lock(), state);
        self.changed.notify_all();
        match before {
            State::Open(database) => Some(database),
            State::Opening | State::Closed => None,
        }
    }

    /// Returns the database, and waits for one that is being opened. Blocks meanwhile.
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
