//! Reopening of upstream responses, and the session of a reopened stream.
//!
//! Owned here: the response to a resuming request, the current name of a standalone stream's
//! session, and the announcements of losses. Absent: the time of a reopening (the machine), and the
//! handshake of a session that is opened again ([`super::super::revival`]).

use std::sync::Arc;

use http::{Response, StatusCode};
use tracing::info;

use super::super::input::InputSource;
use super::super::revival::in_revision;
use super::super::server::request::Template;
use super::super::server::response_body::ResponseBody;
use super::super::server::sse_reader::EventReader;
use super::super::server::synthetic;
use super::late_response::refusal_headers;
use super::{Pump, is_compressed};
use crate::event_log::{Handshake, UpstreamName};
use crate::protocol::headers;
use crate::protocol::ids::StreamKind;
use crate::protocol::stream::Ending;
use crate::simulation::{self, Bug};

impl Pump {
    /// Warns the client that events are lost, if the server declared `logging`.
    pub(super) async fn announce_gap(&mut self) {
        let stream = self.writer.stream();
        self.metrics.event_log.observe_gap();
        info!(stream.id = %stream.id(), "the upstream cannot go on after its own event ID: events are lost");
        let binding = stream.binding();
        let session = binding.session.as_ref().and_then(|id| self.log.sessions().find(id, &binding.principal));
        if session.is_some_and(|session| session.logs()) {
            self.writer.update(|machine, now| machine.handle_message(b"message", &synthetic::gap_warning(), now)).await;
        }
    }

    /// Gives a standalone stream the current name of its session at the server. After a handshake
    /// that failed late, this is the name before it. A call stays in its original session.
    pub(super) fn follow_session(&mut self) {
        let stream = self.writer.stream();
        if stream.with_machine(|machine| machine.policy().kind) != StreamKind::Standalone {
            return;
        }
        let Some(session) = &stream.binding().session else { return };
        let Some(handshake) = self.log.sessions().handshakes().find(session) else { return };
        let name = match handshake.newest_name() {
            UpstreamName::Original => UpstreamName::Renamed(Some(self.upstream.names().first_name(session))),
            name @ UpstreamName::Renamed(_) => name,
        };
        if !self.call.template.is_in_session(&name) {
            let template = in_revision((*self.call.template).clone().in_session(&name), &handshake);
            self.set_template(Arc::new(template));
        }
    }

    /// Announces on the client's standalone stream which lists have changed, and that the
    /// server's state of the session is gone.
    pub(super) async fn announce_revival(&mut self) {
        let Some(handshake) = self.handshake() else { return };
        for message in synthetic::revival_messages(&handshake.server, &handshake.changed_lists()) {
            self.writer.update(|machine, now| machine.handle_message(b"message", &message, now)).await;
        }
    }

    /// Sends a refused call once more, in its revived session. Later cancellations and pings use
    /// the session's new name. The wait for a server that accepts no connections still counts from
    /// the first attempt. A call that was cancelled meanwhile gets the `refusal`.
    pub(super) async fn send_again(&mut self, again: Arc<Template>, refusal: Box<Response<ResponseBody>>) {
        if self
            .writer
            .stream()
            .with_machine(|machine| machine.lifecycle().is_cancelled() || machine.lifecycle().is_sealed())
        {
            return self.handle_head(refusal).await;
        }
        self.set_template(again.clone());
        if simulation::has(Bug::RunsTwice) {
            let (upstream, again) = (self.upstream.clone(), again.clone());
            tokio::spawn(async move { upstream.send(&again).await });
        }
        self.was_refused = true;
        // A server that was restarted meanwhile is waited for, and a call that waits can be
        // withdrawn.
        self.writer.stream().upstream().set_unsent();
        self.send(again, false);
    }

    /// Handles the response to a request that resumes the stream.
    pub(super) async fn handle_reopened(&mut self, response: Box<Response<ResponseBody>>) {
        let status = response.status();
        if status.is_success() && headers::is_sse(response.headers()) && !is_compressed(response.headers()) {
            let reader = EventReader::new(response.into_body(), self.call.max_event_bytes);
            self.set_input(InputSource::Reading(reader));
            self.writer.update(|machine, _| machine.handle_stream_head()).await;
            self.record_listening();
            return;
        }
        let refusal = refusal_headers(status, response.headers());
        self.writer.update(|machine, _| machine.late_head().handle_refusal_headers(refusal)).await;
        let is_standalone =
            self.writer.stream().with_machine(|machine| machine.policy().kind == StreamKind::Standalone);
        if is_standalone && let Some(handshake) = self.handshake() {
            let (_, is_refused) = self.upstream.revivals().is_session_refused(*response).await;
            handshake.note_listening();
            if is_refused && !handshake.is_over() {
                return self.end(Ending::SessionLost).await;
            }
        }
        let ending = match status {
            // The server still has the old stream, is unavailable, or is busy.
            StatusCode::CONFLICT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
                if is_standalone =>
            {
                Ending::Unavailable
            }
            refused => Ending::Refused(refused.as_u16()),
        };
        self.end(ending).await;
    }

    /// Returns the record of the session's handshake, or `None` if the session cannot be opened
    /// again.
    pub(super) fn handshake(&self) -> Option<Arc<Handshake>> {
        let session = self.writer.stream().binding().session.as_ref()?;
        self.log.sessions().handshakes().find(session)
    }

    /// Records that a standalone stream is open in its session.
    fn record_listening(&self) {
        if let Some(handshake) = self.handshake() {
            handshake.note_listening();
        }
    }
}
