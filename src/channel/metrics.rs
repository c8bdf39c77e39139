//! Metrics of channels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::{IntCounterVec, IntGauge};

use crate::metrics::{Error, Registrar, Repairs};

/// Metrics of all channels.
#[derive(Debug)]
pub struct Metrics {
    open: IntGauge,
    starts: IntCounterVec,
    ends: IntCounterVec,
    skipped: IntCounterVec,
    /// Lines that were no JSON-RPC messages, of the server with the most; no page has it.
    most_text_lines: AtomicU64,
    /// Repairs of the server's messages.
    pub(super) repairs: Arc<Repairs>,
}

/// Outcome of a session's `initialize` on a new channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOutcome {
    Opened,
    /// The server responded with an error.
    Refused,
    /// No server was started, or it ended before its response.
    Failed,
    /// No response came within `upstream.start_secs`.
    TimedOut,
    /// A bound of servers left no room for as long.
    NoRoom,
}

impl StartOutcome {
    const LABELS: [&str; 5] = ["opened", "refused", "failed", "timed_out", "no_room"];
}

/// Reason for the end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The client ended the session, or left while it was opened.
    Client,
    /// The session was idle for `upstream.child_idle_secs`.
    Idle,
    /// Another session needed the room.
    Room,
    /// Another server takes its place.
    Replaced,
    /// The server ended, or accepts no messages.
    Lost,
    /// The proxy ends.
    Shutdown,
}

impl EndReason {
    const LABELS: [&str; 6] = ["client", "idle", "room", "replaced", "lost", "shutdown"];
}

/// Reason why a message of a server reached no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    /// A line is no JSON-RPC message.
    NotJsonRpc,
    /// A line is longer than `streams.max_event_bytes`.
    TooLong,
    /// The response to an abandoned request, or to no request.
    Late,
    /// No GET stream was open or expected.
    NoReader,
    /// The GET stream had no room.
    Full,
}

impl Skipped {
    const LABELS: [&str; 5] = ["not_json_rpc", "too_long", "late", "no_reader", "full"];
}

impl Metrics {
    /// Returns metrics that no page has.
    #[cfg(test)]
    pub(super) fn unregistered() -> Self {
        let registrar = Registrar::default();
        let repairs = Arc::new(Repairs::new(&registrar).expect("new names"));
        Self::new(&registrar, repairs).expect("new names")
    }

    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar, repairs: Arc<Repairs>) -> Result<Self, Error> {
        Ok(Self {
            repairs,
            most_text_lines: AtomicU64::new(0),
            open: registrar.gauge("channels", "Channels to servers on stdio or HTTP+SSE.")?,
            starts: registrar.family(
                "channel_starts_total",
                "Channels that were to be opened for a session, by outcome.",
                ("outcome", &StartOutcome::LABELS),
            )?,
            ends: registrar.family(
                "channel_ends_total",
                "Channels that have ended, by reason.",
                ("reason", &EndReason::LABELS),
            )?,
            skipped: registrar.family(
                "channel_messages_skipped_total",
                "Lines and messages of servers on stdio or HTTP+SSE that reached no response, by reason.",
                ("reason", &Skipped::LABELS),
            )?,
        })
    }

    pub(super) fn observe_start(&self, outcome: StartOutcome) {
        self.starts.with_label_values(&[StartOutcome::LABELS[outcome as usize]]).inc();
    }

    pub(super) fn observe_open(&self) {
        self.open.inc();
    }

    pub(super) fn observe_end(&self, reason: EndReason) {
        self.open.dec();
        self.ends.with_label_values(&[EndReason::LABELS[reason as usize]]).inc();
    }

    /// Returns the number of lines of one server that were no JSON-RPC messages: of the server with
    /// the most.
    pub(super) fn most_text_lines(&self) -> u64 {
        self.most_text_lines.load(Ordering::Relaxed)
    }

    /// Observes a line that is no JSON-RPC message, the `number`th of its server.
    pub(super) fn observe_text_line(&self, number: usize) {
        self.observe_skipped(Skipped::NotJsonRpc);
        self.most_text_lines.fetch_max(number as u64, Ordering::Relaxed);
    }

    pub(super) fn observe_skipped(&self, reason: Skipped) {
        self.skipped.with_label_values(&[Skipped::LABELS[reason as usize]]).inc();
    }
}
