//! Locks of plain state, and values in parts by thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Locks `mutex`, also after a panic of an earlier holder: every critical section of the program
/// leaves valid state behind.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Limit of the parts of a value: with more threads, some of them share a part.
const MAX_PARTS: usize = 64;

/// A value in parts. Each thread uses a part of its own. Threads that write to one part move its
/// memory from core to core, and each write then costs as much as a hundred instructions. A reader
/// of the whole value visits all parts.
#[derive(Debug)]
pub struct PerThread<T>(Box<[Part<T>]>);

/// Part with cache lines of its own: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part<T>(T);

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

impl<T> PerThread<T> {
    /// Makes a part for each thread that this machine can run at once, with some to spare for
    /// threads that mostly wait.
    pub fn new(make: impl FnMut() -> T) -> Self {
        static PARTS: LazyLock<usize> = LazyLock::new(|| {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            (threads * 2).next_power_of_two().min(MAX_PARTS)
        });
        Self(std::iter::repeat_with(make).take(*PARTS).map(Part).collect())
    }

    /// Returns the part of the current thread.
    pub fn own(&self) -> &T {
        // The number of parts is a power of two.
        &self.0[thread_number() & (self.0.len() - 1)].0
    }

    /// Returns all parts.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|Part(part)| part)
    }
}

/// Returns the number of the current thread, in the order of their first calls.
fn thread_number() -> usize {
    const NONE: usize = usize::MAX;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    }
    let known = NUMBER.get();
    if known != NONE {
        return known;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_always_has_the_same_part_and_shares_it_only_if_there_are_too_few() {
        let parts = PerThread::<AtomicUsize>::default();
        let address = || std::ptr::from_ref(parts.own()).addr();
        let mut own: Vec<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..parts.0.len()).map(|_| scope.spawn(|| (address(), address()))).collect();
            let found = threads.into_iter().map(|thread| thread.join().unwrap());
            found.inspect(|(first, second)| assert_eq!(first, second)).map(|(first, _)| first).collect()
        });
        own.sort_unstable();
        assert!(own.iter().all(|address| address % 128 == 0));
        // Threads of other tests may have taken numbers in between.
        own.dedup();
        assert!(own.len() > 1 || parts.0.len() == 1);
    }
}
