//! State of a channel: what waits to be written, which calls run, and the response that each message of the server belongs to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Begun, End, Users};
use crate::channel::OnBegin;
use crate::channel::body::Queue;
use crate::channel::limits::Limits;
use crate::channel::metrics::Skipped;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::channel::ids::{CallKey, Owed};
use crate::protocol::channel::routing::{Receiver, Routing, Target};
use crate::protocol::headers::Lines;
use crate::protocol::jsonrpc::{self, Message, RequestId};

/// Messages, and their bytes, that are kept for the first GET of a session.
const KEPT_MESSAGES: usize = 64;
const KEPT_BYTES: usize = 256 * 1024;
/// Error of JSON-RPC for a request that does not exist.
const METHOD_NOT_FOUND: i64 = -32601;

#[derive(Debug, Default)]
pub(super) struct State {
    users: Users,
    pub(super) routing: Routing,
    pub(super) responses: BTreeMap<CallKey, Response>,
    pub(super) next_call: u64,
    pub(super) standalone: Option<Arc<Queue>>,
    pub(super) listens_since: Option<Instant>,
    /// Messages for a GET that has not come yet.
    pub(super) kept: VecDeque<Bytes>,
    pub(super) kept_bytes: usize,
    pub(super) has_listened: bool,
    pub(super) outgoing: VecDeque<Outgoing>,
    pub(super) outgoing_bytes: usize,
    /// Call whose request is with the writer, and was not begun yet.
    pub(super) writing: Option<CallKey>,
    pub(super) last_use: Option<Instant>,
    /// Lines of the server that were no JSON-RPC.
    pub(super) garbage: usize,
    pub(super) end: Option<End>,
}

/// Response to a call.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) queue: Arc<Queue>,
    /// Stream of the call, which knows if a client reads.
    pub(super) stream: Option<Arc<Stream>>,
    /// True once a byte of the request was about to be written.
    pub(super) is_begun: bool,
    /// Requests whose cancel has passed.
    pub(super) cancelled: Vec<RequestId>,
    /// False for a call that the protocol does not let be cancelled.
    pub(super) may_cancel: bool,
    /// True for a subscription, which gets messages that name it alone.
    pub(super) is_listen: bool,
    /// Headers of the request, for what the channel itself sends about the call to a server that takes them.
    pub(super) head: Option<Arc<Lines>>,
}

/// A message that waits to be written.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) messages: Vec<Bytes>,
    pub(super) bytes: usize,
    /// Headers of the request with which they came, for a server that takes them.
    pub(super) head: Option<Arc<Lines>>,
    /// Call that begins with the message, and its writer's word.
    pub(super) call: Option<(CallKey, Begin)>,
}

impl Outgoing {
    /// Creates a message of the channel itself.
    fn own(message: Bytes, head: Option<Arc<Lines>>) -> Self {
        let bytes = message.len() + head.as_deref().map_or(0, Lines::size);
        Self { messages: vec![message], bytes, head, call: None }
    }
}

/// Steps at the moment at which a call begins.
pub(super) struct Begin {
    pub(super) mark: OnBegin,
    pub(super) begun: oneshot::Sender<Begun>,
}

impl std::fmt::Debug for Begin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begin").finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn of(users: Users) -> Self {
        let routing = match users {
            Users::Session => Routing::default(),
            Users::Principal | Users::Anonymous => Routing::shared(),
        };
        Self { users, routing, ..Self::default() }
    }

    pub(super) fn enqueue(&mut self, outgoing: Outgoing) {
        self.outgoing_bytes += outgoing.bytes;
        self.outgoing.push_back(outgoing);
        self.last_use = Some(clock::now());
    }

    pub(super) fn note_cancel(&mut self, id: &RequestId) {
        let Some(call) = self.routing.call_of(id) else { return };
        if let Some(response) = self.responses.get_mut(&call) {
            response.cancelled.push(id.clone());
        }
    }

    /// Closes the response of a call, with the cancel of its requests that have no response yet.
    pub(super) fn close(&mut self, call: CallKey) {
        let Some(response) = self.responses.remove(&call) else { return };
        // A request that is with the writer may still be written.
        if !response.is_begun && self.writing != Some(call) {
            self.outgoing.retain(|outgoing| outgoing.call.as_ref().is_none_or(|(other, _)| *other != call));
            self.outgoing_bytes = self.outgoing.iter().map(|outgoing| outgoing.bytes).sum();
            return self.routing.withdraw(call);
        }
        let unanswered = self.routing.give_up(call);
        if !response.may_cancel {
            return;
        }
        for owed in unanswered.iter().filter(|owed| !response.cancelled.contains(&owed.at_server)) {
            self.enqueue_cancel(&owed.at_server, response.head.clone());
        }
    }

    fn enqueue_cancel(&mut self, id: &RequestId, head: Option<Arc<Lines>>) {
        self.enqueue(Outgoing::own(cancel(id).into(), head));
    }

    pub(super) fn deliver(&mut self, message: &Message, text: Bytes, limits: &Limits) {
        let (target, text) = self.routing.route(message, text);
        match target {
            Target::Call { call, is_over } => self.deliver_to_call(call, is_over, text, limits),
            Target::Standalone if self.users == Users::Session => self.deliver_standalone(text, limits),
            Target::Standalone => self.deliver_unnamed(text, limits),
            Target::Unnamed(id) if self.users != Users::Session => self.refuse(&id, limits),
            Target::Unnamed(id) => {
                let receiver = self.receiver_of_question();
                self.routing.note_question(&text, id, receiver);
                match receiver {
                    Receiver::Call(call) => self.deliver_to_call(call, false, text, limits),
                    Receiver::Standalone => self.deliver_standalone(text, limits),
                }
            }
            Target::Dropped => limits.metrics.observe_skipped(Skipped::Late),
        }
    }

    /// Chooses the response for a request of the server that names no call: that of the only call, else the standalone stream if it has a
    /// reader, else that of the oldest call with a reader, else the standalone stream, or the oldest call if no client takes requests.
    fn receiver_of_question(&self) -> Receiver {
        let mut calls = self.responses.iter().filter(|(_, response)| response.takes_questions());
        match (calls.next(), calls.next()) {
            (Some((&only, _)), None) if self.responses.len() == 1 => return Receiver::Call(only),
            _ if self.standalone.is_some() => return Receiver::Standalone,
            _ => {}
        }
        let mut calls = self.responses.iter().filter(|(_, response)| response.takes_questions());
        let read = calls.find(|(_, response)| response.has_reader());
        // A client that takes none and has no GET refuses it, so that the server does not wait.
        let refusing = self.responses.keys().next().filter(|_| self.standalone.is_none() && !self.has_takers());
        let call = read.map(|(&call, _)| call).or(refusing.copied());
        call.map_or(Receiver::Standalone, Receiver::Call)
    }

    fn has_takers(&self) -> bool {
        self.responses.values().any(Response::takes_questions)
    }

    fn deliver_to_call(&mut self, call: CallKey, is_over: bool, text: Bytes, limits: &Limits) {
        let Some(response) = self.responses.get(&call) else { return };
        if !response.queue.push(text, limits.response_bytes) {
            // Nothing on a channel can be paused, so the call cannot wait for a reader.
            let owed = self.routing.give_up(call);
            if let Some(response) = self.responses.remove(&call) {
                for Owed { at_server, at_caller } in &owed {
                    response.queue.force(limits.full_message(at_caller));
                    self.enqueue_cancel(at_server, response.head.clone());
                }
                response.queue.end();
            }
            return;
        }
        if is_over && let Some(response) = self.responses.remove(&call) {
            response.queue.end();
            self.last_use = Some(clock::now());
        }
    }

    /// Delivers a message that names no call, where there are no sessions: to the only call of a single principal.
    fn deliver_unnamed(&mut self, text: Bytes, limits: &Limits) {
        let mut calls = self.responses.iter().filter(|(_, response)| response.is_begun && !response.is_listen);
        match (self.users, calls.next(), calls.next()) {
            (Users::Principal, Some((&only, _)), None) => self.deliver_to_call(only, false, text, limits),
            _ => limits.metrics.observe_skipped(Skipped::NoReader),
        }
    }

    /// Refuses a request of the server: in revisions without sessions it has none.
    fn refuse(&mut self, id: &RequestId, limits: &Limits) {
        let text = "this revision has no requests of the server";
        let line = Bytes::from(jsonrpc::error_message(Some(id), METHOD_NOT_FOUND, text, serde_json::Value::Null));
        // All callers are one principal, so the headers of any call will do.
        let head = self.responses.values().find_map(|response| response.head.clone());
        let refusal = Outgoing::own(line, head);
        // A server that asks and does not read is not answered without end.
        if self.outgoing_bytes + refusal.bytes <= limits.outgoing_bytes {
            self.outgoing_bytes += refusal.bytes;
            self.outgoing.push_back(refusal);
        }
    }

    fn deliver_standalone(&mut self, text: Bytes, limits: &Limits) {
        if let Some(queue) = &self.standalone {
            if !queue.push(text, limits.response_bytes) {
                limits.metrics.observe_skipped(Skipped::Full);
            }
            return;
        }
        if self.has_listened {
            // The proxy keeps the GET of a client that may come back, so there is none to come.
            return limits.metrics.observe_skipped(Skipped::NoReader);
        }
        self.kept_bytes += text.len();
        // A copy: the text is a part of what was read at once.
        self.kept.push_back(Bytes::copy_from_slice(&text));
        while self.kept.len() > KEPT_MESSAGES || self.kept_bytes > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.kept_bytes -= oldest.len();
            limits.metrics.observe_skipped(Skipped::NoReader);
        }
    }
}

impl Response {
    /// Returns false for a client that takes no requests of the server, as one that accepts JSON only.
    fn takes_questions(&self) -> bool {
        self.stream
            .as_ref()
            .is_none_or(|stream| !stream.with_machine(|machine| machine.policy().should_refuse_requests))
    }

    fn has_reader(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.with_machine(|machine| machine.reader().is_attached()))
    }
}

fn cancel(id: &RequestId) -> String {
    let id = id.to_json();
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the client has gone"}}}}"#
    )
}
