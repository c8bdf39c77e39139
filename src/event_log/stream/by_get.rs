//! Hand-over of a call's response to the GET stream of its session, for a client that does not
//! resume the call's own stream.
//!
//! A response has one place at a time. It leaves the call's stream only while no client reads that,
//! in one step under the stream's lock: a resume that comes first keeps it there. From then on it
//! is an event of the GET stream. Absent: the calls that it concerns (`get_calls.rs`), and the wait
//! for each step (`delivery`).

use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::clock;
use crate::event_log::stream::Stream;
use crate::event_log::stream::get_calls::{GetCall, GetCalls, Place};
use crate::event_log::stream::response_head::{Head, Plain};
use crate::event_log::stream::state::{Inner, Shared};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::{AttachId, Seq};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::sse;
use crate::protocol::stream::{Machine, OwedResponse, Phase};

/// Part of a stream whose response may go by GET.
pub struct ByGet<'a> {
    call: &'a GetCall<Stream>,
    shared: &'a Shared,
}

/// State of a call towards the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing of the call goes by GET, now or later.
    Over,
    /// A connection reads the call's stream, or may still deliver its response.
    Read,
    /// The client may resume until then.
    Expected(Instant),
    /// The client has not resumed.
    Due {
        /// True if all responses are there.
        is_complete: bool,
        /// True if the server waits for a response to a request that was never written.
        has_requests: bool,
    },
}

/// Fate of a response on the GET stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetProgress {
    /// The client has named it, or a later event, as its last.
    Confirmed,
    /// This connection was given it.
    Written(AttachId),
    /// A connection reads the stream, and was not given it yet.
    Waiting,
    /// No connection reads the stream.
    Unread,
    /// The stream has ended before any connection was given it.
    Lost,
    /// The stream has ended afterwards.
    Ended,
}

impl GetProgress {
    /// Returns the fate of a response that the GET stream `get` got in its event at `seq`.
    pub fn of(get: &Stream, seq: Seq) -> Self {
        get.with_machine(|machine| {
            let reader = machine.reader();
            if reader.confirmed() >= seq {
                return Self::Confirmed;
            }
            match reader.attached() {
                _ if machine.lifecycle().is_sealed() && reader.written() >= seq => Self::Ended,
                _ if machine.lifecycle().is_sealed() => Self::Lost,
                Some(attach) if reader.releasable() >= seq => Self::Written(attach),
                Some(_) => Self::Waiting,
                None => Self::Unread,
            }
        })
    }
}

impl Stream {
    /// Makes a call of an earlier process one whose response may go by GET.
    pub(in crate::event_log) fn join_get_calls(&mut self, calls: Arc<GetCalls>) {
        let ids: Vec<_> = self.with_machine(|machine| machine.owed_responses().ids().cloned().collect());
        if !ids.is_empty() {
            self.get_call = Some(Box::new(GetCall::of_earlier(calls, self.id(), &ids)));
        }
    }

    /// Returns the part for the hand-over, or `None` if the response never goes by GET.
    pub fn by_get(&self) -> Option<ByGet<'_>> {
        let call = self.get_call.as_deref()?;
        Some(ByGet { call, shared: &self.shared })
    }
}

impl ByGet<'_> {
    /// Returns the calls of the session.
    pub fn calls(&self) -> &Arc<GetCalls> {
        &self.call.calls
    }

    /// Returns true for the first caller alone, which watches the call from then on.
    pub fn begin_watch(&self) -> bool {
        self.call.begin_watch()
    }

    /// Returns true if the call has lost its client before its response was complete.
    pub fn is_away(&self) -> bool {
        self.shared.with_machine(|machine| !machine.reader().is_attached())
    }

    /// Returns the state now.
    pub fn turn(&self) -> Turn {
        self.turn_of(&self.shared.lock())
    }

    /// Waits until the state differs from `known` by a change of the stream. A change by time alone
    /// wakes no task.
    pub fn poll_turn(&self, cx: &Context<'_>, known: Turn) -> Poll<Turn> {
        let mut inner = self.shared.lock();
        let turn = self.turn_of(&inner);
        if turn != known {
            return Poll::Ready(turn);
        }
        inner.watch(cx);
        Poll::Pending
    }

    /// Returns the end of the retention of a stream that has ended, or `None` for any other.
    pub fn kept_until(&self) -> Option<Instant> {
        self.shared.with_machine(Machine::readable_until)
    }

    /// Keeps the call while its client reads the GET stream. A call without a reader is kept for a
    /// limited time, which begins anew once half of it has passed. Returns the time of the
    /// next step, or `None` if the call is kept for ever.
    pub fn keep_alive(&self) -> Option<Instant> {
        let mut inner = self.shared.lock();
        let half = inner.machine.policy().max_wait? / 2;
        let now = clock::now();
        if inner.machine.reader().since() + half <= now {
            inner.machine.handle_touch(now);
        }
        let next = inner.machine.reader().since() + half;
        self.shared.notify_pump(inner);
        Some(next)
    }

    fn turn_of(&self, inner: &Inner) -> Turn {
        let (machine, now) = (&inner.machine, clock::now());
        let (reader, lifecycle) = (machine.reader(), machine.lifecycle());
        let has_expired = || machine.readable_until().is_some_and(|until| until <= now);
        let is_lost = inner.has_moved || lifecycle.is_withdrawn() || has_expired();
        if is_lost || reader.is_delivered() || !self.call.is_unambiguous() {
            return Turn::Over;
        }
        if reader.is_attached() || reader.is_settling() {
            return Turn::Read;
        }
        if !reader.is_cut() {
            return Turn::Over;
        }
        let until = reader.since() + reader.patience();
        if now < until {
            return Turn::Expected(until);
        }
        let is_complete = match (&inner.head, lifecycle.phase()) {
            (Head::Plain(plain), _) if plain.kept_body().is_none() || comes_elsewhere(machine, plain) => {
                return Turn::Over;
            }
            (Head::Plain(_) | Head::Failed(_), _) => true,
            (_, Phase::Passed) => false,
            _ if lifecycle.is_sealed() && machine.owed_responses().answered_len() == 0 => return Turn::Over,
            _ => lifecycle.is_answered() || lifecycle.is_sealed(),
        };
        let has_requests = machine.server_requests().has_outstanding_after(reader.written());
        Turn::Due { is_complete, has_requests: has_requests && !lifecycle.is_sealed() }
    }

    /// Sends the server requests that were never written to `get`, the session's GET stream. Their
    /// responses belong there from then on. Returns their number.
    pub fn move_requests(&self, get: &Stream) -> usize {
        let requests = {
            let mut inner = self.shared.lock();
            if !matches!(self.turn_of(&inner), Turn::Due { has_requests: true, .. }) {
                return 0;
            }
            let written = inner.machine.reader().written();
            let mut requests = inner.pending_requests();
            requests.retain(|request| request.seq > written);
            for request in &requests {
                inner.machine.handle_client_response(&request.id, clock::now());
            }
            requests
        };
        let mut moved = 0;
        for request in requests {
            if get.shared.append_to_reader(&[request.data]).is_some() {
                moved += 1;
            } else {
                self.shared.change(|machine, now| machine.handle_client_response_lost(&request.id, now));
            }
        }
        self.shared.quota.global().metrics.observe_by_get(moved as u64);
        moved
    }

    /// Moves the responses to `get`, the session's GET stream, if that has a reader and no client
    /// reads the stream of the call. Returns the event of the last one.
    pub fn hand_over(&self, get: &Arc<Stream>) -> Option<Seq> {
        let responses = {
            let inner = self.shared.lock();
            if !matches!(self.turn_of(&inner), Turn::Due { is_complete: true, .. }) {
                return None;
            }
            *self.call.place() = Place::Moving;
            responses(&inner)
        };
        let last = get.shared.append_to_reader(&responses);
        *self.call.place() = last.map_or(Place::Own, |seq| Place::Get(Arc::downgrade(get), seq));
        if last.is_some() {
            self.shared.quota.global().metrics.observe_by_get(responses.len() as u64);
        }
        last
    }

    /// Ends the hand-over: the client has the response from the GET stream.
    pub fn set_delivered(&self) {
        *self.call.place() = Place::Delivered;
    }

    /// Reverts the hand-over: the response is read from the stream of the call alone.
    pub fn take_back(&self) {
        *self.call.place() = Place::Own;
    }

    /// Returns true if the client gets the response from the GET stream: it has it, reads that
    /// stream, or may be about to resume that one.
    pub fn has_gone(&self) -> bool {
        let get = match &*self.call.place() {
            Place::Own => return false,
            Place::Moving | Place::Delivered => return true,
            Place::Get(get, seq) => Weak::upgrade(get).map(|get| (get, *seq)),
        };
        get.is_some_and(|(get, seq)| match GetProgress::of(&get, seq) {
            GetProgress::Confirmed | GetProgress::Written(_) | GetProgress::Waiting => true,
            GetProgress::Unread => {
                get.with_machine(|machine| clock::now() < machine.reader().since() + machine.reader().patience())
            }
            GetProgress::Lost | GetProgress::Ended => false,
        })
    }
}

/// Returns the responses of a call that has all of them, each as one message.
fn responses(inner: &Inner) -> Vec<Vec<u8>> {
    let machine = &inner.machine;
    let subject = machine.policy().subject();
    let failed = |failure: Failure| {
        machine.owed_responses().unanswered().map(|id| failure.to_message(Some(id), subject)).collect::<Vec<_>>()
    };
    match &inner.head {
        Head::Plain(plain) => plain_responses(machine, plain).unwrap_or_else(|| {
            let code = if plain.status.is_success() { ErrorCode::UpstreamGarbage } else { ErrorCode::UpstreamStatus };
            failed(Failure { http_status: Some(plain.status.as_u16()), ..Failure::after_send(code) })
        }),
        Head::Failed(failure) if machine.owed_responses().answered_len() == 0 => failed(*failure),
        _ => logged_responses(inner),
    }
}

/// Returns the responses in the events of a stream, in the order of the requests.
fn logged_responses(inner: &Inner) -> Vec<Vec<u8>> {
    let machine = &inner.machine;
    let mut responses = Vec::new();
    let mut last_read = None;
    for (id, owed) in machine.owed_responses().iter() {
        let OwedResponse::Answered(seq) = owed else { continue };
        match inner.tail.event(seq).filter(|_| seq > machine.numbering().trimmed()) {
            Some(_) if last_read == Some(seq) => {}
            Some(event) => {
                last_read = Some(seq);
                responses.extend(split(&sse::encoded_data(event)));
            }
            None => {
                let failure = Failure::after_send(ErrorCode::BoundReached);
                responses.push(failure.to_message(Some(id), machine.policy().subject()));
            }
        }
    }
    responses
}

/// Returns true if the server has accepted a call without a response, which it sends elsewhere.
fn comes_elsewhere(machine: &Machine, plain: &Plain) -> bool {
    Plain::is_without_response(plain.status) && plain_responses(machine, plain).is_none()
}

/// Returns the responses in a body that passed through, or `None` for a body without a response
/// to this call.
fn plain_responses(machine: &Machine, plain: &Plain) -> Option<Vec<Vec<u8>>> {
    let body = plain.kept_body()?;
    let body = body.strip_prefix(jsonrpc::BYTE_ORDER_MARK).unwrap_or(body);
    let messages = jsonrpc::peek_any(body).ok()?;
    let owed = machine.owed_responses();
    let is_owed = |message: &Message| matches!(message, Message::Response { id: Some(id), .. } if owed.is_unanswered(id) || owed.alike(id).is_some());
    if messages.messages().iter().any(is_owed) {
        let respelled = machine.lifecycle().respelled(&messages, body);
        return Some(split(respelled.as_deref().unwrap_or(body)));
    }
    match (messages.messages(), owed.unanswered().next()) {
        ([Message::Response { id: None, is_error: true }], Some(id)) => {
            Some(vec![jsonrpc::response::readdressed(body, id)?])
        }
        _ => None,
    }
}

/// Returns each response of an array as a message of its own, and other data as it is.
fn split(data: &[u8]) -> Vec<Vec<u8>> {
    match jsonrpc::peek(data) {
        Ok(jsonrpc::Body::Batch(messages)) => {
            let texts = messages.iter().zip(jsonrpc::messages(data));
            let responses = texts.filter(|(message, _)| matches!(message, Message::Response { .. }));
            responses.map(|(_, text)| text.as_bytes().to_vec()).collect()
        }
        Ok(jsonrpc::Body::Single(_)) | Err(_) => vec![data.to_vec()],
    }
}
