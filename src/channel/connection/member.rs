//! A session on a channel: its standalone stream, and the use that it makes of the channel.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::channel::body::Queue;
use crate::channel::limits::Limits;
use crate::channel::metrics::Skipped;
use crate::clock;

/// Messages, and their bytes, that are kept for the first GET of a session.
const KEPT_MESSAGES: usize = 64;
const KEPT_BYTES: usize = 256 * 1024;
/// Time for which a GET alone keeps a session from being idle.
const LISTENING_COUNTS: Duration = Duration::from_secs(3600);

/// Place of a message for the standalone stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The open stream.
    Read,
    /// The messages that are kept for the first GET.
    Kept,
    /// None: no stream is open or expected, or it has no room.
    Dropped,
}

/// A session.
#[derive(Debug)]
pub(super) struct Member {
    standalone: Option<Arc<Queue>>,
    listens_since: Option<Instant>,
    /// Messages for a GET that has not come yet.
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    has_listened: bool,
    /// Time of its last message for the server, or of the last end of a call or a GET; at first
    /// that of its beginning.
    last_use: Instant,
    /// Place of its last message among those of all sessions.
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

    /// Returns the time since which nothing has passed for a call, or `None` while a client
    /// listens. A GET counts for an hour.
    pub(super) fn idle_since(&self, now: Instant) -> Option<Instant> {
        let listens = |since: Instant| now.saturating_duration_since(since) < LISTENING_COUNTS;
        if self.listens_since.is_some_and(listens) { None } else { Some(self.last_use) }
    }

    /// Returns true while the standalone stream is open.
    pub(super) fn listens(&self) -> bool {
        self.standalone.is_some()
    }

    /// Opens the standalone stream, which begins with the messages that were kept for it. `None` if
    /// it is open.
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

    /// Notes that the standalone stream is not read any more.
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
        // The proxy keeps the GET of a client that may come back, so there is none to come.
        if self.has_listened || text.len() > KEPT_BYTES {
            limits.metrics.observe_skipped(Skipped::NoReader);
            return Place::Dropped;
        }
        self.kept_bytes += text.len();
        // A copy: the text is a part of what was read at once.
        self.kept.push_back(Bytes::copy_from_slice(&text));
        while self.kept.len() > KEPT_MESSAGES || self.kept_bytes > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.kept_bytes -= oldest.len();
            limits.metrics.observe_skipped(Skipped::NoReader);
        }
        Place::Kept
    }
}
