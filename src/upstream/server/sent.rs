//! Record of a request that leaves, in the stream of its call.
//!
//! A call may have no stream while its request is in flight (`upstream/direct_call.rs`). The record
//! then waits for the stream. Absent: the decision between connection and call
//! ([`super::sent_flag`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::event_log::Stream;

/// Stream of a request, which records that bytes of it may have left.
#[derive(Clone, Debug)]
pub enum Sent {
    /// The stream of the call.
    In(Arc<Stream>),
    /// A call without a stream yet.
    Ahead(Arc<SentAhead>),
}

/// Record of a request whose call may get a stream later.
#[derive(Debug, Default)]
pub struct SentAhead {
    is_sent: AtomicBool,
    stream: OnceLock<Arc<Stream>>,
}

impl Sent {
    /// Records that bytes of the request may have left.
    pub(in crate::upstream) fn set_sent(&self) {
        match self {
            Self::In(stream) => stream.upstream().set_sent(),
            Self::Ahead(ahead) => {
                ahead.is_sent.store(true, Ordering::SeqCst);
                if let Some(stream) = ahead.stream.get() {
                    stream.upstream().set_sent();
                }
            }
        }
    }

    /// Returns the stream of the call, or `None` while it has none.
    pub(in crate::upstream) fn stream(&self) -> Option<&Arc<Stream>> {
        match self {
            Self::In(stream) => Some(stream),
            Self::Ahead(ahead) => ahead.stream.get(),
        }
    }
}

impl SentAhead {
    /// Moves the record to the stream that the call gets. To be called once.
    pub(in crate::upstream) fn move_to(&self, stream: &Arc<Stream>) {
        let _ = self.stream.set(stream.clone());
        // Read after the stream is set: a request that leaves meanwhile is recorded by either side.
        if self.is_sent.load(Ordering::SeqCst) {
            stream.upstream().set_sent();
        }
    }
}
