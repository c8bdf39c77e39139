//! Ends of the spans of a stream: its call and its deliveries. Absent: the export (`otel`), and
//! spans of requests to the server (`upstream`).

use crate::event_log::stream::Stream;
use crate::event_log::stream::response_head::Head;
use crate::otel::{CallEnd, Span, SpanKind};
use crate::protocol::ids::{AttachId, Seq};
use crate::protocol::stream::{Machine, Outcome, Phase};
use crate::protocol::trace::TraceContext;

/// Attribute for the end of a delivery.
const END: &str = "mcp_resume.delivery.end";

/// Span of the delivery on one connection.
pub struct DeliverySpan {
    span: Span,
    /// Position at which the connection began.
    after: Seq,
}

impl Stream {
    /// Ends the span of the call, with the outcome as the stream has it now. Only the first end
    /// counts, in this process. A stream that another replica has taken is ended there.
    pub fn end_span(&self) {
        if let Some(span) = self.trace.span().filter(|_| !self.shared.lock().has_moved) {
            span.end(&self.call_end());
        }
    }

    /// Returns the end of the call for its span, as the stream has it now.
    pub fn call_end(&self) -> CallEnd {
        let head = self.head_now();
        let (failure, status) = match &head {
            Head::Plain(plain) => (None, Some(plain.status.as_u16())),
            Head::Failed(failure) => (Some(*failure), Some(failure.code.http_status())),
            Head::Waiting | Head::Committed | Head::TakenOver | Head::Stream(..) => (None, None),
        };
        self.with_machine(|machine| {
            let failure = machine.lifecycle().failure().or(failure);
            CallEnd {
                name: self.trace.name().cloned(),
                stream: self.shared.id.to_string(),
                session: self.binding.session_hash().as_deref().map(str::to_owned),
                outcome: match machine.lifecycle().phase() {
                    _ if self.task.get().is_some() => "task",
                    Phase::Passed if failure.is_some() => Outcome::Failed.label(),
                    Phase::Passed => "passed",
                    Phase::Waiting | Phase::Open | Phase::Sealed { .. } => {
                        machine.lifecycle().ending().map_or("unknown", |outcome| outcome.label())
                    }
                },
                error: failure.map(|failure| failure.code.label()),
                status,
                events: machine.numbering().tail().0,
                connections: machine.reader().connections(),
            }
        })
    }
}

impl DeliverySpan {
    /// Begins the span of a connection that reads after this position. Returns `None` if the call
    /// is not traced.
    pub(super) fn begin(stream: &Stream, after: Seq) -> Option<Box<Self>> {
        let call = stream.trace().span()?;
        Some(Box::new(Self { span: call.begin("delivery", SpanKind::Internal), after }))
    }

    pub(super) fn link_to(&mut self, request: TraceContext) {
        self.span.link_to(request);
    }

    /// Ends the span of a response that passes through: whole, or interrupted.
    pub fn end(mut self, is_whole: bool) {
        self.span.set(END, if is_whole { "complete" } else { "interrupted" });
    }

    /// Returns the span with all that is known when the connection ends, and before its reader is
    /// detached.
    pub(super) fn ended(mut self, machine: &Machine, attach: AttachId) -> Span {
        // A client may leave with the last response.
        let has_all = machine.lifecycle().is_sealed() || machine.lifecycle().is_answered();
        let is_complete = has_all && machine.reader().written() >= machine.numbering().tail();
        let end = if !machine.reader().is(attach) {
            "taken_over"
        } else if is_complete || machine.lifecycle().phase() == Phase::Passed {
            "complete"
        } else {
            "interrupted"
        };
        let number = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
        self.span.set("mcp_resume.delivery.after", number(self.after));
        self.span.set("mcp_resume.delivery.written", number(machine.reader().written()));
        self.span.set(END, end);
        self.span
    }
}
