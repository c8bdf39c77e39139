//! Where a stream stands, how it ends, and what it asks of its caller.

use std::time::Instant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Every owed response came.
    Completed,
    /// The proxy had to write an error for at least one of them.
    Failed,
    /// The client cancelled it.
    Cancelled,
    /// Nobody came back in time, it took too long, or its session ended.
    Expired,
}

impl Outcome {
    /// The outcome in a word, for metrics, log and page.
    pub fn label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No response head yet, neither the upstream's nor ours.
    Waiting,
    /// The upstream's answer passes as it is (JSON, an HTTP error): there is no log.
    Passed,
    /// The response is an SSE stream; events are logged.
    Open,
    /// Ended at the given time; readable until retention is over.
    Sealed {
        /// How.
        outcome: Outcome,
        /// When.
        at: Instant,
    },
}

/// Something the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell the upstream that these requests are cancelled.
    AnnounceCancel(Vec<RequestId>),
    /// Answer this server→client request upstream with an error.
    RefuseAsk(RequestId),
    /// Close the upstream call.
    Close,
    /// Ask the upstream to go on after this event ID of its own (`None`: open the standalone stream anew).
    Reopen(Option<Bytes>),
    /// Tell the client that the upstream could not go on where it was: what it said meanwhile is lost.
    TellGap,
}

/// Where a cursor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Later events exist or may come: read on after this number.
    After(Seq),
    /// The stream is sealed and this is its end.
    AtEnd,
    /// Beyond the tail, or trimmed away.
    Lost,
}
