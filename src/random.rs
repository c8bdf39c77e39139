//! The only source of randomness: the operating system's, taken in bulk.

use std::cell::RefCell;

/// One system call serves this many bytes.
const POOL: usize = 512;

struct Pool {
    bytes: [u8; POOL],
    used: usize,
}

thread_local! {
    static POOL_OF_THREAD: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL], used: POOL }) };
}

/// Random bytes that nobody can guess; each is handed out once.
///
/// # Panics
/// When the operating system has no entropy source at all, which no supported system does.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    const { assert!(N <= POOL, "a value is taken from one filling") };
    POOL_OF_THREAD.with_borrow_mut(|pool| {
        if pool.used + N > POOL {
            fill(&mut pool.bytes);
            pool.used = 0;
        }
        let taken = &mut pool.bytes[pool.used..pool.used + N];
        pool.used += N;
        let mut bytes = [0; N];
        bytes.copy_from_slice(taken);
        taken.fill(0);
        bytes
    })
}

#[expect(clippy::disallowed_methods, reason = "the one place that may")]
fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system provides randomness");
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_differ_across_fillings() {
        let values: std::collections::HashSet<[u8; 16]> = (0..1000).map(|_| super::bytes()).collect();
        assert_eq!(values.len(), 1000);
    }
}
