//! Compaction: frees the space of obsolete data, on a thread of its own.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tracing::warn;

use super::Writer;
use crate::disk::database::{Database, Part};
use crate::disk::failure::Failure;

#[derive(Default)]
pub(super) struct Compactor {
    thread: Option<JoinHandle<Result<(), Failure>>>,
    /// Bytes written or made obsolete since the last check.
    noted: u64,
}

/// Maximum bytes of the tables, beyond which they are compacted.
#[derive(Clone, Copy)]
struct Limits {
    events: u64,
    rows: u64,
}

impl Compactor {
    pub(super) fn note(&mut self, bytes: u64) {
        self.noted += bytes;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.thread.is_some()
    }

    /// Waits until the thread has ended.
    pub(super) fn wait(&mut self) {
        if let Some(Ok(Err(failure))) = self.thread.take().map(JoinHandle::join) {
            warn!(error = failure.problem, "the store could not free space");
        }
    }
}

impl Writer {
    /// Starts a compaction if there is enough to free, and finishes one that has ended.
    pub(super) fn compact_if_due(&mut self) {
        if self.compactor.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish_compaction();
        }
        if self.compactor.noted >= self.sizes.slack / 4 && !self.compactor.is_busy() {
            self.begin_compaction();
        }
    }

    fn begin_compaction(&mut self) {
        self.compactor.noted = 0;
        let limits =
            Limits { events: self.space.events * 2 + self.sizes.slack, rows: self.space.rows * 2 + self.sizes.slack };
        let Some(database) = self.database.clone() else { return };
        let tables = database.table_bytes();
        if tables.events <= limits.events && tables.rows <= limits.rows {
            return;
        }
        let thread = thread::Builder::new().name("disk-cleaner".into()).spawn(move || compact(&database, limits));
        match thread {
            Ok(thread) => self.compactor.thread = Some(thread),
            Err(error) => warn!(%error, "the store could not begin to free space"),
        }
    }

    fn finish_compaction(&mut self) {
        self.compactor.wait();
        let Some(database) = &self.database else { return };
        if let Err(failure) = database.unlink() {
            self.reopen(failure, None);
        }
    }

    /// Removes all expired data, and waits until its space is free.
    #[cfg(test)]
    pub(super) fn compact_all(&mut self, now: u64) {
        self.commit();
        self.sweep(now);
        if self.unsynced.is_some() {
            self.sync();
        }
        if self.compactor.is_busy() {
            self.finish_compaction();
        }
        if let Some(database) = &self.database {
            database.settle();
        }
        self.begin_compaction();
        if self.compactor.is_busy() {
            self.finish_compaction();
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
