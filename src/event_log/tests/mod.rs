//! Readers, the writer and the store of one stream together. Futures are polled by hand; no test
//! waits for real time.

mod claims;
mod framing;
mod homes;
mod large;
mod property;
mod quotas;
mod reading;
mod registrations;
mod replicas;
mod restoring;
mod retention;
mod sessions;
mod slow;
mod storing;
mod stubs;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::*;
use crate::clock;
use crate::config::OnUnreachable;
use crate::metrics::Registrar;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::Era;
use crate::protocol::ids::{self, Keyring, Owner, ResumeToken, Seq, StoreEpoch, StreamId, StreamKind};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Machine, Policy};
use crate::store::Store;
use crate::store::test_store::TestStore;

const RETENTION: Duration = Duration::from_secs(60);

fn log_with(store: Option<Arc<dyn Store>>) -> EventLog {
    let keys = Keyring::new([7; 32], Vec::new());
    let identity = Identity { owner: Owner(1), epoch: StoreEpoch(1), keys };
    let metrics = Arc::new(Metrics::new(&Registrar::default()).unwrap());
    let backing = store.map(|store| Backing {
        store,
        coordination: None,
        on_unreachable: OnUnreachable::Degrade,
        lease_health: Arc::default(),
        generation: Arc::default(),
        displacing: Arc::default(),
        released: Arc::default(),
        metrics: metrics.clone(),
    });
    EventLog::new(identity, TailLimits { max_bytes: 1 << 20, max_events: 10_000 }, allowance(), metrics, backing, None)
}

/// Returns the writer's next deadline, and whether it may read the upstream. No effect may be due.
fn schedule(writer: &Writer) -> (Option<Instant>, bool) {
    match writer.poll_next() {
        Next::Input { deadline, may_read, .. } => (deadline, may_read),
        Next::Effect(effect) => panic!("{effect:?} is due"),
    }
}

/// Returns the log of a replica that shares its store.
fn log_of(owner: Owner, store: Arc<TestStore>) -> EventLog {
    limited_log_of(owner, store, allowance())
}

fn limited_log_of(owner: Owner, store: Arc<TestStore>, allowance: QuotaLimits) -> EventLog {
    let keys = Keyring::new([7; 32], Vec::new());
    let metrics = Arc::new(Metrics::new(&Registrar::default()).unwrap());
    let backing = Backing {
        store: store.clone(),
        coordination: Some(store),
        on_unreachable: OnUnreachable::Degrade,
        lease_health: Arc::default(),
        generation: Arc::default(),
        displacing: Arc::default(),
        released: Arc::default(),
        metrics: metrics.clone(),
    };
    let identity = Identity { owner, epoch: StoreEpoch(1), keys };
    EventLog::new(
        identity,
        TailLimits { max_bytes: 1 << 20, max_events: 10_000 },
        allowance,
        metrics,
        Some(backing),
        None,
    )
}

/// Limits above what unrelated tests hold.
fn allowance() -> QuotaLimits {
    QuotaLimits {
        max_bytes: 1 << 26,
        max_bytes_total: 1 << 28,
        max_streams: 1000,
        max_detached: 1000,
        max_tasks: 64,
        resumes_per_sec: 1000,
        delivered_retention: Duration::from_secs(30),
        max_sessions: 65_536,
    }
}

/// Returns the quota of a caller.
fn quota(log: &EventLog, caller: u8) -> Arc<Quota> {
    log.quota(QuotaKey::Known([caller; 16]))
}

/// Creates a stream of a caller.
fn create(log: &EventLog, caller: u8) -> Arc<Stream> {
    let reservation = log.admit(quota(log, caller).reserve(0), 0).unwrap();
    log.create(spec(), reservation)
}

fn id() -> RequestId {
    RequestId::Number("1".into())
}

fn binding() -> Binding {
    Binding { principal: Principal::Anonymous, subject: None, session: None }
}

/// Specification of one request of the legacy era.
fn spec() -> Spec {
    let policy = Policy {
        kind: StreamKind::Request,
        era: Era::Legacy,
        max_wait: Some(Duration::from_secs(600)),
        modern_grace: None,
        unprimed_grace: Duration::ZERO,
        has_idempotency_key: false,
        retention: RETENTION,
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
        should_answer_pings: true,
        is_tool_call: false,
        should_announce_cancel: true,
        is_task: false,
        counts_breaks: false,
        legacy_task: None,
    };
    Spec {
        policy,
        binding: binding(),
        ids: vec![id()],
        is_batch: false,
        should_poll: false,
        body_fingerprint: None,
        slicing: None,
        get_calls: None,
        span: None,
    }
}

/// Creates a stream whose upstream has begun to respond, with its writer.
fn open(log: &EventLog) -> (Arc<Stream>, Writer) {
    let stream = create(log, 0);
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    (stream, writer)
}

fn note(n: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"n":{n}}}}}"#)
}

const RESPONSE: &str = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;

/// Returns the update of the machine for one message.
fn says(message: &str) -> impl FnOnce(&mut Machine, std::time::Instant) + '_ {
    move |machine, now| machine.handle_message(b"message", message.as_bytes(), now)
}

/// Returns an event as a client gets it.
fn wire(stream: &Stream, seq: u64, message: &str) -> String {
    let mut id = String::new();
    ids::write_event_id(&mut id, stream.handle(), Seq(seq), None).unwrap();
    format!("id: {id}\nevent: message\ndata: {message}\n\n")
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    /// Returns the number of wake-ups since the last call.
    fn rings(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// A future polled by hand, with a counting waker.
struct ByHand<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
}

impl<F: Future> ByHand<F> {
    fn new(future: F) -> Self {
        Self { future: Box::pin(future), bell: Arc::default() }
    }

    fn poll(&mut self) -> Poll<F::Output> {
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.bell.clone())))
    }
}

/// Returns the output of a future that is ready at once.
fn ready<F: Future>(future: F) -> F::Output {
    match ByHand::new(future).poll() {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it had to be ready at once"),
    }
}

/// One connection that reads as delivery does.
struct Client {
    attachment: Attachment,
    cursor: Seq,
    text: BytesMut,
    bell: Arc<Bell>,
}

impl Client {
    fn attach(stream: &Arc<Stream>, cursor: Seq) -> Self {
        let attachment = stream.attach(new_attach(), cursor);
        Self { attachment, cursor, text: BytesMut::new(), bell: Arc::default() }
    }

    /// Reads about `budget` bytes.
    fn read(&mut self, budget: usize) -> Poll<ReadOutcome> {
        let waker = Waker::from(self.bell.clone());
        let mut out = BytesMut::new();
        let outcome = self.attachment.poll_read(&mut Context::from_waker(&waker), self.cursor, &mut out, budget);
        if let Poll::Ready(ReadOutcome::Events { last, .. }) = outcome {
            self.cursor = last;
        }
        self.text.extend_from_slice(&out);
        outcome
    }

    /// Reads until it has to wait or is done; returns the last outcome.
    fn read_all(&mut self) -> Poll<ReadOutcome> {
        loop {
            match self.read(usize::MAX) {
                Poll::Ready(ReadOutcome::Events { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap()
    }
}
