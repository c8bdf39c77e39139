//! Hooks for simulations, compiled in by the cargo feature `simulation` alone.
//!
//! A simulated run must be the same each time, so this thread's randomness can be drawn from a seed; and it must be shown that
//! a simulation finds what it looks for, so bugs can be planted. Both belong to a thread and are off until a simulation asks.
//! They are a feature, and no hidden function, because event IDs are only as good as their randomness: no build that serves
//! anybody contains a way to make it guessable. The feature is switched on by this crate's own tests and by nothing else; without
//! it [`has`] is a constant, and what it guards is compiled away.

#![cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "public where the feature is on"))]

#[cfg(feature = "simulation")]
use std::cell::Cell;

#[cfg(feature = "simulation")]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// What a simulation can break. Each breaks one promise of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A replay begins with the event that the client has.
    RepeatsTheCursor,
    /// A resume goes on after what was written, not after what the client says it has.
    TrustsWhatWasWritten,
    /// A reader at the tail is not woken by an event.
    LosesTheWakeUp,
    /// A connection goes on reading when a newer one has taken over.
    LetsTwoRead,
    /// A stream is anybody's who has its event ID.
    AdmitsAnyone,
    /// A stream is forgotten `retention` after its end, whoever came back to it since.
    ForgetsTheLastReader,
    /// A stream is never forgotten.
    KeepsForEver,
    /// A response begins without an id.
    LeavesThePrimeOut,
    /// A client that leaves ends its call.
    EndsWithTheClient,
    /// A client's answer goes upstream each time it is given.
    ForwardsEveryAnswer,
}

/// Draws this thread's randomness from `seed` from now on.
#[cfg(feature = "simulation")]
pub fn seed(seed: u64) {
    crate::random::seed(seed);
}

/// This thread's proxies have `bug` from now on, and no other.
#[cfg(feature = "simulation")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether `bug` is planted: never, where the feature is off.
#[cfg(feature = "simulation")]
pub(crate) fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "simulation"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}
