//! Memory of large messages that count for no caller: messages of no call, or of calls without a
//! stream.
//!
//! An incomplete message is in the reader of its channel, where it may grow to the largest size of
//! a message. Owned here: the limit of all such messages together. Absent: messages of a call with
//! a stream, which count in the quota of its caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory of all channels.
#[derive(Debug)]
pub(super) struct PartialMemory {
    limit: usize,
    used: AtomicUsize,
}

/// The memory of one message. Dropping it frees that memory.
#[derive(Debug)]
pub(super) struct PartialShare {
    memory: Arc<PartialMemory>,
    counted: usize,
}

impl PartialMemory {
    /// Creates a memory of `limit` bytes.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Returns an empty share for a message.
    pub(super) fn share(self: &Arc<Self>) -> PartialShare {
        PartialShare { memory: self.clone(), counted: 0 }
    }
}

impl PartialShare {
    /// Sets the size of the message in bytes. Returns false if a larger size exceeds the limit.
    pub(super) fn resize(&mut self, counted: usize) -> bool {
        let before = std::mem::replace(&mut self.counted, counted);
        if counted <= before {
            self.memory.used.fetch_sub(before - counted, Ordering::Relaxed);
            return true;
        }
        let more = counted - before;
        self.memory.used.fetch_add(more, Ordering::Relaxed) + more <= self.memory.limit
    }
}

impl Drop for PartialShare {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_share_a_bound() {
        let memory = PartialMemory::new(1000);
        let (mut one, mut other) = (memory.share(), memory.share());
        assert!(one.resize(600));
        assert!(other.resize(400));
        assert!(!other.resize(401));
        drop(other);
        assert!(one.resize(1000));
        assert!(one.resize(0));
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }
}
