//! How long a stream that is over stays, and what of it goes earlier to make room.

use std::time::Instant;

use crate::clock;
use crate::event_log::quota::EvictionQueue;
use crate::event_log::stream::Stream;
use crate::event_log::stream::delivery::Delivery;
use crate::event_log::stream::state::Inner;
use crate::protocol::stream::Phase;

impl Stream {
    /// The response that carried its last message has arrived: it is among the first to go when room is needed.
    pub fn note_delivered(&self, delivery: Delivery) {
        let now = clock::now();
        let mut inner = self.lock();
        inner.machine.handle_delivered();
        inner.delivered.note(delivery, now + self.quota().global().allowance.delivered_retention);
        let stays = match inner.machine.phase() {
            Phase::Sealed { .. } => true,
            Phase::Passed => inner.machine.policy().has_idempotency_key || inner.delivered.is_doubted(now),
            Phase::Waiting | Phase::Open => false,
        };
        if stays && inner.queued.is_none_or(|(row, _)| row == EvictionQueue::Unconfirmed) {
            self.enqueue(&mut inner, EvictionQueue::Delivered, now);
        }
    }

    /// Whether its answer is proven to have arrived.
    pub(in crate::event_log) fn is_proven(&self) -> bool {
        self.lock().delivered.is_proven()
    }

    /// Whether its answer has arrived beyond doubt, so that the same POST is a call of its own.
    pub fn has_arrived(&self) -> bool {
        let inner = self.lock();
        inner.machine.is_delivered() && !inner.delivered.is_doubted(clock::now())
    }

    /// Until when a stream that is over stays; `None` while it is unsealed or being read.
    pub(in crate::event_log) fn kept_until(&self) -> Option<Instant> {
        let inner = self.lock();
        let until = inner.machine.readable_until()?;
        // An answer that passed is there for retries alone.
        let passed = inner.machine.phase() == Phase::Passed && !inner.machine.policy().has_idempotency_key;
        Some(inner.delivered.doubted_until().filter(|_| passed).map_or(until, |doubted| doubted.min(until)))
    }

    /// The connection that carried its last message ended in peace. Its client may have got that message or not: the stream is kept, and
    /// goes before a call is refused for want of room, unless a client comes back for it.
    pub fn note_parted(&self) {
        let mut inner = self.lock();
        inner.machine.handle_graceful_close();
        let is_over =
            matches!(inner.machine.phase(), Phase::Sealed { .. }) && inner.machine.reader().has_closed_gracefully();
        if is_over && inner.queued.is_none() {
            self.enqueue(&mut inner, EvictionQueue::Unconfirmed, clock::now());
        }
    }

    /// Puts it at the end of that row, and out of any other.
    pub(in crate::event_log) fn enqueue(&self, inner: &mut Inner, row: EvictionQueue, at: Instant) {
        if let Some(before) = inner.queued.replace((row, at)) {
            self.quota.dequeue(before, self.id);
        }
        self.quota.enqueue((row, at), self.id);
    }

    /// A client asks for it: one that left in peace lacks the end after all.
    pub(in crate::event_log) fn note_requested(&self, inner: &mut Inner) {
        if let Some(place) = inner.queued.take_if(|(row, _)| *row == EvictionQueue::Unconfirmed) {
            self.quota.dequeue(place, self.id);
        }
    }

    /// Gives up every event to make room. False when it has left its row since it was taken out as the first, and when a connection reads
    /// it, and then it is the last in the row again.
    pub(in crate::event_log) fn evict(&self, row: EvictionQueue, since: Instant, now: Instant) -> bool {
        let mut inner = self.lock();
        if inner.queued != Some((row, since)) {
            return false;
        }
        if inner.machine.reader().is_attached() {
            self.enqueue(&mut inner, row, now);
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

    /// Gives up its front to make room, down to about `keep` bytes; nothing while a connection reads it.
    pub(in crate::event_log) fn trim_to(&self, keep: usize) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        if inner.machine.reader().is_attached() {
            return;
        }
        let before = inner.tail.trimmed();
        let spare = inner.tail.byte_len().saturating_sub(keep);
        inner.tail.trim_to_free(spare, inner.machine.reader().written());
        inner.machine.handle_trimmed(inner.tail.trimmed());
        inner.reservation.set_events(inner.tail.byte_len());
        self.quota.observe_trim(inner.tail.trimmed().0 - before.0, false);
    }
}
