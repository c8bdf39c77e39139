//! Requests in flight: each is counted at its backend, and cut if that backend goes down.
//!
//! Pingora's phases cannot end a wait for a backend that no longer responds. [`unless_cut`] ends it
//! from outside the proxy. Before the response begins, it shuts down the connection to the backend:
//! Pingora fails the request, which may then be retried. Once the response has begun, it drops the
//! request. It never sees the context that Pingora passes to the phases, so both share a
//! task-local. Absent: the decision to retry ([`super::proxy`]).

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, ready};

use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, shutdown};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::metrics::Metrics;
use super::table::Backend;

/// A request in flight at a backend, for as long as this value lives.
pub struct InFlight {
    /// The backend.
    pub backend: Arc<Backend>,
    down: CancellationToken,
}

impl InFlight {
    /// Counts a request at the backend until the returned value is dropped.
    pub fn begin(backend: &Arc<Backend>) -> Self {
        let down = backend.down();
        backend.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { backend: backend.clone(), down }
    }

    /// Cancelled when the backend goes down.
    pub fn down(&self) -> &CancellationToken {
        &self.down
    }

    /// Has this task's request cut if the backend goes down. The request has no response yet and
    /// uses `connection`. The caller must call [`response_started`] or [`unwatch`] before Pingora
    /// may close that connection.
    pub(super) fn watch(&self, connection: Option<BackendConnection>) {
        let _ =
            WATCHED.try_with(|watched| watched.replace(Some(WatchedBackend { down: self.down.clone(), connection })));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.backend.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

tokio::task_local! {
    /// The backend of the request that this task serves, or `None` if the request is at none.
    static WATCHED: RefCell<Option<WatchedBackend>>;
}

/// The backend that a request depends on.
struct WatchedBackend {
    /// Cancelled when the backend goes down.
    down: CancellationToken,
    /// The connection to it, or `None` once the response has begun.
    connection: Option<BackendConnection>,
}

/// A connection of Pingora's to a backend.
pub(super) struct BackendConnection {
    pub(super) fd: RawFd,
    /// Address of the backend.
    pub(super) address: SocketAddr,
}

impl BackendConnection {
    /// Shuts the connection down, so that its reader sees its end. Returns false if it is already
    /// closed.
    fn shut_down(&self) -> bool {
        // The descriptor alone could have been reused for another connection. Any other one to this
        // backend may be shut down as well.
        let is_open = getpeername(self.fd).is_ok_and(|peer: SockaddrStorage| peer == self.address.into());
        is_open && shutdown(self.fd, Shutdown::Both).is_ok()
    }
}

/// Notes that the response to this task's request has begun.
pub(super) fn response_started() {
    let _ = WATCHED.try_with(|watched| {
        if let Some(watched) = watched.borrow_mut().as_mut() {
            watched.connection = None;
        }
    });
}

/// Notes that this task's request is at no backend any more.
pub(super) fn unwatch() {
    let _ = WATCHED.try_with(|watched| watched.replace(None));
}

/// Runs `request`. Returns `None`, and counts a cut, if the backend that its response comes from
/// goes down.
pub(super) async fn unless_cut<T>(request: impl Future<Output = T>, metrics: &Metrics) -> Option<T> {
    let mut request = pin!(request);
    let mut waiting: Option<(CancellationToken, Pin<Box<WaitForCancellationFutureOwned>>)> = None;
    let until_either = poll_fn(|context| {
        if let Poll::Ready(outcome) = request.as_mut().poll(context) {
            return Poll::Ready(Some(outcome));
        }
        // Only the poll above can have changed the backend.
        WATCHED.with(|watched| match &*watched.borrow() {
            None => waiting = None,
            Some(WatchedBackend { down, .. }) if waiting.as_ref().is_some_and(|(known, _)| known == down) => {}
            Some(WatchedBackend { down, .. }) => {
                waiting = Some((down.clone(), Box::pin(down.clone().cancelled_owned())))
            }
        });
        let Some((_, cancelled)) = &mut waiting else { return Poll::Pending };
        ready!(cancelled.as_mut().poll(context));
        let connection = WATCHED.with(RefCell::take).and_then(|watched| watched.connection);
        if connection.is_some_and(|connection| connection.shut_down()) {
            // The shutdown wakes this task. Pingora fails the request, which is then retried or
            // gets an error response.
            waiting = None;
            return Poll::Pending;
        }
        // Counted before the connection closes, so that a client that sees the end finds the cut in
        // the metrics.
        metrics.observe_cut();
        Poll::Ready(None)
    });
    WATCHED.scope(RefCell::default(), until_either).await
}
