//! Metrics of upstream calls.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounterVec, IntGauge};

use super::token_probe::ProbeOutcome;
use crate::event_log;
use crate::metrics::{Counter, Counters, Error, Errors, Histogram, Registrar, Repairs, Tally};
use crate::protocol::stream::Outcome;

/// Metrics of upstream calls.
pub struct Metrics {
    pub(super) errors: Arc<Errors>,
    pub(super) repairs: Arc<Repairs>,
    pub(super) event_log: Arc<event_log::Metrics>,
    open: Tally,
    sealed: Counters,
    sealed_detached: Counter,
    abandoned: Counter,
    events: Counter,
    event_bytes: Counter,
    head_seconds: Histogram,
    token_probes: IntCounterVec,
    ping_responses: IntCounterVec,
    keep_alive_pings: IntCounterVec,
    tasks_created: Counter,
    waiting: IntGauge,
    waits: IntCounterVec,
    revivals: IntCounterVec,
    ready: IntGauge,
}

/// An open call. To drop it is the end of the call, with any outcome.
pub(super) struct OpenCall(Arc<Metrics>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.open.dec();
    }
}

/// Outcome of a call's wait for a server that accepts no connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// The request was sent.
    Connected,
    /// The server accepted no connection within `upstream.wait_secs`.
    TimedOut,
    /// The call ended before its request was sent: it was cancelled, or failed for another reason.
    Ended,
}

impl WaitOutcome {
    const LABELS: [&str; 3] = ["connected", "timed_out", "ended"];

    /// Returns the name in metrics and log.
    pub(super) fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// Outcome of an attempt to open a session again that its server has forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RevivalOutcome {
    Revived,
    /// The server refused the caller.
    Unauthorized,
    /// The server was replaced by a different one, or lacks a capability.
    Differs,
    /// The client ended the session meanwhile.
    Ended,
    /// Another replica became the home of the session meanwhile.
    Displaced,
    /// The handshake failed.
    Failed,
    /// A limit forbade the attempt.
    Limited,
    /// The session lives: the server responds in it.
    Lives,
}

impl RevivalOutcome {
    const LABELS: [&str; 8] =
        ["revived", "unauthorized", "differs", "ended", "displaced", "failed", "limited", "lives"];

    /// Returns the name in metrics and log.
    pub(super) fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// Outcome of a response to a ping, or of the proxy's ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingOutcome {
    /// The server responded with 2xx.
    Accepted,
    /// The server responded with another status.
    Refused,
    /// No response came, or nothing could be sent.
    Failed,
    /// Nothing was sent: the server has refused the credentials, and no newer request has arrived.
    Withheld,
}

impl PingOutcome {
    const LABELS: [&str; 4] = ["accepted", "refused", "failed", "withheld"];

    /// Returns the name in metrics and log.
    pub(super) fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(
        registrar: &Registrar,
        errors: Arc<Errors>,
        repairs: Arc<Repairs>,
        event_log: Arc<event_log::Metrics>,
    ) -> Result<Self, Error> {
        Ok(Self {
            errors,
            repairs,
            event_log,
            open: registrar.tally("streams_open", "Streams whose upstream call runs.")?,
            sealed: registrar.counters(
                "streams_sealed_total",
                "Calls with a stream that ended, by outcome.",
                ("outcome", &Outcome::ALL.map(Outcome::label)),
            )?,
            tasks_created: registrar.counter("tasks_created_total", "Calls that became a task.")?,
            sealed_detached: registrar.counter(
                "streams_sealed_detached_total",
                "Calls with a stream that ended without a client connection.",
            )?,
            abandoned: registrar
                .counter("calls_abandoned_total", "Calls that ended because no client resumed them in time.")?,
            events: registrar.counter("upstream_events_total", "Events read from the upstream.")?,
            event_bytes: registrar
                .counter("upstream_event_bytes_total", "Bytes of data in events read from the upstream.")?,
            head_seconds: registrar.histogram(
                "upstream_head_seconds",
                "From the beginning of a call to the head of its upstream response.",
                // From a local JSON response to a call that a load balancer would have cut.
                &[0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0],
            )?,
            token_probes: registrar.family(
                "token_probes_total",
                "Probes of refreshed tokens at the upstream, by outcome.",
                ("outcome", &["genuine", "foreign", "inconclusive", "refused", "unknown"]),
            )?,
            ping_responses: registrar.family(
                "pings_answered_total",
                "Pings of the server that the proxy answered for a client, by the outcome of the answer.",
                ("outcome", &PingOutcome::LABELS),
            )?,
            keep_alive_pings: registrar.family(
                "keep_alive_pings_total",
                "Pings of the proxy in sessions where a call ran and nothing passed, by outcome.",
                ("outcome", &PingOutcome::LABELS),
            )?,
            waiting: registrar.gauge("calls_waiting", "Calls that wait for a server that accepts no connections, or for one behind a gateway that answers 502, 503 or 504.")?,
            waits: registrar.family(
                "upstream_waits_total",
                "Calls that waited for such a server, by outcome.",
                ("outcome", &WaitOutcome::LABELS),
            )?,
            revivals: registrar.family(
                "session_revivals_total",
                "Attempts to open a session again that its server had forgotten, by outcome.",
                ("outcome", &RevivalOutcome::LABELS),
            )?,
            ready: registrar.gauge("upstream_ready", "1 if the upstream accepts connections, else 0.")?,
        })
    }

    /// Counts a call that is a task from now on.
    pub(super) fn observe_task(&self) {
        self.tasks_created.inc();
    }

    /// Counts a call that begins as open, for the life of the returned value.
    pub(super) fn begin_call(self: &Arc<Self>) -> OpenCall {
        self.open.inc();
        OpenCall(self.clone())
    }

    /// Returns the number of running calls.
    pub fn open_calls(&self) -> i64 {
        self.open.get()
    }

    /// Counts a stream that was sealed, with or without a client attached.
    pub fn observe_seal(&self, outcome: Outcome, is_attached: bool) {
        self.sealed.inc(outcome as usize);
        if !is_attached {
            self.sealed_detached.inc();
        }
    }

    /// Counts a call that ended because its client did not resume it in time.
    pub fn observe_abandoned(&self) {
        self.abandoned.inc();
    }

    /// Counts events that were read from the upstream.
    pub fn observe_events(&self, events: usize, bytes: usize) {
        self.events.inc_by(events as u64);
        self.event_bytes.inc_by(bytes as u64);
    }

    /// Records the time from the beginning of a call to the head of its response.
    pub fn observe_head(&self, after: Duration) {
        self.head_seconds.observe(after.as_secs_f64());
    }

    /// Counts a call that begins to wait for the server.
    pub(super) fn observe_wait(&self) {
        self.waiting.inc();
    }

    /// Counts the end of a call's wait.
    pub(super) fn observe_wait_end(&self, outcome: WaitOutcome) {
        self.waiting.dec();
        self.waits.with_label_values(&[outcome.label()]).inc();
    }

    /// Counts an attempt to open a session again.
    pub(super) fn observe_revival(&self, outcome: RevivalOutcome) {
        self.revivals.with_label_values(&[outcome.label()]).inc();
    }

    /// Counts a probe of a token by its outcome.
    pub fn observe_probe(&self, outcome: &ProbeOutcome) {
        let outcome = match outcome {
            ProbeOutcome::Genuine => "genuine",
            ProbeOutcome::Foreign => "foreign",
            ProbeOutcome::Inconclusive => "inconclusive",
            ProbeOutcome::Refused(_) => "refused",
            ProbeOutcome::Unknown => "unknown",
        };
        self.token_probes.with_label_values(&[outcome]).inc();
    }

    /// Counts a response to a ping of the server.
    pub(super) fn observe_ping_response(&self, outcome: PingOutcome) {
        self.ping_responses.with_label_values(&[outcome.label()]).inc();
    }

    /// Counts a ping of the proxy.
    pub(super) fn observe_keep_alive_ping(&self, outcome: PingOutcome) {
        self.keep_alive_pings.with_label_values(&[outcome.label()]).inc();
    }

    /// Sets whether the upstream accepts connections.
    pub fn set_ready(&self, accepts: bool) {
        self.ready.set(i64::from(accepts));
    }
}
