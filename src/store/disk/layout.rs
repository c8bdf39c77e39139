//! Layout of streams and records in the database, to the byte. Numbers are big-endian, so that keys
//! sort by them.
//!
//! Map of the keyspaces, one kind of key a line:
//!
//! ```text
//! keyspace  key                       value
//! streams   p <stream>                metadata: number, epoch, tail, trimmed, until, keep, sizes, sealed
//!           a <stream>                description of the stream, as given at its creation
//!           s <stream>                state of the stream, as last written
//!           m epoch                   store epoch of the contents
//!           m probe                   empty: written to find out if writes succeed
//! events    <number 8> <last seq 8>   batch of events: count, end of each event, bytes
//! records   r <key>                   expiry, value
//! ```
//!
//! Every stream that was ever created has a number of its own. So events of a removed stream can
//! stay until a compaction drops them. Streams created one after the other are neighbours on disk.
//! The key of a batch has the number of its last event: the first key at or after a number is the
//! batch that holds it. Every key of `events` is written only once.

use std::ops::RangeInclusive;

use bytes::Bytes;

use crate::WriterEpoch;
use mcp_resume_protocol::ids::{Seq, StreamId};
use mcp_resume_protocol::stream::Batch;

pub(super) const STREAMS: &str = "streams";
pub(super) const EVENTS: &str = "events";
pub(super) const RECORDS: &str = "records";
/// All keyspaces.
pub(super) const KEYSPACES: [&str; 3] = [STREAMS, EVENTS, RECORDS];

/// Row of `streams` with the store epoch of the contents.
pub(super) const EPOCH_ROW: &[u8] = b"mepoch";
/// Row of `streams` that is written to find out if writes succeed.
pub(super) const PROBE_ROW: &[u8] = b"mprobe";
/// Prefix of the keys of all metadata.
pub(super) const METAS: &[u8] = b"p";
/// Bytes counted for each key, row and batch besides its own: approximately the overhead of the
/// database.
pub(super) const OVERHEAD: u64 = 64;

/// Approximate maximum of events stored after the written metadata of a stream.
const LOOKED_AT: u64 = 512;

/// Metadata of a stream, in memory for every check. On disk the metadata of an unsealed stream may
/// be older. The events after its tail complete it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamMeta {
    pub(super) number: u64,
    pub(super) epoch: WriterEpoch,
    pub(super) tail: Seq,
    pub(super) trimmed: Seq,
    /// Expiry, in milliseconds of the wall clock.
    pub(super) until: u64,
    /// Time to live after each call of the writer, in milliseconds.
    pub(super) keep: u64,
    /// Bytes of the events; an estimate after a trim.
    pub(super) events: u64,
    /// Bytes of the description and of the rows.
    pub(super) rows: u64,
    /// Bytes of the state.
    pub(super) state: u64,
    pub(super) sealed: bool,
}

/// Size of encoded metadata.
pub(super) const META_BYTES: usize = 9 * 8 + 1;

impl StreamMeta {
    pub(super) fn lives(&self, now: u64) -> bool {
        self.until > now
    }

    pub(super) fn size(&self) -> u64 {
        self.events + self.rows + self.state
    }

    /// True if the metadata follow from `before`, on disk, and the events stored after it. At
    /// intervals it is false all the same and the metadata are written, so that opening the
    /// database reads few events.
    pub(super) fn follows_from_events(&self, before: &Self) -> bool {
        let as_before = Self { tail: before.tail, events: before.events, ..*self };
        as_before == *before && self.tail.0 / LOOKED_AT == before.tail.0 / LOOKED_AT
    }

    /// Returns the range of keys of events stored after these metadata.
    pub(super) fn behind(&self) -> RangeInclusive<[u8; 16]> {
        event_key(self.number, Seq(self.tail.0.saturating_add(1)))..=event_key(self.number, Seq(u64::MAX))
    }

    /// Moves the metadata on by a batch of events stored after it.
    pub(super) fn add(&mut self, last: Seq, batch: u64) {
        self.tail = last;
        self.events += batch + OVERHEAD;
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [
            self.number,
            self.epoch.0,
            self.tail.0,
            self.trimmed.0,
            self.until,
            self.keep,
            self.events,
            self.rows,
            self.state,
        ];
        let mut row = Vec::with_capacity(META_BYTES);
        for number in numbers {
            row.extend_from_slice(&number.to_be_bytes());
        }
        row.push(u8::from(self.sealed));
        row
    }

    pub(super) fn decode(row: &[u8]) -> Option<Self> {
        let (numbers, &[sealed]) = row.split_last_chunk()?;
        let (numbers, &[]) = numbers.as_chunks() else { return None };
        let &[number, epoch, tail, trimmed, until, keep, events, rows, state] = numbers else { return None };
        let number_of = u64::from_be_bytes;
        Some(Self {
            number: number_of(number),
            epoch: WriterEpoch(number_of(epoch)),
            tail: Seq(number_of(tail)),
            trimmed: Seq(number_of(trimmed)),
            until: number_of(until),
            keep: number_of(keep),
            events: number_of(events),
            rows: number_of(rows),
            state: number_of(state),
            sealed: sealed != 0,
        })
    }
}

pub(super) fn meta_key(stream: StreamId) -> Vec<u8> {
    row_key(b'p', stream)
}

pub(super) fn about_key(stream: StreamId) -> Vec<u8> {
    row_key(b'a', stream)
}

pub(super) fn state_key(stream: StreamId) -> Vec<u8> {
    row_key(b's', stream)
}

fn row_key(kind: u8, stream: StreamId) -> Vec<u8> {
    [&[kind][..], stream.as_bytes()].concat()
}

/// Returns the stream of the key of metadata.
pub(super) fn stream_of(key: &[u8]) -> Option<StreamId> {
    Some(StreamId::from_bytes(key.strip_prefix(METAS)?.try_into().ok()?))
}

pub(super) fn event_key(number: u64, last: Seq) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&last.0.to_be_bytes());
    key
}

/// Returns the stream number and the last event of the key of a batch.
pub(super) fn event_of(key: &[u8]) -> Option<(u64, Seq)> {
    let (&[number, last], &[]) = key.as_chunks() else { return None };
    Some((u64::from_be_bytes(number), Seq(u64::from_be_bytes(last))))
}

pub(super) fn encode_batch(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + 4 * batch.len() + batch.byte_len());
    bytes.extend_from_slice(&(batch.len() as u32).to_be_bytes());
    let mut end = 0;
    for event in batch.events() {
        end += event.len() as u32;
        bytes.extend_from_slice(&end.to_be_bytes());
    }
    for event in batch.events() {
        bytes.extend_from_slice(event);
    }
    bytes
}

/// Returns the events of a batch whose last one is `last`; they share `bytes`. `None` if the bytes
/// are not a batch.
pub(super) fn decode_batch(bytes: &Bytes, last: Seq) -> Option<Vec<(Seq, Bytes)>> {
    let (&count, rest) = bytes.split_first_chunk()?;
    let count = u32::from_be_bytes(count) as usize;
    let (ends, _) = rest.split_at_checked(count.checked_mul(4)?)?;
    let events = bytes.slice(4 + 4 * count..);
    let before = last.0.checked_sub(count as u64)?;
    let mut start = 0;
    let ends = ends.as_chunks().0.iter().map(|&end| u32::from_be_bytes(end) as usize);
    ends.zip(before + 1..)
        .map(|(end, seq)| {
            if start > end || end > events.len() {
                return None;
            }
            let event = events.slice(start..end);
            start = end;
            Some((Seq(seq), event))
        })
        .collect()
}

pub(super) fn record_key(key: &[u8]) -> Vec<u8> {
    [b"r", key].concat()
}

pub(super) fn encode_record(value: &[u8], until: u64) -> Vec<u8> {
    [&until.to_be_bytes()[..], value].concat()
}

/// Returns expiry and value of a record.
pub(super) fn decode_record(row: &[u8]) -> Option<(u64, &[u8])> {
    let (&until, value) = row.split_first_chunk()?;
    Some((u64::from_be_bytes(until), value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_batch_comes_back_as_it_was(texts in proptest::collection::vec(".{0,20}", 1..20), first in 1..u64::MAX / 2) {
            let mut batch = Batch::starting_at(Seq(first));
            texts.iter().for_each(|text| { batch.push(b"", text.as_bytes()); });
            let last = Seq(first + texts.len() as u64 - 1);
            let events = decode_batch(&encode_batch(&batch).into(), last).unwrap();
            let expected: Vec<_> = (first..).map(Seq).zip(batch.events().map(Bytes::copy_from_slice)).collect();
            prop_assert_eq!(events, expected);
        }

        #[test]
        fn a_place_comes_back_as_it_was(numbers: [u64; 9], sealed: bool) {
            let [number, epoch, tail, trimmed, until, keep, events, rows, state] = numbers;
            let meta = StreamMeta {
                number, epoch: WriterEpoch(epoch), tail: Seq(tail), trimmed: Seq(trimmed), until, keep, events, rows, state, sealed
            };
            prop_assert_eq!(StreamMeta::decode(&meta.encode()), Some(meta));
        }

        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(bytes: Vec<u8>, last: u64) {
            let _ = StreamMeta::decode(&bytes);
            let _ = decode_batch(&Bytes::from(bytes.clone()), Seq(last));
            let _ = decode_record(&bytes);
            let _ = (stream_of(&bytes), event_of(&bytes));
        }
    }
}
