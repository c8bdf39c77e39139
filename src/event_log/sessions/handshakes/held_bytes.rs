//! Bytes of the records of handshakes: of each, and of all together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of one record. They count in the total while the record is in the table.
#[derive(Default)]
pub(super) struct HeldBytes {
    own: AtomicUsize,
    all: OnceLock<Arc<AllBytes>>,
}

/// Bytes of all records.
#[derive(Debug)]
pub(super) struct AllBytes {
    held: AtomicUsize,
    /// Limit of all records.
    most: usize,
}

impl AllBytes {
    pub(super) fn new(most: usize) -> Self {
        Self { held: AtomicUsize::new(0), most }
    }

    /// Returns the bytes of all records.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether all records hold more than they may.
    pub(super) fn are_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.most
    }
}

impl HeldBytes {
    /// Counts further bytes. Returns false if all records hold too much.
    pub(super) fn add(&self, bytes: usize) -> bool {
        self.own.fetch_add(bytes, Ordering::Relaxed);
        let Some(all) = self.all.get() else { return true };
        all.held.fetch_add(bytes, Ordering::Relaxed);
        !all.are_full()
    }

    /// Counts bytes no longer.
    pub(super) fn remove(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(all) = self.all.get() {
            all.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Counts the bytes of a record among `all` from now on.
    pub(super) fn count_in(&self, all: &Arc<AllBytes>) {
        if self.all.set(all.clone()).is_ok() {
            all.held.fetch_add(self.own.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.remove(self.own.load(Ordering::Relaxed));
    }
}
