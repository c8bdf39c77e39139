//! The sessions that were opened here, in the order in which they are forgotten when there are too many.
//!
//! The row has each record once, by when it was used last as far as anybody looked. A record that is found to have been used since goes to
//! the back, so that a use costs nothing here and one more record costs a bounded search. Absent: the records.

use std::collections::VecDeque;
use std::time::Instant;

use crate::event_log::sessions::Key;

/// So many records that were used since, or are in use, are passed over for one that is forgotten. Then the next one goes whatever it is.
const PASSED_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct LruQueue {
    places: VecDeque<Entry>,
    /// Records there are: places without those of records that are gone.
    records: usize,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    /// Tells the record from others of that key, before it and after.
    serial: u64,
    used: Instant,
}

/// What is found of a record that stands in the row.
pub(super) enum Found {
    /// It is gone, and was counted then.
    Gone,
    /// It was used last at this time; it is in use still, or not.
    Used(Instant, bool),
}

impl LruQueue {
    pub(super) fn len(&self) -> usize {
        self.records
    }

    /// How many places there are, those of records that are gone included.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// A record was made.
    pub(super) fn enter(&mut self, key: Key, serial: u64, used: Instant) {
        self.records += 1;
        self.places.push_back(Entry { key, serial, used });
    }

    /// So many records are gone. Their places are found later.
    pub(super) fn leave(&mut self, records: usize) {
        self.records = self.records.saturating_sub(records);
    }

    /// Takes out the record that is forgotten next.
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

    /// Drops the places of records that are gone, once there are as many of them as of others, or `most`.
    pub(super) fn tidy(&mut self, most: usize, is_there: impl Fn(&Key, u64) -> bool) {
        if self.places.len() > most.max(self.records).saturating_mul(2) {
            self.places.retain(|place| is_there(&place.key, place.serial));
            self.records = self.places.len();
        }
    }
}
