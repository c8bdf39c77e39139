//! State of the upstream connection of a stream, as far as others than its pump need it.

use std::sync::atomic::Ordering;

use crate::event_log::stream::Stream;

/// State of a stream's upstream connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UpstreamState {
    /// No connection: none was needed yet, or it ended.
    Absent,
    /// The request was, or will be, sent, and its response has not ended.
    Requested,
    /// An event stream of the upstream is read.
    Streaming,
}

impl Stream {
    /// Sets the state of the upstream connection.
    pub fn set_upstream_state(&self, state: UpstreamState) {
        self.upstream.store(state as u8, Ordering::Relaxed);
    }

    /// Returns whether an event stream of the upstream is read for this stream.
    pub fn is_read_upstream(&self) -> bool {
        self.upstream.load(Ordering::Relaxed) == UpstreamState::Streaming as u8
    }

    /// Returns whether an upstream connection has the request and has not ended.
    pub fn is_upstream_open(&self) -> bool {
        self.upstream.load(Ordering::Relaxed) != UpstreamState::Absent as u8 && self.is_sent()
    }
}
