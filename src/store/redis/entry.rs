//! Encoding of a batch in Redis: the number of its first event, then each event behind its length.
//!
//! The script of an append knows this layout: it compares a repeated batch with the stored one.

use bytes::{Buf, Bytes};

use mcp_resume_protocol::ids::Seq;
use mcp_resume_protocol::stream::Batch;

/// Bytes of the length before each event, big-endian.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Encodes the events of a batch.
pub(super) fn encode(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(batch.byte_len() + batch.len() * LENGTH_BYTES);
    for event in batch.events() {
        // A batch is far below 4 GiB.
        bytes.extend_from_slice(&(event.len() as u32).to_be_bytes());
        bytes.extend_from_slice(event);
    }
    bytes
}

/// Reader of the events after a cursor, from their batches as written.
pub(super) struct BatchReader {
    next: Seq,
    left: usize,
    pub(super) events: Vec<(Seq, Bytes)>,
}

/// Result of decoding a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BatchRead {
    /// The limit is not reached.
    More,
    /// The limit is reached.
    Full,
    /// Events before the batch are missing.
    Gap,
    /// The encoding is invalid.
    Malformed,
}

impl BatchReader {
    /// Creates a reader of the events after `after`, at most `max_bytes` together but at least one.
    pub(super) fn new(after: Seq, max_bytes: usize) -> Self {
        Self { next: Seq(after.0.saturating_add(1)), left: max_bytes, events: Vec::new() }
    }

    /// Reads the events that fit from a batch that begins with `first`.
    pub(super) fn read(&mut self, first: Seq, mut bytes: Bytes) -> BatchRead {
        if first > self.next {
            return BatchRead::Gap;
        }
        let mut seq = first;
        while !bytes.is_empty() {
            let Some(length) =
                bytes.try_get_u32().ok().map(|length| length as usize).filter(|length| *length <= bytes.len())
            else {
                return BatchRead::Malformed;
            };
            let event = bytes.split_to(length);
            if seq == self.next {
                if length > self.left && !self.events.is_empty() {
                    return BatchRead::Full;
                }
                self.left = self.left.saturating_sub(length);
                self.events.push((seq, event));
                self.next.0 += 1;
            }
            seq.0 += 1;
        }
        BatchRead::More
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
        fn events_after_the_cursor_are_read_up_to_the_limit(
            batches in prop::collection::vec(prop::collection::vec(1..40usize, 1..6), 1..6),
            after in 0..20u64,
            limit in 0..400usize,
        ) {
            let mut reader = BatchReader::new(Seq(after), limit);
            let (mut all, mut first, mut full) = (Vec::new(), 1, false);
            for sizes in &batches {
                let batch = batch(first, sizes);
                all.extend((first..).map(Seq).zip(batch.events().map(Bytes::copy_from_slice)));
                let behind = first + sizes.len() as u64 > after + 1;
                if behind && !full {
                    full = reader.read(Seq(first), encode(&batch).into()) == BatchRead::Full;
                }
                first += sizes.len() as u64;
            }
            let mut left = limit;
            let later = all.into_iter().filter(|(seq, _)| seq.0 > after).enumerate().take_while(|(index, (_, event))| {
                let fits = event.len() <= left;
                left = left.saturating_sub(event.len());
                fits || *index == 0
            });
            prop_assert_eq!(reader.events, later.map(|(_, found)| found).collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), first in 0..3u64) {
            BatchReader::new(Seq(0), usize::MAX).read(Seq(first), bytes.into());
        }
    }

    #[test]
    fn a_batch_behind_a_gap_is_not_read() {
        let mut reader = BatchReader::new(Seq(1), 999);
        assert_eq!(reader.read(Seq(3), encode(&batch(3, &[4])).into()), BatchRead::Gap);
        assert_eq!(reader.read(Seq(2), Bytes::from_static(&[0, 0, 0, 9, 1])), BatchRead::Malformed);
        assert!(reader.events.is_empty());
    }
}
