//! One call: a request of 2026-07-28 at the server, sent once for each round of input.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use serde_json::Map;
use tokio::sync::mpsc;

use super::clients::LegacyClients;
use super::request::{ClientRequest, modern};
use super::session::{ClientResponse, PendingRequest, Running, Session};
use crate::backoff::Backoff;
use crate::clock;
use crate::protocol::bridge::legacy_clients::{self as bridge, InputRequired, MAX_ROUNDS, Round, ToolFacts};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, Era};
use crate::protocol::jsonrpc::{self, Message, code, response};
use crate::upstream::bridge::responses::{
    as_json, event_stream, is_translated, json_response, message_in, unknown_session, untranslatable,
};
use crate::upstream::server::Server;
use crate::upstream::server::exchange::{Exchange, Unanswered};
use crate::upstream::server::response_body::{Lost, Messages, ResponseBody};
use crate::upstream::server::sent::Sent;
use crate::upstream::server::sse_reader::EventReader;

/// Pauses before a call is sent again that required no input.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// Pause before a call is sent again to a server that accepts no connections.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);
/// Refusals of a request without a session by a server of the revisions with sessions.
const REFUSALS: [StatusCode; 3] = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::UNPROCESSABLE_ENTITY];
/// Capacity of a call's queue of messages for its reader. The server is not read while it is full.
const QUEUE: usize = 16;

/// A call of a client.
struct Call {
    clients: Arc<LegacyClients>,
    session: Arc<Session>,
    request: ClientRequest,
    running: Running,
    /// ID of the request at the server.
    own: String,
    rounds: u32,
    pauses: Backoff,
    /// Loss of the server, which the proxy reports in its place.
    lost: Lost,
}

/// Response of the server to the first request of a call.
enum First {
    /// Response that is not translated.
    Passes(Box<Response<ResponseBody>>),
    Events(Box<Parts>, EventReader),
    Message(Box<Parts>, Bytes),
}

/// Response of the server to one request of a call.
enum Reply {
    Message(Bytes),
    Events(EventReader),
}

impl LegacyClients {
    /// Makes a call for a client and returns its response.
    pub(super) async fn call(
        self: &Arc<Self>,
        server: &Server,
        session: Arc<Session>,
        request: ClientRequest,
        sent: Option<&Sent>,
    ) -> Result<Response<ResponseBody>, Unanswered> {
        let Some(running) = session.begin(&request.id) else {
            let text = "too many calls run in this session, or one of this ID does";
            return Ok(json_response(
                StatusCode::BAD_REQUEST,
                response::error(&request.id, code::INVALID_REQUEST, text),
            ));
        };
        let call = Call {
            clients: self.clone(),
            own: session.usage.next_id(),
            session,
            request,
            running,
            rounds: 0,
            pauses: PAUSES,
            lost: Lost::default(),
        };
        let cancelled = call.running.cancelled.clone();
        let first = tokio::select! {
            first = call.first(server, sent) => first?,
            // The client expects no response any more.
            () = cancelled.notified() => {
                let (_, nothing) = mpsc::channel(1);
                return Ok(event_stream(Messages::received(nothing)));
            }
        };
        let (mut parts, message) = match first {
            First::Passes(response) => return Ok(*response),
            First::Events(parts, reader) => {
                return Ok(Response::from_parts(*parts, call.stream(Reply::Events(reader))));
            }
            First::Message(parts, message) => (*parts, message),
        };
        if jsonrpc::is_input_required(&message) {
            parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            return Ok(Response::from_parts(parts, call.stream(Reply::Message(message))));
        }
        let translated = match call.translated_response(&message) {
            Some(translated) => {
                // Clients read an error only in a successful HTTP response. A 404 would end the
                // session.
                parts.status = StatusCode::OK;
                translated.into()
            }
            None if parts.status == StatusCode::OK => return Err(untranslatable()),
            None => message,
        };
        Ok(Response::from_parts(parts, ResponseBody::whole(translated)))
    }
}

impl Call {
    /// Sends the request for the first time, and reads enough of the response to know its kind.
    async fn first(&self, server: &Server, sent: Option<&Sent>) -> Result<First, Unanswered> {
        let mut response = self.send(server, None, sent).await?;
        if self.read_headers_after(&mut response).await? {
            response = self.send(server, None, None).await?;
        }
        let (mut parts, body) = response.into_parts();
        if parts.status.is_success() && headers::is_sse(&parts.headers) {
            headers::remove_body_facts(&mut parts.headers);
            let reader = EventReader::new(body, self.clients.link.settings.max_event_bytes);
            return Ok(First::Events(Box::new(parts), reader));
        }
        let is_refused = REFUSALS.contains(&parts.status);
        if !is_translated(&parts) {
            if is_refused && self.is_replaced().await {
                return Ok(self.replaced());
            }
            if parts.status == StatusCode::NOT_FOUND {
                // To the client a 404 ends its session, which the server does not know.
                return Ok(First::Passes(Box::new(self.not_found())));
            }
            return Ok(First::Passes(Box::new(Response::from_parts(parts, body))));
        }
        let Ok(message) = message_in(body, self.clients.link.settings.max_event_bytes).await else {
            return Err(Failure::after_send(ErrorCode::UpstreamBroke).into());
        };
        if is_refused && !is_of_revision(&message) && self.is_replaced().await {
            return Ok(self.replaced());
        }
        headers::remove_body_facts(&mut parts.headers);
        self.read_tools_for(&message).await;
        Ok(First::Message(Box::new(parts), message))
    }

    /// Ends the session, and returns its refusal: the server does not speak the revision any more.
    fn replaced(&self) -> First {
        self.clients.sessions.end(&self.session);
        First::Passes(Box::new(unknown_session()))
    }

    /// Returns true if the server was replaced by a server of the older revisions.
    async fn is_replaced(&self) -> bool {
        self.clients.era.has_changed(&self.request.template, Era::Modern).await
    }

    fn not_found(&self) -> Response<ResponseBody> {
        let text = "the server answered with status 404";
        let message = response::error(&self.request.id, code::INTERNAL_ERROR, text);
        json_response(StatusCode::BAD_GATEWAY, message)
    }

    /// Reads the list of tools before a structured result, unless the session has read one: the
    /// list decides whether the result is wrapped.
    async fn read_tools_for(&self, message: &[u8]) {
        let has_structure = self.request.method == "tools/call"
            && self.session.client.knows_structured_content()
            && jsonrpc::member(message, &["result", "structuredContent"])
                .is_some_and(|content| content.starts_with('{'));
        if has_structure && !self.session.has_listed_tools() {
            self.clients.list_tools(&self.session, &self.request.template).await;
        }
    }

    /// Sends the request, with the client responses of an input round if the server required input.
    async fn send(
        &self,
        server: &Server,
        round: Option<&Round>,
        sent: Option<&Sent>,
    ) -> Result<Response<ResponseBody>, Unanswered> {
        let body = self.request.template.body();
        let level = self.session.log_level();
        let Some(translated) = bridge::translated(body, &self.own, &self.session.client, level.as_deref(), round)
        else {
            let text = "Invalid params: params and _meta are objects";
            let message = response::error(&self.request.id, code::INVALID_PARAMS, text);
            return Ok(json_response(StatusCode::OK, message));
        };
        let facts = self.tool_facts();
        let mut template = modern(&self.request.template, &self.request.method).with_body(translated.into());
        let headers = facts.as_ref().map_or(&[][..], |facts| &facts.headers);
        for (name, value) in bridge::param_headers_of_call(headers, body) {
            template = template.with(name, value);
        }
        server.exchange(&template, sent).await
    }

    /// On -32020, reads the headers of the tool's arguments from the list of tools. Returns true if
    /// the list was read: the call has not run, and may be sent again.
    async fn read_headers_after(&self, response: &mut Response<ResponseBody>) -> Result<bool, Unanswered> {
        let may_be = self.request.method == "tools/call"
            && response.status() == StatusCode::BAD_REQUEST
            && headers::is_read_as_json(response.headers());
        if !may_be {
            return Ok(false);
        }
        let body = std::mem::replace(response.body_mut(), ResponseBody::whole(Bytes::new()));
        let Ok(message) = message_in(body, self.clients.link.settings.max_event_bytes).await else {
            return Err(Failure::after_send(ErrorCode::UpstreamBroke).into());
        };
        let is_mismatch = bridge::is_header_mismatch(&message);
        *response.body_mut() = ResponseBody::whole(message);
        Ok(is_mismatch && self.clients.list_tools(&self.session, &self.request.template).await)
    }

    /// Returns the requirements of the called tool, or `None` if the request calls no tool with
    /// requirements.
    fn tool_facts(&self) -> Option<ToolFacts> {
        let is_call = self.request.method == "tools/call";
        self.session.tool_facts(&jsonrpc::tool_name(self.request.template.body()).filter(|_| is_call)?)
    }

    /// Translates a response of the server for the client.
    fn translated_response(&self, message: &[u8]) -> Option<Vec<u8>> {
        let is_list = self.request.method == "tools/list";
        let unknown = if is_list { self.session.record_tools(message) } else { Vec::new() };
        let is_wrapped = self.tool_facts().is_some_and(|facts| facts.is_wrapped);
        let translated =
            bridge::result_as(message, &self.request.id, &self.request.method, &self.session.client, is_wrapped)?;
        Some(if unknown.is_empty() { translated } else { bridge::without_output_schemas(&translated, &unknown) })
    }

    /// Continues the call in a task for as long as its client reads the stream.
    fn stream(self, reply: Reply) -> ResponseBody {
        let (out, receiver) = mpsc::channel(QUEUE);
        let lost = self.lost.clone();
        tokio::spawn(self.run(reply, out));
        ResponseBody::Messages(Messages::received_with_loss(receiver, lost))
    }

    async fn run(mut self, reply: Reply, out: mpsc::Sender<Bytes>) {
        let cancelled = self.running.cancelled.clone();
        tokio::select! {
            () = out.closed() => {}
            () = cancelled.notified() => {}
            () = self.run_rounds(reply, &out) => {}
        }
    }

    async fn run_rounds(&mut self, mut reply: Reply, out: &mpsc::Sender<Bytes>) {
        loop {
            let message = match reply {
                Reply::Message(message) => message,
                Reply::Events(reader) => match self.read(reader, out).await {
                    Some(message) => message,
                    // The response has ended without an outcome.
                    None => return,
                },
            };
            self.read_tools_for(&message).await;
            let translated = match InputRequired::of(&message) {
                None if jsonrpc::is_input_required(&message) => {
                    let reason = "the server asks for input that is malformed, or for too much";
                    Some(bridge::failed_call(&self.request.id, &self.request.method, reason))
                }
                Some(required) => match self.run_round(required, out).await {
                    Ok(next) => {
                        reply = next;
                        continue;
                    }
                    Err(reason) => Some(bridge::failed_call(&self.request.id, &self.request.method, &reason)),
                },
                None => self.translated_response(&message),
            };
            if let Some(translated) = translated {
                let _ = out.send(translated.into()).await;
            }
            return;
        }
    }

    /// Reads events up to the response to the request. Notifications go to the client.
    async fn read(&self, mut reader: EventReader, out: &mpsc::Sender<Bytes>) -> Option<Bytes> {
        loop {
            let batch = reader.batch().await?;
            if let Some(code) = reader.lost() {
                self.lost.record(code);
            }
            for read in batch {
                let data = as_json(read.data);
                let Ok(body) = jsonrpc::peek(&data) else { continue };
                for (message, text) in body.messages().iter().zip(jsonrpc::messages(&data)) {
                    match message {
                        Message::Response { id: Some(id), .. } if id.text() == self.own => {
                            return Some(Bytes::copy_from_slice(text.as_bytes()));
                        }
                        Message::Notification { .. } => out.send(Bytes::copy_from_slice(text.as_bytes())).await.ok()?,
                        // A server of this revision requires input in results alone.
                        Message::Response { .. } | Message::Request { .. } => {}
                    }
                }
            }
        }
    }

    /// Sends the server requests of a round to the client, then the call with the client responses.
    ///
    /// # Errors
    /// The reason why the call cannot continue.
    async fn run_round(&mut self, required: InputRequired, out: &mpsc::Sender<Bytes>) -> Result<Reply, String> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Err("the server has asked for input too often".to_owned());
        }
        if let Some((refused, reason)) =
            required.requests.iter().find_map(|input| Some((input, input.refused_by(&self.session.client)?)))
        {
            // The text of an error has no word of the server.
            const KNOWN: [&str; 3] = ["elicitation/create", "roots/list", "sampling/createMessage"];
            let method = KNOWN.into_iter().find(|known| *known == refused.method).unwrap_or("another method");
            return Err(format!("the server asks by {method}: {reason}"));
        }
        let mut round = Round { responses: Map::new(), state: required.state };
        if required.requests.is_empty() {
            clock::sleep(self.pauses.next_pause()).await;
        }
        let pending: Vec<PendingRequest> =
            required.requests.iter().map(|_| self.session.begin_server_request()).collect();
        for (input, pending) in required.requests.iter().zip(&pending) {
            if out.send(input.request(pending.id()).into()).await.is_err() {
                return Err("the client has left".to_owned());
            }
        }
        let until = clock::now() + self.clients.link.settings.max_wait;
        for (input, mut pending) in required.requests.into_iter().zip(pending) {
            let response = tokio::select! {
                response = &mut pending.response => response.ok(),
                () = clock::sleep_until(until) => None,
            };
            let Some(ClientResponse { outcome, headers }) = response else {
                return Err("the client has not answered".to_owned());
            };
            self.request.template = self.request.template.going_on(&headers);
            round.responses.insert(input.key, outcome?);
        }
        self.own = self.session.usage.next_id();
        self.send_round(&round).await
    }

    /// Sends the call with the client responses of a round.
    async fn send_round(&self, round: &Round) -> Result<Reply, String> {
        let until = clock::now() + self.clients.link.settings.connect_wait;
        let response = loop {
            match self.send(&self.clients.link.server, Some(round), None).await {
                Ok(response) => break response,
                // A restarting server has not received the request.
                Err(unanswered) if unanswered.is_unconnected && clock::now() < until => {
                    clock::sleep(CONNECT_PAUSE).await
                }
                Err(_) => return Err("the server did not answer".to_owned()),
            }
        };
        let status = response.status();
        if status.is_success() && headers::is_sse(response.headers()) {
            let reader = EventReader::new(response.into_body(), self.clients.link.settings.max_event_bytes);
            return Ok(Reply::Events(reader));
        }
        let is_json = headers::is_read_as_json(response.headers());
        match message_in(response.into_body(), self.clients.link.settings.max_event_bytes).await {
            Ok(message) if is_json && self.translated_response(&message).is_some() => Ok(Reply::Message(message)),
            Ok(_) => Err(format!("the server answered with status {}", status.as_u16())),
            Err(_) => Err("the server's answer broke off".to_owned()),
        }
    }
}

/// Returns true for an error code of 2026-07-28.
fn is_of_revision(message: &[u8]) -> bool {
    matches!(
        jsonrpc::error_code(message),
        Some(
            code::METHOD_NOT_FOUND
                | code::INVALID_PARAMS
                | code::HEADER_MISMATCH
                | code::MISSING_CAPABILITY
                | code::UNSUPPORTED_VERSION
        )
    )
}
