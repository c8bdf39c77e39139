//! Eviction queues of a quota: its finished streams, in the order of eviction.
//!
//! Absent: the eviction itself (`writer/eviction.rs`).

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use crate::protocol::ids::StreamId;
use crate::sync;

/// Reason why a finished stream may be evicted. Streams of the first queue go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::event_log) enum EvictionQueue {
    /// The delivery of the last message is proven: what is left is the end, and for a while the
    /// last response.
    Proven,
    /// The last message was delivered.
    Delivered,
    /// The connection with the last message was closed gracefully, but the client may lack the end.
    /// The stream is evicted last, and whole.
    Unconfirmed,
}

/// Finished streams of a quota that may be evicted, by the time of queueing.
#[derive(Default)]
struct Queues {
    proven: BTreeSet<(Instant, StreamId)>,
    delivered: BTreeSet<(Instant, StreamId)>,
    /// Last stream whose front was trimmed.
    trimmed: Option<(Instant, StreamId)>,
    unconfirmed: BTreeSet<(Instant, StreamId)>,
}

impl Queues {
    fn of(&mut self, queue: EvictionQueue) -> &mut BTreeSet<(Instant, StreamId)> {
        match queue {
            EvictionQueue::Proven => &mut self.proven,
            EvictionQueue::Delivered => &mut self.delivered,
            EvictionQueue::Unconfirmed => &mut self.unconfirmed,
        }
    }
}

/// Streams of a quota that may be evicted.
#[derive(Default)]
pub(in crate::event_log) struct EvictionQueues {
    queues: Mutex<Queues>,
}

impl EvictionQueues {
    pub(in crate::event_log) fn enqueue(&self, (queue, at): (EvictionQueue, Instant), stream: StreamId) {
        self.queues().of(queue).insert((at, stream));
    }

    pub(in crate::event_log) fn dequeue(&self, (queue, at): (EvictionQueue, Instant), stream: StreamId) {
        self.queues().of(queue).remove(&(at, stream));
    }

    /// Returns the length of a queue.
    pub(in crate::event_log) fn queue_len(&self, queue: EvictionQueue) -> usize {
        self.queues().of(queue).len()
    }

    /// Takes the first stream out of a queue, with the time of queueing.
    pub(in crate::event_log) fn pop_first_of(&self, queue: EvictionQueue) -> Option<(Instant, StreamId)> {
        self.queues().of(queue).pop_first()
    }

    /// Returns the stream that was delivered first among those not yet returned by this method. The
    /// stream stays in the queue.
    pub(in crate::event_log) fn next_to_trim(&self) -> Option<StreamId> {
        let mut queues = self.queues();
        let from = queues.trimmed.map_or(Bound::Unbounded, Bound::Excluded);
        let next = *queues.delivered.range((from, Bound::Unbounded)).next()?;
        queues.trimmed = Some(next);
        Some(next.1)
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        sync::lock(&self.queues)
    }
}
