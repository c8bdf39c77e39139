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
    /// The headers, except those that describe the body.
    pub headers: &'a Lines,
    /// The server's name of the session, or `None` if the request names none.
    pub session: Option<&'a [u8]>,
    /// The body.
    pub body: &'a Bytes,
    /// Stream of the request, or `None` for one without.
    pub stream: Option<&'a Arc<Stream>>,
    /// Caller for whom a server is started, or `None` for the proxy itself.
    pub caller: Option<&'a Arc<Caller>>,
    /// Occasion of the start that an `initialize` needs.
    pub start_kind: StartKind,
    /// Told of the beginning of a request.
    pub on_begin: OnBegin,
}

/// Returns the ID of a request.
pub fn request_id(message: &Message) -> Option<&RequestId> {
    match message {
        Message::Request { id, .. } => Some(id),
        Message::Notification { .. } | Message::Response { .. } => None,
    }
}
