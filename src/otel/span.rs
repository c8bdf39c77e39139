//! A span in progress below the span of a call.

use std::borrow::Cow;
use std::sync::Arc;

use opentelemetry::trace::{Link, Status};
use opentelemetry::{KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SpanData;

use super::{Traces, span_context};
use crate::protocol::trace::TraceContext;

/// A span in progress. To drop it ends it.
pub struct Span {
    traces: Arc<Traces>,
    context: TraceContext,
    /// `None` once it has ended. Boxed, because spans are rare parts of what holds them.
    data: Option<Box<SpanData>>,
}

impl Span {
    pub(super) fn new(traces: Arc<Traces>, context: TraceContext, data: SpanData) -> Self {
        Self { traces, context, data: Some(Box::new(data)) }
    }

    /// Returns this span as the parent or link of others.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// Sets a new attribute of the span.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(data) = &mut self.data {
            data.attributes.push(KeyValue::new(key, value));
        }
    }

    /// Links the span to another one.
    pub fn link_to(&mut self, other: TraceContext) {
        if let Some(data) = &mut self.data {
            data.links.links.push(Link::new(span_context(other, true), Vec::new(), 0));
        }
    }

    /// Marks the span as failed by an error with this word.
    pub fn fail(&mut self, error: impl Into<Cow<'static, str>>) {
        let error = error.into();
        self.set("error.type", StringValue::from(error.clone()));
        if let Some(data) = &mut self.data {
            data.status = Status::error(error);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(data) = self.data.take() {
            self.traces.end_span(*data);
        }
    }
}
