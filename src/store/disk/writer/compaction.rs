//! Compaction: frees the space of obsolete data, on a thread of its own.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tracing::warn;

use crate::disk::database::{Database, Part};
use crate::disk::failure::Failure;

#[derive(Default)]
pub(super) struct Compactor {
    thread: Option<JoinHandle<Result<(), Failure>>>,
    /// Bytes written or made obsolete since the last check.
    noted: u64,
}

/// Maximum bytes of the tables. Beyond it they are compacted.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) events: u64,
    pub(super) rows: u64,
}

impl Compactor {
    pub(super) fn note(&mut self, bytes: u64) {
        self.noted += bytes;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.thread.is_some()
    }

    /// Returns true if a compaction has ended, and [`Self::wait`] takes its result.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Returns true if `bytes` were noted since the last compaction, and none runs.
    pub(super) fn is_due(&self, bytes: u64) -> bool {
        self.noted >= bytes && !self.is_busy()
    }

    /// Starts a compaction if a table of `database` is larger than its limit.
    pub(super) fn begin(&mut self, database: Option<&Arc<Database>>, limits: Limits) {
        self.noted = 0;
        let Some(database) = database.cloned() else { return };
        let tables = database.table_bytes();
        if tables.events <= limits.events && tables.rows <= limits.rows {
            return;
        }
        let thread = thread::Builder::new().name("disk-cleaner".into()).spawn(move || compact(&database, limits));
        match thread {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => warn!(%error, "the store could not begin to free space"),
        }
    }

    /// Waits until the thread has ended.
    pub(super) fn wait(&mut self) {
        if let Some(Ok(Err(failure))) = self.thread.take().map(JoinHandle::join) {
            warn!(error = failure.problem, "the store could not free space");
        }
    }
}

fn compact(database: &Arc<Database>, limits: Limits) -> Result<(), Failure> {
    if database.table_bytes().events > limits.events {
        database.drop_obsolete()?;
    }
    let tables = database.table_bytes();
    if tables.events > limits.events {
        database.compact(Part::Events)?;
    }
    if tables.rows > limits.rows {
        database.compact(Part::Rows)?;
    }
    Ok(())
}
