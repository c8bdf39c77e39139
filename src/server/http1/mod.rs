//! HTTP/1.1 connections: hyper's, with three additions.
//!
//! A client that leaves while a response runs is noticed at once ([`socket`]). The connection of a
//! client that takes nothing of its response is ended ([`send_timeout`]). A connection that waits
//! for its next request gives hyper's buffers back ([`head_wait`]). It keeps its socket and the
//! handler's state, and hyper begins anew on it with the next bytes.
//!
//! The end of the server loses no arrived request: it is read and served before its connection
//! ends.

mod head_wait;
mod send_timeout;
mod socket;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tracing::{debug, info};

use super::HEAD_TIMEOUT;
use super::handler::{ClosedBy, ConnectionState, Deadlines, Handler, NewConnection};
use super::prefixed_io::PrefixedIo;
use head_wait::{HeadWait, WaitEvent, WaitWatch};
use send_timeout::SendTimeout;
use socket::SocketWatch;

/// Outcome of hyper's service of a connection.
enum Served {
    /// The connection ended without an error.
    Ended(ClosedBy),
    /// The connection broke, or was ended for its client's fault.
    Broken,
    /// The connection waits for a request.
    Idle,
}

/// End of the wait of an idle connection.
enum Woken {
    /// Bytes have come.
    Bytes,
    /// The client has left, or the server stops.
    Ended(ClosedBy),
    /// The connection broke, or no request came in time.
    Broken,
}

/// Serves one connection.
pub(super) async fn serve<Io, H>(mut io: PrefixedIo<Io>, new: NewConnection<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let (header_bytes, idle) = (new.header_bytes, new.idle);
    let (requests, mut deadlines, stop) = new.begin();
    let mut send_timeout = SendTimeout::new(requests.connection().clone());
    let wait = HeadWait::default();
    let mut wait_watch = WaitWatch::new(wait.clone(), idle);
    let requests = Box::new((requests, wait.clone()));
    let mut service = service_fn(move |request| {
        let (requests, wait) = &*requests;
        wait.end();
        let response = requests.handle(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut stop = pin!(stop);
    let mut is_stopping = false;
    let ended = loop {
        let (socket, watch) = socket::share(io);
        // Boxed, so that an idle connection reserves no room for it.
        let mut hyper = Box::new(
            http1::Builder::new()
                // Without half-close hyper allocates a buffer for each running response, only to
                // notice its client leave. The watch notices it without one.
                .half_close(true)
                .timer(wait.clone())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(header_bytes)
                .serve_connection(TokioIo::new(socket), service),
        );
        let served = poll_fn(|cx| {
            let mut polled = poll_hyper(&mut *hyper, &watch, cx);
            if polled.is_pending() && !is_stopping && stop.as_mut().poll(cx).is_ready() {
                is_stopping = true;
                Pin::new(&mut *hyper).graceful_shutdown();
                polled = poll_hyper(&mut *hyper, &watch, cx);
            }
            if polled.is_ready() {
                return polled;
            }
            deadlines.poll(cx);
            if send_timeout.poll(cx, watch.blocked_since()).is_ready() {
                info!("a connection ends whose client takes nothing");
                return Poll::Ready(Served::Broken);
            }
            if watch.poll_left(cx).is_ready() {
                // The client has left before it can have the whole response.
                return Poll::Ready(Served::Broken);
            }
            poll_wait(&mut wait_watch, is_stopping, &watch, cx)
        })
        .await;
        match served {
            Served::Ended(by) => break Some(by),
            Served::Broken => break None,
            Served::Idle => {}
        }
        let parts = hyper.into_parts();
        service = parts.service;
        drop(parts.io);
        let has_begun = !parts.read_buf.is_empty();
        let Some(rest) = watch.into_io(parts.read_buf) else { break None };
        io = rest;
        match poll_fn(|cx| poll_idle(&mut io, &mut deadlines, (&mut wait_watch, has_begun), stop.as_mut(), cx)).await {
            // The bytes begin a head, which has a time of its own.
            Woken::Bytes if !has_begun => wait_watch.end_wait(),
            Woken::Bytes => {}
            Woken::Ended(by) => {
                // The client need not take part.
                let _ = tokio::time::timeout(HEAD_TIMEOUT, io.shutdown()).await;
                break Some(by);
            }
            Woken::Broken => break None,
        }
    };
    if let Some(by) = ended {
        deadlines.connection().ended(by);
    }
}

/// Polls hyper's service of a connection, which reads what has arrived.
fn poll_hyper<Io: AsyncRead + Unpin>(
    hyper: &mut (impl Future<Output = hyper::Result<()>> + Unpin),
    watch: &SocketWatch<Io>,
    cx: &mut Context<'_>,
) -> Poll<Served> {
    watch.before_hyper();
    Pin::new(hyper).poll(cx).map(|ended| served(ended, watch))
}

/// Returns how hyper's service of a connection ended.
fn served<Io: AsyncRead + Unpin>(ended: hyper::Result<()>, watch: &SocketWatch<Io>) -> Served {
    match ended {
        Ok(()) | Err(_) if !watch.is_broken() && watch.was_closed() => Served::Ended(ClosedBy::Client),
        Ok(()) if watch.is_broken() => Served::Broken,
        Ok(()) => Served::Ended(ClosedBy::Server),
        Err(error) => {
            debug!(%error, "connection ended");
            Served::Broken
        }
    }
}

/// Polls the wait for the head of a request. Ready if the connection may give its buffers back, or
/// if the head took too long.
fn poll_wait<Io: AsyncRead + Unpin>(
    wait_watch: &mut WaitWatch,
    is_stopping: bool,
    watch: &SocketWatch<Io>,
    cx: &mut Context<'_>,
) -> Poll<Served> {
    loop {
        match ready!(wait_watch.poll(cx)) {
            // hyper holds no byte of a response: it waits for a head, and the socket has taken all.
            WaitEvent::Idle if !is_stopping && watch.is_at_rest() => return Poll::Ready(Served::Idle),
            WaitEvent::Idle => {}
            WaitEvent::TooLong => {
                debug!("no request came in time");
                return Poll::Ready(Served::Broken);
            }
        }
    }
}

/// Polls an idle connection. Its first bytes are read into the prefix of `io`. A head that has
/// begun keeps its own time.
fn poll_idle<Io: AsyncRead + Unpin, C: ConnectionState>(
    io: &mut PrefixedIo<Io>,
    deadlines: &mut Deadlines<C>,
    (wait_watch, has_begun): (&mut WaitWatch, bool),
    stop: Pin<&mut impl Future<Output = ()>>,
    cx: &mut Context<'_>,
) -> Poll<Woken> {
    match io.poll_read_ahead(cx) {
        Poll::Ready(Ok(0)) => return Poll::Ready(Woken::Ended(ClosedBy::Client)),
        Poll::Ready(Ok(_)) => return Poll::Ready(Woken::Bytes),
        Poll::Ready(Err(error)) if socket::is_plain_end(&error) => {
            return Poll::Ready(Woken::Ended(ClosedBy::Client));
        }
        Poll::Ready(Err(_)) => return Poll::Ready(Woken::Broken),
        Poll::Pending => {}
    }
    if stop.poll(cx).is_ready() {
        return Poll::Ready(Woken::Ended(ClosedBy::Server));
    }
    deadlines.poll(cx);
    let is_over = if has_begun { wait_watch.poll(cx).map(|_| ()) } else { wait_watch.poll_end(cx) };
    is_over.map(|()| {
        debug!("no request came in time");
        Woken::Broken
    })
}
