//! Sweeper: forgets sealed streams when their retention ends.
//!
//! An open stream has a pump that runs its timers. A sealed one has no task, so one sweeper waits
//! for all of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock::{self, Alarm};
use crate::protocol::ids::StreamId;
use crate::sync;

/// Delay before a stream with a reader is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Sealed streams, by the time of their next check.
#[derive(Debug)]
pub(super) struct Sweeper {
    start: Instant,
    /// The checks, each with the nanoseconds from the start to its time. Each finished call has a
    /// check, and an instant would take twice the memory.
    due: Mutex<BinaryHeap<Reverse<(u64, StreamId)>>>,
    /// Notified of a check that is due before the check that the sweeper waits for.
    earlier: Notify,
}

/// Result of a check.
pub(super) enum Verdict {
    /// Forgotten now or before.
    Gone,
    /// A client resumed it: check again at this time, or after a while if it has a reader.
    Until(Option<Instant>),
}

impl Default for Sweeper {
    fn default() -> Self {
        Self { start: clock::now(), due: Mutex::default(), earlier: Notify::default() }
    }
}

impl Sweeper {
    /// Schedules a check of `stream` at the given time.
    ///
    /// Wakes the sweeper only for a check before all others. Most streams end in the order of their
    /// retention. A wake-up of another thread costs more than the rest of a short call's end.
    pub(super) fn schedule(&self, at: Instant, stream: StreamId) {
        let at = self.nanos(at);
        let mut due = sync::lock(&self.due);
        let is_earliest = due.peek().is_none_or(|Reverse((earliest, _))| at < *earliest);
        due.push(Reverse((at, stream)));
        // The sweeper takes the lock first when it wakes.
        drop(due);
        if is_earliest {
            self.earlier.notify_one();
        }
    }

    /// Runs until dropped.
    pub(super) async fn run(&self, check_retention: impl Fn(StreamId, Instant) -> Verdict) {
        let mut alarm = Alarm::new();
        loop {
            alarm.set(self.peek());
            tokio::select! {
                // Either order is correct, but each simulated run must have the same one.
                biased;
                () = alarm.ring() => self.sweep(clock::now(), &check_retention),
                () = self.earlier.notified() => {}
            }
        }
    }

    fn peek(&self) -> Option<Instant> {
        let first = sync::lock(&self.due).peek().map(|Reverse((at, _))| *at);
        first.map(|at| self.start + Duration::from_nanos(at))
    }

    /// Returns the nanoseconds from the start to `at`, but at most about 290 years.
    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX / 2)
    }

    fn sweep(&self, now: Instant, check_retention: &impl Fn(StreamId, Instant) -> Verdict) {
        while let Some(stream) = self.take_due(now) {
            match check_retention(stream, now) {
                Verdict::Gone => {}
                Verdict::Until(at) => self.schedule(at.unwrap_or(now + LOOK_AGAIN), stream),
            }
        }
    }

    fn take_due(&self, now: Instant) -> Option<StreamId> {
        let now = self.nanos(now);
        let mut due = sync::lock(&self.due);
        match due.peek() {
            Some(Reverse((at, _))) if *at <= now => due.pop().map(|Reverse((_, stream))| stream),
            Some(_) | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn stream(n: u8) -> StreamId {
        StreamId::from_bytes([n; 12])
    }

    #[tokio::test(start_paused = true)]
    async fn each_check_comes_at_its_time_in_any_order_of_scheduling() {
        let (sweeper, start) = (Sweeper::default(), clock::now());
        let after = |secs| start + Duration::from_secs(secs);
        let checked = RefCell::new(Vec::new());
        let run = sweeper.run(|id, now| {
            checked.borrow_mut().push((id, now));
            Verdict::Gone
        });
        let schedule = async {
            // The sweeper waits without a check, then for a check. An earlier check replaces that
            // one, and a later one is between both.
            clock::sleep(Duration::from_secs(1)).await;
            sweeper.schedule(after(30), stream(1));
            clock::sleep(Duration::from_secs(1)).await;
            sweeper.schedule(after(10), stream(2));
            sweeper.schedule(after(20), stream(3));
            clock::sleep(Duration::from_secs(60)).await;
        };
        tokio::select! {
            () = run => unreachable!("the sweeper runs until dropped"),
            () = schedule => {}
        }
        assert_eq!(*checked.borrow(), [(stream(2), after(10)), (stream(3), after(20)), (stream(1), after(30))]);
    }
}
