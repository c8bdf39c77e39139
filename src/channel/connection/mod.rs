//! One channel: the messages between its users and their server.
//!
//! Two tasks serve it. The writer sends the queued messages. The reader hands each message to the
//! response that it belongs to. Both run on the runtime of the [`Link`](super::Link), normally the
//! runtime of the calls. A call on another thread waits for two wake-ups of threads. The reader
//! never waits: a channel carries many responses, and an unread response must not stop the others.
//! Invariant: a message is never written again once a byte of it was written. Lock order: the state
//! of a channel, then a stream, then the queue of a response.

mod arriving;
mod core;
mod cut;
mod held;
mod member;
mod state;
mod types;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use self::arriving::Arriving;
pub(super) use self::core::Connection;
use self::cut::{Cut, CutLog};
use self::state::{Begin, Outgoing, Response, State};
pub(super) use self::types::{Activity, Begun, End, PendingCall, Refused, Users};

use super::body::{Channel, Events, Queue};
use super::limits::Limits;
use super::link::{Input, Output, WriteError};
use super::request::OnBegin;
use crate::event_log::Stream;
use crate::metrics::Repair;
use crate::protocol::channel::ids::{CallKey, MemberKey, Owed, Receiver};
use crate::protocol::channel::line::Line;
use crate::protocol::channel::second_id::has_second_id;
use crate::protocol::error::Subject;
use crate::protocol::headers::Lines;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::{clock, sync};

/// Most sessions on one channel.
const MEMBERS_MAX: usize = 1024;
/// Overhead of a queued message, in bytes.
const OUTGOING_EACH: usize = 128;

impl Connection {
    /// Key of the session on a channel for one session.
    pub(super) const ONLY: MemberKey = MemberKey(0);

    /// Starts a channel, with two tasks on `runtime`. Returns the reader's task, which ends with
    /// `input`.
    pub(super) fn start(
        users: Users,
        limits: Limits,
        runtime: &Handle,
        input: Box<dyn Input>,
        output: Box<dyn Output>,
    ) -> (Arc<Self>, JoinHandle<()>) {
        let connection = Arc::new(Self {
            state: Mutex::new(State::of(users, limits.answers_pings)),
            limits,
            left: Mutex::default(),
            work: Notify::new(),
            ended: Notify::new(),
        });
        runtime.spawn(connection.clone().write(output));
        let reader = runtime.spawn(connection.clone().read(input));
        (connection, reader)
    }

    /// Adds a session to a shared channel. `None` if the channel has ended or is full.
    pub(super) fn join(&self) -> Option<MemberKey> {
        let mut state = sync::lock(&self.state);
        let has_room = state.members.len() < MEMBERS_MAX;
        (state.end.is_none() && has_room).then(|| state.join())
    }

    /// Makes a channel without sessions the channel of one session. Returns false if it has ended,
    /// or if a call runs on it.
    pub(super) fn begin_session(&self) -> bool {
        self.close_left();
        let mut state = sync::lock(&self.state);
        let is_free = state.end.is_none() && state.responses.is_empty();
        if is_free {
            state.begin_session();
        }
        is_free
    }

    /// Ends a session of a shared channel, unless it is the last one. Returns true if no other
    /// session is left.
    pub(super) fn end_member(&self, member: MemberKey) -> bool {
        let mut state = sync::lock(&self.state);
        let has_others = state.members.keys().any(|other| *other != member);
        if has_others {
            state.leave(member);
            drop(state);
            self.work.notify_one();
        }
        !has_others
    }

    /// Returns true if the channel has no session.
    pub(super) fn is_deserted(&self) -> bool {
        sync::lock(&self.state).members.is_empty()
    }

    /// Hands a body with requests to the writer. `mark` is called once the first byte was written.
    /// `head` is for a server that takes headers. `member` is the session. It is `None` for the
    /// handshake, and on a channel without sessions, where the body is one request.
    pub(super) fn call(
        self: &Arc<Self>,
        member: Option<MemberKey>,
        messages: &[Message],
        body: &Bytes,
        head: Option<Lines>,
        stream: Option<Arc<Stream>>,
        mark: OnBegin,
    ) -> Result<PendingCall, Refused> {
        let mut texts = texts(messages, body);
        let mut messages = messages.to_vec();
        // The protocol forbids to cancel `initialize`.
        let may_cancel = !messages.iter().any(|message| is_method(message, "initialize"));
        let is_listen = messages.iter().any(|message| is_method(message, "subscriptions/listen"));
        let subject = Subject::of(&messages);
        let mut state = sync::lock(&self.state);
        self.check(&state, member, &texts, head.as_ref())?;
        state.next_call += 1;
        let call = CallKey(state.next_call);
        state.routing.begin(call, member, &mut messages, &mut texts)?;
        state.record_use(member);
        let head = head.map(Arc::new);
        let (begun, pending) = oneshot::channel();
        let queue = Arc::<Queue>::default();
        let response = Response {
            queue: queue.clone(),
            member,
            stream,
            waits_at: None,
            is_begun: false,
            cancelled: Vec::new(),
            may_cancel,
            is_listen,
            subject,
            head: head.clone(),
        };
        state.responses.insert(call, response);
        let texts = state.screen(member, &messages, texts, &self.limits);
        if texts.is_empty() {
            drop(state);
            mark();
            let _ = begun.send(Begun::Written);
        } else {
            let bytes = weight(&texts, head.as_deref());
            state.enqueue(Outgoing { messages: texts, bytes, head, call: Some((call, Begin { mark, begun })) });
            drop(state);
            self.work.notify_one();
        }
        let events = Events::new(queue, Receiver::Call(call), self.clone());
        Ok(PendingCall { events, begun: pending })
    }

    /// Hands a body without requests to the writer.
    pub(super) fn post(
        &self,
        member: MemberKey,
        messages: &[Message],
        body: &Bytes,
        head: Option<Lines>,
    ) -> Result<(), Refused> {
        let texts = texts(messages, body);
        let mut state = sync::lock(&self.state);
        self.check(&state, Some(member), &texts, head.as_ref())?;
        state.record_use(Some(member));
        let texts = state.screen(Some(member), messages, texts, &self.limits);
        if !texts.is_empty() {
            let bytes = weight(&texts, head.as_ref());
            state.enqueue(Outgoing { messages: texts, bytes, head: head.map(Arc::new), call: None });
            drop(state);
            self.work.notify_one();
        }
        Ok(())
    }

    /// Hands a synthetic message to the writer.
    pub(super) fn post_own(&self, message: Bytes, head: Option<Lines>) {
        let mut state = sync::lock(&self.state);
        if state.end.is_none() {
            state.enqueue(Outgoing::own(message, head.map(Arc::new)));
            drop(state);
            self.work.notify_one();
        }
    }

    /// Opens the standalone stream of a session. The stream begins with the messages kept for it.
    pub(super) fn listen(self: &Arc<Self>, member: MemberKey) -> Result<Events, Refused> {
        let mut state = sync::lock(&self.state);
        if state.end.is_some() {
            return Err(Refused::Ended);
        }
        let listening = state.members.get_mut(&member).ok_or(Refused::Ended)?;
        let queue = listening.listen(&self.limits).ok_or(Refused::Listening)?;
        Ok(Events::new(queue, Receiver::Standalone(member), self.clone()))
    }

    /// Checks that the channel can take messages of a session, or of a caller without one.
    fn check(
        &self,
        state: &State,
        member: Option<MemberKey>,
        texts: &[Bytes],
        head: Option<&Lines>,
    ) -> Result<(), Refused> {
        if state.end.is_some() || member.is_some_and(|member| !state.members.contains_key(&member)) {
            return Err(Refused::Ended);
        }
        let bytes = weight(texts, head);
        if state.outgoing_bytes > 0 && state.outgoing_bytes + bytes > self.limits.outgoing_bytes {
            return Err(Refused::Full);
        }
        // The second ID could name a request of another user.
        if state.is_shared() && texts.iter().any(|text| has_second_id(text)) {
            return Err(Refused::TwoIds);
        }
        Ok(())
    }

    /// Ends the channel: drops queued messages, and ends all responses.
    pub(super) fn end(&self, end: End) {
        let mut state = sync::lock(&self.state);
        if state.end.is_some() {
            return;
        }
        state.end = Some(end);
        // A call that has not begun sees the end of `begun` in place of a response.
        state.drop_outgoing();
        for member in state.members.values_mut() {
            member.end();
        }
        drop(state);
        self.work.notify_one();
        self.ended.notify_waiters();
    }

    /// Takes the pending responses of a channel that has ended, with the subject of their errors
    /// and the IDs of their requests.
    pub(super) fn take_pending(&self) -> Vec<(Arc<Queue>, Subject, Vec<RequestId>)> {
        let mut state = sync::lock(&self.state);
        let responses = std::mem::take(&mut state.responses);
        let ids = |owed: Vec<Owed>| owed.into_iter().map(|owed| owed.at_caller).collect();
        let pending = responses
            .into_iter()
            .map(|(call, Response { queue, subject, .. })| (queue, subject, ids(state.routing.give_up(call))));
        pending.collect()
    }

    /// Returns the current use of the channel.
    pub(super) fn activity(&self) -> Activity {
        let state = sync::lock(&self.state);
        let is_busy = !state.responses.is_empty() || state.has_outgoing();
        Activity { is_busy, last_use: state.last_use }
    }

    /// Returns true while a session has a GET that counts as use.
    pub(super) fn is_listened_to(&self, now: Instant) -> bool {
        sync::lock(&self.state).members.values().any(|member| member.idle_since(now).is_none())
    }

    /// Returns the sessions of a shared channel that are idle for this long.
    pub(super) fn idle_members(&self, now: Instant, idle: Duration) -> Vec<MemberKey> {
        let state = sync::lock(&self.state);
        let is_idle = |since: Instant| now.saturating_duration_since(since) >= idle;
        let idle = state.members_without_call().filter(|(_, member)| member.idle_since(now).is_some_and(is_idle));
        idle.map(|(member, _)| member).collect()
    }

    /// Returns the session that is unused for longest, if the channel is full and such a session
    /// has no call.
    pub(super) fn surplus_member(&self) -> Option<MemberKey> {
        let state = sync::lock(&self.state);
        let unused = || state.members_without_call().min_by_key(|(_, member)| member.used_at);
        if state.members.len() < MEMBERS_MAX { None } else { unused().map(|(member, _)| member) }
    }

    /// Returns the number of lines of the server that were no JSON-RPC.
    pub(super) fn garbage(&self) -> usize {
        sync::lock(&self.state).garbage
    }

    /// Returns true once the server has sent a request or a notification.
    pub(super) fn has_spoken(&self) -> bool {
        sync::lock(&self.state).has_spoken
    }

    /// Returns the reason for the end, or `None` while the channel works.
    pub(super) fn ending(&self) -> Option<End> {
        sync::lock(&self.state).end
    }

    /// Resolves at the end of the channel.
    pub(super) async fn ended(&self) -> End {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Some(end) = self.ending() {
                return end;
            }
            ended.await;
        }
    }

    // ── to the server ────────────────────────────────────────────────────────────────────────────

    async fn write(self: Arc<Self>, mut output: Box<dyn Output>) {
        loop {
            let work = self.work.notified();
            self.close_left();
            match self.next_outgoing() {
                Next::Message(outgoing) => self.write_messages(&mut *output, outgoing).await,
                Next::Nothing => work.await,
                // Dropping `output` is the end of the server's input.
                Next::End => return,
            }
        }
    }

    /// Writes the messages of a request. The call begins with the first byte that the server may
    /// have: nothing has run before it.
    async fn write_messages(&self, output: &mut dyn Output, outgoing: Outgoing) {
        let Outgoing { messages, head, mut call, .. } = outgoing;
        for message in messages {
            let mut on_begin = || {
                if let Some((call, Begin { mark, begun })) = call.take() {
                    self.begin(call);
                    mark();
                    let _ = begun.send(Begun::Written);
                }
            };
            match output.write(message, head.as_deref(), &mut on_begin).await {
                Ok(()) => {}
                Err(WriteError::Lost) => return self.end(End::Lost),
                Err(WriteError::Refused(response)) => {
                    if let Some((call, Begin { begun, .. })) = call.take() {
                        self.refuse(call);
                        let _ = begun.send(Begun::Refused(response));
                    }
                    return;
                }
            }
        }
    }

    /// Removes a call that the server has refused.
    fn refuse(&self, call: CallKey) {
        let mut state = sync::lock(&self.state);
        state.writing = None;
        state.responses.remove(&call);
        state.routing.withdraw(call);
    }

    fn begin(&self, call: CallKey) {
        let mut state = sync::lock(&self.state);
        state.writing = None;
        if let Some(response) = state.responses.get_mut(&call) {
            response.is_begun = true;
        }
    }

    fn next_outgoing(&self) -> Next {
        let mut state = sync::lock(&self.state);
        if state.end.is_some() {
            return Next::End;
        }
        state.next_outgoing().map_or(Next::Nothing, Next::Message)
    }

    /// Closes abandoned responses. On HTTP the server would see a closed connection. Here it gets a
    /// cancel for each pending request.
    fn close_left(&self) {
        let left = std::mem::take(&mut *sync::lock(&self.left));
        if left.is_empty() {
            return;
        }
        let mut state = sync::lock(&self.state);
        for receiver in left {
            match receiver {
                Receiver::Standalone(member) => {
                    state.last_use = Some(clock::now());
                    if let Some(member) = state.members.get_mut(&member) {
                        member.stop_listening();
                    }
                }
                Receiver::Call(call) => {
                    state.close(call);
                }
            }
        }
    }

    // ── from the server ──────────────────────────────────────────────────────────────────────────

    async fn read(self: Arc<Self>, mut input: Box<dyn Input>) {
        let mut arriving = Arriving::new(self.clone());
        let mut cut: Option<Cut> = None;
        let mut cut_log = CutLog::default();
        loop {
            let line = {
                let mut next = input.next(&mut arriving);
                match cut.as_mut().and_then(|cut| Some((cut.undecided_until()?, cut))) {
                    None => next.await,
                    Some((until, cut)) => tokio::select! {
                        line = &mut next => line,
                        () = clock::sleep_until(until) => {
                            self.change(|state| state.expire_cut(cut));
                            next.await
                        }
                    },
                }
            };
            let held = arriving.take();
            match line {
                Some(Line::Whole(line)) => self.take(held.keep_for(line)),
                Some(Line::Cut { first, code }) => {
                    cut = Some(self.begin_cut(&first, code, &mut cut_log));
                }
                Some(Line::CutEnd(last)) => {
                    if let Some(cut) = cut.take() {
                        self.change(|state| state.end_cut(cut, &last, &self.limits));
                    }
                }
                None => break,
            }
        }
        self.end(End::Lost);
    }

    /// Reads a line as a response that only lenient parsers read, and removes its byte order mark.
    /// Returns `None` for any other line.
    fn repair(&self, line: &mut Bytes) -> Option<jsonrpc::Body> {
        let response = jsonrpc::peek_leniently(line).ok()?;
        self.limits.metrics.repairs.record(Repair::Json);
        if line.starts_with(jsonrpc::BYTE_ORDER_MARK) {
            line.advance(jsonrpc::BYTE_ORDER_MARK.len());
        }
        Some(jsonrpc::Body::Single(response))
    }

    /// Hands each message of a line to its response.
    fn take(&self, mut line: Bytes) {
        let Some(body) = jsonrpc::peek(&line).ok().or_else(|| self.repair(&mut line)) else {
            let earlier = self.garbage();
            self.limits.metrics.observe_text_line(earlier + 1);
            debug!(target: "mcp_resume::program", text = &*String::from_utf8_lossy(&line), "text of a server");
            if earlier == 0 {
                warn!(
                    "a server writes text where its messages belong: the text is skipped. On stdio its stdout must have \
                     JSON-RPC messages alone, and stderr the log"
                );
            }
            return self.change(|state| state.take_garbage(&line, &self.limits));
        };
        self.change(|state| match body {
            jsonrpc::Body::Single(message) => state.deliver(&message, line, &self.limits),
            jsonrpc::Body::Batch(messages) => {
                for (message, text) in messages.iter().zip(jsonrpc::messages(&line)) {
                    state.deliver(message, line.slice(jsonrpc::span(&line, text)), &self.limits);
                }
            }
        });
    }
}

impl Channel for Connection {
    fn leave(&self, receiver: Receiver, queue: &Queue) {
        queue.end();
        sync::lock(&self.left).push(receiver);
        self.work.notify_one();
    }
}

enum Next {
    Message(Outgoing),
    Nothing,
    End,
}

/// Returns the size of queued messages, in bytes.
fn weight(messages: &[Bytes], head: Option<&Lines>) -> usize {
    messages.iter().map(|message| message.len() + OUTGOING_EACH).sum::<usize>() + head.map_or(0, Lines::size)
}

/// Returns the messages of a body.
fn texts(messages: &[Message], body: &Bytes) -> Vec<Bytes> {
    if messages.len() == 1 && body.trim_ascii_start().first() != Some(&b'[') {
        return vec![body.clone()];
    }
    jsonrpc::messages(body).into_iter().map(|text| body.slice(jsonrpc::span(body, text))).collect()
}

fn is_method(message: &Message, name: &str) -> bool {
    matches!(message, Message::Request { method, .. } if method == name)
}
