//! One channel: the messages of one session to its server and back.
//!
//! Two tasks serve it, on the runtime of [`super::Channels`]: one writes what waits, the other reads and hands each message to the response that it
//! belongs to. The reader never waits: a channel carries many responses, and one that is not read must not stop the others. Invariant: a message of
//! which a byte was written is never written again. Lock order: the state of a channel, then a stream, then a queue of a response.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::body::{Channel, Events, Queue};
use super::limits::Limits;
use super::link::{Input, Output, WriteError};
use super::metrics::Skipped;
use super::{OnBegin, Response as HttpResponse};
use crate::event_log::Stream;
use crate::protocol::channel::line::Line;
use crate::protocol::channel::routing::{CallKey, IdInUse, Receiver, Routing, Target};
use crate::protocol::headers::Lines;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::{clock, sync};

/// Messages, and their bytes, that are kept for the first GET of a session.
const KEPT_MESSAGES: usize = 64;
const KEPT_BYTES: usize = 256 * 1024;

/// Reason for the end of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The session was ended on purpose.
    Closed,
    /// The server has ended, closed its output, or takes nothing more.
    Lost,
}

/// One channel.
#[derive(Debug)]
pub(super) struct Connection {
    limits: Limits,
    state: Mutex<State>,
    /// Responses that are not read any more. A lock of its own: a response may be dropped under any other.
    left: Mutex<Vec<Receiver>>,
    /// Notified of work for the writer.
    work: Notify,
    /// Notified at the end.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    routing: Routing,
    responses: BTreeMap<CallKey, Response>,
    next_call: u64,
    standalone: Option<Arc<Queue>>,
    listens_since: Option<Instant>,
    /// Messages for a GET that has not come yet.
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    has_listened: bool,
    outgoing: VecDeque<Outgoing>,
    outgoing_bytes: usize,
    /// Call whose request is with the writer, and was not begun yet.
    writing: Option<CallKey>,
    last_use: Option<Instant>,
    /// Lines of the server that were no JSON-RPC.
    garbage: usize,
    end: Option<End>,
}

/// Response to a call.
#[derive(Debug)]
struct Response {
    queue: Arc<Queue>,
    /// Stream of the call, which knows if a client reads.
    stream: Option<Arc<Stream>>,
    /// True once a byte of the request was about to be written.
    is_begun: bool,
    /// Requests whose cancel has passed.
    cancelled: Vec<RequestId>,
    /// False for a call that the protocol does not let be cancelled.
    may_cancel: bool,
}

/// A message that waits to be written.
#[derive(Debug)]
struct Outgoing {
    messages: Vec<Bytes>,
    bytes: usize,
    /// Headers of the request with which they came, for a server that takes them.
    head: Option<Lines>,
    /// Call that begins with the message, and its writer's word.
    call: Option<(CallKey, Begin)>,
}

/// Steps at the moment at which a call begins.
struct Begin {
    mark: OnBegin,
    begun: oneshot::Sender<Begun>,
}

impl std::fmt::Debug for Begin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begin").finish_non_exhaustive()
    }
}

/// Use of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// True while a call runs.
    pub(super) is_busy: bool,
    /// Last message for the server, or last end of a call.
    pub(super) last_use: Option<Instant>,
    /// Beginning of the GET that is open.
    pub(super) listens_since: Option<Instant>,
}

/// A message was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the channel has ended")]
    Ended,
    #[error("too much waits to be written")]
    Full,
    #[error(transparent)]
    IdInUse(#[from] IdInUse),
    #[error("the session has a GET already")]
    Listening,
}

/// A call that waits to be written.
pub(super) struct Waiting {
    pub(super) events: Events,
    begun: oneshot::Receiver<Begun>,
}

/// The beginning of a call.
pub(super) enum Begun {
    /// The server may have some of the request.
    Written,
    /// The server has refused the request.
    Refused(Box<HttpResponse>),
    /// The channel has ended before.
    Ended,
}

impl Waiting {
    /// Waits for the beginning of the call.
    pub(super) async fn begun(&mut self) -> Begun {
        (&mut self.begun).await.unwrap_or(Begun::Ended)
    }
}

impl Connection {
    /// Starts a channel, with two tasks on the caller's runtime. Returns the one that reads, which ends with `input`.
    pub(super) fn start(limits: Limits, input: Box<dyn Input>, output: Box<dyn Output>) -> (Arc<Self>, JoinHandle<()>) {
        let connection = Arc::new(Self {
            limits,
            state: Mutex::default(),
            left: Mutex::default(),
            work: Notify::new(),
            ended: Notify::new(),
        });
        tokio::spawn(connection.clone().write(output));
        let reader = tokio::spawn(connection.clone().read(input));
        (connection, reader)
    }

    /// Hands a body with requests to the writer. `mark` is called once its first byte was written. `head` is for a server that takes headers.
    pub(super) fn call(
        self: &Arc<Self>,
        messages: &[Message],
        body: &Bytes,
        head: Option<Lines>,
        stream: Option<Arc<Stream>>,
        mark: OnBegin,
    ) -> Result<Waiting, Refused> {
        let texts = texts(messages, body);
        let bytes = texts.iter().map(Bytes::len).sum();
        // A server answers no cancel of `initialize`, which the protocol forbids.
        let may_cancel = !messages.iter().any(|message| is_method(message, "initialize"));
        let mut state = sync::lock(&self.state);
        self.check_room(&state, bytes)?;
        state.next_call += 1;
        let call = CallKey(state.next_call);
        state.routing.begin(call, messages, body)?;
        let (begun, waiting) = oneshot::channel();
        let queue = Arc::<Queue>::default();
        state.responses.insert(
            call,
            Response { queue: queue.clone(), stream, is_begun: false, cancelled: Vec::new(), may_cancel },
        );
        state.enqueue(Outgoing { messages: texts, bytes, head, call: Some((call, Begin { mark, begun })) });
        drop(state);
        self.work.notify_one();
        let events = Events::new(queue, Receiver::Call(call), self.clone());
        Ok(Waiting { events, begun: waiting })
    }

    /// Hands a body without requests to the writer.
    pub(super) fn post(&self, messages: &[Message], body: &Bytes, head: Option<Lines>) -> Result<(), Refused> {
        let texts = texts(messages, body);
        let bytes = texts.iter().map(Bytes::len).sum();
        let mut state = sync::lock(&self.state);
        self.check_room(&state, bytes)?;
        for id in jsonrpc::cancelled_request_ids(messages, body) {
            state.note_cancel(&id);
        }
        state.enqueue(Outgoing { messages: texts, bytes, head, call: None });
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Opens the standalone stream, which begins with the messages that were kept for it.
    pub(super) fn listen(self: &Arc<Self>) -> Result<Events, Refused> {
        let mut state = sync::lock(&self.state);
        if state.end.is_some() {
            return Err(Refused::Ended);
        }
        if state.standalone.is_some() {
            return Err(Refused::Listening);
        }
        let queue = Arc::<Queue>::default();
        state.has_listened = true;
        state.kept_bytes = 0;
        for message in std::mem::take(&mut state.kept) {
            queue.push(message, self.limits.response_bytes);
        }
        state.standalone = Some(queue.clone());
        state.listens_since = Some(clock::now());
        Ok(Events::new(queue, Receiver::Standalone, self.clone()))
    }

    fn check_room(&self, state: &State, bytes: usize) -> Result<(), Refused> {
        if state.end.is_some() {
            return Err(Refused::Ended);
        }
        let is_full = state.outgoing_bytes > 0 && state.outgoing_bytes + bytes > self.limits.outgoing_bytes;
        if is_full { Err(Refused::Full) } else { Ok(()) }
    }

    /// Ends the channel: what waits to be written is dropped, and all responses end.
    pub(super) fn end(&self, end: End) {
        let mut state = sync::lock(&self.state);
        if state.end.is_some() {
            return;
        }
        state.end = Some(end);
        // Calls that were not begun have no response: what waits for them sees the end of `begun`.
        state.outgoing.clear();
        if let Some(queue) = state.standalone.take() {
            queue.end();
        }
        drop(state);
        self.work.notify_one();
        self.ended.notify_waiters();
    }

    /// Returns the responses that are still owed once the channel has ended, with the ids of their requests, and forgets them.
    pub(super) fn take_unanswered(&self) -> Vec<(Arc<Queue>, Vec<RequestId>)> {
        let mut state = sync::lock(&self.state);
        let responses = std::mem::take(&mut state.responses);
        responses.into_iter().map(|(call, response)| (response.queue, state.routing.give_up(call))).collect()
    }

    /// Returns the use that is made of the channel.
    pub(super) fn activity(&self) -> Activity {
        let state = sync::lock(&self.state);
        let is_busy = !state.responses.is_empty() || !state.outgoing.is_empty();
        Activity { is_busy, last_use: state.last_use, listens_since: state.listens_since }
    }

    /// Returns the number of lines of the server that were no JSON-RPC.
    pub(super) fn garbage(&self) -> usize {
        sync::lock(&self.state).garbage
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

    // ── to the server ───────────────────────────────────────────────────────────────────────────────────────────────

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

    /// Writes the messages of a request. Its call begins with the first byte that the server may have: before that nothing has run.
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
            match output.write(message, head.as_ref(), &mut on_begin).await {
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

    /// Forgets a call that the server has refused.
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
        let Some(outgoing) = state.outgoing.pop_front() else { return Next::Nothing };
        state.outgoing_bytes -= outgoing.bytes;
        state.writing = outgoing.call.as_ref().map(|(call, _)| *call);
        Next::Message(outgoing)
    }

    /// Closes the responses that are not read any more. On HTTP the server would see the end of the connection; here it gets the cancel of each
    /// request that it has not answered.
    fn close_left(&self) {
        let left = std::mem::take(&mut *sync::lock(&self.left));
        if left.is_empty() {
            return;
        }
        let mut state = sync::lock(&self.state);
        for receiver in left {
            match receiver {
                Receiver::Standalone => {
                    state.standalone = None;
                    state.listens_since = None;
                    state.last_use = Some(clock::now());
                }
                Receiver::Call(call) => state.close(call),
            }
        }
    }

    // ── from the server ─────────────────────────────────────────────────────────────────────────────────────────────

    async fn read(self: Arc<Self>, mut input: Box<dyn Input>) {
        while let Some(line) = input.next().await {
            match line {
                Line::Whole(line) => self.take(line),
                Line::TooLong => self.limits.metrics.observe_skipped(Skipped::TooLong),
            }
        }
        self.end(End::Lost);
    }

    /// Hands the messages of a line to the responses that they belong to.
    fn take(&self, line: Bytes) {
        let Ok(body) = jsonrpc::peek(&line) else {
            sync::lock(&self.state).garbage += 1;
            return self.limits.metrics.observe_skipped(Skipped::NotJsonRpc);
        };
        let mut state = sync::lock(&self.state);
        match body {
            jsonrpc::Body::Single(message) => state.deliver(&message, line, &self.limits),
            jsonrpc::Body::Batch(messages) => {
                for (message, text) in messages.iter().zip(jsonrpc::messages(&line)) {
                    state.deliver(message, line.slice(jsonrpc::span(&line, text)), &self.limits);
                }
            }
        }
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

impl State {
    fn enqueue(&mut self, outgoing: Outgoing) {
        self.outgoing_bytes += outgoing.bytes;
        self.outgoing.push_back(outgoing);
        self.last_use = Some(clock::now());
    }

    fn note_cancel(&mut self, id: &RequestId) {
        let Some(call) = self.routing.call_of(id) else { return };
        if let Some(response) = self.responses.get_mut(&call) {
            response.cancelled.push(id.clone());
        }
    }

    /// Closes the response of a call, with the cancel of its requests that have no response yet.
    fn close(&mut self, call: CallKey) {
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
        for id in unanswered.iter().filter(|id| !response.cancelled.contains(id)) {
            self.enqueue_cancel(id);
        }
    }

    fn enqueue_cancel(&mut self, id: &RequestId) {
        let message = Bytes::from(cancel(id));
        self.enqueue(Outgoing { bytes: message.len(), messages: vec![message], head: None, call: None });
    }

    fn deliver(&mut self, message: &Message, text: Bytes, limits: &Limits) {
        match self.routing.route(message, &text) {
            Target::Call { call, is_over } => self.deliver_to_call(call, is_over, text, limits),
            Target::Standalone => self.deliver_standalone(text, limits),
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
    /// reader, else that of the oldest call with a reader, else the standalone stream.
    fn receiver_of_question(&self) -> Receiver {
        let mut calls = self.responses.iter().filter(|(_, response)| response.takes_questions());
        match (calls.next(), calls.next()) {
            (Some((&only, _)), None) if self.responses.len() == 1 => return Receiver::Call(only),
            _ if self.standalone.is_some() => return Receiver::Standalone,
            _ => {}
        }
        let mut calls = self.responses.iter().filter(|(_, response)| response.takes_questions());
        let read = calls.find(|(_, response)| response.has_reader());
        read.map_or(Receiver::Standalone, |(&call, _)| Receiver::Call(call))
    }

    fn deliver_to_call(&mut self, call: CallKey, is_over: bool, text: Bytes, limits: &Limits) {
        let Some(response) = self.responses.get(&call) else { return };
        if !response.queue.push(text, limits.response_bytes) {
            // Nothing on a channel can be paused, so the call cannot wait for a reader.
            let ids = self.routing.give_up(call);
            if let Some(response) = self.responses.remove(&call) {
                for id in &ids {
                    response.queue.force(limits.full_message(id));
                    self.enqueue_cancel(id);
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
        self.kept.push_back(text);
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

/// Returns the messages of a body.
fn texts(messages: &[Message], body: &Bytes) -> Vec<Bytes> {
    if messages.len() == 1 && body.trim_ascii_start().first() != Some(&b'[') {
        return vec![body.clone()];
    }
    jsonrpc::messages(body).into_iter().map(|text| body.slice(jsonrpc::span(body, text))).collect()
}

fn cancel(id: &RequestId) -> String {
    let id = id.to_json();
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the client has gone"}}}}"#
    )
}

fn is_method(message: &Message, name: &str) -> bool {
    matches!(message, Message::Request { method, .. } if method == name)
}
