//! Bounds of one channel: bytes of a message, of a response, and of the queue to the server.

use std::sync::Arc;

use super::metrics::Metrics;
use super::partial::PartialMemory;

/// Bounds of a channel, with the counters of all channels.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Largest message of the server, in bytes.
    pub(super) message_bytes: usize,
    /// Most unread bytes of one response.
    pub(super) response_bytes: usize,
    /// Most bytes queued for the server.
    pub(super) outgoing_bytes: usize,
    /// True if the proxy responds to pings that no client can respond to.
    pub(super) answers_pings: bool,
    /// Memory of large messages that count for no caller, for all channels together.
    pub(super) unclaimed: Arc<PartialMemory>,
    pub(super) metrics: Arc<Metrics>,
}
