//! One call in a session of the bridge: the messages of the server as its client gets them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;

use super::awaited::Awaited;
use super::session::{Busy, LegacySession};
use super::{ClientRequest, ModernClients, in_session, standalone};
use crate::clock;
use crate::protocol::bridge::modern_clients::{self as bridge, LogLevel, MAX_ROUNDS, listen};
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, Message, RequestId, code, response};
use crate::protocol::stream::Ending;
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::response_body::Messages;
use crate::upstream::server::sse_reader::{EventReader, GatherResult};
use crate::upstream::server::synthetic;

/// Pause before a stream of the server is read on, unless the server says another, and the longest.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Most requests in a row to read a stream on.
const MAX_REOPENINGS: u32 = 10;
/// Most questions of one round.
const MAX_QUESTIONS: usize = 64;
/// Longest time after the first question at which a round is told, in times of the time without a
/// further one.
const LONGEST_GRACE: u32 = 5;
/// Time for which a response waits for the first message of the server.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// A call. Dropping it before its response cancels it at the server.
pub(super) struct BridgedCall {
    clients: Arc<ModernClients>,
    session: Arc<LegacySession>,
    _busy: Busy,
    /// Last request of the client for the call.
    request: ClientRequest,
    /// ID and progress token at the server.
    own: String,
    source: Source,
    /// Messages on the session's own stream that concern the call.
    inbox: mpsc::Receiver<Bytes>,
    /// The first of them, if it came before the response of the server began.
    early: Option<Bytes>,
    /// Questions of the server without answers.
    questions: Vec<Question>,
    /// Time at which they are told, or `None` if there are none.
    due: Option<Instant>,
    /// Time of the first of them, or `None` if there are none.
    asked_since: Option<Instant>,
    asked: u32,
    /// ID of the last event of the server that has one, for the request that reads on.
    last_event_id: Option<Bytes>,
    /// Pause before that request.
    retry: Duration,
    /// Number of such requests since the last message.
    reopenings: u32,
    /// True once the server has answered, or its stream has ended for good.
    is_over: bool,
}

struct Question {
    /// The request as it was sent, if it came on the session's own stream: it names no call.
    unnamed: Option<Bytes>,
    /// True once a client has been asked.
    is_told: bool,
    key: String,
    id: RequestId,
    method: String,
    params: Value,
}

/// Stream on which a message of the server has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// That of the call.
    Call,
    /// That of the session, whose messages name no call.
    Session,
}

/// Messages of the server.
pub(super) enum Source {
    /// A response that has not begun.
    Late(Pin<Box<dyn Future<Output = EventReader> + Send>>),
    /// A response that has begun.
    Begun(EventReader),
}

/// Beginning of the response to a call.
pub(super) enum Begun {
    /// Messages for the client.
    Stream(Messages),
    /// The server refused the call at once, by an error that has a status at the revision of the
    /// client.
    Refused(Bytes),
}

impl Source {
    /// Waits for the next piece of the response, or its end. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Bytes, Ending> {
        if let Self::Late(late) = self {
            *self = Self::Begun(late.await);
        }
        match self {
            Self::Begun(reader) => reader.next().await,
            Self::Late(_) => std::future::pending().await,
        }
    }

    /// Returns the events of `piece` and of all further pieces that are ready.
    async fn gather(&mut self, piece: Bytes) -> GatherResult {
        match self {
            Self::Begun(reader) => reader.gather(piece).await,
            Self::Late(_) => GatherResult::default(),
        }
    }
}

impl BridgedCall {
    pub(super) fn new(
        clients: &Arc<ModernClients>,
        session: Arc<LegacySession>,
        busy: Busy,
        request: &ClientRequest,
        awaited: Awaited,
        source: Source,
    ) -> Box<Self> {
        let (own, inbox, early) = awaited.into_parts();
        Box::new(Self {
            clients: clients.clone(),
            session,
            _busy: busy,
            request: request.clone(),
            own,
            source,
            inbox,
            early,
            questions: Vec::new(),
            due: None,
            asked_since: None,
            asked: 0,
            last_event_id: None,
            retry: RETRY,
            reopenings: 0,
            is_over: false,
        })
    }

    /// Returns the messages for the client, up to the response or to a round of input.
    pub(super) fn messages(self: Box<Self>) -> Messages {
        let steps = stream::unfold(Some(self), async |call| {
            let (messages, call) = call?.step().await;
            Some((stream::iter(messages), call))
        });
        Messages::of(steps.flatten())
    }

    /// Waits a moment for the first message: an error may have a status, which precedes it.
    pub(super) async fn begun(self: Box<Self>) -> Begun {
        let mut messages = self.messages().peekable();
        let is_refusal = |message: &Bytes| bridge::status_of(message) != StatusCode::OK;
        match tokio::time::timeout(FIRST_WAIT, Pin::new(&mut messages).peek()).await {
            Ok(Some(Ok(message))) if is_refusal(message) => Begun::Refused(message.clone()),
            Ok(_) | Err(_) => Begun::Stream(Messages::Bridge(Box::pin(messages))),
        }
    }

    /// Returns true for this call of this session.
    pub(super) fn is_of(&self, session: &Arc<LegacySession>, digest: &CallDigest) -> bool {
        Arc::ptr_eq(&self.session, session) && self.request.digest.as_ref() == Some(digest)
    }

    /// Returns the last request of the client for the call.
    pub(super) fn request(&self) -> &ClientRequest {
        &self.request
    }

    /// Returns the session.
    pub(super) fn session(&self) -> &Arc<LegacySession> {
        &self.session
    }

    /// Goes on with the answers of the client, for another request of it.
    pub(super) fn go_on(mut self: Box<Self>, request: &ClientRequest, answers: &Value) -> Box<Self> {
        self.request = ClientRequest { rounds: self.request.rounds, ..request.clone() };
        let mut answered = Vec::new();
        for question in std::mem::take(&mut self.questions) {
            match answers.get(&question.key) {
                Some(answer) => {
                    answered.push(bridge::client_response(&question.id, answer));
                }
                None => self.questions.push(question),
            }
        }
        self.post(answered);
        for question in self.session.calls.set_parked(&self.own, false) {
            self.handle(&question, &mut Vec::new(), Place::Session);
        }
        // What is left is asked again.
        self.due = (!self.questions.is_empty()).then(clock::now);
        self
    }

    /// Reads on until there is something for the client.
    async fn step(mut self: Box<Self>) -> (Vec<Bytes>, Option<Box<Self>>) {
        let mut out = Vec::new();
        if let Some(message) = self.early.take() {
            self.handle(&message, &mut out, Place::Session);
        }
        loop {
            if !out.is_empty() {
                return (out, Some(self));
            }
            let due = self.due;
            let is_due = async {
                match due {
                    Some(due) => clock::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                piece = self.source.next() => {
                    let has_ended = match piece {
                        Ok(piece) => self.take(piece, &mut out).await,
                        Err(_) => true,
                    };
                    if self.is_over || (has_ended && !self.reads_on().await) {
                        self.is_over = true;
                        return (out, None);
                    }
                }
                Some(message) = self.inbox.recv() => self.handle(&message, &mut out, Place::Session),
                () = is_due => return (vec![self.park()], None),
            }
        }
    }

    /// Takes bytes of the server's stream. Returns true if the stream has ended.
    async fn take(&mut self, piece: Bytes, out: &mut Vec<Bytes>) -> bool {
        let gathered = self.source.gather(piece).await;
        let has_ended = gathered.is_last();
        for event in gathered.events {
            if let Some(id) = event.id.filter(|id| !id.is_empty()) {
                self.last_event_id = Some(Bytes::copy_from_slice(&id));
            }
            self.retry = event.retry.unwrap_or(self.retry).min(LONGEST_RETRY);
            if !event.data.is_empty() {
                self.reopenings = 0;
                self.handle(&event.data, out, Place::Call);
            }
        }
        has_ended
    }

    /// Reads on after the end of the server's stream without a response, if the server can resume
    /// it. Returns false if it cannot.
    async fn reads_on(&mut self) -> bool {
        let Some(last) = self.last_event_id.clone() else { return false };
        while self.reopenings < MAX_REOPENINGS {
            self.reopenings += 1;
            clock::sleep(self.retry).await;
            let get = in_session(&self.session, &self.request.template.to_get(Some(&last)));
            match self.clients.server.exchange(&get, None).await {
                Ok(response) if response.status().is_success() && headers::is_sse(response.headers()) => {
                    let limit = self.clients.settings.max_event_bytes;
                    self.source = Source::Begun(EventReader::new(response.into_body(), limit));
                    return true;
                }
                Ok(response) if response.status().is_client_error() => return false,
                Ok(_) | Err(_) => {}
            }
        }
        false
    }

    /// Handles one message of the server.
    fn handle(&mut self, data: &[u8], out: &mut Vec<Bytes>, place: Place) {
        let Ok(body) = jsonrpc::peek(data) else { return };
        for (message, text) in body.messages().iter().zip(jsonrpc::messages(data)) {
            let text = text.as_bytes();
            let told = match message {
                Message::Response { id: Some(id), .. } if id.text() == self.own => {
                    self.is_over = true;
                    self.clients.response_to(&self.request, &self.session, text)
                }
                Message::Response { .. } => None,
                Message::Request { id, method } => {
                    self.handle_question(id, method, text, place);
                    None
                }
                Message::Notification { method } => self.notification(method, text),
            };
            out.extend(told.map(Bytes::from));
        }
    }

    /// Returns a notification as the client gets it, or `None` if it gets none.
    fn notification(&mut self, method: &str, text: &[u8]) -> Option<Vec<u8>> {
        match method {
            "notifications/progress" => bridge::progress_as(text, &self.own, self.request.progress_token.as_deref()?),
            "notifications/message" => {
                let level = jsonrpc::member(text, &["params", "level"])?;
                let level = LogLevel::of(&serde_json::from_str::<String>(level).ok()?)?;
                self.request.envelope.log_level.is_some_and(|wanted| level >= wanted).then(|| text.to_vec())
            }
            "notifications/cancelled" => {
                // The server has withdrawn a question.
                let withdrawn = jsonrpc::cancelled_request_id(text)?;
                self.questions.retain(|question| question.id != withdrawn);
                if self.questions.is_empty() {
                    self.due = None;
                    self.asked_since = None;
                }
                None
            }
            "notifications/tasks/status" => None,
            _ if listen::is_change(method) || method == "notifications/elicitation/complete" => {
                standalone::tell(&self.session, method, text);
                None
            }
            _ => Some(text.to_vec()),
        }
    }

    fn handle_question(&mut self, id: &RequestId, method: &str, text: &[u8], place: Place) {
        if method == "ping" {
            return self.post(vec![response::empty(id)]);
        }
        let Some((method, params)) = bridge::input_request_of(text) else { return };
        let refused = if !self.request.kind.may_request_input() {
            Some((code::INTERNAL_ERROR, "no input can be asked for in this request"))
        } else if self.questions.len() >= MAX_QUESTIONS {
            Some((code::INTERNAL_ERROR, "the call asks too much at once"))
        } else if self.request.rounds >= MAX_ROUNDS {
            Some((code::INTERNAL_ERROR, "the call has asked in too many rounds"))
        } else {
            self.request.envelope.declared.refuses(&method, &params)
        };
        if let Some((code, text)) = refused {
            if method == "roots/list" {
                self.session.calls.note_refused_roots();
            }
            return self.post(vec![response::error(id, code, text)]);
        }
        self.asked += 1;
        let unnamed = (place == Place::Session).then(|| Bytes::copy_from_slice(text));
        let (key, id) = (format!("q{}", self.asked), id.clone());
        self.questions.push(Question { unnamed, is_told: false, key, id, method, params });
        let grace = self.clients.settings.input_grace;
        let latest = *self.asked_since.get_or_insert_with(clock::now) + LONGEST_GRACE * grace;
        self.due = Some((clock::now() + grace).min(latest));
    }

    /// Waits for the answers of the client, which gets the questions. Returns the last event of the
    /// response.
    fn park(mut self: Box<Self>) -> Bytes {
        self.due = None;
        self.asked_since = None;
        self.session.calls.set_parked(&self.own, true);
        for question in &mut self.questions {
            question.is_told = true;
        }
        while let Ok(message) = self.inbox.try_recv() {
            standalone::ask_again(&self.clients, &self.session, &message);
        }
        self.request.rounds += 1;
        let id = self.request.id.clone();
        let asked: Vec<_> = self
            .questions
            .iter()
            .map(|question| (question.key.clone(), question.method.clone(), question.params.clone()))
            .collect();
        let message = match self.clients.clone().park_call(self) {
            Some(state) => {
                let questions = asked.iter().map(|(key, method, params)| (key.as_str(), method.as_str(), params));
                bridge::input_required(&id, questions, &state)
            }
            // The call was dropped, and so cancelled at the server.
            None => bridge::too_many_waiting(&id),
        };
        message.into()
    }

    /// Ends the call at the server. Returns once that is told.
    pub(super) async fn give_up(mut self: Box<Self>) {
        let messages = self.last_messages();
        self.is_over = true;
        for message in messages {
            self.clients.post(&self.session, &self.request.template, message).await;
        }
    }

    /// Returns what the server is told at the end of the call: that the questions have no answers,
    /// and that it is cancelled.
    fn last_messages(&mut self) -> Vec<Vec<u8>> {
        // What names no call and was not told may be another call's.
        let mut unnamed: Vec<Bytes> = Vec::new();
        let mut messages = Vec::new();
        for question in std::mem::take(&mut self.questions) {
            match question.unnamed {
                Some(text) if !question.is_told => unnamed.push(text),
                Some(_) | None => messages.push(bridge::abandoned_response(&question.id, &question.method)),
            }
        }
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            unnamed.push(message);
        }
        for question in unnamed {
            standalone::ask_again(&self.clients, &self.session, &question);
        }
        if !self.is_over {
            messages.push(synthetic::cancelled(&RequestId::String(self.own.as_str().into())));
        }
        messages
    }

    /// Posts messages of the proxy's own beside the call, in their order.
    fn post(&self, messages: Vec<Vec<u8>>) {
        let (clients, session, template) = (self.clients.clone(), self.session.clone(), self.request.template.clone());
        tokio::spawn(async move {
            for message in messages {
                clients.post(&session, &template, message).await;
            }
        });
    }
}

impl Drop for BridgedCall {
    fn drop(&mut self) {
        self.session.calls.end(&self.own);
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let messages = self.last_messages();
        if !messages.is_empty() {
            self.post(messages);
        }
    }
}
