//! State of a channel: queued messages, running calls, and the response for each message of the
//! server.
//!
//! Absent: server requests that wait for a call, as in the bridge
//! (`upstream/bridge/modern_clients/running.rs`). Here a standalone stream takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::held::counted;
use super::member::{Member, Place};
use super::types::{Begun, End, Users};
use crate::channel::body::Queue;
use crate::channel::limits::Limits;
use crate::channel::metrics::Skipped;
use crate::channel::request::OnBegin;
use crate::clock;
use crate::event_log::Stream;
use crate::metrics::Repair;
use crate::protocol::channel::ids::{CallKey, MemberKey, Owed, Receiver};
use crate::protocol::channel::routing::{Routing, Target};
use crate::protocol::channel::shared_state::{Decision, OwnRequest, SharedState};
use crate::protocol::error::{ErrorCode, Failure, Subject};
use crate::protocol::headers::Lines;
use crate::protocol::jsonrpc::{self, Message, RequestId, code, response};
use crate::random;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) users: Users,
    pub(super) routing: Routing,
    pub(super) responses: BTreeMap<CallKey, Response>,
    pub(super) next_call: u64,
    /// Sessions of the channel.
    pub(super) members: BTreeMap<MemberKey, Member>,
    next_member: u64,
    /// Number of messages of all sessions so far.
    uses: u64,
    /// Server state that all sessions share, such as the log level.
    shared: SharedState,
    /// True if the proxy responds to pings that no client can respond to.
    answers_pings: bool,
    /// Queued messages, in order.
    outgoing: BTreeMap<u64, Outgoing>,
    next_outgoing: u64,
    pub(super) outgoing_bytes: usize,
    /// Call whose request the writer has, before its first byte was written.
    pub(super) writing: Option<CallKey>,
    pub(super) last_use: Option<Instant>,
    /// Headers of the last message, for replies to a server that takes headers: its channel has one
    /// session.
    last_head: Option<Arc<Lines>>,
    /// Lines of the server that were no JSON-RPC.
    pub(super) garbage: usize,
    /// True once the server has sent a request or a notification.
    pub(super) has_spoken: bool,
    pub(super) end: Option<End>,
}

/// Response to a call.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) queue: Arc<Queue>,
    /// Session of the call, or `None` for a call without one, such as the handshake.
    pub(super) member: Option<MemberKey>,
    /// Stream of the call, which knows whether a client reads. `None` for a synthetic call.
    pub(super) stream: Option<Arc<Stream>>,
    /// Place of its request in the queue.
    pub(super) waits_at: Option<u64>,
    /// True from just before the first byte of the request was written.
    pub(super) is_begun: bool,
    /// Requests whose cancel went to the server already.
    pub(super) cancelled: Vec<RequestId>,
    /// False for a call that the protocol forbids to cancel.
    pub(super) may_cancel: bool,
    /// True for a subscription, which gets only messages that name it.
    pub(super) is_listen: bool,
    /// Subject of errors in place of the server's responses.
    pub(super) subject: Subject,
    /// Headers of the request, for synthetic messages about the call to a server that takes
    /// headers.
    pub(super) head: Option<Arc<Lines>>,
}

/// A queued message.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) messages: Vec<Bytes>,
    pub(super) bytes: usize,
    /// Headers of the request, for a server that takes them.
    pub(super) head: Option<Arc<Lines>>,
    /// Call that begins with the message, and the steps at that moment.
    pub(super) call: Option<(CallKey, Begin)>,
}

impl Outgoing {
    /// Creates a synthetic message.
    pub(super) fn own(message: Bytes, head: Option<Arc<Lines>>) -> Self {
        let bytes = message.len() + head.as_deref().map_or(0, Lines::size);
        Self { messages: vec![message], bytes, head, call: None }
    }
}

/// Steps when a call begins.
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
    pub(super) fn of(users: Users, answers_pings: bool) -> Self {
        let routing = match users {
            Users::Session => Routing::of_session(random_number),
            Users::Sessions => Routing::of_sessions(random_number),
            Users::Principal | Users::Anonymous => Routing::shared(random_number),
        };
        let mut state = Self { users, routing, answers_pings, ..Self::default() };
        match users {
            // It has the key `Connection::ONLY`, which no other session has.
            Users::Session => {
                state.join();
            }
            Users::Sessions | Users::Principal | Users::Anonymous => state.next_member = 1,
        }
        state
    }

    /// Makes the state that of a channel for one session. No call runs on it.
    pub(super) fn begin_session(&mut self) {
        let Self { users, routing, members, next_member, uses, .. } = Self::of(Users::Session, self.answers_pings);
        (self.users, self.routing, self.members) = (users, routing, members);
        (self.next_member, self.uses, self.last_use) = (next_member, uses, Some(clock::now()));
    }

    /// Adds a session.
    pub(super) fn join(&mut self) -> MemberKey {
        let member = MemberKey(self.next_member);
        self.next_member += 1;
        self.uses += 1;
        self.members.insert(member, Member::new(self.uses));
        self.last_use = Some(clock::now());
        member
    }

    /// Removes a session of a shared channel. Its calls end with an error. The server drops state
    /// that it keeps for this session alone, and gets an error for each server request pending
    /// there.
    pub(super) fn leave(&mut self, member: MemberKey) {
        let Some(mut left) = self.members.remove(&member) else { return };
        left.end();
        let is_of = |(_, response): &(&CallKey, &Response)| response.member == Some(member);
        let calls: Vec<CallKey> = self.responses.iter().filter(is_of).map(|(call, _)| *call).collect();
        for call in calls {
            let response = self.responses.get(&call).map(|response| (response.queue.clone(), response.subject));
            let pending = self.close(call);
            if let Some((queue, subject)) = response {
                let failure = Failure::after_send(ErrorCode::Abandoned);
                for Owed { at_caller, .. } in &pending {
                    queue.force(failure.to_message(Some(at_caller), subject).into());
                }
                queue.end();
            }
        }
        for id in self.routing.leave(member) {
            self.enqueue_message(error(&id, code::INVALID_REQUEST, "the session has ended"));
        }
        let requests = self.shared.leave(member);
        self.send_own(requests);
    }

    /// Returns the sessions of a shared channel without a call.
    pub(super) fn members_without_call(&self) -> impl Iterator<Item = (MemberKey, &Member)> {
        let busy: BTreeSet<MemberKey> = self.responses.values().filter_map(|response| response.member).collect();
        let members = self.members.iter().filter(|_| self.users == Users::Sessions);
        members.filter(move |(member, _)| !busy.contains(member)).map(|(member, of)| (*member, of))
    }

    pub(super) fn enqueue(&mut self, outgoing: Outgoing) {
        self.last_use = Some(clock::now());
        if outgoing.head.is_some() {
            self.last_head.clone_from(&outgoing.head);
        }
        self.enqueue_without_use(outgoing);
    }

    /// Enqueues a message that does not count as use of the channel.
    fn enqueue_without_use(&mut self, outgoing: Outgoing) {
        self.outgoing_bytes += outgoing.bytes;
        if let Some(response) = outgoing.call.as_ref().and_then(|(call, _)| self.responses.get_mut(call)) {
            response.waits_at = Some(self.next_outgoing);
        }
        self.outgoing.insert(self.next_outgoing, outgoing);
        self.next_outgoing += 1;
    }

    /// Returns true if the channel may have several users.
    pub(super) fn is_shared(&self) -> bool {
        self.users != Users::Session
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes the oldest queued message.
    pub(super) fn next_outgoing(&mut self) -> Option<Outgoing> {
        let (_, outgoing) = self.outgoing.pop_first()?;
        self.outgoing_bytes -= outgoing.bytes;
        let call = outgoing.call.as_ref().map(|(call, _)| *call);
        if let Some(response) = call.and_then(|call| self.responses.get_mut(&call)) {
            response.waits_at = None;
        }
        self.writing = call;
        Some(outgoing)
    }

    pub(super) fn drop_outgoing(&mut self) {
        self.outgoing.clear();
    }

    /// Records a use of a session.
    pub(super) fn record_use(&mut self, member: Option<MemberKey>) {
        self.uses += 1;
        if let Some(member) = member.and_then(|member| self.members.get_mut(&member)) {
            member.record_use();
            member.used_at = self.uses;
        }
    }

    /// Returns the messages of a session that go to the server, in order. The proxy responds to
    /// some of the others, and drops the rest. `messages` have the server's names. All requests
    /// among them have begun.
    pub(super) fn screen(
        &mut self,
        member: Option<MemberKey>,
        messages: &[Message],
        texts: Vec<Bytes>,
        limits: &Limits,
    ) -> Vec<Bytes> {
        let Some(member) = member else { return texts };
        let mut screened = Vec::with_capacity(texts.len());
        for (message, text) in messages.iter().zip(texts) {
            match message {
                Message::Request { id, method } if self.users == Users::Sessions => {
                    if method == "initialize" {
                        // The server has initialized with the first session.
                        self.respond(id, error(id, code::INVALID_REQUEST, "the session is initialized"), limits);
                        continue;
                    }
                    screened.extend(self.screen_request(member, id, text, limits));
                }
                Message::Request { .. } => screened.push(text),
                Message::Notification { .. } | Message::Response { .. } => {
                    let Some(text) = self.routing.from_member(member, message, text) else { continue };
                    if matches!(message, Message::Notification { method } if method == "notifications/cancelled")
                        && let Some(id) = jsonrpc::cancelled_request_id(&text)
                    {
                        self.record_cancel(&id);
                    }
                    screened.push(text);
                }
            }
        }
        screened
    }

    fn screen_request(&mut self, member: MemberKey, id: &RequestId, text: Bytes, limits: &Limits) -> Option<Bytes> {
        match self.shared.decide(member, &text) {
            Decision::Pass => Some(text),
            Decision::Forward(change, text) => {
                self.shared.apply(change, Some(id.clone()));
                Some(text)
            }
            Decision::Answer(change) => {
                self.shared.apply(change, None);
                self.respond(id, response::empty(id).into(), limits);
                None
            }
        }
    }

    /// Responds to a session's request in place of the server.
    fn respond(&mut self, id: &RequestId, response: Bytes, limits: &Limits) {
        self.deliver(&Message::Response { id: Some(id.clone()), is_error: false }, response, limits);
    }

    /// Sends synthetic requests.
    fn send_own(&mut self, requests: impl IntoIterator<Item = OwnRequest>) {
        for (method, params) in requests {
            let Some(number) = self.routing.begin_own() else { return };
            let id = number.to_json();
            self.enqueue_message(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#));
            self.shared.record_own_request(method, number);
        }
    }

    fn enqueue_message(&mut self, message: impl Into<Bytes>) {
        self.enqueue_without_use(Outgoing::own(message.into(), None));
    }

    pub(super) fn record_cancel(&mut self, id: &RequestId) {
        let Some(call) = self.routing.call_of(id) else { return };
        if let Some(response) = self.responses.get_mut(&call) {
            response.cancelled.push(id.clone());
        }
    }

    /// Closes the response of a call, and cancels its pending requests. Returns these requests.
    pub(super) fn close(&mut self, call: CallKey) -> Vec<Owed> {
        let Some(response) = self.responses.remove(&call) else { return Vec::new() };
        // The writer may still write a request that it has.
        if !response.is_begun && self.writing != Some(call) {
            if let Some(outgoing) = response.waits_at.and_then(|place| self.outgoing.remove(&place)) {
                self.outgoing_bytes -= outgoing.bytes;
            }
            self.routing.withdraw(call);
            return Vec::new();
        }
        let pending = self.routing.give_up(call);
        if response.may_cancel {
            for owed in pending.iter().filter(|owed| !response.cancelled.contains(&owed.at_server)) {
                self.enqueue_cancel(&owed.at_server, response.head.clone());
            }
        }
        pending
    }

    /// Ends a call with an error for each owed response, and cancels its requests at the server.
    pub(super) fn fail(&mut self, call: CallKey, code: ErrorCode) {
        let owed = self.routing.give_up(call);
        let Some(response) = self.responses.remove(&call) else { return };
        response.queue.set_lost(code);
        for Owed { at_server, at_caller } in &owed {
            let failure = Failure::after_send(code);
            response.queue.force(failure.to_message(Some(at_caller), response.subject).into());
            if response.may_cancel && !response.cancelled.contains(at_server) {
                self.enqueue_cancel(at_server, response.head.clone());
            }
        }
        response.queue.end();
    }

    pub(super) fn enqueue_cancel(&mut self, id: &RequestId, head: Option<Arc<Lines>>) {
        self.enqueue(Outgoing::own(cancel(id).into(), head));
    }

    pub(super) fn deliver(&mut self, message: &Message, text: Bytes, limits: &Limits) {
        let (respelled, text) = match self.routing.respelled(message, &text) {
            Some((message, text)) => {
                limits.metrics.repairs.record(Repair::ResponseId);
                (Some(message), text)
            }
            None => (None, text),
        };
        let message = respelled.as_ref().unwrap_or(message);
        self.has_spoken |= !matches!(message, Message::Response { .. });
        if let Message::Response { id: Some(id), is_error } = message
            && self.users == Users::Sessions
        {
            let own = self.shared.settle(id, *is_error);
            self.send_own(own);
        }
        let (target, text) = self.routing.route(message, text);
        match target {
            Target::Call { call, is_complete: is_last } => self.deliver_to_call(call, is_last, text, limits),
            Target::Standalone => match self.users {
                Users::Session | Users::Sessions => self.deliver_to_each(message, &text, limits),
                Users::Principal | Users::Anonymous => self.deliver_unnamed(text, limits),
            },
            Target::Member(member) => {
                self.deliver_standalone(member, &text, limits);
            }
            Target::Unnamed(id) => match self.users {
                Users::Session | Users::Sessions => self.deliver_server_request(message, id, text, limits),
                Users::Principal | Users::Anonymous => {
                    let text = "this revision has no requests of the server";
                    self.reply(error(&id, code::METHOD_NOT_FOUND, text), limits);
                }
            },
            Target::Dropped => limits.metrics.observe_skipped(Skipped::Late),
            Target::Own => {}
        }
    }

    /// Delivers a server request that names no call. The proxy responds to a ping that no client
    /// can respond to.
    fn deliver_server_request(&mut self, message: &Message, id: RequestId, text: Bytes, limits: &Limits) {
        let is_ping = matches!(message, Message::Request { method, .. } if method == "ping") && self.answers_pings;
        let receiver = self.server_request_receiver();
        let Some((member, receiver)) = receiver.filter(|(_, receiver)| !is_ping || self.has_responder(*receiver))
        else {
            let reply = if is_ping {
                response::empty(&id).into()
            } else {
                error(&id, code::INVALID_REQUEST, "there is no session")
            };
            return self.reply(reply, limits);
        };
        self.routing.insert_server_request(&text, id.clone(), receiver, member);
        match receiver {
            Receiver::Call(call) => self.deliver_to_call(call, false, text, limits),
            Receiver::Standalone(member) => match self.deliver_standalone(member, &text, limits) {
                Place::Read => {}
                Place::Kept | Place::Dropped if is_ping => self.reply(response::empty(&id).into(), limits),
                Place::Kept => {}
                // Without a response the server would not end its call.
                Place::Dropped => self.reply(error(&id, code::INVALID_REQUEST, "no client can be asked now"), limits),
            },
        }
    }

    /// Returns true if a client, or the proxy in its place, will respond to server requests here.
    fn has_responder(&self, receiver: Receiver) -> bool {
        match receiver {
            Receiver::Call(call) => self.responses.get(&call).is_some_and(Response::has_client),
            Receiver::Standalone(member) => self.members.get(&member).is_some_and(Member::listens),
        }
    }

    /// Chooses the session for a server request that names no call, and the response in it.
    ///
    /// Candidates are the sessions with a call that accepts server requests, else all sessions. The
    /// one used last is chosen. `None` without a session, unless a handshake runs.
    fn server_request_receiver(&self) -> Option<(MemberKey, Receiver)> {
        let handshake = self.responses.iter().find(|(_, response)| response.member.is_none());
        let busy = self.responses.values().filter(|response| response.accepts_server_requests());
        let busy = busy.filter_map(|response| response.member.and_then(|member| self.members.get_key_value(&member)));
        let member = last_used(busy).or_else(|| last_used(self.members.iter()));
        match (member, handshake) {
            (Some(member), None) => Some((member, self.receiver_in_session(member))),
            (member, Some((&call, _))) => Some((member.unwrap_or(MemberKey(0)), Receiver::Call(call))),
            (None, None) => None,
        }
    }

    /// Chooses the response in a session for a server request that names no call. In this order:
    ///
    /// - the only call, if it accepts server requests
    /// - the standalone stream, if it has a reader
    /// - the oldest call with a reader that accepts server requests
    /// - the oldest call of a client, if no call accepts server requests
    /// - the standalone stream without a reader
    fn receiver_in_session(&self, member: MemberKey) -> Receiver {
        let calls = || self.responses.iter().filter(|(_, response)| response.member == Some(member));
        let takers = || calls().filter(|(_, response)| response.accepts_server_requests());
        let listens = self.members.get(&member).is_some_and(Member::listens);
        match (takers().next(), calls().nth(1)) {
            (Some((&only, _)), None) => return Receiver::Call(only),
            _ if listens => return Receiver::Standalone(member),
            _ => {}
        }
        let read = takers().find(|(_, response)| response.has_reader());
        // This client refuses the request, so that the server does not wait.
        let refusing = calls().find(|(_, response)| response.has_client()).filter(|_| takers().next().is_none());
        read.or(refusing).map_or(Receiver::Standalone(member), |(&call, _)| Receiver::Call(call))
    }

    fn deliver_to_call(&mut self, call: CallKey, is_last: bool, text: Bytes, limits: &Limits) {
        let Some(response) = self.responses.get(&call) else { return };
        // On a shared channel the text is a copy with other names.
        let text = if self.is_shared() { counted(text, response.stream.as_ref()) } else { text };
        if !response.queue.push(text, limits.response_bytes) {
            // A channel cannot pause one call until its reader continues.
            return self.fail(call, ErrorCode::BoundReached);
        }
        if is_last && let Some(response) = self.responses.remove(&call) {
            response.queue.end();
            self.last_use = Some(clock::now());
            if let Some(member) = response.member.and_then(|member| self.members.get_mut(&member)) {
                member.record_use();
            }
        }
    }

    /// Delivers a message that names no call on a channel without sessions: to the only call of a
    /// single principal.
    fn deliver_unnamed(&mut self, text: Bytes, limits: &Limits) {
        let mut calls = self.responses.iter().filter(|(_, response)| response.is_begun && !response.is_listen);
        match (self.users, calls.next(), calls.next()) {
            (Users::Principal, Some((&only, _)), None) => self.deliver_to_call(only, false, text, limits),
            _ => limits.metrics.observe_skipped(Skipped::NoReader),
        }
    }

    /// Responds to a server request in place of a client. The limit of the queue stops replies to a
    /// server that does not read.
    pub(super) fn reply(&mut self, message: Bytes, limits: &Limits) {
        let reply = Outgoing::own(message, self.last_head.clone());
        if self.outgoing_bytes + reply.bytes <= limits.outgoing_bytes {
            self.enqueue_without_use(reply);
        }
    }

    /// Delivers a message that names no call to each session that should get it.
    fn deliver_to_each(&mut self, message: &Message, text: &Bytes, limits: &Limits) {
        let members = self.members.keys().copied();
        let receivers = match message {
            Message::Notification { method } if self.users == Users::Sessions => {
                self.shared.receivers(method, text, members)
            }
            _ => members.collect(),
        };
        for member in receivers {
            self.deliver_standalone(member, text, limits);
        }
    }

    fn deliver_standalone(&mut self, member: MemberKey, text: &Bytes, limits: &Limits) -> Place {
        let Some(member) = self.members.get_mut(&member) else { return Place::Dropped };
        member.deliver(text.clone(), limits)
    }
}

impl Response {
    /// Returns true if a client reads the response and responds to server requests. The proxy reads
    /// the handshake in the same way.
    fn has_client(&self) -> bool {
        self.stream.is_some() || self.member.is_none()
    }

    /// Returns false for a client without support for server requests, such as a client that
    /// accepts only JSON, and for a synthetic call.
    fn accepts_server_requests(&self) -> bool {
        let refuses = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.policy().should_refuse_requests);
        self.has_client() && !self.stream.as_ref().is_some_and(refuses)
    }

    fn has_reader(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.with_machine(|machine| machine.reader().is_attached()))
    }
}

fn last_used<'a>(members: impl Iterator<Item = (&'a MemberKey, &'a Member)>) -> Option<MemberKey> {
    members.max_by_key(|(_, member)| member.used_at).map(|(member, _)| *member)
}

fn random_number() -> u64 {
    u64::from_ne_bytes(random::bytes())
}

pub(super) fn error(id: &RequestId, code: i64, text: &str) -> Bytes {
    response::error(id, code, text).into()
}

fn cancel(id: &RequestId) -> String {
    let id = id.to_json();
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the client has gone"}}}}"#
    )
}
