//! A task as its client sees it, with the members that both revisions write.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::ID_PREFIX;
use crate::ids::Handle;

/// Status of a task, as clients see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Status {
    /// The call runs.
    Working,
    /// The call waits for responses of the client.
    InputRequired,
    /// The call has a result.
    Completed,
    /// The call has an error.
    Failed,
    /// The client has cancelled the call.
    Cancelled,
}

impl Status {
    /// Returns the word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true before the end of the task.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Working | Self::InputRequired)
    }
}

/// A task at one moment. Times are wall-clock times, in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// ID.
    pub task_id: String,
    /// Status.
    pub status: Status,
    /// Text of the status, or `None` without progress.
    pub text: Option<String>,
    /// Time of the handle.
    pub created_ms: u64,
    /// Time of the last change.
    pub updated_ms: u64,
    /// Lifetime since the handle, or `None` for a task of 2025-11-25 without a requested limit.
    pub ttl_ms: Option<u64>,
    /// Poll interval for the client.
    pub poll_interval: Duration,
}

impl TaskView {
    /// Returns the ID of a task whose stream has this handle.
    pub fn id_of(handle: &Handle) -> String {
        format!("{ID_PREFIX}{}", handle.as_str())
    }

    /// Returns the members of the task in their order, under the revision's names for the lifetime
    /// and the poll interval.
    pub(super) fn members(&self, ttl: &'static str, poll_interval: &'static str) -> Vec<(&'static str, Value)> {
        let mut members = vec![("taskId", self.task_id.as_str().into()), ("status", self.status.as_str().into())];
        if let Some(text) = &self.text {
            members.push(("statusMessage", text.as_str().into()));
        }
        members.push(("createdAt", timestamp(self.created_ms).into()));
        members.push(("lastUpdatedAt", timestamp(self.updated_ms).into()));
        members.push((ttl, self.ttl_ms.into()));
        if self.status.is_open() {
            members.push((poll_interval, (self.poll_interval.as_millis() as u64).into()));
        }
        members
    }
}

/// Returns a time in the form of RFC 3339, in whole milliseconds.
fn timestamp(unix_ms: u64) -> String {
    let nanoseconds = i128::from(unix_ms) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(&Rfc3339).unwrap_or_default()
}
