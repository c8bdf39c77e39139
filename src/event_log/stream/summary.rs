//! Summary of a stream for the operator: nothing that opens the stream, and of its messages only
//! the text of a task's progress.

use std::sync::Arc;
use std::time::Duration;

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
