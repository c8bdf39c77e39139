//! Settings of all channels of one server.

use std::time::Duration;

use super::pool::Bounds;

/// Configuration of all channels.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Largest message of a server, in bytes.
    pub message_bytes: usize,
    /// Most bytes of large messages that count for no caller, for all servers together.
    pub unclaimed_bytes: usize,
    /// Most bytes queued for one server.
    pub outgoing_bytes: usize,
    /// Most messages in an array.
    pub batch: usize,
    /// Longest time of a server without a call before it is ended, or `None` for no limit.
    pub idle: Option<Duration>,
    /// Longest time from a session's `initialize` to its response.
    pub start: Duration,
    /// Time to keep a session whose client left before it was open.
    pub keep: Duration,
    /// Bounds of servers, or `None` for servers that the proxy does not start.
    pub bounds: Option<Bounds>,
    /// Callers whose sessions share a server.
    pub sharing: Sharing,
    /// True if the proxy responds to pings of a server that no client can respond to.
    pub answers_pings: bool,
    /// True if a server that was asked for its revisions, and has sessions, serves the first
    /// session. Else it ends.
    pub keeps_asked: bool,
}

/// Callers that have one server each for all sessions with equal parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// No caller: each session has a server of its own.
    Off,
    /// Callers with credentials.
    Known,
    /// All callers. Callers without credentials behind one address count as one.
    All,
}
