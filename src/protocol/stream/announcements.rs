//! Messages of the proxy's own around those of the upstream: what the dialects announce.

use serde::{Deserialize, Serialize};

use super::numbering::Numbering;
use crate::protocol::ids::Seq;

/// What is logged before the upstream's first message and behind its last one. Events like any other, but for one thing: they
/// are nothing that a client waits for.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// In this order.
    pub opening: Vec<Vec<u8>>,
    /// Behind everything else, errors of the proxy included.
    pub closing: Option<Vec<u8>>,
}

/// The announcements of one stream: those still to be logged, and the events of those that were.
#[derive(Debug)]
pub(super) struct AnnouncementState {
    pending: Frame,
    /// The last event of the opening; 0 before it was logged.
    opened: Seq,
    /// The closing's event.
    closed: Option<Seq>,
}

/// The part of [`AnnouncementState`] that another process needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnnouncementRecord {
    opened: Seq,
    closed: Option<Seq>,
    /// What is still to be logged behind the last message.
    closing: Option<String>,
}

impl AnnouncementState {
    pub(super) fn new(pending: Frame) -> Self {
        Self { pending, opened: Seq(0), closed: None }
    }

    pub(super) fn restore(AnnouncementRecord { opened, closed, closing }: AnnouncementRecord) -> Self {
        let pending = Frame { opening: Vec::new(), closing: closing.map(String::into_bytes) };
        Self { pending, opened, closed }
    }

    pub(super) fn record(&self) -> AnnouncementRecord {
        // The proxy's own JSON.
        let closing = self.pending.closing.as_ref().map(|message| String::from_utf8_lossy(message).into_owned());
        AnnouncementRecord { opened: self.opened, closed: self.closed, closing }
    }

    /// Logs the opening, once.
    pub(super) fn log_opening(&mut self, numbering: &mut Numbering) {
        for message in std::mem::take(&mut self.pending.opening) {
            self.opened = numbering.push(b"message", &message);
        }
    }

    /// Logs the closing, once.
    pub(super) fn log_closing(&mut self, numbering: &mut Numbering) {
        if let Some(message) = self.pending.closing.take() {
            self.closed = Some(numbering.push(b"message", &message));
        }
    }

    /// The last event of the opening; 0 before it was logged.
    pub(super) fn opened(&self) -> Seq {
        self.opened
    }

    /// The event of the closing, or `None` before it was logged.
    pub(super) fn closed(&self) -> Option<Seq> {
        self.closed
    }
}
