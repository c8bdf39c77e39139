//! What is known of the way of a call's answer to its client.

use std::sync::Arc;
use std::time::Instant;

use crate::clock;
use crate::event_log::EventLog;
use crate::event_log::quota::Row;
use crate::event_log::stream::Stream;
use crate::protocol::stream::Phase;

/// How certain it is that the response which carried a stream's last message has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delivery {
    /// Its connection may be a load balancer's, which may have lost it on the way to the client: for `delivered_retention` the same
    /// POST is a retry.
    Doubtful,
    /// Its connection is the client's own for all that is known, and did not break.
    Likely,
    /// Its client has sent another request on a connection of its own since.
    Proven,
}

/// The same of one stream.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::event_log) struct Delivered {
    best: Option<Delivery>,
    doubted_until: Option<Instant>,
}

impl Delivered {
    fn note(&mut self, delivery: Delivery, doubted_until: Instant) {
        if delivery == Delivery::Doubtful && self.best.is_none() {
            self.doubted_until = Some(doubted_until);
        }
        self.best = self.best.max(Some(delivery));
    }

    /// Until when a retry may come for it although it has arrived.
    fn doubted_until(&self) -> Option<Instant> {
        self.doubted_until.filter(|_| self.best == Some(Delivery::Doubtful))
    }

    /// Whether a retry may come for it now although it has arrived.
    pub(in crate::event_log) fn is_doubted(&self, now: Instant) -> bool {
        self.doubted_until().is_some_and(|until| now < until)
    }

    /// That of a stream whose delivery was proven before.
    pub(in crate::event_log) fn proven() -> Self {
        Self { best: Some(Delivery::Proven), doubted_until: None }
    }

    pub(in crate::event_log) fn is_proven(&self) -> bool {
        self.best == Some(Delivery::Proven)
    }
}

impl EventLog {
    /// The response that carried the stream's last message has arrived. What is proven to have is shortened to a stub, and an answer
    /// that passed is forgotten unless a retry may come for it yet.
    pub fn note_delivered(&self, stream: &Arc<Stream>, delivery: Delivery) {
        stream.note_delivered(delivery);
        if stream.look(|machine| machine.phase() != Phase::Passed) {
            return self.shorten(stream);
        }
        if stream.look(|machine| machine.policy().keyed) {
            return;
        }
        match stream.has_retries() && !stream.has_arrived() {
            true => self.retain(stream),
            false => self.forget(stream),
        }
    }
}

impl Stream {
    /// The response that carried its last message has arrived: it is among the first to go when room is needed.
    pub fn note_delivered(&self, delivery: Delivery) {
        let now = clock::now();
        let mut inner = self.lock();
        inner.machine.handle_delivered();
        inner.delivered.note(delivery, now + self.share().whole().allowance.delivered_retention);
        let stays = match inner.machine.phase() {
            Phase::Sealed { .. } => true,
            Phase::Passed => inner.machine.policy().keyed || inner.delivered.is_doubted(now),
            Phase::Waiting | Phase::Open => false,
        };
        if stays && inner.lined_up.is_none_or(|(row, _)| row == Row::Parted) {
            self.line_up(&mut inner, Row::Delivered, now);
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
        let passed = inner.machine.phase() == Phase::Passed && !inner.machine.policy().keyed;
        Some(inner.delivered.doubted_until().filter(|_| passed).map_or(until, |doubted| doubted.min(until)))
    }
}
