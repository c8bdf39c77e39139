//! Data in flight: copied for a connection and not yet taken by the kernel, counted in the quota of
//! the stream's principal.
//!
//! A chunk counts until hyper drops it, which is when the socket has taken its last byte. Absent: a
//! count of small chunks. hyper keeps sixteen chunks at most, so small ones are a fixed part of
//! each connection, and an event of ordinary size costs no allocation here.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::event_log::quota::{Quota, Reservation};

/// Responses of a stream, copied for connections that take no stream.
#[derive(Debug)]
pub(in crate::event_log) struct Copied {
    /// Number of requests with a response at the time of the copy.
    pub(in crate::event_log) answered: usize,
    pub(in crate::event_log) responses: usize,
    pub(in crate::event_log) bytes: Vec<u8>,
    pub(in crate::event_log) _held: Reservation,
}

impl Copied {
    /// Returns the copy as a body, which keeps it alive.
    pub(in crate::event_log) fn into_bytes(self: Arc<Self>) -> Bytes {
        Bytes::from_owner(Body(self))
    }
}

struct Body(Arc<Copied>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// Size below which a chunk is not counted.
const COUNTED: usize = 4 * 1024;

struct InFlight {
    bytes: BytesMut,
    _held: Reservation,
}

impl AsRef<[u8]> for InFlight {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns `bytes` as a chunk of a body. A large chunk counts in `quota` until it is dropped.
pub(in crate::event_log) fn counted(quota: &Arc<Quota>, bytes: BytesMut) -> Bytes {
    if bytes.len() < COUNTED {
        return bytes.freeze();
    }
    let held = quota.reserve(bytes.capacity());
    Bytes::from_owner(InFlight { bytes, _held: held })
}
