//! Response that passes through while it still arrives. Nothing of it is kept.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tracing::info;

use super::metrics::{Left, Metrics};
use crate::body::{BoxBody, BoxError};
use crate::event_log::{Attachment, Binding, DeliverySpan};
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::StreamId;

/// Body of a passthrough response. If it is dropped before its end, its client disconnected and
/// cannot resume; that, and an upstream that breaks off, is reported to log and metrics.
pub struct Passthrough {
    body: BoxBody,
    /// Stream for the log: the stream itself need not outlive its head.
    stream: StreamId,
    binding: Binding,
    metrics: Arc<Metrics>,
    is_ended: bool,
    /// Span of the delivery, or `None` if the call is not traced.
    span: Option<Box<DeliverySpan>>,
}

impl Passthrough {
    /// Wraps `body`, the response to the request of `attachment`.
    pub fn new(body: BoxBody, mut attachment: Attachment, metrics: Arc<Metrics>) -> Self {
        let span = attachment.take_span();
        let stream = attachment.stream();
        Self { body, stream: stream.id(), binding: stream.binding().clone(), metrics, is_ended: false, span }
    }

    fn end_span(&mut self, is_whole: bool) {
        if let Some(span) = self.span.take() {
            span.end(is_whole);
        }
    }

    fn report_failure(&self, error: &BoxError) {
        let is_timeout = error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::TimedOut);
        let code = if is_timeout { ErrorCode::CallTimedOut } else { ErrorCode::UpstreamBroke };
        self.metrics.errors.observe_upstream_failure(code);
        let session = self.binding.session_hash();
        info!(stream.id = %self.stream, session = session.as_deref(), error = code.label(), "a passthrough response broke off");
    }
}

impl Body for Passthrough {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.is_ended = match &frame {
            Some(Ok(_)) => self.body.is_end_stream(),
            Some(Err(error)) => {
                self.report_failure(error);
                self.end_span(false);
                true
            }
            None => true,
        };
        if self.is_ended {
            self.end_span(true);
        }
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
        if !self.is_ended {
            self.end_span(false);
            self.metrics.observe_disconnect(Left::Unresumable);
            let session = self.binding.session_hash();
            info!(stream.id = %self.stream, session = session.as_deref(), can_resume = false, "client disconnected");
        }
    }
}
