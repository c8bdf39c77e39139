//! HTTP/2 downstream: how it is recognised, and what it does differently.
//!
//! A connection carries many requests, so a client that takes nothing of a response loses that response alone, where it can tell so from
//! the end: its stream is reset. A stream that is reset by the client is one that left that response. Requests and responses pass as
//! HTTP/1.1 has them, so that nothing behind this sees a difference but the version.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{COOKIE, HOST};
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::debug;

use super::accept::{HEAD_TIMEOUT, Handle, Visit};
use super::stall::{SEND_TIMEOUT, TAKEN_OVER_TIMEOUT};
use crate::body::{BoxBody, BoxError};
use crate::clock::{self, Alarm};
use crate::delivery::Receipts;
use crate::protocol::headers;
use crate::sync;

/// What every HTTP/2 connection begins with ([RFC 9113 §3.4]).
///
/// [RFC 9113 §3.4]: https://www.rfc-editor.org/rfc/rfc9113#section-3.4
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SNIFF_STEP: usize = 4 * 1024;

/// A connection is asked so often whether its client is there, and closed when no answer comes in the second time.
const PING_AFTER: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Requests at a time on one connection. Clients may count on no fewer (RFC 9113 §6.5.2).
const MAX_STREAMS: u32 = 100;
/// What a client may send of one body, and of all, before it is read.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// What is taken of a response before the client has made room for it: the less, the more "ended" means.
const SEND_BUFFER: usize = 64 * 1024;
/// A response that waits for room gets so long at most, however slowly the others of its connection go on.
const SLOW_TIMEOUT: Duration = Duration::from_secs(600);
/// A piece that waited for so long shows that its client makes room. One that goes out at once shows that there was room.
const WAITED: Duration = Duration::from_millis(10);
/// Streams that were reset before anybody looked at them; more, and the connection is closed.
const MAX_RESETS_UNSEEN: usize = 20;
/// Streams that we had to reset for the client's mistakes; more, and the connection is closed.
const MAX_MISTAKES: usize = 100;

/// Reads until it is certain whether a client begins HTTP/2; what was read, and whether it does.
pub(super) async fn sniff<Io: AsyncRead + Unpin>(io: &mut Io) -> io::Result<(BytesMut, bool)> {
    let mut ahead = BytesMut::new();
    while ahead.len() < PREFACE.len() && PREFACE.starts_with(&ahead) {
        if read_step(io, &mut ahead).await? == 0 {
            break;
        }
    }
    let is_http2 = ahead.starts_with(PREFACE);
    Ok((ahead, is_http2))
}

/// The room to read into is on the stack of the poll alone: most connections wait here for a moment only.
async fn read_step<Io: AsyncRead + Unpin>(io: &mut Io, ahead: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut step = [0; SNIFF_STEP];
        let mut buffer = ReadBuf::new(&mut step);
        ready!(Pin::new(&mut *io).poll_read(cx, &mut buffer))?;
        ahead.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    })
    .await
}

/// Serves one connection, of which `ahead` was read before.
pub(super) async fn serve<Io, H, F>(io: Io, ahead: BytesMut, visit: Visit<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handle<F>,
    F: Future<Output = Response<BoxBody>> + Send + 'static,
{
    let header_bytes = visit.header_bytes;
    let (answer, mut settling, stop) = visit.begin();
    let requests = Arc::new(Requests::default());
    let tasks = Tasks { requests: requests.clone(), receipts: settling.receipts().clone() };
    let begun = requests.clone();
    let service = service_fn(move |request| {
        let running = Running::begin(&begun);
        let answer = answer(as_http1(request));
        async move { Ok::<_, Infallible>(as_http2(answer.await, running)) }
    });
    let mut hyper = pin!(
        http2::Builder::new(tasks)
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(MAX_RESETS_UNSEEN)
            .max_local_error_reset_streams(MAX_MISTAKES)
            .serve_connection(TokioIo::new(Rewound { ahead, io }), service)
    );
    let mut stop = pin!(stop);
    let mut idle = Alarm::new();
    let mut stalled = Alarm::new();
    let mut is_stopping = false;
    let ended = poll_fn(|cx| {
        requests.wake_when_one_ends(cx);
        idle.set(requests.idle_since().map(|since| since + HEAD_TIMEOUT));
        let mut is_to_stop = || requests.is_leaving() || stop.as_mut().poll(cx).is_ready() || idle.poll(cx).is_ready();
        if !is_stopping && is_to_stop() {
            is_stopping = true;
            hyper.as_mut().graceful_shutdown();
        }
        let ended = Pin::new(&mut hyper).poll(cx);
        stalled.set(requests.ends_at(is_stopping));
        if ended.is_pending() && stalled.poll(cx).is_ready() {
            debug!("connection ended: its client takes nothing");
            return Poll::Ready(Ok(()));
        }
        settling.poll(cx);
        ended
    })
    .await;
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

/// The `:authority` as `Host`, which it takes the place of (RFC 9113 §8.3.1), and one cookie header (§8.2.3).
fn as_http1<B>(mut request: Request<B>) -> Request<B> {
    let authority = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let headers = request.headers_mut();
    if let Some(host) = authority {
        headers.insert(HOST, host);
    }
    let cookies: Vec<_> = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, cookie);
    }
    request
}

/// Without what HTTP/2 does not know: `Connection` and all that goes with it.
fn as_http2(mut response: Response<BoxBody>, mut running: Running) -> Response<BoxBody> {
    headers::remove_hop_by_hop(response.headers_mut());
    running.can_be_cut = headers::is_sse(response.headers()) || headers::is_json(response.headers());
    response.map(|body| Held { body, running }.boxed_unsync())
}

tokio::task_local! {
    /// The response that the task writes, where its client has made no room for it.
    static BLOCKED: Cell<Option<Blocked>>;
}

#[derive(Clone, Copy)]
struct Blocked {
    since: Instant,
    /// The reset that ends it, `CANCEL`, is an end like any other to some clients (those on hyper). None takes an event or a JSON text for
    /// whole that was cut short.
    can_be_cut: bool,
}

/// Runs each response of a connection in a task of its own.
#[derive(Clone)]
struct Tasks {
    requests: Arc<Requests>,
    receipts: Arc<Receipts>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, response: F) {
        // Boxed: what a block captures and then moves would have its place twice.
        let response = Watched { response: Box::pin(response), tasks: self.clone(), alarm: Alarm::new() };
        tokio::spawn(BLOCKED.scope(Cell::new(None), response));
    }
}

/// A response with an eye on its client. Ended early, hyper's part in it is dropped, which resets its stream and frees what was taken of
/// its body.
struct Watched<F> {
    response: Pin<Box<F>>,
    tasks: Tasks,
    alarm: Alarm,
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.response.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match BLOCKED.with(Cell::get) {
            Some(blocked) => self.poll_stalled(cx, blocked),
            None => Poll::Pending,
        }
    }
}

impl<F> Watched<F> {
    /// Ready when the response is to end.
    fn poll_stalled(&mut self, cx: &mut Context<'_>, blocked: Blocked) -> Poll<()> {
        loop {
            let now = clock::now();
            let is_overdue = self.tasks.requests.patience(blocked.since) <= now;
            if blocked.can_be_cut && (is_overdue || self.is_taken_over(blocked.since, now)) {
                debug!("a response ends of which its client takes nothing");
                return Poll::Ready(());
            }
            if is_overdue {
                self.tasks.requests.leave(blocked.since, now);
            }
            self.alarm.set(Some(now + TAKEN_OVER_TIMEOUT));
            if self.alarm.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn is_taken_over(&self, blocked_since: Instant, now: Instant) -> bool {
        blocked_since + TAKEN_OVER_TIMEOUT <= now && self.tasks.receipts.is_taken_over()
    }
}

/// The requests of a connection that are being answered.
struct Requests(Mutex<Counted>);

struct Counted {
    running: usize,
    /// When the last one ended.
    ended_at: Instant,
    /// Responses of which a piece waits for room.
    blocked: usize,
    /// Those of them that cannot be cut.
    blocked_whole: usize,
    /// When the last of them was blocked.
    blocked_at: Instant,
    /// When one that was blocked went on.
    went_on_at: Instant,
    /// The client is told to ask for no more on this connection.
    is_leaving: bool,
    /// The connection ends for the sake of one response.
    is_given_up: bool,
    /// The connection's own.
    waker: Option<Waker>,
}

impl Default for Requests {
    fn default() -> Self {
        let now = clock::now();
        Self(Mutex::new(Counted {
            running: 0,
            ended_at: now,
            blocked: 0,
            blocked_whole: 0,
            blocked_at: now,
            went_on_at: now,
            is_leaving: false,
            is_given_up: false,
            waker: None,
        }))
    }
}

impl Requests {
    fn idle_since(&self) -> Option<Instant> {
        let counted = self.lock();
        (counted.running == 0).then_some(counted.ended_at)
    }

    fn is_leaving(&self) -> bool {
        self.lock().is_leaving
    }

    /// Returns when the connection is to end whatever is left on it: one of its responses is given up; or none of them can go on, and one
    /// is not to be cut; or, in a connection that `is_stopping`, all ended long ago and the client does not take their last pieces.
    fn ends_at(&self, is_stopping: bool) -> Option<Instant> {
        let counted = self.lock();
        if counted.is_given_up {
            return Some(counted.blocked_at);
        }
        if counted.running == 0 {
            return is_stopping.then(|| counted.ended_at + HEAD_TIMEOUT + SEND_TIMEOUT);
        }
        let is_stalled = counted.blocked_whole > 0 && counted.blocked == counted.running;
        is_stalled.then(|| counted.blocked_at.max(counted.ended_at) + SEND_TIMEOUT)
    }

    /// Returns until when a response may be blocked that has been `since` then. Over a slow network all that a client reads is blocked
    /// most of the time.
    fn patience(&self, since: Instant) -> Instant {
        (self.lock().went_on_at.max(since) + SEND_TIMEOUT).min(since + SLOW_TIMEOUT)
    }

    /// A response that cannot be cut has been blocked `since` then, longer than it may. The others are not to suffer for it, for a while.
    fn leave(&self, since: Instant, now: Instant) {
        let mut counted = self.lock();
        counted.is_leaving = true;
        counted.is_given_up |= since + SLOW_TIMEOUT <= now;
        let waker = counted.waker.take();
        drop(counted);
        waker.into_iter().for_each(Waker::wake);
    }

    fn wake_when_one_ends(&self, cx: &Context<'_>) {
        let mut counted = self.lock();
        if !counted.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            counted.waker = Some(cx.waker().clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        sync::lock(&self.0)
    }
}

/// One of them. Its end wakes the connection, which has no other way to know of a receipt that begins to settle.
struct Running {
    requests: Arc<Requests>,
    can_be_cut: bool,
    blocked_since: Option<Instant>,
}

impl Running {
    fn begin(requests: &Arc<Requests>) -> Self {
        requests.lock().running += 1;
        Self { requests: requests.clone(), can_be_cut: false, blocked_since: None }
    }

    /// A piece is handed to hyper, which waits for room for it.
    fn note_blocked(&mut self) {
        let since = clock::now();
        self.blocked_since = Some(since);
        let blocked = Blocked { since, can_be_cut: self.can_be_cut };
        let _ = BLOCKED.try_with(|cell| cell.set(Some(blocked)));
        let mut counted = self.requests.lock();
        counted.blocked += 1;
        counted.blocked_whole += usize::from(!self.can_be_cut);
        counted.blocked_at = since;
    }

    /// There is room for the piece before.
    fn note_going_on(&mut self) {
        let now = clock::now();
        if self.note_unblocked().is_some_and(|since| since + WAITED <= now) {
            self.requests.lock().went_on_at = now;
        }
    }

    /// Returns since when it was blocked.
    fn note_unblocked(&mut self) -> Option<Instant> {
        let since = self.blocked_since.take()?;
        let _ = BLOCKED.try_with(|cell| cell.set(None));
        let mut counted = self.requests.lock();
        counted.blocked -= 1;
        counted.blocked_whole -= usize::from(!self.can_be_cut);
        Some(since)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It did not go on.
        self.note_unblocked();
        let mut counted = self.requests.lock();
        counted.running -= 1;
        counted.ended_at = clock::now();
        let waker = counted.waker.take();
        drop(counted);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A response's body with its request.
struct Held {
    // Dropped in this order: what the body leaves behind is there when the connection wakes.
    body: BoxBody,
    running: Running,
}

impl Body for Held {
    type Data = Bytes;
    type Error = BoxError;

    /// hyper asks for a piece as soon as the client has room for the one before, and keeps it until there is room for it.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.running.note_going_on();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(Some(Ok(_)))) {
            self.running.note_blocked();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket of which something was read.
struct Rewound<Io> {
    ahead: BytesMut,
    io: Io,
}

impl<Io: AsyncRead + Unpin> AsyncRead for Rewound<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let taken = buffer.remaining().min(self.ahead.len());
        buffer.put_slice(&self.ahead.split_to(taken));
        if self.ahead.is_empty() {
            self.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Rewound<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Uri;
    use http_body_util::Full;
    use hyper::client::conn::http2::{SendRequest, handshake};
    use hyper_util::rt::TokioExecutor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::watch;

    use super::*;
    use crate::body::Incoming;
    use crate::body::whole;
    use crate::server::accept::Ending;

    /// A SETTINGS frame without settings.
    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

    /// Serves the other end of a pipe; every request is answered after `takes`.
    fn served(takes: Duration) -> (DuplexStream, watch::Sender<Ending>) {
        served_by(move |_, _| async move {
            clock::sleep(takes).await;
            Response::new(whole(Bytes::from_static(b"done")))
        })
    }

    fn served_by<H, F>(handle: H) -> (DuplexStream, watch::Sender<Ending>)
    where
        H: Handle<F>,
        F: Future<Output = Response<BoxBody>> + Send + 'static,
    {
        let (near, far) = duplex(64 * 1024);
        let (stop, stopping) = watch::channel(Ending::None);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        tokio::spawn(serve(
            far,
            BytesMut::new(),
            Visit {
                peer,
                scheme: "http",
                certificate: None,
                trust: Default::default(),
                header_bytes: 65_536,
                handle,
                stopping,
            },
        ));
        (near, stop)
    }

    async fn until_closed(mut pipe: DuplexStream) -> Duration {
        let begin = clock::now();
        let mut rest = Vec::new();
        pipe.read_to_end(&mut rest).await.expect("a pipe that ends");
        clock::now() - begin
    }

    /// The same of a client that answers every PING, and does nothing else.
    async fn answering_pings(mut pipe: DuplexStream) -> Duration {
        let begin = clock::now();
        let mut head = [0; 9];
        while pipe.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut frame = vec![0; usize::try_from(length).expect("a short frame")];
            if pipe.read_exact(&mut frame).await.is_err() {
                break;
            }
            if (head[3], head[4]) == (6, 0) {
                head[4] = 1;
                let _ = pipe.write_all(&[&head[..], &frame].concat()).await;
            }
        }
        clock::now() - begin
    }

    /// A client that answers every PING, and when its connection ended.
    async fn speaking(pipe: DuplexStream) -> (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<Instant>) {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(pipe)).await.expect("HTTP/2");
        let ended = tokio::spawn(async {
            drop(connection.await);
            clock::now()
        });
        (sender, ended)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_answers_no_ping_is_gone() {
        let (mut pipe, _stop) = served(Duration::ZERO);
        pipe.write_all(&[PREFACE, SETTINGS].concat()).await.expect("room");
        let took = until_closed(pipe).await;
        assert!(took >= PING_TIMEOUT && took <= PING_AFTER + PING_TIMEOUT + Duration::from_secs(1), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_is_closed() {
        let (pipe, _stop) = served(Duration::ZERO);
        let begin = clock::now();
        let (_sender, ended) = speaking(pipe).await;
        let took = ended.await.expect("it ends well") - begin;
        assert!(took >= HEAD_TIMEOUT && took < HEAD_TIMEOUT + Duration::from_secs(1), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_request_stays_as_long_as_that_takes() {
        let takes = HEAD_TIMEOUT * 5;
        let (pipe, _stop) = served(takes);
        let begin = clock::now();
        let (mut sender, ended) = speaking(pipe).await;
        let request = Request::new(Full::default());
        let (mut head, body) = request.into_parts();
        head.uri = Uri::from_static("http://h/");
        let response = sender.send_request(Request::from_parts(head, body)).await.expect("an answer");
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "done");
        assert!(clock::now() - begin >= takes);
        let took = ended.await.expect("it ends well") - begin;
        assert!(took >= takes + HEAD_TIMEOUT && took < takes + HEAD_TIMEOUT + Duration::from_secs(1), "{took:?}");
    }

    struct Endless;

    impl Body for Endless {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16 * 1024])))))
        }
    }

    /// Serves a response whose body never runs out of pieces.
    fn served_endless_bodies() -> (DuplexStream, watch::Sender<Ending>) {
        served_by(|_, _| async { Response::new(Endless.boxed_unsync()) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_of_its_responses_is_gone() {
        let (pipe, _stop) = served_endless_bodies();
        let (mut sender, ended) = speaking(pipe).await;
        let begin = clock::now();
        let mut responses = Vec::new();
        for _ in 0..2 {
            let request = Request::get("http://h/").body(Full::default()).expect("a request");
            responses.push(sender.send_request(request).await.expect("an answer"));
        }
        let ended = tokio::time::timeout(SEND_TIMEOUT * 2, ended).await.expect("it ends in time");
        let took = ended.expect("it ends well") - begin;
        assert!(took >= SEND_TIMEOUT && took < SEND_TIMEOUT + Duration::from_secs(2), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_read_does_not_end_another_that_is() {
        let (pipe, _stop) = served_endless_bodies();
        let (mut sender, ended) = speaking(pipe).await;
        let request = || Request::get("http://h/").body(Full::<Bytes>::default()).expect("a request");
        let _unread = sender.send_request(request()).await.expect("an answer");
        let mut read = sender.send_request(request()).await.expect("an answer").into_body();
        for _ in 0..SEND_TIMEOUT.as_secs() * 3 {
            tokio::time::advance(Duration::from_secs(1)).await;
            read.frame().await.expect("it goes on").expect("it goes on");
        }
        assert!(!ended.is_finished());
    }

    /// Counts the bodies that were dropped.
    struct Dropped(Arc<AtomicUsize>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An event stream: endless for a path, silent for `/`.
    struct Events {
        is_endless: bool,
        _dropped: Dropped,
    }

    impl Body for Events {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            match self.is_endless {
                true => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16 * 1024]))))),
                false => Poll::Pending,
            }
        }
    }

    fn served_events(dropped: &Arc<AtomicUsize>) -> (DuplexStream, watch::Sender<Ending>) {
        let dropped = dropped.clone();
        served_by(move |_, request: Request<Incoming>| {
            let (is_endless, _dropped) = (request.uri().path() != "/", Dropped(dropped.clone()));
            async move {
                let response = Response::builder().header("content-type", "text/event-stream");
                response.body(Events { is_endless, _dropped }.boxed_unsync()).expect("a response")
            }
        })
    }

    fn request_for(uri: &'static str) -> Request<Full<Bytes>> {
        Request::get(uri).body(Full::default()).expect("a request")
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_of_which_nothing_is_taken_ends_alone() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (pipe, _stop) = served_events(&dropped);
        let (mut sender, ended) = speaking(pipe).await;
        let silent = sender.send_request(request_for("http://h/")).await.expect("an answer");
        let begin = clock::now();
        let mut unread = Vec::new();
        for _ in 0..2 {
            unread.push(sender.send_request(request_for("http://h/endless")).await.expect("an answer"));
        }
        while dropped.load(Ordering::Relaxed) < 2 {
            clock::sleep(Duration::from_millis(100)).await;
            let took = clock::now() - begin;
            assert!(took < SEND_TIMEOUT + Duration::from_secs(2), "{dropped:?} after {took:?}");
        }
        assert!(clock::now() - begin >= SEND_TIMEOUT);
        // The others go on, for as long as they like.
        clock::sleep(SLOW_TIMEOUT * 2).await;
        assert_eq!((dropped.load(Ordering::Relaxed), ended.is_finished()), (2, false));
        sender.send_request(request_for("http://h/")).await.expect("the connection takes requests");
        drop(silent);
    }

    #[tokio::test(start_paused = true)]
    async fn responses_that_share_a_slow_connection_wait_for_each_other() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (pipe, _stop) = served_events(&dropped);
        let (mut sender, _ended) = speaking(pipe).await;
        let _unread = sender.send_request(request_for("http://h/endless")).await.expect("an answer");
        let mut read = sender.send_request(request_for("http://h/endless")).await.expect("an answer").into_body();
        let begin = clock::now();
        while dropped.load(Ordering::Relaxed) == 0 {
            clock::sleep(Duration::from_secs(1)).await;
            read.frame().await.expect("it goes on").expect("it goes on");
        }
        let took = clock::now() - begin;
        assert!(took >= SLOW_TIMEOUT && took < SLOW_TIMEOUT + Duration::from_secs(3), "{took:?}");
        read.frame().await.expect("it goes on").expect("it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_must_not_be_cut_ends_its_connection_in_the_end() {
        let (pipe, _stop) = served_by(|_, request: Request<Incoming>| async move {
            match request.uri().path() {
                "/" => std::future::pending().await,
                _ => Response::new(Endless.boxed_unsync()),
            }
        });
        let (mut sender, _ended) = speaking(pipe).await;
        let begin = clock::now();
        let waiting = tokio::spawn(sender.send_request(request_for("http://h/")));
        let _unread = sender.send_request(request_for("http://h/endless")).await.expect("an answer");
        clock::sleep_until(begin + SEND_TIMEOUT + Duration::from_secs(3)).await;
        let refused = sender.send_request(request_for("http://h/endless")).await;
        assert!(refused.is_err(), "the client is told to ask elsewhere");
        assert!(waiting.await.expect("no panic").is_err(), "it breaks with the connection");
        let took = clock::now() - begin;
        assert!(took >= SLOW_TIMEOUT && took < SLOW_TIMEOUT + Duration::from_secs(3), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn last_pieces_that_are_not_taken_do_not_keep_a_connection() {
        for window in [0, 1] {
            let (mut pipe, _stop) = served(Duration::ZERO);
            // SETTINGS_INITIAL_WINDOW_SIZE: of each response the client takes so many bytes.
            let settings = [b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0", &[window][..]].concat();
            // GET / over http, for the authority "h".
            let request = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x41\x01h";
            pipe.write_all(&[PREFACE, &settings, request].concat()).await.expect("room");
            let took = tokio::time::timeout(SLOW_TIMEOUT, answering_pings(pipe)).await.expect("it ends in time");
            let latest = SEND_TIMEOUT + HEAD_TIMEOUT + Duration::from_secs(2);
            assert!(took >= SEND_TIMEOUT && took < latest, "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_begins_otherwise_is_no_http2_and_nothing_of_it_is_lost() {
        for (sent, expected) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], false),
            (b"PRI * HTTP/1.1\r\n\r\n", false),
            (b"PR", false),
            (b"", false),
            (PREFACE, true),
            (&[PREFACE, SETTINGS].concat(), true),
        ] {
            for piece in 1..=sent.len().max(1) {
                let (mut near, mut far) = duplex(piece);
                let sent = sent.to_vec();
                let all = sent.clone();
                let sending = tokio::spawn(async move { near.write_all(&sent).await });
                let (mut ahead, is_http2) = sniff(&mut far).await.expect("a pipe");
                assert_eq!(is_http2, expected, "{all:?} by {piece}");
                let mut rest = Vec::new();
                far.read_to_end(&mut rest).await.expect("a pipe");
                ahead.extend_from_slice(&rest);
                assert_eq!(ahead, all, "by {piece}");
                sending.await.expect("no panic").expect("a pipe");
            }
        }
    }

    #[test]
    fn host_is_the_authority_and_cookies_are_one() {
        let request = Request::get("https://a.example:8443/x")
            .header(HOST, "b.example")
            .header(COOKIE, "a=1")
            .header(COOKIE, "b=2; c=3")
            .body(())
            .expect("a request");
        let headers = as_http1(request).into_parts().0.headers;
        assert_eq!(headers[HOST], "a.example:8443");
        assert_eq!(headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
    }
}
