//! Announcements: messages of the proxy's own, around the upstream's, that the dialects define.

use serde::{Deserialize, Serialize};

use super::numbering::Numbering;
use crate::ids::Seq;

/// Messages that are logged before the upstream's first message and behind its last one. They are
/// events like any other, but do not count as pending for a client.
#[derive(Clone, Debug, Default)]
pub struct Announcements {
    /// Messages before the upstream's first one, in this order.
    pub opening: Vec<Vec<u8>>,
    /// The message behind all others, errors of the proxy included.
    pub closing: Option<Vec<u8>>,
}

/// Announcements of one stream: the messages still to be logged, and the events of the logged ones.
#[derive(Debug)]
pub(super) struct AnnouncementState {
    pending: Announcements,
    opened: Seq,
    closed: Option<Seq>,
}

/// The recorded form of [`AnnouncementState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnnouncementRecord {
    opened: Seq,
    closed: Option<Seq>,
    /// The closing, or `None` if the stream has no closing or it was logged.
    closing: Option<String>,
}

impl AnnouncementState {
    pub(super) fn new(pending: Announcements) -> Self {
        Self { pending, opened: Seq(0), closed: None }
    }

    pub(super) fn restore(AnnouncementRecord { opened, closed, closing }: AnnouncementRecord) -> Self {
        let pending = Announcements { opening: Vec::new(), closing: closing.map(String::into_bytes) };
        Self { pending, opened, closed }
    }

    pub(super) fn record(&self) -> AnnouncementRecord {
        // The proxy's own JSON, which is UTF-8.
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

    /// Returns the last event of the opening, or 0 before it was logged.
    pub(super) fn opened(&self) -> Seq {
        self.opened
    }

    /// Returns the event of the closing, or `None` before it was logged.
    pub(super) fn closed(&self) -> Option<Seq> {
        self.closed
    }
}
