//! LRU queue of the sessions that were opened here.
//!
//! The queue has each record once, by its last use as far as is known. A record that was used since moves to the back
//! when it is reached, so that a use costs nothing here, and a new record costs a bounded search. Absent: the records.

use std::collections::VecDeque;
use std::time::Instant;

use crate::event_log::sessions::Key;

/// Records skipped in one search because they are in use or were used since. The next record goes in any case.
const PASSED_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct LruQueue {
    places: VecDeque<Entry>,
    /// Number of records: entries without those of dead records.
    records: usize,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    /// Serial number that tells the record from earlier and later ones with its key.
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
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Adds a record.
    pub(super) fn enter(&mut self, key: Key, serial: u64, used: Instant) {
        self.records += 1;
        self.places.push_back(Entry { key, serial, used });
    }

    /// Counts forgotten records; their entries are found later.
    pub(super) fn leave(&mut self, records: usize) {
        self.records = self.records.saturating_sub(records);
    }

    /// Takes the record that is forgotten next.
    pub(super) fn pop(&mut self, find: impl Fn(&Key, u64) -> Found) -> Option<(Key, u64)> {
        let mut passed = 0;
        while let Some(mut place) = self.places.pop_front() {
            match find(&place.key, place.serial) {
                Found::Gone => {}
                Found::Used(used, is_in_use) if passed < PASSED_MAX && (is_in_use || used > place.used) => {
                    place.used = used;
                    self.places.push_back(place);
                    passed += 1;
                }
                Found::Used(..) => {
                    self.leave(1);
                    return Some((place.key, place.serial));
                }
            }
        }
        None
    }

    /// Drops dead entries once they outnumber the live ones, or `most`.
    pub(super) fn tidy(&mut self, most: usize, is_there: impl Fn(&Key, u64) -> bool) {
        if self.places.len() > most.max(self.records).saturating_mul(2) {
            self.places.retain(|place| is_there(&place.key, place.serial));
            self.records = self.places.len();
        }
    }
}
