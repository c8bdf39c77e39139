//! HTTP/1.1 connections: hyper's, with two additions.
//!
//! A client that leaves while a response runs is noticed at once ([`socket`]), and one that takes nothing of its response is ended
//! ([`send_timeout`]).

mod send_timeout;
mod socket;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{debug, info};

use super::HEAD_TIMEOUT;
use super::handler::{ConnectionState, Handler, NewConnection};
use super::prefixed_io::PrefixedIo;
use send_timeout::SendTimeout;

/// Serves one connection.
pub(super) async fn serve<Io, H>(io: PrefixedIo<Io>, new: NewConnection<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let header_bytes = new.header_bytes;
    let (requests, mut deadlines, stop) = new.begin();
    let mut send_timeout = SendTimeout::new(requests.connection().clone());
    let (socket, watch) = socket::share(io);
    let service = service_fn(move |request| {
        let response = requests.handle(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut hyper = pin!(
        http1::Builder::new()
            // Without half-close hyper allocates a buffer for each running response, only to notice its client leave. The watch
            // notices it without one.
            .half_close(true)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(header_bytes)
            .serve_connection(TokioIo::new(socket), service)
    );
    let mut stop = pin!(stop);
    let (mut is_stopping, mut is_stalled) = (false, false);
    let ended = poll_fn(|cx| {
        if !is_stopping && stop.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            hyper.as_mut().graceful_shutdown();
        }
        watch.before_hyper();
        if let Poll::Ready(ended) = Pin::new(&mut hyper).poll(cx) {
            return Poll::Ready(ended);
        }
        deadlines.poll(cx);
        if send_timeout.poll(cx, watch.blocked_since()).is_ready() {
            info!("a connection ends whose client takes nothing");
            is_stalled = true;
            return Poll::Ready(Ok(()));
        }
        watch.poll_left(cx).map(Ok)
    })
    .await;
    match ended {
        Ok(()) if !is_stalled && !watch.is_broken() => deadlines.connection().ended(),
        Ok(()) => {}
        Err(error) => debug!(%error, "connection ended"),
    }
}
