//! An MCP server that does exactly what a test says, byte by byte.
//!
//! Every request that reaches it becomes a [`Call`] in the test's hands; nothing is answered unless
//! the test answers it.

use super::wire::{Framing, Head};
use super::within;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio::task::JoinHandle;

/// The scripted server.
pub(crate) struct Upstream {
    addr: SocketAddr,
    calls: mpsc::UnboundedReceiver<Call>,
    sender: mpsc::UnboundedSender<Call>,
    accepting: Option<(Arc<Notify>, JoinHandle<()>)>,
    refusals: watch::Sender<usize>,
    /// While connections are refused: the port, so that no other test's listener gets it.
    reserved: Option<TcpSocket>,
    connections: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<Weak<Conn>>>>,
}

impl Upstream {
    pub(crate) async fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (sender, calls) = mpsc::unbounded_channel();
        let mut upstream = Upstream {
            addr,
            calls,
            sender,
            accepting: None,
            refusals: watch::channel(0).0,
            reserved: None,
            connections: Arc::default(),
            open: Arc::default(),
        };
        upstream.accept(listener);
        upstream
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// Returns the number of connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns the next request of any kind.
    pub(crate) async fn next(&mut self) -> Call {
        within("a request reaches the upstream", self.calls.recv()).await.expect("the upstream holds a sender itself")
    }

    /// The next request, however long it takes.
    pub(crate) async fn try_next(&mut self) -> Option<Call> {
        self.calls.recv().await
    }

    /// The next request, which must be a POST of this JSON-RPC method.
    pub(crate) async fn expect(&mut self, rpc: &str) -> Call {
        let call = self.next().await;
        assert_eq!(call.rpc_method(), rpc, "{} {}", call.method, call.target);
        call
    }

    /// Returns true if no request waits to be read.
    pub(crate) fn is_quiet(&self) -> bool {
        self.calls.is_empty()
    }

    /// Refuses new connections, and closes idle ones until the proxy has closed them too. Running
    /// calls live on.
    pub(crate) async fn refuse(&mut self) {
        if let Some((end, accepting)) = self.accepting.take() {
            // The runtime looks at its sockets before this continues.
            tokio::task::yield_now().await;
            end.notify_one();
            // Only once the task is gone is the listener closed.
            let _ = accepting.await;
            self.reserved = Some(reserved(self.addr));
        }
        self.refusals.send_modify(|n| *n += 1);
        for conn in self.open.lock().await.iter().filter_map(Weak::upgrade) {
            if !conn.busy.load(Ordering::SeqCst) {
                let _ = conn.closed.subscribe().wait_for(|closed| *closed).await;
            }
        }
    }

    /// Listens again on the same port.
    pub(crate) async fn listen_again(&mut self) {
        let socket = self.reserved.take().unwrap_or_else(|| reserved(self.addr));
        self.accept(socket.listen(1024).expect("a socket that is bound"));
    }

    /// Answers everything from now on with 404.
    pub(crate) fn answer_all(mut self) {
        let answering = async move {
            let upstream = &mut self;
            while let Some(call) = upstream.calls.recv().await {
                call.json(404, "{}").await;
            }
        };
        tokio::spawn(answering);
    }

    fn accept(&mut self, listener: TcpListener) {
        let sender = self.sender.clone();
        let refusals = self.refusals.subscribe();
        let connections = self.connections.clone();
        let open = self.open.clone();
        let end = Arc::new(Notify::new());
        let ended = end.clone();
        let accepting = async move {
            // Connections that the system has accepted come before the end: they would be reset.
            while let Some(Ok((stream, _))) = next_connection(&listener, &ended).await {
                connections.fetch_add(1, Ordering::SeqCst);
                let mut refusals = refusals.clone();
                refusals.mark_unchanged();
                let (conn, read) = Conn::new(stream);
                open.lock().await.push(Arc::downgrade(&conn));
                tokio::spawn(converse(conn, read, sender.clone(), refusals));
            }
        };
        self.accepting = Some((end, tokio::spawn(accepting)));
    }
}

/// Returns a socket that has the port of `addr` and refuses connections until it listens.
fn reserved(addr: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of the socket");
    socket.bind(addr).expect("the same port");
    socket
}

/// Returns the next connection, or `None` at the end.
async fn next_connection(listener: &TcpListener, end: &Notify) -> Option<std::io::Result<(TcpStream, SocketAddr)>> {
    tokio::select! {
        biased;
        accepted = listener.accept() => Some(accepted),
        () = end.notified() => None,
    }
}

/// State shared by a connection's reader and the call that is answered on it.
struct Conn {
    write: Mutex<Option<OwnedWriteHalf>>,
    closed: watch::Sender<bool>,
    hang_up: Notify,
    /// A request was handed out and not yet answered in full.
    busy: AtomicBool,
}

impl Conn {
    fn new(stream: TcpStream) -> (Arc<Conn>, OwnedReadHalf) {
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        let conn = Conn {
            write: Mutex::new(Some(write)),
            closed: watch::channel(false).0,
            hang_up: Notify::new(),
            busy: AtomicBool::new(false),
        };
        (Arc::new(conn), read)
    }
}

async fn converse(
    conn: Arc<Conn>,
    mut read: OwnedReadHalf,
    calls: mpsc::UnboundedSender<Call>,
    mut refusals: watch::Receiver<usize>,
) {
    let mut input = Vec::new();
    loop {
        tokio::select! {
            request = read_request(&mut read, &mut input) => {
                let Some((head, body)) = request else { break };
                conn.busy.store(true, Ordering::SeqCst);
                if calls.send(Call::new(head, body, conn.clone())).is_err() {
                    break;
                }
            }
            () = conn.hang_up.notified() => break,
            _ = refusals.changed() => {
                if !conn.busy.load(Ordering::SeqCst) {
                    conn.write.lock().await.take();
                    // Until then the proxy may still send a request on it.
                    let _ = tokio::io::copy(&mut read, &mut tokio::io::sink()).await;
                    break;
                }
            }
        }
    }
    drop(read);
    conn.closed.send_replace(true);
}

async fn read_request(read: &mut OwnedReadHalf, input: &mut Vec<u8>) -> Option<(Head, Vec<u8>)> {
    // Cancel-safe: everything read is in `input` and parsed only when whole.
    loop {
        let mut copy = input.clone();
        if let Some(head) = Head::take(&mut copy) {
            let mut framing = Framing::of_request(&head);
            let mut body = Vec::new();
            framing.decode(&mut copy, &mut body);
            if framing.done() {
                *input = copy;
                return Some((head, body));
            }
        }
        match read.read_buf(input).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// One request that reached the upstream, and the connection to answer it on.
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    conn: Arc<Conn>,
}

impl Call {
    fn new(head: Head, body: Vec<u8>, conn: Arc<Conn>) -> Call {
        let mut parts = head.first.split(' ').map(str::to_owned);
        Call { method: parts.next().unwrap_or_default(), target: parts.next().unwrap_or_default(), head, body, conn }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.get(name)
    }

    pub(crate) fn json_body(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the request's body is JSON")
    }

    /// The JSON-RPC method, or what stands in its place ("GET", "response" …).
    pub(crate) fn rpc_method(&self) -> String {
        if self.method != "POST" {
            return self.method.clone();
        }
        let Ok(body) = serde_json::from_slice::<Value>(&self.body) else {
            return "not JSON".to_owned();
        };
        match &body {
            Value::Array(_) => "batch".to_owned(),
            _ => body["method"].as_str().unwrap_or("response").to_owned(),
        }
    }

    /// Answers with a JSON body of this status.
    pub(crate) async fn json(self, status: u16, body: impl AsRef<str>) {
        self.json_with(status, "", body).await;
    }

    /// Answers with JSON and further header lines, each ended by CRLF.
    pub(crate) async fn json_with(self, status: u16, extra: &str, body: impl AsRef<str>) {
        let body = body.as_ref();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}content-length: {}\r\n\r\n",
            body.len()
        );
        self.whole(format!("{head}{body}")).await;
    }

    /// Answers with a status and no body.
    pub(crate) async fn status(self, status: u16) {
        self.status_with(status, "").await;
    }

    pub(crate) async fn status_with(self, status: u16, extra: &str) {
        let length = if status == 204 { "" } else { "content-length: 0\r\n" };
        self.whole(format!("HTTP/1.1 {status} X\r\n{extra}{length}\r\n")).await;
    }

    /// Sends a whole response; the connection is idle afterwards.
    pub(crate) async fn whole(self, bytes: impl AsRef<[u8]>) {
        // The connection is free before the last byte is out: a peer that has read it may reuse the
        // connection.
        self.conn.busy.store(false, Ordering::SeqCst);
        self.write(bytes).await;
    }

    /// Begins an SSE answer.
    pub(crate) async fn sse(self) -> Sse {
        self.sse_with("").await
    }

    pub(crate) async fn sse_with(self, extra: &str) -> Sse {
        self.write(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{extra}transfer-encoding: chunked\r\n\r\n"
        ))
        .await;
        Sse { call: self }
    }

    /// Sends bytes as they are; the call stays open.
    pub(crate) async fn write(&self, bytes: impl AsRef<[u8]>) {
        if let Some(write) = self.conn.write.lock().await.as_mut() {
            // A proxy that has hung up is seen by `closed`.
            let _ = write.write_all(bytes.as_ref()).await;
        }
    }

    /// Returns true if the proxy has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        *self.conn.closed.borrow()
    }

    /// Waits until the proxy closes the connection: how a call is given up.
    pub(crate) async fn closed(&self) {
        let mut closed = self.conn.closed.subscribe();
        within("the proxy closes the upstream call", closed.wait_for(|closed| *closed))
            .await
            .expect("the sender is held here");
    }

    /// Breaks the connection with a TCP reset.
    pub(crate) async fn reset(self) {
        if let Some(write) = self.conn.write.lock().await.take() {
            write.as_ref().set_zero_linger().expect("an open socket");
            write.forget();
        }
        self.gone().await;
    }

    /// Ends the connection with a FIN, against the framing of the response if it is incomplete.
    pub(crate) async fn fin(self) {
        self.conn.write.lock().await.take();
        self.gone().await;
    }

    async fn gone(&self) {
        self.conn.hang_up.notify_one();
        let mut closed = self.conn.closed.subscribe();
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

/// An SSE answer under way.
pub(crate) struct Sse {
    call: Call,
}

impl Sse {
    /// Sends one event of this payload, named `message` as SDK servers do.
    pub(crate) async fn event(&self, data: impl AsRef<str>) {
        self.bytes(format!("event: message\ndata: {}\n\n", data.as_ref())).await;
    }

    /// Sends one event with an upstream id.
    pub(crate) async fn event_id(&self, id: &str, data: impl AsRef<str>) {
        self.bytes(format!("event: message\nid: {id}\ndata: {}\n\n", data.as_ref())).await;
    }

    /// Sends these bytes of the body as one chunk.
    pub(crate) async fn bytes(&self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.call.write(chunk).await;
    }

    /// Ends the response; the connection is idle afterwards.
    pub(crate) async fn end(self) {
        self.call.whole("0\r\n\r\n").await;
    }

    /// The last event, then the end.
    pub(crate) async fn finish(self, data: impl AsRef<str>) {
        self.event(data).await;
        self.end().await;
    }

    pub(crate) async fn reset(self) {
        self.call.reset().await;
    }

    pub(crate) async fn fin(self) {
        self.call.fin().await;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.call.is_closed()
    }

    pub(crate) async fn closed(&self) {
        self.call.closed().await;
    }
}
