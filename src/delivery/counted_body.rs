//! Response in memory that passes without a stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::body::BoxError;
use crate::event_log::StreamReservation;

/// Body whose bytes, and those of its call, count in a quota until its connection has taken it.
pub struct CountedBody {
    bytes: Option<Bytes>,
    _reservation: StreamReservation,
}

impl CountedBody {
    /// Creates the body `bytes` of a call with this reservation.
    pub fn new(bytes: Bytes, mut reservation: StreamReservation) -> Self {
        reservation.keep_passing(bytes.len());
        Self { bytes: Some(bytes), _reservation: reservation }
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, Bytes::len) as u64)
    }
}
