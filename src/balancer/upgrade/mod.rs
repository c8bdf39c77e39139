//! Upgrade without a moment at which nobody accepts: the running process hands its listening sockets to the next one.
//!
//! The running process waits at a Unix socket ([`Offer`]). The next one connects at its start ([`take`]) and is sent the listeners, so that
//! both accept from the same queues. Once it serves it says so ([`offer`]), and only then does the first one hear that it is relieved
//! ([`Offer::handed_over`]). The path of the socket changes hands in between, so that somebody is always there.
//!
//! ```text
//! running process                               next process
//!              ◄── connects ──────────────────
//!              ─── its listeners, by name ───►
//!                                               serves
//!              ◄── "ready" ───────────────────
//!              ─── "go" ─────────────────────►  renames its own socket over the path
//!              ◄── closes the connection ─────
//! drains
//! ```
//!
//! Invariants: a next process that dies or hangs before it is ready changes nothing; there is one at a time; only processes of the
//! same user talk to each other; every wait is bounded but that for a next process. Absent: what to do with the listeners, and any
//! state beside them. Where there are no Unix sockets nothing is ever offered or taken.

use std::io;
use std::net::{SocketAddr, TcpListener};

#[cfg(unix)]
mod unix;
#[cfg(not(unix))]
mod unsupported;

#[cfg(unix)]
pub use unix::{Offer, Predecessor, offer, take};
#[cfg(not(unix))]
pub use unsupported::{Offer, Predecessor, offer, take};

/// Listening sockets, by the address that each was asked for.
pub type Listeners = Vec<(SocketAddr, TcpListener)>;

/// Why listeners do not change hands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refuses something, or the other process ended.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What is at the path is something else, and stays there.
    #[error("what is there is not a socket of this user")]
    NoSocket,
    /// Another next process was first and has not ended.
    #[error("another process is taking over")]
    Busy,
    /// The other process does not answer.
    #[error("the process there does not answer")]
    TimedOut,
    /// The other process is of another kind or version.
    #[error("the process there speaks otherwise: {0}")]
    Strange(&'static str),
    /// More than a message holds.
    #[error("too many listeners")]
    TooMany,
}
