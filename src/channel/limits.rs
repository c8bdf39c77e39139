//! Bounds of one channel: bytes of a message, of a response, and of what waits to be written.

use std::sync::Arc;

use super::metrics::Metrics;
use super::partial::PartialMemory;

/// Bounds of a channel, with the counters of all channels.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Largest message of the server, in bytes.
    pub(super) message_bytes: usize,
    /// Most bytes of one response that wait to be read.
    pub(super) response_bytes: usize,
    /// Most bytes that wait to be written.
    pub(super) outgoing_bytes: usize,
    /// True if pings of the server are answered that nothing else answers.
    pub(super) answers_pings: bool,
    /// Memory of large messages that count for no caller, of all channels.
    pub(super) unclaimed: Arc<PartialMemory>,
    pub(super) metrics: Arc<Metrics>,
}
