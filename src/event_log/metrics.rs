//! Metrics of the event log: streams, sessions, and the memory that they hold.

use std::sync::Arc;

use prometheus::IntGauge;

use crate::metrics::{Counter, Error, Registrar, Tally};
use crate::store;

/// Metrics of the event log.
pub struct Metrics {
    /// Metrics of the store behind the log.
    pub store: Arc<store::Metrics>,
    gaps: Counter,
    by_get: Counter,
    streams_kept: Tally,
    calls_detached: IntGauge,
    held_bytes: IntGauge,
    evictions: Counter,
    trimmed: Counter,
    pauses: Counter,
    sessions_kept: Tally,
    session_evictions: Counter,
    adopted: Counter,
    fenced: Counter,
    restored: Counter,
}

impl Metrics {
    /// Registers the metrics of the log and of its store.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar) -> Result<Self, Error> {
        Ok(Self {
            store: Arc::new(store::Metrics::new(registrar)?),
            gaps: registrar.counter("gaps_total", "Readers notified of a gap: events that are no longer kept.")?,
            by_get: registrar.counter(
                "by_get_messages_total",
                "Responses and server requests of calls that went to their session's GET stream, because the client \
                 did not resume the call's.",
            )?,
            streams_kept: registrar.tally("streams_kept", "Streams, running and finished.")?,
            calls_detached: registrar.gauge("calls_detached", "Running calls without a client connection.")?,
            held_bytes: registrar.gauge("held_bytes", "Bytes held for clients: requests, events and responses.")?,
            evictions: registrar.counter(
                "evicted_streams_total",
                "Finished streams and stubs forgotten before the end of their retention, by eviction.",
            )?,
            trimmed: registrar.counter(
                "trimmed_events_total",
                "Events dropped from the front of a stream, for its own limits or those of a quota.",
            )?,
            pauses: registrar
                .counter("upstream_pauses_total", "Times that a stream let its upstream wait for memory.")?,
            sessions_kept: registrar.tally("sessions_kept", "Records of sessions.")?,
            session_evictions: registrar
                .counter("evicted_sessions_total", "Records of sessions that were forgotten early, by eviction.")?,
            adopted: registrar.counter("streams_adopted_total", "Streams of a writer that is gone, ended here.")?,
            fenced: registrar.counter("streams_fenced_total", "Streams that another replica took from this one.")?,
            restored: registrar.counter("streams_restored_total", "Streams restored from the store for a client.")?,
        })
    }

    /// Counts a reader that learned of a gap.
    pub fn observe_gap(&self) {
        self.gaps.inc();
    }

    /// Counts messages of a call that went to a GET stream.
    pub fn observe_by_get(&self, messages: u64) {
        self.by_get.inc_by(messages);
    }

    /// Counts a stream that is kept from now on.
    pub fn observe_stream(&self) {
        self.streams_kept.inc();
    }

    /// Counts a stream that is no longer kept.
    pub fn observe_stream_end(&self) {
        self.streams_kept.dec();
    }

    /// Counts a running call whose client has left. Uncounts it when its client returns or the call
    /// ends.
    pub fn observe_detached(&self, is_detached: bool) {
        self.calls_detached.add(if is_detached { 1 } else { -1 });
    }

    /// Adds bytes that are held for clients from now on.
    pub fn observe_held(&self, bytes: usize) {
        self.held_bytes.add(bytes as i64);
    }

    /// Subtracts bytes that are no longer held for clients.
    pub fn observe_released(&self, bytes: usize) {
        self.held_bytes.sub(bytes as i64);
    }

    /// Returns the bytes that are held for all clients together.
    pub fn held_bytes(&self) -> usize {
        usize::try_from(self.held_bytes.get()).unwrap_or(0)
    }

    /// Counts a finished stream or stub that was forgotten before the end of its retention.
    pub fn observe_eviction(&self) {
        self.evictions.inc();
    }

    /// Counts events that a stream dropped from its front, for its own limits or the limits of a
    /// quota.
    pub fn observe_trimmed(&self, events: u64) {
        self.trimmed.inc_by(events);
    }

    /// Counts a stream that begins to keep its upstream waiting.
    pub fn observe_pause(&self) {
        self.pauses.inc();
    }

    /// Counts a session that is recorded from now on.
    pub fn observe_session(&self) {
        self.sessions_kept.inc();
    }

    /// Counts a session whose record is gone.
    pub fn observe_session_end(&self) {
        self.sessions_kept.dec();
    }

    /// Counts a session whose record was forgotten early.
    pub fn observe_session_eviction(&self) {
        self.session_evictions.inc();
    }

    /// Counts a stream that was ended here because its writer is gone.
    pub fn observe_adopted(&self) {
        self.adopted.inc();
    }

    /// Returns the number of streams that were ended here because their writers are gone.
    #[cfg(test)]
    pub(super) fn adopted(&self) -> u64 {
        self.adopted.get()
    }

    /// Counts a stream of this writer that another replica has taken.
    pub fn observe_fenced(&self) {
        self.fenced.inc();
    }

    /// Counts a stream that was restored from the store.
    pub fn observe_restored(&self) {
        self.restored.inc();
    }
}
