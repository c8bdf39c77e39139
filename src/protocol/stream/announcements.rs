//! Messages of the proxy's own around those of the upstream: what the dialects announce.

use super::Machine;
use super::states::Phase;
use crate::protocol::dialect::Status;
use crate::protocol::ids::{Seq, StreamKind};

/// What is logged before the upstream's first message and behind its last one. Events like any other, but for one thing: they
/// are nothing that a client waits for.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// In this order.
    pub opening: Vec<Vec<u8>>,
    /// Behind everything else, errors of the proxy included.
    pub closing: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Framed {
    pub(super) frame: Frame,
    /// The last event of the opening; 0 before it was logged.
    pub(super) opened: Seq,
    /// The closing's event.
    pub(super) closed: Option<Seq>,
}

impl Machine {
    /// The stream is to be framed. To be told before its head.
    pub fn handle_frame(&mut self, frame: Frame) {
        self.framed = Some(Box::new(Framed { frame, opened: Seq(0), closed: None }));
    }

    pub(super) fn stage_opening(&mut self) {
        let Some(framed) = &mut self.framed else { return };
        for message in std::mem::take(&mut framed.frame.opening) {
            framed.opened = self.staged.push(b"message", &message);
        }
    }

    pub(super) fn stage_closing(&mut self) {
        if self.phase == Phase::Open
            && let Some(framed) = &mut self.framed
            && let Some(message) = framed.frame.closing.take()
        {
            framed.closed = Some(self.staged.push(b"message", &message));
        }
    }

    /// Where one goes on who names no event: after the last that was confirmed, or at the first that is kept.
    pub fn undelivered_after(&self) -> Seq {
        self.reader.confirmed().max(self.trimmed)
    }

    /// Where the stream stands, for a client that has everything up to `after` (`None`: up to what it has confirmed).
    pub fn status(&self, after: Option<Seq>) -> Status {
        let confirmed = self.reader.confirmed().max(after.filter(|after| *after <= self.tail).unwrap_or_default());
        Status {
            is_completed: match self.policy.kind {
                StreamKind::Request => self.is_answered() && self.phase != Phase::Waiting,
                StreamKind::Standalone => self.is_sealed(),
            },
            has_failed: self.debts.has_error(),
            pending: self.pending(confirmed),
            awaits_input: self.asks.has_outstanding() && !self.is_sealed(),
            has_request: self.asks.has_outstanding_after(confirmed) && !self.is_sealed(),
            has_error: self.debts.last_error().is_some_and(|seq| confirmed < seq && seq <= self.tail),
        }
    }

    /// The messages after `confirmed` that a client has to get.
    fn pending(&self, confirmed: Seq) -> u64 {
        let (opened, closed) = self.framed.as_ref().map_or((Seq(0), None), |framed| (framed.opened, framed.closed));
        let after = confirmed.max(opened).max(self.trimmed);
        let is_later = |seq: &Seq| after < *seq && *seq <= self.tail;
        let announced = closed.filter(is_later).is_some();
        let answered = self.asks.spent_between(after, self.tail);
        self.tail.0.saturating_sub(after.0) - u64::from(announced) - answered
    }
}
