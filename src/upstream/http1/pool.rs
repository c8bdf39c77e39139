//! Pool of idle connections.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, ReadBuf};

use crate::clock;
use crate::sync;

/// Idle connections. The one returned last is taken first, so that no more are kept alive than needed.
pub(super) struct Pool<S> {
    kept: Mutex<Kept<S>>,
    keep: Duration,
}

struct Kept<S> {
    /// The oldest first.
    idle: Vec<Idle<S>>,
    /// True if a task is running that closes them in time.
    is_reaped: bool,
}

struct Idle<S> {
    socket: S,
    until: Instant,
}

impl<S: AsyncRead + Send + Unpin + 'static> Pool<S> {
    /// Creates a pool that keeps each connection for `keep`; zero disables it.
    pub(super) fn new(keep: Duration) -> Arc<Self> {
        let kept = Kept { idle: Vec::new(), is_reaped: false };
        Arc::new(Self { kept: Mutex::new(kept), keep })
    }

    /// Takes a connection that the server has not closed, as far as is known.
    pub(super) fn take(&self) -> Option<S> {
        let now = clock::now();
        let mut kept = self.kept();
        while let Some(Idle { mut socket, until }) = kept.idle.pop() {
            if now < until && is_quiet(&mut socket) {
                return Some(socket);
            }
        }
        None
    }

    /// Returns a connection to the pool.
    pub(super) fn put(self: &Arc<Self>, socket: S) {
        if self.keep.is_zero() {
            return;
        }
        let until = clock::now() + self.keep;
        let mut kept = self.kept();
        kept.idle.push(Idle { socket, until });
        if !std::mem::replace(&mut kept.is_reaped, true) {
            tokio::spawn(reap(Arc::downgrade(self), until));
        }
    }

    /// Closes expired connections. Returns the time of the next expiry, or `None` if the pool is empty.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut kept = self.kept();
        let expired = kept.idle.partition_point(|idle| idle.until <= now);
        kept.idle.drain(..expired);
        let next = kept.idle.first().map(|first| first.until);
        kept.is_reaped = next.is_some();
        next
    }

    fn kept(&self) -> MutexGuard<'_, Kept<S>> {
        sync::lock(&self.kept)
    }
}

async fn reap<S: AsyncRead + Send + Unpin + 'static>(pool: Weak<Pool<S>>, first: Instant) {
    let mut next = Some(first);
    while let Some(at) = next {
        clock::sleep_until(at).await;
        next = pool.upgrade().and_then(|pool| pool.expire(clock::now()));
    }
}

/// Returns true if a connection is open and silent: bytes that precede a request are no response to it.
fn is_quiet<S: AsyncRead + Unpin>(socket: &mut S) -> bool {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    Pin::new(socket).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer).is_pending()
}
