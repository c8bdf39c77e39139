//! The phases and outcomes of a stream, and the effects for its caller.

use std::time::Instant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::jsonrpc::RequestId;
use crate::tasks::Continuation;

/// The outcome of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Every owed response came.
    Completed,
    /// The proxy had to write an error for at least one owed response.
    Failed,
    /// The client cancelled it.
    Cancelled,
    /// No client returned in time, the call took too long, or the session ended.
    Expired,
}

impl Outcome {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Failed, Self::Cancelled, Self::Expired];

    /// Returns the outcome in a word, for metrics, the log and the status page.
    pub fn label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

/// The phase of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No response head yet, neither the upstream's nor the proxy's.
    Waiting,
    /// The upstream's response passes as it is (JSON, an HTTP error): there is no log.
    Passed,
    /// The response is an SSE stream; events are logged.
    Open,
    /// The stream has ended; it is readable until its retention ends.
    Sealed {
        /// The outcome.
        outcome: Outcome,
        /// Time of the seal.
        at: Instant,
    },
}

/// The side whose response head the client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadOrigin {
    /// The upstream's head, as it came.
    Upstream,
    /// The proxy committed a head of its own.
    Proxy,
}

/// Work for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Announce upstream that these requests are cancelled.
    AnnounceCancel(Vec<RequestId>),
    /// Respond to this server→client request with an error, upstream.
    RefuseServerRequest(RequestId),
    /// Respond to this ping of the server with an empty result, upstream.
    AnswerPing(RequestId),
    /// Send the upstream a ping of the proxy's own in the session of the call.
    KeepAlive,
    /// Close the upstream call.
    Close,
    /// Resume the upstream's response after this event ID of its own, or open the standalone stream
    /// anew if it is `None`.
    Reopen(Option<Bytes>),
    /// Announce to the client that the upstream could not resume its response, and that messages
    /// in between are lost.
    AnnounceGap,
    /// Record in the session that the response to this request came on its standalone stream.
    RecordResponse(RequestId),
    /// Count a response whose ID was not spelled as in its request.
    RecordRespelled,
    /// Announce to the client that its session was opened again at a server that had forgotten it.
    AnnounceRevival,
    /// Make the call a task, if that is possible now.
    Promote,
    /// Call the server again with the client's responses.
    CallAgain(Continuation),
}
