//! One call in a session of the bridge: the messages of the server, translated for its client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use super::awaited::Awaited;
use super::request::ClientRequest;
use super::session::{Busy, LegacySession};
use super::standalone;
use crate::clock;
use crate::protocol::bridge::modern_clients::{self as bridge, LogLevel, MAX_ROUNDS, UrlElicitations, listen};
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, Message, RequestId, code, response};
use crate::protocol::stream::Ending;
use crate::upstream::server::response_body::Lost;
use crate::upstream::server::sse_reader::{EventReader, GatherResult};
use crate::upstream::server::synthetic;

/// Default and longest pause before a stream of the server is reopened. The server may set another
/// pause.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Maximum number of reopenings in a row without a message.
const MAX_REOPENINGS: u32 = 10;
/// Maximum number of pending server requests of one round.
const MAX_PENDING: usize = 64;
/// Maximum age of an input round, as a multiple of `input_grace`.
const LONGEST_GRACE: u32 = 5;

/// A call. Dropping it before its response cancels it at the server.
pub(super) struct BridgedCall {
    session: Arc<LegacySession>,
    _busy: Busy,
    /// Last request of the client for the call.
    request: ClientRequest,
    /// ID and progress token at the server.
    own: String,
    source: Source,
    /// Messages on the session's standalone stream that concern the call.
    inbox: mpsc::Receiver<Bytes>,
    /// First such message, if it arrived before the server's response began.
    early: Option<Bytes>,
    /// Server requests without a client response.
    pending: Vec<ServerRequest>,
    /// Deadline to forward the pending server requests, or `None` without any.
    due: Option<Instant>,
    /// Arrival of the first pending server request, or `None` without any.
    pending_since: Option<Instant>,
    received: u32,
    /// Last event ID of the server, for the request that reopens the stream.
    last_event_id: Option<Bytes>,
    /// Pause before the stream is reopened.
    retry: Duration,
    /// Number of reopenings since the last message.
    reopenings: u32,
    /// Refusal of the server until the user opens elicitation URLs, or `None` without one.
    refused: Option<(UrlElicitations, Bytes)>,
    /// True once the server has responded, or its stream has ended for good.
    is_finished: bool,
    /// Loss of the server, which the proxy reports in its place.
    lost: Lost,
}

struct ServerRequest {
    /// The request as received, if it arrived on the standalone stream: it is associated with no
    /// call.
    unnamed: Option<Bytes>,
    /// True once a client has received the request.
    is_forwarded: bool,
    id: RequestId,
    input: InputRequest,
}

/// A server request for the client of a later revision.
#[derive(Clone)]
pub(super) struct InputRequest {
    pub(super) key: String,
    pub(super) method: String,
    pub(super) params: Value,
}

/// Stream that carried a message of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The stream of the call.
    Call,
    /// The session's standalone stream, whose messages are associated with no call.
    Session,
}

/// Messages of the server.
pub(super) enum Source {
    /// A response that has not begun.
    Late(Pin<Box<dyn Future<Output = EventReader> + Send>>),
    /// A response that has begun.
    Begun(EventReader),
}

/// State of a call after a step.
pub(super) enum Next {
    Continues(Box<BridgedCall>),
    /// Server requests need client responses: the call must be parked.
    NeedsInput(Box<BridgedCall>),
    /// The server has refused the call, by this error, until its user opens elicitation URLs.
    NeedsUrls(Box<BridgedCall>, UrlElicitations, Bytes),
    /// The server has responded, or its stream has ended for good.
    Ended,
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
        session: Arc<LegacySession>,
        busy: Busy,
        request: &ClientRequest,
        awaited: Awaited,
        source: Source,
    ) -> Box<Self> {
        let (own, inbox, early) = awaited.into_parts();
        Box::new(Self {
            session,
            _busy: busy,
            request: request.clone(),
            own,
            source,
            inbox,
            early,
            pending: Vec::new(),
            due: None,
            pending_since: None,
            received: 0,
            last_event_id: None,
            retry: RETRY,
            reopenings: 0,
            refused: None,
            is_finished: false,
            lost: Lost::default(),
        })
    }

    /// Returns true if this is the call with this digest, in this session.
    pub(super) fn is_of(&self, session: &Arc<LegacySession>, digest: &CallDigest) -> bool {
        Arc::ptr_eq(&self.session, session) && self.request.digest.as_ref() == Some(digest)
    }

    /// Returns the last request of the client for the call.
    pub(super) fn request(&self) -> &ClientRequest {
        &self.request
    }

    /// Returns the loss of the server, which is recorded before the error that reports it.
    pub(super) fn lost(&self) -> &Lost {
        &self.lost
    }

    pub(super) fn session(&self) -> &Arc<LegacySession> {
        &self.session
    }

    /// Continues with the client responses in a further request of the client.
    pub(super) fn resume(mut self: Box<Self>, request: &ClientRequest, responses: &Value) -> Box<Self> {
        self.request = ClientRequest { rounds: self.request.rounds, ..request.clone() };
        let mut posted = Vec::new();
        for request in std::mem::take(&mut self.pending) {
            match responses.get(&request.input.key) {
                Some(response) => {
                    posted.push(bridge::client_response(&request.id, response));
                }
                None => self.pending.push(request),
            }
        }
        self.post(posted);
        for request in self.session.calls.set_parked(&self.own, false) {
            self.handle(&request, &mut Vec::new(), Place::Session);
        }
        // The client gets the remaining server requests again.
        self.due = (!self.pending.is_empty()).then(clock::now);
        self
    }

    /// Reads until there are messages for the client, or the response must end.
    pub(super) async fn step(mut self: Box<Self>) -> (Vec<Bytes>, Next) {
        let mut out = Vec::new();
        if let Some(message) = self.early.take() {
            self.handle(&message, &mut out, Place::Session);
        }
        loop {
            if !out.is_empty() {
                return (out, Next::Continues(self));
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
                    if self.is_finished || (has_ended && !self.reopen().await) {
                        self.is_finished = true;
                        let next = match self.refused.take() {
                            Some((elicitations, error)) => Next::NeedsUrls(self, elicitations, error),
                            None => Next::Ended,
                        };
                        return (out, next);
                    }
                }
                Some(message) = self.inbox.recv() => self.handle(&message, &mut out, Place::Session),
                () = is_due => return (out, Next::NeedsInput(self)),
            }
        }
    }

    /// Takes bytes of the server's stream. Returns true if the stream has ended.
    async fn take(&mut self, piece: Bytes, out: &mut Vec<Bytes>) -> bool {
        let gathered = self.source.gather(piece).await;
        if let Source::Begun(reader) = &self.source
            && let Some(code) = reader.lost()
        {
            self.lost.record(code);
        }
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

    /// Reopens the server's stream, which has ended without a response. Returns false if the server
    /// cannot resume it.
    async fn reopen(&mut self) -> bool {
        let Some(last) = self.last_event_id.clone() else { return false };
        while self.reopenings < MAX_REOPENINGS {
            self.reopenings += 1;
            clock::sleep(self.retry).await;
            let get = self.request.template.to_get(Some(&last));
            match self.session.exchange(&get).await {
                Ok(response) if response.status().is_success() && headers::is_sse(response.headers()) => {
                    let limit = self.session.link.settings.max_event_bytes;
                    self.source = Source::Begun(EventReader::new(response.into_body(), limit));
                    return true;
                }
                Ok(response) if response.status().is_client_error() => return false,
                Ok(_) | Err(_) => {}
            }
        }
        false
    }

    /// Handles an event of the server, and adds the messages for the client to `out`.
    fn handle(&mut self, data: &[u8], out: &mut Vec<Bytes>, place: Place) {
        let json = jsonrpc::as_json(data);
        let data = json.as_deref().unwrap_or(data);
        let Ok(body) = jsonrpc::peek(data) else { return };
        for (message, text) in body.messages().iter().zip(jsonrpc::messages(data)) {
            let text = text.as_bytes();
            let translated = match message {
                Message::Response { id: Some(id), .. } if id.text() == self.own => {
                    self.is_finished = true;
                    match self.request.urls_in(text) {
                        Some(elicitations) => {
                            self.refused = Some((elicitations, Bytes::copy_from_slice(text)));
                            None
                        }
                        None => self.request.result_as(&self.session, text),
                    }
                }
                Message::Response { .. } => None,
                Message::Request { id, method } => {
                    self.handle_server_request(id, method, text, place);
                    None
                }
                Message::Notification { method } => self.notification(method, text),
            };
            out.extend(translated.map(Bytes::from));
        }
    }

    /// Translates a notification for the client, or returns `None` if the client does not get it.
    fn notification(&mut self, method: &str, text: &[u8]) -> Option<Vec<u8>> {
        match method {
            "notifications/progress" => bridge::progress_as(text, &self.own, self.request.progress_token.as_deref()?),
            "notifications/message" => {
                let level = LogLevel::of(&jsonrpc::string_member(text, &["params", "level"])?)?;
                self.request.envelope.log_level.is_some_and(|wanted| level >= wanted).then(|| text.to_vec())
            }
            "notifications/cancelled" => {
                // The server has withdrawn a server request.
                let withdrawn = jsonrpc::cancelled_request_id(text)?;
                self.pending.retain(|request| request.id != withdrawn);
                if self.pending.is_empty() {
                    self.due = None;
                    self.pending_since = None;
                }
                None
            }
            "notifications/tasks/status" => None,
            _ if listen::is_change(method) || method == "notifications/elicitation/complete" => {
                standalone::deliver(&self.session, method, text);
                None
            }
            _ => Some(text.to_vec()),
        }
    }

    fn handle_server_request(&mut self, id: &RequestId, method: &str, text: &[u8], place: Place) {
        if method == "ping" {
            return self.post(vec![response::empty(id)]);
        }
        let Some((method, params)) = bridge::input_request_of(text) else { return };
        let refused = if !self.request.kind.may_request_input() {
            Some((code::INTERNAL_ERROR, "no input can be asked for in this request"))
        } else if self.pending.len() >= MAX_PENDING {
            Some((code::INTERNAL_ERROR, "the call asks too much at once"))
        } else if self.request.rounds >= MAX_ROUNDS {
            Some((code::INTERNAL_ERROR, "the call has asked in too many rounds"))
        } else {
            self.request.envelope.declared.refuses(&method, &params)
        };
        if let Some((code, text)) = refused {
            if method == "roots/list" {
                self.session.calls.mark_roots_refused();
            }
            return self.post(vec![response::error(id, code, text)]);
        }
        self.received += 1;
        let unnamed = (place == Place::Session).then(|| Bytes::copy_from_slice(text));
        let (key, id) = (format!("q{}", self.received), id.clone());
        let input = InputRequest { key, method, params };
        self.pending.push(ServerRequest { unnamed, is_forwarded: false, id, input });
        let grace = self.session.link.settings.input_grace;
        let latest = *self.pending_since.get_or_insert_with(clock::now) + LONGEST_GRACE * grace;
        self.due = Some((clock::now() + grace).min(latest));
    }

    /// Prepares the call to be parked: it gets no server requests until its client continues it.
    /// Returns the pending server requests for the client.
    pub(super) fn begin_round(&mut self) -> Vec<InputRequest> {
        self.due = None;
        self.pending_since = None;
        self.session.calls.set_parked(&self.own, true);
        while let Ok(message) = self.inbox.try_recv() {
            standalone::reassign(&self.session, &message);
        }
        self.request.rounds += 1;
        let forwarded = self.pending.iter_mut().map(|request| {
            request.is_forwarded = true;
            request.input.clone()
        });
        forwarded.collect()
    }

    /// Cancels the call at the server. Returns once the server has been notified.
    pub(super) async fn give_up(mut self: Box<Self>) {
        let messages = self.last_messages();
        self.is_finished = true;
        for message in messages {
            self.session.post(&self.request.template, message).await;
        }
    }

    /// Returns the final messages for the server: an error for each pending server request, and the
    /// cancellation.
    fn last_messages(&mut self) -> Vec<Vec<u8>> {
        // An unassociated request that no client has received may belong to another call.
        let mut unnamed: Vec<Bytes> = Vec::new();
        let mut messages = Vec::new();
        for request in std::mem::take(&mut self.pending) {
            match request.unnamed {
                Some(text) if !request.is_forwarded => unnamed.push(text),
                Some(_) | None => messages.push(bridge::abandoned_response(&request.id, &request.input.method)),
            }
        }
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            unnamed.push(message);
        }
        for request in unnamed {
            standalone::reassign(&self.session, &request);
        }
        if !self.is_finished {
            messages.push(synthetic::cancelled(&RequestId::String(self.own.as_str().into())));
        }
        messages
    }

    /// Posts messages of the proxy's own in a separate task, in their order.
    fn post(&self, messages: Vec<Vec<u8>>) {
        let (session, template) = (self.session.clone(), self.request.template.clone());
        tokio::spawn(async move {
            for message in messages {
                session.post(&template, message).await;
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
