//! The decision on each request: a connection takes it, or it is given up before.
//!
//! Owned here: that decision, which the call and its connection may want to make at one time on two threads, and the counts from which
//! the calls that share a connection see whether it takes any. Invariant: bytes of a request that was given up never leave. Absent: when
//! a call is given up.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const WAITS: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Whether a connection has taken a request's body, so that the upstream may act on it. A request that no connection took was
/// not sent, whatever the error says.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<Taking>);

#[derive(Debug, Default)]
struct Taking {
    state: AtomicU8,
    /// The calls that it is one of, where they are counted.
    calls: OnceLock<Arc<Calls>>,
}

impl Taken {
    /// Of a body that passes through, or is empty and never asked for: nobody can tell.
    pub(super) fn passing() -> Self {
        Self(Arc::new(Taking { state: AtomicU8::new(TAKEN), calls: OnceLock::new() }))
    }

    /// Whether a connection has taken it.
    pub(super) fn is_taken(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == TAKEN
    }

    /// Takes it for a connection. Returns false where it was given up: then nothing of it may leave.
    pub(super) fn take(&self) -> bool {
        match self.decide(TAKEN) {
            Ok(_) => {
                if let Some(calls) = self.0.calls.get() {
                    calls.note_taken();
                }
                true
            }
            Err(state) => state == TAKEN,
        }
    }

    /// Gives it up. Returns false where a connection has taken it: then the upstream may act on it.
    pub(super) fn give_up(&self) -> bool {
        self.decide(GIVEN_UP).err() != Some(TAKEN)
    }

    fn decide(&self, state: u8) -> Result<u8, u8> {
        self.0.state.compare_exchange(WAITS, state, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// The calls that share a client's connection.
#[derive(Debug, Default)]
pub(super) struct Calls {
    all: AtomicUsize,
    /// Those that the connection has; a call of which nobody can tell counts as one.
    running: AtomicUsize,
    /// Those that the connection has taken, ever.
    taken: AtomicUsize,
}

impl Calls {
    /// How many calls the connection has ever taken, if it has none now.
    pub(super) fn taken_if_idle(&self) -> Option<usize> {
        // In this order, and counted in this order: a call that is taken between the two shows in the first number next time.
        let taken = self.taken.load(Ordering::Acquire);
        Some(taken).filter(|_| self.running.load(Ordering::Acquire) == 0)
    }

    fn note_taken(&self) {
        self.taken.fetch_add(1, Ordering::AcqRel);
        self.running.fetch_add(1, Ordering::AcqRel);
    }
}

/// The place of one call among [`Calls`]; dropped when the call is over. A call that was not taken until then is given up.
#[derive(Debug)]
pub struct Slot {
    calls: Arc<Calls>,
    taken: Taken,
}

impl Slot {
    /// Takes one of `most` for the call that `taken` is of, if there is one left.
    pub(super) fn take(calls: &Arc<Calls>, most: usize, taken: &Taken) -> Option<Self> {
        let one_more = |all: usize| Some(all + 1).filter(|all| *all <= most);
        calls.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        if taken.is_taken() {
            calls.running.fetch_add(1, Ordering::AcqRel);
        } else {
            taken.0.calls.get_or_init(|| calls.clone());
        }
        Some(Self { calls: calls.clone(), taken: taken.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.taken.give_up() {
            // May come before a connection on another thread has counted it: the number wraps, and is not 0 until then.
            self.calls.running.fetch_sub(1, Ordering::AcqRel);
        }
        self.calls.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_either_taken_or_given_up() {
        let taken = Taken::default();
        assert!(taken.take() && taken.take() && !taken.give_up() && taken.is_taken());
        let given_up = Taken::default();
        assert!(given_up.give_up() && given_up.give_up() && !given_up.take() && !given_up.is_taken());
        assert!(!Taken::passing().give_up(), "bytes of it may have left");
    }

    #[test]
    fn only_calls_that_a_connection_takes_count_as_taken() {
        let calls = Arc::default();
        let [waits, leaves] = [Taken::default(), Taken::default()];
        let slots = [&waits, &leaves].map(|taken| Slot::take(&calls, 2, taken).unwrap());
        assert!(Slot::take(&calls, 2, &Taken::default()).is_none());
        assert_eq!(calls.taken_if_idle(), Some(0));
        let [first, second] = slots;
        drop(second);
        assert!(!leaves.take(), "given up with its place");
        assert_eq!(calls.taken_if_idle(), Some(0), "the one that left was not taken");
        assert!(waits.take());
        assert_eq!(calls.taken_if_idle(), None, "one runs");
        drop(first);
        assert_eq!(calls.taken_if_idle(), Some(1));
        let passing = Slot::take(&calls, 2, &Taken::passing());
        assert_eq!(calls.taken_if_idle(), None, "one may run");
        drop(passing);
        assert_eq!(calls.taken_if_idle(), Some(1));
    }
}
