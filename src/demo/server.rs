//! The server of the demo: a small, ordinary MCP server over Streamable HTTP that cannot resume.
//!
//! It behaves like servers without an event store. Its events carry no ids. A call without its
//! client continues, but the result is dropped. Deliberately absent: any means to resume.

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::body::{BoxBody, BoxError, Incoming};
use crate::protocol::jsonrpc::code;
use crate::server::{self, ConnectionLimit, ListenerConfig, Protocols, respond};
use crate::sync;

/// The header that names a session.
pub(super) const SESSION_HEADER: &str = "mcp-session-id";

/// The longest request body that is read.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// The longest request head that is read.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Time after which a connection without a request is closed.
const IDLE: Duration = Duration::from_secs(75);
/// Limit of the open connections.
const MAX_CONNECTIONS: usize = 1024;
/// Limit of remembered sessions; the oldest is forgotten first.
const MAX_SESSIONS: usize = 1024;
/// Number of events that wait for a slow client before the tool waits too.
const EVENTS_AHEAD: usize = 16;
/// Largest number of the tool's count.
const MAX_COUNT: u64 = 1000;
/// The longest pause between two numbers, in milliseconds.
const MAX_INTERVAL_MS: u64 = 10_000;

/// Supported revisions. A client that requests another is offered the last.
const REVISIONS: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

/// A running server. Dropping it closes its listener and its connections.
pub(super) struct Server {
    address: SocketAddr,
    tools: Arc<Tools>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Starts a server on a free loopback port.
    pub(super) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let tools = Arc::new(Tools::default());
        let config = ListenerConfig {
            protocols: Protocols::Http1,
            header_bytes: MAX_HEAD_BYTES,
            idle: IDLE,
            limit: ConnectionLimit::new(MAX_CONNECTIONS),
            metrics: None,
        };
        let shared = tools.clone();
        let handler = move |request: Request<Incoming>| shared.clone().respond(request);
        let accepting = tokio::spawn(server::serve(listener, config, handler, pending(), pending()));
        Ok(Self { address, tools, accepting })
    }

    /// Address of its listener.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of tool calls begun.
    pub(super) fn calls_begun(&self) -> u64 {
        self.tools.calls.borrow().begun
    }

    /// Resolves once every tool call that has begun has run to its end, with or without its client.
    pub(super) async fn all_calls_ended(&self) {
        let mut calls = self.tools.calls.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = calls.wait_for(|calls| calls.begun == calls.ended).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

type Reply = Response<BoxBody>;

/// State shared by all connections.
#[derive(Default)]
struct Tools {
    sessions: Mutex<Sessions>,
    calls: watch::Sender<Calls>,
}

#[derive(Default)]
struct Sessions {
    last: u64,
    live: BTreeSet<u64>,
}

/// Numbers of tool calls: begun, and run to their end.
#[derive(Default)]
struct Calls {
    begun: u64,
    ended: u64,
}

impl Tools {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        if request.uri().path() != "/mcp" {
            return respond::status(StatusCode::NOT_FOUND);
        }
        match *request.method() {
            Method::POST => self.post(request).await,
            Method::DELETE => match self.session(request.headers()) {
                Ok(session) => {
                    self.sessions().live.remove(&session);
                    respond::status(StatusCode::OK)
                }
                Err(refusal) => *refusal,
            },
            _ => respond::status(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    async fn post(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MAX_BODY_BYTES).collect().await else {
            return respond::status(StatusCode::PAYLOAD_TOO_LARGE);
        };
        let Ok(message) = serde_json::from_slice::<Value>(&body.to_bytes()) else {
            return error(StatusCode::BAD_REQUEST, &Value::Null, code::PARSE_ERROR, "not JSON");
        };
        let (id, method) = (&message["id"], message["method"].as_str().unwrap_or_default());
        if method == "initialize" {
            return self.initialize(id, &message["params"]);
        }
        if let Err(refusal) = self.session(&head.headers) {
            return *refusal;
        }
        match method {
            _ if id.is_null() || method.is_empty() => respond::status(StatusCode::ACCEPTED),
            "ping" => result(id, &json!({})),
            "tools/list" => result(id, &json!({"tools": [count_tool()]})),
            "tools/call" if message["params"]["name"] == "count" => self.count(id, &message["params"]),
            "tools/call" => error(StatusCode::OK, id, code::INVALID_PARAMS, "unknown tool"),
            _ => error(StatusCode::OK, id, code::METHOD_NOT_FOUND, "method not found"),
        }
    }

    fn initialize(&self, id: &Value, params: &Value) -> Reply {
        let requested = params["protocolVersion"].as_str().unwrap_or_default();
        let revision = REVISIONS.into_iter().find(|known| *known == requested).unwrap_or(REVISIONS[2]);
        let mut reply = result(
            id,
            &json!({
                "protocolVersion": revision,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "cannot-resume", "version": env!("CARGO_PKG_VERSION")},
            }),
        );
        let mut sessions = self.sessions();
        sessions.last += 1;
        let session = sessions.last;
        sessions.live.insert(session);
        if sessions.live.len() > MAX_SESSIONS {
            sessions.live.pop_first();
        }
        let name = HeaderValue::try_from(format!("demo-{session}")).expect("letters and digits fit a header");
        reply.headers_mut().insert(SESSION_HEADER, name);
        reply
    }

    /// Returns the session of a request, or an error response: 400 without one, 404 for an unknown
    /// one.
    fn session(&self, headers: &HeaderMap) -> Result<u64, Box<Reply>> {
        let Some(name) = headers.get(SESSION_HEADER) else {
            return Err(Box::new(error(StatusCode::BAD_REQUEST, &Value::Null, code::INVALID_REQUEST, "no session")));
        };
        let session = name.to_str().ok().and_then(|name| name.strip_prefix("demo-")).and_then(|n| n.parse().ok());
        session.filter(|session| self.sessions().live.contains(session)).ok_or_else(|| {
            Box::new(error(StatusCode::NOT_FOUND, &Value::Null, code::INVALID_REQUEST, "unknown session"))
        })
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        sync::lock(&self.sessions)
    }

    /// Counts in a task of its own, which continues when the client leaves.
    fn count(self: Arc<Self>, id: &Value, params: &Value) -> Reply {
        let arguments = &params["arguments"];
        let to = arguments["to"].as_u64().unwrap_or(10).min(MAX_COUNT);
        let interval = Duration::from_millis(arguments["interval_ms"].as_u64().unwrap_or(500).min(MAX_INTERVAL_MS));
        let (id, token) = (id.clone(), params["_meta"]["progressToken"].clone());
        let (events, body) = mpsc::channel(EVENTS_AHEAD);
        self.calls.send_modify(|calls| calls.begun += 1);
        tokio::spawn(async move {
            for progress in 1..=to {
                tokio::time::sleep(interval).await;
                if !token.is_null() {
                    let params = json!({"progressToken": token, "progress": progress, "total": to});
                    let _ = events.send(event(&notification("notifications/progress", &params))).await;
                }
            }
            let text = format!("counted to {to}");
            let _ = events.send(event(&response(&id, &json!({"content": [{"type": "text", "text": text}]})))).await;
            self.calls.send_modify(|calls| calls.ended += 1);
        });
        respond::stream(Events(body))
    }
}

/// Body of an SSE response: the events of one call.
struct Events(mpsc::Receiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

fn count_tool() -> Value {
    json!({
        "name": "count",
        "description": "Counts slowly, with a progress notification for every number",
        "inputSchema": {
            "type": "object",
            "properties": {
                "to": {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
                "interval_ms": {"type": "integer", "minimum": 0, "maximum": MAX_INTERVAL_MS},
            },
        },
    })
}

fn event(message: &Value) -> Bytes {
    Bytes::from(format!("event: message\ndata: {message}\n\n"))
}

fn notification(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

fn response(id: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn result(id: &Value, result: &Value) -> Reply {
    respond::json(StatusCode::OK, response(id, result).to_string().into())
}

fn error(status: StatusCode, id: &Value, code: i64, message: &str) -> Reply {
    let body = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}});
    respond::json(status, body.to_string().into())
}
