//! Upstream responses without a stream: passed to the client, or logged as an event.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode};

use super::super::input::{CollectedResponse, InputSource, refused_by};
use super::super::server::body::{passing_body, read_into};
use super::super::server::response_body::ResponseBody;
use super::late_response::{is_without_response, refusal_headers};
use super::{Call, Pump, is_compressed};
use crate::event_log::{Handshake, Head, Plain};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::stream::Ending;

/// Size limit of a JSON response that is kept for a retry. A larger one streams.
const KEPT_MAX: usize = 64 * 1024;
/// Time limit for a JSON response to be complete. After it the response streams, at any size.
const KEPT_WAIT: Duration = Duration::from_millis(500);
/// Time limit for a response that is observed, or whose call has an idempotency key.
const OBSERVED_WAIT: Duration = Duration::from_secs(10);

impl Pump {
    /// Handles the head of a response without a stream. The response passes unchanged, or becomes
    /// an event if the client has a stream already or accepts nothing else.
    pub(super) async fn handle_plain_response(&mut self, response: Box<Response<ResponseBody>>) {
        // Its span ends with the body.
        let span = self.span.take();
        self.set_input(InputSource::Idle);
        self.span = span;
        let json = headers::is_json(response.headers());
        if response.status().is_success() && json && !self.call.accept.json && self.call.accept.sse {
            return Box::pin(self.convert_to_event(response)).await;
        }
        if self.call.method.is_none() && self.has_no_standalone_stream(response.status()) && self.offers_tasks() {
            return Box::pin(self.open_without_server(response)).await;
        }
        if response.status().is_success() && self.notices.is_some() {
            // The client of a task gets its handle in place of the response.
            self.writer.update(|machine, _| machine.lifecycle_mut().handle_commit()).await;
            self.publish();
        }
        if self.writer.update(|machine, now| machine.handle_plain_head(now)).await {
            return self.pass_response(response).await;
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

    /// Returns true if tasks of 2025-11-25 are offered in the session of the stream.
    fn offers_tasks(&self) -> bool {
        let binding = self.writer.stream().binding();
        let session = binding.session.as_ref().and_then(|id| self.log.sessions().find(id, &binding.principal));
        session.is_some_and(|session| session.has_tasks() == Some(true))
    }

    /// Opens the standalone stream of a session whose server has no such stream: the messages of
    /// its tasks need one.
    async fn open_without_server(&mut self, response: Box<Response<ResponseBody>>) {
        let (parts, _) = response.into_parts();
        let mut headers = headers::cors_of(&parts.headers);
        headers::sse_downstream(&mut headers);
        headers::expose_ours(&mut headers);
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        if self.writer.update(|machine, _| machine.handle_stream_head()).await {
            self.publish();
            self.writer.set_head(Head::Stream(StatusCode::OK, Arc::new(headers)));
        }
    }

    /// Opens a stream for a client that accepts SSE only. The JSON response becomes its only event.
    async fn convert_to_event(&mut self, response: Box<Response<ResponseBody>>) {
        let (mut parts, body) = response.into_parts();
        if is_compressed(&parts.headers) {
            return self.handle_failure(Failure::after_send(ErrorCode::UpstreamGarbage), false).await;
        }
        headers::sse_downstream(&mut parts.headers);
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
        let body = body.and_then(|body| self.as_owed_response(body).ok_or(refused)).map(|body| self.observe(body));
        Box::pin(self.call.observer.save_session(&self.log, &self.call.credentials)).await;
        self.set_arriving(0);
        let has_none = body == Err(ErrorCode::UpstreamGarbage) && is_without_response(status);
        if has_none && Box::pin(self.end_without_response()).await {
            return;
        }
        self.writer
            .update(|machine, now| match body {
                Ok(body) => {
                    machine.handle_message(b"message", &body, now);
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
    fn as_owed_response(&self, body: Bytes) -> Option<Bytes> {
        let messages = jsonrpc::peek(&body).ok()?;
        self.writer.stream().with_machine(|machine| {
            // A cancelled request may still get a response.
            let is_response = |message: &Message| match message {
                Message::Response { id: Some(id), .. } => {
                    machine.owed_responses().is_unanswered(id) || machine.task().is_some_and(|task| task.has_id(id))
                }
                Message::Response { id: None, .. } | Message::Request { .. } | Message::Notification { .. } => false,
            };
            if messages.messages().iter().any(is_response) {
                return Some(body.clone());
            }
            let mut unanswered = machine.owed_responses().unanswered();
            match (messages.messages(), unanswered.next(), unanswered.next()) {
                ([Message::Response { id: None, is_error: true }], Some(only), None) => {
                    jsonrpc::response::readdressed(&body, only).map(Into::into)
                }
                _ => None,
            }
        })
    }

    async fn pass_response(&mut self, response: Box<Response<ResponseBody>>) {
        let (mut parts, mut body) = response.into_parts();
        if shows_nothing_ran(parts.status) {
            // A retry of a call that was refused as a whole is a new call.
            self.writer.stream().retries().forget();
        }
        self.upstream.server().rewrite_location(&mut parts.headers);
        headers::expose_ours(&mut parts.headers);
        let mut buffer = BytesMut::new();
        let (limit, wait) = if self.call.observer.is_active() {
            // A response that opens a session is read whole: its record must exist before the
            // client uses it. So is a list that is edited.
            (self.call.max_event_bytes, OBSERVED_WAIT)
        } else if self.is_keyed() {
            (KEPT_MAX, OBSERVED_WAIT)
        } else {
            (KEPT_MAX, KEPT_WAIT)
        };
        let complete = tokio::time::timeout(wait, read_into(&mut body, &mut buffer, limit, &self.writer)).await;
        let plain = match complete {
            Ok(Ok(true)) => {
                let whole = buffer.freeze();
                let body = if self.call.observer.is_active() && !is_compressed(&parts.headers) {
                    let Call { observer, credentials, .. } = &mut self.call;
                    let headers = &mut parts.headers;
                    Box::pin(observer.observe_whole(headers, whole, &self.upstream, &self.log, credentials)).await
                } else {
                    whole
                };
                Plain::kept(parts.status, parts.headers, body)
            }
            Ok(Ok(false)) | Err(_) => {
                self.record_passing(parts.status, &parts.headers);
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

/// Returns true if this status shows that no tool ran. A server error may follow a run, or replace
/// its result.
fn shows_nothing_ran(status: StatusCode) -> bool {
    let is_failure = status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE;
    !status.is_success() && !is_failure
}
