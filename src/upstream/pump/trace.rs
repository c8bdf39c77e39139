//! Spans of a call's requests to the server. Absent: the span of the call itself
//! (`event_log/stream/trace.rs`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use super::super::input::UpstreamInput;
use super::super::server::request::Template;
use super::Pump;
use crate::body::{BoxBody, BoxError};
use crate::otel::{CallEnd, CallSpan, Span, SpanKind};
use crate::protocol::error::ErrorCode;

impl Pump {
    /// Begins the span of a request. Returns the request with that span as its parent.
    pub(super) fn trace_request(&mut self, template: Arc<Template>, is_reopening: bool) -> Arc<Template> {
        self.span = None;
        let Some(call) = self.writer.stream().trace().span() else { return template };
        let mut span = call.begin("upstream", SpanKind::Client);
        span.set("http.request.method", template.method().to_string());
        span.set("mcp_resume.upstream.reopened", is_reopening);
        self.upstream.server().describe_in(&mut span);
        let template = template.below(span.context());
        self.span = Some(span);
        Arc::new(template)
    }

    /// Records the head of the response, or its absence, in the span of the request.
    pub(super) fn trace_input(&mut self, input: &UpstreamInput) {
        let Some(span) = &mut self.span else { return };
        match input {
            UpstreamInput::Head { response: Ok(response), .. } => set_status(span, response.status()),
            UpstreamInput::Revived { refusal, .. } => set_status(span, refusal.status()),
            UpstreamInput::Head { response: Err(failure), .. } => span.fail(failure.code.label()),
            UpstreamInput::Piece(_) | UpstreamInput::End(_) | UpstreamInput::Grown(_) | UpstreamInput::Body(_) => {}
        }
    }

    /// Records in the span of the request that the response has broken off.
    pub(super) fn trace_break(&mut self) {
        if let Some(span) = &mut self.span {
            span.fail(ErrorCode::UpstreamBroke.label());
        }
    }

    /// Wraps the body of a passing response, whose end also ends the spans of the request and of
    /// the call.
    pub(super) fn trace_passing(&mut self, status: StatusCode, body: BoxBody) -> BoxBody {
        let stream = self.writer.stream();
        let (Some(call), Some(request)) = (stream.trace().span().cloned(), self.span.take()) else { return body };
        let end = CallEnd { status: Some(status.as_u16()), ..stream.call_end() };
        self.is_traced_by_body = true;
        TracedBody { body, request: Some(request), call, end }.boxed_unsync()
    }
}

fn set_status(span: &mut Span, status: StatusCode) {
    span.set("http.response.status_code", i64::from(status.as_u16()));
    if status.is_client_error() || status.is_server_error() {
        span.fail(status.as_str().to_owned());
    }
}

/// Body of a response that passes through.
struct TracedBody {
    body: BoxBody,
    /// Span of the request, until the body has ended.
    request: Option<Span>,
    call: Arc<CallSpan>,
    end: CallEnd,
}

impl TracedBody {
    fn finish(&mut self, error: Option<&'static str>) {
        let Some(mut request) = self.request.take() else { return };
        if let Some(error) = error {
            request.fail(error);
            self.end.error = Some(error);
        }
        drop(request);
        self.call.end(&self.end);
    }
}

impl Body for TracedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Err(_)) => self.finish(Some(ErrorCode::UpstreamBroke.label())),
            None => self.finish(None),
            Some(Ok(_)) if self.body.is_end_stream() => self.finish(None),
            Some(Ok(_)) => {}
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

/// A client that leaves ends the response.
impl Drop for TracedBody {
    fn drop(&mut self) {
        self.finish(None);
    }
}
