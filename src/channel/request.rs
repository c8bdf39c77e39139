//! A request of the upstream client, and the response to it.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;

use super::caller::Caller;
use super::start_queue::StartKind;
use crate::event_log::Stream;
use crate::protocol::headers::Lines;
use crate::protocol::jsonrpc::{Message, RequestId};

/// Called once the first byte of a request was written to its server.
pub type OnBegin = Box<dyn FnOnce() + Send>;

/// A request of the upstream client.
pub struct Request<'a> {
    /// The method.
    pub method: &'a Method,
    /// The headers, without headers that describe the body.
    pub headers: &'a Lines,
    /// The server's name of the session, or `None` if the request names none.
    pub session: Option<&'a [u8]>,
    /// The body.
    pub body: &'a Bytes,
    /// Stream of the request, or `None` for a request without one.
    pub stream: Option<&'a Arc<Stream>>,
    /// Caller that a server is started for, or `None` for the proxy itself.
    pub caller: Option<&'a Arc<Caller>>,
    /// Reason for the start that an `initialize` needs.
    pub start_kind: StartKind,
    /// Called when the request begins.
    pub on_begin: OnBegin,
}

/// Returns the ID of a request.
pub fn request_id(message: &Message) -> Option<&RequestId> {
    match message {
        Message::Request { id, .. } => Some(id),
        Message::Notification { .. } | Message::Response { .. } => None,
    }
}
