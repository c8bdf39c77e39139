//! Queues of messages for one reader, and back-pressure on messages that arrive faster than it
//! takes them.
//!
//! Absent: the queues of a channel (`channel/body.rs`, `channel/connection/member.rs`). They bound
//! bytes, and their writer never waits, since one channel carries all calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

/// Maximum wait of a burst for one reader. A slower reader loses messages, or its subscription.
const WAIT: Duration = Duration::from_millis(250);

/// Sending end of a bounded queue with one reader.
pub(super) struct Outbox {
    sender: mpsc::Sender<Bytes>,
    /// True after a burst has waited in vain for the reader.
    is_slow: AtomicBool,
}

impl Outbox {
    /// Creates a queue of this capacity. Returns its reading end as well.
    pub(super) fn new(capacity: usize) -> (Arc<Self>, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Arc::new(Self { sender, is_slow: AtomicBool::new(false) }), receiver)
    }

    /// Adds a message. Returns false if the queue is full, or has no reader.
    pub(super) fn send(&self, message: impl Into<Bytes>) -> bool {
        self.sender.try_send(message.into()).is_ok()
    }

    /// Returns the number of messages that the queue has room for.
    pub(super) fn room(&self) -> usize {
        self.sender.capacity()
    }

    /// Returns true while the queue has a reader.
    pub(super) fn is_read(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Waits until the queue is less than half full, for [`WAIT`] at most. After a wait in vain it
    /// waits for the reader again only once the queue was less than half full.
    pub(super) async fn wait_for_reader(&self) {
        let half = self.sender.max_capacity() / 2;
        if self.room() > half {
            self.is_slow.store(false, Ordering::Relaxed);
        } else if !self.is_slow.load(Ordering::Relaxed) {
            let waiting = tokio::time::timeout(WAIT, self.sender.reserve_many(half + 1)).await;
            // A reader that has left is not slow any more.
            self.is_slow.store(waiting.is_err(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test(start_paused = true)]
    async fn a_burst_waits_for_its_reader_but_not_for_long() {
        let (outbox, mut receiver) = Outbox::new(4);
        for _ in 0..3 {
            assert!(outbox.send("m"));
        }
        let begun = clock::now();
        outbox.wait_for_reader().await;
        outbox.wait_for_reader().await;
        assert_eq!(clock::now() - begun, WAIT);
        assert!(receiver.recv().await.is_some() && receiver.recv().await.is_some());
        outbox.wait_for_reader().await;
        let reading = tokio::spawn(async move {
            while receiver.recv().await.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(outbox.send("m") && outbox.send("m"));
        outbox.wait_for_reader().await;
        assert!(outbox.room() > 2);
        drop(outbox);
        reading.await.expect("an end");
    }
}
