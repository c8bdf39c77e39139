//! State of a task of 2025-11-25 beside its stream.
//!
//! `S` is the type of streams. Absent: the rules (`legacy_task.rs`).

use std::sync::{Mutex, MutexGuard, Weak};

use crate::protocol::jsonrpc::RequestId;
use crate::protocol::tasks::Status;
use crate::sync;

/// State of a task beside its stream.
#[derive(Debug)]
pub(super) struct LegacyTaskState<S>(Mutex<Notes<S>>);

#[derive(Debug)]
pub(super) struct Notes<S> {
    /// Text of the last progress.
    pub(super) text: Option<String>,
    /// Time of the last change of text or status, in milliseconds since 1970.
    pub(super) changed_ms: Option<u64>,
    /// Status and text of a task that has ended, once they were read: the response may be large.
    pub(super) outcome: Option<(Status, Option<String>)>,
    /// Requests that the client gets on another stream, with that stream.
    pub(super) elsewhere: Vec<(RequestId, Weak<S>)>,
}

impl<S> Default for LegacyTaskState<S> {
    fn default() -> Self {
        Self(Mutex::new(Notes { text: None, changed_ms: None, outcome: None, elsewhere: Vec::new() }))
    }
}

impl<S> LegacyTaskState<S> {
    pub(super) fn lock(&self) -> MutexGuard<'_, Notes<S>> {
        sync::lock(&self.0)
    }
}
