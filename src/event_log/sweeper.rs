//! Forgets sealed streams when their retention is over.
//!
//! Unsealed streams have a pump that keeps their timers; a sealed one holds no task, so one sweeper waits for them all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock::{self, Alarm};
use crate::protocol::ids::StreamId;
use crate::sync;

/// When a stream that is being read is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The streams that are over, by the time they may be forgotten.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    due: Mutex<BinaryHeap<Reverse<(Instant, StreamId)>>>,
    earlier: Notify,
}

/// What is known of a stream whose time has come.
pub(super) enum Verdict {
    /// Forgotten, or never was.
    Gone,
    /// Somebody came back for it: look again then, or in a while if it is being read.
    Until(Option<Instant>),
}

impl Sweeper {
    /// Looks at `stream` at the given time.
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
                // Either comes round again: only the order must be the same in each simulated run.
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
