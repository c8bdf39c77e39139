//! Span of a call, from its POST to its end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::SpanKind;
use serde::{Deserialize, Serialize};

use super::span::Span;
use super::{Beginning, Traces, new_span};
use crate::clock;
use crate::protocol::call_name::CallName;
use crate::protocol::trace::TraceContext;

/// Part of a call's span for other processes. A store holds it in the record of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    #[serde(rename = "span")]
    context: TraceContext,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<TraceContext>,
    /// Time of the beginning, in microseconds since 1970.
    #[serde(rename = "began_us")]
    began: u64,
    /// True if the call continues as a task below the span of its POST.
    #[serde(default, rename = "task", skip_serializing_if = "std::ops::Not::not")]
    is_task: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<Name>,
}

/// Name of a call in its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Name {
    method: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
}

impl From<&CallName> for Name {
    fn from(name: &CallName) -> Self {
        Self { method: name.method.to_string(), tool: name.tool.as_deref().map(str::to_owned) }
    }
}

/// Span of a call. Shared by the streams of the process that read or write the call.
pub struct CallSpan {
    traces: Arc<Traces>,
    record: CallRecord,
    /// Context in another trace, from the header of the call.
    beside: Option<TraceContext>,
    is_over: AtomicBool,
}

/// End of a call.
pub struct CallEnd {
    /// Method and tool, or `None` to take the names in the record.
    pub name: Option<CallName>,
    /// ID of the stream, as the log has it.
    pub stream: String,
    /// Hash of the session, as the log has it.
    pub session: Option<String>,
    /// Word for the outcome.
    pub outcome: &'static str,
    /// Word for the error, or `None` without an error.
    pub error: Option<&'static str>,
    /// Status of a response that passed through, or `None` for a stream.
    pub status: Option<u16>,
    /// Number of events.
    pub events: u64,
    /// Number of connections of the client.
    pub connections: u32,
}

impl fmt::Debug for CallSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSpan").field("record", &self.record).finish_non_exhaustive()
    }
}

impl CallRecord {
    /// Returns the record of a call that began at this time since 1970.
    pub(super) fn new(context: TraceContext, parent: Option<TraceContext>, began: Duration) -> Self {
        let began = u64::try_from(began.as_micros()).unwrap_or(u64::MAX);
        Self { context, parent, began, is_task: false, name: None }
    }
}

impl CallSpan {
    pub(super) fn new(traces: Arc<Traces>, record: CallRecord, beside: Option<TraceContext>) -> Self {
        Self { traces, record, beside, is_over: AtomicBool::new(false) }
    }

    /// Returns the part for the record of the stream, whose call has this name.
    pub fn record(&self, name: Option<&CallName>) -> CallRecord {
        CallRecord { name: name.map(Name::from).or_else(|| self.record.name.clone()), ..self.record.clone() }
    }

    /// Returns this span as the parent or link of others.
    pub fn context(&self) -> TraceContext {
        self.record.context
    }

    /// Begins a span below this one.
    pub fn begin(&self, name: &'static str, kind: SpanKind) -> Span {
        self.begin_below(self.context(), name, kind, clock::wall())
    }

    /// Begins a span for the return of a client that came at `since_1970`. Its parent is the trace
    /// context of the request, if that is sampled, else this span. It is linked to this span in
    /// both cases.
    pub fn begin_return(&self, request: Option<TraceContext>, since_1970: Duration) -> Span {
        let parent = request.filter(|request| request.is_sampled).unwrap_or(self.context());
        let mut span = self.begin_below(parent, "resume", SpanKind::Server, since_1970);
        span.link_to(self.context());
        span
    }

    fn begin_below(&self, parent: TraceContext, name: &'static str, kind: SpanKind, began: Duration) -> Span {
        let context = TraceContext { span: new_span(), ..parent };
        let beginning = Beginning { context, parent: Some(parent), kind, began };
        Span::new(self.traces.clone(), context, self.traces.data(&beginning, name.to_owned()))
    }

    /// Returns the span of the task that continues this call, of this name.
    pub fn begin_task(&self, name: Option<&CallName>) -> Arc<Self> {
        let context = TraceContext { span: new_span(), ..self.context() };
        let record = CallRecord::new(context, Some(self.context()), clock::wall());
        let record = CallRecord { is_task: true, name: name.map(Name::from), ..record };
        Arc::new(Self::new(self.traces.clone(), record, None))
    }

    /// Ends the span. Only the first end counts.
    pub fn end(&self, end: &CallEnd) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let CallRecord { context, parent, began, is_task, name } = self.record(end.name.as_ref());
        let kind = if is_task { SpanKind::Internal } else { SpanKind::Server };
        let beginning = Beginning { context, parent, kind, began: Duration::from_micros(began) };
        let title = match &name {
            Some(Name { method, tool: Some(tool) }) => format!("{method} {tool}"),
            Some(Name { method, tool: None }) => method.clone(),
            None => "call".to_owned(),
        };
        let title = if is_task { format!("task {title}") } else { title };
        let mut span = Span::new(self.traces.clone(), context, self.traces.data(&beginning, title));
        if let Some(beside) = self.beside {
            span.link_to(beside);
        }
        if let Some(Name { method, tool }) = name {
            span.set("mcp.method.name", method);
            if let Some(tool) = tool {
                span.set("gen_ai.operation.name", "execute_tool");
                span.set("gen_ai.tool.name", tool);
            }
        }
        span.set("mcp_resume.stream.id", end.stream.clone());
        if let Some(session) = &end.session {
            span.set("mcp_resume.session", session.clone());
        }
        span.set("mcp_resume.outcome", end.outcome);
        if let Some(status) = end.status {
            span.set("http.response.status_code", i64::from(status));
        }
        span.set("mcp_resume.events", i64::try_from(end.events).unwrap_or(i64::MAX));
        span.set("mcp_resume.connections", i64::from(end.connections));
        match (end.error, end.status) {
            (Some(error), _) => span.fail(error),
            (None, Some(status @ 500..)) => span.fail(status.to_string()),
            (None, _) => {}
        }
    }
}
