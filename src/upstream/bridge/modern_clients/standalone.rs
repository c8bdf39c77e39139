//! The session's standalone stream, with server messages that are associated with no call.
//!
//! The stream is open for as long as the session lives. A notification goes to the call or the
//! subscriptions that it concerns. A server request goes to a running call that accepts it, or
//! waits for one. Absent: messages on the streams of calls (`call.rs`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::session::LegacySession;
use crate::clock;
use crate::protocol::bridge::modern_clients::{self as bridge, listen};
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, Message, RequestId, response};
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::sse_reader::EventReader;

/// Pause before the stream is reopened. It doubles after each refusal up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Minimum duration of a stream without messages that counts as lasting.
const LASTING: Duration = Duration::from_secs(30);
/// Maximum wait of a server request for a call.
const CALL_WAIT: Duration = Duration::from_secs(30);

/// Reads the stream, with the newest headers of the caller, for as long as the session lives.
pub(super) async fn read(session: Weak<LegacySession>) {
    let mut reader = Reader { session, last_event_id: None };
    let mut pause = PAUSE;
    loop {
        let response = {
            let Some(session) = reader.session.upgrade() else { return };
            let get = session.usage.last_request().to_get(reader.last_event_id.as_deref());
            let response = session.exchange(&get).await;
            session.record_stream();
            response
        };
        match response {
            Ok(response) if response.status().is_success() && headers::is_sse(response.headers()) => {
                let began = clock::now();
                let has_messages = reader.read(response.into_body()).await;
                let is_lasting = has_messages || clock::now() >= began + LASTING;
                pause = if is_lasting { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            }
            // The server has no such stream.
            Ok(response) if response.status() == StatusCode::METHOD_NOT_ALLOWED => return,
            // The server has forgotten the session. Ending the subscriptions makes the clients
            // subscribe again.
            Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                if let Some(session) = reader.session.upgrade() {
                    session.listeners.end_all(session.server_info.as_ref());
                }
                return;
            }
            // Some servers refuse a second stream until they notice that the first was cut.
            Ok(_) | Err(_) => {
                reader.last_event_id = None;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        clock::sleep(pause).await;
    }
}

/// Reader of the stream.
struct Reader {
    session: Weak<LegacySession>,
    /// Last event ID of the stream: a server that can resume continues after it.
    last_event_id: Option<Bytes>,
}

impl Reader {
    /// Reads the stream to its end. Returns true if it carried any message.
    async fn read(&mut self, body: ResponseBody) -> bool {
        let mut has_messages = false;
        let Some(limit) = self.session.upgrade().map(|session| session.link.settings.max_event_bytes) else {
            return false;
        };
        let mut events = EventReader::new(body, limit);
        while let Some(batch) = events.batch().await {
            let Some(session) = self.session.upgrade() else { return has_messages };
            for event in &batch {
                if let Some(id) = event.id.as_ref().filter(|id| !id.is_empty()) {
                    self.last_event_id = Some(Bytes::copy_from_slice(id));
                }
                let Ok(body) = jsonrpc::peek(&event.data) else { continue };
                has_messages = true;
                for (message, text) in body.messages().iter().zip(jsonrpc::messages(&event.data)) {
                    match message {
                        Message::Request { id, method } => assign(&session, id, method, text).await,
                        Message::Notification { method } => {
                            deliver(&session, method, text.as_bytes());
                            wait_for_readers(&session, method, text.as_bytes()).await;
                        }
                        Message::Response { .. } => {}
                    }
                }
            }
        }
        has_messages
    }
}

/// Assigns a server request to a call, or refuses it.
async fn assign(session: &Arc<LegacySession>, id: &RequestId, method: &str, text: &str) {
    if method == "ping" {
        session.post(&session.usage.last_request(), response::empty(id)).await;
        return;
    }
    let Some((_, params)) = bridge::input_request_of(text.as_bytes()) else { return };
    let refused = session.declared.refuses(method, &params);
    let until = clock::now() + CALL_WAIT;
    if refused.is_none() && session.calls.assign(Bytes::copy_from_slice(text.as_bytes()), until) {
        tokio::spawn(refuse_expired(Arc::downgrade(session)));
        return;
    }
    refuse(session, id, method, refused.unwrap_or(bridge::OUTSIDE_CALL)).await;
}

/// Reassigns an unassociated server request that its call had not forwarded.
pub(super) fn reassign(session: &Arc<LegacySession>, request: &Bytes) {
    let Ok(jsonrpc::Body::Single(Message::Request { id, method })) = jsonrpc::peek(request) else { return };
    if session.calls.assign(request.clone(), clock::now() + CALL_WAIT) {
        tokio::spawn(refuse_expired(Arc::downgrade(session)));
        return;
    }
    let session = session.clone();
    tokio::spawn(async move { refuse(&session, &id, &method, bridge::OUTSIDE_CALL).await });
}

/// Refuses the server requests that found no call in time.
async fn refuse_expired(session: Weak<LegacySession>) {
    clock::sleep(CALL_WAIT).await;
    let Some(session) = session.upgrade() else { return };
    for request in session.calls.take_expired(clock::now()) {
        if let Ok(jsonrpc::Body::Single(Message::Request { id, method })) = jsonrpc::peek(&request) {
            refuse(&session, &id, &method, bridge::OUTSIDE_CALL).await;
        }
    }
}

async fn refuse(session: &LegacySession, id: &RequestId, method: &str, (code, text): (i64, &str)) {
    if method == "roots/list" {
        session.calls.mark_roots_refused();
    }
    session.post(&session.usage.last_request(), response::error(id, code, text)).await;
}

/// Waits briefly for the recipients of a notification, if they are behind.
async fn wait_for_readers(session: &LegacySession, method: &str, text: &[u8]) {
    if listen::is_change(method) {
        session.listeners.wait_for_readers().await;
    } else if method == "notifications/progress"
        && let Some(own) = call_of(text)
    {
        session.calls.wait_for_reader(&own).await;
    }
}

/// Returns the ID of the call that a progress notification names.
fn call_of(text: &[u8]) -> Option<String> {
    jsonrpc::string_member(text, &["params", "progressToken"])
}

/// Delivers a notification to the calls or subscriptions that it concerns.
pub(super) fn deliver(session: &LegacySession, method: &str, text: &[u8]) {
    let copy = || Bytes::copy_from_slice(text);
    match method {
        _ if listen::is_change(method) => session.listeners.notify(method, text),
        "notifications/progress" => {
            let _ = call_of(text).is_some_and(|own| session.calls.give(&own, copy()));
        }
        "notifications/message" => {
            let _ = session.calls.give_log(copy());
        }
        "notifications/cancelled" => {
            let Some(withdrawn) = jsonrpc::cancelled_request_id(text) else { return };
            let is_withdrawn = |request: &Bytes| matches!(jsonrpc::peek(request), Ok(jsonrpc::Body::Single(Message::Request { id, .. })) if id == withdrawn);
            session.calls.withdraw(is_withdrawn);
            session.calls.give_all(&copy());
        }
        "notifications/elicitation/complete" => session.record_completion(text),
        _ => {}
    }
}
