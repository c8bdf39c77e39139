//! The single decision about each request: a connection sends it, or the call withdraws it first.
//!
//! Owned here: that decision, and the number of calls on a connection. A call and its connection
//! may decide at the same time on two threads. Invariant: no bytes of a withdrawn request leave.
//! Absent: when a call withdraws its request.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const PENDING: u8 = 0;
const SENT: u8 = 1;
const WITHDRAWN: u8 = 2;

/// True once a connection has taken the body of a request, so that the upstream may act on it.
/// Until then the request counts as unsent, after any error.
#[derive(Clone, Debug, Default)]
pub struct SentFlag(Arc<Decision>);

#[derive(Debug, Default)]
struct Decision {
    state: AtomicU8,
    /// Counts of the connection that the call waits for, if calls on it are counted.
    calls: OnceLock<Arc<Calls>>,
}

impl SentFlag {
    /// Creates a flag that is set from the beginning. It is for a passing body, or for an empty
    /// body, which no connection polls.
    pub(super) fn always_sent() -> Self {
        Self(Arc::new(Decision { state: AtomicU8::new(SENT), calls: OnceLock::new() }))
    }

    /// Returns true if a connection has taken the request.
    pub(super) fn is_sent(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == SENT
    }

    /// Marks the request as sent. Returns false if it was withdrawn: then no byte of it may leave.
    pub(super) fn mark_sent(&self) -> bool {
        match self.decide(SENT) {
            Ok(_) => {
                if let Some(calls) = self.0.calls.get() {
                    calls.record_sent();
                }
                true
            }
            Err(state) => state == SENT,
        }
    }

    /// Withdraws the request. Returns false if a connection has taken it: then the upstream may act
    /// on it.
    pub(super) fn withdraw(&self) -> bool {
        self.decide(WITHDRAWN).err() != Some(SENT)
    }

    fn decide(&self, state: u8) -> Result<u8, u8> {
        self.0.state.compare_exchange(PENDING, state, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// Counts of the calls that share a client's connection.
#[derive(Debug, Default)]
pub(super) struct Calls {
    all: AtomicUsize,
    /// Calls on the connection. A call with a flag that is always set counts from its beginning.
    in_flight: AtomicUsize,
    /// Calls that the connection has ever taken.
    sent: AtomicUsize,
}

impl Calls {
    /// Returns the number of calls that the connection has ever taken, or `None` while calls are in
    /// flight.
    pub(super) fn sent_if_idle(&self) -> Option<usize> {
        // Read and counted in this order: a call that is sent between the two reads shows in the
        // first number next time.
        let sent = self.sent.load(Ordering::Acquire);
        if self.in_flight.load(Ordering::Acquire) == 0 { Some(sent) } else { None }
    }

    fn record_sent(&self) {
        self.sent.fetch_add(1, Ordering::AcqRel);
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }
}

/// The place of one call among [`Calls`], held until the call has ended. Dropping it withdraws an
/// unsent request.
#[derive(Debug)]
pub struct Slot {
    calls: Arc<Calls>,
    sent_flag: SentFlag,
}

impl Slot {
    /// Takes a slot for the call of `sent_flag`. Returns `None` if `most` slots are taken.
    pub(super) fn take(calls: &Arc<Calls>, most: usize, sent_flag: &SentFlag) -> Option<Self> {
        let one_more = |all: usize| if all < most { Some(all + 1) } else { None };
        calls.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        if sent_flag.is_sent() {
            calls.in_flight.fetch_add(1, Ordering::AcqRel);
        } else {
            sent_flag.0.calls.get_or_init(|| calls.clone());
        }
        Some(Self { calls: calls.clone(), sent_flag: sent_flag.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.sent_flag.withdraw() {
            // A connection on another thread may not have counted the call yet: the number then
            // wraps, and is not 0 until it has.
            self.calls.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
        self.calls.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_either_sent_or_withdrawn() {
        let sent_flag = SentFlag::default();
        assert!(sent_flag.mark_sent() && sent_flag.mark_sent() && !sent_flag.withdraw() && sent_flag.is_sent());
        let withdrawn = SentFlag::default();
        assert!(withdrawn.withdraw() && withdrawn.withdraw() && !withdrawn.mark_sent() && !withdrawn.is_sent());
        assert!(!SentFlag::always_sent().withdraw(), "bytes of it may have left");
    }

    #[test]
    fn only_calls_that_a_connection_takes_count_as_sent() {
        let calls = Arc::default();
        let [waits, leaves] = [SentFlag::default(), SentFlag::default()];
        let slots = [&waits, &leaves].map(|sent_flag| Slot::take(&calls, 2, sent_flag).unwrap());
        assert!(Slot::take(&calls, 2, &SentFlag::default()).is_none());
        assert_eq!(calls.sent_if_idle(), Some(0));
        let [first, second] = slots;
        drop(second);
        assert!(!leaves.mark_sent(), "withdrawn with its slot");
        assert_eq!(calls.sent_if_idle(), Some(0), "the one that left was not sent");
        assert!(waits.mark_sent());
        assert_eq!(calls.sent_if_idle(), None, "one runs");
        drop(first);
        assert_eq!(calls.sent_if_idle(), Some(1));
        let passing = Slot::take(&calls, 2, &SentFlag::always_sent());
        assert_eq!(calls.sent_if_idle(), None, "one may run");
        drop(passing);
        assert_eq!(calls.sent_if_idle(), Some(1));
    }
}
