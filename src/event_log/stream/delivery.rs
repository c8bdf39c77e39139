//! Delivery of a stream's response, the end of the stream's retention, and its place in the
//! eviction queues of its quota.
//!
//! Absent: the order of evictions (`writer/eviction.rs`), and the sweep of streams whose retention
//! has ended (`retention`).

use std::sync::PoisonError;
use std::time::Instant;

use crate::clock;
use crate::event_log::quota::EvictionQueue;
use crate::event_log::stream::delivery_certainty::DeliveryCertainty;
use crate::event_log::stream::state::{Inner, Shared};
use crate::protocol::ids::{AttachId, Seq};
use crate::protocol::stream::Phase;

/// Delivery of one stream's response, and the place of the stream in the eviction queues that
/// follows from it.
pub struct Delivery<'a>(pub(super) &'a Shared);

impl Delivery<'_> {
    /// The response with the last message was delivered: the stream is now among the first to be
    /// evicted.
    pub fn set_delivered(&self, delivery: DeliveryCertainty) {
        let now = clock::now();
        let mut inner = self.0.lock();
        inner.machine.reader_mut().set_delivered();
        inner.delivered.record(delivery, now + self.0.quota.global().allowance.delivered_retention);
        let stays = match inner.machine.lifecycle().phase() {
            Phase::Sealed { .. } => true,
            Phase::Passed => inner.machine.policy().has_idempotency_key || inner.delivered.is_doubted(now),
            Phase::Waiting | Phase::Open => false,
        };
        if stays && inner.queued.is_none_or(|(queue, _)| queue == EvictionQueue::Unconfirmed) {
            self.0.enqueue(&mut inner, EvictionQueue::Delivered, now);
        }
        // A hand-over to the GET stream may wait for this.
        inner.wake_watchers();
    }

    /// Returns true if the delivery is proven.
    pub(in crate::event_log) fn is_proven(&self) -> bool {
        self.0.lock().delivered.is_proven()
    }

    /// Returns true if the response was delivered beyond doubt, so that the same POST is a new
    /// call.
    pub fn has_arrived(&self) -> bool {
        let inner = self.0.lock();
        inner.machine.reader().is_delivered() && !inner.delivered.is_doubted(clock::now())
    }

    /// Returns the end of a finished stream's retention, or `None` while it is open or has a
    /// reader.
    pub(in crate::event_log) fn kept_until(&self) -> Option<Instant> {
        let inner = self.0.lock();
        let until = inner.machine.readable_until()?;
        // A response that passed through is kept for retries alone.
        let has_passed =
            inner.machine.lifecycle().phase() == Phase::Passed && !inner.machine.policy().has_idempotency_key;
        match inner.delivered.doubted_until() {
            Some(doubted_until) if has_passed => Some(doubted_until.min(until)),
            Some(_) | None => Some(until),
        }
    }

    /// The connection with the last message was closed gracefully. Its client may or may not have
    /// that message: the stream is kept, and evicted before a call is refused, unless a client
    /// resumes it.
    pub fn handle_graceful_close(&self) {
        let mut inner = self.0.lock();
        inner.machine.reader_mut().handle_graceful_close();
        let has_ended = matches!(inner.machine.lifecycle().phase(), Phase::Sealed { .. })
            && inner.machine.reader().has_closed_gracefully();
        if has_ended && inner.queued.is_none() {
            self.0.enqueue(&mut inner, EvictionQueue::Unconfirmed, clock::now());
        }
    }

    /// The connection `attach` was given the whole response. `may_break`: its delivery, or
    /// [`Self::handle_broken`], decides what follows.
    pub fn handle_whole(&self, attach: AttachId, may_break: bool) {
        self.0.lock().machine.reader_mut().handle_whole(attach, may_break);
    }

    /// The connection `attach` broke after it was given the whole response.
    pub fn handle_broken(&self, attach: AttachId) {
        let mut inner = self.0.lock();
        inner.machine.reader_mut().handle_broken(attach, clock::now());
        // A repeated POST may wait for this.
        inner.wake();
    }

    /// The connection `attach` ends with an interim result after the event at `upto`.
    pub fn handle_interim(&self, attach: AttachId, upto: Seq) {
        self.0.lock().machine.handle_interim(attach, upto);
    }

    /// The interim result has arrived, or its connection ended and the delivery is unknown.
    pub fn handle_interim_settled(&self, attach: AttachId, has_arrived: bool) {
        self.0.lock().machine.reader_mut().ack_interim(attach, has_arrived);
    }

    /// Keeps a task that has ended until its retention ends, or its memory is needed.
    pub(in crate::event_log) fn enqueue_ended_task(&self) {
        let mut inner = self.0.lock();
        if inner.queued.is_none() {
            self.0.enqueue(&mut inner, EvictionQueue::Unconfirmed, clock::now());
        }
    }

    /// Drops all events to free memory. Returns false if the stream has left its queue meanwhile,
    /// or if it has a reader or is needed still; then it moves to the end of the queue.
    pub(in crate::event_log) fn evict(
        &self,
        queue: EvictionQueue,
        since: Instant,
        is_needed: bool,
        now: Instant,
    ) -> bool {
        let mut inner = self.0.lock();
        if inner.queued != Some((queue, since)) {
            return false;
        }
        if inner.machine.reader().is_attached() || is_needed {
            self.0.enqueue(&mut inner, queue, now);
            return false;
        }
        inner.queued = None;
        let last = inner.tail.last();
        inner.tail.trim(last);
        inner.machine.handle_trimmed(last);
        let left = inner.tail.byte_len();
        inner.reservation.set_events(left);
        true
    }

    /// Trims the front down to about `keep` bytes, unless the stream has a reader.
    pub(in crate::event_log) fn trim_to(&self, keep: usize) {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        if inner.machine.reader().is_attached() {
            return;
        }
        let before = inner.tail.trimmed();
        let spare = inner.tail.byte_len().saturating_sub(keep);
        inner.tail.trim_to_free(spare, inner.machine.reader().written());
        inner.machine.handle_trimmed(inner.tail.trimmed());
        inner.reservation.set_events(inner.tail.byte_len());
        self.0.quota.observe_trim(inner.tail.trimmed().0 - before.0, false);
    }
}

impl Shared {
    /// Moves the stream to the end of an eviction queue, and out of any other.
    pub(in crate::event_log) fn enqueue(&self, inner: &mut Inner, queue: EvictionQueue, at: Instant) {
        if let Some(before) = inner.queued.replace((queue, at)) {
            self.quota.evictable().dequeue(before, self.id);
        }
        self.quota.evictable().enqueue((queue, at), self.id);
    }

    /// A client requests the stream: if it left gracefully, it lacks the end after all.
    pub(in crate::event_log) fn handle_request(&self, inner: &mut Inner) {
        if let Some(place) = inner.queued.take_if(|(queue, _)| *queue == EvictionQueue::Unconfirmed) {
            self.quota.evictable().dequeue(place, self.id);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = inner.queued {
            self.quota.evictable().dequeue(place, self.id);
        }
    }
}
