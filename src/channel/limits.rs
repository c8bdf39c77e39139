//! Bounds of one channel.

use std::sync::Arc;

use bytes::Bytes;

use super::metrics::Metrics;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::jsonrpc::RequestId;

/// Bounds of a channel, with the counters of all channels.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Most bytes of one response that wait to be read.
    pub(super) response_bytes: usize,
    /// Most bytes that wait to be written.
    pub(super) outgoing_bytes: usize,
    /// True if pings of the server are answered that nothing else answers.
    pub(super) answers_pings: bool,
    pub(super) metrics: Arc<Metrics>,
}

impl Limits {
    /// Returns the error of a call whose response has no room for its next message.
    pub(super) fn full_message(&self, id: &RequestId) -> Bytes {
        Failure::after_send(ErrorCode::BoundReached).to_message(Some(id)).into()
    }
}
