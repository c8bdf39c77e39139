//! An answer that passes while it still comes: nothing of it is kept.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tracing::info;

use super::metrics::{Left, Metrics};
use crate::body::{BoxBody, BoxError};
use crate::event_log::{Binding, Stream};
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::StreamId;

/// The body of such an answer. Dropped before its end, it is a client that left with nothing to come back with, and shows in log
/// and metrics; so does a server that breaks off.
pub struct Passthrough {
    body: BoxBody,
    /// For the log: the stream itself need not outlive its head.
    stream: StreamId,
    binding: Binding,
    metrics: Arc<Metrics>,
    ended: bool,
}

impl Passthrough {
    /// `body`, the answer of `stream`.
    pub fn new(body: BoxBody, stream: &Stream, metrics: Arc<Metrics>) -> Self {
        Self { body, stream: stream.id(), binding: stream.binding().clone(), metrics, ended: false }
    }

    fn note_failure(&self, error: &BoxError) {
        let timed_out = error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::TimedOut);
        let code = if timed_out { ErrorCode::CallTimedOut } else { ErrorCode::UpstreamBroke };
        self.metrics.errors.observe_upstream_failure(code);
        let session = self.binding.session_hash();
        info!(stream.id = %self.stream, session, error = code.label(), "an answer that passes broke off");
    }
}

impl Body for Passthrough {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.ended = match &frame {
            Some(Ok(_)) => self.body.is_end_stream(),
            Some(Err(error)) => {
                self.note_failure(error);
                true
            }
            None => true,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        if !self.ended {
            self.metrics.observe_disconnect(Left::Unresumable);
            let session = self.binding.session_hash();
            info!(stream.id = %self.stream, session, can_resume = false, "client disconnected");
        }
    }
}
