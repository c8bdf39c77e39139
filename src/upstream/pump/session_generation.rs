//! Generation of the session in which the server has the request of a stream, and the IDs of the
//! server's requests in it.
//!
//! Owned here: the change of a request to another generation, and the IDs of the server's requests
//! on their way to the log and back. A session that was never opened again costs one look at a
//! flag. Absent: the choice of the IDs (`event_log`).

use std::sync::Arc;

use super::super::revival::reopened_session;
use super::super::server::request::Template;
use super::Pump;
use crate::event_log::Handshake;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::sse;

impl Pump {
    /// Replaces the request: from now on cancels and pings of the stream name the session as
    /// `template` does, and so do client responses.
    pub(super) fn set_template(&mut self, template: Arc<Template>) {
        self.call.template = template;
        self.note_generation();
    }

    /// Notes the generation of the session that the request names.
    pub(super) fn note_generation(&self) {
        if let Some(handshake) = self.reopened_session() {
            let generation = handshake.generation_named(self.call.template.session_name());
            self.writer.stream().upstream().set_session_generation(generation);
        }
    }

    /// Gives requests of the server other IDs before they are logged, where a response might be
    /// taken for one to a request of another generation.
    pub(super) fn rename_server_requests(&self, events: &mut [sse::Event]) {
        let Some(handshake) = self.reopened_session() else { return };
        let generation = self.writer.stream().upstream().session_generation();
        for event in events {
            if let Some(renamed) = handshake.rename_server_requests(generation, &event.data) {
                event.data = renamed.into();
            }
        }
    }

    /// Returns the server's ID for one of its requests, which the proxy is about to answer.
    pub(super) fn server_id(&self, id: RequestId) -> RequestId {
        self.reopened_session().and_then(|handshake| handshake.answer(&id)).unwrap_or(id)
    }

    fn reopened_session(&self) -> Option<Arc<Handshake>> {
        reopened_session(&self.log, self.writer.stream().binding().session.as_ref()?)
    }
}
