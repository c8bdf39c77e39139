//! HTTP/2 connections.
//!
//! A connection carries many requests. So a client that takes nothing of a response loses that
//! response alone. Its stream is reset if the client can distinguish a reset from the end. A client
//! that resets a stream has left that response. Requests and responses are passed in their HTTP/1.1
//! form: the handler sees no difference but the version.

mod open_requests;
mod preface;
mod response_task;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{COOKIE, HOST};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use super::handler::{Handler, NewConnection};
use super::prefixed_io::PrefixedIo;
use crate::body::BoxBody;
use mcp_resume_base::clock::Alarm;
use mcp_resume_protocol::headers;
use open_requests::{OpenRequest, OpenRequests, ResponseBody};
pub(super) use preface::detect;
use response_task::ResponseTasks;

/// Interval of keep-alive PINGs, and time for the response.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Concurrent requests of one connection. Clients may rely on no fewer (RFC 9113 §6.5.2).
const MAX_STREAMS: u32 = 100;
/// Bytes that a client may send of one body, and of all, before they are read.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes taken of a response before the client has made room for them. The fewer, the more the end
/// of a response says about its arrival.
const SEND_BUFFER: usize = 64 * 1024;
/// Streams reset before they were accepted; more, and the connection is closed.
const MAX_PENDING_RESETS: usize = 20;
/// Streams reset for errors of the client; more, and the connection is closed.
const MAX_ERROR_RESETS: usize = 100;

/// Serves one connection.
pub(super) async fn serve<Io, H>(io: PrefixedIo<Io>, new: NewConnection<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let (header_bytes, idle_timeout) = (new.header_bytes, new.idle);
    let (requests, mut deadlines, stop) = new.begin();
    let open = Arc::new(OpenRequests::default());
    let tasks = ResponseTasks { requests: open.clone(), connection: requests.connection().clone() };
    let opened = open.clone();
    let service = service_fn(move |request| {
        let open_request = OpenRequest::begin(&opened);
        let response = requests.handle(as_http1(request));
        async move { Ok::<_, Infallible>(as_http2(response.await, open_request)) }
    });
    let mut hyper = pin!(
        http2::Builder::new(tasks)
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .serve_connection(TokioIo::new(io), service)
    );
    let mut stop = pin!(stop);
    let mut idle = Alarm::new();
    let mut stalled = Alarm::new();
    let mut is_stopping = false;
    let ended = poll_fn(|cx| {
        open.register(cx);
        idle.set(open.idle_since().map(|since| since + idle_timeout));
        let mut should_stop = || open.is_leaving() || stop.as_mut().poll(cx).is_ready() || idle.poll(cx).is_ready();
        if !is_stopping && should_stop() {
            is_stopping = true;
            hyper.as_mut().graceful_shutdown();
        }
        let ended = Pin::new(&mut hyper).poll(cx);
        stalled.set(open.deadline(is_stopping));
        if ended.is_pending() && stalled.poll(cx).is_ready() {
            debug!("connection ended: its client takes nothing");
            return Poll::Ready(Ok(()));
        }
        deadlines.poll(cx);
        ended
    })
    .await;
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

/// Returns the request as HTTP/1.1: with the `:authority` as `Host`, which it replaces (RFC 9113
/// §8.3.1), and one cookie header (§8.2.3).
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

/// Returns the response without the headers that HTTP/2 forbids: `Connection` and those it names.
fn as_http2(mut response: Response<BoxBody>, mut request: OpenRequest) -> Response<BoxBody> {
    headers::remove_hop_by_hop(response.headers_mut());
    request.can_be_cut = headers::is_sse(response.headers()) || headers::is_json(response.headers());
    response.map(|body| ResponseBody { body, request }.boxed_unsync())
}
