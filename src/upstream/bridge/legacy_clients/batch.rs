//! Batches of 2025-03-26: each request is sent on its own, and one stream carries all responses.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::mpsc;

use super::clients::LegacyClients;
use super::session::Session;
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, Message, RequestId, code, response};
use crate::upstream::bridge::responses::{empty, error, event_stream};
use crate::upstream::server::body::collect;
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::{Messages, ResponseBody};
use crate::upstream::server::sent::Sent;
use crate::upstream::server::sse_reader::EventReader;

/// Capacity of a batch's queue of messages for its reader.
const QUEUE: usize = 16;
/// Maximum number of messages in a batch.
const MAX_MESSAGES: usize = 256;
/// The revision that has batches.
const REVISION: &str = "2025-03-26";

impl LegacyClients {
    /// Sends the messages of a batch and returns the stream of their responses.
    pub(super) fn batch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        template: &Template,
        messages: Vec<Message>,
        sent: Option<&Sent>,
    ) -> Response<ResponseBody> {
        let refused = |text| error(StatusCode::BAD_REQUEST, None, code::INVALID_REQUEST, text);
        if session.client.version.as_str() != REVISION {
            return refused("Invalid request: one message is expected");
        }
        if messages.len() > MAX_MESSAGES {
            return refused("Invalid request: the batch is too long");
        }
        if let Some(sent) = sent {
            sent.set_sent();
        }
        let (out, receiver) = mpsc::channel(QUEUE);
        let has_requests = messages.iter().any(|message| matches!(message, Message::Request { .. }));
        let texts: Vec<Bytes> = jsonrpc::messages(template.body())
            .into_iter()
            .map(|text| Bytes::copy_from_slice(text.as_bytes()))
            .collect();
        for (message, text) in messages.into_iter().zip(texts) {
            let (clients, session, out) = (self.clone(), session.clone(), out.clone());
            let template = template.with_body(text);
            tokio::spawn(async move {
                let id = match &message {
                    Message::Request { id, .. } => Some(id.clone()),
                    Message::Notification { .. } | Message::Response { .. } => None,
                };
                let server = clients.link.server.clone();
                let response = Box::pin(clients.message(&server, &session, &template, message, None)).await;
                if let Some(id) = id {
                    let limit = clients.link.settings.max_event_bytes;
                    tokio::select! {
                        () = out.closed() => {}
                        () = send_messages(response.ok(), &id, &out, limit) => {}
                    }
                }
            });
        }
        if !has_requests {
            return empty(StatusCode::ACCEPTED);
        }
        event_stream(Messages::received(receiver))
    }
}

/// Forwards the messages of the response to one request of a batch.
async fn send_messages(
    response: Option<Response<ResponseBody>>,
    id: &RequestId,
    out: &mpsc::Sender<Bytes>,
    limit: usize,
) {
    let failed = |text: &str| response::error(id, code::INTERNAL_ERROR, text).into();
    let message = match response {
        Some(response) if headers::is_sse(response.headers()) => {
            let mut reader = EventReader::new(response.into_body(), limit);
            while let Some(events) = reader.batch().await {
                for event in events {
                    if out.send(event.data).await.is_err() {
                        return;
                    }
                }
            }
            return;
        }
        Some(response) => {
            let (status, is_json) = (response.status(), headers::is_read_as_json(response.headers()));
            match collect(response.into_body(), limit).await {
                Ok(message) if is_json && jsonrpc::peek(&message).is_ok() => message,
                Ok(_) | Err(_) => failed(&format!("the server answered with status {}", status.as_u16())),
            }
        }
        None => failed("the server did not answer"),
    };
    let _ = out.send(message).await;
}
