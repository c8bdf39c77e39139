//! Connections that wait for their next request.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{serve, socket};
use crate::HEAD_TIMEOUT;
use crate::body::{BoxBody, Incoming, whole};
use crate::handler::{ClosedBy, ConnectionState, Handler, NewConnection, Peer, StopSignal};
use crate::prefixed_io::PrefixedIo;
use mcp_resume_base::clock;

const REQUEST: &str = "GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n";
/// Time after which hyper's buffers are gone.
/// Time of an idle connection.
const IDLE: Duration = Duration::from_secs(75);
const A_WHILE: Duration = Duration::from_secs(6);

/// Counts for one connection.
#[derive(Default)]
struct Counts {
    connected: AtomicUsize,
    served: AtomicUsize,
    ended: AtomicUsize,
    /// Ended connections that their clients closed.
    closed: AtomicUsize,
    /// Size of the buffer of the last read.
    read: AtomicUsize,
}

impl Counts {
    fn all(&self) -> [usize; 3] {
        [&self.connected, &self.served, &self.ended].map(|count| count.load(Ordering::Relaxed))
    }

    fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.read.load(Ordering::Relaxed) <= 4096
    }
}

struct State(Arc<Counts>);

impl ConnectionState for State {
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_deadline(&self, _: Instant) {}

    fn is_taken_over(&self) -> bool {
        false
    }

    fn ended(&self, by: ClosedBy) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        self.0.closed.fetch_add(usize::from(by == ClosedBy::Client), Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Counting(Arc<Counts>);

impl Handler for Counting {
    type Connection = State;

    fn connect(&self, _: Peer) -> State {
        self.0.connected.fetch_add(1, Ordering::Relaxed);
        State(self.0.clone())
    }

    async fn handle(self, _: Arc<State>, _: Request<Incoming>) -> Response<BoxBody> {
        self.0.served.fetch_add(1, Ordering::Relaxed);
        Response::new(whole(Bytes::from_static(b"body")))
    }
}

/// A pipe that notes the buffers that it is read into.
struct Watched(DuplexStream, Arc<Counts>);

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.1.read.store(buffer.remaining(), Ordering::Relaxed);
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

struct Served {
    client: DuplexStream,
    counts: Arc<Counts>,
    stop: watch::Sender<StopSignal>,
    task: JoinHandle<()>,
}

impl Served {
    fn begin() -> Self {
        Self::begin_with(IDLE)
    }

    /// Begins a connection that may be idle for this time.
    fn begin_with(idle: Duration) -> Self {
        let (client, far) = duplex(1024);
        let (stop, ending) = watch::channel(StopSignal::None);
        let counts = Arc::new(Counts::default());
        let peer = Peer { address: SocketAddr::from(([127, 0, 0, 1], 1)), scheme: "http", certificate: None };
        let (header_bytes, handler) = (65_536, Counting(counts.clone()));
        let new = NewConnection { peer, header_bytes, idle, handler, ending };
        let task = tokio::spawn(serve(PrefixedIo::new(Watched(far, counts.clone())), new));
        Self { client, counts, stop, task }
    }

    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.expect("room");
    }

    /// Reads a response, and returns it.
    async fn respond(&mut self) -> String {
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\nbody") {
            response.push(self.client.read_u8().await.expect("a response"));
        }
        assert!(response.starts_with(b"HTTP/1.1 200"));
        String::from_utf8(response).expect("text")
    }

    async fn ask(&mut self) {
        self.send(REQUEST).await;
        self.respond().await;
    }

    /// Waits until the server has closed the connection.
    async fn ends(&mut self) {
        assert_eq!(self.client.read(&mut [0]).await.expect("a pipe"), 0);
        (&mut self.task).await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_waits_gives_its_buffers_back_and_serves_the_next_request() {
    let mut served = Served::begin();
    for n in 1..4 {
        served.ask().await;
        assert!(!served.counts.is_idle());
        clock::sleep(A_WHILE).await;
        assert!(served.counts.is_idle());
        assert_eq!(served.counts.all(), [1, n, 0]);
    }
    // Both at once, the second in part.
    served.send(&format!("{REQUEST}{}", &REQUEST[..9])).await;
    served.respond().await;
    clock::sleep(A_WHILE).await;
    assert!(served.counts.is_idle());
    served.send(&REQUEST[9..]).await;
    served.respond().await;
    drop(served.client);
    served.task.await.expect("no panic");
    assert_eq!(served.counts.all(), [1, 5, 1]);
}

#[test]
fn the_io_of_a_connection_keeps_the_unread_bytes_and_not_their_buffer() {
    /// Buffer that is alive as long as another handle of its bytes sees it.
    struct Buffer(Arc<[u8; 3]>);

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice()
        }
    }

    let alive = Arc::new(*b"GET");
    let (socket, watch) = socket::share(PrefixedIo::new(tokio::io::empty()));
    drop(socket);
    let io = watch.into_io(Bytes::from_owner(Buffer(alive.clone()))).expect("the only handle");
    assert_eq!(io.prefix(), b"GET");
    assert_eq!(Arc::strong_count(&alive), 1, "the buffer is gone");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_an_idle_connection_has_ended_it() {
    let mut served = Served::begin();
    served.ask().await;
    clock::sleep(A_WHILE).await;
    drop(served.client);
    served.task.await.expect("no panic");
    assert_eq!((served.counts.all(), served.counts.closed()), ([1, 1, 1], 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_after_its_response_has_closed_the_connection() {
    let mut served = Served::begin();
    served.ask().await;
    drop(served.client);
    served.task.await.expect("no panic");
    assert_eq!((served.counts.all(), served.counts.closed()), ([1, 1, 1], 1));
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_when_the_server_stops() {
    for pause in [Duration::ZERO, A_WHILE] {
        for signal in [StopSignal::Leaving, StopSignal::Stopping] {
            let mut served = Served::begin();
            served.ask().await;
            clock::sleep(pause).await;
            let began = clock::now();
            served.stop.send(signal).expect("it waits for that");
            served.ends().await;
            assert_eq!((served.counts.all(), served.counts.closed(), clock::now()), ([1, 1, 1], 0, began));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_arrived_is_served_when_the_server_stops() {
    for pause in [Duration::ZERO, A_WHILE] {
        for signal in [StopSignal::Leaving, StopSignal::Stopping] {
            let mut served = Served::begin();
            served.ask().await;
            clock::sleep(pause).await;
            // The pipe has room for it, so the connection's task runs after both.
            served.send(REQUEST).await;
            served.stop.send(signal).expect("it waits for that");
            served.respond().await;
            served.ends().await;
            assert_eq!(served.counts.all(), [1, 2, 1]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_after_its_time_and_one_with_a_part_of_a_head_after_that_of_the_head() {
    const PART: &[&str] = &["GET /mcp", " HTTP/1.1\r\n", "Host: a\r\n"];
    let second = Duration::from_secs(1);
    for (idle, pause, pieces, ends) in [
        (IDLE, A_WHILE, &[][..], IDLE),
        (second, A_WHILE, &[], second),
        (HEAD_TIMEOUT * 10, A_WHILE, &[], HEAD_TIMEOUT * 10),
        (IDLE, A_WHILE, &["G"], A_WHILE + HEAD_TIMEOUT),
        (IDLE, A_WHILE, PART, A_WHILE + HEAD_TIMEOUT),
        (HEAD_TIMEOUT * 10, HEAD_TIMEOUT * 5, &["G"], HEAD_TIMEOUT * 6),
        // These bytes come before the connection counts as idle.
        (IDLE, second, PART, HEAD_TIMEOUT),
    ] {
        let mut served = Served::begin_with(idle);
        served.ask().await;
        let began = clock::now();
        for piece in pieces {
            clock::sleep(pause).await;
            served.send(piece).await;
        }
        served.ends().await;
        assert_eq!((served.counts.all(), clock::now() - began), ([1, 1, 0], ends), "{idle:?}, {pieces:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_late_in_an_idle_time_is_served() {
    let mut served = Served::begin();
    served.ask().await;
    clock::sleep(IDLE - Duration::from_secs(1)).await;
    served.ask().await;
    served.ends().await;
    assert_eq!(served.counts.all(), [1, 2, 0]);
}
