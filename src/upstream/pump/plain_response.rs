//! Upstream responses without a stream: passed to the client, or logged as an event.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::super::input::{CollectedResponse, InputSource, refused_by};
use super::super::server::body::{passing_body, read_into};
use super::super::server::response_body::ResponseBody;
use super::super::server::sse_reader::poll_once;
use super::super::stack::Upstream;
use super::late_response::refusal_headers;
use super::{Call, Pump, is_compressed};
use crate::event_log::{Handshake, Head, Plain};
use crate::protocol::body_events;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, ResponseFacts};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::stream::{Ending, Machine};
use crate::protocol::unicode_line_ends;

/// Size limit of a JSON response that is kept for a retry. A larger one streams.
const KEPT_MAX: usize = 64 * 1024;
/// Time limit for a JSON response to be complete. After it the response streams, at any size.
const KEPT_WAIT: Duration = Duration::from_millis(500);
/// Time limit for a response that is observed, or whose call has an idempotency key.
const OBSERVED_WAIT: Duration = Duration::from_secs(10);

/// A body with the response that a stream owes, as events.
enum OwedResponse {
    /// The data of an event for each message.
    Messages(Vec<Bytes>),
    /// A response that only a client may read, as the data of one event.
    Unreadable(Bytes),
}

impl OwedResponse {
    fn pass_to(&self, machine: &mut Machine, now: Instant) {
        match self {
            Self::Messages(messages) => {
                for message in messages {
                    machine.handle_message(b"message", message, now);
                }
            }
            Self::Unreadable(data) => machine.handle_unreadable_response(data, now),
        }
    }
}

impl Pump {
    /// Handles the head of a response without a stream. The response passes unchanged, or becomes
    /// an event if the client has a stream already or accepts nothing else.
    pub(super) async fn handle_plain_response(&mut self, response: Box<Response<ResponseBody>>, facts: ResponseFacts) {
        // Its span ends with the body.
        let span = self.span.take();
        self.set_input(InputSource::Idle);
        self.span = span;
        let json = facts.is_read_as_json;
        if response.status().is_success() && json && !self.call.accept.json && self.call.accept.sse {
            return Box::pin(self.convert_to_event(response, facts)).await;
        }
        if self.call.name.is_none()
            && self.has_no_standalone_stream(response.status())
            && (self.is_late() || self.needs_standalone())
        {
            return Box::pin(self.open_without_server(response)).await;
        }
        if response.status().is_success() && self.notices.is_some() {
            // The client of a task gets its handle in place of the response.
            self.writer.update(|machine, _| machine.lifecycle_mut().handle_commit()).await;
            self.publish();
        }
        if self.writer.update(|machine, now| machine.handle_plain_head(now)).await {
            return self.pass_response(response, facts).await;
        }
        self.record_late_head(response.status());
        let refusal = refusal_headers(response.status(), response.headers());
        self.writer.update(|machine, _| machine.late_head().handle_refusal_headers(refusal)).await;
        self.collect_body(response.status(), json, response.into_body());
    }

    /// Returns true if the response to a GET shows that the server has no standalone stream. The
    /// specification has a 405 for this. Another status counts if the session was found to live.
    fn has_no_standalone_stream(&self, status: StatusCode) -> bool {
        let is_known = |handshake: Arc<Handshake>| handshake.refused_get() == Some(status.as_u16());
        status == StatusCode::METHOD_NOT_ALLOWED || self.handshake().is_some_and(is_known)
    }

    /// Returns true if the client needs the stream although its server has none.
    fn needs_standalone(&self) -> bool {
        let binding = self.writer.stream().binding();
        let session = binding.session.as_ref().and_then(|id| self.log.sessions().find(id, &binding.principal));
        session.is_some_and(|session| session.needs_standalone())
    }

    /// Opens the standalone stream of a session whose server has no such stream.
    async fn open_without_server(&mut self, response: Box<Response<ResponseBody>>) {
        let (parts, _) = response.into_parts();
        let mut headers = headers::cors_of(&parts.headers);
        headers::sse_downstream(&mut headers, &ResponseFacts::default());
        headers::expose_ours(&mut headers);
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        if self.writer.update(|machine, _| machine.handle_stream_head()).await {
            self.publish();
            self.writer.set_head(Head::Stream(StatusCode::OK, Arc::new(headers)));
        }
    }

    /// Opens a stream for a client that accepts SSE only. The JSON response becomes its only event.
    async fn convert_to_event(&mut self, response: Box<Response<ResponseBody>>, facts: ResponseFacts) {
        let (mut parts, body) = response.into_parts();
        if is_compressed(&parts.headers) {
            return self.handle_failure(Failure::after_send(ErrorCode::UpstreamGarbage), false).await;
        }
        headers::sse_downstream(&mut parts.headers, &facts);
        headers::expose_ours(&mut parts.headers);
        parts.headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        if self.writer.update(|machine, _| machine.handle_stream_head()).await {
            self.publish();
            self.writer.set_head(Head::Stream(parts.status, Arc::new(parts.headers)));
        }
        self.collect_body(parts.status, true, body);
    }

    /// Collects the body as input of the pump's loop, so that timers and cancellations continue
    /// meanwhile.
    fn collect_body(&mut self, status: StatusCode, json: bool, body: ResponseBody) {
        let limit = self.call.max_event_bytes;
        self.set_input(InputSource::collecting(status, if json { Some(body) } else { None }, limit));
    }

    /// Logs a collected response. A JSON-RPC body of any status is the message for its request;
    /// anything else is the proxy's error.
    pub(super) async fn log_collected(&mut self, CollectedResponse { status, body }: CollectedResponse) {
        self.set_input(InputSource::Idle);
        let refused = refused_by(status);
        self.record_late_body(&body);
        let body = body.and_then(|body| self.as_owed_response(status, body).ok_or(refused));
        let body = body.map(|response| match response {
            OwedResponse::Messages(messages) => {
                OwedResponse::Messages(messages.into_iter().map(|message| self.observe(message)).collect())
            }
            unreadable @ OwedResponse::Unreadable(_) => {
                self.call.observer.note_unread(status, &self.log);
                unreadable
            }
        });
        Box::pin(self.call.observer.save_session(&self.log, &self.call.credentials)).await;
        self.set_arriving(0);
        let has_none = matches!(body, Err(ErrorCode::UpstreamGarbage)) && Plain::is_without_response(status);
        if has_none && Box::pin(self.end_without_response()).await {
            return;
        }
        self.writer
            .update(|machine, now| match body {
                Ok(response) => {
                    response.pass_to(machine, now);
                    machine.handle_upstream_end(Ending::Clean, now);
                }
                Err(code) => {
                    let failure = Failure { http_status: Some(status.as_u16()), ..Failure::after_send(code) };
                    machine.handle_failure(failure, now);
                }
            })
            .await;
    }

    /// Returns a JSON body as the response that this stream owes, or `None` for any other body. An
    /// error without an ID, such as for an unknown session, is the response to the only request.
    fn as_owed_response(&self, status: StatusCode, body: Bytes) -> Option<OwedResponse> {
        let body = body_events::without_mark(body);
        let Ok(messages) = jsonrpc::peek_any(&body) else {
            return self.writer.stream().with_machine(|machine| {
                let is_readable = status == StatusCode::OK && !machine.policy().has_records();
                let only = machine.owed_responses().only_unanswered().filter(|_| is_readable)?;
                body_events::data_of_unreadable(body, only).map(OwedResponse::Unreadable)
            });
        };
        self.writer.stream().with_machine(|machine| {
            // A cancelled request may still get a response.
            let is_response = |message: &Message| match message {
                Message::Response { id: Some(id), .. } => {
                    let owed = machine.owed_responses();
                    owed.is_unanswered(id)
                        || owed.alike(id).is_some()
                        || machine.task().is_some_and(|task| task.is_for(id))
                }
                Message::Response { id: None, .. } | Message::Request { .. } | Message::Notification { .. } => false,
            };
            if messages.messages().iter().any(is_response) {
                return Some(OwedResponse::Messages(body_events::data_of(body.clone(), &messages)));
            }
            match (messages.messages(), machine.owed_responses().only_unanswered()) {
                ([Message::Response { id: None, is_error: true }], Some(only)) => {
                    let error = jsonrpc::response::readdressed(&body, only)?;
                    Some(OwedResponse::Messages(vec![unicode_line_ends::escaped(error.into())]))
                }
                _ => None,
            }
        })
    }

    async fn pass_response(&mut self, response: Box<Response<ResponseBody>>, facts: ResponseFacts) {
        let (mut parts, mut body) = response.into_parts();
        if Plain::shows_nothing_ran(parts.status) {
            // A retry of a call that was refused as a whole is a new call.
            self.writer.stream().retries().forget();
        }
        adapt_passing(&self.upstream, &mut parts.headers, &facts);
        let mut buffer = BytesMut::new();
        let (limit, wait) = if self.call.observer.is_active() {
            // A response that opens a session is read whole: its record must exist before the
            // client uses it. So is a list that is edited.
            (self.call.max_event_bytes, OBSERVED_WAIT)
        } else if self.writer.stream().by_get().is_some_and(|by_get| by_get.is_away()) {
            // No client waits for it, and it may go by GET.
            (self.call.max_event_bytes, OBSERVED_WAIT)
        } else if self.is_keyed() {
            (KEPT_MAX, OBSERVED_WAIT)
        } else {
            (KEPT_MAX, KEPT_WAIT)
        };
        let complete = {
            let mut reading = pin!(read_into(&mut body, &mut buffer, limit, &self.writer));
            // Most bodies came with their heads, and need no timer.
            match poll_once(reading.as_mut()).await {
                Some(read) => Ok(read),
                None => tokio::time::timeout(wait, reading).await,
            }
        };
        let plain = match complete {
            Ok(Ok(true)) => {
                let whole = buffer.freeze();
                let body = if self.call.observer.is_active() && !is_compressed(&parts.headers) {
                    let Call { observer, credentials, .. } = &mut self.call;
                    Box::pin(observer.observe_whole(&mut parts, whole, &self.upstream, &self.log, credentials)).await
                } else {
                    self.call.observer.note_unread(parts.status, &self.log);
                    whole
                };
                Plain::kept(parts.status, parts.headers, body)
            }
            Ok(Ok(false)) | Err(_) => {
                self.record_passing(parts.status, &parts.headers);
                self.call.observer.note_unread(parts.status, &self.log);
                // A retry with the key still finds the call, with an error in place of its
                // response: the tool does not run again.
                if !self.is_keyed() {
                    self.writer.stream().retries().forget();
                }
                let timeout = self.writer.stream().with_machine(|machine| machine.policy().call_timeout);
                let body = passing_body(self.writer.counted(buffer), body, timeout.map(|timeout| self.began + timeout));
                let body = self.trace_passing(parts.status, body);
                Plain::passthrough(parts.status, parts.headers, body)
            }
            Ok(Err(_)) => {
                let failure = Failure::after_send(ErrorCode::UpstreamBroke);
                self.report_failure(failure.code, false);
                self.writer.note_arriving(0);
                return self.publish_head(Head::Failed(failure)).await;
            }
        };
        self.publish_head(Head::Plain(Arc::new(plain))).await;
    }
}

/// Adapts the head of a response that passes, which has these facts.
pub(in crate::upstream) fn adapt_passing(upstream: &Upstream, headers: &mut HeaderMap, facts: &ResponseFacts) {
    if facts.has_location {
        upstream.server().rewrite_location(headers);
    }
    if facts.has_cors {
        headers::expose_ours(headers);
    }
}
