//! Memory of messages that have arrived in part.
//!
//! A message counts on the quota of its stream once it is complete. Before that it is in the reader of its channel, where it may grow to the largest
//! size of a message. Owned here: the bound of all readers together. A reader beyond it ends its channel, which fails the calls there at once and frees
//! the memory; a message that was only dropped would leave its call without an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::warn;

/// Bytes of a reader that do not count: usual messages never fail for those of others.
const FREE: usize = 64 * 1024;

/// Memory of the readers of all channels.
#[derive(Debug)]
pub struct PartialMemory {
    limit: usize,
    used: AtomicUsize,
}

/// Part of the memory that one reader holds. Dropping it frees the part.
#[derive(Debug)]
pub struct PartialShare {
    memory: Arc<PartialMemory>,
    counted: usize,
}

impl PartialMemory {
    /// Creates a memory of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Returns the share of a reader, which holds nothing yet.
    pub fn share(self: &Arc<Self>) -> PartialShare {
        PartialShare { memory: self.clone(), counted: 0 }
    }
}

impl PartialShare {
    /// Notes that the reader holds this many bytes. Returns false if there is no memory for them: the channel then has to end.
    pub fn note(&mut self, held: usize) -> bool {
        let counted = held.saturating_sub(FREE);
        let before = std::mem::replace(&mut self.counted, counted);
        if counted <= before {
            self.memory.used.fetch_sub(before - counted, Ordering::Relaxed);
            return true;
        }
        let more = counted - before;
        let used = self.memory.used.fetch_add(more, Ordering::Relaxed) + more;
        if used > self.memory.limit {
            warn!(bytes = held, "a server is ended: messages that have arrived in part have no more memory");
            return false;
        }
        true
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
    fn readers_share_a_bound() {
        let memory = PartialMemory::new(1000);
        let (mut one, mut other) = (memory.share(), memory.share());
        assert!(one.note(FREE + 600));
        assert!(other.note(FREE), "usual messages need no memory");
        assert!(other.note(FREE + 400));
        assert!(!other.note(FREE + 401));
        drop(other);
        assert!(one.note(FREE + 1000));
        assert!(one.note(0));
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }
}
