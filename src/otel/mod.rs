//! Traces of calls, for a collector of OpenTelemetry.
//!
//! A call has one span from its POST to its end, across all connections and replicas: [`CallSpan`].
//! Its requests to the server, its deliveries and its returns have spans below that one: [`Span`].
//! A span goes to the collector once it has ended, by the batch processor of the SDK and OTLP over
//! HTTP. The ID of a call's span is part of the record of its stream. So another process can add to
//! the trace, and can end the call in the place of a dead process. Invariants: without an endpoint
//! nothing here exists, and a call that is not sampled has no span. A collector that takes nothing
//! costs spans, and never a call. Absent: metrics, which are Prometheus's (`metrics`), log lines
//! (`log`), and the form of `traceparent` (`protocol`).

mod call_span;
mod error;
mod export;
mod metrics;
mod span;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use opentelemetry::trace::SpanKind;
use opentelemetry::trace::{self, SpanContext, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};

pub use self::call_span::{CallEnd, CallRecord, CallSpan};
pub use self::error::Error;
use self::export::Exporter;
pub use self::metrics::Metrics;
pub use self::span::Span;
use crate::protocol::trace::{RequestTrace, SpanId, TraceContext, TraceId};
use crate::{clock, config, random};

/// Spans that wait for the collector. Further ones are dropped.
const QUEUED_MAX: usize = 8192;
/// Spans of one request to the collector, at most.
const BATCH: usize = 512;
/// Time that spans are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// Time that the end of the process waits for the last spans.
const FLUSH: Duration = Duration::from_secs(5);

/// The spans of a process, on their way to the collector.
pub struct Traces {
    processor: BatchSpanProcessor,
    /// Spans that wait for the collector.
    queued: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    scope: InstrumentationScope,
    /// A trace that begins here is recorded if the last seven bytes of its ID are below this.
    sampled_below: u64,
}

/// Part of a span that is known from its beginning.
struct Beginning {
    context: TraceContext,
    parent: Option<TraceContext>,
    kind: SpanKind,
    began: Duration,
}

impl Traces {
    /// Starts the export, on the runtime of the caller and a thread of its own. `instance`
    /// distinguishes this process from others of the service.
    ///
    /// # Errors
    /// If the authorities or the endpoint cannot be used.
    pub fn start(config: &config::Otel, instance: String, metrics: Arc<Metrics>) -> Result<Arc<Self>, Error> {
        let queued = Arc::<AtomicUsize>::default();
        let exporter = Exporter::new(config, queued.clone(), metrics.clone())?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUED_MAX)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(GATHER)
            .build();
        let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let about = [
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance),
        ];
        let resource =
            Resource::builder().with_service_name(config.service_name.clone()).with_attributes(about).build();
        processor.set_resource(&resource);
        let scope =
            InstrumentationScope::builder(env!("CARGO_PKG_NAME")).with_version(env!("CARGO_PKG_VERSION")).build();
        let sampled_below = (1 << 56) / 100 * u64::from(config.sample_percent);
        Ok(Arc::new(Self { processor, queued, metrics, scope, sampled_below }))
    }

    /// Begins the span of a call whose request came at this time since 1970. Returns `None` for a
    /// call that is not sampled. Its sender decides. For a trace that begins here, the configured
    /// share decides.
    pub fn begin_call(self: &Arc<Self>, request: RequestTrace, came: Duration) -> Option<Arc<CallSpan>> {
        let context = match request.parent {
            Some(parent) if !parent.is_sampled => return None,
            Some(parent) => TraceContext { span: new_span(), ..parent },
            None => TraceContext { trace: self.new_trace()?, span: new_span(), is_sampled: true },
        };
        let record = CallRecord::new(context, request.parent, came);
        Some(Arc::new(CallSpan::new(self.clone(), record, request.beside)))
    }

    /// Returns the span of a call of another process, or of this one before its restart.
    pub fn restore_call(self: &Arc<Self>, record: CallRecord) -> Arc<CallSpan> {
        Arc::new(CallSpan::new(self.clone(), record, None))
    }

    /// Sends all spans that have ended, for five seconds at most. Blocks, and needs the runtime of
    /// [`Self::start`] meanwhile. Spans that end later are dropped.
    pub fn end(&self) {
        // The collector may be gone as well.
        let _ = self.processor.shutdown_with_timeout(FLUSH);
    }

    fn new_trace(&self) -> Option<TraceId> {
        let bytes: [u8; 16] = random::bytes();
        let [.., a, b, c, d, e, f, g] = bytes;
        (u64::from_be_bytes([0, a, b, c, d, e, f, g]) < self.sampled_below).then(|| TraceId::from_bytes(bytes))
    }

    /// Returns a span that ends when the caller says so.
    fn data(&self, beginning: &Beginning, name: String) -> SpanData {
        let Beginning { context, parent, kind, began } = beginning;
        let began = system_time(*began);
        SpanData {
            span_context: span_context(*context, false),
            parent_span_id: parent
                .map_or(trace::SpanId::INVALID, |parent| trace::SpanId::from_bytes(parent.span.to_bytes())),
            parent_span_is_remote: *kind == SpanKind::Server,
            span_kind: kind.clone(),
            name: name.into(),
            start_time: began,
            end_time: began,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    /// Ends a span now.
    fn end_span(&self, mut data: SpanData) {
        data.end_time = system_time(clock::wall());
        if self.queued.fetch_add(1, Ordering::Relaxed) >= QUEUED_MAX {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return self.metrics.observe_dropped();
        }
        self.processor.on_end(data);
    }
}

/// Checks the authorities of the collector as [`Traces::start`] does.
///
/// # Errors
/// If they cannot be used.
pub fn check(config: &config::Otel) -> Result<(), Error> {
    export::tls_config(config)?;
    Ok(())
}

fn new_span() -> SpanId {
    SpanId::from_bytes(random::bytes())
}

fn span_context(context: TraceContext, is_remote: bool) -> SpanContext {
    let TraceContext { trace, span, is_sampled } = context;
    let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace, span) = (trace::TraceId::from_bytes(trace.to_bytes()), trace::SpanId::from_bytes(span.to_bytes()));
    SpanContext::new(trace, span, flags, is_remote, TraceState::default())
}

fn system_time(since_1970: Duration) -> SystemTime {
    UNIX_EPOCH + since_1970
}
