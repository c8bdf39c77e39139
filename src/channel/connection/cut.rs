//! Messages of the server that are dropped while they arrive: they exceed the limit, or find no
//! memory.
//!
//! A call that waits for such a message has to end. The first and last bytes of the message name
//! that call, as far as they prove it. Without proof the only running call ends, or else each call
//! that ran when the message was cut. Invariant: a request or a notification of the server ends no
//! call. A server request gets an error, so that the server does not wait. The wait for the end of
//! a message lasts at most [`END_WAIT`], since a server may write without end. Absent: the dropping
//! itself (`protocol/channel/line.rs`, `protocol/sse/`).

use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::warn;

use super::core::Connection;
use super::state::{Response, State, error};
use crate::channel::limits::Limits;
use crate::channel::metrics::Skipped;
use crate::clock;
use crate::protocol::channel::ids::CallKey;
use crate::protocol::error::{ErrorCode, Failure, Subject};
use crate::protocol::excerpt::{EXCERPT, Excerpt, Kind};
use crate::protocol::jsonrpc::{self, Body, Message, RequestId, code};

/// Longest wait for the end of a message whose first bytes do not settle its call.
const END_WAIT: Duration = Duration::from_secs(30);
/// Most warnings of one channel in each [`WINDOW`].
const LOGGED: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// A message whose remaining bytes are dropped.
#[derive(Debug)]
pub(super) struct Cut {
    excerpt: Excerpt,
    code: ErrorCode,
    /// Calls that the message may belong to.
    calls: Vec<CallKey>,
    /// Deadline of these calls, or `None` once the message is settled. All of them end then.
    undecided_until: Option<Instant>,
}

/// Rate limit of the warnings of a channel.
#[derive(Debug, Default)]
pub(super) struct CutLog {
    since: Option<Instant>,
    logged: u32,
}

impl Cut {
    /// Returns the deadline for the end of the message, or `None` if nothing depends on that end.
    pub(super) fn undecided_until(&self) -> Option<Instant> {
        self.undecided_until
    }
}

impl CutLog {
    /// Returns true if another warning may be logged.
    fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.logged) = (Some(now), 0);
        }
        self.logged += 1;
        self.logged <= LOGGED
    }
}

impl Connection {
    /// Begins to drop a message with these first bytes.
    pub(super) fn begin_cut(&self, first: &[u8], code: ErrorCode, log: &mut CutLog) -> Cut {
        let now = clock::now();
        let is_too_large = code == ErrorCode::EventTooLarge;
        self.limits.metrics.observe_skipped(if is_too_large { Skipped::TooLong } else { Skipped::Full });
        let cut = self.change(|state| state.begin_cut(first, code, now, &self.limits));
        let is_logged = log.admits(now);
        if is_logged && is_too_large {
            let limit = self.limits.message_bytes;
            warn!(key = "streams.max_event_bytes", limit, "a message of the server is over the limit, and is dropped");
        } else if is_logged {
            let (key, error) = ("streams.max_bytes_per_principal", code.label());
            warn!(key, error, "a message of the server finds no memory, and is dropped");
        }
        cut
    }
}

impl State {
    /// Begins to drop a message with these first bytes. Ends its call, if the bytes name it.
    fn begin_cut(&mut self, first: &[u8], code: ErrorCode, now: Instant, limits: &Limits) -> Cut {
        let excerpt = Excerpt::of_first(first);
        let mut cut = Cut { excerpt, code, calls: self.waiting_calls(), undecided_until: Some(now + END_WAIT) };
        match cut.excerpt.kind() {
            Kind::Response(Some(id)) if self.routing.call_of(&id).is_some() => {
                self.settle_response(&mut cut, &id, limits);
            }
            Kind::Request(Some(id)) => self.settle_request(&mut cut, &id, limits),
            Kind::Request(None) | Kind::Garbage => cut.undecided_until = None,
            Kind::Response(None) | Kind::Unknown(None) if cut.calls.len() <= 1 => self.expire_cut(&mut cut),
            // The last bytes may have another ID.
            Kind::Response(_) | Kind::Unknown(_) => {}
        }
        cut
    }

    /// Settles a message that has ended with these last bytes.
    pub(super) fn end_cut(&mut self, mut cut: Cut, last: &[u8], limits: &Limits) {
        let was_request = matches!(cut.excerpt.kind(), Kind::Request(Some(_)));
        cut.excerpt.add_last(last);
        match cut.excerpt.kind() {
            // This includes a response attributed to another call before, and a response to a
            // cancelled request.
            Kind::Response(Some(id)) | Kind::Unknown(Some(id)) => self.settle_response(&mut cut, &id, limits),
            Kind::Request(Some(id)) if !was_request => self.settle_request(&mut cut, &id, limits),
            Kind::Request(_) | Kind::Garbage => {}
            Kind::Response(None) | Kind::Unknown(None) => self.expire_cut(&mut cut),
        }
    }

    /// Ends all calls that an unsettled message may belong to.
    pub(super) fn expire_cut(&mut self, cut: &mut Cut) {
        if cut.undecided_until.take().is_some() {
            for call in std::mem::take(&mut cut.calls) {
                self.fail(call, cut.code);
            }
        }
    }

    /// Handles a line that is no JSON-RPC. Valid messages of an array are delivered. An invalid
    /// response ends its call, if its ID is readable.
    pub(super) fn take_garbage(&mut self, line: &Bytes, limits: &Limits) {
        self.garbage += 1;
        let is_array = line.trim_ascii_start().first() == Some(&b'[');
        if !is_array || !jsonrpc::for_each_message(line, |_| {}) {
            return self.fail_garbage(line, limits);
        }
        let _ = jsonrpc::for_each_message(line, |text| match jsonrpc::peek(text.as_bytes()) {
            Ok(Body::Single(message)) => self.deliver(&message, line.slice(jsonrpc::span(line, text)), limits),
            Ok(Body::Batch(_)) | Err(_) => self.fail_garbage(text.as_bytes(), limits),
        });
    }

    fn fail_garbage(&mut self, text: &[u8], limits: &Limits) {
        let mut excerpt = Excerpt::of_first(&text[..text.len().min(EXCERPT)]);
        excerpt.add_last(&text[text.len().saturating_sub(EXCERPT)..]);
        if let Kind::Response(Some(id)) = excerpt.kind()
            && excerpt.is_version_2()
            && self.routing.call_of(&id).is_some()
        {
            self.fail_request(&id, ErrorCode::UpstreamGarbage, limits);
        }
    }

    /// Returns the calls that may wait for a message. A subscription gets its only own message at
    /// its end.
    fn waiting_calls(&self) -> Vec<CallKey> {
        // A server may respond before it has read the whole request.
        let is_begun = |call: &CallKey, response: &Response| response.is_begun || self.writing == Some(*call);
        let begun = |is_listen: bool| -> Vec<CallKey> {
            let calls = self.responses.iter().filter(|(call, response)| is_begun(call, response));
            calls.filter(|(_, response)| response.is_listen == is_listen).map(|(call, _)| *call).collect()
        };
        let calls = begun(false);
        if calls.is_empty() { begun(true) } else { calls }
    }

    fn settle_response(&mut self, cut: &mut Cut, id: &RequestId, limits: &Limits) {
        cut.undecided_until = None;
        self.fail_request(id, cut.code, limits);
    }

    /// Responds to a server request that reaches no client.
    fn settle_request(&mut self, cut: &mut Cut, id: &RequestId, limits: &Limits) {
        cut.undecided_until = None;
        self.reply(error(id, code::INVALID_REQUEST, "the request is larger than this proxy takes"), limits);
    }

    /// Ends a request with an error in place of the server's response.
    fn fail_request(&mut self, id: &RequestId, code: ErrorCode, limits: &Limits) {
        let call = self.routing.call_of(id);
        let mut subject = Subject::Request;
        if let Some(response) = call.and_then(|call| self.responses.get(&call)) {
            subject = response.subject;
            let (head, is_cancelled) = (response.head.clone(), response.cancelled.contains(id));
            if call.is_some_and(|call| self.routing.owed(call) == 1) {
                response.queue.set_lost(code);
            }
            if response.may_cancel && !is_cancelled {
                self.enqueue_cancel(id, head);
            }
        }
        let message = Message::Response { id: Some(id.clone()), is_error: true };
        self.deliver(&message, Failure::after_send(code).to_message(Some(id), subject).into(), limits);
    }
}
