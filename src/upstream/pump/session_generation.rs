//! Session generation of a stream's request, and the IDs of the server requests in it.
//!
//! Owned here: the move of a request to another generation, and the translation of server request
//! IDs between server and log. A session that was never revived costs one look at a flag. Absent:
//! the choice of the IDs (`event_log`).

use std::sync::Arc;

use super::super::revival::reopened_session;
use super::super::server::request::Template;
use super::Pump;
use crate::event_log::Handshake;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::sse;

impl Pump {
    /// Replaces the request. Later cancellations, pings and client responses use its session name.
    pub(super) fn set_template(&mut self, template: Arc<Template>) {
        self.call.template = template;
        self.record_generation();
    }

    /// Records the session generation of the request.
    pub(super) fn record_generation(&self) {
        if let Some(handshake) = self.reopened_session() {
            let generation = handshake.generation_named(self.call.template.session_name());
            self.writer.stream().upstream().set_session_generation(generation);
        }
    }

    /// Renames server requests before they are logged, where a client response could match a
    /// request of another generation.
    pub(super) fn rename_server_requests(&self, events: &mut [sse::Event]) {
        let Some(handshake) = self.reopened_session() else { return };
        let generation = self.writer.stream().upstream().session_generation();
        for event in events {
            if let Some(renamed) = handshake.rename_server_requests(generation, &event.data) {
                event.data = renamed.into();
            }
        }
    }

    /// Returns the server's own ID of a server request, for the proxy's response.
    pub(super) fn server_id(&self, id: RequestId) -> RequestId {
        self.reopened_session().and_then(|handshake| handshake.answer(&id)).unwrap_or(id)
    }

    fn reopened_session(&self) -> Option<Arc<Handshake>> {
        reopened_session(&self.log, self.writer.stream().binding().session.as_ref()?)
    }
}
