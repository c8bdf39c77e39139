//! Packed tail: the events of an ended stream, in about as many bytes as they have.

use std::collections::VecDeque;

use super::{COPIED_MAX, Segment, Tail};
use crate::ids::Seq;
use crate::tail::WriterEpoch;

/// Size of a number in a packed tail.
const NUMBER: usize = size_of::<u32>();

/// Events of an ended stream.
#[derive(Debug)]
pub enum PackedTail {
    /// Few bytes, in one allocation: the number of events, the end of each among their bytes, and
    /// the bytes. Empty without events.
    Small(Box<[u8]>),
    /// More, which are moved and not copied.
    Large(Box<Tail>),
}

impl PackedTail {
    /// Packs the events of `tail` that are not trimmed.
    pub fn of(mut tail: Tail) -> Self {
        if tail.live >= COPIED_MAX {
            tail.segments.shrink_to_fit();
            return Self::Large(Box::new(tail));
        }
        Self::pack(tail.len(), tail.live, tail.events_after(tail.trimmed).map(|(_, event)| event))
    }

    fn pack<'a>(count: usize, bytes: usize, events: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        if count == 0 {
            return Self::Small(Box::default());
        }
        let mut packed = Vec::with_capacity((count + 1) * NUMBER + bytes);
        packed.extend_from_slice(&(count as u32).to_ne_bytes());
        let mut end = 0;
        for event in events.clone() {
            end += event.len();
            packed.extend_from_slice(&(end as u32).to_ne_bytes());
        }
        for event in events {
            packed.extend_from_slice(event);
        }
        Self::Small(packed.into())
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        match self {
            Self::Small(packed) => number(packed, 0),
            Self::Large(tail) => tail.len(),
        }
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory of the events, in bytes.
    pub fn byte_len(&self) -> usize {
        match self {
            Self::Small(packed) => packed.len(),
            Self::Large(tail) => size_of::<Tail>() + tail.byte_len(),
        }
    }

    /// Returns the last event to trim, so that about `keep` bytes are left. Whole segments are
    /// trimmed, and never beyond `upto`. Few events are never trimmed.
    pub fn trimmed_to(&self, keep: usize, upto: Seq) -> Seq {
        match self {
            Self::Small(_) => Seq(0),
            Self::Large(tail) => tail.end_of_spare(tail.bytes.saturating_sub(keep), upto),
        }
    }

    /// Drops the first `count` events, or all if there are fewer.
    pub fn drop_first(&mut self, count: usize) {
        match self {
            Self::Small(packed) if count > 0 => {
                let left = events(packed).skip(count);
                *self = Self::pack(left.clone().count(), left.clone().map(<[u8]>::len).sum(), left);
            }
            Self::Small(_) => {}
            Self::Large(tail) => {
                let upto = Seq(tail.trimmed.0.saturating_add(count as u64));
                tail.trim(upto);
                if tail.live < COPIED_MAX {
                    *self = Self::of(std::mem::take(tail));
                }
            }
        }
    }

    /// Returns the events as the sealed tail of a stream whose last event is `last`.
    pub fn unpack(self, last: Seq, epoch: WriterEpoch) -> Tail {
        match self {
            Self::Large(mut tail) => {
                tail.set_epoch(epoch);
                *tail
            }
            Self::Small(packed) => {
                let count = number(&packed, 0);
                let trimmed = Seq(last.0.saturating_sub(count as u64));
                let mut tail = Tail { tail: last, epoch, sealed: true, ..Tail::starting_at(trimmed) };
                if count > 0 {
                    let bytes = packed[(count + 1) * NUMBER..].to_vec();
                    let ends = (1..=count).map(|index| number(&packed, index) as u32).collect();
                    let segment = Segment { first: Seq(trimmed.0 + 1), bytes, ends };
                    tail.live = segment.bytes.len();
                    tail.bytes = segment.size();
                    tail.segments = VecDeque::with_capacity(1);
                    tail.segments.push_back(segment);
                }
                tail
            }
        }
    }
}

/// Returns the number at `index` of a small packed tail; 0 if it is empty.
fn number(packed: &[u8], index: usize) -> usize {
    let number = packed.get(index * NUMBER..).and_then(|rest| rest.first_chunk());
    number.map_or(0, |bytes| u32::from_ne_bytes(*bytes) as usize)
}

fn events(packed: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let count = number(packed, 0);
    let bytes = packed.get((count + 1) * NUMBER..).unwrap_or_default();
    (0..count).map(move |index| {
        let start = if index == 0 { 0 } else { number(packed, index) };
        &bytes[start..number(packed, index + 1)]
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stream::Batch;

    fn tail_of(sizes: &[usize], trimmed: u64) -> Tail {
        let mut batch = Batch::starting_at(Seq(1));
        for (size, byte) in sizes.iter().zip((b'a'..=b'z').cycle()) {
            batch.push(b"", &vec![byte; *size]);
        }
        let mut tail = Tail::new();
        tail.append(WriterEpoch(7), Seq(0), &batch);
        tail.seal(WriterEpoch(7));
        tail.trim(Seq(trimmed));
        tail
    }

    fn listed(tail: &Tail, after: Seq) -> Vec<(Seq, Vec<u8>)> {
        tail.events_after(after.max(tail.trimmed())).map(|(seq, event)| (seq, event.to_vec())).collect()
    }

    proptest! {
        #[test]
        fn a_packed_tail_gives_its_events_again(
            sizes in prop::collection::vec(prop_oneof![9 => 1usize..300, 1 => 1usize..40_000], 0..12),
            trimmed in 0u64..14,
            dropped in 0u64..14,
        ) {
            let original = tail_of(&sizes, trimmed);
            let (last, first) = (original.last(), original.trimmed());
            let mut packed = PackedTail::of(tail_of(&sizes, trimmed));
            prop_assert_eq!(packed.len(), original.len());
            packed.drop_first(dropped as usize);
            let after = Seq((first.0 + dropped).min(last.0));
            prop_assert_eq!(packed.len() as u64, last.0 - after.0);
            let small = matches!(packed, PackedTail::Small(_));
            let (count, memory) = (packed.len(), packed.byte_len());
            let unpacked = packed.unpack(last, WriterEpoch(7));
            prop_assert_eq!((unpacked.last(), unpacked.trimmed(), unpacked.epoch), (last, after, WriterEpoch(7)));
            prop_assert_eq!(listed(&unpacked, after), listed(&original, after));
            prop_assert_eq!(unpacked.segments.iter().map(Segment::size).sum::<usize>(), unpacked.byte_len());
            let bytes: usize = listed(&original, after).iter().map(|(_, event)| event.len()).sum();
            prop_assert!(!small || memory <= bytes + (count + 1) * NUMBER);
        }
    }
}
