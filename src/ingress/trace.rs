//! What is logged of a request names the trace it belongs to: while it is handled, while its body is written, and, with the
//! tasks that it leaves behind, afterwards. A request that names none pays for one look at its head.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tracing::{Span, error_span};

use crate::body::{BoxBody, BoxError};
use crate::protocol::trace::TraceId;

/// The span of a request that names a trace. Of the highest level, so that it is there for whatever line is logged.
pub(super) fn span(headers: &HeaderMap) -> Option<Span> {
    TraceId::from_headers(headers).map(|trace_id| error_span!("request", %trace_id))
}

/// A body that is written, and left, in the span of its request.
pub(super) fn within(span: Span, body: BoxBody) -> BoxBody {
    Traced { span, body: Some(body) }.boxed_unsync()
}

struct Traced {
    span: Span,
    /// There until it is dropped.
    body: Option<BoxBody>,
}

impl Body for Traced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { span, body } = &mut *self;
        let _entered = span.enter();
        body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

/// A client that leaves shows in the log where its body is dropped.
impl Drop for Traced {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        self.body.take();
    }
}
