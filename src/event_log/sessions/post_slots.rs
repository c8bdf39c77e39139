//! Slots of a session's POSTs that wait for the upstream.
//!
//! A POST without requests holds a slot from before it is sent until the upstream has responded,
//! independent of turns. Absent: the error without a slot.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Slot of a POST that waits for the upstream, taken for the life of this value.
#[derive(Debug)]
pub struct PostSlot(Arc<PostSlots>);

impl Drop for PostSlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_one();
    }
}

/// Slots of one session.
#[derive(Debug, Default)]
pub(super) struct PostSlots {
    taken: AtomicUsize,
    freed: Notify,
}

impl PostSlots {
    /// Takes a slot, or returns `None` if all of the `most` slots are taken.
    pub(super) fn take(self: &Arc<Self>, most: usize) -> Option<PostSlot> {
        let one_more = |taken: usize| if taken < most { Some(taken + 1) } else { None };
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| PostSlot(self.clone()))
    }

    /// Takes a slot as soon as fewer than `most` are taken.
    pub(super) async fn wait(self: &Arc<Self>, most: usize) -> PostSlot {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Enabled before the look, so that a slot freed in between is noticed.
            freed.as_mut().enable();
            if let Some(slot) = self.take(most) {
                return slot;
            }
            freed.await;
        }
    }
}
