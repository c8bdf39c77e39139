//! Sweeper: forgets sealed streams when their retention ends.
//!
//! An open stream has a pump that runs its timers. A sealed one has no task, so one sweeper waits for all of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock::{self, Alarm};
use crate::protocol::ids::StreamId;
use crate::sync;

/// Time after which a stream with a reader is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Sealed streams, by the time of their next check.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    due: Mutex<BinaryHeap<Reverse<(Instant, StreamId)>>>,
    earlier: Notify,
}

/// Result of a check.
pub(super) enum Verdict {
    /// Forgotten now or before.
    Gone,
    /// A client resumed it: check again at this time, or after a while if it has a reader.
    Until(Option<Instant>),
}

impl Sweeper {
    /// Schedules a check of `stream` at the given time.
    pub(super) fn schedule(&self, at: Instant, stream: StreamId) {
        sync::lock(&self.due).push(Reverse((at, stream)));
        self.earlier.notify_one();
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
        sync::lock(&self.due).peek().map(|Reverse((at, _))| *at)
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
        let mut due = sync::lock(&self.due);
        match due.peek() {
            Some(Reverse((at, _))) if *at <= now => due.pop().map(|Reverse((_, stream))| stream),
            Some(_) | None => None,
        }
    }
}
