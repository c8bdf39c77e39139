//! Room in a table of what was learned: what was confirmed longest ago goes first.

use std::hash::Hash;
use std::time::Instant;

use dashmap::DashMap;

/// This part of a full table goes at a time: so an entry costs a few steps on average, however many there are.
const EVICTED: usize = 4;

/// Makes room for one entry in a table of at most `most`. `at` says when an entry was last confirmed. A table that others fill
/// meanwhile may exceed its bound by as many entries as there are threads.
pub(super) fn make_room<K: Eq + Hash, V>(table: &DashMap<K, V>, most: usize, at: impl Fn(&V) -> Instant) {
    if table.len() < most {
        return;
    }
    let mut times: Vec<Instant> = table.iter().map(|entry| at(entry.value())).collect();
    let last = times.len() / EVICTED;
    if last >= times.len() {
        return;
    }
    let (_, limit, _) = times.select_nth_unstable(last);
    // Of entries of the same time no more go than must.
    let (limit, mut left) = (*limit, last + 1);
    table.retain(|_, value| {
        let goes = left > 0 && at(value) <= limit;
        left -= usize::from(goes);
        !goes
    });
}
