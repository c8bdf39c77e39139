//! Scripted servers, and the requests of their clients.

mod eras;
mod fairness;
mod modern;
mod own_messages;
mod shared;
mod start;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::pipe::{PipeReader, PipeWriter};
use super::{
    Body, Bounds, Caller, Channels, Link, LinkFuture, Metrics, Open, OpenError, Program, ProgramEnd, Request, Response,
    Settings, Sharing, StartKind, Variables,
};
use crate::event_log::{Principal, QuotaKey};
use crate::protocol::headers;

const START: Duration = Duration::from_secs(55);
const KEEP: Duration = Duration::from_secs(300);

/// Opens channels whose other ends are the test's.
struct Opener {
    servers: mpsc::UnboundedSender<Server>,
    is_missing: Arc<AtomicBool>,
    /// Number of the channels that end before the server has read a byte.
    broken: Arc<AtomicUsize>,
}

/// The other end of a channel.
struct Server {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
    ended: Arc<watch::Sender<bool>>,
}

struct Process(Arc<watch::Sender<bool>>);

impl Open for Opener {
    fn open(
        &self,
        _: Option<&headers::Lines>,
        _: &Variables,
        worker: &Handle,
    ) -> LinkFuture<'static, Result<Link, OpenError>> {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (input, output) = tokio::io::split(ours);
        let ended = Arc::new(watch::channel(false).0);
        let (reader, writer) = tokio::io::split(theirs);
        let server = Server { lines: BufReader::new(reader).lines(), output: writer, ended: ended.clone() };
        let (input, output) = (PipeReader::new(input, 1 << 20), PipeWriter::new(output));
        let (input, output, runtime) = (Box::new(input), Box::new(output), worker.clone());
        let link = Link { input, output, runtime, program: Box::new(Process(ended)) };
        let is_missing = self.is_missing.load(Ordering::Relaxed);
        let is_broken =
            self.broken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if !is_missing && !is_broken {
            self.servers.send(server).expect("the test goes on");
        }
        Box::pin(async move { if is_missing { Err(OpenError::of_program("not found")) } else { Ok(link) } })
    }

    fn is_available(&self) -> bool {
        true
    }
}

impl Program for Process {
    fn end(&self) {
        self.0.send_replace(true);
    }

    fn ended(&self) -> LinkFuture<'static, ProgramEnd> {
        let mut ended = self.0.subscribe();
        Box::pin(async move {
            let _ = ended.wait_for(|&ended| ended).await;
            ProgramEnd { code: Some(7), ..ProgramEnd::default() }
        })
    }

    fn gone(&self) -> LinkFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Server {
    async fn message(&mut self) -> Value {
        let line = within(self.lines.next_line()).await.expect("text").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    async fn say(&mut self, line: impl ToString) {
        self.output.write_all(format!("{}\n", line.to_string()).as_bytes()).await.expect("it is read");
    }

    /// Responds to `initialize`, and returns the ID of the request.
    async fn accept(&mut self) -> Value {
        let message = self.message().await;
        assert_eq!(message["method"], "initialize");
        self.say(json!({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": "2025-11-25"}})).await;
        message["id"].clone()
    }

    /// Resolves when the proxy ends the server.
    async fn end(&self) {
        let mut ended = self.ended.subscribe();
        within(ended.wait_for(|&ended| ended)).await.expect("it is held");
    }

    fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }
}

struct Setup {
    channels: Arc<Channels>,
    servers: mpsc::UnboundedReceiver<Server>,
    is_missing: Arc<AtomicBool>,
    broken: Arc<AtomicUsize>,
}

impl Setup {
    fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            message_bytes: 1 << 20,
            unclaimed_bytes: 1 << 20,
            outgoing_bytes: 1 << 20,
            batch: 10,
            idle: None,
            start: START,
            keep: KEEP,
            bounds: Some(Bounds {
                servers: 8,
                servers_per_caller: 4,
                starts_per_minute: Some(30),
                starts_at_once: 64,
                first_alone: Duration::ZERO,
                bounds_addresses: true,
                may_replace: true,
            }),
            sharing: Sharing::Off,
            answers_pings: true,
            keeps_asked: false,
        };
        change(&mut settings);
        let (sender, servers) = mpsc::unbounded_channel();
        let is_missing = Arc::new(AtomicBool::new(false));
        let broken = Arc::<AtomicUsize>::default();
        let opener = Opener { servers: sender, is_missing: is_missing.clone(), broken: broken.clone() };
        let metrics = Metrics::unregistered();
        let channels = Channels::new(Box::new(opener), settings, Arc::new(metrics));
        Self { channels, servers, is_missing, broken }
    }

    /// Sends an `initialize` as this caller, with these parameters.
    fn initialize(&self, id: u64, caller: u8, client: &str) -> JoinHandle<Outcome> {
        self.start(id, caller, client, StartKind::First)
    }

    fn start(&self, id: u64, caller: u8, client: &str, kind: StartKind) -> JoinHandle<Outcome> {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": client}});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params});
        self.start_as(caller_of(caller), &body, kind)
    }

    fn initialize_as(&self, caller: Caller, body: &Value) -> JoinHandle<Outcome> {
        self.start_as(caller, body, StartKind::First)
    }

    fn start_as(&self, caller: Caller, body: &Value, start_kind: StartKind) -> JoinHandle<Outcome> {
        let (channels, caller, body) = (self.channels.clone(), Arc::new(caller), Bytes::from(body.to_string()));
        tokio::spawn(async move {
            let request = Request { start_kind, ..request(&Method::POST, None, &body, Some(&caller)) };
            let response = channels.send(request).await;
            let status = response.status().as_u16();
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let (session, retry_after) = (header("mcp-session-id"), header("retry-after"));
            let Body::Whole(Some(body)) = response.into_body() else { panic!("an event stream") };
            Outcome { status, session, retry_after, body: serde_json::from_slice(&body).expect("JSON") }
        })
    }

    /// Sends a request in a session, and returns the head of its response with the events to come.
    async fn send(&self, method: Method, session: &str, body: impl ToString) -> Response {
        let body = Bytes::from(body.to_string());
        within(self.channels.send(request(&method, Some(session), &body, None))).await
    }

    async fn server(&mut self) -> Server {
        within(self.servers.recv()).await.expect("channels")
    }

    /// Opens a session.
    async fn open(&mut self, caller: u8) -> Server {
        let opening = self.initialize(1, caller, "a");
        let mut server = self.server().await;
        server.accept().await;
        assert_eq!(outcome(opening).await.status, 200);
        server
    }

    fn starts_none(&mut self) {
        assert!(self.servers.try_recv().is_err(), "no other server is started");
    }
}

fn request<'a>(
    method: &'a Method,
    session: Option<&'a str>,
    body: &'a Bytes,
    caller: Option<&'a Arc<Caller>>,
) -> Request<'a> {
    static NO_HEADERS: LazyLock<headers::Lines> = LazyLock::new(headers::Lines::default);
    let (session, start_kind) = (session.map(str::as_bytes), StartKind::First);
    Request { method, session, headers: &NO_HEADERS, body, stream: None, caller, start_kind, on_begin: Box::new(|| {}) }
}

#[derive(Debug)]
struct Outcome {
    status: u16,
    session: Option<String>,
    retry_after: Option<String>,
    body: Value,
}

impl Outcome {
    fn message(&self) -> &str {
        self.body["error"]["message"].as_str().expect("an error")
    }
}

fn caller_of(n: u8) -> Caller {
    Caller::new(Principal::Known([n; 16]), QuotaKey::Known([n; 16]))
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(3600), wait).await.expect("an event within an hour")
}

async fn outcome(opening: JoinHandle<Outcome>) -> Outcome {
    within(opening).await.expect("no panic")
}

/// Ends a request like a client that disconnects.
async fn give_up(opening: JoinHandle<Outcome>) {
    opening.abort();
    assert!(within(opening).await.is_err());
}
