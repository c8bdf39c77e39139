use std::collections::VecDeque;
use std::convert::identity;
use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use http::{StatusCode, Uri};
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream, DuplexStream, ReadBuf};

use super::*;
use crate::body::BoxError;
use crate::upstream::server::connect::{Dial, DialFuture, Transport, Wire};

const IDLE: Duration = Duration::from_secs(4);
/// Capacity of a pipe.
const PIPE: usize = 1024;

/// Hands out the ends of pipes.
#[derive(Default)]
struct Pipes(Mutex<VecDeque<Box<dyn Wire>>>);

impl Dial for Pipes {
    fn dial(&self, _: &Uri) -> DialFuture {
        let pipe = self.0.lock().unwrap().pop_front();
        Box::pin(async move { pipe.ok_or(io::ErrorKind::ConnectionRefused.into()) })
    }
}

/// A client, and the server's ends of the connections it will make.
fn client<const N: usize>() -> (Client, [DuplexStream; N]) {
    client_over(PIPE, |pipe| Box::new(pipe))
}

/// Returns a client with a layer between it and the pipes of this capacity.
fn client_over<const N: usize>(
    size: usize,
    between: impl Fn(DuplexStream) -> Box<dyn Wire>,
) -> (Client, [DuplexStream; N]) {
    let pipes = Arc::new(Pipes::default());
    let servers = std::array::from_fn(|_| {
        let (ours, theirs) = tokio::io::duplex(size);
        pipes.0.lock().unwrap().push_back(between(ours));
        theirs
    });
    let config = crate::config::Config::for_upstream("http://there").unwrap().upstream;
    let connector = Connector::new(Transport::Dialed(pipes), &config).unwrap();
    (Client::new(connector, "there".into(), IDLE), servers)
}

fn request(body: &Bytes) -> Request<'_> {
    static LINES: std::sync::LazyLock<Lines> = std::sync::LazyLock::new(Lines::default);
    Request { method: &Method::POST, target: "/mcp", lines: &LINES, body }
}

/// Reads a request whose body ends with `end`.
async fn take_request(server: &mut DuplexStream, end: &[u8]) {
    let mut seen = Vec::new();
    while !seen.ends_with(end) {
        assert_ne!(server.read_buf(&mut seen).await.unwrap(), 0, "the request ended early");
    }
    assert!(seen.starts_with(b"POST /mcp HTTP/1.1\r\nhost: there\r\ncontent-length: "));
}

async fn respond(server: &mut DuplexStream, text: &str) {
    take_request(server, b"ask").await;
    server.write_all(text.as_bytes()).await.unwrap();
}

async fn exchange(client: &Client) -> Result<Bytes, BoxError> {
    let response = client.send(request(&Bytes::from_static(b"ask")), || (), identity).await?;
    assert_eq!(response.status(), StatusCode::OK);
    Ok(response.into_body().collect().await?.to_bytes())
}

/// Returns the body of a response that the server begins with `text`.
async fn begun_body(client: &Client, server: &mut DuplexStream, text: &str) -> Body {
    let ask = Bytes::from_static(b"ask");
    let sending = client.send(request(&ask), || (), identity);
    tokio::join!(sending, respond(server, text)).0.unwrap().into_body()
}

#[tokio::test]
async fn a_body_is_taken_once_all_of_it_has_arrived() {
    let (client, [mut server]) = client();
    let mut body = begun_body(&client, &mut server, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").await;
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(body.take_arrived(&mut cx, 4), None);
    server.write_all(b"cd").await.unwrap();
    assert_eq!(body.take_arrived(&mut cx, 3), None);
    assert_eq!(body.take_arrived(&mut cx, 4).unwrap(), "abcd");
}

#[tokio::test]
async fn a_body_that_is_not_taken_is_read_from_its_beginning() {
    let (client, [mut server]) = client();
    let mut body = begun_body(&client, &mut server, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").await;
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(body.take_arrived(&mut cx, 4), None);
    server.write_all(b"cd").await.unwrap();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "abcd");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_taken_and_fails_when_it_is_read() {
    let (client, [mut server]) = client();
    let mut body = begun_body(&client, &mut server, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").await;
    drop(server);
    assert_eq!(body.take_arrived(&mut Context::from_waker(Waker::noop()), 4), None);
    assert!(body.collect().await.is_err());
}

async fn exchange_once(client: &Client, server: &mut DuplexStream, text: &str) -> Result<Bytes, BoxError> {
    tokio::join!(exchange(client), respond(server, text)).0
}

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test(start_paused = true)]
async fn a_connection_is_used_again_until_it_has_been_idle_too_long() {
    let (client, [mut first, mut second]) = client();
    assert_eq!(exchange_once(&client, &mut first, RESPONSE).await.unwrap(), "ok");
    tokio::time::advance(IDLE - Duration::from_millis(1)).await;
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    assert_eq!(exchange_once(&client, &mut first, chunked).await.unwrap(), "ok");
    // The connection is closed without another request.
    let mut end = Vec::new();
    assert_eq!(first.read_to_end(&mut end).await.unwrap(), 0);
    assert_eq!(exchange_once(&client, &mut second, RESPONSE).await.unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn the_connection_used_last_is_used_next() {
    let (client, [mut first, mut second]) = client();
    let at_once = async { tokio::join!(biased; exchange(&client), exchange(&client)) };
    let serving = async { tokio::join!(respond(&mut first, RESPONSE), respond(&mut second, RESPONSE)) };
    let ((one, two), _) = tokio::join!(at_once, serving);
    assert_eq!((one.unwrap(), two.unwrap()), (Bytes::from_static(b"ok"), Bytes::from_static(b"ok")));
    assert_eq!(exchange_once(&client, &mut second, RESPONSE).await.unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_connection_the_server_closed_or_spoke_on_is_not_used_again() {
    for received in ["", "HTTP/1.1 200 OK\r\n"] {
        let (client, [mut first, mut second]) = client();
        assert_eq!(exchange_once(&client, &mut first, RESPONSE).await.unwrap(), "ok");
        first.write_all(received.as_bytes()).await.unwrap();
        if received.is_empty() {
            drop(first);
        }
        assert_eq!(exchange_once(&client, &mut second, RESPONSE).await.unwrap(), "ok");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_behind_a_response_only_prevent_reuse_of_the_connection() {
    for text in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
    ] {
        let (client, [mut first, mut second]) = client();
        assert_eq!(exchange_once(&client, &mut first, text).await.unwrap(), "ok");
        assert_eq!(exchange_once(&client, &mut second, RESPONSE).await.unwrap(), "ok");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_left_is_not_sent_again() {
    let (client, [mut first, second]) = client();
    let sent = AtomicUsize::new(0);
    let serving = async {
        take_request(&mut first, b"ask").await;
        drop(first);
    };
    let body = Bytes::from_static(b"ask");
    let on_sent = || {
        sent.fetch_add(1, Ordering::Relaxed);
    };
    let (response, ()) = tokio::join!(client.send(request(&body), on_sent, identity), serving);
    assert!(matches!(response, Err(Error::Broken(_))), "{response:?}");
    assert_eq!(sent.into_inner(), 1);
    drop(client);
    let mut second = second;
    assert_eq!(second.read_to_end(&mut Vec::new()).await.unwrap(), 0, "it was sent to another connection");
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_means_that_nothing_was_sent() {
    let (client, []) = client();
    let response = client.send(request(&Bytes::new()), || panic!("it was sent"), identity).await;
    assert!(matches!(response, Err(Error::Connect(_))), "{response:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_may_respond_before_it_has_read_the_request() {
    let (client, [mut first, mut second]) = client();
    let large = Bytes::from(vec![b'x'; 20 * PIPE]);
    let serving = async {
        let mut some = [0; 100];
        first.read_exact(&mut some).await.unwrap();
        first.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
    };
    let (response, ()) = tokio::join!(client.send(request(&large), || (), identity), serving);
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "no");
    // The rest of the request would be read as the next one.
    assert_eq!(exchange_once(&client, &mut second, RESPONSE).await.unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_large_request_is_written_while_its_response_is_awaited() {
    let (client, [mut first]) = client();
    let large = Bytes::from([vec![b'x'; 20 * PIPE], b"ask".to_vec()].concat());
    let (response, ()) = tokio::join!(client.send(request(&large), || (), identity), respond(&mut first, RESPONSE));
    assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes(), "ok");
    assert_eq!(exchange_once(&client, &mut first, RESPONSE).await.unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_truncated_body_fails_after_the_received_bytes() {
    let (client, [mut first]) = client();
    let serving = async {
        respond(&mut first, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok").await;
        drop(first);
    };
    let body = Bytes::from_static(b"ask");
    let (response, ()) = tokio::join!(client.send(request(&body), || (), identity), serving);
    let mut body = response.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
    assert!(body.frame().await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn dropping_a_body_closes_its_connection() {
    let (client, [mut first]) = client();
    let body = Bytes::from_static(b"ask");
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok";
    let (response, ()) = tokio::join!(client.send(request(&body), || (), identity), respond(&mut first, head));
    drop(response.unwrap());
    assert_eq!(first.read_to_end(&mut Vec::new()).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn data_buffered_by_the_connection_is_flushed() {
    let (client, [mut first]) = client_over(PIPE, |pipe| Box::new(BufStream::new(pipe)));
    for size in [0, 20 * PIPE] {
        let body = Bytes::from([vec![b'x'; size], b"ask".to_vec()].concat());
        let (response, ()) = tokio::join!(client.send(request(&body), || (), identity), respond(&mut first, RESPONSE));
        assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes(), "ok");
    }
}

/// Breaks in its second record, as TLS does on a broken connection: the first has left, and the
/// write has failed.
struct BreaksInSecond {
    pipe: DuplexStream,
    records: usize,
}

impl BreaksInSecond {
    const RECORD: usize = 16 * 1024;
}

impl AsyncRead for BreaksInSecond {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(cx, buffer)
    }
}

impl AsyncWrite for BreaksInSecond {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut bytes: &[u8]) -> Poll<io::Result<usize>> {
        let all = bytes.len();
        while !bytes.is_empty() {
            if self.records > 0 {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let (record, rest) = bytes.split_at(bytes.len().min(Self::RECORD));
            assert_eq!(ready!(Pin::new(&mut self.pipe).poll_write(cx, record))?, record.len(), "the pipe is large");
            self.records += 1;
            bytes = rest;
        }
        Poll::Ready(Ok(all))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        self.poll_write(cx, &bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_with_one_written_record_does_not_count_as_unsent() {
    let (client, [mut first]) =
        client_over(4 * BreaksInSecond::RECORD, |pipe| Box::new(BreaksInSecond { pipe, records: 0 }));
    let large = Bytes::from(vec![b'x'; 2 * BreaksInSecond::RECORD]);
    let sent = AtomicUsize::new(0);
    let on_sent = || _ = sent.fetch_add(1, Ordering::Relaxed);
    let reading = async {
        let mut record = vec![0; BreaksInSecond::RECORD];
        first.read_exact(&mut record).await.unwrap();
        drop(first);
    };
    let (response, ()) = tokio::join!(client.send(request(&large), on_sent, identity), reading);
    assert!(matches!(response, Err(Error::Broken(_))), "{response:?}");
    assert_eq!(sent.into_inner(), 1);
}
