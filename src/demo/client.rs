//! The client of the demo: the requests of a stock SDK client, and no more.
//!
//! It has no knowledge of the proxy. Deliberately absent: tolerance. An unexpected response is an
//! error.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::{Client as HttpClient, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::error::Error;
use super::server::SESSION_HEADER;
use super::transcript::{Transcript, shorten};
use crate::protocol::sse::{Decoder, Event};

/// Revision of the client: the latest with a rule for resumption.
const REVISION: &str = "2025-11-25";
/// Limit of the size of one event.
const MAX_EVENT_BYTES: usize = 64 * 1024;

/// One client with one session.
pub(super) struct Client<'a> {
    url: String,
    http: HttpClient<HttpConnector, Full<Bytes>>,
    session: Option<HeaderValue>,
    last_id: u64,
    /// Transcript of all bytes sent and received.
    pub(super) transcript: &'a mut Transcript,
}

impl<'a> Client<'a> {
    /// Creates a client of the server at `address`, without a session yet.
    pub(super) fn new(address: SocketAddr, transcript: &'a mut Transcript) -> Self {
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        Self { url: format!("http://{address}/mcp"), http, session: None, last_id: 0, transcript }
    }

    /// Returns the session ID, or `None` before a session is open.
    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_ref().and_then(|session| session.to_str().ok())
    }

    /// Opens a session.
    pub(super) async fn initialize(&mut self) -> Result<(), Error> {
        let params = json!({
            "protocolVersion": REVISION,
            "capabilities": {},
            "clientInfo": {"name": "demo", "version": env!("CARGO_PKG_VERSION")},
        });
        let response = self.request("initialize", params).await?;
        self.session = response.headers().get(SESSION_HEADER).cloned();
        expect(&response, StatusCode::OK, "initialize")?;
        response.into_body().collect().await?;

        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let response = self.post("notifications/initialized", &initialized).await?;
        expect(&response, StatusCode::ACCEPTED, "notifications/initialized")?;
        response.into_body().collect().await?;
        Ok(())
    }

    /// Calls the tool `name`, and requests its progress.
    pub(super) async fn call(&mut self, name: &str, arguments: Value) -> Result<EventStream, Error> {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "demo"}});
        let response = self.request("tools/call", params).await?;
        EventStream::of(response, "tools/call")
    }

    /// Resumes after `cursor`.
    pub(super) async fn resume(&mut self, cursor: &str) -> Result<EventStream, Error> {
        let request =
            Request::builder().method(Method::GET).header(ACCEPT, "text/event-stream").header("last-event-id", cursor);
        self.transcript.request(&format!("GET /mcp   Last-Event-ID: {}", shorten(cursor)))?;
        let response = self.send(request, Bytes::new()).await?;
        EventStream::of(response, "GET with Last-Event-ID")
    }

    async fn request(&mut self, method: &str, params: Value) -> Result<Response<Incoming>, Error> {
        self.last_id += 1;
        self.post(method, &json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})).await
    }

    async fn post(&mut self, name: &str, message: &Value) -> Result<Response<Incoming>, Error> {
        let arguments =
            message["params"]["arguments"].as_object().map(|_| format!(" count {}", message["params"]["arguments"]));
        self.transcript.request(&format!("POST /mcp  {name}{}", arguments.unwrap_or_default()))?;
        let request = Request::builder()
            .method(Method::POST)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        self.send(request, Bytes::from(message.to_string())).await
    }

    async fn send(&mut self, request: http::request::Builder, body: Bytes) -> Result<Response<Incoming>, Error> {
        let mut request = request.uri(&self.url);
        if let Some(session) = &self.session {
            request = request.header(SESSION_HEADER, session).header("mcp-protocol-version", REVISION);
        }
        let request = request.body(Full::new(body)).expect("event IDs and addresses fit a header");
        let response = self.http.request(request).await?;
        self.transcript.response(&response)?;
        Ok(response)
    }
}

fn expect<B>(response: &Response<B>, status: StatusCode, request: &str) -> Result<(), Error> {
    if response.status() == status {
        return Ok(());
    }
    Err(Error::Unexpected { request: request.to_owned(), status: response.status() })
}

/// The events of one response.
pub(super) struct EventStream {
    body: Incoming,
    decoder: Decoder,
}

impl EventStream {
    fn of(response: Response<Incoming>, request: &str) -> Result<Self, Error> {
        expect(&response, StatusCode::OK, request)?;
        Ok(Self { body: response.into_body(), decoder: Decoder::new(MAX_EVENT_BYTES) })
    }

    /// Returns the next event, or `None` at an orderly end. An incomplete event at the end is
    /// dropped, as the format requires.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, hyper::Error> {
        loop {
            if let Ok(Some(event)) = self.decoder.poll_event() {
                return Ok(Some(event));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            self.decoder.feed(frame?.into_data().unwrap_or_default());
        }
    }
}
