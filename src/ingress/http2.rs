//! HTTP/2 downstream: how it is recognised, and what it does differently.
//!
//! A connection carries many requests, so nothing here ends one for the sake of a single response: a stream that is reset is a
//! client that left that response. Requests and responses pass as HTTP/1.1 has them, so that nothing behind this sees a
//! difference but the version.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{COOKIE, HOST};
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::debug;

use super::serve::{HEAD_TIMEOUT, Handle, Visit};
use super::stall::SEND_TIMEOUT;
use crate::clock::{self, Alarm};
use crate::event_log::{BoxBody, BoxError};
use crate::protocol::headers;

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
    let begun = requests.clone();
    let service = service_fn(move |request| {
        let running = Running::begin(&begun);
        let answer = answer(as_http1(request));
        async move { Ok::<_, Infallible>(as_http2(answer.await, running)) }
    });
    let mut hyper = pin!(
        http2::Builder::new(TokioExecutor::new())
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
        if !is_stopping && (stop.as_mut().poll(cx).is_ready() || idle.poll(cx).is_ready()) {
            is_stopping = true;
            hyper.as_mut().graceful_shutdown();
        }
        let ended = Pin::new(&mut hyper).poll(cx);
        stalled.set(requests.stalled_since().map(|since| since + SEND_TIMEOUT));
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
fn as_http2(mut response: Response<BoxBody>, running: Running) -> Response<BoxBody> {
    headers::remove_hop_by_hop(response.headers_mut());
    response.map(|body| Held { body, running }.boxed_unsync())
}

/// The requests of a connection that are being answered.
struct Requests(Mutex<Counted>);

struct Counted {
    running: usize,
    /// When the last one ended.
    ended_at: Instant,
    /// Responses that have written a piece and have no window for the next one.
    blocked: usize,
    /// When the last of them was blocked.
    blocked_at: Instant,
    /// The connection's own.
    waker: Option<Waker>,
}

impl Default for Requests {
    fn default() -> Self {
        let now = clock::now();
        Self(Mutex::new(Counted { running: 0, ended_at: now, blocked: 0, blocked_at: now, waker: None }))
    }
}

impl Requests {
    fn idle_since(&self) -> Option<Instant> {
        let counted = self.lock();
        (counted.running == 0).then_some(counted.ended_at)
    }

    /// Returns since when every response of the connection has been blocked by its client. `None` while one of them can go on: hyper
    /// offers no end of a single response, and the others are not to suffer for it.
    fn stalled_since(&self) -> Option<Instant> {
        let counted = self.lock();
        let is_stalled = counted.blocked > 0 && counted.blocked == counted.running;
        is_stalled.then(|| counted.blocked_at.max(counted.ended_at))
    }

    fn wake_when_one_ends(&self, cx: &Context<'_>) {
        let mut counted = self.lock();
        if !counted.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            counted.waker = Some(cx.waker().clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them. Its end wakes the connection, which has no other way to know of a receipt that begins to settle.
struct Running {
    requests: Arc<Requests>,
    is_blocked: bool,
}

impl Running {
    fn begin(requests: &Arc<Requests>) -> Self {
        requests.lock().running += 1;
        Self { requests: requests.clone(), is_blocked: false }
    }

    fn note_blocked(&mut self, is_blocked: bool) {
        if std::mem::replace(&mut self.is_blocked, is_blocked) == is_blocked {
            return;
        }
        let mut counted = self.requests.lock();
        if is_blocked {
            counted.blocked += 1;
            counted.blocked_at = clock::now();
        } else {
            counted.blocked -= 1;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.note_blocked(false);
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

    /// hyper asks for a piece only when the client has window for it.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.running.note_blocked(false);
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.running.note_blocked(matches!(frame, Poll::Ready(Some(Ok(_)))));
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

    use http::Uri;
    use http_body_util::Full;
    use hyper::client::conn::http2::{SendRequest, handshake};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::watch;

    use super::*;
    use crate::ingress::serve::Ending;
    use crate::upstream::whole;

    /// A SETTINGS frame without settings.
    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

    /// Serves the other end of a pipe; every request is answered after `takes`.
    fn served(takes: Duration) -> (DuplexStream, watch::Sender<Ending>) {
        served_by(move |_, _| async move {
            clock::sleep_until(clock::now() + takes).await;
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

    /// Serves a response whose body never runs out of pieces.
    fn served_endless_bodies() -> (DuplexStream, watch::Sender<Ending>) {
        struct Endless;

        impl Body for Endless {
            type Data = Bytes;
            type Error = BoxError;

            fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16 * 1024])))))
            }
        }

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
