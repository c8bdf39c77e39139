//! Young calls: those that began a moment ago, and whose claims are deferred.
//!
//! Owned here: the queue of these calls by their age, generic over them. Absent: the claims
//! (`recovery/claims.rs`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock;
use crate::sync;

/// Age to which a call is young.
const YOUNG: Duration = Duration::from_millis(20);
/// Time by which a call is taken earlier, together with an older one.
const TOGETHER: Duration = Duration::from_millis(5);

/// Queue of young calls, none of which it keeps alive.
#[derive(Debug)]
pub(super) struct YoungCalls<T> {
    calls: Mutex<VecDeque<(Instant, Weak<T>)>>,
    /// Notified of the first call in an empty queue.
    begun: Notify,
}

impl<T> Default for YoungCalls<T> {
    fn default() -> Self {
        Self { calls: Mutex::default(), begun: Notify::new() }
    }
}

impl<T> YoungCalls<T> {
    /// Adds a call that begins now.
    pub(super) fn add(&self, call: &Arc<T>) {
        let mut calls = sync::lock(&self.calls);
        let was_empty = calls.is_empty();
        calls.push_back((clock::now(), Arc::downgrade(call)));
        // The woken task takes the lock.
        drop(calls);
        if was_empty {
            self.begun.notify_one();
        }
    }

    /// Passes each call that still exists at the end of its youth to `claim`, until dropped.
    pub(super) async fn run(&self, claim: impl Fn(Vec<Arc<T>>)) {
        loop {
            let oldest = sync::lock(&self.calls).front().map(|(began, _)| *began);
            let Some(oldest) = oldest else {
                self.begun.notified().await;
                continue;
            };
            clock::sleep_until(oldest + YOUNG).await;
            claim(self.take(clock::now()));
        }
    }

    /// Takes all calls, young or not.
    pub(super) fn take_all(&self) -> Vec<Arc<T>> {
        let calls = std::mem::take(&mut *sync::lock(&self.calls));
        calls.iter().filter_map(|(_, call)| call.upgrade()).collect()
    }

    /// Takes the calls that are no longer young, and those that are not for much longer.
    fn take(&self, now: Instant) -> Vec<Arc<T>> {
        let mut calls = sync::lock(&self.calls);
        let due = calls.partition_point(|(began, _)| *began + YOUNG <= now + TOGETHER);
        let due: Vec<_> = calls.drain(..due).collect();
        // The last user of a call is not to drop it under the lock.
        drop(calls);
        due.iter().filter_map(|(_, call)| call.upgrade()).collect()
    }
}
