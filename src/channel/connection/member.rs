//! A session on a channel: its standalone stream, and its use of the channel.
//!
//! Absent: the queues of the bridge (`upstream/bridge/outbox.rs`). They bound the number of
//! messages, and wait for a slow reader. A channel bounds bytes and never waits, since it carries
//! all calls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::channel::body::Queue;
use crate::channel::limits::Limits;
use crate::channel::metrics::Skipped;
use crate::clock;

/// Limits of the messages kept for the first GET of a session.
const KEPT_MESSAGES: usize = 64;
const KEPT_BYTES: usize = 256 * 1024;
/// Longest time that a GET alone counts as use of a session.
const LISTENING_COUNTS: Duration = Duration::from_secs(3600);

/// Place of a message for the standalone stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The open stream.
    Read,
    /// The messages kept for the first GET.
    Kept,
    /// No place: no stream is open or expected, or it has no room.
    Dropped,
}

/// A session.
#[derive(Debug)]
pub(super) struct Member {
    standalone: Option<Arc<Queue>>,
    listens_since: Option<Instant>,
    /// Messages kept for the first GET.
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    has_listened: bool,
    /// Time of the last message for the server, or of the last end of a call or a GET. Initially
    /// the time of creation.
    last_use: Instant,
    /// Number of its last message, among the messages of all sessions.
    pub(super) used_at: u64,
}

impl Member {
    pub(super) fn new(used_at: u64) -> Self {
        Self {
            standalone: None,
            listens_since: None,
            kept: VecDeque::new(),
            kept_bytes: 0,
            has_listened: false,
            last_use: clock::now(),
            used_at,
        }
    }

    pub(super) fn record_use(&mut self) {
        self.last_use = clock::now();
    }

    /// Returns the time since which the session is idle, or `None` while a client listens. A GET
    /// counts for an hour.
    pub(super) fn idle_since(&self, now: Instant) -> Option<Instant> {
        let listens = |since: Instant| now.saturating_duration_since(since) < LISTENING_COUNTS;
        if self.listens_since.is_some_and(listens) { None } else { Some(self.last_use) }
    }

    /// Returns true while the standalone stream is open.
    pub(super) fn listens(&self) -> bool {
        self.standalone.is_some()
    }

    /// Opens the standalone stream, which begins with the messages kept for it. `None` if it is
    /// open already.
    pub(super) fn listen(&mut self, limits: &Limits) -> Option<Arc<Queue>> {
        if self.standalone.is_some() {
            return None;
        }
        let queue = Arc::<Queue>::default();
        self.has_listened = true;
        self.kept_bytes = 0;
        for message in std::mem::take(&mut self.kept) {
            queue.push(message, limits.response_bytes);
        }
        self.standalone = Some(queue.clone());
        self.listens_since = Some(clock::now());
        Some(queue)
    }

    /// Closes the standalone stream after its reader has left.
    pub(super) fn stop_listening(&mut self) {
        self.standalone = None;
        self.listens_since = None;
        self.record_use();
    }

    /// Ends the standalone stream.
    pub(super) fn end(&mut self) {
        if let Some(queue) = self.standalone.take() {
            queue.end();
        }
    }

    /// Delivers a message to the standalone stream.
    pub(super) fn deliver(&mut self, text: Bytes, limits: &Limits) -> Place {
        if let Some(queue) = &self.standalone {
            if queue.push(text, limits.response_bytes) {
                return Place::Read;
            }
            limits.metrics.observe_skipped(Skipped::Full);
            return Place::Dropped;
        }
        // The proxy keeps the GET of a client that may reconnect, so no other GET is expected.
        if self.has_listened || text.len() > KEPT_BYTES {
            limits.metrics.observe_skipped(Skipped::NoReader);
            return Place::Dropped;
        }
        self.kept_bytes += text.len();
        // A copy, because the text is part of a larger read buffer.
        self.kept.push_back(Bytes::copy_from_slice(&text));
        while self.kept.len() > KEPT_MESSAGES || self.kept_bytes > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.kept_bytes -= oldest.len();
            limits.metrics.observe_skipped(Skipped::NoReader);
        }
        Place::Kept
    }
}
