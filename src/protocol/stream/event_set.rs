//! Sets of events of one stream, with one bit for each event that the log keeps.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::ids::Seq;

/// Limit for the distance between events of a set. No log keeps so many events, so a larger
/// distance comes from a damaged record.
const SPAN_MAX: u64 = 1 << 26;

/// A set of events. Events that the log has dropped are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventSet {
    /// The number of the first bit, in words.
    first: u64,
    words: VecDeque<u64>,
    /// The last event that was dropped.
    dropped: Seq,
}

impl EventSet {
    /// Returns the memory beside the value itself, in bytes.
    pub(super) fn byte_len(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    pub(super) fn insert(&mut self, seq: Seq) {
        if seq <= self.dropped {
            return;
        }
        let (word, bit) = split(seq);
        if self.words.is_empty() {
            self.first = word;
        }
        let end = self.first + self.words.len() as u64;
        if word.abs_diff(self.first) > SPAN_MAX / 64 {
            return;
        }
        for _ in word..self.first {
            self.words.push_front(0);
        }
        for _ in end..=word {
            self.words.push_back(0);
        }
        self.first = self.first.min(word);
        self.words[(word - self.first) as usize] |= bit;
    }

    pub(super) fn remove(&mut self, seq: Seq) {
        let (word, bit) = split(seq);
        if let Some(bits) = self.index(word).and_then(|index| self.words.get_mut(index)) {
            *bits &= !bit;
        }
    }

    pub(super) fn contains(&self, seq: Seq) -> bool {
        let (word, bit) = split(seq);
        self.index(word).and_then(|index| self.words.get(index)).is_some_and(|bits| bits & bit != 0)
    }

    /// Returns the number of events after `after` and up to `upto`.
    pub(super) fn count(&self, after: Seq, upto: Seq) -> u64 {
        let (from, to) = (split(Seq(after.0.saturating_add(1))), split(upto));
        if after >= upto || self.words.is_empty() {
            return 0;
        }
        let last = self.first + self.words.len() as u64 - 1;
        let words = from.0.max(self.first)..=to.0.min(last);
        let ones = words.map(|word| {
            let mut bits = self.words[(word - self.first) as usize];
            if word == from.0 {
                bits &= !(from.1 - 1);
            }
            if word == to.0 {
                bits &= to.1 | (to.1 - 1);
            }
            u64::from(bits.count_ones())
        });
        ones.sum()
    }

    /// The log has dropped its events up to `seq`.
    pub(super) fn drop_upto(&mut self, seq: Seq) {
        self.dropped = self.dropped.max(seq);
        let (word, _) = split(Seq(self.dropped.0.saturating_add(1)));
        while self.first < word && self.words.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn index(&self, word: u64) -> Option<usize> {
        word.checked_sub(self.first).map(|index| index as usize)
    }
}

/// Returns the word of an event and the bit in it.
fn split(seq: Seq) -> (u64, u64) {
    (seq.0 / 64, 1 << (seq.0 % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(u64),
        Remove(u64),
        Drop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let seq = 1u64..400;
        prop_oneof![
            8 => seq.clone().prop_map(Step::Insert),
            3 => seq.prop_map(Step::Remove),
            1 => (1u64..300).prop_map(Step::Drop),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec(step(), 0..80), ends in (0u64..400, 0u64..400)) {
            let (mut events, mut set, mut dropped) = (EventSet::default(), BTreeSet::new(), 0);
            for step in steps {
                match step {
                    Step::Insert(seq) => {
                        events.insert(Seq(seq));
                        set.insert(seq);
                    }
                    Step::Remove(seq) => {
                        events.remove(Seq(seq));
                        set.remove(&seq);
                    }
                    Step::Drop(seq) => {
                        events.drop_upto(Seq(seq));
                        dropped = dropped.max(seq);
                    }
                }
                set.retain(|seq| *seq > dropped);
                prop_assert!((dropped + 1..400).all(|seq| events.contains(Seq(seq)) == set.contains(&seq)));
            }
            let (after, upto) = (ends.0.max(dropped), ends.1);
            let expected = set.iter().filter(|seq| after < **seq && **seq <= upto).count();
            prop_assert_eq!(events.count(Seq(after), Seq(upto)), expected as u64);
            prop_assert!(events.words.len() <= 400 / 64 + 1);
        }
    }

    #[test]
    fn a_number_of_a_damaged_record_takes_no_memory() {
        let mut events = EventSet::default();
        events.insert(Seq(1));
        events.insert(Seq(u64::MAX));
        assert_eq!((events.words.len(), events.count(Seq(0), Seq(u64::MAX))), (1, 1));
        events.drop_upto(Seq(u64::MAX));
        assert_eq!(events.count(Seq(0), Seq(u64::MAX)), 0);
    }
}
