//! The host's side of stdin: lines, and the messages in them.
//!
//! Blank lines, CRLF and a byte order mark are accepted, and a last line without its end. Absent:
//! what a message means.

use std::borrow::Cow;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::protocol::channel::line::{Line, LineReader};
use crate::protocol::error::{ErrorCode, Failure, Subject};
use crate::protocol::jsonrpc::{self, Body, Message, PeekError, RequestId, code, response};

/// Largest line, in bytes.
const LINE_MAX: usize = 64 * 1024 * 1024;
/// Room in the buffer before a read.
const READ_SIZE: usize = 16 * 1024;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reader of the host's lines.
pub(super) struct Input<R> {
    input: R,
    lines: LineReader,
    is_first: bool,
    has_ended: bool,
    /// First bytes of a line over the limit, until its end.
    cut: Option<Bytes>,
}

/// A line of the host.
pub(super) enum HostLine {
    /// A request.
    Request(HostRequest),
    /// A notification.
    Notification {
        /// Name of the method.
        method: Box<str>,
        /// The message.
        body: Bytes,
    },
    /// A response to a request of the far side.
    Response(Bytes),
    /// An array of messages, with the IDs of its requests.
    Batch(Vec<RequestId>, Bytes),
    /// No message: the error that the host gets.
    Invalid(Vec<u8>),
}

/// A request of the host.
#[derive(Clone)]
pub(super) struct HostRequest {
    pub(super) id: RequestId,
    pub(super) method: Box<str>,
    pub(super) body: Bytes,
    /// Revision in the request itself, or `None`: requests of older revisions have none.
    pub(super) revision: Option<Box<str>>,
}

impl HostRequest {
    /// Subject of errors about the request.
    pub(super) fn subject(&self) -> Subject {
        if &*self.method == "tools/call" { Subject::ToolCall } else { Subject::Request }
    }

    /// Returns true for the request of a subscription.
    pub(super) fn is_listen(&self) -> bool {
        &*self.method == "subscriptions/listen"
    }

    /// Returns whether a message is the response to the request: `Some(true)` for an error, `None`
    /// for any other message.
    pub(super) fn response_in(&self, message: &[u8]) -> Option<bool> {
        match jsonrpc::peek_any(message) {
            Ok(Body::Single(Message::Response { id: Some(id), is_error })) if id == self.id => Some(is_error),
            Ok(_) | Err(_) => None,
        }
    }

    /// Returns the error for a failure of the request.
    pub(super) fn failed(&self, failure: Failure) -> Bytes {
        failure.to_message(Some(&self.id), self.subject()).into()
    }
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, lines: LineReader::new(LINE_MAX), is_first: true, has_ended: false, cut: None }
    }

    /// Returns the next line, or `None` at the end of stdin. Nothing is lost if the future is
    /// dropped.
    pub(super) async fn next(&mut self) -> Option<HostLine> {
        loop {
            match self.lines.next_line() {
                Some(Line::Whole(line)) => {
                    let is_first = std::mem::take(&mut self.is_first);
                    let line = if is_first && line.starts_with(BYTE_ORDER_MARK) { line.slice(3..) } else { line };
                    return Some(parse(line));
                }
                Some(Line::Cut { first, .. }) => self.cut = Some(first),
                Some(Line::CutEnd(last)) => return Some(over_limit(&self.cut.take().unwrap_or_default(), &last)),
                None if self.has_ended => return None,
                None => {
                    self.lines.buffer().reserve(READ_SIZE);
                    if !matches!(self.input.read_buf(self.lines.buffer()).await, Ok(1..)) {
                        self.has_ended = true;
                        self.lines.buffer().extend_from_slice(b"\n");
                    }
                }
            }
        }
    }
}

fn parse(line: Bytes) -> HostLine {
    match jsonrpc::peek(&line) {
        Ok(Body::Single(Message::Request { id, method })) => {
            let revision = jsonrpc::meta_protocol_version(&line).map(String::into_boxed_str);
            HostLine::Request(HostRequest { id, method: (&*method).into(), body: line, revision })
        }
        Ok(Body::Single(Message::Notification { method })) => {
            HostLine::Notification { method: (&*method).into(), body: line }
        }
        Ok(Body::Single(Message::Response { .. })) => HostLine::Response(line),
        Ok(Body::Batch(messages)) => {
            let id_of = |message| match message {
                Message::Request { id, .. } => Some(id),
                Message::Notification { .. } | Message::Response { .. } => None,
            };
            HostLine::Batch(messages.into_iter().filter_map(id_of).collect(), line)
        }
        Err(PeekError::NotJson) => HostLine::Invalid(invalid(None, ErrorCode::NotJson)),
        Err(_) => {
            let id = jsonrpc::member(&line, &["id"]).and_then(RequestId::from_json);
            HostLine::Invalid(invalid(id.as_ref(), ErrorCode::BadRequest))
        }
    }
}

fn invalid(id: Option<&RequestId>, code: ErrorCode) -> Vec<u8> {
    let text = match code {
        ErrorCode::NotJson => "the line is not JSON",
        _ => "the line is no JSON-RPC message",
    };
    response::error_with_data(id, code.json_rpc(), text, serde_json::Value::Null)
}

/// Returns the error for a line over the limit, under the ID that can be read of it.
fn over_limit(first: &[u8], last: &[u8]) -> HostLine {
    let mut id = None;
    let mut read = |name: Cow<'_, str>, value: Option<&[u8]>| {
        if name == "id" && id.is_none() {
            id = value.and_then(|value| RequestId::from_json(std::str::from_utf8(value).ok()?));
        }
    };
    jsonrpc::leading_members(first, &mut read);
    jsonrpc::trailing_members(last, &mut read);
    let text = "the line is longer than 64 MiB";
    HostLine::Invalid(response::error_with_data(id.as_ref(), code::LIMIT_REACHED, text, serde_json::Value::Null))
}
