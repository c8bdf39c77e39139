//! The only source of randomness: the operating system, read in bulk.

use std::cell::RefCell;

/// Bytes that are read with one system call.
const POOL: usize = 512;

struct Pool {
    bytes: [u8; POOL],
    used: usize,
}

thread_local! {
    static POOL_OF_THREAD: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL], used: POOL }) };
}

#[cfg(feature = "simulation")]
thread_local! {
    /// State of a generator that replaces the operating system.
    static SEEDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Makes this thread take its bytes from a generator: predictable, and the same for the same seed.
#[cfg(feature = "simulation")]
pub fn seed(seed: u64) {
    SEEDED.set(Some(seed));
    POOL_OF_THREAD.with_borrow_mut(|pool| pool.used = POOL);
}

/// Returns unpredictable random bytes; each byte is used once.
///
/// # Panics
/// If the operating system has no entropy source. All supported systems have one.
pub fn bytes<const N: usize>() -> [u8; N] {
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
    #[cfg(feature = "simulation")]
    if let Some(state) = SEEDED.get() {
        return SEEDED.set(Some(generate(state, bytes)));
    }
    getrandom::fill(bytes).expect("the operating system provides randomness");
}

/// Fills `bytes` by SplitMix64 (Steele, Lea and Flood), and returns the next state. Each state has
/// a successor of its own.
#[cfg(feature = "simulation")]
fn generate(mut state: u64, bytes: &mut [u8]) -> u64 {
    for word in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..word.len()]);
    }
    state
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_differ_across_fillings() {
        let values: std::collections::HashSet<[u8; 16]> = (0..1000).map(|_| super::bytes()).collect();
        assert_eq!(values.len(), 1000);
    }

    #[cfg(feature = "simulation")]
    #[test]
    fn a_seed_gives_the_same_values_again_and_another_seed_others() {
        let values = |seed| {
            super::seed(seed);
            (0..100).map(|_| super::bytes()).collect::<Vec<[u8; 16]>>()
        };
        assert_eq!(values(1), values(1));
        assert_ne!(values(1), values(2));
    }
}
