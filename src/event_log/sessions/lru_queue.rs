//! LRU queue of the sessions that were opened here.
//!
//! The queue has each record once, by its last use as far as is known. A record that was used since
//! moves to the back when it is reached, so that a use costs nothing here, and a new record costs a
//! bounded search. Absent: the records.

use std::collections::VecDeque;
use std::time::Instant;

use crate::event_log::sessions::Key;

/// Records skipped in one search because they are in use or were used since. The next record goes
/// in any case.
const SKIPPED_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct LruQueue {
    entries: VecDeque<Entry>,
    /// Number of records: entries without dead records.
    records: usize,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    /// Serial number: another one than of earlier and later records with the same key.
    serial: u64,
    used: Instant,
}

/// State of a record in the queue.
pub(super) enum Found {
    /// Forgotten, and counted then.
    Gone,
    /// Time of the last use, and whether the record is in use.
    Used(Instant, bool),
}

impl LruQueue {
    pub(super) fn len(&self) -> usize {
        self.records
    }

    /// Returns the number of entries, dead ones included.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Adds a record.
    pub(super) fn push(&mut self, key: Key, serial: u64, used: Instant) {
        self.records += 1;
        self.entries.push_back(Entry { key, serial, used });
    }

    /// Counts forgotten records; their entries are found later.
    pub(super) fn forget(&mut self, records: usize) {
        self.records = self.records.saturating_sub(records);
    }

    /// Takes the record that is forgotten next.
    pub(super) fn pop(&mut self, find: impl Fn(&Key, u64) -> Found) -> Option<(Key, u64)> {
        let mut skipped = 0;
        while let Some(mut entry) = self.entries.pop_front() {
            match find(&entry.key, entry.serial) {
                Found::Gone => {}
                Found::Used(used, is_in_use) if skipped < SKIPPED_MAX && (is_in_use || used > entry.used) => {
                    entry.used = used;
                    self.entries.push_back(entry);
                    skipped += 1;
                }
                Found::Used(..) => {
                    self.forget(1);
                    return Some((entry.key, entry.serial));
                }
            }
        }
        None
    }

    /// Drops dead entries once they outnumber the live ones, or `most`.
    pub(super) fn prune(&mut self, most: usize, is_there: impl Fn(&Key, u64) -> bool) {
        if self.entries.len() > most.max(self.records).saturating_mul(2) {
            self.entries.retain(|entry| is_there(&entry.key, entry.serial));
            self.records = self.entries.len();
        }
    }
}
