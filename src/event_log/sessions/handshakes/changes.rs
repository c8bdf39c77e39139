//! Queue of the sessions whose records have changed and are to be written to the store.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use crate::protocol::headers::SessionId;
use crate::sync;

/// Limit of the queue. Beyond it a change is not written; the record in the store then ends with
/// its time, or is written at its next change.
const QUEUE_MAX: usize = 131_072;

/// Sessions whose records are to be written, each once, the first to change at the front. Empty
/// unless a store keeps the records.
#[derive(Debug, Default)]
pub struct Changes {
    /// The queue, or `None` without a store.
    queue: Mutex<Option<Queue>>,
    has_changes: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<SessionId>,
    queued: HashSet<SessionId>,
}

/// Changes of one record.
#[derive(Debug, Default)]
pub(super) struct Change(OnceLock<(SessionId, Arc<Changes>)>);

impl Changes {
    /// Begins to queue changes, for a store that keeps the records.
    pub(in crate::event_log) fn keep(&self) {
        sync::lock(&self.queue).get_or_insert_default();
    }

    /// Queues a session, unless it is queued. Its record is gone if it has ended or was evicted.
    pub fn push(&self, id: SessionId) {
        let mut queue = sync::lock(&self.queue);
        let Some(queue) = queue.as_mut() else { return };
        if queue.order.len() < QUEUE_MAX && queue.queued.insert(id.clone()) {
            queue.order.push_back(id);
            self.has_changes.notify_one();
        }
    }

    /// Takes the first session. A change from now on queues it again.
    pub(in crate::event_log) fn take(&self) -> Option<SessionId> {
        let mut queue = sync::lock(&self.queue);
        let queue = queue.as_mut()?;
        let id = queue.order.pop_front()?;
        queue.queued.remove(&id);
        Some(id)
    }

    pub(in crate::event_log) fn is_empty(&self) -> bool {
        sync::lock(&self.queue).as_ref().is_none_or(|queue| queue.order.is_empty())
    }

    /// Waits for a session that is queued, and takes the first. To be called by one task.
    pub(in crate::event_log) async fn next(&self) -> SessionId {
        loop {
            if let Some(id) = self.take() {
                return id;
            }
            self.has_changes.notified().await;
        }
    }
}

impl Change {
    /// Names the session whose record this is, and the queue. Changes before that are not queued.
    pub(super) fn note_session(&self, id: &SessionId, changes: &Arc<Changes>) {
        // A record belongs to one session.
        let _ = self.0.set((id.clone(), changes.clone()));
    }

    /// Queues the record.
    pub(super) fn note(&self) {
        if let Some((id, changes)) = self.0.get() {
            changes.push(id.clone());
        }
    }
}
