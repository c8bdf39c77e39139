//! Sidecars that say what a test wants, and a balancer before them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_resume::balancer::Balancer;
use mcp_resume::config::{Balancing, Flags};
use mcp_resume::protocol::ids::{Handle, Keyring, Owner, ResumeToken, Secret, StoreEpoch, StreamId, StreamKind};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Nothing takes so long that comes at all.
const LONG: Duration = Duration::from_secs(30);

/// Reaction of a sidecar to a request.
pub(crate) enum Answer {
    /// Answers so, and keeps the connection.
    Whole(String),
    /// Begins so, and says nothing more.
    Begun(String),
    /// Closes the connection.
    Nothing,
}

type Script = dyn Fn(&str) -> Answer + Send + Sync;

/// One sidecar, by a hand-written HTTP.
pub(crate) struct Sidecar {
    pub(crate) address: SocketAddr,
    pub(crate) owner: Owner,
    /// Requests that came, whole, but for the questions who it is.
    seen: Arc<Mutex<Vec<String>>>,
    report: Arc<Mutex<Option<Value>>>,
    script: Arc<Mutex<Arc<Script>>>,
    came: Arc<Notify>,
    serving: tokio::task::JoinHandle<()>,
}

impl Sidecar {
    /// One that answers everything with its number.
    pub(crate) async fn start(number: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let owner = Owner(number);
        let report = Arc::new(Mutex::new(Some(report(owner, "memory", true))));
        let script: Arc<Mutex<Arc<Script>>> =
            Arc::new(Mutex::new(Arc::new(move |_: &str| Answer::Whole(ok(&format!("sidecar {number}"))))));
        let (seen, came) = (Arc::default(), Arc::new(Notify::new()));
        let state =
            State { seen: Arc::clone(&seen), report: report.clone(), script: script.clone(), came: came.clone() };
        let serving = tokio::spawn(async move {
            let mut visits = tokio::task::JoinSet::new();
            while let Ok((io, _)) = listener.accept().await {
                visits.spawn(state.clone().serve(io));
            }
        });
        Self { address, owner, seen, report, script, came, serving }
    }

    /// From now on it answers so.
    pub(crate) fn answers(&self, script: impl Fn(&str) -> Answer + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Arc::new(script);
    }

    /// From now on it says this of itself; `None`: nothing, and never ends saying so.
    pub(crate) fn reports(&self, report: Option<Value>) {
        *self.report.lock().unwrap() = report;
    }

    /// Stops the sidecar.
    pub(crate) async fn stop(&mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }

    /// Takes the requests received so far.
    pub(crate) fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// The next request.
    pub(crate) async fn next(&self) -> String {
        loop {
            let came = self.came.notified();
            if let Some(request) = self.seen.lock().unwrap().pop() {
                return request;
            }
            timeout(LONG, came).await.expect("a request");
        }
    }

    /// An event ID of a stream of its own.
    pub(crate) fn event_id(&self) -> String {
        event_id(self.owner)
    }

    /// The handle of that stream.
    pub(crate) fn handle(&self) -> String {
        handle(self.owner).as_str().to_owned()
    }

    /// A resume token for it.
    pub(crate) fn token(&self) -> String {
        ResumeToken::write(&handle(self.owner), &Secret::from_bytes([1; 16]))
    }
}

/// An event ID of a stream of that owner.
pub(crate) fn event_id(owner: Owner) -> String {
    format!("{}.7", handle(owner).as_str())
}

fn handle(owner: Owner) -> Handle {
    let keys = Keyring::new([3; 32], Vec::new());
    Handle::mint(&keys, StreamKind::Request, owner, StoreEpoch(9), StreamId::from_bytes([5; 12]), [].iter(), false)
}

/// Returns the status that a sidecar reports.
pub(crate) fn report(owner: Owner, store: &str, ready: bool) -> Value {
    json!({
        "service": "mcp-resume", "owner": owner.to_string(), "instance": format!("{:016x}", owner.0), "ready": ready,
        "draining": false, "store": {"kind": store, "shared": store == "redis", "epoch": "00000001"}, "openStreams": 0,
    })
}

#[derive(Clone)]
struct State {
    seen: Arc<Mutex<Vec<String>>>,
    report: Arc<Mutex<Option<Value>>>,
    script: Arc<Mutex<Arc<Script>>>,
    came: Arc<Notify>,
}

impl State {
    async fn serve(self, mut io: TcpStream) {
        while let Some(request) = read(&mut io).await {
            if request.starts_with("GET /.well-known/mcp-resume ") {
                let report = self.report.lock().unwrap().clone();
                let Some(report) = report else { return std::future::pending().await };
                if io.write_all(ok(&report.to_string()).as_bytes()).await.is_err() {
                    return;
                }
                continue;
            }
            let script = self.script.lock().unwrap().clone();
            let is_head = request.starts_with("HEAD ");
            let answer = script(&request);
            self.seen.lock().unwrap().push(request);
            self.came.notify_one();
            match answer {
                Answer::Whole(mut text) => {
                    if is_head && let Some(end) = text.find("\r\n\r\n") {
                        text.truncate(end + 4);
                    }
                    if io.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
                Answer::Begun(text) => {
                    let _ = io.write_all(text.as_bytes()).await;
                    return std::future::pending().await;
                }
                Answer::Nothing => return,
            }
        }
    }
}

/// A 200 with that body.
pub(crate) fn ok(body: &str) -> String {
    answer("200 OK", "", body)
}

/// An answer; `head` are more lines of the head, each with its end.
pub(crate) fn answer(status: &str, head: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// One message of HTTP/1.1: its head, and its body out of its chunks.
pub(crate) async fn read(io: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut text = Vec::new();
    let head = loop {
        if let Some(end) = find(&text, b"\r\n\r\n") {
            break end + 4;
        }
        more(io, &mut text).await?;
    };
    let lower = String::from_utf8_lossy(&text[..head]).to_ascii_lowercase();
    if lower.contains("transfer-encoding: chunked") {
        let body = loop {
            match chunks(&text[head..]) {
                Some(body) => break body,
                None => more(io, &mut text).await?,
            }
        };
        text.truncate(head);
        text.extend(body);
    } else {
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        while text.len() < head + length.unwrap_or(0) {
            more(io, &mut text).await?;
        }
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The data of chunks, once all of them are there.
fn chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let begin = find(rest, b"\r\n")? + 2;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..begin - 2]).ok()?, 16).ok()?;
        data.extend_from_slice(rest.get(begin..begin + length)?);
        rest = rest.get(begin + length + 2..)?;
        if length == 0 {
            return Some(data);
        }
    }
}

async fn more(io: &mut (impl AsyncRead + Unpin), text: &mut Vec<u8>) -> Option<()> {
    let read = timeout(LONG, io.read_buf(text)).await.expect("more, or the end").ok()?;
    (read > 0).then_some(())
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// A balancer that runs until the process ends.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// With settings as in the environment, less the prefix.
pub(crate) async fn balance(sidecars: &[&Sidecar], settings: &[(&str, &str)]) -> Running {
    let replicas: Vec<_> = sidecars.iter().map(|sidecar| format!("http://{}", sidecar.address)).collect();
    let env = settings.iter().map(|(key, value)| (format!("MCP_RESUME_{key}"), (*value).to_owned()));
    let flags =
        Flags { listen: Some("127.0.0.1:0".to_owned()), admin: Some("127.0.0.1:0".to_owned()), ..Flags::default() };
    let config = Balancing::load(None, env, flags, &replicas).unwrap();
    let balancer = Balancer::bind(config).await.unwrap();
    let running = Running { address: balancer.local_addr(), admin: balancer.admin_addr().unwrap() };
    tokio::spawn(balancer.run(1, std::future::pending()));
    running
}

impl Running {
    /// Sends a request on a connection of its own, and reads the answer whole.
    pub(crate) async fn ask(&self, request: &str) -> String {
        let mut io = self.send(request).await;
        read(&mut io).await.expect("an answer")
    }

    /// Sends a request.
    pub(crate) async fn send(&self, request: &str) -> TcpStream {
        let mut io = TcpStream::connect(self.address).await.unwrap();
        io.write_all(request.as_bytes()).await.unwrap();
        io
    }

    /// A page of the admin listener.
    pub(crate) async fn page(&self, path: &str) -> String {
        let mut io = TcpStream::connect(self.admin).await.unwrap();
        io.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        read(&mut io).await.expect("a page")
    }

    /// The value of a metric, by its name without what all of them begin with.
    pub(crate) async fn metric(&self, name: &str) -> usize {
        let page = self.page("/metrics").await;
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix("mcp_resume_balancer_")?.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap()
    }

    /// Waits until the sidecar is in that condition.
    pub(crate) async fn until(&self, sidecar: &Sidecar, condition: &str) {
        let looking = async {
            loop {
                let page = self.page("/replicas").await;
                let body = page.split("\r\n\r\n").nth(1).unwrap_or_default();
                let replicas: Vec<Value> = serde_json::from_str(body).unwrap();
                let is_so = |replica: &Value| {
                    replica["address"] == sidecar.address.to_string() && replica["condition"] == condition
                };
                if replicas.iter().any(is_so) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, looking).await.expect("the condition");
    }
}

/// A GET of the endpoint; `head` are more lines of the head.
pub(crate) fn get(target: &str, head: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{head}\r\n")
}

/// A POST of a message to the endpoint.
pub(crate) fn post(body: &str, head: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n{head}\r\n{body}",
        body.len()
    )
}

/// Returns a POST of `body` in one chunk.
pub(crate) fn post_chunked(body: &str) -> String {
    post_chunked_with(body, "")
}

/// Returns a POST of `body` in one chunk, with further header lines.
pub(crate) fn post_chunked_with(body: &str, head: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nTransfer-Encoding: chunked\r\n{head}\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    )
}

/// The value of a header, of a message.
pub(crate) fn header<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let head = message.split("\r\n\r\n").next()?;
    let line = head
        .split("\r\n")
        .find(|line| line.split_once(':').is_some_and(|(found, _)| found.eq_ignore_ascii_case(name)))?;
    line.split_once(':').map(|(_, value)| value.trim())
}
