//! Certainty of a response's delivery to its client.

use std::time::Instant;

/// Certainty that the response with a stream's last message was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryCertainty {
    /// The connection may be a load balancer's, which may have lost the response on the way: for
    /// `delivered_retention` the same POST is a retry.
    Doubtful,
    /// The connection is probably the client's own, and did not break.
    Likely,
    /// The client has sent another request on a connection of its own since.
    Proven,
}

/// Delivery of one stream.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::event_log) struct Delivered {
    best: Option<DeliveryCertainty>,
    doubted_until: Option<Instant>,
}

impl Delivered {
    pub(in crate::event_log) fn record(&mut self, delivery: DeliveryCertainty, doubted_until: Instant) {
        if delivery == DeliveryCertainty::Doubtful && self.best.is_none() {
            self.doubted_until = Some(doubted_until);
        }
        self.best = self.best.max(Some(delivery));
    }

    /// Returns the time until which a retry may match despite the delivery, or `None` if the
    /// delivery is not in doubt.
    pub(in crate::event_log) fn doubted_until(&self) -> Option<Instant> {
        if self.best == Some(DeliveryCertainty::Doubtful) { self.doubted_until } else { None }
    }

    /// Returns whether a retry may match now despite the delivery.
    pub(in crate::event_log) fn is_doubted(&self, now: Instant) -> bool {
        self.doubted_until().is_some_and(|until| now < until)
    }

    /// Returns the state of a stream whose delivery was proven before.
    pub(in crate::event_log) fn proven() -> Self {
        Self { best: Some(DeliveryCertainty::Proven), doubted_until: None }
    }

    pub(in crate::event_log) fn is_proven(&self) -> bool {
        self.best == Some(DeliveryCertainty::Proven)
    }
}
