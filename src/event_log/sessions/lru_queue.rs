//! LRU queue of the sessions that were opened here.
//!
//! The queue has each record once, by its last use as far as is known. A record that was used since
//! moves to the back when it is reached, so that a use costs nothing here, and a new record costs a
//! bounded search. A caller with a large part of the records gives up its own for a further one.
//! Absent: the records.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::event_log::sessions::session::Key;
use crate::identity::Principal;

/// Records skipped in one search because they are in use or were used since. The next record goes
/// in any case.
const SKIPPED_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct LruQueue {
    entries: VecDeque<Entry>,
    /// Number of records: entries without dead records.
    records: usize,
    /// Number of records of each principal.
    held: HashMap<Principal, usize>,
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
        *self.held.entry(key.1).or_default() += 1;
        self.entries.push_back(Entry { key, serial, used });
    }

    /// Returns the number of a principal's records.
    pub(super) fn held(&self, principal: &Principal) -> usize {
        self.held.get(principal).copied().unwrap_or_default()
    }

    /// Counts a forgotten record of a principal; its entry is found later.
    pub(super) fn forget(&mut self, principal: &Principal) {
        self.records = self.records.saturating_sub(1);
        if let Some(held) = self.held.get_mut(principal) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(principal);
            }
        }
    }

    /// Takes the record that is forgotten next, of `owner` alone if it is given.
    pub(super) fn pop(&mut self, owner: Option<&Principal>, find: impl Fn(&Key, u64) -> Found) -> Option<(Key, u64)> {
        let (mut skipped, mut passed, all) = (0, 0, self.entries.len());
        while passed <= all + SKIPPED_MAX
            && let Some(mut entry) = self.entries.pop_front()
        {
            passed += 1;
            if owner.is_some_and(|owner| entry.key.1 != *owner) {
                self.entries.push_back(entry);
                continue;
            }
            match find(&entry.key, entry.serial) {
                Found::Gone => {}
                Found::Used(used, is_in_use) if skipped < SKIPPED_MAX && (is_in_use || used > entry.used) => {
                    entry.used = used;
                    self.entries.push_back(entry);
                    skipped += 1;
                }
                Found::Used(..) => {
                    self.forget(&entry.key.1);
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
            self.held.clear();
            for entry in &self.entries {
                *self.held.entry(entry.key.1).or_default() += 1;
            }
        }
    }
}
