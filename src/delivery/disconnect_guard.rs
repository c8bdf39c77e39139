//! Guard of a connection that waits for its response to begin.

use std::sync::Arc;

use super::metrics::{Left, Metrics};
use super::{Receipt, disconnect};
use crate::event_log::{Attachment, EventLog, Repeatable};

/// Guard of a request until its response begins. Dropped before, it detaches the stream, and
/// reports to log and metrics that the client disconnected and cannot resume.
pub struct DisconnectGuard {
    // Dropped in this order: a stream is detached before its receipt checks if the response was
    // claimed.
    attachment: Option<Attachment>,
    receipt: Option<Receipt>,
    metrics: Arc<Metrics>,
}

impl DisconnectGuard {
    /// Guards the request that `attachment` belongs to. `repeatable` is that request, if its client
    /// may send it again on a new connection.
    pub fn new(
        log: Arc<EventLog>,
        metrics: Arc<Metrics>,
        attachment: Attachment,
        repeatable: Option<Repeatable>,
    ) -> Self {
        let receipt = Receipt::new(log, attachment.stream().clone()).of_request(repeatable);
        Self { attachment: Some(attachment), receipt: Some(receipt), metrics }
    }

    /// Returns the attachment. Always present until [`Self::begin`].
    pub fn attachment(&self) -> Option<&Attachment> {
        self.attachment.as_ref()
    }

    /// Begins the response.
    pub fn begin(mut self) -> Option<(Attachment, Receipt)> {
        self.attachment.take().zip(self.receipt.take())
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        if let Some(attachment) = &self.attachment {
            let message = "client disconnected before its response began";
            disconnect::report(&self.metrics, attachment.stream(), Left::Unresumable, None, message);
        }
    }
}
