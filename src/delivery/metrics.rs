//! Metrics of responses on their way to clients.

use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounterVec;

use crate::event_log;
use crate::metrics::{Counter, Error, Errors, Histogram, Registrar, Tally};

/// Metrics of delivery.
pub struct Metrics {
    pub(super) errors: Arc<Errors>,
    pub(super) event_log: Arc<event_log::Metrics>,
    attached: Tally,
    takeovers: Counter,
    events: Counter,
    bytes: Counter,
    live_event_seconds: Histogram,
    beats: Counter,
    disconnects: IntCounterVec,
}

/// Means of a client to resume after its connection ended before its response did.
#[derive(Clone, Copy, Debug)]
pub enum Left {
    /// The client has an event ID to resume with.
    Resumable,
    /// The client has none: its SDK cannot resume this stream by its own rules.
    Unresumable,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar, errors: Arc<Errors>, event_log: Arc<event_log::Metrics>) -> Result<Self, Error> {
        Ok(Self {
            errors,
            event_log,
            attached: registrar.tally("streams_attached", "Streams that a connection reads.")?,
            takeovers: registrar.counter("takeovers_total", "Connections whose stream a newer one took over.")?,
            events: registrar
                .counter("delivered_events_total", "Events written downstream, again or for the first time.")?,
            bytes: registrar
                .counter("delivered_bytes_total", "Bytes of stream written downstream, heartbeats included.")?,
            live_event_seconds: registrar.histogram(
                "live_event_seconds",
                "From storing an event to writing it to the client that waits for it.",
                // From an idle machine to one where clients notice.
                &[0.000_05, 0.000_2, 0.001, 0.005, 0.02, 0.1, 0.5],
            )?,
            beats: registrar.counter(
                "progress_beats_total",
                "Progress notifications that the proxy wrote to clients while the server was silent.",
            )?,
            disconnects: registrar.family(
                "disconnects_total",
                "Clients that left before their response ended, by whether they can come back.",
                ("can_resume", &["yes", "no"]),
            )?,
        })
    }

    /// Counts a connection that began to read a stream.
    pub fn observe_attach(&self) {
        self.attached.inc();
    }

    /// Counts a connection that no longer reads a stream.
    pub fn observe_detach(&self) {
        self.attached.dec();
    }

    /// Counts a connection whose stream a newer one took over.
    pub fn observe_takeover(&self) {
        self.takeovers.inc();
    }

    /// Counts a written piece of a stream and its events: none in a heartbeat, many in a replay.
    pub fn observe_delivery(&self, events: u64, bytes: usize) {
        self.events.inc_by(events);
        self.bytes.inc_by(bytes as u64);
    }

    /// Records the time from storing the first of some events to writing them to a client that
    /// waited for them.
    pub fn observe_live_event(&self, after: Duration) {
        self.live_event_seconds.observe(after.as_secs_f64());
    }

    /// Counts progress notifications of the proxy's own.
    pub fn observe_beats(&self, beats: usize) {
        self.beats.inc_by(beats as u64);
    }

    /// Counts a client that left before its response ended.
    pub fn observe_disconnect(&self, left: Left) {
        let can_resume = match left {
            Left::Resumable => "yes",
            Left::Unresumable => "no",
        };
        self.disconnects.with_label_values(&[can_resume]).inc();
    }
}
