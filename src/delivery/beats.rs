//! Beats: progress notifications that the proxy writes on a connection for a server that is silent.
//!
//! Most clients extend the deadline of a call with each progress, and with nothing else. A beat
//! belongs to its connection: it has no id, is no event of the stream, and is never replayed.
//! Invariant: before the first look a connection has a time and no memory for beats. Absent: the
//! contents (`event_log/stream/progress.rs`).

use std::time::{Duration, Instant};

use tracing::debug;

use crate::config::ProgressBeats;
use crate::event_log::{Attachment, WrittenProgress};
use crate::protocol::ids::Seq;

/// Times of the beats of a connection.
#[derive(Clone, Copy, Debug)]
pub struct BeatTimes {
    /// Interval of the looks; at least 1 s.
    after: Duration,
    /// Time from the start of the call to the last beat.
    max: Duration,
}

impl From<&ProgressBeats> for BeatTimes {
    fn from(config: &ProgressBeats) -> Self {
        Self { after: config.after, max: config.max }
    }
}

/// Beats of one connection.
#[derive(Debug)]
pub(super) struct Beats {
    times: BeatTimes,
    look_at: Instant,
    /// Cursor of the connection at its last look.
    looked: Seq,
    written: WrittenProgress,
}

impl Beats {
    /// Creates the beats of a connection that begins at `now` behind `cursor`.
    pub(super) fn new(times: BeatTimes, cursor: Seq, now: Instant) -> Self {
        Self { times, look_at: now + times.after, looked: cursor, written: WrittenProgress::default() }
    }

    /// Returns the time of the next look.
    pub(super) fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Looks at what the connection has written, its events up to `cursor`, and returns the beats
    /// that are due. Returns `None` if there will be none: no request of the stream has a progress
    /// token, or its call has run for too long.
    pub(super) fn look(&mut self, attachment: &Attachment, cursor: Seq, now: Instant) -> Option<Vec<Vec<u8>>> {
        let stream = attachment.stream();
        if stream.progress()?.running() >= self.times.max {
            return None;
        }
        let beats = attachment.due_progress(&mut self.written, self.looked, cursor);
        self.look_at = now + self.times.after;
        self.looked = cursor;
        if !beats.is_empty() {
            debug!(stream.id = %stream.id(), beats = beats.len(), "the server is silent: progress was written for it");
        }
        Some(beats)
    }
}
