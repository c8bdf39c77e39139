//! What the operator and the request decide about one stream.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::protocol::headers::Era;
use crate::protocol::ids::StreamKind;

/// What one stream lives by. Fixed when it is created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// A request stream or a standalone stream.
    pub kind: StreamKind,
    /// Decides what a disconnect means.
    pub era: Era,
    /// How long a detached stream of the legacy era is kept before it is abandoned. `None`: for ever.
    pub max_wait: Option<Duration>,
    /// The same for the modern era. `None`: twice the last `retry`, and a second.
    pub modern_grace: Option<Duration>,
    /// The client can come back without an event ID (it sent an `Idempotency-Key`).
    pub keyed: bool,
    /// How long a sealed stream stays readable after its seal and its last reader.
    pub retention: Duration,
    /// The longest the upstream call may take.
    pub call_timeout: Option<Duration>,
    /// How long a cancelled call may still answer.
    pub cancel_grace: Duration,
    /// How long a full stream waits for a reader to take something.
    pub full_wait: Duration,
    /// How long messages after the last owed response are logged.
    pub linger: Duration,
    /// How long the upstream is quiet before it is the client's turn to answer it.
    pub input_grace: Duration,
    /// When the proxy commits a response of its own. `None`: never.
    pub commit_after: Option<Duration>,
    /// The `retry` told to clients.
    pub retry: Duration,
    /// Whether unwritten events pause the upstream; otherwise the oldest go.
    pub pauses: bool,
    /// Whether the upstream is resumed after hard cuts too.
    pub resume_hard_cuts: bool,
    /// The client takes no stream: server→client requests are refused on its behalf.
    pub refuses_asks: bool,
    /// Whether an abandoned call is announced upstream by `notifications/cancelled` (never for `initialize`).
    pub announces_cancel: bool,
}

impl Policy {
    /// The policy of a call that is over: what only a running one needs is left out.
    pub fn of_ended(era: Era, retention: Duration, pauses: bool) -> Self {
        Self {
            kind: StreamKind::Request,
            era,
            max_wait: None,
            modern_grace: None,
            keyed: false,
            retention,
            call_timeout: None,
            cancel_grace: Duration::ZERO,
            full_wait: Duration::ZERO,
            linger: Duration::ZERO,
            input_grace: Duration::ZERO,
            commit_after: None,
            retry: Duration::ZERO,
            pauses,
            resume_hard_cuts: false,
            refuses_asks: false,
            announces_cancel: false,
        }
    }
}
