//! Operations of the event log and of delivery, with the memory store.

use bytes::Bytes;
use http_body::Body as _;
use mcp_resume::delivery::{self, EarlyClose, EmptyEvents, Follow, Opening, Plan, Receipt, Receipts, Start};
use mcp_resume::event_log::{
    Attachment, Binding, EventLog, Identity, Principal, QuotaKey, QuotaLimits, Spec, Stream, TailLimits, Writer,
    new_attach,
};
use mcp_resume::protocol::error::ErrorCode;
use mcp_resume::protocol::headers::Era;
use mcp_resume::protocol::ids::{self, EventId, Keyring, Owner, Seq, StoreEpoch, StreamKind};
use mcp_resume::protocol::jsonrpc::RequestId;
use mcp_resume::protocol::stream::{Machine, Policy};
use mcp_resume::sidecar::Metrics;
use std::future::Future;
use std::hint::black_box;
use std::mem::forget;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::{MOST, Result, expect, progress};

/// Events that a resuming client has missed.
const MISSED: usize = 100;

pub(crate) fn append(times: usize) -> Result<()> {
    let proxy = Proxy::new()?;
    let (stream, writer) = proxy.open()?;
    let message = progress(1);
    for _ in 0..times {
        update(&writer, with_message(black_box(&message)))?;
    }
    let stored = stream.with_machine(|machine| machine.numbering().tail().0);
    forget((proxy, stream, writer));
    expect(usize::try_from(stored)?, times)
}

pub(crate) fn follow(times: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _guard = runtime.enter();
    let proxy = Proxy::new()?;
    let message = progress(1);
    let (mut bodies, mut writers) = (Vec::with_capacity(MOST), Vec::with_capacity(MOST));
    for _ in 0..MOST {
        let (stream, writer) = proxy.open()?;
        let mut body = proxy.follow(stream.attach(new_attach(), Seq(0)), Start::First);
        // Primed, then waiting at the tail: a connection before a lone event.
        expect(messages(&mut body, &message)?, 0)?;
        update(&writer, with_message(&message))?;
        bodies.push(body);
        writers.push(writer);
    }
    let mut delivered = 0;
    for body in bodies.iter_mut().take(times) {
        delivered += messages(black_box(body), &message)?.min(1);
    }
    forget((proxy, bodies, writers));
    expect(delivered, times)
}

pub(crate) fn resume(times: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _guard = runtime.enter();
    let proxy = Proxy::new()?;
    let (stream, writer) = proxy.open()?;
    proxy.log.publish_once(&stream);
    let message = progress(1);
    for _ in 0..MISSED {
        update(&writer, with_message(&message))?;
    }
    let mut id = String::new();
    ids::write_event_id(&mut id, stream.handle(), Seq(0), None)?;
    let mut delivered = 0;
    for _ in 0..times {
        let id = EventId::parse(black_box(id.as_bytes())).ok_or("not an event ID")?;
        let (stream, cursor) = proxy.log.find(proxy.log.verify(&id).as_ref(), &binding()).ok_or("no such stream")?;
        let mut body = proxy.follow(stream.attach(new_attach(), cursor), Start::After(cursor));
        delivered += messages(&mut body, &message)?.min(MISSED);
    }
    forget((proxy, stream, writer));
    expect(delivered, MISSED * times)
}

/// The parts of the proxy behind its sockets.
struct Proxy {
    log: Arc<EventLog>,
    metrics: Arc<delivery::Metrics>,
    receipts: Arc<Receipts>,
}

impl Proxy {
    fn new() -> Result<Self> {
        let identity = Identity { owner: Owner(1), epoch: StoreEpoch(1), keys: Keyring::new([7; 32], Vec::new()) };
        let metrics = Metrics::new()?.ingress;
        let log = EventLog::new(identity, BOUNDS, ALLOWANCE, metrics.event_log.clone(), None, None);
        Ok(Self { log: Arc::new(log), metrics: metrics.delivery.clone(), receipts: Arc::default() })
    }

    /// A stream whose upstream has begun to respond, and its writer.
    fn open(&self) -> Result<(Arc<Stream>, Writer)> {
        let quota = self.log.quota(QuotaKey::Known([1; 16]));
        let reservation = self.log.admit(quota.reserve(0), 0).map_err(ErrorCode::label)?;
        let stream = self.log.create(spec(), reservation);
        let writer = self.log.writer(&stream);
        update(&writer, |machine, _| machine.handle_stream_head())?;
        Ok((stream, writer))
    }

    fn follow(&self, attachment: Attachment, start: Start) -> Follow {
        let receipt = Receipt::new(self.log.clone(), attachment.stream().clone());
        Follow::new(attachment, receipt, self.receipts.clone(), self.metrics.clone(), plan(), start)
    }
}

/// Limits that no operation here reaches.
const BOUNDS: TailLimits = TailLimits { max_bytes: 1 << 30, max_events: 1 << 20 };
const ALLOWANCE: QuotaLimits = QuotaLimits {
    max_bytes: 1 << 30,
    max_bytes_total: 1 << 31,
    max_streams: 2 * MOST,
    max_detached: 2 * MOST,
    max_tasks: 64,
    resumes_per_sec: 1000,
    delivered_retention: Duration::from_secs(30),
    max_sessions: 65_536,
};

fn binding() -> Binding {
    Binding { principal: Principal::Anonymous, subject: None, session: None }
}

/// A tool call of the legacy era.
fn spec() -> Spec {
    let policy = Policy {
        kind: StreamKind::Request,
        era: Era::Legacy,
        max_wait: Some(Duration::from_secs(600)),
        modern_grace: None,
        unprimed_grace: Duration::ZERO,
        has_idempotency_key: false,
        retention: Duration::from_secs(300),
        call_timeout: None,
        cancel_grace: Duration::from_secs(5),
        full_wait: Duration::from_secs(30),
        linger: Duration::from_secs(1),
        input_grace: Duration::from_secs(1),
        commit_after: None,
        retry: Duration::from_secs(1),
        can_pause: true,
        should_resume_hard_cuts: false,
        resumes_for: None,
        should_refuse_requests: false,
        is_tool_call: false,
        should_announce_cancel: true,
        is_task: false,
        counts_breaks: false,
        legacy_task: None,
        should_answer_pings: true,
    };
    Spec {
        policy,
        binding: binding(),
        ids: vec![RequestId::Number("1".into())],
        is_batch: false,
        should_poll: false,
        body_fingerprint: None,
        slicing: None,
        get_calls: None,
        span: None,
    }
}

fn plan() -> Plan {
    Plan {
        opening: Opening::PrimingEvent,
        empty_events: EmptyEvents::Untyped,
        retry: Duration::from_secs(1),
        later_retry: None,
        should_recount: false,
        // No timer expires here, even if valgrind stretches a second.
        heartbeat: Duration::from_secs(3600),
        early_close: EarlyClose::Never,
        should_end_at_turn: false,
        preface: None,
        closing: None,
        interim: None,
        beats: None,
    }
}

/// The machine's input for one message.
fn with_message(message: &str) -> impl FnOnce(&mut Machine, Instant) {
    |machine, now| machine.handle_message(b"message", message.as_bytes(), now)
}

/// The memory store has finished an update when it is first polled.
fn update<R>(writer: &Writer, handle: impl FnOnce(&mut Machine, Instant) -> R) -> Result<R> {
    match pin!(writer.update(handle)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Ok(result),
        Poll::Pending => Err("an update had to wait".into()),
    }
}

/// Takes the next piece of `body`; returns the number of messages of the size of `message` that it
/// may hold.
fn messages(body: &mut Follow, message: &str) -> Result<usize> {
    match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => Ok(frame.data_ref().map_or(0, Bytes::len) / message.len()),
        Poll::Ready(Some(Err(error))) => Err(error),
        Poll::Ready(None) | Poll::Pending => Err("a response had no bytes".into()),
    }
}
