use std::io;

use bytes::Bytes;
use http_body::Body as _;
use tokio::io::DuplexStream;

use super::*;
use crate::config::{self, Config};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::Lines;
use crate::upstream::server::connect::{Dial, DialFuture};
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::http::HttpServer;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
const TIMEOUT: Duration = Duration::from_secs(8);

/// Dialer with one pipe.
struct Pipe(Mutex<Option<DuplexStream>>);

impl Dial for Pipe {
    fn dial(&self, _: &Uri) -> DialFuture {
        let pipe = self.0.lock().unwrap().take();
        Box::pin(async move { pipe.map(|pipe| Box::new(pipe) as _).ok_or(io::ErrorKind::ConnectionRefused.into()) })
    }
}

/// Returns an upstream over HTTP/2, and the server's end of its connection.
fn upstream(with: impl FnOnce(&mut config::Upstream)) -> (Arc<HttpServer>, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let mut config = Config::for_upstream("http://there/mcp").unwrap().upstream;
    config.http2 = true;
    config.connect_timeout = CONNECT_TIMEOUT;
    with(&mut config);
    let dialer = Arc::new(Pipe(Mutex::new(Some(ours))));
    (Arc::new(HttpServer::with_dialer(config, dialer).unwrap()), theirs)
}

fn template() -> Template {
    let (parts, ()) = Request::post("/mcp").body(()).unwrap().into_parts();
    Template::new(&parts, None, Lines::default(), Bytes::from_static(b"ask"))
}

/// Serves a connection that forbids streams.
async fn take_nothing(pipe: DuplexStream) {
    let mut connection =
        h2::server::Builder::new().max_concurrent_streams(0).handshake::<_, Bytes>(pipe).await.unwrap();
    let stream = connection.accept().await;
    assert!(stream.is_none(), "a stream was opened: {stream:?}");
}

#[tokio::test(start_paused = true)]
async fn withdrawn_calls_prolong_no_other_call() {
    let (upstream, pipe) = upstream(|_| ());
    tokio::spawn(take_nothing(pipe));
    let mut calls = Vec::new();
    for _ in 0..20 {
        let upstream = upstream.clone();
        calls.push(tokio::spawn(async move {
            let begun = clock::now();
            let failure = upstream.exchange(&template(), None).await.unwrap_err().failure;
            (failure, clock::now().saturating_duration_since(begun))
        }));
        tokio::time::sleep(TIMEOUT / 8).await;
    }
    for (number, call) in calls.into_iter().enumerate() {
        let (failure, took) = call.await.unwrap();
        assert_eq!(failure, Failure::before_run(ErrorCode::UpstreamTimeout), "call {number}");
        assert!(took <= TIMEOUT * 2, "call {number} waited for {took:?}");
    }
}

/// The connection's task runs on another thread: it may reach the request at the moment of the
/// withdrawal.
#[tokio::test(start_paused = true)]
async fn a_request_that_timed_out_before_it_was_sent_is_withdrawn() {
    for is_taken_first in [false, true] {
        let (upstream, _pipe) = upstream(|config| config.header_timeout = Some(TIMEOUT));
        let sent_flag = SentFlag::default();
        let mut body =
            Box::pin(template().to_request(Uri::from_static("http://there/mcp"), &sent_flag, None).into_body());
        let mut poll = async || std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await.unwrap();
        if is_taken_first {
            poll().await.unwrap();
        }
        let sending = std::pin::pin!(std::future::pending());
        let failure = upstream.await_head(sending, &sent_flag).await.unwrap_err().failure;
        assert_eq!(failure.code, ErrorCode::UpstreamTimeout);
        assert_eq!(failure.may_have_run, is_taken_first);
        if !is_taken_first {
            assert!(poll().await.is_err(), "the client was told that it has not run");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_stuck_connection_is_withdrawn() {
    let (upstream, _pipe) = upstream(|_| ());
    let sent_flag = SentFlag::default();
    let _slot = upstream.clients.client_with_capacity(&sent_flag);
    let client = upstream.clients.first.clone();
    client.when_stuck(&sent_flag, TIMEOUT).await;
    assert!(!sent_flag.mark_sent(), "the client is told that it has not run");
}
