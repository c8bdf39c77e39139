//! Back-pressure on messages that arrive faster than their reader takes them.

use std::time::Duration;

use tokio::sync::mpsc;

/// Maximum wait of a burst for one reader. A slower reader loses messages, or its subscription.
const WAIT: Duration = Duration::from_millis(250);

/// Returns true if a queue is at least half full.
pub(super) fn is_pressed<T>(queue: &mpsc::Sender<T>) -> bool {
    queue.capacity() <= queue.max_capacity() / 2
}

/// Waits until a queue is less than half full. Returns false after [`WAIT`].
pub(super) async fn relieved<T>(queue: mpsc::Sender<T>) -> bool {
    let half = queue.max_capacity() / 2;
    match tokio::time::timeout(WAIT, queue.reserve_many(half + 1)).await {
        // A reader that has left is not slow any more.
        Ok(Ok(_) | Err(_)) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_waits_for_its_reader_but_not_for_long() {
        let (sender, mut receiver) = mpsc::channel(4);
        for number in 0..3 {
            sender.try_send(number).expect("room");
        }
        assert!(is_pressed(&sender) && !relieved(sender.clone()).await);
        let reading = tokio::spawn(async move {
            while receiver.recv().await.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(relieved(sender.clone()).await && !is_pressed(&sender));
        drop(sender);
        reading.await.expect("an end");
    }
}
