//! Calls of one session whose responses its GET stream may carry, and the part of one call.
//!
//! Owned here: the newest call of each request ID, because a response must never reach a later
//! request, and the wake-up of waiting deliveries when a client opens the GET stream. `S` is the
//! type of streams. Absent: the rules of a hand-over (`by_get.rs`), and its times (`delivery`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::protocol::ids::{Seq, StreamId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::request_ids::IdDigest;
use crate::sync;

/// Calls of one session, with one entry for each ID of its streams. A dropped stream removes its
/// entries.
#[derive(Debug, Default)]
pub struct GetCalls {
    newest: Mutex<HashMap<IdDigest, StreamId>>,
    /// True once an ID has named several requests: a response could reach the wrong one.
    has_free_ids: AtomicBool,
    opened: Notify,
}

impl GetCalls {
    /// Notes that the client uses request IDs freely. No response goes by GET from now on.
    pub(in crate::event_log) fn note_free_ids(&self) {
        self.has_free_ids.store(true, Ordering::Relaxed);
    }

    /// Notes that a client reads the session's GET stream from now on.
    pub fn note_opened(&self) {
        self.opened.notify_waiters();
    }

    /// Returns a future that waits for the next [`Self::note_opened`] after this call.
    pub fn opened(&self) -> Notified<'_> {
        self.opened.notified()
    }
}

/// Part of one call.
#[derive(Debug)]
pub(in crate::event_log) struct GetCall<S> {
    pub(super) calls: Arc<GetCalls>,
    stream: StreamId,
    ids: Box<[IdDigest]>,
    /// True once a task watches the call.
    is_watched: AtomicBool,
    place: Mutex<Place<S>>,
}

/// Place of the call's response.
#[derive(Debug)]
pub(super) enum Place<S> {
    /// The stream of the call.
    Own,
    /// On its way to the GET stream.
    Moving,
    /// The GET stream, up to this event of it.
    Get(Weak<S>, Seq),
    /// The client has it from the GET stream.
    Delivered,
}

impl<S> GetCall<S> {
    /// Makes `stream` the newest call of its IDs.
    pub(in crate::event_log) fn new(calls: Arc<GetCalls>, stream: StreamId, ids: &[RequestId]) -> Self {
        let call = Self::unlisted(calls, stream, ids);
        sync::lock(&call.calls.newest).extend(call.ids.iter().map(|id| (*id, stream)));
        call
    }

    /// As [`Self::new`], for a call of an earlier process: a call that has an ID already is newer.
    pub(in crate::event_log) fn of_earlier(calls: Arc<GetCalls>, stream: StreamId, ids: &[RequestId]) -> Self {
        let call = Self::unlisted(calls, stream, ids);
        let mut newest = sync::lock(&call.calls.newest);
        for id in &call.ids {
            newest.entry(*id).or_insert(stream);
        }
        drop(newest);
        call
    }

    fn unlisted(calls: Arc<GetCalls>, stream: StreamId, ids: &[RequestId]) -> Self {
        let ids = ids.iter().map(IdDigest::from).collect();
        Self { calls, stream, ids, is_watched: AtomicBool::new(false), place: Mutex::new(Place::Own) }
    }

    /// Returns true if no response can reach another request than its own.
    pub(super) fn is_unambiguous(&self) -> bool {
        if self.calls.has_free_ids.load(Ordering::Relaxed) {
            return false;
        }
        let newest = sync::lock(&self.calls.newest);
        self.ids.iter().all(|id| newest.get(id) == Some(&self.stream))
    }

    /// Returns true for the first caller alone.
    pub(super) fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::Relaxed)
    }

    pub(super) fn place(&self) -> std::sync::MutexGuard<'_, Place<S>> {
        sync::lock(&self.place)
    }
}

impl<S> Drop for GetCall<S> {
    fn drop(&mut self) {
        let mut newest = sync::lock(&self.calls.newest);
        for id in &self.ids {
            if newest.get(id) == Some(&self.stream) {
                newest.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(calls: &Arc<GetCalls>, stream: u8, ids: &[&str]) -> GetCall<()> {
        let ids: Vec<_> = ids.iter().map(|id| RequestId::from_json(id).unwrap()).collect();
        GetCall::new(calls.clone(), StreamId::from_bytes([stream; 12]), &ids)
    }

    #[test]
    fn a_later_request_takes_its_id_for_good() {
        let calls = Arc::default();
        let first = call(&calls, 1, &["7"]);
        let other = call(&calls, 2, &["\"7\"", "8"]);
        assert!(first.is_unambiguous() && other.is_unambiguous());
        let later = call(&calls, 3, &["8", "9"]);
        assert!(first.is_unambiguous() && !other.is_unambiguous() && later.is_unambiguous());
        drop(later);
        assert!(!other.is_unambiguous());
        drop((first, other));
        assert!(sync::lock(&calls.newest).is_empty());
    }

    #[test]
    fn a_call_of_an_earlier_process_takes_no_id_of_a_newer_one() {
        let calls = Arc::default();
        let newer = call(&calls, 1, &["7"]);
        let ids = ["7", "8"].map(|id| RequestId::from_json(id).unwrap());
        let earlier = |stream: u8, ids: &[RequestId]| {
            GetCall::<()>::of_earlier(calls.clone(), StreamId::from_bytes([stream; 12]), ids)
        };
        assert!(!earlier(2, &ids).is_unambiguous() && newer.is_unambiguous());
        assert!(earlier(3, &ids[1..]).is_unambiguous());
    }

    #[test]
    fn free_ids_end_it_for_all() {
        let calls = Arc::default();
        let first = call(&calls, 1, &["7"]);
        calls.note_free_ids();
        assert!(!first.is_unambiguous() && !call(&calls, 2, &["8"]).is_unambiguous());
    }
}
