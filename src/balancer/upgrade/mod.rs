//! Upgrade without downtime: the running process hands its listening sockets over to the next one.
//!
//! The running process waits at a Unix socket ([`Offer`]). The next one connects when it starts
//! ([`take`]) and receives the listeners, so that both accept from the same queues. Once it serves,
//! it says so ([`offer`]); only then does the running process stop accepting
//! ([`Offer::handed_over`]). The path of the socket always leads to a process that serves.
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
//! Invariants: a next process that dies or hangs before it is ready changes nothing. There is at
//! most one next process. Only processes of the same user may connect. Every wait has a deadline,
//! except the wait for a next process. Absent: use of the listeners, and transfer of other state.
//! Without Unix sockets, listeners are neither offered nor taken.

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

/// Listening sockets, with the address that each was configured with.
pub type Listeners = Vec<(SocketAddr, TcpListener)>;

/// Listeners could not be handed over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed, or the other process ended.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The path leads to another kind of file, or to another user's socket. It is left in place.
    #[error("the path does not lead to a socket of this user")]
    NotOurSocket,
    /// Another process is taking over.
    #[error("another process is taking over")]
    Busy,
    /// The other process does not respond.
    #[error("the process there does not answer")]
    TimedOut,
    /// The other process has another protocol or version.
    #[error("the process there has another protocol: {0}")]
    Protocol(&'static str),
    /// The listeners do not fit into a message.
    #[error("too many listeners")]
    TooMany,
}
