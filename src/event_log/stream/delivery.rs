//! What is known of the way of a call's answer to its client.

use std::time::Instant;

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
    pub(in crate::event_log) fn note(&mut self, delivery: Delivery, doubted_until: Instant) {
        if delivery == Delivery::Doubtful && self.best.is_none() {
            self.doubted_until = Some(doubted_until);
        }
        self.best = self.best.max(Some(delivery));
    }

    /// Until when a retry may come for it although it has arrived.
    pub(in crate::event_log) fn doubted_until(&self) -> Option<Instant> {
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
