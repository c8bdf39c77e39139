//! Summary of a stream for the operator: nothing that opens the stream, and of its messages only
//! the text of a task's progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event_log::stream::{Stream, task};
use crate::protocol::call_name::CallName;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::Era;
use crate::protocol::ids::{StreamId, StreamKind};
use crate::protocol::stream::Phase;
use crate::protocol::tasks::Status;

/// One stream at one moment.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Random id, which opens nothing.
    pub id: StreamId,
    /// Kind of the stream.
    pub kind: StreamKind,
    /// Era of the POST.
    pub era: Era,
    /// Name of the call, or `None` if unknown.
    pub name: Option<Arc<CallName>>,
    /// Connections that have read the stream in this process.
    pub connections: u32,
    /// State of the task, or `None` for a stream of another kind.
    pub task: Option<TaskSummary>,
    /// Error of the call, or `None`.
    pub failure: Option<ErrorCode>,
    /// Phase of the stream.
    pub phase: Phase,
    /// True if every owed response has come.
    pub is_answered: bool,
    /// True if the server waits for a client response.
    pub awaits_input: bool,
    /// True if the stream has a reader.
    pub is_attached: bool,
    /// Time since the creation.
    pub age: Duration,
    /// Time for which the stream has been attached or detached; of a task, the time since its
    /// handle or the last request of its client.
    pub reader_for: Duration,
    /// Number of events so far.
    pub events: u64,
    /// Number of events kept.
    pub kept_events: usize,
    /// Bytes of memory of the kept events.
    pub kept_bytes: usize,
}

/// One task at one moment, in the words of its client.
#[derive(Clone, Debug)]
pub struct TaskSummary {
    /// Status of the task.
    pub status: Status,
    /// Text of its last progress, or `None` if there was none.
    pub text: Option<String>,
}

impl Stream {
    /// Returns a summary for the operator.
    pub fn summary(&self, now: Instant) -> Summary {
        let legacy_task = self.legacy_view().map(|view| (view.status, view.text));
        let inner = self.shared.lock();
        let machine = &inner.machine;
        let is_task = machine.policy().is_task;
        Summary {
            id: self.shared.id,
            kind: if is_task { StreamKind::Task } else { machine.policy().kind },
            era: machine.policy().era,
            name: self.trace.name.get().cloned(),
            connections: machine.reader().connections(),
            task: legacy_task
                .or_else(|| if is_task { task::summarize(&inner) } else { None })
                .map(|(status, text)| TaskSummary { status, text }),
            failure: machine.lifecycle().failure().map(|failure| failure.code),
            phase: machine.lifecycle().phase(),
            is_answered: machine.lifecycle().is_answered(),
            awaits_input: (machine.server_requests().has_outstanding() && !machine.lifecycle().is_sealed())
                || machine.task().is_some_and(|task| task.state().awaits_client()),
            is_attached: machine.reader().is_attached(),
            age: now.saturating_duration_since(self.created),
            reader_for: now.saturating_duration_since(machine.reader().since()),
            events: machine.numbering().tail().0,
            kept_events: inner.tail.len(),
            kept_bytes: inner.tail.byte_len(),
        }
    }
}
