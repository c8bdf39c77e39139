use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Instant;

use bytes::Bytes;
use http::Uri;
use http_body::{Body, Frame};
use http_body_util::Full;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;

use super::open_requests::SLOW_TIMEOUT;
use super::preface::PREFACE;
use super::*;
use crate::HEAD_TIMEOUT;
use crate::SEND_TIMEOUT;
use crate::body::{BoxError, Incoming, whole};
use crate::handler::{Peer, StopSignal};
use mcp_resume_base::clock;

/// A SETTINGS frame without settings.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// Serves the other end of a pipe. Every request gets its response after `takes`.
fn served(takes: Duration) -> (DuplexStream, watch::Sender<StopSignal>) {
    served_by(move |_: Request<Incoming>| async move {
        clock::sleep(takes).await;
        Response::new(whole(Bytes::from_static(b"done")))
    })
}

fn served_by(handler: impl Handler) -> (DuplexStream, watch::Sender<StopSignal>) {
    let (near, far) = duplex(64 * 1024);
    let (stop, ending) = watch::channel(StopSignal::None);
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let peer = Peer { address, scheme: "http", certificate: None };
    tokio::spawn(serve(
        PrefixedIo::new(far),
        NewConnection { peer, header_bytes: 65_536, idle: HEAD_TIMEOUT, handler, ending },
    ));
    (near, stop)
}

async fn until_closed(mut pipe: DuplexStream) -> Duration {
    let begin = clock::now();
    let mut rest = Vec::new();
    pipe.read_to_end(&mut rest).await.expect("a pipe that ends");
    clock::now() - begin
}

/// Acknowledges every PING, and does nothing else. Returns the time until the connection ended.
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

/// Returns a client that acknowledges every PING, and the end time of its connection.
async fn speaking(pipe: DuplexStream) -> (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<Instant>) {
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(pipe)).await.expect("HTTP/2");
    let ended = tokio::spawn(async {
        let _ = connection.await;
        clock::now()
    });
    (sender, ended)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_gone() {
    let (mut pipe, _stop) = served(Duration::ZERO);
    pipe.write_all(&[PREFACE, SETTINGS].concat()).await.expect("room");
    let took = until_closed(pipe).await;
    assert!(took >= PING_TIMEOUT && took <= PING_INTERVAL + PING_TIMEOUT + Duration::from_secs(1), "{took:?}");
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
    let response = sender.send_request(Request::from_parts(head, body)).await.expect("a response");
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

/// Serves responses whose bodies never end.
fn served_endless_bodies() -> (DuplexStream, watch::Sender<StopSignal>) {
    served_by(|_: Request<Incoming>| async { Response::new(Endless.boxed_unsync()) })
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_its_responses_is_gone() {
    let (pipe, _stop) = served_endless_bodies();
    let (mut sender, ended) = speaking(pipe).await;
    let begin = clock::now();
    let mut responses = Vec::new();
    for _ in 0..2 {
        let request = Request::get("http://h/").body(Full::default()).expect("a request");
        responses.push(sender.send_request(request).await.expect("a response"));
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
    let _unread = sender.send_request(request()).await.expect("a response");
    let mut read = sender.send_request(request()).await.expect("a response").into_body();
    for _ in 0..SEND_TIMEOUT.as_secs() * 3 {
        tokio::time::advance(Duration::from_secs(1)).await;
        read.frame().await.expect("it goes on").expect("it goes on");
    }
    assert!(!ended.is_finished());
}

/// Number of bodies that were dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Body of an event stream: endless for a path, silent for `/`.
struct Events {
    is_endless: bool,
    _dropped: Dropped,
}

impl Body for Events {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_endless {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16 * 1024])))))
        } else {
            Poll::Pending
        }
    }
}

fn served_events(dropped: &Arc<AtomicUsize>) -> (DuplexStream, watch::Sender<StopSignal>) {
    let dropped = dropped.clone();
    served_by(move |request: Request<Incoming>| {
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
    let silent = sender.send_request(request_for("http://h/")).await.expect("a response");
    let begin = clock::now();
    let mut unread = Vec::new();
    for _ in 0..2 {
        unread.push(sender.send_request(request_for("http://h/endless")).await.expect("a response"));
    }
    while dropped.load(Ordering::Relaxed) < 2 {
        clock::sleep(Duration::from_millis(100)).await;
        let took = clock::now() - begin;
        assert!(took < SEND_TIMEOUT + Duration::from_secs(2), "{dropped:?} after {took:?}");
    }
    assert!(clock::now() - begin >= SEND_TIMEOUT);
    // The other responses continue without a limit.
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
    let _unread = sender.send_request(request_for("http://h/endless")).await.expect("a response");
    let mut read = sender.send_request(request_for("http://h/endless")).await.expect("a response").into_body();
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
    let (pipe, _stop) = served_by(|request: Request<Incoming>| async move {
        match request.uri().path() {
            "/" => std::future::pending().await,
            _ => Response::new(Endless.boxed_unsync()),
        }
    });
    let (mut sender, _ended) = speaking(pipe).await;
    let begin = clock::now();
    let waiting = tokio::spawn(sender.send_request(request_for("http://h/")));
    let _unread = sender.send_request(request_for("http://h/endless")).await.expect("a response");
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
        // SETTINGS_INITIAL_WINDOW_SIZE: bytes that the client takes of each response.
        let settings = [b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0", &[window][..]].concat();
        // GET / over http, for the authority "h".
        let request = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x41\x01h";
        pipe.write_all(&[PREFACE, &settings, request].concat()).await.expect("room");
        let took = tokio::time::timeout(SLOW_TIMEOUT, answering_pings(pipe)).await.expect("it ends in time");
        let latest = SEND_TIMEOUT + HEAD_TIMEOUT + Duration::from_secs(2);
        assert!(took >= SEND_TIMEOUT && took < latest, "{took:?}");
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
