//! Traces of requests: their IDs in the log, and the spans of returns.
//!
//! The lines of a request name its trace: while it is handled, while its body is written, and
//! afterwards in the tasks that it leaves. A request without a trace pays for one look at its head.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tracing::{Span, error_span};

use super::context::RequestContext;
use crate::body::{BoxBody, BoxError};
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::ids::Seq;
use crate::protocol::trace::{TraceContext, TraceId};

/// Returns the span of a request that names a trace. Its level is the highest, so that lines of
/// every level have it.
pub(super) fn span(headers: &HeaderMap) -> Option<Span> {
    TraceId::from_headers(headers).map(|trace_id| error_span!("request", %trace_id))
}

/// Records the return of a client to `stream`, by the means `how`, from its arrival until now. The
/// client continues after `cursor`. Returns the span of the return, or `None` if the call is not
/// traced.
pub(super) fn trace_return(
    context: &RequestContext,
    stream: &Stream,
    how: &'static str,
    cursor: Seq,
) -> Option<TraceContext> {
    let call = stream.trace().span()?;
    let arrival = context.arrival.as_deref();
    let named = arrival.and_then(|arrival| arrival.trace.parent);
    let mut span = call.begin_return(named, arrival.map_or_else(clock::wall, |arrival| arrival.at));
    span.set("mcp_resume.resume.by", how);
    span.set("mcp_resume.resume.after", i64::try_from(cursor.0).unwrap_or(i64::MAX));
    span.set("mcp_resume.stream.id", stream.id().to_string());
    Some(span.context())
}

/// Returns a body that is written, and dropped, in the span of its request.
pub(super) fn within(span: Span, body: BoxBody) -> BoxBody {
    Traced { span, body: Some(body) }.boxed_unsync()
}

struct Traced {
    span: Span,
    /// Body, until it is dropped.
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

/// The body is dropped in the span: the lines about a client that leaves name the trace.
impl Drop for Traced {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        self.body.take();
    }
}
