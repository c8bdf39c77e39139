//! Queue of the streams and records by the time of their expiry.
//!
//! Each stream and record is due at its expiry, or earlier if it was extended meanwhile. Absent:
//! the removal of expired data (`mod.rs`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use mcp_resume_protocol::ids::StreamId;

/// A stream or a record that expires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Item {
    Stream(StreamId),
    Record(Arc<[u8]>),
}

/// An extension, which each append is, costs nothing here: the caller sets the item again when its
/// old time comes.
#[derive(Default)]
pub(super) struct ExpiryQueue {
    heap: BinaryHeap<Reverse<(u64, Item)>>,
    set: HashMap<Item, u64>,
}

impl ExpiryQueue {
    /// Makes `item` due at `until` at the latest.
    pub(super) fn set(&mut self, item: Item, until: u64) {
        if self.set.get(&item).is_none_or(|&at| until < at) {
            self.set.insert(item.clone(), until);
            self.heap.push(Reverse((until, item)));
        }
    }

    /// Removes and returns an item that is due. The caller sets it again if it was extended.
    pub(super) fn due(&mut self, now: u64) -> Option<Item> {
        while self.next().is_some_and(|at| at <= now) {
            let Reverse((at, item)) = self.heap.pop()?;
            if self.set.get(&item) == Some(&at) {
                self.set.remove(&item);
                return Some(item);
            }
        }
        None
    }

    /// Returns the time when the next item may be due.
    pub(super) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_due_once_at_the_first_of_its_times() {
        let item = |byte| Item::Stream(StreamId::from_bytes([byte; 12]));
        let mut expiry = ExpiryQueue::default();
        for (byte, until) in [(1, 10), (2, 20), (1, 30), (2, 5)] {
            expiry.set(item(byte), until);
        }
        assert_eq!(expiry.due(4), None);
        assert_eq!(expiry.due(9), Some(item(2)));
        assert_eq!(expiry.due(9), None);
        assert_eq!(expiry.due(99), Some(item(1)));
        assert_eq!(expiry.due(99), None);
    }
}
