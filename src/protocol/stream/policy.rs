//! Rules of one stream, set by the operator's configuration and by the request.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Subject;
use crate::headers::Era;
use crate::ids::StreamKind;

/// The rules of one stream, fixed when it is created. Stores hold them, under the names that the
/// serialized form gives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// A request stream or a standalone stream.
    pub kind: StreamKind,
    /// Era of the client: decides the meaning of a disconnect.
    pub era: Era,
    /// Time before a detached stream of the legacy era is abandoned, or `None` if it is kept for
    /// ever.
    pub max_wait: Option<Duration>,
    /// Time before a detached stream of the modern era is abandoned, or `None` for twice the last
    /// `retry` and a second.
    pub modern_grace: Option<Duration>,
    /// Limit of that time for a stream of which the client has no event ID. Zero for a client that
    /// cannot come back then. Only the process that runs the call needs it.
    #[serde(skip)]
    pub unprimed_grace: Duration,
    /// True if the client can resume without an event ID, because it sent an `Idempotency-Key`.
    #[serde(rename = "keyed")]
    pub has_idempotency_key: bool,
    /// Time that a sealed stream stays readable after its seal or its last reader, the later of
    /// both.
    pub retention: Duration,
    /// Limit for the upstream call.
    pub call_timeout: Option<Duration>,
    /// Longest wait of a cancelled call for its response.
    pub cancel_grace: Duration,
    /// Longest wait of a full stream for a reader that takes something.
    pub full_wait: Duration,
    /// Time after the last owed response while further messages are logged.
    pub linger: Duration,
    /// Time without a message of the upstream before it is the client's turn to respond.
    pub input_grace: Duration,
    /// Delay before the proxy commits a response of its own, or `None` if it never does.
    pub commit_after: Option<Duration>,
    /// The `retry` sent to clients.
    pub retry: Duration,
    /// True if unwritten events pause the upstream; otherwise the oldest events are dropped.
    #[serde(rename = "pauses")]
    pub can_pause: bool,
    /// True if the upstream is resumed after a broken connection too.
    #[serde(rename = "resume_hard_cuts")]
    pub should_resume_hard_cuts: bool,
    /// Time to resume the upstream again and again after a break, counted from the call's last
    /// event, or `None` to resume it once. Only the process that runs the call needs it.
    #[serde(skip)]
    pub resumes_for: Option<Duration>,
    /// True if the client accepts no stream: server→client requests are refused on its behalf.
    #[serde(rename = "refuses_asks")]
    pub should_refuse_requests: bool,
    /// True if the proxy responds to the server's pings where the client cannot. Never in the
    /// modern era, which has no pings of the server.
    #[serde(rename = "answers_pings", default)]
    pub should_answer_pings: bool,
    /// True if an abandoned call is announced upstream by `notifications/cancelled` (never for
    /// `initialize`).
    #[serde(rename = "announces_cancel")]
    pub should_announce_cancel: bool,
    /// True if the requests of the stream are `tools/call` alone.
    #[serde(rename = "tool_call", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tool_call: bool,
    /// True for the call of a task, which is read by requests `tasks/*` alone.
    #[serde(rename = "task", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_task: bool,
    /// True if the client counts broken connections of a call, by its name: the first response
    /// after a break ends in order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counts_breaks: bool,
    /// Terms of a task of 2025-11-25, or `None` for every other stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub legacy_task: Option<LegacyTask>,
}

/// Terms of a task of 2025-11-25. Its stream is its call's, with the messages of the server;
/// `tasks/result` reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegacyTask {
    /// Time of the call by the wall clock, in milliseconds since 1970.
    pub created_ms: u64,
    /// Lifetime that the client was promised, in milliseconds, or `None` if it requested none.
    pub ttl_ms: Option<u64>,
}

impl Policy {
    /// Returns the policy of an ended call, without the rules that only a running call needs.
    pub fn of_ended(era: Era, retention: Duration, can_pause: bool) -> Self {
        Self {
            kind: StreamKind::Request,
            era,
            max_wait: None,
            modern_grace: None,
            unprimed_grace: Duration::ZERO,
            has_idempotency_key: false,
            retention,
            call_timeout: None,
            cancel_grace: Duration::ZERO,
            full_wait: Duration::ZERO,
            linger: Duration::ZERO,
            input_grace: Duration::ZERO,
            commit_after: None,
            retry: Duration::ZERO,
            can_pause,
            should_resume_hard_cuts: false,
            resumes_for: None,
            should_refuse_requests: false,
            should_answer_pings: false,
            should_announce_cancel: false,
            is_tool_call: false,
            is_task: false,
            counts_breaks: false,
            legacy_task: None,
        }
    }

    /// Returns the time before a detached stream of the modern era is abandoned, after this
    /// `retry`.
    pub fn grace(&self, last_retry: Duration) -> Duration {
        self.modern_grace.unwrap_or(last_retry * 2 + Duration::from_secs(1))
    }

    /// Returns the subject of errors in place of the stream's responses.
    pub fn subject(&self) -> Subject {
        if self.is_tool_call { Subject::ToolCall } else { Subject::Request }
    }

    /// Returns true if the events of the stream are records of a task's state, which no client
    /// reads.
    pub fn has_records(&self) -> bool {
        self.is_task && self.legacy_task.is_none()
    }
}
