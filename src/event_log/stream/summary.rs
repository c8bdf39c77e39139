//! What an operator may see of a stream: nothing that opens it, nothing that was said in it.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::call_name::CallName;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::Era;
use crate::protocol::ids::{StreamId, StreamKind};
use crate::protocol::stream::Phase;

/// One stream at one moment.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its random name, which opens nothing.
    pub id: StreamId,
    /// What it records.
    pub kind: StreamKind,
    /// The era of its POST.
    pub era: Era,
    /// What its call is, where that is known.
    pub name: Option<Arc<CallName>>,
    /// Connections that have read it in this process.
    pub connections: u32,
    /// What its call failed of.
    pub failure: Option<ErrorCode>,
    /// Where it stands.
    pub phase: Phase,
    /// Whether every response it owes is there.
    pub is_answered: bool,
    /// Whether the server waits for an answer of the client.
    pub awaits_input: bool,
    /// Whether a connection reads it.
    pub is_attached: bool,
    /// Since it was created.
    pub age: Duration,
    /// For how long it has been attached or detached.
    pub reader_for: Duration,
    /// Events it ever had.
    pub events: u64,
    /// Events that are still kept.
    pub kept_events: usize,
    /// Bytes of memory they take.
    pub kept_bytes: usize,
}
