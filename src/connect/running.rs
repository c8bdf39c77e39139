//! The host's requests that have no response yet.
//!
//! Invariant: a request gets one response, from the stream that brings it first. Absent: the
//! way of a request to the far side.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, watch};

use super::keys::CallKey;
use crate::protocol::jsonrpc::RequestId;
use crate::sync;

/// Most requests of the host at once.
const MOST: usize = 1024;

/// Requests without a response.
pub(super) struct Running {
    requests: Mutex<HashMap<RequestId, Arc<Entry>>>,
    /// Number of calls of tools among them.
    tool_calls: AtomicUsize,
    /// Number of requests, and of responses so far.
    changes: watch::Sender<Counts>,
}

/// Kind of a request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Kind {
    /// True for a revision without sessions, whose cancel is the end of the response.
    pub(super) is_modern: bool,
    /// True for the call of a tool.
    pub(super) is_tool_call: bool,
    /// True for a subscription, which has no end of its own.
    pub(super) is_listen: bool,
}

/// Counts of requests, without subscriptions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    pub(super) running: usize,
    pub(super) answered: u64,
}

/// A request without a response.
#[derive(Default)]
pub(super) struct Entry {
    kind: Kind,
    state: Mutex<EntryState>,
    changed: Notify,
    /// Last key of the call at the far side.
    key: Mutex<Option<Arc<CallKey>>>,
    /// True once the far side has acknowledged the subscription.
    is_acknowledged: AtomicBool,
    /// True if the far side has written something since this was asked for.
    is_heard: AtomicBool,
}

#[derive(Default)]
struct EntryState {
    is_posted: bool,
    is_withdrawn: bool,
    is_answered: bool,
}

/// Reason why a request is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// Too many requests run.
    TooMany,
    /// A request with the ID runs.
    IdInUse,
}

/// Place of a request that its host cancels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cancelled {
    /// There is no such request, or it has its response.
    Unknown,
    /// The request was not sent, and never will be.
    Withdrawn,
    /// The far side has it.
    Sent,
}

impl Running {
    pub(super) fn new() -> Self {
        Self {
            requests: Mutex::default(),
            tool_calls: AtomicUsize::new(0),
            changes: watch::Sender::new(Counts::default()),
        }
    }

    /// Takes a request.
    pub(super) fn begin(&self, id: &RequestId, kind: Kind) -> Result<Arc<Entry>, NotTaken> {
        let mut requests = sync::lock(&self.requests);
        if requests.len() >= MOST {
            return Err(NotTaken::TooMany);
        }
        if requests.contains_key(id) {
            return Err(NotTaken::IdInUse);
        }
        let entry = Arc::new(Entry { kind, ..Entry::default() });
        self.tool_calls.fetch_add(usize::from(kind.is_tool_call), Ordering::Relaxed);
        requests.insert(id.clone(), entry.clone());
        self.changes.send_modify(|counts| counts.running += usize::from(!kind.is_listen));
        Ok(entry)
    }

    /// Ends a request: its response is about to be written. Returns false if it has one already.
    pub(super) fn answer(&self, id: &RequestId) -> bool {
        self.remove(id, true)
    }

    /// Cancels a request.
    pub(super) fn cancel(&self, id: &RequestId) -> Cancelled {
        let Some(entry) = sync::lock(&self.requests).get(id).cloned() else { return Cancelled::Unknown };
        let mut state = sync::lock(&entry.state);
        let is_sent = state.is_posted && !entry.kind.is_modern;
        state.is_withdrawn = !is_sent;
        drop(state);
        entry.changed.notify_waiters();
        self.remove(id, false);
        if is_sent { Cancelled::Sent } else { Cancelled::Withdrawn }
    }

    /// Returns true if the request has no response yet.
    pub(super) fn has(&self, id: &RequestId) -> bool {
        sync::lock(&self.requests).contains_key(id)
    }

    /// Returns true if a call of a tool has no response yet.
    pub(super) fn has_tool_calls(&self) -> bool {
        self.tool_calls.load(Ordering::Relaxed) > 0
    }

    /// Resolves once no request that was sent waits for its response. Subscriptions do not count.
    pub(super) async fn idle(&self) {
        let mut changes = self.changes();
        let runs = |entry: &Arc<Entry>| !entry.kind.is_listen && sync::lock(&entry.state).is_posted;
        loop {
            changes.borrow_and_update();
            if !sync::lock(&self.requests).values().any(runs) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns all requests, with their IDs.
    pub(super) fn all(&self) -> Vec<(RequestId, Arc<Entry>)> {
        sync::lock(&self.requests).iter().map(|(id, entry)| (id.clone(), entry.clone())).collect()
    }

    /// Returns the changes of the counts.
    pub(super) fn changes(&self) -> watch::Receiver<Counts> {
        self.changes.subscribe()
    }

    fn remove(&self, id: &RequestId, is_answered: bool) -> bool {
        let mut requests = sync::lock(&self.requests);
        let Some(entry) = requests.remove(id) else { return false };
        self.changes.send_modify(|counts| {
            counts.running -= usize::from(!entry.kind.is_listen);
            counts.answered += u64::from(is_answered);
        });
        drop(requests);
        self.tool_calls.fetch_sub(usize::from(entry.kind.is_tool_call), Ordering::Relaxed);
        sync::lock(&entry.state).is_answered = true;
        entry.changed.notify_waiters();
        true
    }
}

impl Entry {
    /// The request is about to be sent. Returns false if it was withdrawn.
    pub(super) fn post(&self) -> bool {
        let mut state = sync::lock(&self.state);
        state.is_posted = !state.is_withdrawn;
        state.is_posted
    }

    /// Returns true for a request of a revision without sessions.
    pub(super) fn is_modern(&self) -> bool {
        self.kind.is_modern
    }

    /// Keeps the key of the call, in place of an earlier one.
    pub(super) fn set_key(&self, key: CallKey) -> Arc<CallKey> {
        let key = Arc::new(key);
        *sync::lock(&self.key) = Some(key.clone());
        key
    }

    /// Returns the last key of the call, or `None` for a request without one.
    pub(super) fn key(&self) -> Option<Arc<CallKey>> {
        sync::lock(&self.key).clone()
    }

    /// The far side has acknowledged the subscription. Returns true if it had done so before.
    pub(super) fn acknowledge(&self) -> bool {
        self.is_acknowledged.swap(true, Ordering::Relaxed)
    }

    /// Returns true if the far side has acknowledged the subscription.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.is_acknowledged.load(Ordering::Relaxed)
    }

    /// The far side has written a message of the response.
    pub(super) fn hear(&self) {
        self.is_heard.store(true, Ordering::Relaxed);
    }

    /// Returns true if it has done so since the last question.
    pub(super) fn take_heard(&self) -> bool {
        self.is_heard.swap(false, Ordering::Relaxed)
    }

    /// Resolves once the request was withdrawn.
    pub(super) async fn withdrawn(&self) {
        self.wait_until(|state| state.is_withdrawn).await;
    }

    /// Resolves once the request has its response, or was withdrawn.
    pub(super) async fn ended(&self) {
        self.wait_until(|state| state.is_withdrawn || state.is_answered).await;
    }

    async fn wait_until(&self, is_met: impl Fn(&EntryState) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Enabled before the look: no change is missed in between.
            changed.as_mut().enable();
            if is_met(&sync::lock(&self.state)) {
                return;
            }
            changed.await;
        }
    }
}
