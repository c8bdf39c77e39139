//! Queue of the sessions whose records have changed and are to be written to the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use crate::protocol::headers::SessionId;
use crate::sync;

/// Sessions whose records are to be written, the one that changed first at the front. Empty unless a store keeps the records.
#[derive(Debug, Default)]
pub(super) struct Changes {
    queue: Mutex<VecDeque<SessionId>>,
    has_changes: Notify,
    is_kept: AtomicBool,
}

/// Change of one record, which is queued once however often the record changes before it is written.
#[derive(Debug, Default)]
pub(super) struct Change {
    of: OnceLock<(SessionId, Arc<Changes>)>,
    is_queued: AtomicBool,
}

impl Changes {
    /// Begins to queue changes, for a store that keeps the records.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Queues a session.
    pub(super) fn push(&self, id: SessionId) {
        if self.is_kept.load(Ordering::Relaxed) {
            sync::lock(&self.queue).push_back(id);
            self.has_changes.notify_one();
        }
    }

    /// Takes the first session.
    pub(super) fn take(&self) -> Option<SessionId> {
        sync::lock(&self.queue).pop_front()
    }

    /// Waits for a session that is queued, and takes the first. To be called by one task.
    pub(super) async fn next(&self) -> SessionId {
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
        let _ = self.of.set((id.clone(), changes.clone()));
    }

    /// Queues the record, unless it is queued.
    pub(super) fn note(&self) {
        if let Some((id, changes)) = self.of.get()
            && !self.is_queued.swap(true, Ordering::Relaxed)
        {
            changes.push(id.clone());
        }
    }

    /// Notes that the record is about to be read for the store: a change from now on is queued again.
    pub(super) fn begin_write(&self) {
        self.is_queued.store(false, Ordering::SeqCst);
    }
}
