//! Late responses: the permission to commit before the server, and the parts of the server's
//! response that are lost by it.
//!
//! Owned here: the use of facts about the caller and about earlier late responses
//! ([`super::super::observed`], [`super::super::late_responses`]), and requests that the server
//! accepts without a response. Absent: the time of a commit (the machine), and the conditions that
//! a request's head decides (ingress).

use std::time::Instant;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};

use super::Pump;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::call_name::CallName;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::refusal::RefusalHeaders;
use crate::upstream::late_responses::{self, Source};
use crate::upstream::observed::CredentialKind;

impl Pump {
    /// Returns true if the proxy may commit at `now`. It must not hide an important head: a status
    /// that a client acts on, or CORS headers that a browser needs. Called once per late call.
    pub(super) fn may_commit(&self, now: Instant) -> bool {
        let (observed, template) = (self.upstream.observed(), &self.call.template);
        let kind = CredentialKind::of(&self.call.credentials, &template.lines().to_map(), template.query());
        observed.is_trusted(&self.call.credentials, kind, now, clock::wall())
            && self.upstream.knows_cors(template.origin())
            && !self.upstream.late_responses().has(&self.source(), now)
    }

    /// Records the head of a plain response that cannot pass, because of a commit or because the
    /// stream has ended.
    pub(super) fn record_late_head(&self, status: StatusCode) {
        // A GET has no response but its stream, so every status tells its client something.
        if (self.call.name.is_none() || late_responses::matters(status)) && self.is_late() {
            self.record_source();
        }
    }

    /// Records the body of a response that was collected for an event, or the error in its place.
    pub(super) fn record_late_body(&self, body: &Result<Bytes, ErrorCode>) {
        let is_large = match body {
            Ok(body) => late_responses::is_large(body.len()),
            Err(code) => *code == ErrorCode::EventTooLarge,
        };
        if is_large && self.is_late() {
            self.record_source();
        }
    }

    /// Records a large response that passes in time, before its body: a response to an equal call
    /// may be late. It counts only if the head names the length.
    pub(super) fn record_passing(&self, status: StatusCode, response: &HeaderMap) {
        let length = response.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if status.is_success() && headers::is_read_as_json(response) && length.is_some_and(late_responses::is_large) {
            self.record_source();
        }
    }

    /// Ends the wait for a response in this HTTP response. Returns false if the call is a task,
    /// which needs one.
    pub(super) async fn end_without_response(&mut self) -> bool {
        let stream = self.writer.stream();
        if stream.with_machine(|machine| machine.policy().is_task) {
            return false;
        }
        let binding = stream.binding();
        let has_standalone = binding.session.as_ref().is_some_and(|id| {
            !self.log.sessions().standalone_of(id, std::slice::from_ref(&binding.principal)).is_empty()
        });
        self.writer.update(|machine, now| machine.late_head().handle_accepted(has_standalone, now)).await;
        true
    }

    /// Records that a response arrived on this standalone stream: its call may have no other
    /// pending response.
    pub(super) fn record_session_response(&self, id: &RequestId) {
        let binding = self.writer.stream().binding();
        let session = binding.session.as_ref().and_then(|id| self.log.sessions().find(id, &binding.principal));
        let running = session.map(|session| session.running()).unwrap_or_default();
        let record = |stream: &Stream, id| {
            stream.change(|machine, now| machine.late_head().handle_answered_elsewhere(id, now));
        };
        if running.iter().any(|stream| stream.with_machine(|machine| machine.owed_responses().is_due(id))) {
            return running.iter().for_each(|stream| record(stream, id));
        }
        let alike_in = |stream: &Stream| stream.with_machine(|machine| machine.owed_responses().alike(id));
        let mut alike = running.iter().filter_map(|stream| Some((stream, alike_in(stream)?)));
        if let (Some((stream, own)), None) = (alike.next(), alike.next()) {
            record(stream, &own);
        }
    }

    /// Returns true if the proxy has committed.
    pub(super) fn is_late(&self) -> bool {
        self.writer.stream().with_machine(|machine| machine.lifecycle().is_committed())
    }

    fn record_source(&self) {
        self.upstream.late_responses().record(self.source(), clock::now());
    }

    /// Returns the source of the response.
    fn source(&self) -> Source {
        let credentials = self.call.credentials;
        let address = if credentials.are_absent() { Some(self.call.address) } else { None };
        let name = match &self.call.name {
            Some(name) => CallName::of(name, self.call.template.body()),
            // The standalone stream.
            None => CallName { method: "GET".into(), tool: None },
        };
        Source { credentials, address, name }
    }
}

/// Returns the headers that an error takes from a refusal of this status.
pub(super) fn refusal_headers(status: StatusCode, headers: &HeaderMap) -> Option<Box<RefusalHeaders>> {
    if status.is_success() { None } else { RefusalHeaders::of(headers) }
}
