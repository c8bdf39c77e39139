//! Encoding of a batch in Redis: the number of its first event, then each event behind its length.
//!
//! The scripts know this layout where they compare a batch with what is there.

use bytes::{Buf, Bytes};

use crate::protocol::ids::Seq;
use crate::protocol::stream::Batch;

/// The length before each event, big-endian.
const LENGTH_BYTES: usize = size_of::<u32>();

/// The events of a batch, as they are kept.
pub(super) fn encode(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(batch.byte_len() + batch.len() * LENGTH_BYTES);
    for event in batch.events() {
        // A batch is far below 4 GiB.
        bytes.extend_from_slice(&(event.len() as u32).to_be_bytes());
        bytes.extend_from_slice(event);
    }
    bytes
}

/// Events after a cursor, cut out of the batches they were written in.
pub(super) struct Cut {
    next: Seq,
    left: usize,
    pub(super) events: Vec<(Seq, Bytes)>,
}

/// Result of decoding a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// There is room for more.
    More,
    /// The limit is reached.
    Enough,
    /// Events before it are missing.
    Hole,
    /// The encoding is not valid.
    Broken,
}

impl Cut {
    /// Events after `after`, of `max_bytes` together, but one at least.
    pub(super) fn new(after: Seq, max_bytes: usize) -> Self {
        Self { next: Seq(after.0.saturating_add(1)), left: max_bytes, events: Vec::new() }
    }

    /// Takes what fits of a batch that begins with `first`.
    pub(super) fn take(&mut self, first: Seq, mut bytes: Bytes) -> Taken {
        if first > self.next {
            return Taken::Hole;
        }
        let mut seq = first;
        while !bytes.is_empty() {
            let Some(length) =
                bytes.try_get_u32().ok().map(|length| length as usize).filter(|length| *length <= bytes.len())
            else {
                return Taken::Broken;
            };
            let event = bytes.split_to(length);
            if seq == self.next {
                if length > self.left && !self.events.is_empty() {
                    return Taken::Enough;
                }
                self.left = self.left.saturating_sub(length);
                self.events.push((seq, event));
                self.next.0 += 1;
            }
            seq.0 += 1;
        }
        Taken::More
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn batch(first: u64, sizes: &[usize]) -> Batch {
        let mut batch = Batch::starting_at(Seq(first));
        for (index, size) in sizes.iter().enumerate() {
            batch.push(b"", format!("{index:0size$}").as_bytes());
        }
        batch
    }

    proptest! {
        #[test]
        fn what_is_cut_out_is_what_was_put_in(
            batches in prop::collection::vec(prop::collection::vec(1..40usize, 1..6), 1..6),
            after in 0..20u64,
            limit in 0..400usize,
        ) {
            let mut cut = Cut::new(Seq(after), limit);
            let (mut all, mut first, mut full) = (Vec::new(), 1, false);
            for sizes in &batches {
                let batch = batch(first, sizes);
                all.extend((first..).map(Seq).zip(batch.events().map(Bytes::copy_from_slice)));
                let behind = first + sizes.len() as u64 > after + 1;
                if behind && !full {
                    full = cut.take(Seq(first), encode(&batch).into()) == Taken::Enough;
                }
                first += sizes.len() as u64;
            }
            let mut left = limit;
            let later = all.into_iter().filter(|(seq, _)| seq.0 > after).enumerate().take_while(|(index, (_, event))| {
                let fits = event.len() <= left;
                left = left.saturating_sub(event.len());
                fits || *index == 0
            });
            prop_assert_eq!(cut.events, later.map(|(_, found)| found).collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_bytes_are_broken_and_no_more(bytes in prop::collection::vec(any::<u8>(), 0..60), first in 0..3u64) {
            Cut::new(Seq(0), usize::MAX).take(Seq(first), bytes.into());
        }
    }

    #[test]
    fn a_batch_behind_a_hole_is_not_taken() {
        let mut cut = Cut::new(Seq(1), 999);
        assert_eq!(cut.take(Seq(3), encode(&batch(3, &[4])).into()), Taken::Hole);
        assert_eq!(cut.take(Seq(2), Bytes::from_static(&[0, 0, 0, 9, 1])), Taken::Broken);
        assert!(cut.events.is_empty());
    }
}
