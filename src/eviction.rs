//! Eviction from a table of bounded size: the entry that was confirmed or used longest ago goes
//! first.

use std::hash::Hash;
use std::time::Instant;

use dashmap::DashMap;

/// Divisor of the part of a full table that is evicted at a time. So an entry costs a few steps on
/// average, for any size.
const EVICTED: usize = 4;

/// Evicts from a full table of at most `most` entries, so that one more fits. `at` returns the time
/// when an entry was last confirmed. `note_evicted` is called under a lock of the table, for each
/// entry that goes. Concurrent inserts may exceed the limit by one entry for each thread.
pub(crate) fn evict_if_full<K: Eq + Hash, V>(
    table: &DashMap<K, V>,
    most: usize,
    at: impl Fn(&V) -> Instant,
    note_evicted: impl FnMut(&K),
) {
    evict_own_if_full(table, most, |_| false, at, note_evicted);
}

/// Evicts as [`evict_if_full`] does. If a quarter of the entries are the caller's own, by `is_own`,
/// only those go.
pub(crate) fn evict_own_if_full<K: Eq + Hash, V>(
    table: &DashMap<K, V>,
    most: usize,
    is_own: impl Fn(&V) -> bool,
    at: impl Fn(&V) -> Instant,
    mut note_evicted: impl FnMut(&K),
) {
    if table.len() < most {
        return;
    }
    let all: Vec<(Instant, bool)> = table.iter().map(|entry| (at(entry.value()), is_own(entry.value()))).collect();
    let own: Vec<Instant> = all.iter().filter(|(_, is_own)| *is_own).map(|(at, _)| *at).collect();
    let only_own = !own.is_empty() && own.len() >= all.len() / EVICTED;
    let mut times = if only_own { own } else { all.into_iter().map(|(at, _)| at).collect() };
    let last = times.len() / EVICTED;
    if last >= times.len() {
        return;
    }
    let (_, limit, _) = times.select_nth_unstable(last);
    // Of entries with equal times, only as many go as needed.
    let (limit, mut left) = (*limit, last + 1);
    table.retain(|key, value| {
        let goes = left > 0 && at(value) <= limit && (!only_own || is_own(value));
        left -= usize::from(goes);
        if goes {
            note_evicted(key);
        }
        !goes
    });
}
