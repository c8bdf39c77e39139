//! The numbers of a stream's events, and how many of them the store has.
//!
//! Invariants 1 and 2 of the machine are kept here. [`Numbering::push`] alone assigns numbers. The
//! tail moves only when the store has accepted a batch, or another writer's events.

use super::event_batch::Batch;
use crate::ids::Seq;

/// The events of one stream: trimmed, stored, being stored and staged, in this order.
#[derive(Debug)]
pub struct Numbering {
    /// The last event that the log has dropped.
    trimmed: Seq,
    /// The last event that the store has accepted.
    tail: Seq,
    /// Number of events that the store has been given and has not accepted yet.
    storing: usize,
    /// Numbered events that the store has not been given yet.
    staged: Batch,
}

impl Numbering {
    pub(super) fn new() -> Self {
        Self::following(Seq(0), Seq(0))
    }

    /// Returns the numbering after `tail`, in a log that was trimmed up to `trimmed`.
    pub(super) fn following(tail: Seq, trimmed: Seq) -> Self {
        Self { trimmed, tail, storing: 0, staged: Batch::starting_at(Seq(tail.0 + 1)) }
    }

    /// Reserves memory for `events` more events with `bytes` bytes of data together.
    pub(super) fn reserve(&mut self, events: usize, bytes: usize) {
        self.staged.reserve(events, bytes);
    }

    /// Stages one event and returns its number.
    pub(super) fn push(&mut self, name: &[u8], data: &[u8]) -> Seq {
        self.staged.push(name, data)
    }

    /// Returns the bytes of the events that the store has not been given yet.
    pub fn staged_len(&self) -> usize {
        self.staged.byte_len()
    }

    /// Takes the staged events for the store. Returns `None` while it is still storing others, or
    /// if nothing is staged.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        if self.storing > 0 || self.staged.is_empty() {
            return None;
        }
        let next = Seq(self.tail.0 + self.staged.len() as u64 + 1);
        let batch = std::mem::replace(&mut self.staged, Batch::starting_at(next));
        self.storing = batch.len();
        Some(batch)
    }

    /// The store has accepted the batch that [`Self::take_batch`] returned.
    pub(super) fn handle_stored(&mut self) {
        self.tail = Seq(self.tail.0 + self.storing as u64);
        self.storing = 0;
    }

    /// The store has refused the batch: neither its events nor those staged since are events of the
    /// stream.
    pub(super) fn handle_refused(&mut self) {
        *self = Self::following(self.tail, self.trimmed);
    }

    /// The log has dropped its events up to `upto`.
    pub(super) fn handle_trimmed(&mut self, upto: Seq) {
        self.trimmed = self.trimmed.max(upto);
    }

    /// Another writer has logged events up to `tail`, or the store has them from there.
    pub(super) fn handle_remote_tail(&mut self, tail: Seq) {
        self.tail = self.tail.max(tail);
        self.staged = Batch::starting_at(Seq(self.tail.0 + 1));
    }

    /// Returns the last event that may be read.
    pub fn tail(&self) -> Seq {
        self.tail
    }

    /// Returns the last event that is gone.
    pub fn trimmed(&self) -> Seq {
        self.trimmed
    }

    /// Returns the last event that has a number. The store may not have accepted the events behind
    /// the tail yet.
    pub fn last(&self) -> Seq {
        Seq(self.tail.0 + (self.storing + self.staged.len()) as u64)
    }

    /// Returns true if the store has every numbered event.
    pub(super) fn is_stored(&self) -> bool {
        self.storing == 0 && self.staged.is_empty()
    }
}
