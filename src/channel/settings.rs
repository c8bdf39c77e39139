//! Settings of all channels of one server.

use std::time::Duration;

use super::pool::Bounds;

/// Configuration of all channels.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Largest message of a server, in bytes.
    pub message_bytes: usize,
    /// Most bytes of large messages that count for no caller, of all servers together.
    pub unclaimed_bytes: usize,
    /// Most bytes that wait to be written to one server.
    pub outgoing_bytes: usize,
    /// Most messages in an array.
    pub batch: usize,
    /// Time without a call after which a server is ended, or `None` for never.
    pub idle: Option<Duration>,
    /// Longest time from a session's `initialize` to its answer.
    pub start: Duration,
    /// Time for which a session is kept whose client gave up before it was open.
    pub keep: Duration,
    /// Bounds of servers, or `None` for servers that run already.
    pub bounds: Option<Bounds>,
    /// Callers whose sessions share a server.
    pub sharing: Sharing,
    /// True if pings of a server are answered that no client is there to answer.
    pub answers_pings: bool,
}

/// Callers of whom each has one server for all sessions with equal parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// No caller: each session has a server of its own.
    Off,
    /// Callers with credentials.
    Known,
    /// All callers. Those without credentials at one address are one caller.
    All,
}
