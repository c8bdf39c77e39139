//! Batches: events that are numbered and encoded, and not yet accepted by the store.

use crate::ids::Seq;
use crate::sse;

/// Consecutive events of one stream, each encoded without its `id` line (the id depends on the
/// handle it is delivered under).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    first: Seq,
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Batch {
    /// Creates an empty batch whose first event will have number `first`.
    pub fn starting_at(first: Seq) -> Self {
        Self { first, bytes: Vec::new(), ends: Vec::new() }
    }

    /// Reserves memory for `events` events with `bytes` bytes of data together; names are short.
    pub fn reserve(&mut self, events: usize, bytes: usize) {
        self.bytes.reserve(bytes + events * (b"message".len() + sse::EVENT_OVERHEAD));
        self.ends.reserve_exact(events);
    }

    /// Encodes one event behind the others and returns its number.
    pub fn push(&mut self, name: &[u8], data: &[u8]) -> Seq {
        let seq = Seq(self.first.0 + self.ends.len() as u64);
        self.bytes.reserve(name.len() + data.len() + sse::EVENT_OVERHEAD);
        sse::encode_event(&mut self.bytes, name, data);
        // `max_event_bytes` and the size of one read keep a batch far below 4 GiB.
        self.ends.push(self.bytes.len() as u32);
        seq
    }

    /// Appends an encoded event.
    pub fn push_encoded(&mut self, event: &[u8]) {
        self.bytes.extend_from_slice(event);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Returns the bytes of the events, and the end of each among them.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<u32>) {
        (self.bytes, self.ends)
    }

    /// Returns the number of the first event.
    pub fn first(&self) -> Seq {
        self.first
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are no events.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the size of all events together, in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the encoded events in order.
    pub fn events(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let event = &self.bytes[start..end as usize];
            start = end as usize;
            event
        })
    }
}
