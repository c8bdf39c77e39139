//! Writes of one call on each side, counted by pipes on a paused clock.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use super::*;

/// End of a pipe that counts its writes.
struct Counting {
    io: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl Counting {
    fn note(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(_)) = written {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AsyncRead for Counting {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Accepts one connection.
struct Once(Option<Counting>);

impl Accept for Once {
    type Io = Counting;

    async fn accept(&mut self) -> io::Result<(Counting, SocketAddr)> {
        match self.0.take() {
            Some(io) => Ok((io, SocketAddr::from(([192, 0, 2, 1], 4000)))),
            None => pending().await,
        }
    }
}

struct CountingDial(mpsc::UnboundedSender<DuplexStream>, Arc<AtomicUsize>);

impl Dial for CountingDial {
    fn dial(&self, _: &Uri) -> DialFuture {
        let (io, far) = duplex(PIPE);
        let sent = self.0.send(far).map_err(|_| io::ErrorKind::ConnectionRefused.into());
        let io = Counting { io, writes: self.1.clone() };
        Box::pin(async move { sent.map(|()| Box::new(io) as Box<dyn Wire>) })
    }
}

/// One call that has reached the server.
struct OneCall {
    client: Pipe,
    server: Pipe,
    to_client: Arc<AtomicUsize>,
    to_server: Arc<AtomicUsize>,
}

impl OneCall {
    async fn begin() -> Self {
        let (to_client, to_server) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut farm = Farm::new();
        let config = Config::for_upstream("http://upstream.test:9/mcp").unwrap();
        let dial = Arc::new(CountingDial(farm.dial.clone(), to_server.clone()));
        let (near, io) = duplex(PIPE);
        let connection = Once(Some(Counting { io, writes: to_client.clone() }));
        tokio::spawn(Sidecar::new(config, dial).unwrap().run(connection, pending()));
        let mut client = Pipe::new(near);
        client.write(&post(1, "")).await;
        Self { client, server: farm.call().await, to_client, to_server }
    }

    fn writes_to_client(&self) -> usize {
        self.to_client.load(Ordering::Relaxed)
    }
}

/// Lets all tasks run that are ready, while no time passes.
async fn run_ready() {
    for _ in 0..20 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_with_one_event_takes_one_write_on_each_side() {
    for is_apart in [false, true] {
        let mut call = OneCall::begin().await;
        call.server.begin_sse().await;
        if is_apart {
            run_ready().await;
        }
        call.server.event(RESULT).await;
        let OneCall { client, server, to_client, to_server } = call;
        drop(server);
        let seen = client.answer("\r\n0\r\n\r\n").await;
        assert!(seen.contains(RESULT) && seen.matches("id: ").count() == 2, "{seen}");
        assert_eq!(to_client.load(Ordering::Relaxed), 1, "head, priming event, event and end; apart: {is_apart}");
        assert_eq!(to_server.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_is_held_for_an_event_for_a_moment_alone() {
    let mut call = OneCall::begin().await;
    call.server.begin_sse().await;
    run_ready().await;
    assert_eq!(call.writes_to_client(), 0);
    let begun = clock::now();
    call.client.until("retry: ").await;
    // The runtime's timer counts in milliseconds, and begins a new one.
    assert!(clock::now() - begun <= Duration::from_millis(2), "{:?}", clock::now() - begun);
    assert_eq!(call.writes_to_client(), 1);
    call.server.event(PROGRESS).await;
    run_ready().await;
    assert_eq!(call.writes_to_client(), 2, "later events wait for nothing");
    call.client.until(PROGRESS).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_not_the_last_is_written_at_once() {
    let mut call = OneCall::begin().await;
    call.server.begin_sse().await;
    run_ready().await;
    call.server.event(PROGRESS).await;
    run_ready().await;
    assert_eq!(call.writes_to_client(), 1);
    call.client.until(PROGRESS).await;
    assert!(call.client.seen.starts_with("HTTP/1.1 200 OK") && call.client.seen.matches("id: ").count() == 2);
}
