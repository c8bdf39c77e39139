//! One call in a session of the bridge: the messages of the server as its client gets them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use serde_json::{Value, json};

use super::session::LegacySession;
use super::{ModernClients, Request, ResponseBody, Template};
use crate::body::BoxError;
use crate::clock;
use crate::protocol::bridge::modern_clients::{self as bridge, Envelope, Kind, ListHints, LogLevel};
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::sse;
use crate::upstream::sse_reader::EventReader;
use crate::upstream::synthetic;

/// Most rounds of input in one call: clients give up a call after as many.
const MAX_ROUNDS: u32 = 10;

/// A call. Dropping it before its response cancels it at the server.
pub(super) struct BridgedCall {
    bridge: Arc<ModernClients>,
    session: Arc<LegacySession>,
    /// Last request of the client for the call.
    template: Template,
    /// ID of that request.
    id: RequestId,
    /// Token under which the client wants progress, as JSON.
    progress_token: Option<String>,
    /// ID and progress token at the server.
    own: String,
    kind: Kind,
    hints: ListHints,
    envelope: Envelope,
    digest: Option<CallDigest>,
    reader: EventReader,
    /// Questions of the server without answers.
    questions: Vec<Question>,
    /// Time at which they are told, or `None` if there are none.
    due: Option<Instant>,
    asked: u32,
    rounds: u32,
    is_over: bool,
}

struct Question {
    key: String,
    id: RequestId,
    method: String,
    params: Value,
}

/// Body of the response to a call.
pub(super) struct BridgedBody(Option<Pin<Box<dyn Future<Output = Step> + Send>>>);

/// Next bytes of a response, and the call if it goes on.
type Step = (Bytes, Option<Box<BridgedCall>>);

/// The place of calls that wait for the answers of their clients.
pub(super) trait Waiting {
    /// Keeps a call. Returns the state by which it is found, or the call if too many of its session wait.
    fn park(self: Arc<Self>, call: Box<BridgedCall>) -> Result<String, Box<BridgedCall>>;
}

impl BridgedBody {
    pub(super) fn new(call: Box<BridgedCall>) -> Self {
        Self(Some(Box::pin(call.step())))
    }
}

impl fmt::Debug for BridgedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BridgedBody").finish_non_exhaustive()
    }
}

impl Body for BridgedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(step) = &mut self.0 else { return Poll::Ready(None) };
        let (bytes, call) = ready!(step.as_mut().poll(cx));
        self.0 = call.map(|call| Box::pin(call.step()) as Pin<Box<dyn Future<Output = Step> + Send>>);
        Poll::Ready(if bytes.is_empty() { None } else { Some(Ok(Frame::data(bytes))) })
    }
}

impl BridgedCall {
    pub(super) fn new(
        bridge: &Arc<ModernClients>,
        session: &Arc<LegacySession>,
        request: &Request<'_>,
        own: String,
        digest: Option<CallDigest>,
        body: ResponseBody,
    ) -> Box<Self> {
        session.begin_call();
        Box::new(Self {
            bridge: bridge.clone(),
            session: session.clone(),
            template: request.template.clone(),
            id: request.id.clone(),
            progress_token: request.progress_token.clone(),
            own,
            kind: request.kind,
            hints: request.hints(),
            envelope: request.envelope.clone(),
            digest,
            reader: EventReader::new(body, bridge.settings.max_event_bytes),
            questions: Vec::new(),
            due: None,
            asked: 0,
            rounds: 0,
            is_over: false,
        })
    }

    /// Returns the digest of the call: the same for each request of it.
    pub(super) fn digest(&self) -> Option<&CallDigest> {
        self.digest.as_ref()
    }

    /// Returns true for a call of this session.
    pub(super) fn is_of(&self, session: &Arc<LegacySession>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }

    /// Returns true if both are of one session.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.is_of(&other.session)
    }

    /// Goes on with the answers of the client, for another request of it.
    pub(super) async fn go_on(mut self: Box<Self>, request: &Request<'_>, answers: Value) -> Box<Self> {
        self.template = request.template.clone();
        self.id = request.id.clone();
        self.progress_token = request.progress_token.clone();
        for question in std::mem::take(&mut self.questions) {
            match answers.get(&question.key) {
                Some(answer) => {
                    let response = json!({"jsonrpc": "2.0", "id": json_id(&question.id), "result": answer});
                    self.bridge.post(&self.session, &self.template, response.to_string().into_bytes()).await;
                }
                None => self.questions.push(question),
            }
        }
        // What is left is asked again.
        self.due = (!self.questions.is_empty()).then(clock::now);
        self
    }

    /// Reads on until there is something for the client.
    async fn step(mut self: Box<Self>) -> Step {
        let mut out = BytesMut::new();
        loop {
            let due = self.due;
            let read = async {
                match due {
                    Some(due) => tokio::select! {
                        biased;
                        piece = self.reader.next() => Some(piece),
                        () = clock::sleep_until(due) => None,
                    },
                    None => Some(self.reader.next().await),
                }
            };
            match read.await {
                None => return (self.park(), None),
                Some(Err(_)) => return (out.freeze(), None),
                Some(Ok(piece)) => {
                    let gathered = self.reader.gather(piece).await;
                    for event in gathered.events {
                        self.handle(&event.data, &mut out);
                    }
                    if self.is_over || gathered.error.is_some() || gathered.ending.is_some() {
                        return (out.freeze(), None);
                    }
                    if !out.is_empty() {
                        return (out.freeze(), Some(self));
                    }
                }
            }
        }
    }

    /// Handles one message of the server.
    fn handle(&mut self, data: &[u8], out: &mut BytesMut) {
        let Ok(body) = jsonrpc::peek(data) else { return };
        for (message, text) in body.messages().iter().zip(jsonrpc::messages(data)) {
            let text = text.as_bytes();
            let told = match message {
                Message::Response { id: Some(id), .. } if id.text() == self.own => {
                    self.is_over = true;
                    bridge::result_as(text, &self.id, self.session.server_info.as_ref(), self.hints)
                }
                Message::Response { .. } => None,
                Message::Request { id, method } => {
                    self.handle_question(id, method, text);
                    None
                }
                Message::Notification { method } => self.notification(method, text),
            };
            if let Some(told) = told {
                sse::encode_event(out, b"message", &told);
            }
        }
    }

    /// Returns a notification as the client gets it, or `None` if it gets none.
    fn notification(&mut self, method: &str, text: &[u8]) -> Option<Vec<u8>> {
        match method {
            "notifications/progress" => bridge::progress_as(text, &self.own, self.progress_token.as_deref()?),
            "notifications/message" => {
                let level = jsonrpc::member(text, &["params", "level"])?;
                let level = LogLevel::of(&serde_json::from_str::<String>(level).ok()?)?;
                self.envelope.log_level.is_some_and(|wanted| level >= wanted).then(|| text.to_vec())
            }
            "notifications/cancelled" => {
                // The server has withdrawn a question.
                let withdrawn = jsonrpc::cancelled_request_id(text)?;
                self.questions.retain(|question| question.id != withdrawn);
                if self.questions.is_empty() {
                    self.due = None;
                }
                None
            }
            "notifications/elicitation/complete" | "notifications/tasks/status" => None,
            _ => Some(text.to_vec()),
        }
    }

    fn handle_question(&mut self, id: &RequestId, method: &str, text: &[u8]) {
        if method == "ping" {
            return self.post(synthetic::pong(id));
        }
        let Some((method, params)) = bridge::question_of(text) else { return };
        let refused = if !self.kind.may_ask() {
            Some((-32603, "no input can be asked for in this request"))
        } else if self.rounds >= MAX_ROUNDS {
            Some((-32603, "the call has asked in too many rounds"))
        } else {
            self.envelope.declared.refuses(&method, &params)
        };
        if let Some((code, text)) = refused {
            return self.post(jsonrpc::error_message(Some(id), code, text, Value::Null));
        }
        self.asked += 1;
        self.questions.push(Question { key: format!("q{}", self.asked), id: id.clone(), method, params });
        self.due = Some(clock::now() + self.bridge.settings.input_grace);
    }

    /// Waits for the answers of the client, which gets the questions. Returns the last event of the response.
    fn park(mut self: Box<Self>) -> Bytes {
        self.due = None;
        self.rounds += 1;
        let id = self.id.clone();
        let asked: Vec<_> = self
            .questions
            .iter()
            .map(|question| (question.key.clone(), question.method.clone(), question.params.clone()))
            .collect();
        let message = match self.bridge.clone().park(self) {
            Ok(state) => {
                let questions = asked.iter().map(|(key, method, params)| (key.as_str(), method.as_str(), params));
                bridge::input_required(&id, questions, &state)
            }
            // Dropped, and so cancelled at the server.
            Err(_call) => jsonrpc::error_message(Some(&id), -32603, "too many calls wait for input", Value::Null),
        };
        let mut out = BytesMut::new();
        sse::encode_event(&mut out, b"message", &message);
        out.freeze()
    }

    /// Posts a message of the proxy's own beside the call.
    fn post(&self, message: Vec<u8>) {
        let (bridge, session, template) = (self.bridge.clone(), self.session.clone(), self.template.clone());
        tokio::spawn(async move { bridge.post(&session, &template, message).await });
    }
}

impl Drop for BridgedCall {
    fn drop(&mut self) {
        self.session.end_call();
        if !self.is_over && tokio::runtime::Handle::try_current().is_ok() {
            self.post(synthetic::cancelled(&RequestId::String(self.own.as_str().into())));
        }
    }
}

fn json_id(id: &RequestId) -> Value {
    serde_json::from_str(&id.to_json()).unwrap_or(Value::Null)
}
