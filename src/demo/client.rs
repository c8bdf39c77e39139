//! The client of the demo: the requests of a stock SDK client, and no more.
//!
//! It knows nothing of the proxy. Its event reader is its own on purpose: the reader that checks
//! the proxy's bytes should share no code with their writer. Deliberately absent: tolerance. An
//! unexpected response is an error.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::event::{Event, next_event};
use super::server::SESSION_HEADER;
use super::transcript::Transcript;

/// Revision of the client: the last one that specifies resumption.
const REVISION: &str = "2025-11-25";

/// Failure of the client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection failed before a response head came.
    #[error("no response: {0}")]
    Http(#[from] hyper::Error),
    /// The response is not the one that the protocol specifies.
    #[error("{request} was answered with {status}")]
    Unexpected {
        /// Request that was sent.
        request: String,
        /// Status of the response.
        status: StatusCode,
    },
    /// The transcript could not be written.
    #[error("cannot write the transcript: {0}")]
    Transcript(#[from] std::io::Error),
}

/// One client with one session.
pub(super) struct Client<'a> {
    address: SocketAddr,
    connection: Option<SendRequest<Full<Bytes>>>,
    session: Option<HeaderValue>,
    last_id: u64,
    /// Transcript of all bytes sent and received.
    pub(super) transcript: &'a mut Transcript,
}

impl<'a> Client<'a> {
    /// Creates a client of the server at `address`, without a session yet.
    pub(super) fn new(address: SocketAddr, transcript: &'a mut Transcript) -> Self {
        Self { address, connection: None, session: None, last_id: 0, transcript }
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

    /// Calls the tool `name`, asking for progress.
    pub(super) async fn call(&mut self, name: &str, arguments: Value) -> Result<EventStream, Error> {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "demo"}});
        let response = self.request("tools/call", params).await?;
        EventStream::of(response, "tools/call")
    }

    /// Resumes after `cursor`.
    pub(super) async fn resume(&mut self, cursor: &str) -> Result<EventStream, Error> {
        let request =
            Request::builder().method(Method::GET).header(ACCEPT, "text/event-stream").header("last-event-id", cursor);
        self.transcript.request(&format!("GET /mcp   Last-Event-ID: {}", super::transcript::shorten(cursor)))?;
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
        let mut request = request.uri("/mcp").header(HOST, self.address.to_string());
        if let Some(session) = &self.session {
            request = request.header(SESSION_HEADER, session).header("mcp-protocol-version", REVISION);
        }
        let request = request.body(Full::new(body)).expect("event IDs and addresses fit a header");
        let response = self.connection().await?.send_request(request).await?;
        self.transcript.response(&response)?;
        Ok(response)
    }

    /// Returns the connection of the last request if it is usable, else a new one.
    async fn connection(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, Error> {
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            && connection.ready().await.is_err()
        {
            kept = None;
        }
        let connection = match kept {
            Some(connection) => connection,
            None => connect(self.address).await?,
        };
        Ok(self.connection.insert(connection))
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Error> {
    let socket = TcpStream::connect(address).await.map_err(Error::Connect)?;
    let (sender, connection) = handshake(TokioIo::new(socket)).await?;
    // Any end of the connection also ends the response that is being read.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
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
    unread: Vec<u8>,
}

impl EventStream {
    fn of(response: Response<Incoming>, request: &str) -> Result<Self, Error> {
        expect(&response, StatusCode::OK, request)?;
        Ok(Self { body: response.into_body(), unread: Vec::new() })
    }

    /// Returns the next event, or `None` at an orderly end. An incomplete event at the end is
    /// dropped, as the format requires.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, hyper::Error> {
        loop {
            if let Some(event) = next_event(&mut self.unread) {
                return Ok(Some(event));
            }
            match self.body.frame().await {
                Some(frame) => self.unread.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| &data[..])),
                None => return Ok(None),
            }
        }
    }
}
