//! Channels to servers on HTTP+SSE, the transport of revision 2024-11-05.
//!
//! A channel is the response to a GET. Its first event, `endpoint`, names the place for the
//! client's messages. Each message is a POST with a response of 202. The server's messages are the
//! later events.
//!
//! Owned here: both directions of a channel, and the wait for a server that accepts no connection.
//!
//! Invariants:
//!
//! - POSTs begin one after the other. Each waits up to a second for the previous response, so that
//!   messages keep their order.
//! - All POSTs stay within the server's origin, and no client sees a redirect.
//! - The endpoint's query is a secret of the session, and no log shows it.
//!
//! Absent: sessions, and the calls that end with a channel (`channel/`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use super::attempts::Attempts;
use super::body;
use super::exchange::{Exchange, Unanswered};
use super::http::HttpServer;
use super::request::Template;
use super::response_body::ResponseBody;
use super::sse_reader::SseReader;
use crate::channel::{
    self, Input, Link, LinkFuture, Memory, Open, OpenError, Output, Program, ProgramEnd, Variables, WriteError,
};
use crate::clock;
use crate::config;
use crate::protocol::channel::line::Line;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, Era, Lines, names};
use crate::protocol::jsonrpc::{self, RequestId};
use crate::protocol::sse::{Cut, Item};
use crate::tls;

/// Largest body of a response other than the channel's, in bytes.
const MAX_BODY: usize = 1024 * 1024;
/// Maximum wait for the response to a POST, before the next POST is sent.
const RESPONSE_WAIT: Duration = Duration::from_secs(1);
/// Value of the `event` field of the first event.
const ENDPOINT: &[u8] = b"endpoint";
/// Error of a redirect that is not followed: it leads to another origin, or may change the method.
const REDIRECTED: &str = "the server redirects to another place, which the proxy does not follow";
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A server on HTTP+SSE.
pub struct SseServer {
    /// Client whose endpoint is the place of the GET.
    http: Arc<HttpServer>,
    message_bytes: usize,
}

impl SseServer {
    /// Creates a server at the configured endpoint. A message of the server may have
    /// `message_bytes` bytes.
    ///
    /// # Errors
    /// If the TLS files cannot be loaded.
    pub fn new(config: config::Upstream, message_bytes: usize) -> Result<Self, tls::Error> {
        Ok(Self { http: Arc::new(HttpServer::new(config)?), message_bytes })
    }
}

impl Open for SseServer {
    fn open(&self, head: Option<&Lines>, _: &Variables, _: &Handle) -> LinkFuture<'static, Result<Link, OpenError>> {
        let (http, headers, message_bytes) = (self.http.clone(), own_headers(head), self.message_bytes);
        Box::pin(async move { open(http, headers, message_bytes).await })
    }

    /// The server is probed like a server on Streamable HTTP.
    fn is_available(&self) -> bool {
        true
    }

    /// The transport is older than revisions without sessions.
    fn era(&self) -> Option<Era> {
        Some(Era::Legacy)
    }

    fn takes_headers(&self) -> bool {
        true
    }
}

async fn open(http: Arc<HttpServer>, mut headers: HeaderMap, message_bytes: usize) -> Result<Link, OpenError> {
    headers.remove(CONTENT_TYPE);
    headers.insert(ACCEPT, EVENT_STREAM);
    let template = Template::plain(Method::GET, &headers, Bytes::new());
    let response = get(&http, &template)
        .await
        .map_err(|failure| OpenError::Failed { code: failure.code, detail: String::new() })?;
    if response.status().is_redirection() {
        return Err(unusable(REDIRECTED));
    }
    if !response.status().is_success() {
        return Err(OpenError::Refused(Box::new(collected(response).await)));
    }
    if !headers::is_sse(response.headers()) {
        return Err(unusable("the GET was not answered with an event stream"));
    }
    let mut events = Events {
        reader: SseReader::new(response.into_body(), message_bytes),
        lines: VecDeque::new(),
        is_cut: false,
        endpoint: None,
        has_ended: false,
    };
    let endpoint =
        events.endpoint().await.ok_or_else(|| unusable("the event stream does not begin with an endpoint"))?;
    let target = http.reference(&endpoint).ok_or_else(|| unusable("the endpoint is not of the server's origin"))?;
    let end = CancellationToken::new();
    let input = ReadUntilEnd { events, end: end.clone(), _guard: end.clone().drop_guard() };
    let output = Posts { http, target, end: end.clone() };
    // All channels share the connections of the client, so these must not end with a worker.
    let runtime = Handle::current();
    Ok(Link { input: Box::new(input), output: Box::new(output), runtime, program: Box::new(Connection(end)) })
}

fn unusable(detail: &str) -> OpenError {
    OpenError::Failed { code: ErrorCode::UpstreamGarbage, detail: detail.to_owned() }
}

/// Returns the refusal of a message that the server has not accepted.
fn refusal(detail: &str, message: &[u8]) -> channel::Response {
    let ids: Vec<RequestId> = match jsonrpc::peek(message) {
        Ok(body) => body.messages().iter().filter_map(channel::request_id).cloned().collect(),
        Err(_) => Vec::new(),
    };
    channel::refusal_about(ErrorCode::UpstreamGarbage, detail, &ids)
}

/// Sends the GET. Waits for a server that accepts no connection, like calls to other servers.
async fn get(http: &HttpServer, template: &Template) -> Result<Response<ResponseBody>, Failure> {
    let until = clock::now() + http.config.wait;
    let mut attempts = Attempts::new(http.reach());
    loop {
        let Unanswered { failure, is_unconnected, .. } = match http.exchange(template, None).await {
            Ok(response) => return Ok(response),
            Err(unanswered) => unanswered,
        };
        let left = until.saturating_duration_since(clock::now());
        if !is_unconnected || tokio::time::timeout(left, attempts.next()).await.is_err() {
            return Err(failure);
        }
    }
}

/// Returns the headers of a client's request for the server, without the session and without
/// headers of Streamable HTTP.
fn own_headers(head: Option<&Lines>) -> HeaderMap {
    let mut headers = head.map(Lines::to_map).unwrap_or_default();
    for name in [
        names::MCP_SESSION_ID,
        names::LAST_EVENT_ID,
        names::IDEMPOTENCY_KEY,
        names::MCP_RESUME_EPOCH,
        names::MCP_RESUME_HOLD,
        names::MCP_METHOD,
        names::MCP_NAME,
        ORIGIN,
    ] {
        headers.remove(name);
    }
    headers
}

/// Returns a response of the server for the client, with its body.
async fn collected(mut response: Response<ResponseBody>) -> channel::Response {
    headers::remove_hop_by_hop(response.headers_mut());
    response.headers_mut().remove(CONTENT_LENGTH);
    let (parts, body) = response.into_parts();
    let body = body::collect(body, MAX_BODY).await.unwrap_or_default();
    Response::from_parts(parts, channel::Body::whole(body))
}

/// Events of the GET.
struct Events {
    reader: SseReader,
    lines: VecDeque<Line>,
    /// True while a message over the limit is skipped.
    is_cut: bool,
    /// Reference of the endpoint, until it is taken.
    endpoint: Option<String>,
    has_ended: bool,
}

/// Memory for the events before the endpoint, which are small.
struct LittleMemory;

impl Memory for LittleMemory {
    fn hold(&mut self, partial: &[u8]) -> Result<(), ErrorCode> {
        if partial.len() > MAX_BODY { Err(ErrorCode::EventTooLarge) } else { Ok(()) }
    }
}

impl Events {
    /// Waits for the endpoint, which comes before all messages.
    async fn endpoint(&mut self) -> Option<String> {
        while self.endpoint.is_none() && self.lines.is_empty() && !self.has_ended {
            self.read(&mut LittleMemory).await;
        }
        self.endpoint.take().filter(|_| !self.has_ended)
    }

    /// Reads the next events. Incomplete events are held in `memory`.
    async fn read(&mut self, memory: &mut dyn Memory) {
        let Ok(first) = self.reader.next().await else {
            self.has_ended = true;
            return;
        };
        let (items, ending) = self.reader.gather_items(first).await;
        for item in items {
            self.take(item);
        }
        self.has_ended = ending.is_some();
        if let Err(code) = memory.hold(self.reader.partial_data()) {
            let cut = self.reader.cut();
            self.take_cut(cut, code);
        }
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Event(event) => match &*event.name {
                ENDPOINT => self.endpoint = String::from_utf8(event.data.to_vec()).ok(),
                name if is_message(name) => self.lines.push_back(Line::Whole(as_one_line(event.data))),
                _ => {}
            },
            Item::Cut(cut) => self.take_cut(cut, ErrorCode::EventTooLarge),
            Item::CutEnd(last) if std::mem::take(&mut self.is_cut) => self.lines.push_back(Line::CutEnd(last)),
            Item::CutEnd(_) => {}
        }
    }

    fn take_cut(&mut self, Cut { name, first }: Cut, code: ErrorCode) {
        if is_message(&name) {
            self.is_cut = true;
            self.lines.push_back(Line::Cut { first, code });
        }
    }
}

/// Returns true for the events that are messages, by their `event` field.
fn is_message(name: &[u8]) -> bool {
    matches!(name, b"" | b"message")
}

/// Joins the data lines of an event by blanks: JSON has line ends between tokens only.
fn as_one_line(data: Bytes) -> Bytes {
    if memchr::memchr(b'\n', &data).is_none() {
        return data;
    }
    data.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect()
}

/// Messages of a channel, until it ends or is ended.
struct ReadUntilEnd {
    events: Events,
    end: CancellationToken,
    _guard: DropGuard,
}

impl Input for ReadUntilEnd {
    fn next<'a>(&'a mut self, memory: &'a mut dyn Memory) -> LinkFuture<'a, Option<Line>> {
        Box::pin(async move {
            loop {
                if let Some(line) = self.events.lines.pop_front() {
                    return Some(line);
                }
                if self.events.has_ended {
                    return None;
                }
                tokio::select! {
                    () = self.end.cancelled() => return None,
                    () = self.events.read(memory) => {}
                }
            }
        })
    }
}

/// POSTs to the endpoint of a channel.
struct Posts {
    http: Arc<HttpServer>,
    target: Uri,
    end: CancellationToken,
}

impl Output for Posts {
    fn write<'a>(
        &'a mut self,
        message: Bytes,
        head: Option<&'a Lines>,
        on_begin: &'a mut (dyn FnMut() + Send),
    ) -> LinkFuture<'a, Result<(), WriteError>> {
        let mut headers = own_headers(head);
        headers.insert(CONTENT_TYPE, JSON);
        let template = Template::plain(Method::POST, &headers, message);
        let (http, target, end) = (self.http.clone(), self.target.clone(), self.end.clone());
        Box::pin(async move {
            let mut post = tokio::spawn(post(http, target, template, end.clone()));
            let outcome = match tokio::time::timeout(RESPONSE_WAIT, &mut post).await {
                Ok(outcome) => outcome.unwrap_or(Posted::Lost { may_have_run: true }),
                // Some servers run a request before they respond to its POST, and may need a later
                // POST meanwhile.
                Err(_) => {
                    on_begin();
                    tokio::spawn(async move {
                        if !matches!(post.await, Ok(Posted::Accepted)) {
                            end.cancel();
                        }
                    });
                    return Ok(());
                }
            };
            match outcome {
                Posted::Accepted => {
                    on_begin();
                    Ok(())
                }
                Posted::Lost { may_have_run } => {
                    if may_have_run {
                        on_begin();
                    }
                    Err(WriteError::Lost)
                }
                Posted::Refused(response) => Err(WriteError::Refused(response)),
            }
        })
    }
}

/// Outcome of a POST.
enum Posted {
    Accepted,
    /// The channel is lost, or has ended.
    Lost {
        may_have_run: bool,
    },
    Refused(Box<channel::Response>),
}

/// Sends a message, unless the channel ends meanwhile.
async fn post(http: Arc<HttpServer>, target: Uri, template: Template, end: CancellationToken) -> Posted {
    let response = tokio::select! {
        response = http.exchange_at(&template, &target, None) => response,
        () = end.cancelled() => return Posted::Lost { may_have_run: true },
    };
    let response = match response {
        Ok(response) => response,
        Err(Unanswered { failure, .. }) => {
            debug!(error = failure.code.label(), "a POST to a server on HTTP+SSE was not answered");
            return Posted::Lost { may_have_run: failure.may_have_run };
        }
    };
    match response.status() {
        // The server has forgotten the session of the channel. The message has not run.
        StatusCode::NOT_FOUND | StatusCode::GONE => Posted::Lost { may_have_run: false },
        status if status.is_success() => {
            // Read to its end, so that the connection can be used again.
            let _ = body::collect(response.into_body(), MAX_BODY).await;
            Posted::Accepted
        }
        // A client that followed the redirect would send its credentials there.
        status if status.is_redirection() => {
            let mut refusal = refusal(REDIRECTED, template.body());
            refusal.extensions_mut().insert(channel::Cause(format!("status {}", status.as_u16())));
            Posted::Refused(Box::new(refusal))
        }
        _ => Posted::Refused(Box::new(collected(*response).await)),
    }
}

/// The GET of a channel.
struct Connection(CancellationToken);

impl Program for Connection {
    fn end(&self) {
        self.0.cancel();
    }

    fn ended(&self) -> LinkFuture<'static, ProgramEnd> {
        let end = self.0.clone();
        Box::pin(async move {
            end.cancelled().await;
            ProgramEnd::default()
        })
    }

    fn gone(&self) -> LinkFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn lost_code(&self) -> ErrorCode {
        ErrorCode::UpstreamBroke
    }
}
