//! A connection that waits for its response to begin.

use std::sync::Arc;

use tracing::info;

use super::Receipt;
use super::metrics::{Left, Metrics};
use crate::event_log::{Attachment, EventLog};

/// The claim of a request on a stream's answer until the response begins. Dropped before, it is a client that left with nothing
/// to come back with, and shows in log and metrics.
pub struct PendingResponse {
    // Dropped in this order: a stream is detached before its receipt looks whether anybody took the answer.
    attachment: Option<Attachment>,
    receipt: Option<Receipt>,
    metrics: Arc<Metrics>,
}

impl PendingResponse {
    /// Waits with `attachment`.
    pub fn new(log: Arc<EventLog>, metrics: Arc<Metrics>, attachment: Attachment) -> Self {
        let receipt = Receipt::new(log, attachment.stream().clone());
        Self { attachment: Some(attachment), receipt: Some(receipt), metrics }
    }

    /// Polls something of the attachment. A claim that was taken apart never gets here.
    pub fn attachment(&self) -> Option<&Attachment> {
        self.attachment.as_ref()
    }

    /// The response begins.
    pub fn begin(mut self) -> Option<(Attachment, Receipt)> {
        self.attachment.take().zip(self.receipt.take())
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if let Some(attachment) = &self.attachment {
            self.metrics.observe_disconnect(Left::Unresumable);
            let stream = attachment.stream();
            let name = stream.call_name();
            info!(
                stream.id = %stream.id(),
                session = stream.binding().session_hash(),
                method = name.map(|name| &*name.method),
                tool = name.and_then(|name| name.tool.as_deref()),
                can_resume = false,
                "client disconnected before its response began"
            );
        }
    }
}
