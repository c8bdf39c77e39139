//! Live tail of a stream: its events in memory, in byte segments.
//!
//! Owned here: the bytes of one stream, without their meaning. Several events share one allocation;
//! one allocation for each would cost half as much again as the events. Absent: locking, which the
//! stream does, so that the tail and the state machine change together.

mod packed;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use packed::PackedTail;

use crate::ids::Seq;
use crate::stream::Batch;

/// Fencing number of a stream's writer. A takeover raises it, and appends under a lower number are
/// fenced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriterEpoch(pub u64);

/// Outcome of an append or a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The batch is in the store, once, however often it was sent.
    Ok,
    /// A newer writer has taken the stream over. Nothing was written, and no later call of this
    /// writer will be.
    Fenced,
    /// The stream is sealed: nothing was written.
    Sealed,
    /// The tail of the store is not the place that the writer named, and the store does not have
    /// the batch. Nothing was written.
    Conflict {
        /// Tail of the store.
        tail: Seq,
    },
}

/// Upper bound of the `id` line that is written before an event.
pub const ID_LINE: usize = 128;

/// Size of the first segment of a stream: most streams are one short call.
const SEGMENT_MIN: usize = 512;
/// Maximum size of a segment. Sizes double up to it. A larger event gets a segment of its own.
const SEGMENT_MAX: usize = 8 * 1024;
/// Maximum bytes of events that are copied to save the unused memory around them.
pub const COPIED_MAX: usize = 64 * 1024;

/// Events of one stream that are in memory.
#[derive(Debug, Default)]
pub struct Tail {
    segments: VecDeque<Segment>,
    epoch: WriterEpoch,
    sealed: bool,
    tail: Seq,
    trimmed: Seq,
    /// Memory of the segments, in bytes.
    bytes: usize,
    /// Bytes of the events that are not trimmed.
    live: usize,
}

/// Consecutive events in one allocation.
#[derive(Debug)]
struct Segment {
    first: Seq,
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Tail {
    /// Returns an empty tail.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty tail of a stream whose events up to `seq` are trimmed, or stored elsewhere.
    pub fn starting_at(seq: Seq) -> Self {
        Self { tail: seq, trimmed: seq, ..Self::default() }
    }

    /// Appends `batch` after the tail, by the rules of [`crate::store::Store::append`].
    pub fn append(&mut self, epoch: WriterEpoch, after: Seq, batch: &Batch) -> Appended {
        if epoch < self.epoch {
            return Appended::Fenced;
        }
        if after != self.tail {
            return if self.holds(after, batch) { Appended::Ok } else { Appended::Conflict { tail: self.tail } };
        }
        if self.sealed {
            return Appended::Sealed;
        }
        for event in batch.events() {
            self.push(event);
        }
        Appended::Ok
    }

    /// As [`Self::append`], for a batch that is not needed any more. Its memory becomes the first
    /// segment of a tail that has none, instead of a copy.
    pub fn append_owned(&mut self, epoch: WriterEpoch, after: Seq, batch: Batch) -> Appended {
        let is_small = batch.len() == 1 || batch.byte_len() <= SEGMENT_MAX;
        let is_next = epoch >= self.epoch && after == self.tail && !self.sealed;
        if !self.segments.is_empty() || batch.is_empty() || !is_small || !is_next {
            return self.append(epoch, after, &batch);
        }
        let segment = Segment::of(Seq(after.0 + 1), batch);
        self.tail = segment.last();
        self.live += segment.bytes.len();
        self.bytes += segment.size();
        self.segments.push_back(segment);
        Appended::Ok
    }

    /// Ends the stream, by the rules of [`crate::store::Store::seal`].
    pub fn seal(&mut self, epoch: WriterEpoch) -> Appended {
        if epoch < self.epoch {
            return Appended::Fenced;
        }
        if !self.sealed {
            self.sealed = true;
            self.freeze_last();
        }
        Appended::Ok
    }

    /// Starts a new writer and fences the previous one.
    pub fn take_over(&mut self) -> WriterEpoch {
        self.epoch.0 += 1;
        self.epoch
    }

    /// Sets the epoch of the current writer, as recorded elsewhere.
    pub fn set_epoch(&mut self, epoch: WriterEpoch) {
        self.epoch = epoch;
    }

    /// Returns the number of the last event.
    pub fn last(&self) -> Seq {
        self.tail
    }

    /// Returns the number of the last trimmed event.
    pub fn trimmed(&self) -> Seq {
        self.trimmed
    }

    /// Returns the memory of the events, in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        (self.tail.0 - self.trimmed.0) as usize
    }

    /// True if there are no events.
    pub fn is_empty(&self) -> bool {
        self.tail == self.trimmed
    }

    /// Returns the events after `after`, in order. The caller has checked that `after` is not
    /// trimmed.
    pub fn events_after(&self, after: Seq) -> impl DoubleEndedIterator<Item = (Seq, &[u8])> + Clone {
        self.segments_after(after).flat_map(move |segment| segment.events_after(after))
    }

    /// Returns the segments with the events after `after`.
    fn segments_after(&self, after: Seq) -> impl DoubleEndedIterator<Item = &Segment> + Clone {
        let start = match self.segments.back() {
            // A reader at the tail needs the last segment only.
            Some(last) if last.first.0 <= after.0 + 1 => self.segments.len() - 1,
            Some(_) | None => self.segments.partition_point(|segment| segment.last() <= after),
        };
        self.segments.range(start..)
    }

    /// Returns the events after `after`, up to about `max_bytes` but at least one. The caller has
    /// checked that `after` is not trimmed.
    pub fn batch_after(&self, after: Seq, max_bytes: usize) -> Batch {
        let mut batch = Batch::starting_at(Seq(after.0 + 1));
        for (_, event) in self.events_after(after) {
            if !batch.is_empty() && batch.byte_len() + event.len() > max_bytes {
                break;
            }
            batch.push_encoded(event);
        }
        batch
    }

    /// Returns the approximate bytes of the events after `after` when written with their ids, at
    /// most `limit`: enough to reserve a buffer once.
    pub fn byte_len_after(&self, after: Seq, limit: usize) -> usize {
        let mut total = 0;
        for segment in self.segments_after(after) {
            total += segment.byte_len_after(after, ID_LINE);
            if total >= limit {
                return limit;
            }
        }
        total
    }

    /// Returns the event at `seq`, or `None` if the tail does not have it.
    pub fn event(&self, seq: Seq) -> Option<&[u8]> {
        let before = Seq(seq.0.checked_sub(1)?);
        self.events_after(before).next().filter(|(found, _)| *found == seq).map(|(_, event)| event)
    }

    /// Drops events from the front, oldest first, until at most `max_bytes` of events and
    /// `max_events` are left, never beyond `upto`. Returns true if both limits are met. Memory is
    /// freed a segment at a time.
    pub fn trim_to_fit(&mut self, max_bytes: usize, max_events: usize, upto: Seq) -> bool {
        let mut gone = self.trimmed;
        let mut left = self.live;
        let mut events = self.len();
        if left <= max_bytes && events <= max_events {
            return true;
        }
        for (seq, event) in self.events_after(self.trimmed) {
            if (left <= max_bytes && events <= max_events) || seq > upto {
                break;
            }
            left -= event.len();
            events -= 1;
            gone = seq;
        }
        self.trim(gone);
        left <= max_bytes && events <= max_events
    }

    /// Drops whole segments from the front, never beyond `upto`, until `bytes` of memory are free
    /// or no segment may go: smaller pieces free no memory.
    pub fn trim_to_free(&mut self, bytes: usize, upto: Seq) {
        self.trim(self.end_of_spare(bytes, upto));
    }

    /// Returns the last event of the whole segments in front that hold `bytes` of memory together,
    /// as far as they do not go beyond `upto`.
    fn end_of_spare(&self, bytes: usize, upto: Seq) -> Seq {
        let mut spare = 0;
        let mut end = self.trimmed;
        for segment in &self.segments {
            if spare >= bytes || segment.last() > upto {
                break;
            }
            spare += segment.size();
            end = segment.last();
        }
        end
    }

    /// Drops the events up to `upto`.
    pub fn trim(&mut self, upto: Seq) {
        let upto = upto.min(self.tail).max(self.trimmed);
        let dropped: usize =
            self.events_after(self.trimmed).take_while(|(seq, _)| *seq <= upto).map(|(_, event)| event.len()).sum();
        self.live -= dropped;
        self.trimmed = upto;
        while let Some(front) = self.segments.front()
            && front.last() <= self.trimmed
        {
            self.bytes -= front.size();
            self.segments.pop_front();
        }
    }

    /// True if the events of `batch` follow `after` directly, byte for byte.
    fn holds(&self, after: Seq, batch: &Batch) -> bool {
        if after < self.trimmed || after.0 + batch.len() as u64 > self.tail.0 {
            return false;
        }
        self.events_after(after).map(|(_, event)| event).zip(batch.events()).all(|(ours, theirs)| ours == theirs)
    }

    fn push(&mut self, event: &[u8]) {
        self.tail = Seq(self.tail.0 + 1);
        self.live += event.len();
        let fits = self.segments.back().is_some_and(|segment| segment.has_room(event.len()));
        if !fits {
            let size = self.next_size(event.len());
            self.freeze_last();
            self.segments.push_back(Segment::new(self.tail, size));
        }
        if let Some(segment) = self.segments.back_mut() {
            let before = if fits { segment.size() } else { 0 };
            segment.push(event);
            self.bytes += segment.size() - before;
        }
    }

    /// Frees the unused capacity of the last segment.
    fn freeze_last(&mut self) {
        if let Some(last) = self.segments.back_mut() {
            self.bytes -= last.size();
            last.freeze();
            self.bytes += last.size();
        }
    }

    fn next_size(&self, event: usize) -> usize {
        let doubled = self.segments.back().map_or(SEGMENT_MIN, |segment| segment.bytes.capacity() * 2);
        doubled.clamp(SEGMENT_MIN, SEGMENT_MAX).max(event)
    }
}

impl Segment {
    fn new(first: Seq, size: usize) -> Self {
        Self { first, bytes: Vec::with_capacity(size), ends: Vec::new() }
    }

    fn of(first: Seq, batch: Batch) -> Self {
        let (bytes, ends) = batch.into_parts();
        Self { first, bytes, ends }
    }

    fn has_room(&self, event: usize) -> bool {
        self.bytes.len() + event <= self.bytes.capacity()
    }

    fn push(&mut self, event: &[u8]) {
        self.bytes.extend_from_slice(event);
        self.ends.push(self.bytes.len() as u32);
    }

    fn freeze(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    fn last(&self) -> Seq {
        Seq(self.first.0 + self.ends.len() as u64 - 1)
    }

    fn size(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>() + size_of::<Self>()
    }

    fn byte_len_after(&self, after: Seq, per_event: usize) -> usize {
        let skip = ((after.0 + 1).saturating_sub(self.first.0) as usize).min(self.ends.len());
        let start = if skip == 0 { 0 } else { self.ends[skip - 1] as usize };
        self.bytes.len() - start + (self.ends.len() - skip) * per_event
    }

    fn events_after(&self, after: Seq) -> impl DoubleEndedIterator<Item = (Seq, &[u8])> + Clone {
        let skip = (after.0 + 1).saturating_sub(self.first.0) as usize;
        (skip..self.ends.len()).map(move |index| {
            let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
            (Seq(self.first.0 + index as u64), &self.bytes[start..self.ends[index] as usize])
        })
    }
}
