//! Slices: the calls by which a client reads one stream as partial results, the first and each
//! continuation with the stream's token.
//!
//! Owned here: the slices of a stream. Each has a handle of its own (the same stream, its own
//! request id), so that its event IDs lead back to it. Absent: the end of a slice (delivery), and
//! the message sent then (the dialect).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::event_log::backing::schema::Slicing;
use crate::protocol::dialect::resume_tokens::{self, Names, Renaming};
use crate::protocol::ids::Handle;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::sse;
use crate::sync;
use std::ops::Range;

/// Slices of a stream that are known by their handles: the first, and the latest. A client left
/// those in between long ago.
const KEPT: usize = 8;

/// Places in an event and their replacements, in order.
pub(in crate::event_log) type Edits = Vec<(Range<usize>, String)>;

/// One slice: a call that reads the stream for a limited time.
#[derive(Debug)]
pub struct Slice {
    names: Names,
    handle: Handle,
    ends_at: Instant,
    /// Names in the events, or `None` if they are the slice's own.
    first: Option<Names>,
}

/// An event as the client of a slice gets it, in that client's names.
pub(in crate::event_log) enum RenamedEvent {
    Unchanged,
    Changed(Edits),
    Omitted,
}

impl Slice {
    /// Returns the client's names of the call.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the slice's part of every event ID.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the time of the interim result, unless a response comes first.
    pub fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// Renames a message of the stream for the client.
    pub fn rename(&self, data: &[u8]) -> Renaming {
        self.first.as_ref().map_or(Renaming::Same, |first| resume_tokens::rename(data, first, &self.names))
    }

    /// Renames an encoded event without its id.
    pub(in crate::event_log) fn rename_event(&self, event: &[u8]) -> RenamedEvent {
        if self.first.is_none() {
            return RenamedEvent::Unchanged;
        }
        match self.rename(&sse::encoded_data(event)) {
            Renaming::Same => RenamedEvent::Unchanged,
            Renaming::Unwanted => RenamedEvent::Omitted,
            Renaming::Changed(splices) => {
                // An id or a token is always within one line.
                let place = |at| sse::encoded_place(event, at);
                let edits = splices.into_iter().map(|(span, text)| (place(span.start)..place(span.end), text));
                RenamedEvent::Changed(edits.collect())
            }
        }
    }
}

/// Slices of one stream.
#[derive(Debug)]
pub struct Slices {
    /// Description of the slices.
    pub slicing: Slicing,
    known: Mutex<VecDeque<Arc<Slice>>>,
    begun: AtomicU64,
}

impl Slices {
    pub(in crate::event_log) fn new(slicing: Slicing) -> Self {
        Self { slicing, known: Mutex::default(), begun: AtomicU64::new(0) }
    }

    /// Drops unused capacity.
    pub(in crate::event_log) fn shrink_to_fit(&mut self) {
        self.known.get_mut().unwrap_or_else(PoisonError::into_inner).shrink_to_fit();
    }

    /// Returns the memory of the slices, in bytes.
    pub(in crate::event_log) fn byte_len(&self) -> usize {
        let known = self.lock();
        let names =
            |names: &Names| names.id.text().len() + names.progress.as_ref().map_or(0, |token| token.text().len());
        let of = |slice: &Arc<Slice>| {
            let counters = 4 * size_of::<usize>();
            let first = slice.first.as_ref().map_or(0, names);
            size_of::<Slice>() + counters + slice.handle.as_str().len() + names(&slice.names) + first
        };
        let slices: usize = known.iter().map(|slice| size_of::<Arc<Slice>>() + of(slice)).sum();
        size_of::<Self>() + names(&self.slicing.first) + slices
    }

    /// Begins a slice under `handle`. It is found before older ones with the same handle.
    pub(in crate::event_log) fn begin(&self, names: Names, handle: Handle, now: Instant) -> Arc<Slice> {
        let first = if names == self.slicing.first { None } else { Some(self.slicing.first.clone()) };
        let slice = Arc::new(Slice { names, handle, ends_at: now + self.slicing.length, first });
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut known = self.lock();
        if let Some(same) = known.iter().position(|known| known.handle == slice.handle) {
            known.remove(same);
            known.insert(same, slice.clone());
        } else {
            if known.len() == KEPT {
                known.remove(1);
            }
            known.push_back(slice.clone());
        }
        slice
    }

    /// Returns the names of the known slices except the first.
    pub(in crate::event_log) fn later(&self) -> Vec<Names> {
        let known = self.lock();
        known.iter().map(|slice| slice.names.clone()).filter(|names| *names != self.slicing.first).collect()
    }

    /// Returns the number of slices ever begun.
    pub(in crate::event_log) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns the slice whose event IDs have this handle, or `None` if the call is no longer
    /// known.
    pub fn find(&self, handle: &str) -> Option<Arc<Slice>> {
        self.lock().iter().find(|slice| slice.handle.as_str() == handle).cloned()
    }

    pub(in crate::event_log) fn has(&self, id: &RequestId) -> bool {
        self.lock().iter().any(|slice| slice.names.id == *id)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Slice>>> {
        sync::lock(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;
    use crate::protocol::dialect::resume_tokens::{CallDigest, Form};
    use crate::protocol::ids::{Keyring, Owner, StoreEpoch, StreamId, StreamKind};

    fn names(id: u64) -> Names {
        Names { id: RequestId::Number(id.to_string().into()), progress: None }
    }

    fn handle(id: u64) -> Handle {
        let stream = StreamId::from_bytes([1; 12]);
        let keys = Keyring::new([7; 32], Vec::new());
        Handle::mint(&keys, StreamKind::Request, Owner(1), StoreEpoch(1), stream, [&names(id).id].into_iter(), false)
    }

    #[test]
    fn the_first_slice_and_the_latest_are_kept() {
        let sameness = CallDigest::of(b"{}", "m").unwrap();
        let slicing = Slicing { sameness, form: Form::Bare, length: Duration::from_secs(1), first: names(0) };
        let slices = Slices::new(slicing);
        let now = clock::now();
        let begin = |id: u64, now| slices.begin(names(id), handle(id), now);
        for id in 0..20 {
            begin(id, now);
        }
        let known = |id: u64| slices.find(handle(id).as_str()).is_some() && slices.has(&names(id).id);
        assert_eq!((0..20).filter(|id| known(*id)).count(), KEPT);
        assert!(known(0) && known(19) && !known(1));
        let again = begin(0, now + Duration::from_secs(5));
        let found = slices.find(handle(0).as_str()).unwrap();
        assert_eq!(found.ends_at(), again.ends_at(), "the newer of two with one handle");
        assert!(known(19), "it has taken the place of the other");
    }
}
