//! How streams and records lie in the database: keys and values, to the byte. Numbers are big-endian, so that keys sort by them.
//!
//! ```text
//! streams   p <stream>                place: number, epoch, tail, trimmed, until, keep, sizes, sealed
//!           a <stream>                about
//!           s <stream>                state
//!           m epoch                   the store epoch that the contents belong to
//! events    <number> <last seq>       a batch: count, ends, bytes
//! records   r <key>                   until, value
//! ```
//!
//! A stream's number is new for every stream that was ever made, so that events of a stream that is gone can lie about until
//! they are cleared away, and neighbours in time are neighbours on disk. A batch is keyed by its last event: the first key at
//! or behind a place is the batch that holds it. Every key of `events` is written once, ever.

use std::ops::RangeInclusive;

use bytes::Bytes;

use crate::protocol::ids::{Seq, StreamId};
use crate::protocol::stream::Batch;
use crate::store::WriterEpoch;

/// A row of `streams` that says which store epoch the contents belong to.
pub(super) const EPOCH_ROW: &[u8] = b"mepoch";
/// A row of `streams` that is written to find out whether one can be.
pub(super) const PROBE_ROW: &[u8] = b"mprobe";
/// All places have keys that begin with it.
pub(super) const PLACES: &[u8] = b"p";
/// What a key, a row and a batch are counted besides their bytes: about what the database adds to them.
pub(super) const OVERHEAD: u64 = 64;

/// At most about so many events of a stream lie behind its place.
const LOOKED_AT: u64 = 512;

/// Where a stream stands: what every check needs, in memory. On disk an unsealed stream's may be an earlier one, and the events
/// behind its tail say the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) epoch: WriterEpoch,
    pub(super) tail: Seq,
    pub(super) trimmed: Seq,
    /// It is gone from this time on, in milliseconds of the wall clock.
    pub(super) until: u64,
    /// Milliseconds from each call of its writer's.
    pub(super) keep: u64,
    /// Bytes of its events; after a trim an estimate.
    pub(super) events: u64,
    /// Bytes of what it is and of its rows.
    pub(super) rows: u64,
    /// Bytes of its state.
    pub(super) state: u64,
    pub(super) sealed: bool,
}

/// Of an encoded place.
pub(super) const PLACE_BYTES: usize = 9 * 8 + 1;

impl Place {
    pub(super) fn lives(&self, now: u64) -> bool {
        self.until > now
    }

    pub(super) fn size(&self) -> u64 {
        self.events + self.rows + self.state
    }

    /// Whether `before`, on disk, and the events behind it say all of this one. Now and then it is to be written all the same, so
    /// that there are few events to look at when the database is opened.
    pub(super) fn follows_from_events(&self, before: &Self) -> bool {
        let as_before = Self { tail: before.tail, events: before.events, ..*self };
        as_before == *before && self.tail.0 / LOOKED_AT == before.tail.0 / LOOKED_AT
    }

    /// The keys of the events that lie behind it.
    pub(super) fn behind(&self) -> RangeInclusive<[u8; 16]> {
        event_key(self.number, Seq(self.tail.0.saturating_add(1)))..=event_key(self.number, Seq(u64::MAX))
    }

    /// Adds a batch of events that lie behind it.
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
        let mut row = Vec::with_capacity(PLACE_BYTES);
        numbers.iter().for_each(|number| row.extend_from_slice(&number.to_be_bytes()));
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

pub(super) fn place_key(stream: StreamId) -> Vec<u8> {
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

/// The stream of a place's key.
pub(super) fn stream_of(key: &[u8]) -> Option<StreamId> {
    Some(StreamId::from_bytes(key.strip_prefix(PLACES)?.try_into().ok()?))
}

pub(super) fn event_key(number: u64, last: Seq) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&last.0.to_be_bytes());
    key
}

/// The number and the last event of a batch's key.
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
    batch.events().for_each(|event| bytes.extend_from_slice(event));
    bytes
}

/// The events of a batch whose last one is `last`; they share `bytes`. `None` for what is no batch.
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
            let event = (start <= end && end <= events.len()).then(|| events.slice(start..end))?;
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

/// The record's time and its value.
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
            let place = Place {
                number, epoch: WriterEpoch(epoch), tail: Seq(tail), trimmed: Seq(trimmed), until, keep, events, rows, state, sealed
            };
            prop_assert_eq!(Place::decode(&place.encode()), Some(place));
        }

        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(bytes: Vec<u8>, last: u64) {
            let _ = Place::decode(&bytes);
            let _ = decode_batch(&Bytes::from(bytes.clone()), Seq(last));
            let _ = decode_record(&bytes);
            let _ = (stream_of(&bytes), event_of(&bytes));
        }
    }
}
