//! Back-pressure: the limits of a stream in memory, and the decision whether its upstream must
//! wait.
//!
//! A stream keeps its own limits by trimming events that its reader has. If unread events remain,
//! it pauses the upstream, or drops the oldest ones if it never pauses. A full quota does the same,
//! and holds up the rest of a large event until there is capacity or the call has the overrun.
//! Absent: eviction of other streams (`writer/eviction.rs`), and the accounts (`quota`).

use crate::clock;
use crate::event_log::quota::TailLimits;
use crate::event_log::stream::state::Inner;
use crate::protocol::ids::Seq;

/// Bytes that a full quota leaves unread in a stream that never pauses: about the next piece for
/// its reader.
const KEPT_UNREAD: usize = 64 * 1024;
/// Number of obsolete records of a task that are trimmed together.
const OBSOLETE_RECORDS: u64 = 8;
/// Size of a task's stream above which each obsolete record is trimmed, in bytes.
const OBSOLETE_BYTES: usize = 64 * 1024;

impl Inner {
    /// Trims the stream to its limits, and decides whether the upstream must wait. A full quota
    /// trims the front of the stream; the upstream waits only while there are unread events, so a
    /// stream with a reader flows on.
    pub(in crate::event_log) fn enforce_limits(&mut self, bounds: TailLimits) {
        let before = self.tail.trimmed();
        self.trim_obsolete_records();
        let fits = self.tail.trim_to_fit(bounds.max_bytes, bounds.max_events, self.machine.releasable());
        self.reservation.set_events(self.tail.byte_len());
        self.trim_front_for_quota();
        self.machine.handle_trimmed(self.tail.trimmed());
        let has_unread = self.machine.numbering().tail() > self.machine.releasable();
        let was_paused = self.machine.lifecycle().is_paused();
        let waits_for_reader = !fits || (has_unread && self.reservation.quota().is_exceeded());
        let now = clock::now();
        // A stream that waits for its reader needs no overrun.
        let is_paused_by_reader = waits_for_reader && self.machine.policy().can_pause;
        self.is_held_up = !is_paused_by_reader && self.reservation.must_wait(self.may_overrun(), now);
        self.settle_overrun();
        self.machine.lifecycle_mut().handle_full(waits_for_reader || self.is_held_up, now);
        if self.is_held_up && self.may_overrun() {
            // The client has all stored events: the call waits for others, and does not fail for
            // that.
            self.machine.lifecycle_mut().handle_partial_write(now);
        }
        let trimmed = self.tail.trimmed().0 - before.0;
        self.reservation.quota().observe_trim(trimmed, self.machine.lifecycle().is_paused() && !was_paused);
    }

    /// Trims the records of a task's stream that a later one has made obsolete: no client reads
    /// them. A few small ones wait for more, since each trim is a command to the store.
    fn trim_obsolete_records(&mut self) {
        let releasable = self.machine.releasable();
        let is_little = releasable.0.saturating_sub(self.tail.trimmed().0) < OBSOLETE_RECORDS
            && self.tail.byte_len() < OBSOLETE_BYTES;
        if self.machine.policy().has_records() && !is_little {
            self.tail.trim_to_fit(0, 0, releasable);
        }
    }

    /// Returns true if a large event may be read beyond a full quota: its client waits for it and
    /// has all earlier events, or unread events of the stream are dropped.
    fn may_overrun(&self) -> bool {
        let reader = self.machine.reader();
        let has_all = !self.machine.policy().can_pause || self.machine.numbering().tail() <= reader.releasable();
        self.drops_unread() || (reader.is_attached() && has_all)
    }

    /// Releases the overrun once the client has read the event, or no longer reads.
    pub(in crate::event_log) fn settle_overrun(&mut self) {
        if !self.reservation.has_overrun() {
            return;
        }
        let reader = self.machine.reader();
        let is_taken = !self.reservation.is_arriving()
            && (self.drops_unread() || self.machine.numbering().tail() <= reader.releasable());
        if is_taken || !(reader.is_attached() || self.drops_unread()) {
            self.reservation.release_overrun();
        }
    }

    /// Returns true if unread events may be dropped: the stream never pauses. Responses to a client
    /// that takes no stream are kept.
    fn drops_unread(&self) -> bool {
        !self.machine.policy().can_pause && !self.machine.policy().should_refuse_requests
    }

    /// Trims the front of this stream for a full quota.
    fn trim_front_for_quota(&mut self) {
        let excess = self.reservation.quota().excess();
        if excess == 0 {
            return;
        }
        self.tail.trim_to_free(excess, self.machine.reader().releasable());
        self.reservation.set_events(self.tail.byte_len());
        if !self.machine.policy().can_pause {
            let spare = self.tail.byte_len().saturating_sub(KEPT_UNREAD);
            self.tail.trim_to_free(self.reservation.quota().excess().min(spare), self.droppable());
            self.reservation.set_events(self.tail.byte_len());
        }
    }

    /// Returns the position up to which a stream that never pauses drops unread events. For a
    /// client that takes no stream, it precedes the first response; for a task, its present state.
    fn droppable(&self) -> Seq {
        if self.machine.policy().has_records() {
            return self.machine.releasable();
        }
        match self.machine.owed_responses().first_response() {
            Some(response) if self.machine.policy().should_refuse_requests => Seq(response.0.saturating_sub(1)),
            Some(_) | None => self.machine.numbering().tail(),
        }
    }

    /// Fits the stream again after a change of readers, which may free capacity.
    pub(in crate::event_log) fn enforce_limits_if_paused(&mut self, bounds: TailLimits) {
        if self.machine.lifecycle().is_paused() {
            self.enforce_limits(bounds);
        }
    }

    /// Returns true if the stream needs capacity, which an eviction may free.
    pub(in crate::event_log) fn needs_eviction(&self) -> bool {
        self.machine.lifecycle().is_paused() || self.is_held_up || self.reservation.quota().is_exceeded()
    }
}
