//! Stream table: the streams that can be found, by their ids.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use dashmap::DashMap;
use tracing::warn;

use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::quota::Quotas;
use crate::event_log::quota::largest::LargestQuotas;
use crate::event_log::stream::Stream;
use crate::event_log::stream::stub::Stub;
use crate::event_log::stream::summary::Summary;
use crate::identity::Binding;
use crate::protocol::ids::StreamId;
use crate::protocol::stream::End;

/// Streams that can be found, and their quotas.
///
/// Order of the locks: an entry of the map, then the lock of the stream in it, then the eviction
/// queues of a quota. A stream or stub that leaves the map is dropped after the guard of its entry.
/// The drop locks those queues. The drop of a stream also removes its entries of the retry index.
pub(in crate::event_log) struct StreamTable {
    pub(in crate::event_log) entries: DashMap<StreamId, StreamEntry>,
    pub(in crate::event_log) quotas: Quotas,
    pub(in crate::event_log) largest: Mutex<LargestQuotas>,
}

/// Entry of the table: a whole stream or its stub.
#[derive(Debug)]
pub(in crate::event_log) enum StreamEntry {
    Stream(Arc<Stream>),
    Stub(Box<Stub>),
}

/// Result of the replacement of a stream by its stub.
pub(in crate::event_log) struct Reduced {
    /// Calls that lead to the stub in the retry index.
    pub(in crate::event_log) calls: Vec<Fingerprint>,
    /// True if the delivery is proven.
    pub(in crate::event_log) is_proven: bool,
}

impl StreamEntry {
    pub(in crate::event_log) fn stream(&self) -> Option<&Arc<Stream>> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Stub(_) => None,
        }
    }

    pub(in crate::event_log) fn stub(&self) -> Option<&Stub> {
        match self {
            Self::Stream(_) => None,
            Self::Stub(stub) => Some(stub),
        }
    }

    pub(in crate::event_log) fn is(&self, stream: &Arc<Stream>) -> bool {
        self.stream().is_some_and(|known| Arc::ptr_eq(known, stream))
    }

    pub(in crate::event_log) fn binding(&self) -> &Binding {
        match self {
            Self::Stream(stream) => stream.binding(),
            Self::Stub(stub) => &stub.binding,
        }
    }

    pub(in crate::event_log) fn summary(&self, now: Instant) -> Summary {
        match self {
            Self::Stream(stream) => stream.summary(now),
            Self::Stub(stub) => stub.summary(now),
        }
    }
}

impl StreamTable {
    pub(in crate::event_log) fn new(quotas: Quotas) -> Self {
        Self { entries: DashMap::new(), quotas, largest: Mutex::default() }
    }

    /// Returns the stream with this id, or `None` if the table has only its stub, or nothing.
    pub(in crate::event_log) fn get(&self, id: StreamId) -> Option<Arc<Stream>> {
        self.entries.get(&id)?.stream().cloned()
    }

    /// Returns every whole stream.
    pub(in crate::event_log) fn all(&self) -> Vec<Arc<Stream>> {
        self.entries.iter().filter_map(|entry| entry.value().stream().cloned()).collect()
    }

    /// Returns the open streams that are written here.
    pub(in crate::event_log) fn open_local(&self) -> Vec<Arc<Stream>> {
        self.all().into_iter().filter(|stream| stream.replica().is_written_here()).collect()
    }

    /// Returns the ids of the stubs whose delivery is not proven.
    pub(in crate::event_log) fn unproven_stubs(&self) -> Vec<StreamId> {
        let stubs = self.entries.iter().filter(|entry| entry.value().stub().is_some_and(|stub| !stub.is_proven()));
        stubs.map(|entry| *entry.key()).collect()
    }

    /// Publishes the stream, so that resumes find it from its first id on.
    pub(in crate::event_log) fn publish_once(&self, stream: &Arc<Stream>) {
        if stream.publish_first() {
            self.entries.insert(stream.id(), StreamEntry::Stream(stream.clone()));
            // Another replica may have adopted the stream before it was published, when there was
            // no entry to remove.
            if stream.replica().has_moved() {
                self.leave(stream);
            }
        }
    }

    /// Inserts `stream` unless the table has a whole one with its id; replaces a stub. Returns
    /// whether `stream` is in the table then.
    pub(in crate::event_log) fn insert_first(&self, stream: &Arc<Stream>) -> bool {
        let mut known = self.entries.entry(stream.id()).or_insert_with(|| StreamEntry::Stream(stream.clone()));
        if known.stream().is_some() {
            return known.is(stream);
        }
        let stub = std::mem::replace(known.value_mut(), StreamEntry::Stream(stream.clone()));
        // In this order; see the locks of `StreamTable`.
        drop(known);
        drop(stub);
        true
    }

    /// Replaces `stream`, which has this `end`, by its stub if only the table and the caller have
    /// it. Returns `None` if the stream stays.
    ///
    /// Under the entry's lock no task finds the stream in the table. A task that finds it elsewhere
    /// keeps it whole. So the stub takes the state of a stream that is the caller's alone.
    pub(in crate::event_log) fn reduce(&self, stream: Arc<Stream>, end: End, now: Instant) -> Option<Reduced> {
        let mut known = self.entries.get_mut(&stream.id()).filter(|known| known.is(&stream))?;
        let stub = Stub::of(&stream, end);
        let entry = std::mem::replace(known.value_mut(), StreamEntry::Stub(stub));
        // Not the last reference: the caller has one.
        drop(entry);
        match (Arc::try_unwrap(stream), known.value_mut()) {
            (Ok(mut stream), StreamEntry::Stub(stub)) => {
                let calls = stub.fill(&mut stream, now);
                let is_proven = stub.is_proven();
                // In this order; see the locks of `StreamTable`.
                drop(known);
                drop(stream);
                Some(Reduced { calls, is_proven })
            }
            (Ok(_), StreamEntry::Stream(_)) => None,
            (Err(stream), entry) => {
                let stub = std::mem::replace(entry, StreamEntry::Stream(stream));
                drop(known);
                drop(stub);
                None
            }
        }
    }

    /// Removes `stream` if it is in the table.
    pub(in crate::event_log) fn forget(&self, stream: &Arc<Stream>) {
        self.entries.remove_if(&stream.id(), |_, known| known.is(stream));
    }

    /// Removes `stream` because another replica owns it: its readers end, and its pump is notified.
    pub(in crate::event_log) fn leave(&self, stream: &Arc<Stream>) {
        // Out of the table first: no client may find a stream that another replica continues.
        self.forget(stream);
        if stream.leave() {
            warn!(stream.id = %stream.id(), "another replica has taken the stream");
            stream.quota().global().metrics.observe_fenced();
        }
        stream.shared.pump.notify_one();
    }
}
