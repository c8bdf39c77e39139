//! Pool of idle connections.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, ReadBuf};

use crate::clock;
use crate::sync;

/// Idle connections. The one returned last is taken first, so that no more are kept alive than
/// needed.
pub(super) struct Pool<S> {
    state: Mutex<State<S>>,
    idle_timeout: Duration,
}

struct State<S> {
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
    /// Creates a pool that keeps each connection for `idle_timeout`; zero disables it.
    pub(super) fn new(idle_timeout: Duration) -> Arc<Self> {
        let state = State { idle: Vec::new(), is_reaped: false };
        Arc::new(Self { state: Mutex::new(state), idle_timeout })
    }

    /// Takes a connection that the server has not closed, as far as is known.
    pub(super) fn take(&self) -> Option<S> {
        let now = clock::now();
        let mut state = self.state();
        while let Some(Idle { mut socket, until }) = state.idle.pop() {
            if now < until && is_quiet(&mut socket) {
                return Some(socket);
            }
        }
        None
    }

    /// Returns a connection to the pool.
    pub(super) fn put(self: &Arc<Self>, socket: S) {
        if self.idle_timeout.is_zero() {
            return;
        }
        let until = clock::now() + self.idle_timeout;
        let mut state = self.state();
        state.idle.push(Idle { socket, until });
        if !std::mem::replace(&mut state.is_reaped, true) {
            tokio::spawn(reap(Arc::downgrade(self), until));
        }
    }

    /// Closes expired connections. Returns the time of the next expiry, or `None` if the pool is
    /// empty.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        let expired = state.idle.partition_point(|idle| idle.until <= now);
        state.idle.drain(..expired);
        let next = state.idle.first().map(|first| first.until);
        state.is_reaped = next.is_some();
        next
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        sync::lock(&self.state)
    }
}

async fn reap<S: AsyncRead + Send + Unpin + 'static>(pool: Weak<Pool<S>>, first: Instant) {
    let mut next = Some(first);
    while let Some(at) = next {
        clock::sleep_until(at).await;
        next = pool.upgrade().and_then(|pool| pool.expire(clock::now()));
    }
}

/// Returns true if a connection is open and silent: bytes that precede a request are no response to
/// it.
fn is_quiet<S: AsyncRead + Unpin>(socket: &mut S) -> bool {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    Pin::new(socket).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer).is_pending()
}
