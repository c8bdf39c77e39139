//! Hooks for simulations, compiled in by the cargo feature `simulation` alone.
//!
//! A simulated run must be the same each time, so a thread's randomness can be drawn from a seed.
//! It must also be shown that a simulation finds bugs, so bugs can be planted. Both belong to a
//! thread and are off by default. They are behind a feature because event IDs are only as secure as
//! their randomness: no production build contains a way to make it predictable. Only this crate's
//! own tests enable the feature; without it [`has`] is a constant, and the code that it guards is
//! compiled away.

#[cfg(feature = "simulation")]
use std::cell::Cell;

#[cfg(feature = "simulation")]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Bugs that can be planted. Each breaks one guarantee of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A replay begins with the last event that the client has.
    RepeatsTheCursor,
    /// A resume continues after the last written event, not after the client's cursor.
    TrustsWhatWasWritten,
    /// An event does not wake a reader at the tail.
    LosesTheWakeUp,
    /// A connection continues to read after a newer one has taken over.
    LetsTwoRead,
    /// Any caller with an event ID may read its stream.
    AdmitsAnyone,
    /// A stream is forgotten `retention` after its end, even if a client has resumed it since.
    ForgetsTheLastReader,
    /// A stream is never forgotten.
    KeepsForEver,
    /// A response begins without an id.
    LeavesThePrimeOut,
    /// A client that leaves ends its call.
    EndsWithTheClient,
    /// A client response goes upstream each time it is sent.
    ForwardsEveryAnswer,
    /// A call that the server refused with its session goes to the new session twice.
    RunsTwice,
    /// A drain does not wait for the running calls.
    DrainsPastCalls,
    /// A session that its client has ended while it was opened again stays open at the server.
    LeavesTheEnded,
    /// A request of the server keeps an ID that is still pending from an earlier session.
    ReusesIds,
    /// A cancel of a task is acknowledged, and changes nothing.
    ForgetsTheCancel,
    /// The call of a task continues twice with the responses of its client.
    GoesOnTwice,
    /// A task runs for ever without its client.
    NeverAbandonsTasks,
}

/// Draws this thread's randomness from `seed` from now on.
#[cfg(feature = "simulation")]
pub fn seed(seed: u64) {
    crate::random::seed(seed);
}

/// Plants `bug` in this thread's proxies, in place of any earlier one.
#[cfg(feature = "simulation")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Returns true if `bug` is planted; always false without the feature.
#[cfg(feature = "simulation")]
pub fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns false: no bug can be planted without the feature.
#[cfg(not(feature = "simulation"))]
pub const fn has(_: Bug) -> bool {
    false
}
